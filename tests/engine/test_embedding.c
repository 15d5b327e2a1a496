/* Embeddings over real decoders. What the last token's state is: times the output matrix it gives mlx-lm's logits.
 * What the mean is: that of the last states of every beginning of the text. And that neither depends on what else runs,
 * on how the prompt is cut, on what a cache has of it. */
#include "engine/request.h"

#include "family/fixture.h"

enum { PROMPTS = 16, TOKENS_MAX = 300, HIDDEN_MAX = 256, TIMEOUT_MS = 600000 };

static Engine *open_engine(const char *directory, const char *cpu, Pooling pooling, int slots, int prefill, size_t kv) {
    Error error = {0};
    const EngineOptions options = {.directory = directory,
        .model = {.context = 512},
        .backend = fixture_backend(cpu, 2, 0),
        .slots = slots,
        .queue_max = PROMPTS,
        .prefill_size = prefill,
        .kv_bytes = kv,
        .pooling = pooling};
    Engine *engine = engine_open(&options, &error);
    TEST_MSG(engine != NULL, "%s", error.text);
    return engine;
}

static Request *submit(Engine *engine, const int32_t *tokens, int count, bool embeds, Error *error) {
    const RequestOptions options = {.prompt = tokens,
        .prompt_count = count,
        .max_tokens = embeds ? 1 : 60,
        .choices = 1,
        .embeds = embeds,
        .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .ignore_eos = true, .logprobs = -1}};
    return engine_submit(engine, &options, error);
}

static void take(Engine *engine, Request *request, float *out) {
    TokenOut token;
    Finish finish = FINISH_NONE;
    if (!request) return;
    TEST(request_read(request, 0, &token, 1, TIMEOUT_MS, &finish) == 0 && finish == FINISH_STOP);
    memcpy(out, request_embedding(request), (size_t)model_hidden(engine_model(engine)) * sizeof *out);
    request_free(request);
}

static void embed(Engine *engine, const int32_t *tokens, int count, float *out) {
    Error error = {0};
    Request *request = submit(engine, tokens, count, true, &error);
    TEST_MSG(request != NULL, "%s", error.text);
    take(engine, request, out);
}

static float largest_difference(const float *a, const float *b, int count) {
    float most = 0;
    for (int i = 0; i < count; i++) most = fmaxf(most, fabsf(a[i] - b[i]));
    return most;
}

/* mlx-lm's logits of every position, from states. 1e-4 of the largest logit: f32 sums in another order; see
 * tests/model/check_logits.py. */
static void test_golden(Fixture *f, const char *directory, const char *head, double range) {
    Engine *engine = open_engine(directory, "ref", POOLING_LAST, 1, 256, 0);
    if (!engine) return;
    const int hidden = model_hidden(engine_model(engine));
    float state[HIDDEN_MAX], *weights = fixture_values(head, 2, f->vocab, hidden, 0, range);
    for (int t = 0; t < f->count; t++) {
        const float *golden = fixture_golden(f, 0) + (size_t)t * (size_t)f->vocab;
        float largest = 0;
        float logits[FIXTURE_TOKENS_MAX];
        embed(engine, f->tokens, t + 1, state);
        for (int v = 0; v < f->vocab; v++) {
            double sum = 0;
            for (int i = 0; i < hidden; i++) sum += (double)state[i] * (double)weights[v * hidden + i];
            logits[v] = (float)sum;
            largest = fmaxf(largest, fabsf(golden[v]));
        }
        const float most = largest_difference(logits, golden, f->vocab);
        TEST_MSG(most < 1e-4f * largest, "%s: position %d: off by %g of %g", f->name, t, (double)most, (double)largest);
    }
    free(weights);
    engine_close(engine);
}

static void make_prompt(uint64_t number, int vocab, int32_t *tokens, int *count) {
    uint64_t state = number * 7919 + 1;
    *count = 1 + (int)(test_random(&state) % TOKENS_MAX);
    for (int i = 0; i < *count; i++) tokens[i] = (int32_t)(test_random(&state) % (uint64_t)vocab);
}

static void test_mean(const char *directory, int vocab) {
    enum { COUNT = 40 };
    Engine *last = open_engine(directory, "auto", POOLING_LAST, 1, 256, 0);
    Engine *mean = open_engine(directory, "auto", POOLING_MEAN, 1, 256, 0);
    if (!last || !mean) return;
    const int hidden = model_hidden(engine_model(last));
    int32_t tokens[TOKENS_MAX];
    int count;
    float state[HIDDEN_MAX], found[HIDDEN_MAX], wanted[HIDDEN_MAX];
    double sums[HIDDEN_MAX] = {0};
    make_prompt(77, vocab, tokens, &count);
    for (int t = 0; t < COUNT; t++) {
        embed(last, tokens, t + 1, state);
        for (int i = 0; i < hidden; i++) sums[i] += (double)state[i];
    }
    for (int i = 0; i < hidden; i++) wanted[i] = (float)(sums[i] / COUNT);
    embed(mean, tokens, COUNT, found);
    TEST(!memcmp(found, wanted, (size_t)hidden * sizeof *found));
    engine_close(last);
    engine_close(mean);
}

/* Together with answers, in few rows a step, in few pages. */
static void test_batch(const char *directory, const char *one, const char *uniform_matmul, int vocab,
    size_t scarce_bytes, Pooling pooling) {
    static float alone[PROMPTS][HIDDEN_MAX], found[PROMPTS][HIDDEN_MAX];
    int32_t tokens[TOKENS_MAX];
    int count;
    memset(alone, 0, sizeof alone);
    memset(found, 0, sizeof found);
    Engine *engine = open_engine(directory, one, pooling, 1, 256, 0);
    for (int i = 0; engine && i < PROMPTS; i++) {
        make_prompt((uint64_t)i, vocab, tokens, &count);
        embed(engine, tokens, count, alone[i]);
    }
    engine_close(engine);
    for (int scarce = 0; scarce < 2; scarce++) {
        Request *requests[PROMPTS], *answers[PROMPTS] = {0}, *given_up;
        Error error = {0};
        engine = open_engine(directory, uniform_matmul, pooling, 6, 48, scarce ? scarce_bytes : 0);
        for (int i = 0; engine && i < PROMPTS; i++) {
            make_prompt((uint64_t)i, vocab, tokens, &count);
            if (i % 3 == 0) answers[i] = submit(engine, tokens, 1 + count / 8, false, &error);
            while (!(requests[i] = submit(engine, tokens, count, true, &error)) && error.code == ERROR_BUSY)
                (void)request_wait(requests[0], 5);
            TEST_MSG(requests[i] != NULL, "%s", error.text);
            if (i % 7 == 3 && (given_up = submit(engine, tokens, count, true, &error))) request_free(given_up);
        }
        for (int i = 0; engine && i < PROMPTS; i++) {
            take(engine, requests[i], found[i]);
            if (answers[i]) request_free(answers[i]);
        }
        engine_close(engine);
        for (int i = 0; i < PROMPTS; i++)
            TEST_MSG(!memcmp(alone[i], found[i], sizeof alone[i]), "%s: prompt %d among others", uniform_matmul, i);
    }
}

/* A prompt that was parked is read again: what it had counts once. */
static void test_again(void) {
    enum { COUNT = 9, HIDDEN = 2 };
    static const int reads[][2] = {{0, 4}, {0, 2}, {2, 5}, {0, 9}};
    const int32_t tokens[COUNT] = {0};
    float states[COUNT * HIDDEN];
    const KvFormat format = {0};
    const RequestOptions options = {
        .prompt = tokens, .prompt_count = COUNT, .max_tokens = 1, .choices = 1, .embeds = true, .kv_format = &format};
    const RequestShape shape = {.vocab = 8, .hidden = HIDDEN, .pooling = POOLING_MEAN};
    Error error = {0};
    Request *request = request_new(&options, &shape, 1, &error);
    CHECK(request);
    for (int i = 0; i < COUNT * HIDDEN; i++) states[i] = (float)i;
    for (size_t i = 0; i < COUNT_OF(reads); i++)
        request_pool(request, reads[i][0], reads[i][1], HIDDEN, states + reads[i][0] * HIDDEN);
    TEST(request_embedding(request)[0] == COUNT - 1 && request_embedding(request)[1] == COUNT);
    request_release(request);
}

static void test_refused(const char *directory) {
    Engine *engine = open_engine(directory, "auto", POOLING_NONE, 1, 256, 0);
    Error error = {0};
    const int32_t token = 1;
    TEST(engine && !submit(engine, &token, 1, true, &error) && error.code == ERROR_UNSUPPORTED);
    engine_close(engine);
}

int main(void) {
    static const struct {
        const char *name, *head;
        size_t scarce_bytes; /* of pages: room for two of the longest prompts */
    } fixtures[] = {{"llama", "lm_head.weight", 420000}, {"qwen3", "model.embed_tokens.weight", 1700000}};
    for (size_t i = 0; i < COUNT_OF(fixtures); i++) {
        Fixture f;
        char directory[64];
        if (!fixture_open(&f, fixtures[i].name) || !fixture_write_variant(&f, 0, directory)) continue;
        test_golden(&f, directory, fixtures[i].head, json_number(json_get(f.root, "embedding_range")));
        test_mean(directory, f.vocab);
        test_batch(directory, "auto", "auto", f.vocab, fixtures[i].scarce_bytes, POOLING_LAST);
        test_batch(directory, "auto", "auto", f.vocab, fixtures[i].scarce_bytes, POOLING_MEAN);
        if (!SANITIZED) test_batch(directory, "ref", "fence", f.vocab, fixtures[i].scarce_bytes, POOLING_MEAN);
        test_refused(directory);
        fixture_remove(directory);
        fixture_close(&f);
    }
    test_again();
    return test_done();
}
