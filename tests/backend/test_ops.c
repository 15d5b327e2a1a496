/* Every operation but attention, on every vector backend, against the reference: odd sizes, pointers aligned to a float
 * only, denormals, infinities, rows of zeros; and against itself: the same bits for a row alone, among others, and with
 * 1 to 4 threads. The choice of a backend, and what the plan refuses. */
#include "matrices.h"

enum { ROWS_MAX = 64, THREADS_MAX = 4 };
static const int widths[] = {1, 7, 16, 17, 64, 100, 255, 896, 4097};
static const int row_counts[] = {1, 2, 3, 7, 17, 40};
static int cases;

typedef struct Pair { /* the reference and what is tested against it */
    Backend *ref, *vector;
    const char *name;
    bool precise; /* activations of 16 bits */
} Pair;

/* ---- norm, add ---- */

static float *special_rows(int64_t rows, int64_t width) {
    float *x = random_floats(rows * width, 3);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) {
            float *value = &x[r * width + i];
            if (r % 5 == 1) *value *= 1e-40f; /* denormal: eps decides */
            if (r % 5 == 2) *value = 0;
            if (r % 5 == 3) *value = *value * 1e15f + 1e15f; /* a mean far from 0; squares near the top of f32 */
        }
    return x;
}

/* Relative to the row's largest value: sums of ≤ 4097 squares in 16 lanes of f32 round to some 260/2 ulp at the very
 * worst and a few in practice; a mean that cancels (LAYER) costs as many more. */
static void check_norm(const Pair *p, NormKind kind, bool weighted, bool biased, int rows, int width) {
    float *x = special_rows(rows, width), *weight = random_floats(width, 2), *bias = random_floats(width, 1);
    float *expected = random_floats((int64_t)rows * width, 0), *out = copy_floats(expected, (int64_t)rows * width);
    const Norm norm = {kind, width, 1e-6f, weighted ? weight + 1 : NULL, biased ? bias + 1 : NULL};
    p->ref->ops->norm(p->ref, rows, x, &norm, expected);
    p->vector->ops->norm(p->vector, rows, x, &norm, out + 1);
    for (int r = 0; r < rows; r++) {
        float most = 0;
        for (int i = 0; i < width; i++) most = fmaxf(most, fabsf(expected[r * width + i]));
        /* LAYER of one element is (x − x) and rounds to nothing on both sides, or to the bias */
        double far = 0;
        for (int i = 0; i < width; i++) far = fmax(far, fabs((double)expected[r * width + i] - out[1 + r * width + i]));
        TEST_MSG(far <= 4e-6 * most || (kind == NORM_LAYER && far <= 4e-6 * fmax(most, 1)),
            "%s: norm %d of %d rows of %d: row %d: %g", p->name, kind, rows, width, r, far);
    }
    float *alone = random_floats(width, 0);
    p->vector->ops->norm(p->vector, 1, x + (int64_t)(rows - 1) * width, &norm, alone);
    TEST_MSG(same_bits(alone, out + 1 + (int64_t)(rows - 1) * width, width), "%s: norm: a row alone", p->name);
    p->vector->ops->norm(p->vector, rows, x, &norm, x);
    TEST_MSG(same_bits(x, out + 1, (int64_t)rows * width), "%s: norm in place", p->name);
    cases++;
    free(alone);
    free(x);
    free(weight);
    free(bias);
    free(expected);
    free(out);
}

static void check_norms(const Pair *p) {
    for (size_t w = 0; w < COUNT_OF(widths); w++)
        for (size_t r = 0; r < COUNT_OF(row_counts); r++) {
            const bool odd = (w + r) % 2;
            check_norm(p, NORM_RMS, odd, false, row_counts[r], widths[w]);
            if (widths[w] > 1) check_norm(p, NORM_LAYER, true, odd, row_counts[r], widths[w]);
        }
}

static void check_add(const Pair *p, int rows, int width, bool normed) {
    const int64_t count = (int64_t)rows * width;
    float *y = random_floats(count, 2), *residual = random_floats(count, 4), *weight = random_floats(width, 2);
    float *expected = copy_floats(residual, count), *out = copy_floats(residual, count),
          *alone = copy_floats(residual, count);
    const Norm norm = {NORM_RMS, width, 1e-5f, weight, NULL};
    p->ref->ops->add(p->ref, rows, width, expected, y, 0.7f, normed ? &norm : NULL);
    p->vector->ops->add(p->vector, rows, width, out, y, 0.7f, normed ? &norm : NULL);
    for (int r = 0; r < rows; r++)
        p->vector->ops->add(p->vector, 1, width, alone + r * width, y + r * width, 0.7f, normed ? &norm : NULL);
    /* a norm of width 1 is ±1·weight; terms are ≤ 2·√width of rounding 1e-6 */
    const double far = distance(out, expected, count), most = normed ? 1e-6 * sqrt(width) + 2e-6 : 0;
    TEST_MSG(far <= most, "%s: add of %d rows of %d: %g", p->name, rows, width, far);
    TEST_MSG(same_bits(out, alone, count), "%s: add: rows alone", p->name);
    cases++;
    free(y);
    free(residual);
    free(weight);
    free(expected);
    free(out);
    free(alone);
}

/* ---- elementwise ---- */

static const float specials[] = {0, -0.0f, 1e-45f, -1e-45f, 1e-38f, 1e-20f, -1e-20f, 0.29f, 0.31f, -0.3f, 1, -1, 5, -5,
    9, -9, 20, -20, 86, -86, 88, -88, 89, -89, 104, -104, 1e4f, -1e4f, INFINITY, NAN};

static void check_activation(const Pair *p, Activation activation, int64_t count) {
    float *x = random_floats(count, 12);
    for (int64_t i = 0; i < count && i < (int64_t)COUNT_OF(specials); i++) x[i] = specials[i];
    float *expected = random_floats(count, 0), *out = random_floats(count, 0);
    p->ref->ops->activate(p->ref, count, x, activation, expected);
    p->vector->ops->activate(p->vector, count, x, activation, out + 1);
    /* exp to 2 ulp, erfc to 2e-6 of a value ≤ 1 that multiplies x: a few 1e-7 of x */
    const double far = distance(out + 1, expected, count);
    TEST_MSG(far <= 1e-6, "%s: activation %d of %lld: %g", p->name, activation.kind, (long long)count, far);
    for (int64_t i = 0; i < count; i += 13) {
        float one;
        p->vector->ops->activate(p->vector, 1, x + i, activation, &one);
        if (!same_bits(&one, out + 1 + i, 1))
            TEST_MSG(false, "%s: activation %d of %g alone", p->name, activation.kind, (double)x[i]);
    }
    p->vector->ops->activate(p->vector, count, x, activation, x);
    TEST_MSG(same_bits(x, out + 1, count), "%s: activation %d in place", p->name, activation.kind);
    cases++;
    free(x);
    free(expected);
    free(out);
}

/* Against the reference, in place, and with one row for all. */
static void check_multiply(const Pair *p, Activation activation, int rows, int64_t width) {
    float *x = random_floats(rows * width, 4), *y = random_floats(2 * rows * width, 2);
    float *expected = random_floats(rows * width, 0), *out = random_floats(rows * width, 0);
    const int64_t strides[] = {0, width, 2 * width};
    for (size_t s = 0; s < COUNT_OF(strides); s++) {
        Multiply op = {.rows = rows,
            .width = width,
            .x = x,
            .activation = activation,
            .y = y,
            .y_stride = strides[s],
            .out = expected};
        p->ref->ops->multiply(p->ref, &op);
        op.out = out;
        p->vector->ops->multiply(p->vector, &op);
        const double far = distance(out, expected, rows * width);
        TEST_MSG(far <= 1e-6, "%s: product of elements, %d × %lld: %g", p->name, rows, (long long)width, far);
    }
    Multiply op = {.rows = rows, .width = width, .x = x, .activation = activation, .y = y, .y_stride = 2 * width};
    op.out = x;
    p->vector->ops->multiply(p->vector, &op);
    TEST_MSG(same_bits(x, out, rows * width), "%s: product of elements in place", p->name);
    cases++;
    free(x);
    free(y);
    free(expected);
    free(out);
}

static void check_logits(const Pair *p, int64_t count, float scale, float cap) {
    float *x = random_floats(count, 60), *expected = copy_floats(x, count),
          *out = malloc((size_t)(count + 1) * sizeof *out);
    memcpy(out + 1, x, (size_t)count * sizeof *out);
    p->ref->ops->logits(p->ref, count, expected, scale, cap);
    p->vector->ops->logits(p->vector, count, out + 1, scale, cap);
    /* tanh to 5e-7 of its value, and the argument x·(scale/cap) rounded once more */
    const double far = distance(out + 1, expected, count);
    TEST_MSG(far <= (cap > 0 ? 2e-6 : 0), "%s: %lld logits, cap %g: %g", p->name, (long long)count, (double)cap, far);
    cases++;
    free(x);
    free(expected);
    free(out);
}

static void check_gather(const Pair *p, int64_t width) {
    const int32_t index[] = {4, 0, 4, 2};
    float *x = random_floats(5 * width, 1), *out = random_floats(4 * width, 0);
    p->vector->ops->gather(p->vector, 4, index, x + 1, width, out + 1);
    for (int i = 0; i < 4; i++) TEST(same_bits(out + 1 + i * width, x + 1 + index[i] * width, width));
    cases++;
    free(x);
    free(out);
}

/* ---- products ---- */

/* How far a product on quantised activations may be from the exact one: in a group of n values (n ≤ 64, the weight's
 * group) each is rounded by at most max|x| / 254 (8 bits) or a 250th of that (16), plus rounding of f32 sums. Plain
 * weights and mxfp8 take f32 activations. */
static double product_bound(const Pair *p, const Weight *w, int64_t row, const float *x) {
    const bool precise = p->precise;
    const int64_t group = w->quant == QUANT_NONE || w->quant == QUANT_MXFP8 ? 0 : w->group > 64 ? 64 : w->group;
    float values[1024];
    weight_dequantize_row(w, row, 0, w->cols, values);
    double bound = w->bias ? 1e-6 * fabs(w->bias[row]) : 0, most = 0;
    for (int64_t i = 0; i < w->cols; i++) {
        if (group && i % group == 0) {
            most = 0;
            for (int64_t k = i; k < i + group; k++) most = fmax(most, fabs(x[k]));
        }
        bound += fabs(values[i]) * (most / (precise ? 253.9 * 250 : 253.9) + 4e-6 * fabs(x[i]));
        /* scale·code and bias cancel: both are rounded at the size of the larger */
        if (w->quant == QUANT_AFFINE) bound += 4e-6 * fabs(x[i]) * 2;
        /* Devices take numbers of 11 bits: weight, activation, scale and zero point (≤ 1) round to 2⁻¹² of their size.
         */
        if (is_device(p->name)) bound += (3 * fabs(values[i]) + 2 * (w->quant == QUANT_AFFINE)) * fabs(x[i]) / 4096;
    }
    return bound + 1e-6;
}

static void check_matmul(const Pair *p, const Kind *kind, int rows, int64_t out_rows, int64_t cols, bool normed) {
    Matrix m[2] = {matrix_make(kind, out_rows, cols, true), matrix_make(kind, 5, cols, false)};
    float *x = random_floats(rows * cols, 2), *h = copy_floats(x, rows * cols), *weight = random_floats(cols, 1);
    for (int64_t i = 0; i < cols; i++) x[i] *= i < 64 ? 0 : 1; /* a group of zeros */
    const Norm norm = {NORM_RMS, cols, 1e-5f, weight, NULL};
    float *out[2], *expected[2], *alone[2];
    for (int i = 0; i < 2; i++) {
        out[i] = random_floats(rows * m[i].weight.rows, 0);
        expected[i] = random_floats(rows * m[i].weight.rows, 0);
        alone[i] = random_floats(rows * m[i].weight.rows, 0);
    }
    Matmul op = {
        .rows = rows, .x = x, .norm = normed ? &norm : NULL, .count = 2, .weight = {&m[0].weight, &m[1].weight}};
    memcpy(op.out, expected, sizeof expected);
    p->ref->ops->matmul(p->ref, &op);
    memcpy(op.out, out, sizeof out);
    p->vector->ops->matmul(p->vector, &op);
    memcpy(h, x, sizeof *x * (size_t)(rows * cols));
    if (normed) p->ref->ops->norm(p->ref, rows, x, &norm, h);
    bool near = true;
    for (int i = 0; i < 2; i++)
        for (int t = 0; t < rows; t++)
            for (int64_t r = 0; r < m[i].weight.rows; r++) {
                const int64_t at = t * m[i].weight.rows + r;
                near = near &&
                    fabs((double)out[i][at] - expected[i][at]) <= product_bound(p, &m[i].weight, r, h + t * cols);
            }
    TEST_MSG(near, "%s: product of %s %d bits, %d rows", p->name, quant_name(kind->quant), kind->bits, rows);
    op.rows = 1;
    for (int t = 0; t < rows; t++) {
        op.x = x + t * cols;
        for (int i = 0; i < 2; i++) op.out[i] = alone[i] + t * m[i].weight.rows;
        p->vector->ops->matmul(p->vector, &op);
    }
    for (int i = 0; i < 2; i++)
        TEST_MSG(same_bits(out[i], alone[i], rows * m[i].weight.rows), "%s: product of %s %d bits: rows of %d alone",
            p->name, quant_name(kind->quant), kind->bits, rows);
    cases++;
    for (int i = 0; i < 2; i++) {
        free(out[i]);
        free(expected[i]);
        free(alone[i]);
        matrix_free(&m[i]);
    }
    free(x);
    free(h);
    free(weight);
}

/* A coarse product of a precise backend is that of one that is not. */
static void check_coarse(const Pair *p) {
    enum { ROWS = 3, COLS = 128, OUT = 40 };
    Backend *plain = open_backend(p->name, 1, false, ROWS);
    if (!plain) return;
    Matrix m = matrix_make(&kinds[0], OUT, COLS, false);
    float *x = random_floats(ROWS * COLS, 1), *precise = random_floats(ROWS * OUT, 0);
    float *coarse = random_floats(ROWS * OUT, 0), *expected = random_floats(ROWS * OUT, 0);
    Matmul op = {.rows = ROWS, .x = x, .count = 1, .weight = {&m.weight}, .out = {expected}};
    plain->ops->matmul(plain, &op);
    op.out[0] = precise;
    p->vector->ops->matmul(p->vector, &op);
    op.out[0] = coarse;
    op.coarse = true;
    p->vector->ops->matmul(p->vector, &op);
    TEST_MSG(same_bits(coarse, expected, ROWS * OUT) && !same_bits(precise, expected, ROWS * OUT),
        "%s: coarse product of a precise backend", p->name);
    backend_close(plain);
    matrix_free(&m);
    free(x);
    free(precise);
    free(coarse);
    free(expected);
}

/* The parameters of the clamped and of the limited SiLU; kernels of devices have those of the only model that has it.
 */
static void check_clamped(const Pair *p) {
    enum { ROWS = 3, OUT = 37, COLS = 256 };
    const Kind plain = {.quant = QUANT_NONE, .dtype = DTYPE_F32};
    Matrix gate = matrix_make(&plain, OUT, COLS, true), up = matrix_make(&plain, OUT, COLS, false);
    float *x = random_floats(ROWS * COLS, 1);
    float *expected = random_floats(ROWS * OUT, 0), *out = random_floats(ROWS * OUT, 0);
    static const Activation activations[] = {{ACT_SILU_CLAMPED, 1.702f, 7, 0}, {ACT_SILU_CLAMPED, 1.25f, 0.5f, 0},
        {ACT_SILU_CLAMPED, 0.5f, 0.5f, 0}, {ACT_SILU_LIMITED, 0.7f, 0.3f, 0}};
    for (size_t i = 0; i < COUNT_OF(activations); i++) {
        const Glu glu = {ROWS, 0, x, NULL, &gate.weight, &up.weight, activations[i], out};
        p->vector->ops->glu(p->vector, &glu);
        const Matmul both = {.rows = ROWS, .x = x, .count = 1, .weight = {&gate.weight}, .out = {expected}};
        float *ups = random_floats(ROWS * OUT, 0);
        p->vector->ops->matmul(p->vector, &both);
        const Matmul second = {.rows = ROWS, .x = x, .count = 1, .weight = {&up.weight}, .out = {ups}};
        p->vector->ops->matmul(p->vector, &second);
        for (int k = 0; k < ROWS * OUT; k++) {
            const bool limited = activations[i].kind == ACT_SILU_LIMITED;
            const float a = activations[i].a, b = activations[i].b;
            const float g = fminf(expected[k], limited ? a : b), u = fmaxf(-b, fminf(ups[k], b));
            expected[k] = g / (1 + expf(limited ? -g : -a * g)) * (limited ? u : u + 1);
        }
        TEST_MSG(distance(out, expected, ROWS * OUT) <= 1e-6, "%s: clamped silu %zu: %g", p->name, i,
            distance(out, expected, ROWS * OUT));
        free(ups);
    }
    matrix_free(&gate);
    matrix_free(&up);
    free(x);
    free(expected);
    free(out);
}

/* The fused forms are the sequences they replace: on the same backend, and so against matmul, activate and add. */
static void check_fused(const Pair *p, const Kind *kind, int rows, Activation activation, bool normed) {
    enum { OUT = 37, COLS = 256 };
    Backend *b = p->vector;
    Matrix gate = matrix_make(kind, OUT, COLS, true), up = matrix_make(kind, OUT, COLS, false);
    float *x = random_floats(rows * COLS, 1), *weight = random_floats(COLS, 1), *gates = random_floats(rows * OUT, 0);
    float *ups = random_floats(rows * OUT, 0), *out = random_floats(rows * OUT, 0), *sum = random_floats(rows * OUT, 1);
    float *expected = copy_floats(sum, rows * OUT);
    const Norm before = {NORM_RMS, COLS, 1e-5f, weight, NULL}, after = {NORM_RMS, OUT, 1e-5f, weight, NULL};
    const Matmul both = {.rows = rows,
        .x = x,
        .norm = normed ? &before : NULL,
        .count = 2,
        .weight = {&gate.weight, &up.weight},
        .out = {gates, ups}};
    const Glu glu = {rows, 0, x, normed ? &before : NULL, &gate.weight, &up.weight, activation, out};
    b->ops->matmul(b, &both);
    b->ops->glu(b, &glu);
    b->ops->activate(b, rows * OUT, gates, activation, gates);
    for (int i = 0; i < rows * OUT; i++) gates[i] *= ups[i];
    TEST_MSG(distance(out, gates, rows * OUT) <= 1e-6, "%s: glu of %s, %d rows: %g", p->name, quant_name(kind->quant),
        rows, distance(out, gates, rows * OUT));
    const MatmulAdd add = {rows, 0, x, &gate.weight, normed ? &after : NULL, 0.5f, sum, NULL};
    const Matmul one = {.rows = rows, .x = x, .count = 1, .weight = {&gate.weight}, .out = {gates}};
    b->ops->matmul_add(b, &add);
    b->ops->matmul(b, &one);
    b->ops->add(b, rows, OUT, expected, gates, 0.5f, normed ? &after : NULL);
    TEST_MSG(distance(sum, expected, rows * OUT) <= 1e-6, "%s: product added, of %s, %d rows: %g", p->name,
        quant_name(kind->quant), rows, distance(sum, expected, rows * OUT));
    cases++;
    matrix_free(&gate);
    matrix_free(&up);
    free(x);
    free(weight);
    free(gates);
    free(ups);
    free(out);
    free(sum);
    free(expected);
}

static void check_embed(const Pair *p, const Kind *kind) {
    Matrix table = matrix_make(kind, 9, 256, false);
    const int32_t tokens[] = {8, 0, 3, 3, 7};
    float *expected = random_floats(5 * 256, 0), *out = random_floats(5 * 256, 0);
    Embed op = {.rows = 5, .tokens = tokens, .table = &table.weight, .scale = 1.5f, .out = expected};
    p->ref->ops->embed(p->ref, &op);
    op.out = out + 1;
    p->vector->ops->embed(p->vector, &op);
    /* scale·code + bias with or without a rounding between them; a device rounds f32 to 11 bits: codes ≤ 255 times 0.02
     */
    const double most = is_device(p->name) && kind->dtype == DTYPE_F32 ? 1.5 * (0.02 * 255 + 1) / 4096 : 1e-6;
    TEST_MSG(distance(out + 1, expected, 5 * 256) <= most, "%s: embedding of %s %d bits", p->name,
        quant_name(kind->quant), kind->bits);
    cases++;
    matrix_free(&table);
    free(expected);
    free(out);
}

static void check_products(const Pair *p) {
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        static const int counts[] = {1, 2, 3, 4, 5, 7, 17};
        for (size_t r = 0; r < COUNT_OF(counts); r++) {
            check_matmul(p, &kinds[k], counts[r], 33, 256, r % 2);
            check_matmul(p, &kinds[k], counts[r], 7, 128, !(r % 2));
        }
        check_fused(p, &kinds[k], 1, (Activation){.kind = ACT_SILU}, true);
        check_fused(p, &kinds[k], 3, (Activation){.kind = ACT_GELU_TANH}, false);
        check_fused(p, &kinds[k], 17, (Activation){.kind = ACT_GELU}, true);
        check_embed(p, &kinds[k]);
    }
}

/* The largest shapes that plan lets through find room in the memory of a step and of a thread, also in precise
 * backends. */
static void check_largest(const Pair *p, const Kind *kind, int rows, int64_t cols) {
    enum { OUT = 3 };
    Matrix m = matrix_make(kind, OUT, cols, false);
    float *x = random_floats(rows * cols, 1), *weight = random_floats(cols, 1);
    float *out = random_floats(rows * OUT, 0), *alone = random_floats(rows * OUT, 0);
    const Norm norm = {NORM_RMS, cols, 1e-5f, weight, NULL};
    const Norm *normed = cols <= NORM_WIDTH_MAX ? &norm : NULL;
    const Matmul all = {.rows = rows, .x = x, .norm = normed, .count = 1, .weight = {&m.weight}, .out = {out}};
    p->vector->ops->matmul(p->vector, &all);
    for (int t = 0; t < rows; t++) {
        const Matmul one = {
            .rows = 1, .x = x + t * cols, .norm = normed, .count = 1, .weight = {&m.weight}, .out = {alone + t * OUT}};
        p->vector->ops->matmul(p->vector, &one);
    }
    TEST_MSG(same_bits(out, alone, rows * OUT), "%s: product of %lld columns of %s: rows of %d alone", p->name,
        (long long)cols, quant_name(kind->quant), rows);
    cases++;
    matrix_free(&m);
    free(x);
    free(weight);
    free(out);
    free(alone);
}

static void check_largest_norm(const Pair *p, int rows) {
    enum { COLS = 64 };
    const int64_t count = (int64_t)rows * NORM_WIDTH_MAX;
    Matrix m = matrix_make(&kinds[0], NORM_WIDTH_MAX, COLS, false);
    float *x = random_floats(rows * COLS, 1), *weight = random_floats(NORM_WIDTH_MAX, 1);
    float *sum = random_floats(count, 0), *expected = random_floats(count, 0), *y = random_floats(count, 0);
    const Norm norm = {NORM_RMS, NORM_WIDTH_MAX, 1e-5f, weight, NULL};
    p->vector->ops->matmul_add(p->vector, &(MatmulAdd){rows, 0, x, &m.weight, &norm, 0.5f, sum, NULL});
    p->vector->ops->matmul(p->vector, &(Matmul){.rows = rows, .x = x, .count = 1, .weight = {&m.weight}, .out = {y}});
    p->vector->ops->add(p->vector, rows, NORM_WIDTH_MAX, expected, y, 0.5f, &norm);
    TEST_MSG(distance(sum, expected, count) <= 1e-6, "%s: product added after the widest norm, %d rows: %g", p->name,
        rows, distance(sum, expected, count));
    cases++;
    matrix_free(&m);
    free(x);
    free(weight);
    free(sum);
    free(expected);
    free(y);
}

static void check_limits(const Pair *p) {
    static const Kind largest[] = {
        {QUANT_AFFINE, 4, 64, DTYPE_BF16}, {QUANT_NVFP4, 4, 16, DTYPE_F32}, {QUANT_NONE, 32, 0, DTYPE_F32}};
    for (size_t k = 0; k < COUNT_OF(largest); k++) {
        check_largest(p, &largest[k], 9, MATRIX_COLS_MAX);
        check_largest(p, &largest[k], 9, NORM_WIDTH_MAX);
        check_largest(p, &largest[k], 17, NORM_WIDTH_MAX / 2);
    }
    check_largest_norm(p, 1);
    check_largest_norm(p, 3);
}

/* ---- routers ---- */

/* Against the reference: the same experts, and their weights. */
static void check_route(const Pair *p, const Routing *wanted, int rows) {
    enum { EXPERTS = 300, SLOTS = 9 };
    float *logits = random_floats((int64_t)rows * EXPERTS, 3), *shared_logits = random_floats(2 * rows, 3);
    float *bias = random_floats(EXPERTS, 0.5f), *expert_scale = random_floats(EXPERTS, 2);
    float *weight = random_floats(2 * rows * SLOTS, 0), *expected = weight + rows * SLOTS;
    int32_t index[2][ROWS_MAX * SLOTS] = {0};
    Routing op = *wanted;
    op.rows = rows;
    op.logits = logits;
    if (wanted->shared_logits) op.shared_logits = shared_logits;
    if (wanted->bias) op.bias = bias;
    if (wanted->expert_scale) op.expert_scale = expert_scale;
    op.index = index[0];
    op.weight = expected;
    p->ref->ops->route(p->ref, &op);
    op.index = index[1];
    op.weight = weight;
    p->vector->ops->route(p->vector, &op);
    const int64_t slots = (int64_t)rows * (op.top_k + op.shared);
    TEST_MSG(!memcmp(index[0], index[1], (size_t)slots * sizeof index[0][0]), "%s: %d of %d experts, score %d, %d rows",
        p->name, op.top_k, op.experts, op.score, rows);
    const double far = distance(weight, expected, slots); /* exp to 2 ulp, over at most 300 experts */
    TEST_MSG(far <= 2e-6, "%s: weights of %d of %d experts, score %d, %d rows: %g", p->name, op.top_k, op.experts,
        op.score, rows, far);
    cases++;
    free(logits);
    free(shared_logits);
    free(bias);
    free(expert_scale);
    free(weight);
}

static void check_routes(const Pair *p) {
    static const float given; /* an optional operand that this case has */
    static const Routing routes[] = {
        {.experts = 6, .top_k = 2, .score = ROUTE_TOP_SOFTMAX, .scale = 1, .expert_scale = &given},
        {.experts = 128,
            .top_k = 6,
            .score = ROUTE_TOP_SIGMOID,
            .bias = &given,
            .norm_topk_prob = true,
            .scale = 1.5f,
            .shared = 1},
        {.experts = 128, .top_k = 8, .score = ROUTE_TOP_SOFTMAX, .scale = 1, .expert_scale = &given},
        {.experts = 300, .top_k = 8, .score = ROUTE_TOP_SOFTMAX, .scale = 1, .shared = 1, .expert_scale = &given},
        {.experts = 60, .top_k = 4, .score = ROUTE_SOFTMAX, .scale = 1, .shared = 1, .shared_logits = &given},
        {.experts = 64, .top_k = 8, .score = ROUTE_SOFTMAX, .norm_topk_prob = true, .scale = 1.5f},
        {.experts = 64, .top_k = 6, .score = ROUTE_SOFTMAX, .scale = 2, .bias = &given, .expert_scale = &given},
        {.experts = 256,
            .top_k = 8,
            .score = ROUTE_SIGMOID,
            .bias = &given,
            .groups = 8,
            .topk_group = 4,
            .norm_topk_prob = true,
            .epsilon = 1e-20f,
            .scale = 2.5f,
            .shared = 1},
        {.experts = 48,
            .top_k = 4,
            .score = ROUTE_SIGMOID,
            .scale = 1,
            .shared = 1,
            .shared_logits = &given,
            .shared_pair = true,
            .expert_scale = &given},
        {.experts = 32,
            .top_k = 4,
            .score = ROUTE_SOFTMAX,
            .groups = 4,
            .topk_group = 2,
            .group_best = true,
            .scale = 1},
        {.experts = 16, .top_k = 2, .score = ROUTE_SPARSEMIXER, .jitter_eps = 0.01f, .scale = 1},
        {.experts = 64,
            .top_k = 6,
            .score = ROUTE_SQRT_SOFTPLUS,
            .bias = &given,
            .norm_topk_prob = true,
            .scale = 1.5f},
        {.experts = 256, .top_k = 8, .score = ROUTE_SQRT_SOFTPLUS, .scale = 1, .shared = 1}};
    for (size_t i = 0; i < COUNT_OF(routes); i++)
        for (size_t r = 0; r < COUNT_OF(row_counts); r++) check_route(p, &routes[i], row_counts[r]);
}

/* ---- choice and plan ---- */

static void check_registry(void) {
    Error error = {0};
    const BackendOptions unknown = {.cpu = "z80", .threads = 1, .rows_max = 1},
                         any = {.cpu = "auto", .threads = 2, .rows_max = 1};
    TEST(!backend_open(&unknown, &error) && error.code == ERROR_USAGE && strstr(error.text, "z80") &&
        strstr(error.text, "ref"));
    Backend *backend = backend_open(&any, &error);
    TEST(backend && strstr(backend_describe(backend), backend->ops->name) &&
        strstr(backend_describe(backend), "2 threads"));
    backend_close(backend);
    const BackendOptions crowd = {.cpu = "auto", .threads = 100000, .rows_max = 1};
    TEST(!backend_open(&crowd, &error) && error.code == ERROR_USAGE);
    backend_close(NULL);
}

static void refuse(Backend *plan, const char *what) {
    size_t bytes;
    Error error = {0};
    TEST_MSG(
        !plan_result(plan, &bytes, &error) && strstr(error.text, what), "expected '%s', got '%s'", what, error.text);
    backend_close(plan);
}

/* What is larger than the memory that the backends set aside for a row. */
static void check_plan_limits(void) {
    Error error;
    float x[1] = {0};
    size_t bytes;
    const Weight cols = {.rows = 8, .cols = MATRIX_COLS_MAX}, more_cols = {.rows = 8, .cols = MATRIX_COLS_MAX + 1};
    const Weight rows = {.rows = NORM_WIDTH_MAX, .cols = 64}, more_rows = {.rows = NORM_WIDTH_MAX + 1, .cols = 64};
    const Norm norm = {.width = NORM_WIDTH_MAX}, wider = {.width = NORM_WIDTH_MAX + 1};
    Backend *plan = plan_open(1, &error);
    plan->ops->matmul(plan, &(Matmul){.rows = 1, .x = x, .count = 1, .weight = {&cols}});
    plan->ops->matmul_add(plan, &(MatmulAdd){.rows = 1, .x = x, .weight = &rows, .norm = &norm});
    plan->ops->add(plan, 1, NORM_WIDTH_MAX, x, x, 1, &norm);
    TEST(plan_result(plan, &bytes, &error));
    plan->ops->matmul(plan, &(Matmul){.rows = 1, .x = x, .count = 1, .weight = {&more_cols}});
    refuse(plan, "columns of a matrix: 262145, at most 262144 are possible");
    plan = plan_open(1, &error);
    plan->ops->matmul_add(plan, &(MatmulAdd){.rows = 1, .x = x, .weight = &more_rows, .norm = &wider});
    refuse(plan, "norm after a product: 131073, at most 131072 are possible");
    plan = plan_open(1, &error);
    plan->ops->add(plan, 1, NORM_WIDTH_MAX + 1, x, x, 1, &wider);
    refuse(plan, "norm before a sum: 131073, at most 131072 are possible");
    plan = plan_open(1, &error);
    plan->ops->norm(plan, 1, x, &wider, x);
    refuse(plan, "width of a norm: 131073, at most 131072 are possible");
}

static void check_plan(void) {
    enum { ROWS = 4 };
    Error error;
    float x[1] = {0};
    size_t bytes;
    const Weight a = {.rows = 8, .cols = 64}, b = {.rows = 8, .cols = 32},
                 ragged = {.rows = 8, .cols = 65, .quant = QUANT_AFFINE, .bits = 4, .group = 64};
    const Norm norm = {NORM_RMS, 32, 0, NULL, NULL};
    Backend *plan = plan_open(ROWS, &error);
    TEST(plan->ops->scratch(plan, 3) && plan->ops->scratch(plan, 17));
    TEST(plan_result(plan, &bytes, &error) && bytes == (16 + 32) * sizeof(float));
    plan->ops->matmul(plan, &(Matmul){.rows = 1, .x = x, .count = 2, .weight = {&a, &b}});
    plan->ops->matmul(plan, &(Matmul){.rows = 9, .x = x, .count = 1, .weight = {&a}}); /* only the first is told */
    refuse(plan, "columns of matrices with one input: 32, expected 64");
    plan = plan_open(ROWS, &error);
    plan->ops->matmul(plan, &(Matmul){.rows = ROWS + 1, .x = x, .count = 1, .weight = {&a}});
    refuse(plan, "rows of a product: 5");
    plan = plan_open(ROWS, &error);
    plan->ops->matmul(plan, &(Matmul){.rows = 1, .x = x, .norm = &norm, .count = 1, .weight = {&a}});
    refuse(plan, "norm before a product: 32, expected 64");
    plan = plan_open(ROWS, &error);
    plan->ops->matmul_add(plan, &(MatmulAdd){.rows = 1, .x = x, .weight = &ragged});
    refuse(plan, "left over by groups");
    plan = plan_open(ROWS, &error);
    plan->ops->glu(plan, &(Glu){.rows = 1, .gate = &a, .up = &b});
    refuse(plan, "columns of gate and up: 64, expected 32");
    plan = plan_open(ROWS, &error);
    plan->ops->attention(plan, &(Attention){.heads = 3, .kv.layout = {2, 64, 64, DTYPE_F16}});
    refuse(plan, "query heads left over");
    plan = plan_open(ROWS, &error);
    plan->ops->attention(plan, &(Attention){.heads = 2, .kv.layout = {2, 2048, 64, DTYPE_F16}});
    refuse(plan, "head width: 2048");
    plan = plan_open(ROWS, &error);
    plan->ops->attention(plan, &(Attention){.heads = 2, .kv.layout = {2, 64, 64, DTYPE_F16}, .q_norm = &norm});
    refuse(plan, "query norm: 32, expected 64");
    plan = plan_open(ROWS, &error);
    plan->ops->attention(
        plan, &(Attention){.heads = 2, .kv.layout = {2, 64, 64, DTYPE_F16}, .rope = &(Rope){.dims = 66}});
    refuse(plan, "rotated width: 66");
    check_plan_limits();
}

static void check_rows(const Pair *p) {
    check_norms(p);
    for (size_t w = 0; w < COUNT_OF(widths); w++)
        for (size_t r = 0; r < COUNT_OF(row_counts); r++) check_add(p, row_counts[r], widths[w], (w + r) % 2);
    for (int kind = ACT_SILU; kind <= ACT_CLAMP; kind++)
        for (size_t i = 0; i < COUNT_OF(widths); i++)
            check_activation(p, (Activation){(ActivationKind)kind, .a = 0.8f, .b = 1.3f, .c = 0.5f}, widths[i]);
    for (int kind = ACT_SILU; kind <= ACT_NONE; kind++)
        check_multiply(p, (Activation){.kind = (ActivationKind)kind}, 3, 37);
    check_multiply(p, (Activation){.kind = ACT_GELU_TANH}, 70, 512);
    check_activation(p, (Activation){.kind = ACT_GELU}, 100003);
    check_activation(p, (Activation){.kind = ACT_SILU}, 100003);
    check_clamped(p);
    for (size_t i = 0; i < COUNT_OF(widths); i++) {
        check_logits(p, widths[i], 0.25f, 0);
        check_logits(p, widths[i], 1, 30);
    }
    check_logits(p, 100003, 0.5f, 50);
    check_gather(p, 17);
    check_routes(p);
}

static void run_all(const char *name, int threads, bool precise) {
    Pair p = {open_backend("ref", 1, false, ROWS_MAX), open_backend(name, threads, precise, ROWS_MAX), name, precise};
    ops_seed = 1; /* the same numbers whatever the threads */
    if (p.vector && !precise) check_rows(&p);
    if (p.vector && precise) check_coarse(&p);
    if (p.vector) check_products(&p);
    if (p.vector && threads == 2) check_limits(&p);
    backend_close(p.vector);
    backend_close(p.ref);
}

int main(void) {
    check_registry();
    check_plan();
    for (size_t i = 0; i < COUNT_OF(vector_names); i++)
        for (int threads = is_device(vector_names[i]) ? 2 : 1; threads <= THREADS_MAX; threads++) {
            if (is_device(vector_names[i]) && threads > 2) break;
            run_all(vector_names[i], threads, false);
            if (threads <= 2) run_all(vector_names[i], threads, true);
        }
    printf("%d cases\n", cases);
    return test_done();
}
