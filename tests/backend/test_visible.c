/* Which keys a position sees: attention_range by itself, and attention over spans whose positions see each other, on
 * every backend against a naive model. Keys that are appended first and queries in slices give the bits of one step. */
#include "model/step_rows.h"
#include "naive.h"

typedef struct Case {
    Shape shape;
    int count;
    BidirectionalSpan spans[SPANS_MAX];
} Case;

static const Case cases[] = {
    {{"spans in a page", 2, 1, 32, 32, DTYPE_F32, 100, 0, 0, PLAIN, 0, NO_NORM, false, false}, 3,
        {{10, 20}, {20, 30}, {64, 65}}},
    {{"all of it a span", 3, 3, 16, 16, DTYPE_F32, 140, 0, 0, ROPE_HALF, 16, NO_NORM, false, false}, 1, {{0, 140}}},
    {{"spans across pages", 4, 2, 32, 32, DTYPE_F16, 400, 0, 0, ROPE_HALF, 32, NO_NORM, false, false}, 2,
        {{100, 160}, {250, 390}}},
    {{"span at the start, small window", 4, 2, 32, 32, DTYPE_F32, 200, 7, 0, ROPE_HALF, 32, NO_NORM, false, false}, 1,
        {{0, 131}}},
    {{"window smaller than a span", 4, 1, 32, 48, DTYPE_F16, 420, 20, 0, ROPE_HALF, 32, NORM_HEAD, false, false}, 2,
        {{100, 160}, {300, 420}}},
    {{"window larger than a span", 4, 2, 32, 32, DTYPE_F32, 420, 150, 30, ROPE_INTERLEAVED, 20, NO_NORM, false, false},
        2, {{120, 140}, {300, 340}}},
    {{"across a border of 512", 7, 1, 32, 32, DTYPE_F32, 640, 0, 0, PLAIN, 0, NO_NORM, false, false}, 2,
        {{400, 600}, {600, 640}}},
    {{"across it, window, sinks", 4, 2, 32, 32, DTYPE_BF16, 700, 5, 0, ROPE_HALF, 32, NO_NORM, true, false}, 2,
        {{505, 530}, {640, 645}}},
};

static void check_case(const Case *c, SpanRule span_rule, bool chunked) {
    Bench b = bench_make(&c->shape);
    b.sequence[0].chunked = chunked;
    b.sequence[0].span_rule = span_rule;
    b.sequence[0].span_count = c->count;
    memcpy(b.sequence[0].spans, c->spans, sizeof c->spans);
    check_naive(&b, tolerance(&c->shape));
    bench_free(&b);
}

/* A chunked window begins at the last multiple of its width. */
static void check_chunked(void) {
    const SequenceChunk chunk = {.rows = 40, .position = 3};
    for (int i = chunk.position; i < chunk.position + chunk.rows; i++) {
        const AttentionRange seen = attention_range(&chunk, 8, true, SPANS_IGNORED, i),
                             all = attention_range(&chunk, 0, true, SPANS_IGNORED, i);
        TEST_MSG(seen.first == i / 8 * 8 && seen.end == i + 1, "position %d sees %d to %d", i, seen.first, seen.end);
        TEST(all.first == 0 && all.end == i + 1);
    }
}

/* Against the words of the header, at every position of runs with and without spans. */
static void check_attention_range(void) {
    static const int windows[] = {0, 1, 2, 7, 20, 1000};
    const Sequence seq = {.tokens = 90, .span_count = 4, .spans = {{30, 31}, {40, 60}, {60, 72}, {80, 90}}};
    for (size_t w = 0; w < COUNT_OF(windows); w++)
        for (int n = 0; n < 2 * (seq.span_count + 1); n++) {
            const int spans = n / 2;
            const SpanRule span_rule = n % 2 ? SPANS_IGNORED : SPANS_IN_WINDOW;
            const SequenceChunk chunk = {.rows = 70, .position = 20, .span_count = spans, .spans = seq.spans};
            Sequence shown = seq;
            shown.span_count = spans;
            shown.span_rule = span_rule;
            AttentionRange last = {0, 0};
            for (int i = chunk.position; i < chunk.position + chunk.rows; i++) {
                const AttentionRange seen = attention_range(&chunk, windows[w], false, span_rule, i);
                bool right = seen.first >= last.first && seen.end >= last.end; /* neither decreases */
                for (int j = 0; j < seq.tokens; j++)
                    right = right && naive_sees(&shown, windows[w], i, j) == (j >= seen.first && j < seen.end);
                TEST_MSG(right, "window %d, %d spans: position %d sees %d to %d", windows[w], spans, i, seen.first,
                    seen.end);
                last = seen;
            }
        }
}

/* ---- keys first, then queries ---- */

/* All rows of sequence 0, a span: their inputs, which operations may overwrite, and where they lie. */
typedef struct Whole {
    Cache cache;
    float *q, *k, *v, *out;
    StepSequence sequence;
} Whole;

static Whole whole_make(Backend *backend, Bench *b) {
    const Sequence *from = &b->sequence[0];
    const Shape *s = b->shape;
    Whole w = {.cache = cache_make(backend, b)};
    w.q = malloc((size_t)(from->tokens * q_width(s)) * sizeof *w.q);
    w.k = malloc((size_t)(from->tokens * k_width(s)) * sizeof *w.k);
    w.v = from->v;
    w.out = calloc((size_t)(from->tokens * out_width(s)), sizeof *w.out);
    if (!w.q || !w.k || !w.out) abort();
    memcpy(w.q, from->q, (size_t)(from->tokens * q_width(s)) * sizeof *w.q);
    memcpy(w.k, from->k, (size_t)(from->tokens * k_width(s)) * sizeof *w.k);
    static const int32_t zeros[STEP_ROWS_MAX];
    w.sequence = (StepSequence){.rows = from->tokens,
        .tables = from->tables,
        .tokens = zeros,
        .span_count = from->span_count,
        .spans = from->spans};
    return w;
}

static void whole_free(Backend *backend, Whole *w) {
    backend->ops->release(backend, w->cache.memory);
    free(w->q);
    free(w->k);
}

/* Rows of the step: their keys and values, or what they read. */
static void attend_part(Backend *backend, const Bench *b, const Whole *w, int first, int rows, bool keys) {
    StepRows memory;
    const Step own = step_rows(step_of(1, &w->sequence), first, rows, &memory);
    Attention op = attention_of(b, &w->cache.layer);
    if (keys) {
        op.k = w->k + first * k_width(b->shape);
        op.v = w->v + first * v_width(b->shape);
    } else {
        op.q = w->q + first * q_width(b->shape);
        op.out = w->out + first * out_width(b->shape);
    }
    backend->ops->begin(backend, &own);
    backend->ops->attention(backend, &op);
}

/* Attention in one step, and in slices of `rows` rows, equal bits. */
static void check_slices(const char *name, int threads, const Case *c, int rows) {
    Bench b = bench_make(&c->shape);
    Sequence *seq = &b.sequence[0];
    Error error = {0};
    seq->span_count = c->count;
    memcpy(seq->spans, c->spans, sizeof c->spans);
    Backend *backend = open_backend(name, threads, false, seq->tokens);
    if (backend && backend->ops->set_rows) {
        Whole whole = whole_make(backend, &b);
        Attention op = attention_of(&b, &whole.cache.layer);
        op.q = whole.q;
        op.k = whole.k;
        op.v = whole.v;
        op.out = whole.out;
        backend->ops->begin(backend, step_of(1, &whole.sequence));
        backend->ops->attention(backend, &op);
        whole_free(backend, &whole);
        Whole parts = whole_make(backend, &b);
        for (int keys = 1; keys >= 0; keys--)
            for (int first = 0; first < seq->tokens; first += rows)
                attend_part(backend, &b, &parts, first, seq->tokens - first < rows ? seq->tokens - first : rows, keys);
        TEST_MSG(backend->ops->wait(backend, backend->ops->submit(backend), &error), "%s", error.text);
        TEST_MSG(same_bits(whole.out, parts.out, (int64_t)seq->tokens * out_width(b.shape)),
            "%s: %s: %d threads, slices of %d rows", name, c->shape.name, threads, rows);
        whole_free(backend, &parts);
        free(whole.out);
        free(parts.out);
    }
    backend_close(backend);
    bench_free(&b);
}

static void check_all_slices(void) {
    static const Case sliced[] = {
        {{"slices of a span", 3, 3, 72, 72, DTYPE_F16, 140, 0, 0, ROPE_HALF, 72, NORM_HEAD, false, false}, 1,
            {{0, 140}}},
        {{"slices of a long span", 1, 1, 32, 32, DTYPE_F32, 2300, 0, 0, PLAIN, 0, NO_NORM, false, false}, 1,
            {{0, 2300}}},
        {{"slices of spans, windows", 4, 2, 32, 32, DTYPE_F16, 300, 40, 0, ROPE_HALF, 32, NORM_FULL, false, false}, 3,
            {{0, 64}, {64, 100}, {100, 300}}},
    };
    for (size_t i = 0; i < COUNT_OF(sliced); i++)
        for (size_t n = 0; n <= COUNT_OF(vector_names); n++) {
            const char *name = n ? vector_names[n - 1] : "ref";
            check_slices(name, 1, &sliced[i], 64);
            check_slices(name, 2, &sliced[i], i == 1 ? 500 : 1);
            check_slices(name, 3, &sliced[i], 23);
        }
}

int main(void) {
    check_all_slices();
    check_attention_range();
    check_chunked();
    for (size_t i = 0; i < COUNT_OF(cases); i++) check_case(&cases[i], SPANS_IN_WINDOW, false);
    check_case(&cases[2], SPANS_IGNORED, false);
    check_case(&cases[3], SPANS_WHOLE, false);
    check_case(&cases[4], SPANS_IGNORED, false);
    check_case(&cases[4], SPANS_IGNORED, true);
    return test_done();
}
