/* What the engine's tests share: an engine over the fake model, requests made from a number, a reader that streams. */
#pragma once
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/fake_model.h"

enum { TIMEOUT_MS = 60000, TOKENS_MAX = 800, PROMPT_MAX = 700 };

static inline Engine *open_engine(int slots, int queue_max, int prefill_size, size_t kv_bytes) {
    Error error = {0};
    const EngineOptions options = {.directory = "fake",
        .slots = slots,
        .queue_max = queue_max,
        .prefill_size = prefill_size,
        .kv_bytes = kv_bytes ? kv_bytes : (size_t)FAKE_PAGES * FAKE_PAGE_BYTES};
    Engine *engine = engine_open(&options, &error);
    if (!engine) fprintf(stderr, "%s\n", error.text);
    CHECK(engine != NULL);
    return engine;
}

static inline void close_engine(Engine *engine) {
    engine_close(engine);
    TEST_MSG(fake.leaked_bytes == 0, "%zu bytes of pages were left in use", fake.leaked_bytes);
}

/* A request with its own copy of everything, made from a number. */
typedef struct Case {
    int32_t prompt[PROMPT_MAX];
    int32_t bias_ids[3];
    float bias_values[3];
    RequestOptions options;
} Case;

static inline void make_prompt(Case *c, int count, uint64_t seed) {
    CHECK(count <= PROMPT_MAX);
    for (int i = 0; i < count; i++) c->prompt[i] = (int32_t)(test_random(&seed) % (uint64_t)fake.vocab);
    c->options = (RequestOptions){.prompt = c->prompt,
        .prompt_count = count,
        .max_tokens = 20,
        .choices = 1,
        .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = seed, .logprobs = -1}};
}

static inline void make_case(Case *c, uint64_t seed) {
    uint64_t state = seed * 1000003;
    make_prompt(c, 1 + (int)(test_random(&state) % (seed % 4 ? 80 : PROMPT_MAX)), seed);
    RequestOptions *o = &c->options;
    o->max_tokens = 1 + (int)(test_random(&state) % 60);
    o->choices = seed % 5 == 0 ? 1 + (int)(test_random(&state) % 12) : 1;
    o->echo_logprobs = seed % 7 == 0;
    SamplingOptions *s = &o->sampling;
    s->temperature = seed % 3 ? 0.8f : 0;
    s->top_p = seed % 2 ? 0.9f : 1;
    s->top_k = seed % 4 == 1 ? 30 : 0;
    s->min_p = seed % 6 == 1 ? 0.02f : 0;
    s->repetition_penalty = seed % 4 == 2 ? 1.2f : 1;
    s->frequency_penalty = seed % 5 == 1 ? 0.3f : 0;
    s->logprobs = (int)(seed % 4) - 1;
    for (int i = 0; i < 3; i++) {
        c->bias_ids[i] = (int32_t)(test_random(&state) % (uint64_t)fake.vocab);
        c->bias_values[i] = 5 * test_uniform(&state);
    }
    s->bias_count = seed % 8 == 3 ? 3 : 0;
    s->bias_ids = c->bias_ids;
    s->bias_values = c->bias_values;
}

/* What a reader saw of one choice. */
typedef struct Seen {
    int count;
    int32_t ids[TOKENS_MAX];
    uint64_t hash; /* of logprobs and alternatives too */
    Finish finish;
} Seen;

static inline uint64_t mix(uint64_t hash, const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001B3u;
    return hash;
}

static inline uint64_t mix_token(uint64_t hash, const TokenOut *token) {
    hash = mix(hash, &token->id, sizeof token->id);
    if (!isnan(token->logprob)) hash = mix(hash, &token->logprob, sizeof token->logprob);
    return mix(hash, token->top, (size_t)token->top_count * sizeof token->top[0]);
}

/* Streams all choices as a server does: waits for any, takes what is there. */
static inline void read_all(Request *request, int choices, Seen *seen) {
    int ended = 0;
    for (int i = 0; i < choices; i++) seen[i] = (Seen){0};
    while (ended < choices) {
        const int ready = request_wait(request, TIMEOUT_MS);
        CHECK(ready >= 0 && ready < choices);
        TokenOut tokens[7];
        Seen *s = &seen[ready];
        const int count = request_read(request, ready, tokens, 7, 0, &s->finish);
        CHECK(s->count + count <= TOKENS_MAX);
        for (int i = 0; i < count; i++) {
            s->ids[s->count++] = tokens[i].id;
            s->hash = mix_token(s->hash, &tokens[i]);
        }
        ended += s->finish != FINISH_NONE;
        CHECK(count > 0 || s->finish != FINISH_NONE);
    }
}

static inline uint64_t prompt_hash(Request *request, int count) {
    uint64_t hash = 0;
    for (int i = 0; i < count; i++) {
        TokenOut token;
        CHECK(request_prompt_logprob(request, i, &token)); /* TEST is for the main thread */
        hash = mix_token(hash, &token);
    }
    return hash;
}

static inline Request *submit(Engine *engine, const RequestOptions *options) {
    Error error = {0};
    Request *request = engine_submit(engine, options, &error);
    if (!request) fprintf(stderr, "%s\n", error.text);
    CHECK(request != NULL);
    return request;
}

static inline Seen run_one(Engine *engine, const RequestOptions *options) {
    Seen seen;
    Request *request = submit(engine, options);
    read_all(request, 1, &seen);
    request_free(request);
    return seen;
}

/* No page is in use but those that the prefix cache holds. */
static inline bool only_prefixes(Engine *engine) {
    const EngineStats stats = engine_stats(engine);
    return stats.kv_bytes <= stats.prefix_bytes;
}

static inline void wait_idle(Engine *engine) {
    for (int i = 0; i < 2000; i++) {
        const EngineStats stats = engine_stats(engine);
        if (stats.running == 0 && stats.waiting == 0) return;
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
    }
    TEST(!"idle");
}
