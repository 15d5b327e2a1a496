/* Rows of a step may be given as embeddings in place of tokens: given what the table holds, every model computes the
 * same as from tokens, bit for bit, also where some rows of a step are given and others are not. */
#include "fixture.h"
#include "model/spec.h"

enum { NAMES_MAX = 128 };

/* What the first layer reads for these tokens, as the backend computes it: [count, hidden] in host memory. */
static float *look_up(Runner *runner, const int32_t *tokens, int count) {
    const Spec *spec = model_spec(runner_model(runner));
    Backend *b = runner_backend(runner);
    const size_t bytes = (size_t)(count * spec->hidden) * sizeof(float);
    Error error = {0};
    Weight table = spec->embedding;
    float *rows = malloc(bytes), *out = b->ops->alloc(b, bytes, MEMORY_STEP, &error);
    const bool ok = rows && out && b->ops->bind(b, &table, &error);
    TEST_MSG(ok, "%s", error.text);
    if (!ok) abort();
    const SequenceChunk run = {.rows = count};
    const Step step = {
        .rows = count, .tokens = tokens, .positions = tokens, .chunk_count = 1, .chunks = &run, .position_dims = 1};
    b->ops->begin(b, &step);
    b->ops->embed(
        b, &(Embed){.rows = count, .tokens = tokens, .table = &table, .scale = spec->embedding_scale, .out = out});
    TEST_MSG(b->ops->wait(b, b->ops->submit(b), &error), "%s", error.text);
    b->ops->download(b, rows, out, bytes);
    b->ops->unbind(b, &table);
    b->ops->release(b, out);
    return rows;
}

/* ref computes an embedding as the row of the table in f32, times the scale. */
static void check_rows(const Fixture *f, const Spec *spec, const float *rows) {
    float *row = malloc((size_t)spec->hidden * sizeof *row);
    bool same = row != NULL;
    for (int t = 0; same && t < f->count; t++) {
        weight_dequantize_row(&spec->embedding, f->tokens[t], 0, spec->hidden, row);
        for (int i = 0; i < spec->hidden; i++) row[i] *= spec->embedding_scale;
        same = !memcmp(row, rows + t * spec->hidden, (size_t)spec->hidden * sizeof *row);
    }
    TEST_MSG(same, "%s: embeddings are not the table's rows", f->name);
    free(row);
}

/* Every `each`-th row as a token, the others given (0: all). Rows of the tokens are NaN: nobody may read them. */
static bool walk_given(const FixtureRun *run, const Fixture *f, const float *rows, int each, int chunk, float *logits) {
    const int hidden = model_spec(run->model)->hidden;
    int32_t tokens[FIXTURE_TOKENS_MAX];
    float *given = malloc((size_t)(f->count * hidden) * sizeof *given);
    Error error = {0};
    KvSequence s = {0};
    const KvPlan *plan = runner_kv_plan(run->runner);
    KvCache *cache = kv_open(plan, kv_bytes_for(plan, NULL, f->count), &error);
    bool ok = given && cache && kv_sequence_open(cache, NULL, &s, &error);
    for (int t = 0; ok && t < f->count; t++) {
        const bool token = each && t % each == 0;
        tokens[t] = token ? f->tokens[t] : -1;
        for (int i = 0; i < hidden; i++) given[t * hidden + i] = token ? NAN : rows[t * hidden + i];
    }
    while (ok && s.length < f->count) {
        const int at = s.length, count = f->count - at < chunk ? f->count - at : chunk;
        ok = fixture_step_given(run->runner, cache, &s, tokens + at, given + at * hidden, count,
            logits + (size_t)at * (size_t)run->vocab, &error);
    }
    TEST_MSG(ok, "%s", error.text);
    if (cache) kv_sequence_close(cache, &s);
    kv_close(cache);
    free(given);
    return ok;
}

static void check_backend(const Fixture *f, const char *directory, const char *cpu) {
    FixtureRun run;
    const RunnerOptions options = {.backend = fixture_backend(cpu, 1, FIXTURE_TOKENS_MAX)};
    if (!fixture_run_open(&run, directory, &(ModelOptions){.context = f->count}, &options)) return;
    const size_t size = (size_t)(f->count * f->vocab);
    float *expected = calloc(size, sizeof *expected), *logits = calloc(size, sizeof *logits);
    float *rows = look_up(run.runner, f->tokens, f->count);
    if (runner_backend(run.runner)->exact) check_rows(f, model_spec(run.model), rows);
    TEST(expected && logits && fixture_walk(run.runner, f->tokens, f->count, f->count, 0, expected));
    static const int each[] = {0, 3}, chunks[] = {FIXTURE_TOKENS_MAX, 7};
    for (size_t i = 0; i < COUNT_OF(each); i++) {
        memset(logits, 0, size * sizeof *logits);
        TEST(walk_given(&run, f, rows, each[i], chunks[i], logits));
        TEST_MSG(!memcmp(logits, expected, size * sizeof *logits), "%s on %s: %s given", f->name, cpu,
            each[i] ? "some rows" : "all rows");
    }
    /* What is given matters. */
    for (int i = 0; i < model_spec(run.model)->hidden; i++) rows[i] = -rows[i];
    TEST(walk_given(&run, f, rows, 0, FIXTURE_TOKENS_MAX, logits) &&
        memcmp(logits, expected, size * sizeof *logits) != 0);
    free(expected);
    free(logits);
    free(rows);
    fixture_run_close(&run);
}

/* Every family, its table as it is stored last: quantised where the fixture has that. */
int main(void) {
    static char names[NAMES_MAX][64];
    const int total = fixture_names(names, NAMES_MAX);
    bool here[COUNT_OF(fixture_cpus)];
    for (size_t c = 0; c < COUNT_OF(fixture_cpus); c++) here[c] = fixture_cpu_here(fixture_cpus[c]);
    for (int i = 0; i < total; i++) {
        Fixture f;
        char directory[64];
        if (!fixture_open(&f, names[i])) continue;
        if (fixture_write_variant(&f, (int)f.variants->size - 1, directory)) {
            for (size_t c = 0; c < COUNT_OF(fixture_cpus); c++)
                if (here[c]) check_backend(&f, directory, fixture_cpus[c]);
        }
        fixture_remove(directory);
        fixture_close(&f);
    }
    return test_done();
}
