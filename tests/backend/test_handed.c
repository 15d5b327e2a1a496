/* ffn_block on a device, whose gated product leaves its result as the inputs of the next: the same bits as glu and
 * matmul_add in turn with the result copied in between, in range and where f16 would overflow or lose much, for prefill
 * rows and decode rows. Nothing to do where there is no GPU. */
#include "backend/plugin.h"
#include "backend/steps.h"
#include "matrices.h"

enum { WIDTH = 256, INNER = 9 * 64, ROWS_MAX = 32 };

typedef struct Device {
    Backend *backend;
    Weight gate, up, down;
    float *x, *inner, *other, *y;
} Device;

static Weight weight_bind(Backend *b, int64_t rows, int64_t cols, float scale) {
    float *data = random_floats((int)(rows * cols), scale);
    Weight w = {.rows = rows, .cols = cols, .quant = QUANT_NONE, .dtype = DTYPE_F32, .data = data};
    Error error = {0};
    TEST_MSG(b->ops->bind(b, &w, &error), "%s", error.text);
    free(data);
    return w;
}
static Matrix coded_bind(Backend *b, int64_t rows, int64_t cols) {
    Matrix m = matrix_make(&kinds[0], rows, cols, false);
    Error error = {0};
    TEST_MSG(b->ops->bind(b, &m.weight, &error), "%s", error.text);
    return m;
}
static float *take(Backend *b, int64_t count) {
    Error error = {0};
    float *memory = b->ops->alloc(b, (size_t)count * sizeof *memory, MEMORY_STEP, &error);
    TEST_MSG(memory != NULL, "%s", error.text);
    return memory;
}

/* handed: the two products as one operation; otherwise in turn, with the result copied in between. */
static void run(const Device *d, const float *x, int rows, int decode_rows, bool handed, float *result) {
    Backend *b = d->backend;
    const size_t bytes = (size_t)rows * INNER * sizeof(float), out = (size_t)rows * WIDTH * sizeof(float);
    float zeros[ROWS_MAX * WIDTH] = {0};
    b->ops->upload(b, d->x, x, out);
    b->ops->upload(b, d->y, zeros, out);
    FfnBlock op = {
        {.rows = rows, .decode_rows = decode_rows, .x = d->x, .gate = &d->gate, .up = &d->up, .out = d->inner},
        {.rows = rows, .decode_rows = decode_rows, .x = d->inner, .weight = &d->down, .scale = 1, .residual = d->y}};
    if (handed) {
        b->ops->ffn_block(b, &op);
    } else {
        b->ops->glu(b, &op.glu);
        b->ops->copy(b, d->other, d->inner, bytes);
        op.down.x = d->other;
        b->ops->matmul_add(b, &op.down);
    }
    b->ops->download(b, result, d->y, out);
}

static void check(const Device *d, int rows, int decode_rows, float scale) {
    float *x = random_floats(rows * WIDTH, scale), one[ROWS_MAX * WIDTH], other[ROWS_MAX * WIDTH];
    run(d, x, rows, decode_rows, true, one);
    run(d, x, rows, decode_rows, false, other);
    TEST_MSG(same_bits(one, other, rows * WIDTH), "%d rows of inputs times %g", rows, (double)scale);
    TEST_MSG(isfinite(one[0]) && one[0] != 0, "%d rows of inputs times %g: %g", rows, (double)scale, (double)one[0]);
    free(x);
}

int main(void) {
    static const float scales[] = {1e-3f, 0.1f, 1, 30, 1e3f, 1e5f};
    Error error = {0};
    const BackendOptions options = {.device = "cuda", .cpu = "auto", .rows_max = ROWS_MAX, .scratch_bytes = 1 << 10};
    Device d = {.backend = backend_open(&options, &error)};
    TEST_MSG((d.backend != NULL) == plugin_usable(), "%s", error.text);
    if (!d.backend) test_skip_backend("cuda");
    if (!d.backend) return test_done();
    d.gate = weight_bind(d.backend, INNER, WIDTH, 1);
    d.up = weight_bind(d.backend, INNER, WIDTH, 1);
    d.down = weight_bind(d.backend, WIDTH, INNER, 1);
    Matrix gate = coded_bind(d.backend, INNER, WIDTH), up = coded_bind(d.backend, INNER, WIDTH),
           down = coded_bind(d.backend, WIDTH, INNER);
    d.x = take(d.backend, ROWS_MAX * WIDTH);
    d.y = take(d.backend, ROWS_MAX * WIDTH);
    d.inner = take(d.backend, ROWS_MAX * INNER);
    d.other = take(d.backend, ROWS_MAX * INNER);
    Device coded = d;
    coded.gate = gate.weight, coded.up = up.weight, coded.down = down.weight;
    d.backend->ops->begin(d.backend, step_of_rows(ROWS_MAX, 0));
    for (int rows = 1; rows <= ROWS_MAX; rows++)
        for (size_t i = 0; i < COUNT_OF(scales); i++) {
            if (rows <= 4) check(&d, rows, 0, scales[i]);
            check(&coded, rows, rows, scales[i]);
        }
    TEST_MSG(d.backend->ops->wait(d.backend, d.backend->ops->submit(d.backend), &error), "%s", error.text);
    backend_close(d.backend);
    matrix_free(&gate);
    matrix_free(&up);
    matrix_free(&down);
    return test_done();
}
