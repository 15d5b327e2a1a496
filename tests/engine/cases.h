/* Requests of all kinds, made from a number, and a reader that streams. */
#pragma once
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "test.h"

enum { TIMEOUT_MS = 60000, TOKENS_MAX = 800, PROMPT_MAX = 700 };

/* A request with its own copy of everything, made from a number. */
typedef struct Case {
    int32_t prompt[PROMPT_MAX];
    int32_t bias_ids[3];
    float bias_values[3];
    RequestOptions options;
} Case;

static inline void case_prompt(Case *c, int count, uint64_t seed, int vocab) {
    CHECK(count <= PROMPT_MAX);
    for (int i = 0; i < count; i++) c->prompt[i] = (int32_t)(test_random(&seed) % (uint64_t)vocab);
    c->options = (RequestOptions){.prompt = c->prompt,
        .prompt_count = count,
        .max_tokens = 20,
        .choices = 1,
        .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = seed, .logprobs = -1}};
}

static inline void case_make(Case *c, uint64_t seed, int vocab) {
    uint64_t state = seed * 1000003;
    case_prompt(c, 1 + (int)(test_random(&state) % (seed % 4 ? 80 : PROMPT_MAX)), seed, vocab);
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
        c->bias_ids[i] = (int32_t)(test_random(&state) % (uint64_t)vocab);
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
