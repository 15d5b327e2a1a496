/* Layers on two backends: the lower ones on one, the upper ones and the head on the other, the residual copied at the
 * seam. */
#include "compare.h"

static const struct {
    const char *name;
    int variant;
} cases[] = {{"qwen3", 1} /* tied */, {"gemma3-text", 2} /* tied, windows, a scaled embedding */,
    {"phi", 1} /* parallel layers, biases */, {"llama-window", 1}, {"phi3", 1} /* fused */, {"rope-dynamic", 0},
    {"smollm3", 0} /* layers without a rope */, {"deepseek-v3", 2} /* latents */, {"gpt-oss", 3} /* experts, sinks */,
    {"gemma4-inputs", 1} /* inputs of layers, norms of values */, {"qwen3-5", 1} /* recurrent states */,
    {"nemotron-h-experts", 0}, {"falcon-h1-plain", 0} /* states beside attention */, {"minimax-text-01", 0},
    {"deepseek-v4", 0} /* streams, compressed keys */};

static bool open_split(
    FixtureRun *run, const Fixture *f, const char *directory, const char *lower, const char *upper, int split) {
    const RunnerOptions options = {.backend = fixture_backend(lower, 1, FIXTURE_TOKENS_MAX),
        .split = split,
        .upper = fixture_backend(upper, 1, 0)};
    return fixture_run_open(run, directory, &(ModelOptions){.context = f->count}, &options);
}

/* Every layer remembers where it was put. */
static void check_places(const FixtureRun *run, const char *lower, const char *upper, int split) {
    const KvPlan *plan = runner_kv_plan(run->runner);
    for (int i = 0; i < plan->entry_count; i++) {
        const char *name = plan->group[plan->entries[i].group].backend->ops->name,
                   *wanted = plan->layers[i] < split ? lower : upper;
        TEST_MSG(!strcmp(name, wanted), "layer %d is on %s, not on %s", i, name, wanted);
    }
}

/* The same arithmetic in the same order, wherever the layers lie: as one backend alone, bit for bit. */
static void check_alike(const Fixture *f, const char *directory, const char *cpu, int split, const float *alone) {
    FixtureRun run;
    const size_t size = (size_t)(f->count * f->vocab);
    float *logits = calloc(size, sizeof *logits);
    if (logits && open_split(&run, f, directory, cpu, cpu, split)) {
        check_places(&run, cpu, cpu, split);
        TEST(fixture_walk(run.runner, f->tokens, f->count, f->count, f->steps, logits));
        TEST_MSG(!memcmp(logits, alone, size * sizeof *logits), "%s: %s from layer %d on %s again", f->name, cpu, split,
            cpu);
        fixture_run_close(&run);
    }
    free(logits);
}

/* Half of the layers round activations to 8 bits and pages to f16, which costs at most what it costs when all do: the
 * limit is that of the fast backend alone. In pieces the same, bit for bit. */
static void check_mixed(
    const Fixture *f, int variant, const char *directory, const char *lower, const char *upper, const float *alone) {
    FixtureRun run;
    char label[64];
    const size_t size = (size_t)(f->count * f->vocab);
    float *whole = calloc(size, sizeof *whole), *pieces = calloc(size, sizeof *pieces);
    snprintf(label, sizeof label, "%s, then %s", lower, upper);
    if (whole && pieces && open_split(&run, f, directory, lower, upper, 1)) {
        check_places(&run, lower, upper, 1);
        TEST(fixture_walk(run.runner, f->tokens, f->count, f->count, f->steps, whole));
        check_fast(f, variant, label, whole);
        TEST_MSG(memcmp(whole, alone, size * sizeof *whole) != 0, "%s: %s computes as ref alone", f->name, label);
        static const int chunks[] = {1, 7};
        for (size_t c = 0; c < COUNT_OF(chunks); c++) {
            TEST(fixture_walk(run.runner, f->tokens, f->count, chunks[c], f->steps, pieces));
            TEST_MSG(!memcmp(whole, pieces, size * sizeof *whole), "%s: %s in pieces of %d", f->name, label, chunks[c]);
        }
        fixture_run_close(&run);
    }
    free(whole);
    free(pieces);
}

static void check_case(const Fixture *f, int variant, const char *directory) {
    FixtureRun run;
    float *alone = calloc((size_t)(f->count * f->vocab), sizeof *alone);
    const RunnerOptions options = {.backend = fixture_backend("ref", 1, FIXTURE_TOKENS_MAX)};
    if (!alone || !fixture_run_open(&run, directory, &(ModelOptions){.context = f->count}, &options)) return;
    TEST(fixture_walk(run.runner, f->tokens, f->count, f->count, f->steps, alone));
    check_exact(f, variant, alone);
    const int layers = model_layers(run.model);
    fixture_run_close(&run);
    for (int split = 1; split < layers; split++) check_alike(f, directory, "ref", split, alone);
    check_alike(f, directory, "fence", layers / 2, alone);
    for (size_t c = 0; c < COUNT_OF(fixture_cpus); c++) {
        const char *cpu = fixture_cpus[c];
        if (!strcmp(cpu, "ref") || !strcmp(cpu, "fence") || !fixture_cpu_here(cpu)) continue;
        check_mixed(f, variant, directory, "ref", cpu, alone);
        check_mixed(f, variant, directory, cpu, "fence", alone);
    }
    free(alone);
}

int main(void) {
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Fixture f;
        char directory[64];
        if (!fixture_open(&f, cases[i].name) || !fixture_write_variant(&f, cases[i].variant, directory)) continue;
        check_case(&f, cases[i].variant, directory);
        fixture_remove(directory);
        fixture_close(&f);
    }
    return test_done();
}
