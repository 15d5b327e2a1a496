/* The sampler against a naive one written from the definitions, its statistics, and its behaviour on hostile numbers.
 */
#include "engine/sampler.h"

#include <float.h>
#include <stdlib.h>

#include "base/clock.h"
#include "test.h"

static const SamplingOptions neutral = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1};

static void *zeroed(size_t size) {
    void *memory = calloc(1, size ? size : 1);
    CHECK(memory != NULL);
    return memory;
}

/* ---- the naive sampler: sort everything, doubles, one token at a time ---- */

typedef struct Entry {
    int32_t id;
    double value;
} Entry;

static int compare_entries(const void *left, const void *right) {
    const Entry *a = left, *b = right;
    if (a->value != b->value) return a->value > b->value ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static void naive_penalties(float *logits, int vocab, const SamplingOptions *o, const int32_t *prompt, int prompt_count,
    const int32_t *answer, int answer_count) {
    for (int i = 0; i < o->bias_count; i++) logits[o->bias_ids[i]] += o->bias_values[i];
    for (int id = 0; id < vocab; id++) {
        bool in_prompt = false;
        int times = 0;
        for (int i = 0; i < prompt_count; i++) in_prompt |= prompt[i] == id;
        for (int i = 0; i < answer_count; i++) times += answer[i] == id;
        float x = logits[id];
        if (in_prompt || times > 0) x = x > 0 ? x / o->repetition_penalty : x * o->repetition_penalty;
        if (times > 0) x -= o->presence_penalty + o->frequency_penalty * (float)times;
        logits[id] = x;
    }
}

/* Probability of each token after the whole chain. */
static void naive_probabilities(const float *logits, int vocab, const SamplingOptions *o, double *out) {
    Entry *entries = zeroed((size_t)vocab * sizeof *entries);
    for (int i = 0; i < vocab; i++) entries[i] = (Entry){i, (double)logits[i]};
    qsort(entries, (size_t)vocab, sizeof *entries, compare_entries);
    int kept = o->top_k > 0 && o->top_k < vocab ? o->top_k : vocab;
    const double max = entries[0].value;
    double total = 0, held = 0;
    for (int i = 0; i < kept; i++) total += exp(entries[i].value - max);
    if (o->top_p < 1) {
        int n = 0;
        do held += exp(entries[n++].value - max);
        while (n < kept && held < (double)o->top_p * total);
        kept = n;
    }
    while (o->min_p > 0 && kept > 1 && exp(entries[kept - 1].value - max) < (double)o->min_p) kept--;
    memset(out, 0, (size_t)vocab * sizeof *out);
    double sum = 0;
    for (int i = 0; i < kept; i++) sum += out[entries[i].id] = exp((entries[i].value - max) / (double)o->temperature);
    for (int i = 0; i < vocab; i++) out[i] /= sum;
    free(entries);
}

/* ---- tests ---- */

static void test_philox(void) { /* known answers published with the generator (Random123, kat_vectors) */
    static const uint32_t cases[3][10] = {{0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
            0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
            0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        philox4x32(cases[i], cases[i] + 4, out);
        TEST(memcmp(out, cases[i] + 6, sizeof out) == 0);
    }
}

/* Draws of many positions against the naive probabilities. */
static void check_distribution(
    const char *name, int vocab, float spread, const SamplingOptions *options, uint64_t seed) {
    enum { DRAWS = 8000 };
    Error error;
    SamplerScratch scratch;
    CHECK(sampler_scratch_open(&scratch, vocab, &error));
    float *logits = zeroed((size_t)vocab * sizeof *logits), *copy = zeroed((size_t)vocab * sizeof *copy);
    double *probability = zeroed((size_t)vocab * sizeof *probability);
    int *times = zeroed((size_t)vocab * sizeof *times);
    for (int i = 0; i < vocab; i++) logits[i] = spread * test_uniform(&seed);
    naive_probabilities(logits, vocab, options, probability);
    Sampler sampler;
    sampler_init(&sampler, options, vocab, 0, NULL);
    for (int position = 0; position < DRAWS; position++) {
        TokenOut out;
        memcpy(copy, logits, (size_t)vocab * sizeof *copy);
        times[sampler_next(&sampler, &scratch, copy, position, &out)]++;
    }
    /* Pearson's statistic; cells expecting fewer than 5 are pooled. For df ≥ 1 and a correct sampler the normal deviate
     * of Wilson and Hilferty passes 4 with probability 3e-5, and the seeds are fixed. */
    double statistic = 0, pooled = 0;
    int cells = 0, pooled_times = 0, impossible = 0;
    for (int i = 0; i < vocab; i++) {
        const double expected = probability[i] * DRAWS;
        if (probability[i] <= 0) {
            impossible += times[i];
        } else if (expected < 5) {
            pooled += expected;
            pooled_times += times[i];
        } else {
            statistic += (times[i] - expected) * (times[i] - expected) / expected;
            cells++;
        }
    }
    if (pooled >= 5) {
        statistic += (pooled_times - pooled) * (pooled_times - pooled) / pooled;
        cells++;
    }
    TEST_MSG(impossible == 0, "%s: %d draws of tokens that were cut", name, impossible);
    if (cells > 1) {
        const double df = cells - 1;
        const double deviate = (cbrt(statistic / df) - (1 - 2 / (9 * df))) / sqrt(2 / (9 * df));
        TEST_MSG(deviate < 4, "%s: chi-square %.1f for %d cells", name, statistic, cells);
    }
    free(logits);
    free(copy);
    free(probability);
    free(times);
    sampler_scratch_close(&scratch);
}

static void test_distributions(void) {
    SamplingOptions o = neutral;
    o.seed = 42;
    check_distribution("plain", 10, 2, &o, 1);
    check_distribution("plain, odd size", 1001, 3, &o, 2);
    check_distribution("one token", 1, 3, &o, 2);
    o.temperature = 0.7f;
    check_distribution("temperature", 333, 3, &o, 3);
    o.top_k = 40;
    check_distribution("top_k", 5000, 4, &o, 4);
    o.top_p = 0.9f;
    check_distribution("top_k, top_p", 5000, 4, &o, 5);
    o.min_p = 0.2f;
    check_distribution("top_k, top_p, min_p", 5000, 4, &o, 6);
    o.top_k = 0;
    check_distribution("top_p, min_p", 5000, 4, &o, 7);
    o.min_p = 0;
    o.temperature = 1.7f;
    check_distribution("top_p, hot", 700, 12, &o, 8);
    o.top_p = 0;
    check_distribution("top_p 0", 700, 5, &o, 9);
    o.top_p = 1;
    o.min_p = 0.05f;
    check_distribution("min_p", 3000, 5, &o, 10);
    o.top_k = 2500;
    check_distribution("large top_k", 3000, 1, &o, 11);
}

/* Which tokens can be drawn: the cut is exact, ties go to the lowest ids. */
static void test_cuts(void) {
    enum { VOCAB = 130 };
    Error error;
    SamplerScratch scratch;
    CHECK(sampler_scratch_open(&scratch, VOCAB, &error));
    SamplingOptions o = neutral;
    for (int trial = 0; trial < 4; trial++) { /* all equal: k, p, both, and an argmax */
        o.top_k = trial == 0 || trial == 2 ? 10 : 0;
        o.top_p = trial == 1 ? 12.9f / VOCAB : trial == 2 ? 0.5f : 1;
        o.temperature = trial == 3 ? 0 : 1;
        const int expected = trial == 0 ? 10 : trial == 1 ? 13 : trial == 2 ? 5 : 1;
        Sampler sampler;
        sampler_init(&sampler, &o, VOCAB, 0, NULL);
        bool sampled[VOCAB] = {false};
        int highest = 0, distinct = 0;
        for (int position = 0; position < 2000; position++) {
            float logits[VOCAB];
            for (int i = 0; i < VOCAB; i++) logits[i] = i % 2 ? 0.0f : -0.0f;
            TokenOut out;
            const int32_t id = sampler_next(&sampler, &scratch, logits, position, &out);
            distinct += !sampled[id];
            sampled[id] = true;
            highest = id > highest ? id : highest;
        }
        TEST_MSG(
            distinct == expected && highest == expected - 1, "trial %d: %d tokens, up to %d", trial, distinct, highest);
    }
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++) logits[i] = i == 90 ? 2 : i % 3 == 0 ? 1 : 0;
    TokenOut out;
    sampler_logprobs(&scratch, logits, 4, 6, &out);
    static const int32_t expected[] = {90, 0, 3, 6, 9, 12};
    TEST(out.top_count == 6);
    for (int i = 0; i < out.top_count && i < 6; i++) TEST(out.top[i].id == expected[i]);
    sampler_scratch_close(&scratch);
}

static void test_penalties(void) {
    enum { VOCAB = 97, PROMPT = 12, ANSWER = 200 };
    Error error;
    SamplerScratch scratch;
    CHECK(sampler_scratch_open(&scratch, VOCAB, &error));
    const int32_t bias_ids[] = {3, 50, 3};
    const float bias_values[] = {1.5f, -100, 0.25f};
    for (int variant = 0; variant < 6; variant++) {
        SamplingOptions o = neutral;
        o.temperature = variant % 2 ? 0.8f : 0;
        if (variant < 4) o.repetition_penalty = variant < 2 ? 1.3f : 0.9f;
        if (variant != 2) o.frequency_penalty = 0.4f;
        if (variant != 3) o.presence_penalty = variant == 4 ? -0.3f : 0.7f;
        o.bias_count = 3;
        o.bias_ids = bias_ids;
        o.bias_values = bias_values;
        o.logprobs = 5;
        uint64_t seed = 77;
        int32_t prompt[PROMPT], answer[ANSWER];
        for (int i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(test_random(&seed) % VOCAB);
        void *memory = zeroed(sampler_bytes(&o, VOCAB, PROMPT + ANSWER));
        Sampler sampler;
        sampler_init(&sampler, &o, VOCAB, 0, memory);
        sampler_prompt(&sampler, prompt, PROMPT);
        bool equal = true, top_equal = true;
        for (int n = 0; n < ANSWER; n++) {
            float logits[VOCAB], expected[VOCAB];
            for (int i = 0; i < VOCAB; i++) logits[i] = 2 * test_uniform(&seed);
            memcpy(expected, logits, sizeof logits);
            naive_penalties(expected, VOCAB, &o, prompt, PROMPT, answer, n);
            TokenOut out;
            answer[n] = sampler_next(&sampler, &scratch, logits, PROMPT + n, &out);
            equal = equal && memcmp(logits, expected, sizeof logits) == 0;
            double total = 0;
            Entry entries[VOCAB];
            for (int i = 0; i < VOCAB; i++) total += exp((double)expected[i]);
            for (int i = 0; i < VOCAB; i++) entries[i] = (Entry){i, (double)expected[i]};
            qsort(entries, VOCAB, sizeof *entries, compare_entries);
            /* 1e-5: 97 float terms of 2 ulp each */
            top_equal = top_equal && fabs((double)out.logprob - ((double)expected[out.id] - log(total))) < 1e-5;
            top_equal = top_equal && out.top_count == 5;
            for (int i = 0; i < out.top_count; i++)
                top_equal = top_equal && out.top[i].id == entries[i].id &&
                    fabs((double)out.top[i].logprob - (entries[i].value - log(total))) < 1e-5;
            if (o.temperature == 0) top_equal = top_equal && out.id == entries[0].id;
        }
        TEST_MSG(equal, "variant %d: penalised logits", variant);
        TEST_MSG(top_equal, "variant %d: log-probabilities", variant);
        free(memory);
    }
    sampler_scratch_close(&scratch);
}

/* exp() inside the sampler over its whole range, through the log-probabilities of two tokens. */
static void test_precision(void) {
    Error error;
    SamplerScratch scratch;
    CHECK(sampler_scratch_open(&scratch, 2, &error));
    double worst = 0;
    for (double gap = 0; gap < 86; gap += 0.037) {
        float logits[2] = {0, (float)-gap};
        TokenOut out;
        sampler_logprobs(&scratch, logits, 0, 0, &out);
        const double mass = expm1(-(double)out.logprob), expected = exp((double)(float)-gap);
        /* the mass of the second token, where adding it to 1 in f32 leaves enough of it to see */
        if (gap < 5) worst = fmax(worst, fabs(mass - expected));
        TEST(out.logprob <= 0 && out.logprob >= -0.6932f);
    }
    TEST_MSG(worst < 4e-7, "%g", worst); /* three roundings of values near 1: 3 · 2^-24, doubled */
    sampler_scratch_close(&scratch);
}

static void test_hostile_numbers(void) {
    enum { VOCAB = 200 };
    Error error;
    SamplerScratch scratch;
    CHECK(sampler_scratch_open(&scratch, VOCAB, &error));
    static const float special[] = {0, -0.0f, 1e-42f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN, 1, -50};
    static const float numbers[] = {0, 1e-45f, 1e-6f, 0.7f, 1, 2, 1e30f, NAN, -1};
    uint64_t seed = 5;
    int invalid = 0, unlikely = 0, bad_logprob = 0;
    for (int trial = 0; trial < 4000; trial++) {
        SamplingOptions o = {
            .temperature = numbers[test_random(&seed) % COUNT_OF(numbers)],
            .top_p = numbers[test_random(&seed) % COUNT_OF(numbers)],
            .min_p = numbers[test_random(&seed) % COUNT_OF(numbers)],
            .top_k = (int)(test_random(&seed) % 300) - 20,
            .repetition_penalty = numbers[test_random(&seed) % COUNT_OF(numbers)],
            .frequency_penalty = numbers[test_random(&seed) % COUNT_OF(numbers)],
            .seed = test_random(&seed),
            .logprobs = (int)(test_random(&seed) % (LOGPROBS_TOP_MAX + 1)),
        };
        if (trial % 2) o.repetition_penalty = 1, o.frequency_penalty = 0;
        const int vocab = 1 + (int)(test_random(&seed) % VOCAB);
        scratch.vocab = vocab;
        scratch.blocks = (vocab + 63) / 64;
        void *memory = zeroed(sampler_bytes(&o, vocab, 2));
        Sampler sampler;
        sampler_init(&sampler, &o, vocab, 0, memory);
        const int32_t prompt = 0;
        sampler_prompt(&sampler, &prompt, 1);
        float logits[VOCAB];
        const uint64_t kind = test_random(&seed);
        for (int i = 0; i < vocab; i++)
            logits[i] = special[(kind & 1 ? kind >> 8 : test_random(&seed)) % COUNT_OF(special)];
        TokenOut out;
        const int32_t id = sampler_next(&sampler, &scratch, logits, 1, &out);
        invalid += id < 0 || id >= vocab;
        unlikely += id >= 0 && id < vocab && !isfinite(logits[id]);
        bad_logprob += isnan(out.logprob) || out.logprob > 1e-5f || out.top_count > o.logprobs;
        for (int i = 0; i < out.top_count; i++) {
            bad_logprob += isnan(out.top[i].logprob) || out.top[i].id < 0 || out.top[i].id >= vocab;
            bad_logprob += i > 0 && out.top[i].logprob > out.top[i - 1].logprob;
        }
        free(memory);
    }
    TEST_MSG(invalid == 0, "%d", invalid);
    TEST_MSG(unlikely == 0, "%d", unlikely);
    TEST_MSG(bad_logprob == 0, "%d", bad_logprob);
    scratch.vocab = VOCAB;
    scratch.blocks = (VOCAB + 63) / 64;

    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++) logits[i] = i == 150 || i == 7 ? INFINITY : i % 3 ? 5 : NAN;
    SamplingOptions o = neutral;
    Sampler sampler;
    sampler_init(&sampler, &o, VOCAB, 0, NULL);
    TokenOut out;
    const int32_t id = sampler_next(&sampler, &scratch, logits, 0, &out);
    TEST(id == 150 || id == 7);
    sampler_scratch_close(&scratch);
}

static void test_seeds(void) {
    enum { VOCAB = 512, POSITIONS = 64 };
    Error error;
    SamplerScratch scratch;
    CHECK(sampler_scratch_open(&scratch, VOCAB, &error));
    int32_t sampled[4][POSITIONS]; /* seed 1; again; choice 1; seed 2 */
    for (int run = 0; run < 4; run++) {
        SamplingOptions o = neutral;
        o.seed = run == 3 ? 1u + (1ull << 40) : 1;
        Sampler sampler;
        sampler_init(&sampler, &o, VOCAB, run == 2, NULL);
        for (int position = 0; position < POSITIONS; position++) {
            float logits[VOCAB] = {0};
            TokenOut out;
            sampled[run][position] = sampler_next(&sampler, &scratch, logits, position, &out);
        }
    }
    TEST(memcmp(sampled[0], sampled[1], sizeof sampled[0]) == 0);
    int equal_choice = 0, equal_seed = 0;
    for (int i = 0; i < POSITIONS; i++) {
        equal_choice += sampled[0][i] == sampled[2][i];
        equal_seed += sampled[0][i] == sampled[3][i];
    }
    TEST(equal_choice < 5 && equal_seed < 5); /* 64/512 are expected */
    sampler_scratch_close(&scratch);
}

static void show_speed(void) {
    enum { VOCAB = 151936, ROUNDS = 40 };
    Error error;
    SamplerScratch scratch;
    CHECK(sampler_scratch_open(&scratch, VOCAB, &error));
    float *logits = zeroed(VOCAB * sizeof *logits), *copy = zeroed(VOCAB * sizeof *copy);
    uint64_t seed = 3;
    for (int i = 0; i < VOCAB; i++) { /* a normal distribution with a few high peaks, as models give */
        float x = 0;
        for (int k = 0; k < 12; k++) x += test_uniform(&seed);
        logits[i] = x * 1.5f - 8;
    }
    for (int i = 0; i < 30; i++) logits[test_random(&seed) % VOCAB] = 12 + 4 * test_uniform(&seed);
    static const char *names[] = {"greedy", "temperature 0.7 top_p 0.95", "temperature 0.7 top_k 40", "temperature 0.7",
        "temperature 0.7 top_p 0.95 logprobs 5", "temperature 0.7, text of JSON",
        "temperature 0.7, ten tokens allowed"};
    /* What JSON's strings allow, and what a key does. */
    uint64_t *text = zeroed((VOCAB + 63) / 64 * sizeof *text), *few = zeroed((VOCAB + 63) / 64 * sizeof *few);
    for (int i = 0; i < VOCAB; i++) text[i / 64] |= (uint64_t)(test_random(&seed) % 20 > 0) << i % 64;
    for (int i = 0; i < 10; i++) few[test_random(&seed) % (VOCAB / 64)] |= (uint64_t)1 << i;
    const uint64_t *const masks[] = {NULL, NULL, NULL, NULL, NULL, text, few};
    for (int kind = 0; kind < 7; kind++) {
        SamplingOptions o = neutral;
        o.temperature = kind ? 0.7f : 0;
        if (kind == 1 || kind == 4) o.top_p = 0.95f;
        if (kind == 2) o.top_k = 40;
        if (kind == 4) o.logprobs = 5;
        Sampler sampler;
        sampler_init(&sampler, &o, VOCAB, 0, NULL);
        sampler.mask = masks[kind];
        int64_t best = INT64_MAX;
        for (int round = 0; round < ROUNDS; round++) {
            memcpy(copy, logits, VOCAB * sizeof *copy);
            TokenOut out;
            const int64_t start = clock_ns();
            sampler_next(&sampler, &scratch, copy, round, &out);
            const int64_t taken = clock_ns() - start;
            best = taken < best ? taken : best;
        }
        printf("%s, %d tokens: %.1f us\n", names[kind], VOCAB, (double)best * 1e-3);
    }
    free(logits);
    free(copy);
    free(text);
    free(few);
    sampler_scratch_close(&scratch);
}

/* A mask is what −∞ in its place would be, bit for bit, whatever the options; hostile logits never bring back what it
 * excludes. */
static void test_masks(void) {
    enum { VOCAB = 1000, ROUNDS = 600, WORDS = (VOCAB + 63) / 64 };
    static const float hostile[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX};
    Error error;
    SamplerScratch scratch;
    CHECK(sampler_scratch_open(&scratch, VOCAB, &error));
    uint64_t seed = 5;
    int different = 0, forbidden = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const SamplingOptions o = {.temperature = round % 3 ? 0.9f : 0,
            .top_p = round % 2 ? 0.9f : 1,
            .top_k = round % 5 == 0 ? 7 : 0,
            .min_p = round % 7 == 0 ? 0.05f : 0,
            .repetition_penalty = 1,
            .seed = (uint64_t)round,
            .logprobs = round % 4 - 1};
        float logits[VOCAB], without[VOCAB];
        uint64_t mask[WORDS] = {0};
        for (int i = 0; i < VOCAB; i++) {
            logits[i] = 6 * test_uniform(&seed);
            if (round % 10 == 9 && test_random(&seed) % 3 == 0) logits[i] = hostile[test_random(&seed) % 5];
            /* From nearly all down to one. */
            if (i == 437 || test_random(&seed) % (uint64_t)(1 + (round % 6) * (round % 6) * 40) == 0)
                mask[i / 64] |= (uint64_t)1 << (i % 64);
            without[i] = mask[i / 64] >> (i % 64) & 1 ? logits[i] : -INFINITY;
        }
        Sampler sampler;
        TokenOut a, b;
        memset(&a, 0, sizeof a);
        memset(&b, 0, sizeof b);
        sampler_init(&sampler, &o, VOCAB, 0, NULL);
        sampler_next(&sampler, &scratch, without, round, &b);
        sampler.mask = mask;
        sampler_next(&sampler, &scratch, logits, round, &a);
        forbidden += !(mask[a.id / 64] >> (a.id % 64) & 1);
        if (round % 10 != 9) different += memcmp(&a, &b, sizeof a) != 0;
    }
    TEST_MSG(different == 0 && forbidden == 0, "%d different, %d forbidden", different, forbidden);
    sampler_scratch_close(&scratch);
}

int main(void) {
    test_philox();
    test_distributions();
    test_cuts();
    test_penalties();
    test_precision();
    test_hostile_numbers();
    test_seeds();
    test_masks();
    show_speed();
    return test_done();
}
