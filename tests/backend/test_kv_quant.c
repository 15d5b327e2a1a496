/* Codes of pages: tables and codes equal to an independent implementation's (kv_goldens.py), the layout that kv_quant.h
 * describes, how much is lost, and that a key's bias costs nothing. */
#include <stdlib.h>

#include "kv_pages.h"

static float numbers[KV_NUMBERS_MAX], blocks[KV_NUMBERS_MAX], decoded[KV_NUMBERS_MAX];
static _Alignas(64) uint8_t page[KV_NUMBERS_MAX * 2];

static void code_page(int d, KvForm form, bool values) { /* numbers to page */
    kv_block(d, numbers, blocks);
    if (values)
        kv_quant_values(d, form, blocks, page);
    else
        kv_quant_keys(d, form, blocks, NULL, page);
}

/* ---- goldens ---- */

static KvForm form_of(int bits) {
    for (KvForm form = KV_Q3; form < KV_FORMS; form++)
        if (kv_form_bits(form) == bits) return form;
    abort();
}

static void check_signs(const char *line) {
    char expected[2][33], found[33] = {0};
    float signs[256];
    TEST(sscanf(line, "signs %32s %32s", expected[0], expected[1]) == 2);
    kv_rotation_signs(128, signs);
    for (int half = 0; half < 2; half++) {
        for (int byte = 0; byte < 16; byte++) {
            int bits = 0;
            for (int i = 0; i < 8; i++) bits |= (signs[half * 128 + byte * 8 + i] < 0) << i;
            snprintf(found + 2 * byte, 3, "%02x", bits);
        }
        TEST_MSG(!strcmp(found, expected[half]), "%s", found);
    }
}

/* The numbers of a line after its name and form against ours. */
static void check_table(const char *line, bool edges) {
    char *at = strchr(line, ' ') + 1;
    const KvForm form = form_of((int)strtol(at, &at, 10));
    const int half = 1 << (kv_form_bits(form) - 1), count = edges ? half - 1 : half;
    for (int i = 0; i < count; i++) {
        const double expected = strtod(at, &at);
        const int8_t *values = kv_codebook(form) + half;
        TEST(fabs((edges ? (double)kv_quant_edges(form)[i] : values[i]) - expected) <= 1e-6);
        if (!edges) TEST(values[-1 - i] == -1 - values[i]);
    }
    TEST(strtod(at, &at) == 0 && *at == '\n');
}

static double losses[KV_FORMS]; /* of the integer codebooks, by theory */

static void check_loss(const char *line) {
    int bits;
    double integer, best;
    TEST(sscanf(line, "loss %d %lf %lf", &bits, &integer, &best) == 3);
    TEST(integer <= 1.04 * best);
    losses[form_of(bits)] = integer;
}

static void fill_uniform(uint64_t seed, int d, bool key) {
    for (int i = 0; i < KV_PAGE_TOKENS * d; i++)
        numbers[i] = test_uniform(&seed) * (float)(1 + i % d % 5) + (key && i % d % 3 == 0 ? 4 : 0);
}

static uint64_t hash_indices(int d, KvForm form, bool values) {
    const KvQuantLayout layout = kv_quant_layout(d, form, values);
    uint64_t h = 0xCBF29CE484222325u;
    for (int t = 0; t < KV_PAGE_TOKENS; t++)
        for (int i = 0; i < d; i++) h = (h ^ (uint8_t)kv_quant_get(&layout, form, values, page, t, i)) * 0x100000001B3u;
    return h;
}

static double sum_f16(const uint8_t *from, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        sum += f16_to_f32(half);
    }
    return sum;
}

static void check_page(const char *line) {
    int d, bits;
    char half;
    unsigned long long seed, hash;
    TEST(sscanf(line, "page %d %d %c %llu %llx", &d, &bits, &half, &seed, &hash) == 5);
    fill_uniform(seed, d, half == 'K');
    code_page(d, form_of(bits), half == 'V');
    TEST_MSG(hash_indices(d, form_of(bits), half == 'V') == hash, "d %d, %d bits, %c", d, bits, half);
}

/* Of the page coded last. Single precision here, double there: a scale or a mean may fall to the other side. (So may an
 * index; the seeds are such that none does.) */
static void check_sums(const char *line) {
    int d, bits;
    char half;
    double means, scales;
    TEST(sscanf(line, "sums %d %d %c %*u %lf %lf", &d, &bits, &half, &means, &scales) == 5);
    const KvQuantLayout layout = kv_quant_layout(d, form_of(bits), half == 'V');
    TEST_MSG(fabs(sum_f16(page + layout.scale, layout.groups * KV_PAGE_TOKENS) - scales) <= 1e-5 * scales,
        "d %d, %d bits, %c", d, bits, half);
    if (half == 'K') TEST(fabs(sum_f16(page + layout.mean, d) - means) <= 1e-4 * d);
}

static void test_goldens(void) {
    FILE *file = fopen("tests/backend/data/kv_goldens.txt", "r");
    TEST(file);
    char line[1024];
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, "signs ", 6)) check_signs(line);
        if (!strncmp(line, "edges ", 6)) check_table(line, true);
        if (!strncmp(line, "values ", 7)) check_table(line, false);
        if (!strncmp(line, "loss ", 5)) check_loss(line);
        if (!strncmp(line, "page ", 5)) check_page(line);
        if (!strncmp(line, "sums ", 5)) check_sums(line);
    }
    if (file) fclose(file);
    for (int i = 0; i < 256; i++) TEST(kv_codebook(KV_Q8)[i] == i - 128);
}

/* ---- rotation ---- */

static void test_rotation(int d) {
    static float one[KV_DIM_MAX], sixteen[KV_DIM_MAX * 16];
    double most = 0, least = 1, worst = 0;
    for (int first = 0; first < d; first += 16) { /* unit vectors, 16 at a time */
        memset(sixteen, 0, sizeof sixteen);
        for (int l = 0; l < 16; l++) sixteen[(first + l) * 16 + l] = 1;
        kv_rotate(d, 16, sixteen);
        bool same = true;
        for (int l = 0; l < 16; l++) {
            memset(one, 0, sizeof one);
            one[first + l] = 1;
            kv_rotate(d, 1, one);
            for (int i = 0; i < d; i++) {
                same = same && one[i] == sixteen[i * 16 + l];
                most = fmax(most, fabsf(one[i]));
                least = fmin(least, fabsf(one[i]));
            }
            kv_rotate_back(d, 1, one);
            for (int i = 0; i < d; i++) worst = fmax(worst, fabs(one[i] - (double)(i == first + l)));
        }
        TEST_MSG(same, "d %d: bits of 16 lanes are not those of one", d);
    }
    TEST_MSG(worst <= 1e-6, "d %d: R Rᵀ is off by %g", d, worst);
    TEST_MSG(most - 1 / sqrt(d) <= 1e-6 && 1 / sqrt(d) - least <= 1e-6, "d %d: no Hadamard matrix", d);
}

static void test_dims(void) {
    for (int d = 1; d <= 2 * ATTENTION_HEAD_MAX; d++) {
        int odd = d;
        while (odd % 2 == 0) odd /= 2;
        const bool known = odd == 1 || (odd == 3 && d % 12 == 0) || (odd == 5 && d % 20 == 0) ||
            (odd == 7 && d % 28 == 0) || (odd == 9 && d % 144 == 0) || (odd == 15 && d % 240 == 0) ||
            (odd == 21 && d % 336 == 0) || (odd == 25 && d % 400 == 0) || (odd == 35 && d % 560 == 0) ||
            (odd == 49 && d % 784 == 0);
        TEST_MSG(kv_quant_dim(d) == (known && d % 16 == 0 && d <= ATTENTION_HEAD_MAX), "d %d", d);
        if (!kv_quant_dim(d)) continue;
        const int g = kv_group_dims(d);
        TEST(d % g == 0 && g % 16 == 0 && g <= 128);
    }
    TEST(kv_group_dims(160) == 80 && kv_group_dims(192) == 96 && kv_group_dims(576) == 96);
    TEST(kv_group_dims(112) == 112 && kv_group_dims(256) == 128);
}

/* ---- layout ---- */

/* A code by the header's own words. lane: token of keys, dim of values; item: the other. */
static int described(const KvQuantLayout *l, KvForm form, bool values, int lane, int item) {
    const int group = values ? KV_PAGE_TOKENS : l->group, quads = form == KV_Q3 || form == KV_Q5 ? 8 : 4;
    const uint8_t *codes = page + l->codes + (size_t)(lane / 16) * l->block;
    for (int g = 0; g < item / group; g++) /* a half part has 3 rows, as a whole part of fewer bits */
        codes += form == KV_Q5 ? group / 32 * 320 + group % 32 / 16 * 192 : group * kv_form_bits(form) * 2;
    item %= group;
    codes += lane % 16 * 4 + item % 4;
    if (form == KV_Q4) return codes[item / 8 * 64] >> (item / 4 % 2 * 4) & 15;
    if (form == KV_Q8) return codes[item / 4 * 64];
    codes += item / 4 / quads * (form == KV_Q5 ? 320 : 192);
    const int a = codes[0], b = codes[64], c = codes[128], n = item / 4 % quads;
    if (form == KV_Q3) {
        if (n < 6) return codes[n % 3 * 64] >> (n / 3 * 3) & 7;
        return n == 6 ? a >> 6 | (c >> 6 & 1) << 2 : b >> 6 | c >> 7 << 2;
    }
    if (form == KV_Q6) return n < 3 ? codes[n * 64] & 63 : a >> 6 | b >> 6 << 2 | c >> 6 << 4;
    if (n < 3) return codes[n * 64] & 31;
    if (n == 3) return a >> 5 | b >> 6 << 3;
    const int e = codes[192], f = codes[256];
    if (n < 6) return (n == 4 ? e : f) & 31;
    return n == 6 ? c >> 5 | e >> 6 << 3 : f >> 5 | (b >> 5 & 1) << 3 | (e >> 5 & 1) << 4;
}

static void test_layout(int d, KvForm form, bool values) {
    uint64_t state = 5;
    const KvQuantLayout l = kv_quant_layout(d, form, values);
    for (int i = 0; i < KV_PAGE_TOKENS * d; i++) numbers[i] = kv_gauss(&state);
    memset(page, 0xff, sizeof page);
    code_page(d, form, values);
    kv_decode(d, form, values, page, decoded);
    bool same = true, plain = true;
    for (int t = 0; t < KV_PAGE_TOKENS; t++)
        for (int i = 0; i < d; i++) {
            const int index = kv_quant_get(&l, form, values, page, t, i);
            same = same && index == described(&l, form, values, values ? i : t, values ? t : i);
            const double scale = sum_f16(page + l.scale + (i / l.group * KV_PAGE_TOKENS + t) * 2, 1);
            const double mean = values ? 0 : sum_f16(page + l.mean + 2 * i, 1);
            const double expected = scale * (kv_codebook(form)[index] + 0.5) + mean;
            plain = plain && fabs(decoded[t * d + i] - expected) <= 1e-5;
        }
    TEST_MSG(same, "d %d, %d bits: codes do not lie as described", d, kv_form_bits(form));
    TEST_MSG(plain, "d %d, %d bits: not scale · c + mean", d, kv_form_bits(form));
    TEST(l.codes % 64 == 0 && l.bytes % 64 == 0 && l.scale % 64 == 0);
    const double bits = (double)l.bytes * 8 / KV_PAGE_TOKENS / d;
    /* A half part gives six bits where five are wanted; 64 bytes are filled up. */
    const double half = !values && form == KV_Q5 && l.group % 32 ? 16.0 / l.group : 0, mean = 64.0 / d + 0.125;
    const double most = kv_form_bits(form) + half + 16.0 / l.group + (values ? 0 : mean);
    TEST_MSG(bits <= most, "d %d: %g bits", d, bits);
    for (size_t i = l.bytes; i < l.bytes + 64; i++) TEST(page[i] == 0xff);
}

/* ---- loss ---- */

typedef struct Loss {
    double error, square, product; /* |x − x^|², |x|², ⟨x, x^⟩ */
    double uniform;                /* what CODE8 may lose: a twelfth of a step's square for each number */
} Loss;

static void add_loss(int d, KvForm form, bool values, Loss *sums) {
    const int g = kv_group_dims(d);
    code_page(d, form, values);
    kv_decode(d, form, values, page, decoded);
    for (int t = 0; t < KV_PAGE_TOKENS; t++) {
        float *x = numbers + t * d;
        kv_rotate(d, 1, x);
        double most = 0;
        for (int i = 0; i < d; i++) {
            const double y = decoded[t * d + i];
            sums->error += (x[i] - y) * (x[i] - y);
            sums->square += (double)x[i] * x[i];
            sums->product += x[i] * y;
            most = fmax(i % g ? most : 0, fabsf(x[i]));
            if (i % g == g - 1) sums->uniform += g * most * most / (128 * 128 * 12);
        }
    }
}

enum { GAUSSIAN, SPIKES, DECAYING, SHAPES };

static void fill_shape(int d, int shape, uint64_t *state) {
    for (int i = 0; i < KV_PAGE_TOKENS * d; i++) {
        numbers[i] = kv_gauss(state);
        if (shape == SPIKES && test_random(state) % 64 == 0) numbers[i] *= 10;
        if (shape == DECAYING) numbers[i] *= expf(-3.0f * (float)(i % d) / (float)d);
    }
}

static void test_loss(int d, KvForm form, bool values, int shape, int pages, double bound) {
    uint64_t state = (uint64_t)d;
    Loss sums = {0};
    for (int i = 0; i < pages; i++) {
        fill_shape(d, shape, &state);
        add_loss(d, form, values, &sums);
    }
    /* Keys lose the mean's share: a 128th of the energy is coded without loss. A largest number lies no lower. */
    const double theory = form == KV_Q8 ? sums.uniform / sums.square : losses[form];
    const double loss = sums.error / sums.square, slope = sums.product / sums.square;
    TEST_MSG(loss <= bound * theory, "d %d, %d bits, shape %d: loses %g, %g by theory", d, kv_form_bits(form), shape,
        loss, theory);
    /* Much less would mean that the test measures something else; small groups lose up to 8 % less. */
    TEST_MSG(shape != GAUSSIAN || loss >= 0.88 * theory, "d %d, %d bits: loses only %g", d, kv_form_bits(form), loss);
    TEST_MSG(fabs(slope - 1) <= 0.002, "d %d, %d bits: slope %g", d, kv_form_bits(form), slope);
}

/* ---- what is no content ---- */

static void test_nothing(KvForm form, bool values) {
    enum { D = 64 };
    for (int i = 0; i < KV_PAGE_TOKENS * D; i++) numbers[i] = 0;
    code_page(D, form, values);
    kv_decode(D, form, values, page, decoded);
    for (int i = 0; i < KV_PAGE_TOKENS * D; i++) TEST(decoded[i] == 0);
    numbers[5] = INFINITY; /* a broken model's; its own token is lost, or its page's keys */
    numbers[70] = NAN;
    code_page(D, form, values);
    const KvQuantLayout l = kv_quant_layout(D, form, values);
    for (int t = 0; t < KV_PAGE_TOKENS; t++) TEST(isfinite(sum_f16(page + l.scale + 2 * t, 1)));
}

int main(void) {
    test_goldens();
    test_dims();
    for (size_t i = 0; i < sizeof kv_dims / sizeof *kv_dims; i++) {
        const int d = kv_dims[i];
        test_rotation(d);
        for (KvForm form = KV_Q3; form < KV_FORMS; form++)
            for (int values = form != KV_Q3 ? 0 : 1; values < 2; values++) {
                test_layout(d, form, values);
                if (test_sampled() && (i + (size_t)form) % 3) continue;
                test_loss(d, form, values, GAUSSIAN, 40, 1.02);
                test_loss(d, form, values, SPIKES, 10, 1.05);
                test_loss(d, form, values, DECAYING, 10, 1.05);
                if (d == 64) test_nothing(form, values);
            }
    }
    return test_done();
}
