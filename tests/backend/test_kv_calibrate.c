/* Key biases and surveys: codes of keys with a bias lose no more than those of keys without, whatever pairs of the rope
 * hold it; the form of keys follows the noise that was measured. */
#include <stdlib.h>

#include "kv_pages.h"

enum { D = 128, PAIRS = D / 2, PAGES = 4, POSITION = 4096 };

static float content[PAGES][KV_PAGE_TOKENS * D], keys[KV_PAGE_TOKENS * D], blocks[KV_PAGE_TOKENS * D];
static float decoded[KV_PAGE_TOKENS * D], energies[KV_PAGE_TOKENS];
static _Alignas(64) uint8_t page[KV_PAGE_TOKENS * D];

static float frequencies[PAIRS];

typedef struct Bias {
    float b[D];
    Rope rope;
} Bias;

/* A bias of this norm in eight pairs from `first` on. */
static Bias make_bias(double norm, int first, bool interleaved) {
    Bias out = {.rope = {.dims = D, .interleaved = interleaved, .frequencies = frequencies, .scale = 1.1f}};
    uint64_t state = 3;
    double square = 0;
    for (int i = first; i < first + 8; i++) {
        float *pair[2] = {&out.b[interleaved ? 2 * i : i], &out.b[interleaved ? 2 * i + 1 : i + PAIRS]};
        for (int j = 0; j < 2; j++) {
            *pair[j] = kv_gauss(&state);
            square += *pair[j] * *pair[j];
        }
    }
    for (int i = 0; i < D; i++) out.b[i] *= (float)(norm / sqrt(square));
    return out;
}

/* keys: content and the bias as a model's rope turns it, by the position in f32. */
static void fill_keys(const Bias *bias, const float *x, int position) {
    const Rope *rope = &bias->rope;
    for (int t = 0; t < KV_PAGE_TOKENS; t++)
        for (int i = 0; i < PAIRS; i++) {
            const float angle = (float)(position + t) * frequencies[i], c = cosf(angle), s = sinf(angle);
            const int first = rope->interleaved ? 2 * i : i, second = rope->interleaved ? 2 * i + 1 : i + PAIRS;
            const float a = bias->b[first] * rope->scale, b = bias->b[second] * rope->scale;
            keys[t * D + first] = x[t * D + first] + a * c - b * s;
            keys[t * D + second] = x[t * D + second] + a * s + b * c;
        }
}

/* E|k − k^|² of keys with this bias, surveyed and coded with 4 bits. */
static double error_with(const Bias *bias, bool remove) {
    uint64_t pairs = 0;
    KvQuant code = {.k = KV_Q4, .v = KV_Q4, .bias_pairs = &pairs};
    const KvLayer layer = {.layout = {1, D, D, DTYPE_F32}, .k_bias = remove ? bias->b : NULL, .rope = &bias->rope};
    const KvCalibration survey = {.layer = &layer, .raise = true, .code = &code};
    KvStatistics sums = {0};
    for (int p = 0; p < PAGES; p++) {
        fill_keys(bias, content[p], POSITION + p * KV_PAGE_TOKENS);
        kv_block(D, keys, blocks);
        kv_calibrate_page(&layer, 0, POSITION + p * KV_PAGE_TOKENS, blocks, energies, &sums);
    }
    kv_calibrate_decide(&survey, KV_Q4, 0, &sums);
    double error = 0;
    for (int p = 0; p < PAGES; p++) {
        const KvBias at = kv_bias_of(&layer, &code, 0, POSITION + p * KV_PAGE_TOKENS);
        fill_keys(bias, content[p], POSITION + p * KV_PAGE_TOKENS);
        kv_block(D, keys, blocks);
        kv_quant_keys(D, KV_Q4, blocks, &at, page);
        kv_decode(D, KV_Q4, false, page, decoded);
        for (int t = 0; t < KV_PAGE_TOKENS; t++) {
            float rotated[D];
            kv_rotate_back(D, 1, decoded + t * D);
            kv_bias_at(&at, D, t, rotated);
            for (int i = 0; i < D; i++) {
                const double e = keys[t * D + i] - (decoded[t * D + i] + rotated[i]);
                error += e * e;
            }
        }
    }
    return error / PAGES / KV_PAGE_TOKENS;
}

static void test_bias(bool interleaved) {
    static const double norms[] = {0, 22, 150, 605};
    static const int firsts[] = {PAIRS - 8, PAIRS / 2, 0}; /* slow, middle, fast: the mean takes the slow alone */
    const Bias none = make_bias(0, 0, interleaved);
    const double plain = error_with(&none, true);
    for (size_t n = 0; n < sizeof norms / sizeof *norms; n++)
        for (int place = 0; place < 3; place++) {
            const Bias bias = make_bias(norms[n], firsts[place], interleaved);
            const double with = error_with(&bias, true), left = error_with(&bias, false);
            TEST_MSG(
                sqrt(with / plain) <= 1.05, "|b| %g, place %d: noise %g times", norms[n], place, sqrt(with / plain));
            if (place == 0) TEST_MSG(sqrt(left / plain) <= 1.05, "slow, left to the mean: %g", sqrt(left / plain));
            if (place == 2 && n > 1) TEST_MSG(left > 10 * plain, "fast, left in: only %g", left / plain);
        }
}

static int count_bits(uint64_t x) {
    int count = 0;
    for (; x; x &= x - 1) count++;
    return count;
}

static void test_pairs(void) {
    const Bias slow = make_bias(605, PAIRS - 8, false), fast = make_bias(605, 0, false), weak = make_bias(1, 0, false);
    TEST(kv_bias_pairs(&slow.rope, slow.b, D) == 0);
    TEST(kv_bias_pairs(&fast.rope, fast.b, D) == 0xff);
    TEST(kv_bias_pairs(&weak.rope, weak.b, D) == 0);
    /* The largest first, and no more than needed: a twentieth of the content stays. */
    Bias mixed = make_bias(0, 0, false);
    mixed.b[0] = 100;
    mixed.b[3] = 10;
    mixed.b[5] = 2;
    TEST(kv_bias_pairs(&mixed.rope, mixed.b, 128) == (1 | 1 << 3));
    TEST(kv_bias_pairs(&mixed.rope, mixed.b, 50) == (1 | 1 << 3 | 1 << 5));
    TEST(kv_bias_pairs(&mixed.rope, mixed.b, 3000) == 1);
    TEST(count_bits(kv_bias_all(&mixed.rope)) == PAIRS);
    /* Ropes that turn by something else than the place in the cache. */
    Rope rope = fast.rope;
    rope.mrope_section[1] = 16;
    TEST(!kv_bias_possible(&rope) && kv_bias_pairs(&rope, fast.b, D) == 0);
    rope = fast.rope;
    rope.dynamic.positions = 2048;
    TEST(!kv_bias_possible(&rope));
    TEST(!kv_bias_possible(NULL) && kv_bias_pairs(NULL, fast.b, D) == 0);
}

/* A turn in two parts is the turn in one, but for the rounding of the angle. */
static void test_turns(void) {
    const Bias bias = make_bias(1, 0, false);
    for (int p = 0; p < 32768; p += 4321)
        for (int i = 0; i < PAIRS; i += 7) {
            const int start = p / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
            const KvRotation turn =
                kv_rotation_compose(kv_bias_rotation(&bias.rope, i, start), kv_bias_rotation(&bias.rope, i, p - start));
            const double angle = (double)p * frequencies[i];
            const double tolerance = 1e-6 + p * (double)frequencies[i] * 0x1p-24;
            TEST(fabs(turn.cosine - cos(angle)) <= tolerance && fabs(turn.sine - sin(angle)) <= tolerance);
        }
}

/* ---- forms ---- */

static void test_raised(void) {
    TEST(kv_raised(KV_Q4, 0.21f, false) == KV_Q4 && kv_raised(KV_Q4, 0.23f, false) == KV_Q5);
    TEST(kv_raised(KV_Q4, 0.41f, false) == KV_Q6 && kv_raised(KV_Q4, 0.1f, true) == KV_Q6);
    TEST(kv_raised(KV_Q5, 0.41f, true) == KV_Q6 && kv_raised(KV_Q6, 9, true) == KV_Q6);
    TEST(kv_raised(KV_Q8, 9, true) == KV_Q8 && kv_raised(KV_Q4, NAN, false) == KV_Q4);
}

/* Keys of N(0, size²) with an offset, and queries of this energy: the noise is √(q² · k² · .0092 / d), from the head
 * that has most of it. */
static KvQuant survey(double energy, float size, float offset, bool raise, uint64_t *pairs) {
    KvQuant code = {.k = KV_Q4, .v = KV_Q4, .noise = 7, .bias_pairs = pairs};
    const KvLayer layer = {.layout = {2, D, D, DTYPE_F32}};
    const KvCalibration asked = {.layer = &layer, .raise = raise, .code = &code};
    for (int head = 0; head < 2; head++) {
        KvStatistics sums = {0};
        for (int p = 0; p < PAGES; p++) {
            for (int t = 0; t < KV_PAGE_TOKENS; t++) energies[t] = (float)energy * (head ? 1 : 0.25f);
            for (int i = 0; i < KV_PAGE_TOKENS * D; i++) keys[i] = content[p][i] * size + offset;
            kv_block(D, keys, blocks);
            kv_calibrate_page(&layer, head, p * KV_PAGE_TOKENS, blocks, energies, &sums);
        }
        kv_calibrate_decide(&asked, KV_Q4, head, &sums);
    }
    return code;
}

static void test_survey(void) {
    uint64_t pairs[2] = {9, 9};
    KvQuant code = survey(4, 1, 0, true, pairs);
    const double expected = sqrt(4.0 * D * (127.0 / 128) * 0.0092 / D);
    TEST_MSG(fabs(code.noise - expected) <= 0.01 * expected, "noise %g for %g", code.noise, expected);
    TEST(code.k == KV_Q4 && code.v == KV_Q4 && pairs[0] == 0 && pairs[1] == 0);
    TEST(survey(4, 2, 0, true, pairs).k == KV_Q5);
    TEST(survey(4, 2, 0, false, pairs).k == KV_Q4);
    TEST(survey(16, 2, 0, true, pairs).k == KV_Q6);
    TEST(survey(4, 1, 2.5f, true, pairs).k == KV_Q4); /* |k| 2.7 times |k centred| */
    TEST(survey(4, 1, 3.5f, true, pairs).k == KV_Q6); /* 3.6 times */
}

int main(void) {
    uint64_t state = 1;
    for (int p = 0; p < PAGES; p++)
        for (int i = 0; i < KV_PAGE_TOKENS * D; i++) content[p][i] = kv_gauss(&state);
    for (int i = 0; i < PAIRS; i++) frequencies[i] = powf(1e6f, -(float)i / PAIRS);
    for (int t = 0; t < KV_PAGE_TOKENS; t++) energies[t] = 1;
    test_bias(false);
    test_bias(true);
    test_pairs();
    test_turns();
    test_raised();
    test_survey();
    return test_done();
}
