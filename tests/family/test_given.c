/* Rows of a step may be given as embeddings in place of tokens: given what the table holds, every model computes the
 * same as from tokens, bit for bit, also where some rows of a step are given and others are not. */
#include "fixture.h"
#include "model/spec.h"

/* Embeddings in place of tokens. */
typedef struct Given {
    const int32_t *tokens;
    int each; /* every each-th row is a token, whose embedding is NaN: it must not be read; 0: all are given */
    const float *values; /* [count, hidden] */
    bool in_backend;     /* they are copied to memory of the backend first */
} Given;

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
    StepBuilder builder;
    fixture_builder(&builder, count);
    step_begin(&builder, false);
    step_add_sequence(&builder, &(StepSequence){.rows = count, .tokens = tokens});
    b->ops->begin(b, step_end(&builder, &error));
    b->ops->embed(
        b, &(Embed){.rows = count, .tokens = tokens, .table = &table, .scale = spec->embedding_scale, .out = out});
    TEST_MSG(b->ops->wait(b, b->ops->submit(b), &error), "%s", error.text);
    step_builder_close(&builder);
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

/* The next `count` rows in one step. */
static bool step_given(
    const FixtureRun *run, KvCache *cache, KvSequence *s, const Given *g, int count, float *logits, Error *error) {
    EmbeddingRange ranges[FIXTURE_TOKENS_MAX];
    int range_count = 0;
    const int at = s->length, hidden = model_spec(run->model)->hidden;
    for (int t = 0; t < count; t++) {
        if (g->each && (at + t) % g->each == 0) continue;
        EmbeddingRange *last = range_count ? &ranges[range_count - 1] : NULL;
        if (last && last->row + last->rows == t)
            last->rows++;
        else
            ranges[range_count++] = (EmbeddingRange){
                .row = t, .rows = 1, .values = g->values + (at + t) * hidden, .in_backend = g->in_backend};
    }
    const StepSequence sequence = {
        .tokens = g->each ? g->tokens + at : NULL, .embedding_count = range_count, .embeddings = ranges};
    return fixture_step_of(run->runner, cache, s, count, &sequence, logits + (size_t)at * (size_t)run->vocab, error);
}

static bool walk_given(const FixtureRun *run, const Fixture *f, const Given *asked, int chunk, float *logits) {
    const int hidden = model_spec(run->model)->hidden;
    const size_t bytes = (size_t)(f->count * hidden) * sizeof(float);
    Given g = *asked;
    Backend *b = runner_backend(run->runner);
    float *given = malloc(bytes), *there = NULL;
    Error error = {0};
    KvSequence s = {0};
    const KvPlan *plan = runner_kv_plan(run->runner);
    KvCache *cache = kv_open(plan, kv_bytes_for(plan, NULL, f->count), &error);
    bool ok = given && cache && kv_sequence_open(cache, NULL, &s, &error);
    for (int t = 0; ok && t < f->count; t++)
        for (int i = 0; i < hidden; i++)
            given[t * hidden + i] = g.each && t % g.each == 0 ? NAN : asked->values[t * hidden + i];
    if (ok && g.in_backend) ok = (there = b->ops->alloc(b, bytes, MEMORY_STEP, &error)) != NULL;
    if (there) b->ops->upload(b, there, given, bytes);
    g.values = there ? there : given;
    while (ok && s.length < f->count)
        ok = step_given(run, cache, &s, &g, f->count - s.length < chunk ? f->count - s.length : chunk, logits, &error);
    TEST_MSG(ok, "%s", error.text);
    if (cache) kv_sequence_close(cache, &s);
    kv_close(cache);
    b->ops->release(b, there);
    free(given);
    return ok;
}

/* Whether something beside the embedding reads tokens: those of given rows count as token 0. */
static bool reads_tokens(const Spec *spec) {
    for (int l = 0; l < spec->layer_count; l++) {
        const Layer *layer = &spec->layers[l];
        for (int i = 0; i < layer->component_count; i++)
            if (layer->components[i].kind == COMPONENT_MOE && layer->components[i].moe.table) return true;
    }
    return spec->layer_inputs.embedding.rows;
}

static void check_backend(const Fixture *fixture, const char *directory, const char *cpu) {
    Fixture own = *fixture;
    const Fixture *f = &own;
    FixtureRun run;
    const RunnerOptions options = {.backend = fixture_backend(cpu, 1, FIXTURE_TOKENS_MAX)};
    if (!fixture_run_open(&run, directory, &(ModelOptions){.context = f->count}, &options)) return;
    if (reads_tokens(model_spec(run.model))) memset(own.tokens, 0, sizeof own.tokens);
    const size_t size = (size_t)(f->count * f->vocab);
    float *expected = calloc(size, sizeof *expected), *logits = calloc(size, sizeof *logits);
    float *rows = look_up(run.runner, f->tokens, f->count);
    if (runner_backend(run.runner)->exact) check_rows(f, model_spec(run.model), rows);
    TEST(expected && logits && fixture_walk(run.runner, f->tokens, f->count, f->count, 0, expected));
    static const int each[] = {0, 3}, chunks[] = {FIXTURE_TOKENS_MAX, 7};
    for (size_t i = 0; i < 2 * COUNT_OF(each); i += SANITIZED && test_usual() ? 3 : 1) { /* the first and the last */
        const Given given = {f->tokens, each[i / 2], rows, i % 2};
        memset(logits, 0, size * sizeof *logits);
        TEST(walk_given(&run, f, &given, chunks[i / 2], logits));
        TEST_MSG(!memcmp(logits, expected, size * sizeof *logits), "%s on %s: %s given in memory of the %s", f->name,
            cpu, given.each ? "some rows" : "all rows", given.in_backend ? "backend" : "host");
    }
    /* What is given matters. */
    for (int i = 0; i < model_spec(run.model)->hidden; i++) rows[i] = -rows[i];
    TEST(walk_given(&run, f, &(Given){.values = rows}, FIXTURE_TOKENS_MAX, logits) &&
        memcmp(logits, expected, size * sizeof *logits) != 0);
    free(expected);
    free(logits);
    free(rows);
    fixture_run_close(&run);
}

/* Under a sanitizer, which has nothing of its own in the vector kernels, ./test.sh takes every third fixture on them.
 */
static bool is_due(size_t number, size_t index) {
    const bool ref = strcmp(fixture_cpus[index], "ref") == 0;
    return (ref || !SANITIZED || !test_usual() || number % 3 == 0) && fixture_case_due(number, index);
}

/* Every family, its table as it is stored last: quantised where the fixture has that. */
int main(void) {
    static char names[FIXTURE_NAMES_MAX][64];
    const int total = fixture_names(names, FIXTURE_NAMES_MAX);
    for (int i = 0; i < total; i++) {
        Fixture f;
        char directory[64];
        if (!fixture_open(&f, names[i])) continue;
        if (fixture_write_variant(&f, (int)f.variants->size - 1, directory)) {
            for (size_t c = 0; c < COUNT_OF(fixture_cpus); c++)
                if (is_due((size_t)i, c)) check_backend(&f, directory, fixture_cpus[c]);
        }
        fixture_remove(directory);
        fixture_close(&f);
    }
    return test_done();
}
