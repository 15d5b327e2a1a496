/* Products of prompts' rows on a device: near the exact ones, and the same bits however a prompt is cut into steps; and
 * where a gated product leaves its result to the next one alone, the same bits as otherwise. Nothing to do where there
 * is no GPU. */
#include <math.h>

#include "backend/plugin.h"
#include "backend/steps.h"
#include "matrices.h"

enum { ROWS_MOST = 1500, WEIGHT_ROWS = 16 * 13 + 5 };
static int most_rows = ROWS_MOST; /* fewer on an emulator */

typedef enum Way { STORE, NORMED, ADD, GLU, WAYS } Way;
static const char *const way_names[] = {"stored", "normed", "added", "gated"};

typedef struct Shape {
    const Kind *kind;
    Matrix one, two;
    Norm norm;
    float *weights, *x;
} Shape;

static Shape shape_make(const Kind *kind, int64_t cols) {
    Shape s = {.kind = kind,
        .one = matrix_make(kind, WEIGHT_ROWS, cols, true),
        .two = matrix_make(kind, WEIGHT_ROWS, cols, false),
        .weights = random_floats(cols, 1),
        .x = random_floats(most_rows * cols, 1)};
    s.norm = (Norm){.kind = NORM_RMS, .width = cols, .eps = 1e-5f, .weight = s.weights};
    for (int64_t r = 0; r < most_rows; r++) { /* rows of all sizes */
        const float size = r % 11 == 1 ? 1e5f : r % 11 == 2 ? 1e-3f : 1;
        for (int64_t k = 0; k < cols; k++) s.x[r * cols + k] *= size;
    }
    return s;
}
static void shape_free(Shape *s) {
    matrix_free(&s->one);
    matrix_free(&s->two);
    free(s->weights);
    free(s->x);
}

/* Rows first … first + rows − 1; out and second: of all rows. */
static void run(Backend *b, const Shape *s, Way way, int first, int rows, float *out, float *second) {
    const int64_t width = WEIGHT_ROWS, cols = s->one.weight.cols;
    const float *x = s->x + first * cols;
    out += first * width;
    second += first * width;
    if (way == ADD) {
        for (int64_t i = 0; i < rows * width; i++) out[i] = (float)(i % width % 7);
        b->ops->matmul_add(
            b, &(MatmulAdd){.rows = rows, .x = x, .weight = &s->one.weight, .scale = 0.5f, .residual = out});
    } else if (way == GLU) {
        b->ops->glu(b,
            &(Glu){.rows = rows, .x = x, .norm = &s->norm, .gate = &s->one.weight, .up = &s->two.weight, .out = out});
    } else {
        b->ops->matmul(b,
            &(Matmul){.rows = rows,
                .x = x,
                .norm = way == STORE ? NULL : &s->norm,
                .count = 2,
                .weight = {&s->one.weight, &s->two.weight},
                .out = {out, second}});
    }
}

/* Of every seventh row: how far from the exact product, in parts of Σ |w·x|. */
static double error_of(const Shape *s, const float *out) {
    const Weight *w = &s->one.weight;
    float *row = random_floats(w->cols, 1);
    double worst = 0;
    for (int64_t r = 0; r < w->rows; r++) {
        weight_dequantize_row(w, r, 0, w->cols, row);
        for (int t = 0; t < most_rows; t += 7) {
            double sum = 0, all = 1e-30;
            for (int64_t k = 0; k < w->cols; k++) {
                sum += (double)row[k] * s->x[t * w->cols + k];
                all += fabs((double)row[k] * s->x[t * w->cols + k]);
            }
            worst = fmax(worst, fabs(out[t * w->rows + r] - sum - (w->bias ? w->bias[r] : 0)) / all);
        }
    }
    free(row);
    return worst;
}

/* uniform: in a step with Step.uniform_matmul, whose sums have eight chains instead of two. */
static void check(Backend *b, const Kind *kind, int64_t cols, bool uniform) {
    static const int pieces[] = {1, 7, 33, 64, 65, 129, 300, 700};
    const int64_t count = (int64_t)most_rows * WEIGHT_ROWS;
    Shape s = shape_make(kind, cols);
    float *whole[2] = {random_floats(count, 0), random_floats(count, 0)},
          *cut[2] = {random_floats(count, 0), random_floats(count, 0)};
    Step step = *step_of_rows(most_rows, 0);
    step.uniform_matmul = uniform;
    b->ops->begin(b, &step);
    for (Way way = 0; way < WAYS; way++) {
        run(b, &s, way, 0, most_rows, whole[0], whole[1]);
        if (way == STORE) { /* inputs, scales and weights made of them are rounded to f16: 2^-11 of a term each */
            const double far = error_of(&s, whole[0]);
            TEST_MSG(far < 2e-3, "%s %d bits, %d columns: %g", quant_name(kind->quant), kind->bits, (int)cols, far);
        }
        for (size_t i = 0; i < COUNT_OF(pieces) && pieces[i] < most_rows; i++) {
            const int end = most_rows < 6 * pieces[i] ? most_rows : 6 * pieces[i];
            for (int first = 0; first < end; first += pieces[i])
                run(b, &s, way, first, end - first < pieces[i] ? end - first : pieces[i], cut[0], cut[1]);
            const bool second = way == STORE || way == NORMED;
            TEST_MSG(same_bits(whole[0], cut[0], end * WEIGHT_ROWS) &&
                    (!second || same_bits(whole[1], cut[1], end * WEIGHT_ROWS)),
                "%s %d bits, %d columns, %s%s: pieces of %d rows", quant_name(kind->quant), kind->bits, (int)cols,
                way_names[way], uniform ? ", uniform" : "", pieces[i]);
        }
    }
    Error error = {0};
    TEST_MSG(b->ops->wait(b, b->ops->submit(b), &error), "%s", error.text);
    for (int i = 0; i < 2; i++) {
        free(whole[i]);
        free(cut[i]);
    }
    shape_free(&s);
}

/* ---- what is passed on ---- */

typedef struct Device {
    Backend *backend;
    Matrix gate, up, down;
    float *x, *inner, *y;
} Device;

enum { PASSED_WIDTH = 128, PASSED_INNER = 64 * 9 };

static Matrix matrix_bind(Backend *b, const Kind *kind, int64_t rows, int64_t cols, bool bias) {
    Matrix m = matrix_make(kind, rows, cols, bias);
    Error error = {0};
    TEST_MSG(b->ops->bind(b, &m.weight, &error), "%s", error.text);
    return m;
}
static void matrix_drop(Backend *b, Matrix *m) {
    b->ops->unbind(b, &m->weight);
    matrix_free(m);
}
static float *take(Backend *b, int64_t count) {
    Error error = {0};
    float *memory = b->ops->alloc(b, (size_t)count * sizeof *memory, MEMORY_STEP, &error);
    TEST_MSG(memory != NULL, "%s", error.text);
    return memory;
}

static void both(const Device *d, const float *x, int rows, bool passed, float *result) {
    Backend *b = d->backend;
    const int64_t count = (int64_t)rows * PASSED_WIDTH;
    float *zeros = random_floats(count, 0);
    b->ops->upload(b, d->x, x, (size_t)count * sizeof *x);
    b->ops->upload(b, d->y, zeros, (size_t)count * sizeof *x);
    const FfnBlock op = {{.rows = rows, .x = d->x, .gate = &d->gate.weight, .up = &d->up.weight, .out = d->inner},
        {.rows = rows, .x = d->inner, .weight = &d->down.weight, .scale = 1, .residual = d->y}};
    if (passed) {
        b->ops->ffn_block(b, &op);
    } else {
        b->ops->glu(b, &op.glu);
        b->ops->matmul_add(b, &op.down);
    }
    b->ops->download(b, result, d->y, (size_t)count * sizeof *result);
    free(zeros);
}

/* Of rows in range, too large and too small for f16, in some tiles of inputs only or in all. */
static void check_passed(void) {
    Error error = {0};
    const BackendOptions options = {.device = "cuda", .cpu = "auto", .rows_max = most_rows, .scratch_bytes = 1 << 10};
    Device d = {.backend = backend_open(&options, &error)};
    TEST_MSG(d.backend != NULL, "%s", error.text);
    if (!d.backend) return;
    Backend *b = d.backend;
    d.x = take(b, (int64_t)most_rows * PASSED_WIDTH);
    d.y = take(b, (int64_t)most_rows * PASSED_WIDTH);
    d.inner = take(b, (int64_t)most_rows * PASSED_INNER);
    b->ops->begin(b, step_of_rows(most_rows, 0));
    const int64_t count = (int64_t)most_rows * PASSED_WIDTH;
    float *x = random_floats(count, 1), *one = random_floats(count, 0), *other = random_floats(count, 0);
    for (int variant = 0; variant < 5; variant++) {
        static const float sizes[] = {1, 1e5f, 1e-4f};
        const Kind *kind = &kinds[variant % 2], *below = &kinds[variant == 4 ? 11 : 0];
        d.gate = matrix_bind(b, kind, PASSED_INNER, PASSED_WIDTH, variant == 1);
        d.up = matrix_bind(b, kind, PASSED_INNER, PASSED_WIDTH, variant == 2);
        d.down = matrix_bind(b, below, PASSED_WIDTH, PASSED_INNER, false);
        for (int r = 0; r < most_rows; r++)
            for (int k = 0; k < PASSED_WIDTH; k++)
                x[r * PASSED_WIDTH + k] =
                    test_uniform(&ops_seed) * (r > 300 || variant > 2 ? sizes[r % 7 % 3 * (variant > 0)] : 1);
        for (int rows = most_rows; rows > 250; rows -= 301) {
            both(&d, x, rows, false, one);
            both(&d, x, rows, true, other);
            TEST_MSG(
                same_bits(one, other, (int64_t)rows * PASSED_WIDTH), "passed on: variant %d, %d rows", variant, rows);
            TEST_MSG(isfinite(one[0]) && one[0] != 0, "passed on: variant %d: %g", variant, (double)one[0]);
        }
        matrix_drop(b, &d.gate);
        matrix_drop(b, &d.up);
        matrix_drop(b, &d.down);
    }
    free(x);
    free(one);
    free(other);
    TEST_MSG(b->ops->wait(b, b->ops->submit(b), &error), "%s", error.text);
    b->ops->release(b, d.x);
    b->ops->release(b, d.y);
    b->ops->release(b, d.inner);
    backend_close(b);
}

/* test_prompts [ROWS]: so many, and one small shape, for an emulator. */
int main(int argc, char **argv) {
    Backend *b = open_backend("cuda", 1, false, ROWS_MOST);
    TEST((b != NULL) == plugin_usable());
    if (!b) return test_done();
    if (argc > 1) most_rows = (int)strtol(argv[1], NULL, 10);
    const bool all = argc < 2;
    const int rows = most_rows;
    for (int uniform = 0; uniform < 2; uniform++) {
        if (uniform && !all) most_rows = 70; /* few rows and those of both kernels of many */
        for (size_t i = 0; i < (all ? COUNT_OF(kinds) : 1); i++) check(b, &kinds[i], all ? 64 * 22 : 64 * 5, uniform);
        if (!all) continue;
        check(b, &kinds[0], 64 * 150, uniform);
        check(b, &kinds[0], 64, uniform);
    }
    most_rows = rows;
    backend_close(b);
    check_passed();
    return test_done();
}
