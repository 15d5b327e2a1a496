/* What a step may hold besides tokens in order, through whole models on every backend: positions on three axes, and
 * spans whose tokens see each other. */
#include "compare.h"

enum { SPANS = 2 };

static const struct {
    const char *name;
    int variant;
} cases[] = {{"llama-window", 1}, {"gemma3-text", 2}, {"phi", 1}, {"rope-dynamic", 0}, {"deepseek-v2", 2},
    {"qwen3-5", 1}, {"minimax-text-01", 0}};

typedef struct Walk {
    const int32_t *tokens;
    const int32_t *positions; /* [POSITION_DIMS_MAX][count]; NULL: places in the cache */
    int count, chunk, span_count;
    BidirectionalSpan spans[SPANS];
} Walk;

/* Rows of the next step: spans stay whole. */
static int rows_at(const Walk *w, int at) {
    int end = at + w->chunk < w->count ? at + w->chunk : w->count;
    for (int i = 0; i < w->span_count; i++)
        if (w->spans[i].begin < end && end < w->spans[i].end) end = w->spans[i].end;
    return end - at;
}

static bool walk_step(
    Runner *runner, KvCache *cache, KvSequence *s, const Walk *w, int rows, float *logits, Error *error) {
    int32_t positions[POSITION_DIMS_MAX * FIXTURE_TOKENS_MAX];
    StepSequence sequence = {.tokens = w->tokens + s->length, .spans = w->spans};
    const BidirectionalSpan *end = w->spans + w->span_count;
    while (sequence.spans < end && sequence.spans->begin < s->length) sequence.spans++;
    for (const BidirectionalSpan *span = sequence.spans; span < end && span->begin < s->length + rows; span++)
        sequence.span_count++;
    if (w->positions) {
        for (int i = 0; i < POSITION_DIMS_MAX * rows; i++)
            positions[i] = w->positions[i / rows * w->count + s->length + i % rows];
        sequence.positions = positions;
    }
    const size_t vocab = (size_t)model_vocab(runner_model(runner));
    return fixture_step_of(runner, cache, s, rows, &sequence, logits + (size_t)s->length * vocab, error);
}

static void walk(Runner *runner, const Walk *w, float *logits) {
    Error error = {0};
    KvSequence s = {0};
    KvCache *cache = kv_open(runner_kv_plan(runner), kv_bytes_for(runner_kv_plan(runner), NULL, w->count), &error);
    bool ok = cache && kv_sequence_open(cache, NULL, &s, &error);
    while (ok && s.length < w->count) ok = walk_step(runner, cache, &s, w, rows_at(w, s.length), logits, &error);
    TEST_MSG(ok, "%s", error.text);
    if (cache) kv_sequence_close(cache, &s);
    kv_close(cache);
}

static bool same_rows(const Fixture *f, const float *a, const float *b, int first, int end) {
    const size_t vocab = (size_t)f->vocab, from = (size_t)first * vocab;
    return !memcmp(a + from, b + from, (size_t)(end - first) * vocab * sizeof *a);
}

/* As far from ref as rounding activations to 8 bits costs this model anyway, see compare.h. */
static void check_near(const Fixture *f, int variant, const char *cpu, const float *ref, const float *ours) {
    double mean = 0;
    for (int i = 0; i < f->count; i++) mean += row_kl(ref + i * f->vocab, ours + i * f->vocab, f->vocab) / f->count;
    const double cost = json_number(json_first(json_get(fixture_variant(f, variant), "int8_kl")));
    TEST_MSG(mean <= kl_floor + kl_factor * cost, "%s on %s: mean KL %.2e from ref", f->name, cpu, mean);
}

/* A backend at work on a fixture, with room for logits. */
typedef struct Bench {
    const Fixture *f;
    int variant;
    const char *cpu;
    Runner *runner;
    size_t bytes; /* of logits */
    float *text, *spans, *other;
    const float *ref; /* spans on ref */
} Bench;

/* [POSITION_DIMS_MAX][count] The place in the cache on the first dimension, others on the further ones: models without
 * mrope sections read the first dimension alone. */
static void fill_positions(int count, int32_t *positions) {
    for (int i = 0; i < POSITION_DIMS_MAX * count; i++) positions[i] = i % count + i / count * 3;
}

static void check_position_dims(const Bench *b) {
    const int count = b->f->count;
    int32_t positions[POSITION_DIMS_MAX * FIXTURE_TOKENS_MAX];
    fill_positions(count, positions);
    const Walk w = {.tokens = b->f->tokens, .positions = positions, .count = count, .chunk = count};
    walk(b->runner, &w, b->other);
    TEST_MSG(!memcmp(b->text, b->other, b->bytes), "%s on %s: text on three axes", b->f->name, b->cpu);
}

/* Layers computed in tiles of so many rows: the same bits. A tile does not cut a span. */
static void check_tiles(const Bench *b, const char *directory, const Walk *whole) {
    static const int tiles[] = {1, 13, 31};
    const int longest = whole->spans[0].end - whole->spans[0].begin;
    for (size_t i = 0; i < COUNT_OF(tiles); i++) {
        RunnerOptions options = {
            .backend = fixture_backend(b->cpu, 1, FIXTURE_TOKENS_MAX), .layer_tile_rows = tiles[i]};
        Walk w = *whole;
        FixtureRun run;
        if (!fixture_run_open(&run, directory, &(ModelOptions){.context = w.count}, &options)) return;
        const bool fits = runner_span_rows_max(run.runner) >= longest;
        TEST(runner_span_rows_max(run.runner) == tiles[i]);
        w.span_count = fits ? w.span_count : 0;
        walk(run.runner, &w, b->other);
        TEST_MSG(!memcmp(fits ? b->spans : b->text, b->other, b->bytes), "%s on %s: tiles of %d rows, %d spans",
            b->f->name, b->cpu, tiles[i], w.span_count);
        fixture_run_close(&run);
    }
}

/* Two spans side by side. */
static Walk two_spans(const Fixture *f) {
    const BidirectionalSpan first = {f->count / 5, f->count / 2}, second = {f->count / 2, f->count * 4 / 5};
    return (Walk){f->tokens, NULL, f->count, f->count, SPANS, {first, second}};
}

static void check_spans(const Bench *b, const char *directory) {
    const Fixture *f = b->f;
    Walk w = two_spans(f);
    const BidirectionalSpan first = w.spans[0], second = w.spans[1];
    walk(b->runner, &w, b->spans);
    TEST_MSG(same_rows(f, b->text, b->spans, 0, first.begin), "%s on %s: what comes before a span", f->name, b->cpu);
    TEST_MSG(!same_rows(f, b->text, b->spans, first.begin, first.begin + 1), "%s on %s: a span does not see itself",
        f->name, b->cpu);
    static const int chunks[] = {1, 7};
    for (size_t c = 0; c < COUNT_OF(chunks); c++) {
        w.chunk = chunks[c];
        walk(b->runner, &w, b->other);
        TEST_MSG(!memcmp(b->spans, b->other, b->bytes), "%s on %s: spans in pieces of %d", f->name, b->cpu, chunks[c]);
    }
    w.chunk = f->count;
    int32_t positions[POSITION_DIMS_MAX * FIXTURE_TOKENS_MAX];
    fill_positions(f->count, positions);
    w.positions = positions;
    if (runner_backend(b->runner)->ops->set_rows) check_tiles(b, directory, &w);
    /* The last token of the second span is seen by the first of its span, and by nothing before. */
    int32_t tokens[FIXTURE_TOKENS_MAX];
    memcpy(tokens, f->tokens, sizeof tokens);
    tokens[second.end - 1] = (tokens[second.end - 1] + 1) % f->vocab;
    w.tokens = tokens;
    w.positions = NULL;
    walk(b->runner, &w, b->other);
    TEST_MSG(same_rows(f, b->spans, b->other, 0, second.begin), "%s on %s: spans see each other", f->name, b->cpu);
    TEST_MSG(!same_rows(f, b->spans, b->other, second.begin, second.begin + 1),
        "%s on %s: the start of a span does not see its end", f->name, b->cpu);
}

static void walk_ref(const Fixture *f, const char *directory, float *ref) {
    FixtureRun run;
    const RunnerOptions options = {.backend = fixture_backend("ref", 1, FIXTURE_TOKENS_MAX)};
    if (!fixture_run_open(&run, directory, &(ModelOptions){.context = f->count}, &options)) return;
    const Walk w = two_spans(f);
    walk(run.runner, &w, ref);
    fixture_run_close(&run);
}

static void check_backend(const Fixture *f, int variant, const char *directory, const char *cpu, const float *ref) {
    FixtureRun run;
    const RunnerOptions options = {.backend = fixture_backend(cpu, 1, FIXTURE_TOKENS_MAX)};
    if (!fixture_run_open(&run, directory, &(ModelOptions){.context = f->count}, &options)) return;
    const size_t bytes = (size_t)(f->count * f->vocab) * sizeof(float);
    const Bench b = {f, variant, cpu, run.runner, bytes, calloc(1, bytes), calloc(1, bytes), calloc(1, bytes), ref};
    if (!b.text || !b.spans || !b.other) abort();
    TEST(fixture_walk(run.runner, f->tokens, f->count, f->count, 0, b.text));
    check_position_dims(&b);
    check_spans(&b, directory);
    if (runner_backend(run.runner)->exact)
        TEST_MSG(!memcmp(ref, b.spans, bytes), "%s on %s: not as ref", f->name, cpu);
    else
        check_near(f, variant, cpu, ref, b.spans);
    free(b.text);
    free(b.spans);
    free(b.other);
    fixture_run_close(&run);
}

int main(void) {
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Fixture f;
        char directory[64];
        if (!fixture_open(&f, cases[i].name) || !fixture_write_variant(&f, cases[i].variant, directory)) continue;
        float *ref = calloc((size_t)(f.count * f.vocab), sizeof *ref);
        if (ref) walk_ref(&f, directory, ref); /* where ref is not among the backends tested as well */
        for (size_t c = 0; ref && c < COUNT_OF(fixture_cpus); c++)
            if (fixture_cpu_due(fixture_cpus[c])) check_backend(&f, cases[i].variant, directory, fixture_cpus[c], ref);
        free(ref);
        fixture_remove(directory);
        fixture_close(&f);
    }
    return test_done();
}
