/* Drawing from what a device has found out about logits is drawing from the logits: the same tokens and probabilities;
 * what a GPU finds out is what the sampler does, bit for bit, and so is what it draws. The latter is nothing to do
 * where there is no GPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/plugin.h"
#include "backend/steps.h"
#include "engine/sampler.h"
#include "test.h"

enum { ROWS = 3, POSITIONS = 40, TOP = 4 };

static float random_logit(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return ((float)(*state >> 8) / (float)(1 << 24) - 0.5f) * 20;
}
static void random_logits(float *x, int64_t count, uint32_t state) {
    for (int64_t i = 0; i < count; i++) x[i] = random_logit(&state);
}

static SamplingOptions plain(float temperature) {
    return (SamplingOptions){
        .temperature = temperature, .top_p = 1, .repetition_penalty = 1, .logprobs = TOP, .seed = 9};
}

static SamplerScratch scratch_of(int vocab) {
    SamplerScratch s;
    Error error = {0};
    TEST_MSG(sampler_scratch_open(&s, vocab, &error), "%s", error.text);
    return s;
}

static void same_token(const TokenOut *a, const TokenOut *b) {
    TEST(a->id == b->id && a->logprob == b->logprob && a->top_count == b->top_count);
    for (int i = 0; i < a->top_count; i++) TEST(a->top[i].id == b->top[i].id && a->top[i].logprob == b->top[i].logprob);
}

/* With options of every kind, known sums of their own scale and of another. */
static void check_known(int vocab) {
    SamplingOptions options[] = {plain(0), plain(1), plain(0.7f), plain(0.7f), plain(1.3f), plain(0.9f)};
    options[3].top_k = 20;
    options[4].top_p = 0.9f;
    options[5].min_p = 0.1f;
    float *logits = calloc((size_t)vocab, sizeof *logits), *copy = calloc((size_t)vocab, sizeof *copy);
    CHECK(logits && copy);
    random_logits(logits, vocab, 5);
    SamplerScratch without = scratch_of(vocab), with = scratch_of(vocab), source = scratch_of(vocab);
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        Sampler sampler;
        sampler_init(&sampler, &options[i], vocab, 0, NULL);
        const SamplingOptions first = plain(1 / sampler_scale(&options[i]));
        Sampler other;
        sampler_init(&other, &first, vocab, 0, NULL);
        for (int position = 0; position < POSITIONS; position++) {
            static TokenOut one, two, ignored;
            memcpy(copy, logits, (size_t)vocab * sizeof *copy);
            source.known.logits = without.known.logits = NULL;
            (void)sampler_next(&other, &source, copy, position, &ignored);
            (void)sampler_next(&sampler, &without, copy, position, &one);
            with.known.logits = copy;
            with.known.maxima = source.maxima;
            with.known.sums = source.sums;
            with.known.scale = 1; /* what the probabilities of `other` have left */
            (void)sampler_next(&sampler, &with, copy, position, &two);
            same_token(&one, &two);
        }
    }
    sampler_scratch_close(&without);
    sampler_scratch_close(&with);
    sampler_scratch_close(&source);
    free(logits);
    free(copy);
}

/* Of logits with what there can be among them. */
static void check_device(Backend *b, int vocab) {
    const float scales[ROWS] = {1, 1 / 0.7f, 0.5f};
    const int64_t blocks = logit_blocks(vocab);
    const size_t bytes = (size_t)ROWS * (size_t)vocab * sizeof(float),
                 sums_bytes = ROWS * 2 * (size_t)blocks * sizeof(float);
    float *logits = malloc(bytes), *sums = malloc(sums_bytes);
    CHECK(logits && sums);
    random_logits(logits, (int64_t)ROWS * vocab, (uint32_t)vocab);
    logits[vocab / 2] = NAN;
    logits[vocab + vocab / 3] = -INFINITY;
    if (vocab > 200)
        for (int i = 64; i < 128; i++) logits[2 * vocab + i] = -INFINITY;
    Error error = {0};
    float *there = b->ops->alloc(b, bytes, MEMORY_STEP, &error),
          *out = b->ops->alloc(b, sums_bytes, MEMORY_STEP, &error);
    TEST_MSG(there && out, "%s", error.text);
    b->ops->upload(b, there, logits, bytes);
    const int32_t zeros[ROWS] = {0}, *tables[1] = {zeros};
    const StepSequence sequence = {
        .rows = ROWS, .tables = tables, .tokens = zeros, .output_count = ROWS, .scales = scales};
    const Step *step = step_of(1, &sequence);
    b->ops->begin(b, step);
    const LogitSums op = {.rows = ROWS, .vocab = vocab, .logits = there, .scales = step->scales, .out = out};
    b->ops->sum_logits(b, &op);
    TEST_MSG(b->ops->wait(b, b->ops->submit(b), &error), "%s", error.text);
    b->ops->download(b, sums, out, sums_bytes);
    SamplerScratch s = scratch_of(vocab);
    for (int row = 0; row < ROWS; row++) {
        SamplingOptions options = plain(1 / scales[row]);
        options.logprobs = -1;
        TEST(sampler_scale(&options) == 1 / options.temperature);
        Sampler sampler;
        TokenOut token;
        sampler_init(&sampler, &options, vocab, 0, NULL);
        (void)sampler_next(&sampler, &s, logits + (size_t)row * (size_t)vocab, 0, &token);
        const float *known = sums + row * 2 * blocks;
        bool same = true;
        for (int64_t i = 0; i < blocks; i++) same = same && known[i] == s.maxima[i];
        TEST_MSG(same, "maxima of row %d of %d", row, vocab);
        if (sampler_scale(&options) != scales[row]) continue; /* 1 / (1 / x) is not always x */
        TEST_MSG(!memcmp(known + blocks, s.sums, (size_t)blocks * sizeof(float)), "sums of row %d of %d", row, vocab);
    }
    sampler_scratch_close(&s);
    b->ops->release(b, there);
    b->ops->release(b, out);
    free(logits);
    free(sums);
}

/* ---- tokens that a device draws ---- */

enum { DRAWS = 64, SEEDS = 12, SEEDS_LARGE = 3 /* of a large vocabulary, in a sample: all of them greedy, and not */ };

static void draws_of(SampleParams sample_params[DRAWS], uint32_t seed) {
    for (int i = 0; i < DRAWS; i++) {
        const float temperatures[] = {0, 1, 0.7f, 1e-3f, 5, 0.1f};
        const int kind = seed % 4 ? (i + (int)seed) % (int)COUNT_OF(temperatures) : 0; /* or greedily all of them */
        SamplingOptions options = plain(temperatures[kind]);
        const float top_ps[] = {1, 0.9f, 0.5f, 0, 0.999f};
        const int top_ks[] = {0, 1, 40, 200, 3};
        const float min_ps[] = {0, 0.05f, 0.9f};
        if (i % 2) options.top_p = top_ps[(i / 2 + (int)seed) % (int)COUNT_OF(top_ps)];
        if (i % 3) options.top_k = top_ks[(i / 3 + (int)seed) % (int)COUNT_OF(top_ks)];
        if (i % 5 == 3) options.min_p = min_ps[(i / 5 + (int)seed) % (int)COUNT_OF(min_ps)];
        options.seed = (uint64_t)seed << 33 | 7;
        options.logprobs = -1;
        TEST(sampler_device_possible(&options));
        sample_params[i] = sampler_device_params(&options, i % 3, 100 * i);
    }
}

/* Logits in which few stand out, or many, ties, and rows that nobody can draw from. */
static void logits_to_sample(float *logits, int vocab, uint32_t seed) {
    random_logits(logits, (int64_t)DRAWS * vocab, (uint32_t)vocab + seed);
    for (int row = 0; row < DRAWS; row++) {
        float *x = logits + (size_t)row * (size_t)vocab;
        if (row % 4 == 0)
            for (int i = 0; i < vocab; i++) x[i] *= x[i] * x[i] * x[i] * x[i] / 1000;
        if (row % 4 == 1)
            for (int i = 0; i < vocab; i++) x[i] *= 4;
        if (row % 4 == 2)
            for (int i = 0; i < vocab; i++) x[i] = floorf(x[i]);
        if (row % 8 == 3)
            for (int i = 0; i < vocab; i++) x[i] = i % 7 ? -INFINITY : x[i];
    }
    for (int i = 0; i < vocab; i++) logits[i] = NAN;
    logits[vocab + vocab / 2] = NAN;
    logits[2 * vocab + vocab / 3] = INFINITY;
    logits[4 * vocab + 1] = NAN; /* which counts as −∞ */
}

static void check_sample(Backend *b, int vocab) {
    const size_t count = (size_t)DRAWS * (size_t)vocab;
    float *logits = malloc(count * sizeof *logits);
    CHECK(logits);
    Error error = {0};
    float *there = b->ops->alloc(b, count * sizeof *logits, MEMORY_STEP, &error),
          *work = b->ops->alloc(b, DRAWS * 2 * (size_t)logit_blocks(vocab) * sizeof *work, MEMORY_STEP, &error);
    TEST_MSG(there && work, "%s", error.text);
    SamplerScratch s = scratch_of(vocab);
    static const int32_t zeros[DRAWS];
    const int32_t *tables[1] = {zeros};
    const uint32_t seeds = test_sampled() && vocab > 1000 ? SEEDS_LARGE : SEEDS;
    for (uint32_t seed = 0; seed < seeds; seed++) {
        SampleParams sample_params[DRAWS];
        draws_of(sample_params, seed);
        logits_to_sample(logits, vocab, seed);
        b->ops->upload(b, there, logits, count * sizeof *logits);
        const StepSequence sequence = {
            .rows = DRAWS, .tables = tables, .tokens = zeros, .output_count = DRAWS, .sample_params = sample_params};
        const Step *step = step_of(1, &sequence);
        b->ops->begin(b, step);
        b->ops->sample(b, &(LogitSampling){DRAWS, vocab, there, step->sample_params, work});
        const uint64_t ticket = b->ops->submit(b);
        TEST_MSG(b->ops->wait(b, ticket, &error), "%s", error.text);
        const int32_t *sampled = b->ops->sampled(b, ticket);
        for (int i = 0; i < DRAWS; i++) {
            const float *row = logits + (size_t)i * (size_t)vocab;
            const bool numbers = !isnan(row[0]) && !isnan(row[vocab / 2]) && !isnan(row[vocab - 1]);
            const int32_t expected = numbers ? sampler_sample(&s, row, &sample_params[i]) : -1;
            const bool some =
                sample_params[i].top_k > 0 || sample_params[i].top_p < 1 || sample_params[i].min_p_log > -INFINITY;
            const bool may_pass = some && vocab > 1000 && i % 4 > 0; /* where there are too many candidates */
            TEST_MSG((sampled[i] == expected || (may_pass && sampled[i] < 0)) && (expected < 0) == (i < 3),
                "row %d of %d, seed %u: %d instead of %d", i, vocab, seed, sampled[i], expected);
        }
    }
    sampler_scratch_close(&s);
    b->ops->release(b, there);
    b->ops->release(b, work);
    free(logits);
}

int main(void) {
    check_known(1000);
    check_known(64);
    Error error = {0};
    const BackendOptions options = {.device = "cuda", .cpu = "auto", .rows_max = DRAWS, .scratch_bytes = 1 << 10};
    Backend *device = backend_open(&options, &error);
    TEST_MSG((device != NULL) == plugin_usable(), "%s", error.text);
    if (!device) test_skip_backend("cuda");
    if (!device) return test_done();
    check_device(device, 151936);
    check_device(device, 1000);
    check_device(device, 37);
    check_sample(device, 151936);
    check_sample(device, 1000);
    check_sample(device, 37);
    backend_close(device);
    return test_done();
}
