/* Attention of every vector backend against the reference, and against itself: a row's result is the same, bit for bit,
 * in whatever steps its sequence is cut, beside whichever strangers, with any number of threads. Cache memory starts as
 * NaN, so that a read of anything not written shows. */
#include "ops.h"

enum { TOKENS_MAX = 1300, STRANGERS = 7, ROWS_MAX = 640, PAGES = 64, THREADS_MAX = 4 };

typedef struct Shape {
    const char *name;
    int heads, kv_heads, head_dim, value_dim;
    DType dtype;
    int tokens;
    int window;
    float softcap;
    enum { PLAIN, ROPE_HALF, ROPE_INTERLEAVED } rope;
    int rope_dims;
    enum { NO_NORM, NORM_HEAD, NORM_FULL } norm;
    bool sinks;
} Shape;

static const Shape shapes[] = {
    {"one head", 1, 1, 16, 16, DTYPE_F16, 40, 0, 0, PLAIN, 0, NO_NORM, false},
    {"groups of 7", 14, 2, 64, 64, DTYPE_F16, 300, 0, 0, ROPE_HALF, 64, NO_NORM, false},
    {"groups of 6, 128 wide", 6, 1, 128, 128, DTYPE_F16, 200, 0, 0, ROPE_HALF, 128, NORM_HEAD, false},
    {"no groups, full norm", 4, 4, 32, 32, DTYPE_F32, 200, 0, 0, ROPE_HALF, 32, NORM_FULL, false},
    {"window, softcap, 256 wide", 4, 2, 256, 256, DTYPE_F16, 300, 70, 50, ROPE_HALF, 256, NO_NORM, false},
    {"window of a page", 4, 1, 64, 64, DTYPE_BF16, 700, 128, 0, ROPE_HALF, 64, NORM_HEAD, false},
    {"sinks, small window", 8, 2, 64, 64, DTYPE_F16, 200, 5, 0, ROPE_HALF, 64, NO_NORM, true},
    {"partial interleaved rope", 6, 2, 80, 80, DTYPE_F16, 150, 0, 0, ROPE_INTERLEAVED, 20, NO_NORM, false},
    {"partial rope, values narrower", 8, 2, 96, 40, DTYPE_F32, 300, 0, 0, ROPE_HALF, 24, NO_NORM, false},
    {"values wider, odd widths", 5, 1, 18, 50, DTYPE_F32, 150, 0, 20, ROPE_INTERLEAVED, 18, NORM_HEAD, false},
    {"one kv head for 71", 71, 1, 64, 64, DTYPE_F16, 140, 0, 0, ROPE_HALF, 64, NO_NORM, false},
    {"several spans", 4, 2, 64, 64, DTYPE_F16, 1300, 0, 0, ROPE_HALF, 64, NO_NORM, false},
    {"several spans, window across", 3, 1, 32, 32, DTYPE_F32, 1300, 600, 0, PLAIN, 0, NO_NORM, true},
};

/* One sequence: its inputs, and the outputs of the first way of computing it. */
typedef struct Sequence {
    int tokens;
    float *q, *k, *v;
    int32_t pages[PAGES];
    const int32_t *tables[2];
    int position; /* tokens in the cache */
} Sequence;

typedef struct Bench {
    const Shape *shape;
    Norm q_norm, k_norm;
    Rope rope;
    float *norm_weight, *frequencies, *sinks;
    Sequence sequence[1 + STRANGERS];
} Bench;

static int q_width(const Shape *s) { return s->heads * s->head_dim; }
static int k_width(const Shape *s) { return s->kv_heads * s->head_dim; }
static int v_width(const Shape *s) { return s->kv_heads * s->value_dim; }
static int out_width(const Shape *s) { return s->heads * s->value_dim; }

static Bench bench_make(const Shape *s) {
    Bench b = {.shape = s};
    b.norm_weight = random_floats(q_width(s), 1);
    b.sinks = random_floats(s->heads, 3);
    b.frequencies = random_floats(s->rope_dims / 2, 1);
    for (int i = 0; i < s->rope_dims / 2; i++) b.frequencies[i] = powf(10000, -2.0f * (float)i / (float)s->rope_dims);
    if (s->rope_dims > 4) b.frequencies[1] = 0; /* a pair left alone */
    b.rope = (Rope){
        .dims = s->rope_dims, .interleaved = s->rope == ROPE_INTERLEAVED, .frequencies = b.frequencies, .scale = 1.25f};
    b.q_norm = (Norm){NORM_RMS, s->norm == NORM_FULL ? q_width(s) : s->head_dim, 1e-5f, b.norm_weight, NULL};
    b.k_norm = (Norm){NORM_RMS, s->norm == NORM_FULL ? k_width(s) : s->head_dim, 1e-5f, b.norm_weight, NULL};
    for (int i = 0; i <= STRANGERS; i++) {
        Sequence *q = &b.sequence[i];
        q->tokens = i == 0 ? s->tokens : 1 + (i * 37) % 150;
        q->q = random_floats((int64_t)q->tokens * q_width(s), 2);
        q->k = random_floats((int64_t)q->tokens * k_width(s), 2);
        q->v = random_floats((int64_t)q->tokens * v_width(s), 1);
    }
    return b;
}

static void bench_free(Bench *b) {
    for (int i = 0; i <= STRANGERS; i++) {
        free(b->sequence[i].q);
        free(b->sequence[i].k);
        free(b->sequence[i].v);
    }
    free(b->norm_weight);
    free(b->frequencies);
    free(b->sinks);
}

/* Cache memory for all sequences as the second of two layers, pages dealt in a scattered order. */
typedef struct Cache {
    KvLayer layer;
    uint8_t *memory;
} Cache;

static Cache cache_make(Backend *backend, Bench *b) {
    const Shape *s = b->shape;
    Cache cache = {.layer.layout = {s->kv_heads, s->head_dim, s->value_dim, s->dtype}, .layer.group = 1};
    size_t bytes = backend->ops->kv_layer_bytes(backend, &cache.layer.layout);
    bytes = (bytes + 63) / 64 * 64;
    cache.layer.page_stride = 2 * bytes + 64;
    cache.layer.layer_offset = bytes;
    Error error;
    cache.memory = backend->ops->alloc(backend, PAGES * cache.layer.page_stride, MEMORY_CACHE, &error);
    if (!cache.memory) abort();
    cache.layer.base = cache.memory;
    int dealt = 0;
    for (int i = 0; i <= STRANGERS; i++) {
        Sequence *q = &b->sequence[i];
        q->position = 0;
        q->tables[0] = NULL;
        q->tables[1] = q->pages;
        for (int page = 0; page < PAGES; page++) q->pages[page] = -1;
        for (int page = 0; page * KV_PAGE_TOKENS < q->tokens; page++) {
            q->pages[page] = dealt++ * 29 % PAGES;
            memset(cache.memory + (size_t)q->pages[page] * cache.layer.page_stride + bytes, 0xff, bytes);
        }
    }
    if (dealt > PAGES) abort();
    return cache;
}

/* Appends rows[i] tokens of each sequence in one step (0: not in it); outputs of sequence 0 go to out. */
static void advance(Backend *backend, Bench *b, const Cache *cache, const int rows[1 + STRANGERS], float *out) {
    const Shape *s = b->shape;
    static float q[ROWS_MAX * 5000], k[ROWS_MAX * 1024], v[ROWS_MAX * 1024], y[ROWS_MAX * 5000];
    int32_t positions[ROWS_MAX], tokens[ROWS_MAX] = {0};
    Run runs[1 + STRANGERS];
    Step step = {.tokens = tokens, .positions = positions, .runs = runs, .axes = 1};
    int own = 0;
    for (int n = STRANGERS; n >= 0; n--) { /* the sequence under test in the middle */
        const int i = (n + 4) % (1 + STRANGERS);
        Sequence *seq = &b->sequence[i];
        if (rows[i] == 0) continue;
        if (i == 0) own = step.rows;
        runs[step.run_count++] =
            (Run){.row = step.rows, .rows = rows[i], .position = seq->position, .tables = seq->tables};
        for (int t = 0; t < rows[i]; t++) positions[step.rows + t] = seq->position + t;
        memcpy(q + step.rows * q_width(s), seq->q + seq->position * q_width(s),
            sizeof *q * (size_t)(rows[i] * q_width(s)));
        memcpy(k + step.rows * k_width(s), seq->k + seq->position * k_width(s),
            sizeof *k * (size_t)(rows[i] * k_width(s)));
        memcpy(v + step.rows * v_width(s), seq->v + seq->position * v_width(s),
            sizeof *v * (size_t)(rows[i] * v_width(s)));
        step.rows += rows[i];
        /* pages that the window has left */
        const int oldest = s->window ? seq->position - s->window + 1 : 0;
        for (int page = 0; (page + 1) * KV_PAGE_TOKENS <= oldest; page++) seq->pages[page] = -1;
    }
    const Attention op = {.heads = s->heads,
        .kv = cache->layer,
        .scale = 1.0f / sqrtf((float)s->head_dim),
        .softcap = s->softcap,
        .window = s->window,
        .q_norm = s->norm ? &b->q_norm : NULL,
        .k_norm = s->norm ? &b->k_norm : NULL,
        .norm_full = s->norm == NORM_FULL,
        .rope = s->rope ? &b->rope : NULL,
        .sinks = s->sinks ? b->sinks : NULL,
        .q = q,
        .k = k,
        .v = v,
        .out = y};
    Error error;
    backend->ops->begin(backend, &step);
    backend->ops->attention(backend, &op);
    if (!backend->ops->wait(backend, backend->ops->submit(backend), &error)) TEST_MSG(false, "%s", error.text);
    memcpy(out + b->sequence[0].position * out_width(s), y + own * out_width(s),
        sizeof *y * (size_t)(rows[0] * out_width(s)));
    for (int i = 0; i <= STRANGERS; i++) b->sequence[i].position += rows[i];
}

/* The whole of sequence 0 in steps of `chunk` tokens; with strangers beside it: as many of theirs as there are left. */
static void compute(Backend *backend, Bench *b, int chunk, bool strangers, float *out) {
    Cache cache = cache_make(backend, b);
    while (b->sequence[0].position < b->sequence[0].tokens) {
        int rows[1 + STRANGERS] = {0};
        for (int i = 0; i <= (strangers ? STRANGERS : 0); i++) {
            const int left = b->sequence[i].tokens - b->sequence[i].position, wanted = i == 0 ? chunk : 1 + i * 3 % 8;
            rows[i] = left < wanted ? left : wanted;
        }
        advance(backend, b, &cache, rows, out);
    }
    backend->ops->release(backend, cache.memory);
}

/* Scores are sums of head_dim products of size ≤ 4 scaled by 1/√head_dim: both sides round them to some 1e-6, exp
 * passes that on as a relative error, and the result is a mean of values ≤ 1. With 16-bit pages a key or value that was
 * computed (normed, rotated) may round to the neighbouring number: 2⁻¹¹ or 2⁻⁸ of its size. */
static double tolerance(const Shape *s) {
    if (s->dtype == DTYPE_F32 || (s->rope == PLAIN && s->norm == NO_NORM)) return 2e-5;
    return s->dtype == DTYPE_F16 ? 1e-3 : 8e-3;
}

static void check_shape(const Shape *s, const char *const *names, int name_count) {
    Bench b = bench_make(s);
    const int64_t count = (int64_t)s->tokens * out_width(s);
    float *expected = random_floats(count, 0), *first = random_floats(count, 0), *other = random_floats(count, 0);
    Backend *ref = open_backend("ref", 2, false, ROWS_MAX);
    compute(ref, &b, 128, false, expected);
    compute(ref, &b, 7, true, other);
    TEST_MSG(same_bits(expected, other, count), "ref: %s: steps of 7 beside strangers", s->name);
    backend_close(ref);
    for (int n = 0; n < name_count; n++) {
        Backend *single = open_backend(names[n], 1, false, ROWS_MAX);
        compute(single, &b, 512, false, first);
        const double far = distance(first, expected, count);
        TEST_MSG(far <= tolerance(s), "%s: %s: %g from ref", names[n], s->name, far);
        backend_close(single);
        for (int threads = 1; threads <= THREADS_MAX; threads++) {
            /* More threads than cores make many small steps slow: those are left to few threads. */
            static const struct {
                int chunk;
                bool strangers;
                int threads; /* most */
            } cuts[] = {{1, false, 1}, {1, true, 2}, {7, false, THREADS_MAX}, {100, true, 2}, {128, false, 1},
                {13, true, THREADS_MAX}, {512, false, THREADS_MAX}};
            Backend *backend = open_backend(names[n], threads, false, ROWS_MAX);
            for (size_t i = 0; i < COUNT_OF(cuts); i++) {
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
            const int32_t token = 0, at = position;
            const Run run = {.rows = 1, .position = position, .tables = tables};
            const Step step = {.rows = 1, .tokens = &token, .positions = &at, .run_count = 1, .runs = &run, .axes = 1};
            const Attention op = {.heads = 1,
                .kv = cache.layer,
                .scale = 1,
                .window = 2,
                .rope = &rope,
                .q = q1,
                .k = k1,
                .v = v + 2 * t,
                .out = out + 2 * t};
            backend->ops->begin(backend, &step);
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
    for (size_t i = 0; i < COUNT_OF(shapes); i++) check_shape(&shapes[i], names, count);
    check_far_positions("ref");
    for (int i = 0; i < count; i++) check_far_positions(names[i]);
    printf("%zu shapes × %d vector backends\n", COUNT_OF(shapes), count);
    return test_done();
}
