/* What shares a model or a runner does not meet: sequences of two caches on one runner, and of two runners on one
 * Model, in turns, get the logits that they get alone, bit for bit. */
#include "fixture.h"

enum { TOKENS = 170, WALKERS_MAX = 4 };

static const struct {
    const char *name;
    int variant;
} cases[] = {{"gemma3-text", 2}, {"llama", 2}, {"phi", 1}, {"rope-dynamic", 0}, {"deepseek-v3", 2}, {"gemma4-e2b", 1},
    {"qwen3-5", 1}, {"mamba", 0}, {"deepseek-v4", 0}};

/* A sequence in a cache of its own. */
typedef struct Walker {
    Runner *runner;
    KvCache *cache;
    KvSequence s;
    int chunk;
    int32_t tokens[TOKENS];
    float *logits, *alone; /* [TOKENS, vocab] */
} Walker;

static bool walker_open(Walker *w, Runner *runner, int number) {
    Error error = {0};
    const KvPlan *plan = runner_kv_plan(runner);
    const int vocab = model_vocab(runner_model(runner));
    uint64_t random = (uint64_t)number + 5;
    *w = (Walker){.runner = runner, .chunk = 3 + 5 * number};
    for (int i = 0; i < TOKENS; i++) w->tokens[i] = (int32_t)(test_random(&random) % (uint64_t)vocab);
    w->logits = calloc((size_t)(TOKENS * vocab), sizeof *w->logits);
    w->alone = calloc((size_t)(TOKENS * vocab), sizeof *w->alone);
    w->cache = kv_open(plan, kv_bytes_for(plan, NULL, TOKENS), &error);
    const bool ok = w->logits && w->alone && w->cache && kv_sequence_open(w->cache, NULL, &w->s, &error);
    TEST_MSG(ok, "%s", error.text);
    return ok;
}

static void walker_close(Walker *w) {
    if (w->cache) kv_sequence_close(w->cache, &w->s);
    kv_close(w->cache);
    free(w->logits);
    free(w->alone);
}

static bool walker_step(Walker *w) {
    Error error = {0};
    const int at = w->s.length, left = TOKENS - at, rows = left < w->chunk ? left : w->chunk;
    const int64_t from = (int64_t)at * model_vocab(runner_model(w->runner));
    const bool ok =
        rows == 0 || fixture_step(w->runner, w->cache, &w->s, w->tokens + at, rows, w->logits + from, &error);
    TEST_MSG(ok, "%s", error.text);
    return ok && rows > 0;
}

/* Steps in turn until all are done. */
static void check_turns(const char *label, Walker *walkers, int count) {
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < count; i++) more = walker_step(&walkers[i]) || more;
    }
    for (int i = 0; i < count; i++) {
        const size_t size = (size_t)(TOKENS * model_vocab(runner_model(walkers[i].runner)));
        TEST_MSG(!memcmp(walkers[i].logits, walkers[i].alone, size * sizeof(float)), "%s: sequence %d", label, i);
    }
}

static void check_caches(const char *name, const char *directory, const char *cpu) {
    FixtureRun run;
    Walker walkers[2] = {0};
    char label[64];
    const RunnerOptions options = {.backend = fixture_backend(cpu, 1, 64)};
    if (!fixture_run_open(&run, directory, &(ModelOptions){.context = TOKENS}, &options)) return;
    bool ok = true;
    for (int i = 0; i < 2; i++) {
        ok = walker_open(&walkers[i], run.runner, i) && ok;
        ok = ok && fixture_walk(run.runner, walkers[i].tokens, TOKENS, 64, 0, walkers[i].alone);
    }
    snprintf(label, sizeof label, "%s: two caches on %s", name, cpu);
    if (ok) check_turns(label, walkers, 2);
    for (int i = 0; i < 2; i++) walker_close(&walkers[i]);
    fixture_run_close(&run);
}

/* Alone: a model opened for this runner only. */
static bool walk_alone(const char *directory, const RunnerOptions *options, Walker *w) {
    FixtureRun run;
    if (!fixture_run_open(&run, directory, &(ModelOptions){.context = TOKENS}, options)) return false;
    const bool ok = fixture_walk(run.runner, w->tokens, TOKENS, 64, 0, w->alone);
    fixture_run_close(&run);
    return ok;
}

static void check_runners(const char *name, const char *directory, const char *cpu) {
    const RunnerOptions options[] = {{.backend = fixture_backend("ref", 1, 64)},
        {.backend = fixture_backend(cpu, 1, 64)},
        {.backend = fixture_backend(cpu, 1, 100), .split = 1, .upper = fixture_backend("ref", 1, 0)},
        {.backend = fixture_backend(SANITIZED ? "ref" : "fence", 1, 64)}};
    Runner *runners[WALKERS_MAX] = {NULL};
    Walker walkers[WALKERS_MAX] = {0};
    Error error = {0};
    char label[64];
    Model *model = model_open(directory, &(ModelOptions){.context = TOKENS}, &error);
    bool ok = model != NULL, lacking = false;
    for (int i = 0; ok && i < WALKERS_MAX; i++) {
        runners[i] = runner_open(model, &options[i], &error);
        lacking = !runners[i] && fixture_lacking(&options[i], &error);
        ok = runners[i] && walker_open(&walkers[i], runners[i], i) && walk_alone(directory, &options[i], &walkers[i]);
    }
    TEST_MSG(ok || lacking, "%s", error.text);
    snprintf(label, sizeof label, "%s: runners on one model, with %s", name, cpu);
    if (ok) check_turns(label, walkers, WALKERS_MAX);
    for (int i = 0; i < WALKERS_MAX; i++) walker_close(&walkers[i]);
    for (int i = 0; i < WALKERS_MAX; i++) runner_close(runners[i]);
    model_close(model);
}

int main(void) {
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Fixture f;
        char directory[64];
        if (!fixture_open(&f, cases[i].name) || !fixture_write_variant(&f, cases[i].variant, directory)) continue;
        for (size_t c = 0; c < COUNT_OF(fixture_cpus); c++) {
            if (!fixture_case_due(i, c)) continue;
            check_caches(f.name, directory, fixture_cpus[c]);
            check_runners(f.name, directory, fixture_cpus[c]);
        }
        fixture_remove(directory);
        fixture_close(&f);
    }
    return test_done();
}
