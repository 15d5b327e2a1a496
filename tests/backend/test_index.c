/* The sparse indexer of every backend that has one: what it chooses is the best by the definition, whatever the cut
 * into steps, the number of threads and other sequences. */
#include "ops.h"
#include "steps.h"

enum { PAGES = 16, ROWS_MAX = 320, STRANGER_TOKENS = 130, NUMBERS_MAX = 128 };

typedef struct Shape {
    const char *name;
    int heads, head_dim, rope_dims;
    bool weighted, interleaved;
    int block, local, top_k, tokens;
} Shape;

static const Shape shapes[] = {
    {"keys, one choice of all heads", 13, 64, 32, true, false, 1, 0, 17, 300},
    {"keys, as many as there are", 4, 32, 32, true, true, 1, 0, 128, 128},
    {"blocks, a choice of each head", 3, 40, 20, false, false, 7, 2, 5, 290},
    {"blocks of more than a page", 2, 16, 0, false, false, 150, 1, 2, 600},
    {"one key", 5, 24, 8, true, true, 1, 1, 1, 140},
};

typedef struct Bench {
    const Shape *shape;
    float *q, *k, *weights; /* of the sequence, then of a stranger's */
    float *frequencies;
    Rope rope;
} Bench;

static int groups_of(const Shape *s) { return s->weighted ? 1 : s->heads; }

static Bench bench_make(const Shape *s) {
    const int64_t rows = s->tokens + STRANGER_TOKENS;
    Bench b = {.shape = s,
        .q = random_floats(rows * s->heads * s->head_dim, 2),
        .k = random_floats(rows * s->head_dim, 2),
        .weights = random_floats(rows * s->heads, 1),
        .frequencies = random_floats(s->rope_dims / 2 + 1, 1)};
    b.rope = (Rope){.dims = s->rope_dims, .interleaved = s->interleaved, .frequencies = b.frequencies, .scale = 1};
    return b;
}

static void bench_free(Bench *b) {
    free(b->q);
    free(b->k);
    free(b->weights);
    free(b->frequencies);
}

/* Two sequences in one cache, whose pages lie in turns; the first is the one under test. */
typedef struct Cache {
    KvLayer layer;
    int32_t pages[2][PAGES];
    const int32_t *tables[2][1];
    int position[2];
} Cache;

static void cache_make(Backend *backend, const Shape *s, Cache *c) {
    Error error;
    const DType dtype = backend->exact ? DTYPE_F32 : DTYPE_F16;
    *c = (Cache){.layer.layout = {.kv_heads = 1, .head_dim = s->head_dim, .dtype = dtype}};
    c->layer.page_stride = (backend->ops->kv_layer_bytes(backend, &c->layer.layout) + 63) / 64 * 64;
    c->layer.base = backend->ops->alloc(backend, 2 * PAGES * c->layer.page_stride, MEMORY_CACHE, &error);
    if (!c->layer.base) abort();
    for (int i = 0; i < 2 * PAGES; i++) c->pages[i % 2][i / 2] = (i * 7 + 3) % (2 * PAGES);
    for (int i = 0; i < 2; i++) c->tables[i][0] = c->pages[i];
}

/* The next rows[i] tokens of each sequence in one step; what the first chooses goes to chosen. */
static void advance(Backend *backend, const Bench *b, Cache *c, const int rows[2], int32_t *chosen) {
    static float q[ROWS_MAX * 1024], k[ROWS_MAX * 64], weights[ROWS_MAX * 16];
    static int32_t tokens[ROWS_MAX], out[ROWS_MAX * NUMBERS_MAX];
    const Shape *s = b->shape;
    const int width = groups_of(s) * s->top_k;
    StepSequence sequences[2];
    int count = 0, first = 0;
    int64_t at = 0;
    for (int i = 1; i >= 0; i--) { /* the stranger first */
        if (rows[i] == 0) continue;
        const int64_t from = c->position[i] + (i ? s->tokens : 0), each = (int64_t)s->heads * s->head_dim;
        memcpy(q + at * each, b->q + from * each, (size_t)(rows[i] * each) * sizeof *q);
        memcpy(k + at * s->head_dim, b->k + from * s->head_dim, (size_t)(rows[i] * s->head_dim) * sizeof *k);
        memcpy(weights + at * s->heads, b->weights + from * s->heads, (size_t)(rows[i] * s->heads) * sizeof *weights);
        sequences[count++] =
            (StepSequence){.rows = rows[i], .position = c->position[i], .tables = c->tables[i], .tokens = tokens};
        if (i == 0) first = (int)at;
        at += rows[i];
    }
    const IndexSelect op = {.kv = c->layer,
        .heads = s->heads,
        .block = s->block,
        .local = s->local,
        .top_k = s->top_k,
        .rope = s->rope_dims ? &b->rope : NULL,
        .q = q,
        .k = k,
        .weights = s->weighted ? weights : NULL,
        .chosen = out};
    Error error;
    backend->ops->begin(backend, step_of(count, sequences));
    backend->ops->index_select(backend, &op);
    if (!backend->ops->wait(backend, backend->ops->submit(backend), &error)) TEST_MSG(false, "%s", error.text);
    memcpy(chosen + (int64_t)c->position[0] * width, out + first * width, (size_t)(rows[0] * width) * sizeof *chosen);
    for (int i = 0; i < 2; i++) c->position[i] += rows[i];
}

static void compute(Backend *backend, const Bench *b, int chunk, bool stranger, int32_t *chosen) {
    Cache c;
    cache_make(backend, b->shape, &c);
    while (c.position[0] < b->shape->tokens) {
        const int left = b->shape->tokens - c.position[0], own = chunk < left ? chunk : left;
        const int other = stranger && c.position[1] + 3 <= STRANGER_TOKENS ? 3 : 0;
        advance(backend, b, &c, (const int[2]){own, other}, chosen);
    }
    backend->ops->release(backend, c.layer.base);
}

/* ---- the definition, in double ---- */

static void rotate(const Bench *b, int position, const float *from, double *head) {
    const int dims = b->shape->rope_dims, half = dims / 2;
    for (int i = 0; i < b->shape->head_dim; i++) head[i] = (double)from[i];
    for (int i = 0; i < half; i++) {
        const double angle = (double)((float)position * b->frequencies[i]), c = cos(angle), s = sin(angle);
        const int first = b->shape->interleaved ? 2 * i : i, second = b->shape->interleaved ? 2 * i + 1 : i + half;
        const double x = head[first], y = head[second];
        head[first] = x * c - y * s;
        head[second] = x * s + y * c;
    }
}

static double score_of(const Bench *b, int row, int group, int key) {
    const Shape *s = b->shape;
    double q[64], k[64], sum = 0;
    rotate(b, key, b->k + (int64_t)key * s->head_dim, k);
    for (int h = s->weighted ? 0 : group; h < (s->weighted ? s->heads : group + 1); h++) {
        double dot = 0;
        rotate(b, row, b->q + ((int64_t)row * s->heads + h) * s->head_dim, q);
        for (int i = 0; i < s->head_dim; i++) dot += q[i] * k[i];
        sum += !s->weighted ? dot : dot > 0 ? dot * (double)b->weights[(int64_t)row * s->heads + h] : 0;
    }
    return sum;
}

static double block_score(const Bench *b, int row, int group, int block) {
    const int size = b->shape->block, end = (block + 1) * size;
    double score = -INFINITY;
    for (int key = block * size; key <= row && key < end; key++) score = fmax(score, score_of(b, row, group, key));
    return score;
}

/* The choice of a row: ascending, of the right number, with the latest blocks, and no rejected block is better than a
 * chosen one by more than what 16 bits of keys change. */
static void check_row(const Bench *b, const char *name, int row, int group, const int32_t *chosen) {
    const Shape *s = b->shape;
    const int blocks = row / s->block + 1, expected = blocks < s->top_k ? blocks : s->top_k;
    double worst = INFINITY, best = -INFINITY;
    int count = 0;
    while (count < s->top_k && chosen[count] >= 0) count++;
    TEST_MSG(count == expected, "%s: %s: row %d chose %d of %d", name, s->name, row, count, expected);
    for (int i = 1; i < s->top_k; i++)
        TEST(i < count ? chosen[i] > chosen[i - 1] && chosen[i] < blocks : chosen[i] == -1);
    for (int block = 0, i = 0; block < blocks; block++) {
        const bool taken = i < count && chosen[i] == block, latest = block >= blocks - s->local;
        i += taken;
        TEST_MSG(taken || !latest, "%s: %s: row %d lacks block %d", name, s->name, row, block);
        if (!latest && taken) worst = fmin(worst, block_score(b, row, group, block));
        if (!latest && !taken) best = fmax(best, block_score(b, row, group, block));
    }
    const double rounding = 0.001 * s->heads * s->head_dim;
    TEST_MSG(best <= worst + rounding, "%s: %s: row %d rejected %g for %g", name, s->name, row, best, worst);
}

static void check_shape(const Shape *s, const char *name) {
    static const struct {
        int chunk, threads;
        bool stranger;
    } cuts[] = {{1, 2, true}, {7, 1, false}, {64, 4, true}, {300, 3, false}};
    const int width = groups_of(s) * s->top_k;
    const size_t bytes = (size_t)(s->tokens * width) * sizeof(int32_t);
    Bench b = bench_make(s);
    int32_t *first = malloc(bytes), *other = malloc(bytes);
    if (!first || !other) abort();
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        Backend *backend = open_backend(name, cuts[i].threads, false, ROWS_MAX);
        compute(backend, &b, cuts[i].chunk, cuts[i].stranger, i == 0 ? first : other);
        TEST_MSG(i == 0 || !memcmp(first, other, bytes), "%s: %s: steps of %d choose other keys", name, s->name,
            cuts[i].chunk);
        backend_close(backend);
    }
    for (int row = 0; row < s->tokens; row += 1 + row / 16)
        for (int g = 0; g < groups_of(s); g++)
            check_row(&b, name, row, g, first + ((int64_t)row * groups_of(s) + g) * s->top_k);
    free(first);
    free(other);
    bench_free(&b);
}

/* Of equal scores the lower position is chosen. */
static void check_ties(const char *name) {
    enum { TOKENS = 200, TOP = 5 };
    const Shape shape = {"ties", 1, 16, 0, true, false, 1, 0, TOP, TOKENS};
    Bench b = bench_make(&shape);
    int32_t chosen[TOKENS * TOP];
    memset(b.q, 0, TOKENS * 16 * sizeof *b.q);
    Backend *backend = open_backend(name, 2, false, ROWS_MAX);
    compute(backend, &b, 50, false, chosen);
    for (int row = TOP; row < TOKENS; row++)
        for (int i = 0; i < TOP; i++) TEST(chosen[row * TOP + i] == i);
    backend_close(backend);
    bench_free(&b);
}

int main(void) {
    static const char *const names[] = {"ref", "avx2", "avx512", "amx", "neon", "cuda"};
    for (size_t n = 0; n < COUNT_OF(names); n++) {
        Backend *backend = open_backend(names[n], 1, false, 1);
        const bool here = backend && backend->ops->index_select;
        backend_close(backend);
        for (size_t i = 0; here && i < COUNT_OF(shapes); i++) check_shape(&shapes[i], names[n]);
        if (here) check_ties(names[n]);
    }
    return test_done();
}
