/* The traced backend: the same bits as the plain one, and lines that count what was done. */
#include "backend/trace.h"
#include "backend/steps.h"
#include "ops.h"

enum { ROWS = 3, COLS = 128, OUT = 96, KV_HEADS = 2, DIM = 16, HEADS = 4, PAGES = 2 };

typedef struct Data {
    uint8_t *codes;
    uint16_t *scales;
    float *x, *norm;
    Weight weight, back; /* OUT × COLS, COLS × OUT */
} Data;

typedef struct Results {
    float embed[ROWS * COLS], norm[ROWS * COLS], matmul[2][ROWS * OUT], glu[ROWS * OUT], add[ROWS * COLS];
    float attention[ROWS * HEADS * DIM], activate[ROWS * COLS], gather[COLS], head[OUT];
} Results;

static const int32_t tokens[ROWS] = {5, 1, 90}, last[] = {ROWS - 1}, pages[PAGES] = {1, 0};

static Data data_make(void) {
    Data d = {malloc(OUT * COLS), malloc(OUT * COLS / 16 * sizeof(uint16_t)), random_floats(ROWS * COLS, 2),
        random_floats(COLS, 1), {0}, {0}};
    if (!d.codes || !d.scales) abort();
    for (int i = 0; i < OUT * COLS; i++) d.codes[i] = (uint8_t)test_random(&ops_seed);
    for (int i = 0; i < OUT * COLS / 16; i++) d.scales[i] = f32_to_bf16(0.01f * test_uniform(&ops_seed));
    d.weight = (Weight){.rows = OUT,
        .cols = COLS,
        .quant = QUANT_AFFINE,
        .bits = 4,
        .group = 32,
        .dtype = DTYPE_BF16,
        .data = d.codes,
        .scales = d.scales,
        .biases = d.scales + OUT * COLS / 32};
    d.back = d.weight;
    d.back.rows = COLS;
    d.back.cols = OUT;
    return d;
}

/* A step of every operation, as a model would walk it. */
static void walk(Backend *b, const Data *d, Results *r) {
    Error error = {0};
    const BackendOps *ops = b->ops;
    const Norm norm = {NORM_RMS, COLS, 1e-5f, d->norm, NULL};
    const KvLayout layout = {
        .kv_heads = KV_HEADS, .head_dim = DIM, .value_dim = DIM, .dtype = b->exact ? DTYPE_F32 : DTYPE_F16};
    const size_t page = ops->kv_layer_bytes(b, &layout);
    uint8_t *cache = ops->alloc(b, PAGES * page, MEMORY_CACHE, &error);
    const int32_t *table = pages;
    const StepSequence sequence = {.rows = ROWS, .tables = &table, .tokens = tokens};
    TEST_MSG(cache != NULL, "%s", error.text);
    ops->begin(b, step_of(1, &sequence));
    TEST(ops->scratch(b, 64) != NULL);
    ops->embed(b, &(Embed){.rows = ROWS, .tokens = tokens, .table = &d->weight, .scale = 0.5f, .out = r->embed});
    ops->norm(b, ROWS, d->x, &norm, r->norm);
    const Matmul matmul = {
        ROWS, 0, d->x, &norm, 2, {&d->weight, &d->weight}, {r->matmul[0], r->matmul[1]}, false, false, 0};
    for (int layer = 0; layer < 2; layer++) ops->matmul(b, &matmul);
    const Glu glu = {ROWS, 0, d->x, NULL, &d->weight, &d->weight, {.kind = ACT_SILU}, r->glu};
    ops->glu(b, &glu);
    memcpy(r->add, d->x, sizeof r->add);
    const MatmulAdd add = {ROWS, 0, r->glu, &d->back, NULL, 0.5f, r->add, NULL};
    ops->matmul_add(b, &add);
    ops->add(b, ROWS, COLS, r->add, d->x, 2, NULL);
    float *q = copy_floats(d->x, ROWS * HEADS * DIM), *k = copy_floats(d->x, ROWS * KV_HEADS * DIM);
    const Attention attention = {.heads = HEADS,
        .kv = {layout, cache, page, 0, 0},
        .scale = 0.25f,
        .q = q,
        .k = k,
        .v = d->x,
        .out = r->attention};
    ops->attention(b, &attention);
    ops->activate(b, ROWS * COLS, d->x, (Activation){.kind = ACT_GELU}, r->activate);
    ops->gather(b, 1, last, r->add, COLS, r->gather);
    const Matmul head = {1, 0, r->gather, &norm, 1, {&d->weight}, {r->head}, false, false, 0};
    ops->matmul(b, &head);
    ops->logits(b, OUT, r->head, 0.5f, 30);
    TEST_MSG(ops->wait(b, ops->submit(b), &error), "%s", error.text);
    ops->release(b, cache);
    free(q);
    free(k);
}

static const TraceLine *find_line(const Backend *b, const char *name) {
    int count;
    const TraceLine *lines = trace_lines(b, &count);
    for (int i = 0; i < count; i++)
        if (!strcmp(lines[i].name, name)) return &lines[i];
    return NULL;
}

static void check_line(const Backend *b, const char *name, int calls, uint64_t bytes, uint64_t operations) {
    const TraceLine *line = find_line(b, name);
    TEST_MSG(line != NULL, "no line %s", name);
    if (!line) return;
    TEST_MSG(line->calls == calls, "%s: %d calls", name, line->calls);
    TEST_MSG(line->bytes == bytes, "%s: %llu bytes", name, (unsigned long long)line->bytes);
    TEST_MSG(line->operations == operations, "%s: %llu operations", name, (unsigned long long)line->operations);
    TEST_MSG(line->ns > 0 || !calls, "%s: %lld ns", name, (long long)line->ns);
}

static void check_lines(const Backend *b, DType dtype) {
    const uint64_t matrix = OUT * COLS / 2 + 2 * (OUT * COLS / 32) * 2, products = 2 * OUT * COLS;
    const uint64_t cache = ROWS * KV_HEADS * 2 * DIM * dtype_bytes(dtype);
    char attention[64];
    snprintf(attention, sizeof attention, "attention 4/2 heads of 16 %s", dtype_name(dtype));
    check_line(b, "embed 128→96 4-bit g32", 1, ROWS * matrix / OUT, 0);
    check_line(b, "norm", 1, 0, 0);
    check_line(b, "matmul 128→96,96 4-bit g32", 2, 4 * matrix, 4 * ROWS * products);
    check_line(b, "glu 128→96,96 4-bit g32", 1, 2 * matrix, 2 * ROWS * products);
    check_line(b, "matmul_add 96→128 4-bit g32", 1, matrix, ROWS * products);
    check_line(b, attention, 1, cache, 2 * (1 + 2 + 3) * HEADS * 2 * DIM); /* each row sees one more */
    check_line(b, "head 128→96 4-bit g32", 1, matrix, products);
    check_line(b, "logits", 1, 0, 0);
}

static void check_backend(const char *name, const Data *d) {
    BackendOptions options = {.cpu = name, .threads = 2, .rows_max = ROWS, .scratch_bytes = 1 << 12};
    Error error = {0};
    Backend *plain = backend_open(&options, &error);
    if (!plain) return; /* not on this machine */
    options.wrap = trace_open;
    Backend *traced = backend_open(&options, &error);
    TEST_MSG(traced != NULL, "%s", error.text);
    if (!traced) return;
    TEST(!strcmp(backend_describe(plain), backend_describe(traced)) && plain->exact == traced->exact);
    TEST(!strcmp(plain->ops->name, traced->ops->name) && plain->rows_max == traced->rows_max);
    Results *r = calloc(2, sizeof *r);
    if (!r) abort();
    walk(plain, d, &r[0]);
    walk(traced, d, &r[1]);
    TEST_MSG(!memcmp(&r[0], &r[1], sizeof *r), "%s: traced results differ", name);
    check_lines(traced, plain->exact ? DTYPE_F32 : DTYPE_F16);
    walk(traced, d, &r[1]); /* a step counts for itself */
    check_lines(traced, plain->exact ? DTYPE_F32 : DTYPE_F16);
    traced->ops->begin(traced, step_of_rows(1, 0));
    check_line(traced, "head 128→96 4-bit g32", 0, 0, 0);
    free(r);
    backend_close(plain);
    backend_close(traced);
}

int main(void) {
    Data d = data_make();
    check_backend("ref", &d);
    for (size_t i = 0; i < COUNT_OF(vector_names); i++) check_backend(vector_names[i], &d);
    const BackendOptions wrong = {.cpu = "z80", .rows_max = 1, .wrap = trace_open};
    Error error = {0};
    TEST(!backend_open(&wrong, &error) && error.code == ERROR_USAGE && strstr(error.text, "z80"));
    free(d.codes);
    free(d.scales);
    free(d.x);
    free(d.norm);
    return test_done();
}
