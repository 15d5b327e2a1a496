/* Attention of every vector backend against the reference, and against itself: a row's result is the same, bit for bit,
 * in whatever steps its sequence is cut, beside whichever strangers, with any number of threads. */
#include "backend/steps.h"
#include "attend.h"

static const Shape shapes[] = {
    {"one head", 1, 1, 16, 16, DTYPE_F16, 40, 0, 0, PLAIN, 0, NO_NORM, false, false},
    {"groups of 7", 14, 2, 64, 64, DTYPE_F16, 300, 0, 0, ROPE_HALF, 64, NO_NORM, false, false},
    {"groups of 6, 128 wide", 6, 1, 128, 128, DTYPE_F16, 200, 0, 0, ROPE_HALF, 128, NORM_HEAD, false, false},
    {"no groups, full norm", 4, 4, 32, 32, DTYPE_F32, 200, 0, 0, ROPE_HALF, 32, NORM_FULL, false, false},
    {"window, softcap, 256 wide", 4, 2, 256, 256, DTYPE_F16, 300, 70, 50, ROPE_HALF, 256, NO_NORM, false, false},
    {"window of a page", 4, 1, 64, 64, DTYPE_BF16, 700, 128, 0, ROPE_HALF, 64, NORM_HEAD, false, false},
    {"sinks, small window", 8, 2, 64, 64, DTYPE_F16, 200, 5, 0, ROPE_HALF, 64, NO_NORM, true, false},
    {"partial interleaved rope", 6, 2, 80, 80, DTYPE_F16, 150, 0, 0, ROPE_INTERLEAVED, 20, NO_NORM, false, false},
    {"partial rope, values narrower", 8, 2, 96, 40, DTYPE_F32, 300, 0, 0, ROPE_HALF, 24, NO_NORM, false, false},
    {"values wider, odd widths", 5, 1, 18, 50, DTYPE_F32, 150, 0, 20, ROPE_INTERLEAVED, 18, NORM_HEAD, false, false},
    {"groups of 4, 128 wide", 8, 2, 128, 128, DTYPE_F16, 700, 0, 0, ROPE_HALF, 128, NO_NORM, false, false},
    {"window, sinks, softcap, 128 wide", 8, 2, 128, 128, DTYPE_F16, 500, 150, 30, ROPE_HALF, 128, NO_NORM, true, false},
    {"groups of 3, 256 wide", 3, 1, 256, 256, DTYPE_F16, 600, 0, 0, ROPE_HALF, 256, NORM_HEAD, false, false},
    {"32 kv heads", 64, 32, 64, 64, DTYPE_F16, 70, 0, 0, ROPE_HALF, 64, NORM_HEAD, false, false},
    {"one kv head for 71", 71, 1, 64, 64, DTYPE_F16, 140, 0, 0, ROPE_HALF, 64, NO_NORM, false, false},
    {"72 wide", 6, 2, 72, 72, DTYPE_F16, 300, 0, 0, ROPE_HALF, 72, NO_NORM, false, false},
    {"112 wide, softcap, sinks", 4, 1, 112, 112, DTYPE_F16, 260, 0, 30, ROPE_HALF, 112, NORM_HEAD, true, false},
    {"192 wide, window", 3, 1, 192, 192, DTYPE_F16, 300, 150, 0, ROPE_HALF, 64, NO_NORM, false, false},
    {"several spans", 4, 2, 64, 64, DTYPE_F16, 2300, 0, 0, ROPE_HALF, 64, NO_NORM, false, false},
    {"full norm, 64 wide", 6, 3, 64, 64, DTYPE_F16, 150, 0, 0, ROPE_HALF, 64, NORM_FULL, false, false},
    {"full norm over 2,560", 20, 10, 128, 128, DTYPE_F16, 40, 0, 0, ROPE_HALF, 128, NORM_FULL, false, false},
    {"32 kv heads, several spans", 32, 32, 64, 64, DTYPE_F16, 1060, 0, 0, ROPE_HALF, 64, NO_NORM, false, false},
    {"groups of 3, window across spans", 3, 1, 128, 128, DTYPE_F16, 1400, 1150, 20, ROPE_HALF, 128, NO_NORM, true,
        false},
    {"latents", 9, 1, 64, 512, DTYPE_F16, 150, 0, 0, ROPE_INTERLEAVED, 64, NO_NORM, false, true},
    {"latents for 40, softcap, sinks", 40, 1, 32, 64, DTYPE_F16, 140, 0, 20, ROPE_HALF, 32, NO_NORM, true, true},
    {"latents, spans of 2 slices", 1, 1, 16, 32, DTYPE_F16, 2300, 0, 0, ROPE_HALF, 16, NO_NORM, false, true},
    {"512 wide", 9, 1, 512, 512, DTYPE_F16, 140, 0, 0, ROPE_HALF, 128, NORM_HEAD, false, false},
    {"320 wide, values of 64, window", 6, 2, 320, 64, DTYPE_F16, 200, 70, 0, ROPE_HALF, 320, NO_NORM, false, false},
    {"several spans, window across", 3, 1, 32, 32, DTYPE_F32, 2300, 1100, 0, PLAIN, 0, NO_NORM, true, false},
    {"groups of 8, sinks, window", 16, 2, 64, 64, DTYPE_F16, 200, 130, 0, ROPE_HALF, 64, NO_NORM, true, false},
    {"groups of 8, half of a head rotated", 8, 1, 128, 128, DTYPE_F16, 150, 0, 0, ROPE_HALF, 64, NORM_HEAD, false,
        false},
    {"a quarter rotated, 256 wide", 8, 2, 256, 256, DTYPE_F16, 150, 0, 0, ROPE_HALF, 64, NORM_HEAD, false, false},
    {"192 of 256 rotated, full norm", 8, 2, 256, 256, DTYPE_F16, 140, 0, 0, ROPE_HALF, 192, NORM_FULL, false, false},
    {"groups of 8, none rotated", 8, 1, 64, 64, DTYPE_F16, 140, 0, 0, PLAIN, 0, NORM_HEAD, false, false},
};

/* ALiBi. */
static const struct {
    Shape shape;
    int alibi;
} sloped[] = {
    {{"slopes, several spans", 6, 2, 64, 64, DTYPE_F16, 1500, 0, 0, PLAIN, 0, NO_NORM, false, false}, SLOPES},
    {{"slopes, odd widths, window", 4, 4, 40, 24, DTYPE_F32, 300, 70, 0, PLAIN, 0, NORM_HEAD, true, false}, SLOPES},
    {{"slopes in bf16", 8, 8, 32, 32, DTYPE_BF16, 700, 0, 0, PLAIN, 0, NO_NORM, false, false}, SLOPES_BF16},
};

/* Rows that read some keys alone. */
static const struct {
    Shape shape;
    KeySelection selection;
} sparse[] = {
    {{"block-sparse by pattern", 6, 2, 64, 64, DTYPE_F16, 700, 0, 0, ROPE_HALF, 64, NO_NORM, false, false},
        {.block = 64, .local = 2, .stride = 5, .head_step = 1}},
    {{"blocks of odd sizes by pattern", 4, 4, 32, 32, DTYPE_F32, 300, 0, 0, PLAIN, 0, NO_NORM, true, false},
        {.block = 23, .local = 1, .stride = 3}},
    {{"chosen keys", 8, 1, 64, 64, DTYPE_F16, 1500, 0, 0, ROPE_HALF, 64, NO_NORM, false, false},
        {.block = 1, .groups = 1, .top_k = 40}},
    {{"chosen blocks for each kv head", 6, 3, 64, 64, DTYPE_BF16, 700, 0, 0, ROPE_HALF, 32, NORM_HEAD, false, false},
        {.block = 50, .groups = 3, .top_k = 4}},
    {{"chosen keys of latents", 7, 1, 32, 64, DTYPE_F32, 400, 0, 0, ROPE_INTERLEAVED, 32, NO_NORM, false, true},
        {.block = 1, .groups = 1, .top_k = 9}},
};

/* Rows that lie behind their prompts, in steps of one and of some, alone and beside strangers of both kinds.
 * number: of the shape, for the sample. */
static void check_generated(Bench *b, const char *name, const float *expected, size_t number) {
    static const struct {
        int chunk;
        bool strangers;
    } cuts[] = {{1, false}, {1, true}, {3, true}, {7, false}, {13, true}, {50, true}};
    const Shape *s = b->shape;
    const int64_t count = (int64_t)s->tokens * out_width(s);
    float *first = random_floats(count, 0), *other = random_floats(count, 0);
    Backend *backend = open_backend(name, 1, false, ROWS_MAX);
    b->decode_rows = true;
    for (size_t i = 0; backend->decode_rows_max && i < COUNT_OF(cuts); i++) {
        if (i > 0 && test_sampled() && (i + number) % 3) continue;
        float *out = i == 0 ? first : other;
        memset(out, 0, (size_t)count * sizeof *out);
        compute(backend, b, cuts[i].chunk, cuts[i].strangers, out);
        const double far = distance(out, expected, count);
        TEST_MSG(far <= tolerance_on(name, s), "%s: %s: generated: %g from ref", name, s->name, far);
        TEST_MSG(same_bits(first, out, count), "%s: %s: generated: steps of %d%s: %g away", name, s->name,
            cuts[i].chunk, cuts[i].strangers ? " beside strangers" : "", distance(out, first, count));
    }
    b->decode_rows = false;
    backend_close(backend);
    free(first);
    free(other);
}

/* number: of the shape, for the sample that sanitizers get. selection: NULL: rows read all visible keys. */
static void check_shape(const Shape *s, const KeySelection *selection, bool chunked, int alibi, size_t number,
    const char *const *names, int name_count) {
    Bench b = bench_make(s);
    b.alibi = alibi;
    if (selection) bench_select(&b, selection);
    b.sequence[0].chunked = chunked;
    const int64_t count = (int64_t)s->tokens * out_width(s);
    float *expected = random_floats(count, 0), *first = random_floats(count, 0), *other = random_floats(count, 0);
    Backend *ref = open_backend("ref", 2, false, ROWS_MAX);
    compute(ref, &b, 128, false, expected);
    compute(ref, &b, 7, true, other);
    TEST_MSG(same_bits(expected, other, count), "ref: %s: steps of 7 beside strangers", s->name);
    backend_close(ref);
    for (int n = 0; n < name_count; n++) {
        Backend *single = open_backend(names[n], 1, false, ROWS_MAX);
        if (selection && !single->ops->index_select) {
            backend_close(single);
            continue;
        }
        compute(single, &b, 512, false, first);
        const double far = distance(first, expected, count);
        TEST_MSG(far <= tolerance_on(names[n], s), "%s: %s: %g from ref", names[n], s->name, far);
        backend_close(single);
        check_generated(&b, names[n], expected, number);
        for (int threads = 1; threads <= (is_device(names[n]) ? 1 : THREADS_MAX); threads++) {
            /* More threads than cores make many small steps slow: those are left to few threads. */
            static const struct {
                int chunk;
                bool strangers;
                int threads; /* most */
            } cuts[] = {{1, false, 1}, {1, true, 2}, {7, false, THREADS_MAX}, {100, true, 2}, {128, false, 1},
                {13, true, THREADS_MAX}, {512, false, THREADS_MAX}};
            Backend *backend = open_backend(names[n], threads, false, ROWS_MAX);
            for (size_t i = 0; i < COUNT_OF(cuts); i++) {
                if (test_sampled() && (i + number + (size_t)threads) % 4) continue;
                if (threads > cuts[i].threads || (cuts[i].chunk == 1 && s->tokens > 400 && cuts[i].strangers)) continue;
                memset(other, 0, (size_t)count * sizeof *other);
                compute(backend, &b, cuts[i].chunk, cuts[i].strangers, other);
                TEST_MSG(same_bits(first, other, count), "%s: %s: %d threads, steps of %d%s: %g away", names[n],
                    s->name, threads, cuts[i].chunk, cuts[i].strangers ? " beside strangers" : "",
                    distance(other, first, count));
            }
            backend_close(backend);
        }
    }
    free(expected);
    free(first);
    free(other);
    bench_free(&b);
}

/* Angles at positions up to 131072 against double arithmetic on the same f32 angle. One head, one key: out is v, so the
 * rotation is read from the scores: two keys at distance d, a query, and the ratio of their weights. */
static void check_far_positions(const char *name) {
    enum { WIDTH = 2 };
    Backend *backend = open_backend(name, 1, false, 1);
    const float frequency = 0.37f;
    Cache cache = {.layer.layout = {1, WIDTH, 2, DTYPE_F32}};
    cache.layer.page_stride = backend->ops->kv_layer_bytes(backend, &cache.layer.layout);
    Error error;
    cache.layer.base = backend->ops->alloc(backend, cache.layer.page_stride, MEMORY_CACHE, &error);
    static int32_t pages[1200]; /* all the same page */
    const int32_t *tables[1] = {pages};
    const Rope rope = {.dims = WIDTH, .frequencies = &frequency, .scale = 1};
    static const int starts[] = {0, 1000, 32766, 131070};
    for (size_t i = 0; i < COUNT_OF(starts); i++) {
        float q[4] = {1, 0, 1, 0}, k[4] = {1, 0, 0.5f, 0.25f}, v[4] = {1, 0, 0, 1}, out[4];
        for (int t = 0; t < 2; t++) {
            const int position = starts[i] + t;
            float q1[2] = {q[2 * t], q[2 * t + 1]}, k1[2] = {k[2 * t], k[2 * t + 1]};
            const int32_t token = 0;
            const StepSequence sequence = {.rows = 1, .position = position, .tables = tables, .tokens = &token};
            const Attention op = {.heads = 1,
                .kv = cache.layer,
                .scale = 1,
                .window = 2,
                .rope = &rope,
                .q = q1,
                .k = k1,
                .v = v + 2 * t,
                .out = out + 2 * t};
            backend->ops->begin(backend, step_of(1, &sequence));
            backend->ops->attention(backend, &op);
        }
        const double a0 = (double)((float)starts[i] * frequency), a1 = (double)((float)(starts[i] + 1) * frequency);
        const double s0 = cos(a1 - a0),
                     s1 = 0.5; /* q·k is by angle difference; the second is at the query's own angle */
        const double p0 = exp(s0) / (exp(s0) + exp(s1));
        TEST_MSG(fabs(out[2] - p0) < 1e-6 && fabs(out[3] - (1 - p0)) < 1e-6, "%s: position %d: %g, expected %g", name,
            starts[i], out[2], p0);
    }
    backend->ops->release(backend, cache.layer.base);
    backend_close(backend);
}

int main(void) {
    const char *names[COUNT_OF(vector_names)];
    int count = 0;
    for (size_t i = 0; i < COUNT_OF(vector_names); i++) {
        Backend *backend = open_backend(vector_names[i], 1, false, 1);
        if (backend) names[count++] = vector_names[i];
        backend_close(backend);
    }
    for (size_t i = 0; i < COUNT_OF(shapes); i++) check_shape(&shapes[i], NULL, false, NO_SLOPES, i, names, count);
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        if (shapes[i].window > KV_PAGE_TOKENS && (!test_sampled() || shapes[i].tokens < 1000))
            check_shape(&shapes[i], NULL, true, NO_SLOPES, i, names, count);
    for (size_t i = 0; i < COUNT_OF(sparse); i++)
        check_shape(&sparse[i].shape, &sparse[i].selection, false, NO_SLOPES, i, names, count);
    for (size_t i = 0; i < COUNT_OF(sloped); i++)
        check_shape(&sloped[i].shape, NULL, false, sloped[i].alibi, i, names, count);
    check_far_positions("ref");
    for (int i = 0; i < count; i++) check_far_positions(names[i]);
    printf("%zu shapes × %d vector backends\n", COUNT_OF(shapes), count);
    return test_done();
}
