/* What a sequence remembers can leave its cache and come back: pages read out, dropped, and written into other pages of
 * another cache go on with the same logits, bit for bit; so do two sequences that share pages and part. Recurrent
 * states are pages as well. */
#include "cache/prefix.h"
#include "fixture.h"

enum {
    TOKENS = 300,
    PAGES_MAX = KV_GROUP_PAGES_MAX * ((TOKENS + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS),
    LAYERS_MAX = 16
};

static const struct {
    const char *name;
    int variant;
} cases[] = {{"llama-window", 1}, {"gemma3-text", 2}, {"phi3", 1}, {"rope-dynamic", 0}, {"deepseek-v3", 2},
    {"mimo-v2-flash", 1}, {"gemma4-e2b", 1}, {"qwen3-5", 1}, {"lfm2-moe", 0}, {"jamba-experts", 0}, {"nemotron-h", 0},
    {"kimi-linear", 0}, {"deepseek-v4", 0}};

/* The pages of a sequence in canonical order, in host memory. */
typedef struct Saved {
    int length;
    void *page[LAYERS_MAX][PAGES_MAX]; /* NULL: a window has left it, or no later row reads this state */
} Saved;

static int page_tokens(const KvPlan *plan, int entry) { return plan->group[plan->entries[entry].group].page_tokens; }

static int tokens_in_page(int length, int page, int tokens) {
    const int left = length - page * tokens;
    return left < tokens ? left : tokens;
}

static void save(const KvPlan *plan, const KvCache *cache, const KvSequence *s, Saved *saved) {
    *saved = (Saved){.length = s->length};
    CHECK(plan->entry_count <= LAYERS_MAX && s->length <= TOKENS);
    for (int i = 0; i < plan->entry_count; i++)
        for (int page = 0; page * page_tokens(plan, i) < s->length; page++) {
            const KvLayer *layer = &kv_entries(cache)[i];
            const int32_t number = s->tables[layer->group][page];
            if (number < 0) continue;
            Backend *backend = plan->group[layer->group].backend;
            const int tokens = tokens_in_page(s->length, page, page_tokens(plan, i));
            saved->page[i][page] = malloc(kv_canonical_bytes(&layer->layout, tokens));
            if (!saved->page[i][page]) abort();
            TEST(backend->ops->page_read(backend, layer, number, tokens, saved->page[i][page]));
        }
}

/* Into a sequence without tokens. Frees what was saved. */
static bool restore(const KvPlan *plan, KvCache *cache, KvSequence *s, Saved *saved, Error *error) {
    if (!kv_reserve(cache, s, saved->length, error)) return false;
    for (int i = 0; i < plan->entry_count; i++)
        for (int page = 0; page < PAGES_MAX; page++) {
            const KvLayer *layer = &kv_entries(cache)[i];
            Backend *backend = plan->group[layer->group].backend;
            if (!saved->page[i][page]) continue;
            const int32_t number = s->tables[layer->group][page]; /* of states only the last is reserved */
            const int tokens = tokens_in_page(saved->length, page, page_tokens(plan, i));
            if (number >= 0) TEST(backend->ops->page_write(backend, layer, number, tokens, saved->page[i][page]));
            free(saved->page[i][page]);
        }
    kv_advance(cache, s, saved->length);
    return true;
}

/* Tokens up to `end`; logits: [TOKENS, vocab], only the new ones are written. */
static bool walk_to(
    Runner *runner, KvCache *cache, KvSequence *s, const int32_t *tokens, int end, float *logits, Error *error) {
    const int64_t vocab = model_vocab(runner_model(runner));
    while (s->length < end) {
        const int at = s->length, rows = end - at < 50 ? end - at : 50;
        if (!fixture_step(runner, cache, s, tokens + at, rows, logits + at * vocab, error)) return false;
    }
    return true;
}

static size_t size_of(const Runner *runner) { return (size_t)(TOKENS * model_vocab(runner_model(runner))); }

static void check_restore(const char *label, Runner *runner, const int32_t *tokens, const float *whole, int held) {
    const KvPlan *plan = runner_kv_plan(runner);
    const size_t budget = 4 * kv_bytes_for(plan, NULL, TOKENS), from = size_of(runner) / TOKENS * (size_t)held;
    float *logits = calloc(size_of(runner), sizeof *logits);
    Error error = {0};
    KvSequence s = {0}, stranger = {0};
    Saved saved = {0};
    KvCache *cache = kv_open(plan, budget, &error);
    bool ok = logits && cache && kv_sequence_open(cache, NULL, &s, &error) &&
        walk_to(runner, cache, &s, tokens, held, logits, &error);
    if (ok) save(plan, cache, &s, &saved);
    if (cache) kv_sequence_close(cache, &s);
    kv_close(cache);
    if (logits) memset(logits, 0, size_of(runner) * sizeof *logits);
    cache = ok ? kv_open(plan, budget, &error) : NULL;
    ok = cache && kv_sequence_open(cache, NULL, &stranger, &error) && kv_sequence_open(cache, NULL, &s, &error) &&
        walk_to(runner, cache, &stranger, tokens + 7, 140, logits, &error) && /* has the first pages */
        restore(plan, cache, &s, &saved, &error) && walk_to(runner, cache, &s, tokens, TOKENS, logits, &error);
    TEST_MSG(ok, "%s: %s", label, error.text);
    TEST_MSG(ok && !memcmp(logits + from, whole + from, (size_of(runner) - from) * sizeof *logits),
        "%s: restored after %d tokens", label, held);
    if (cache) kv_sequence_close(cache, &s);
    if (cache) kv_sequence_close(cache, &stranger);
    kv_close(cache);
    free(logits);
}

/* Two that share pages go different ways, in turns: whoever writes into a shared page gets a copy of it. */
static void check_fork(const char *label, Runner *runner, const int32_t *tokens, const float *whole, int held) {
    int32_t other[TOKENS];
    const int64_t vocab = model_vocab(runner_model(runner));
    float *logits = calloc(2 * size_of(runner), sizeof *logits), *second = logits + size_of(runner);
    float *alone = calloc(size_of(runner), sizeof *alone);
    for (int i = 0; i < TOKENS; i++) other[i] = i < held ? tokens[i] : (tokens[i] + 1) % (int32_t)vocab;
    Error error = {0};
    KvSequence s = {0}, fork = {0};
    const KvPlan *plan = runner_kv_plan(runner);
    KvCache *cache = kv_open(plan, 4 * kv_bytes_for(plan, NULL, TOKENS), &error);
    bool ok = logits && alone && fixture_walk(runner, other, TOKENS, 64, 0, alone) && cache &&
        kv_sequence_open(cache, NULL, &s, &error) && kv_sequence_open(cache, NULL, &fork, &error) &&
        walk_to(runner, cache, &s, tokens, held, logits, &error);
    if (ok) kv_fork(cache, &s, &fork);
    for (int end = held; ok && end < TOKENS;) {
        end = end + 20 < TOKENS ? end + 20 : TOKENS;
        ok = walk_to(runner, cache, &fork, other, end, second, &error) &&
            walk_to(runner, cache, &s, tokens, end, logits, &error);
    }
    TEST_MSG(ok, "%s: %s", label, error.text);
    const size_t from = (size_t)(held * vocab), bytes = (size_of(runner) - from) * sizeof *logits;
    TEST_MSG(ok && !memcmp(logits, whole, size_of(runner) * sizeof *logits), "%s: forked at %d", label, held);
    TEST_MSG(ok && !memcmp(second + from, alone + from, bytes), "%s: the fork at %d", label, held);
    if (cache) kv_sequence_close(cache, &s);
    if (cache) kv_sequence_close(cache, &fork);
    kv_close(cache);
    free(logits);
    free(alone);
}

/* A snapshot in the prefix cache, which has the first row of a page of states alone. */
static void check_snapshot(const char *label, Runner *runner, const int32_t *tokens, const float *whole, int held) {
    const KvPlan *plan = runner_kv_plan(runner);
    uint64_t ids[TOKENS];
    size_t bytes = 0;
    for (int g = 0; g < plan->group_count; g++) bytes += plan->group[g].snapshot_bytes;
    if (!bytes) return;
    for (int i = 0; i < TOKENS; i++) ids[i] = (uint64_t)tokens[i];
    const size_t from = size_of(runner) / TOKENS * (size_t)held;
    float *logits = calloc(size_of(runner), sizeof *logits);
    Error error = {0};
    KvSequence s = {0}, stranger = {0};
    KvCache *cache = kv_open(plan, 8 * kv_bytes_for(plan, NULL, TOKENS), &error);
    PrefixCache *prefix = cache ? prefix_open(cache, &error) : NULL;
    bool ok = logits && prefix && kv_sequence_open(cache, NULL, &s, &error) &&
        walk_to(runner, cache, &s, tokens, held, logits, &error);
    if (ok) prefix_insert(prefix, 0, ids, &s);
    if (cache) kv_sequence_close(cache, &s);
    ok = ok && kv_sequence_open(cache, NULL, &stranger, &error) && kv_sequence_open(cache, NULL, &s, &error) &&
        walk_to(runner, cache, &stranger, tokens + 7, 140, logits, &error); /* has the pages that were given back */
    if (ok) {
        memset(logits, 0, size_of(runner) * sizeof *logits);
        TEST_MSG(prefix_stats(prefix).state_bytes == bytes, "%s: %zu, not %zu bytes", label,
            prefix_stats(prefix).state_bytes, bytes);
        TEST_MSG(prefix_find(prefix, 0, ids, TOKENS - 1, &s) == held, "%s: %d of %d", label, s.length, held);
        ok = walk_to(runner, cache, &s, tokens, TOKENS, logits, &error);
    }
    TEST_MSG(ok, "%s: %s", label, error.text);
    TEST_MSG(ok && !memcmp(logits + from, whole + from, (size_of(runner) - from) * sizeof *logits),
        "%s: a snapshot at %d", label, held);
    if (cache) kv_sequence_close(cache, &s);
    if (cache) kv_sequence_close(cache, &stranger);
    prefix_close(prefix);
    kv_close(cache);
    free(logits);
}

static void check_runner(const char *label, Runner *runner) {
    int32_t tokens[TOKENS];
    uint64_t random = 11;
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (int32_t)(test_random(&random) % (uint64_t)model_vocab(runner_model(runner)));
    float *whole = calloc(size_of(runner), sizeof *whole);
    if (!whole || !fixture_walk(runner, tokens, TOKENS, 100, 0, whole)) return;
    static const int held[] = {128, 200}; /* where a page is full, and within one */
    for (size_t i = 0; i < COUNT_OF(held); i++) check_restore(label, runner, tokens, whole, held[i]);
    check_fork(label, runner, tokens, whole, 150);
    check_snapshot(label, runner, tokens, whole, 161);
    free(whole);
}

/* All on one backend, the upper layers on ref, and each layer of one model divided between two. */
static void check_backend(const char *name, const char *directory, const char *cpu, size_t number) {
    RunnerOptions options[] = {{.backend = fixture_backend(cpu, 1, 100)},
        {.backend = fixture_backend(cpu, 1, 100), .split = 1, .upper = fixture_backend("ref", 1, 0)},
        {.backend = fixture_backend(cpu, 1, 100)}};
    options[2].backend.tensor_parallel = 2;
    const bool divides = !strcmp(name, "nemotron-h") && strcmp(cpu, "cuda") && strcmp(cpu, "fence");
    for (size_t i = 0; i < COUNT_OF(options) - !divides; i++) {
        FixtureRun run;
        char label[64];
        if (test_sampled() && i == 1 && number % 2) continue;
        snprintf(label, sizeof label, "%s on %s%s", name, cpu, i == 0 ? "" : i == 1 ? " and ref" : ", divided");
        if (!fixture_run_open(&run, directory, &(ModelOptions){.context = TOKENS}, &options[i])) continue;
        check_runner(label, run.runner);
        fixture_run_close(&run);
    }
}

int main(void) {
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Fixture f;
        char directory[64];
        if (!fixture_open(&f, cases[i].name) || !fixture_write_variant(&f, cases[i].variant, directory)) continue;
        for (size_t c = 0; c < COUNT_OF(fixture_cpus); c++)
            if (fixture_case_due(i, c)) check_backend(f.name, directory, fixture_cpus[c], i + c);
        fixture_remove(directory);
        fixture_close(&f);
    }
    return test_done();
}
