/* Products of generated rows on a device: near the exact ones whatever the kind of weights, the same bits alone, among
 * others and beside rows of prompts, whose bits they do not change. Nothing to do where there is no GPU. */
#include <math.h>

#include "backend/plugin.h"
#include "backend/steps.h"
#include "matrices.h"

enum { ROWS_MOST = 64, WEIGHT_ROWS_MOST = 72 };
static const int counts[] = {1, 2, 5, 8, 9, 64};
static int most_rows = ROWS_MOST; /* fewer on an emulator */

typedef struct Shape {
    int64_t rows, cols;
} Shape;

static bool is_integer(const Kind *k) {
    return k->quant != QUANT_NONE && k->quant != QUANT_MXFP8 && k->quant != QUANT_NVFP4 && k->group >= 32;
}

/* Rows of all sizes; an empty group, outliers. */
static float *inputs_make(int64_t cols) {
    float *x = random_floats(ROWS_MOST * cols, 1);
    for (int64_t r = 0; r < ROWS_MOST; r++) {
        const float size = r % 5 == 1 ? 1e5f : r % 5 == 2 ? 1e-3f : 1;
        for (int64_t k = 0; k < cols; k++) x[r * cols + k] *= size * (k % 97 == 5 ? 30 : 1);
        if (r % 3 == 0 && cols > 64)
            for (int64_t k = 0; k < 64; k++) x[r * cols + k] = 0;
    }
    return x;
}

/* Of one weight and one row of inputs: the exact product and how far from it a result may be. */
static double exact(const Kind *kind, const float *w, const float *x, int64_t cols, double *far) {
    const double part = !is_integer(kind) ? 1.0 / 512 : kind->dtype == DTYPE_F32 ? 1.0 / 2048 : 1.0 / (1 << 19);
    double sum = 0, most = 0, all = 0;
    *far = 1e-30;
    for (int64_t k = 0; k < cols; k++) {
        sum += (double)w[k] * x[k];
        if (k % 64 == 0) most = 0;
        most = fmax(most, fabs((double)x[k]));
        all += fabs((double)x[k]) * 8; /* scale · code and bias are less than that */
        if (k % 64 == 63 || k == cols - 1) {
            double weights = 0;
            for (int64_t i = k / 64 * 64; i <= k; i++) weights += fabs((double)w[i]);
            *far += weights * most / 65000;
        }
    }
    *far += all * part;
    return sum;
}

static void near_exact(
    const char *what, const Kind *kind, const Matrix *m, const float *x, int rows, const float *out) {
    const Weight *w = &m->weight;
    float *row = random_floats(w->cols, 1);
    double worst = 0;
    bool good = true;
    for (int64_t r = 0; r < w->rows; r++) {
        weight_dequantize_row(w, r, 0, w->cols, row);
        for (int t = 0; t < rows; t++) {
            double far;
            const double wanted = exact(kind, row, x + t * w->cols, w->cols, &far) + (w->bias ? w->bias[r] : 0);
            const double error = fabs(out[t * w->rows + r] - wanted);
            good = good && error <= far + 1e-6 * fabs(wanted);
            worst = fmax(worst, error / far);
        }
    }
    TEST_MSG(good, "%s: %s %d bits, groups of %d, %dx%d: %g of what is allowed", what, quant_name(kind->quant),
        kind->bits, kind->group, (int)w->rows, (int)w->cols, worst);
    free(row);
}

typedef enum Way { STORE, NORMED, LAYERED, ADD, GLU, WAYS } Way;
static const char *const way_names[] = {"stored", "normed", "layer norm", "added", "gated"};

/* out: [rows][of both matrices, if there are two] */
static void run(Backend *b, Way way, const Matrix *one, const Matrix *two, const Norm *norm, const float *x, int rows,
    int decode_rows, float *out) {
    const int64_t width = one->weight.rows;
    float *second = random_floats(rows * width, 0);
    if (way == ADD) {
        for (int64_t i = 0; i < rows * width; i++) out[i] = (float)(i % width % 7);
        b->ops->matmul_add(b,
            &(MatmulAdd){.rows = rows,
                .decode_rows = decode_rows,
                .x = x,
                .weight = &one->weight,
                .scale = 0.5f,
                .residual = out});
    } else if (way == GLU) {
        b->ops->glu(b,
            &(Glu){.rows = rows,
                .decode_rows = decode_rows,
                .x = x,
                .norm = norm,
                .gate = &one->weight,
                .up = &two->weight,
                .out = out});
    } else {
        b->ops->matmul(b,
            &(Matmul){.rows = rows,
                .decode_rows = decode_rows,
                .x = x,
                .norm = way == STORE ? NULL : norm,
                .count = 2,
                .weight = {&one->weight, &two->weight},
                .out = {out, second}});
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < width; i += 3) out[r * width + i] = second[r * width + i];
    }
    free(second);
}

static void check_way(Backend *b, Way way, const Kind *kind, const Matrix *one, const Matrix *two, const float *x) {
    const int64_t width = one->weight.rows, cols = one->weight.cols;
    float *weights = random_floats(cols, 1), *bias = random_floats(cols, 1);
    const Norm norm = {.kind = way == LAYERED ? NORM_LAYER : NORM_RMS,
        .width = cols,
        .eps = 1e-5f,
        .weight = weights,
        .bias = way == LAYERED ? bias : NULL};
    float *alone = random_floats(ROWS_MOST * width, 0), *out = random_floats(2 * ROWS_MOST * width, 0);
    const char *name = way_names[way];
    const int alone_rows = most_rows < 4 ? most_rows : 4; /* the others are compared in other company */
    for (int r = 0; r < alone_rows; r++) run(b, way, one, two, &norm, x + r * cols, 1, 1, alone + r * width);
    if (alone_rows < most_rows)
        run(b, way, one, two, &norm, x + alone_rows * cols, most_rows - alone_rows, most_rows - alone_rows,
            alone + alone_rows * width);
    for (size_t i = 1; i < COUNT_OF(counts) && counts[i] <= most_rows; i++) {
        run(b, way, one, two, &norm, x, counts[i], counts[i], out);
        TEST_MSG(same_bits(out, alone, counts[i] * width), "%s: %s %d bits, groups of %d, %dx%d: %d rows together",
            name, quant_name(kind->quant), kind->bits, kind->group, (int)width, (int)cols, counts[i]);
    }
    /* Beside rows of prompts. */
    float *prompt = random_floats(ROWS_MOST * width, 0);
    run(b, way, one, two, &norm, x + 3 * cols, 4, 0, prompt);
    run(b, way, one, two, &norm, x, 7, 3, out);
    TEST_MSG(same_bits(out, alone, 3 * width), "%s: beside rows of prompts", name);
    TEST_MSG(same_bits(out + 3 * width, prompt, 4 * width), "%s: rows of prompts", name);
    /* What is not a number, beside others. */
    float *odd = copy_floats(x, ROWS_MOST * cols);
    odd[cols + cols / 2] = NAN;
    odd[2 * cols + cols - 1] = INFINITY;
    run(b, way, one, two, &norm, odd, 4, 4, out);
    bool good = true;
    for (int64_t i = width; i < 3 * width; i++) good = good && (!is_integer(kind) || isnan(out[i]));
    TEST_MSG(good && same_bits(out, alone, width) && same_bits(out + 3 * width, alone + 3 * width, width),
        "%s: %s %d bits: beside what is not a number", name, quant_name(kind->quant), kind->bits);
    free(odd);
    free(prompt);
    free(alone);
    free(out);
    free(weights);
    free(bias);
}

static void check(Backend *b, const Kind *kind, Shape shape) {
    Matrix one = matrix_make(kind, shape.rows, shape.cols, true),
           two = matrix_make(kind, shape.rows, shape.cols, false);
    float *x = inputs_make(shape.cols), *out = random_floats(ROWS_MOST * shape.rows, 0);
    const int rows = most_rows < 10 ? most_rows : 10;
    b->ops->matmul(
        b, &(Matmul){.rows = rows, .decode_rows = rows, .x = x, .count = 1, .weight = {&one.weight}, .out = {out}});
    near_exact("stored", kind, &one, x, rows, out);
    for (int way = 0; way < WAYS; way++) check_way(b, way, kind, &one, &two, x);
    free(x);
    free(out);
    matrix_free(&one);
    matrix_free(&two);
}

/* test_generated [short]: few rows and small shapes, for an emulator. */
int main(int argc, char **argv) {
    /* {4341, 1536}, and in an emulator with its four multiprocessors {200, 192}: several units of a block, of which two
     * are multiplied and ended together, and one is left. */
    enum { EMULATED = 3 };
    static const Shape shapes[] = {{16, 64}, {40, 192}, {200, 192}, {33, 4160}, {24, 14336}, {4341, 1536}};
    const bool emulated = argc > 1 && !strcmp(argv[1], "short");
    Backend *b = open_backend("cuda", 1, false, ROWS_MOST);
    TEST_MSG((b != NULL) == plugin_usable(), "a backend where a GPU can be used");
    if (!b) return test_done();
    if (emulated) most_rows = 5;
    b->ops->begin(b, step_of_rows(ROWS_MOST, 0));
    for (size_t s = 0; s < (emulated ? EMULATED : COUNT_OF(shapes)); s++)
        for (size_t k = 0; k < COUNT_OF(kinds); k++)
            if (shapes[s].cols % (kinds[k].group ? kinds[k].group : 1) == 0) check(b, &kinds[k], shapes[s]);
    Error error = {0};
    TEST_MSG(b->ops->wait(b, b->ops->submit(b), &error), "%s", error.text);
    backend_close(b);
    return test_done();
}
