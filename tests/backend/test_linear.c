/* The products of every instruction set this machine has equal linear.h's definition in plain C bit for bit: every kind
 * of weight, odd sizes, unaligned data, 1 to 278 activation rows, 1 to 4 threads; and the definition is near the exact
 * product. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/cpu.h"
#include "base/slice.h"
#include "test.h"

static uint64_t seed = 1;
static uint64_t random_bits(void) { return test_random(&seed); }
static float random_float(void) { return test_uniform(&seed); }

/* Kernels of the other half of the table, in plain C. */
static void norm_row(const float *x, const Norm *norm, float *out) {
    float sum = 0;
    for (int64_t i = 0; i < norm->width; i++) sum += x[i] * x[i];
    float scale = 1.0f / sqrtf(sum / (float)norm->width + norm->eps);
    for (int64_t i = 0; i < norm->width; i++) out[i] = x[i] * scale;
}
static void glu_row(int64_t count, const float *gate, const float *up, Activation activation, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

/* A weight whose data ends right before an unreadable page, at an odd address. */
typedef struct Sample {
    Weight weight;
    uint8_t *pages[3];
    size_t sizes[3];
    float *bias;
} Sample;

static uint8_t *guarded(Sample *sample, int which, size_t bytes) {
    const size_t page = 4096, size = (bytes + page - 1) / page * page + page;
    uint8_t *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK(mprotect(memory + size - page, page, PROT_NONE) == 0);
    sample->pages[which] = memory;
    sample->sizes[which] = size;
    return memory + size - page - bytes;
}

/* One scale of a ternary row, some of them zero. */
static void fill_row_scales(const Weight *w, uint8_t *scales) {
    for (int64_t r = 0; r < w->rows; r++) {
        const float scale = r % 13 == 5 ? 0 : 0.02f + 0.01f * random_float();
        floats_from_f32(scales + (size_t)r * dtype_bytes(w->dtype), w->dtype, &scale, 1);
    }
}

/* Scales of the forms without biases: small halves, some of them zero; bytes of all sizes and signs. */
static void fill_number_scales(const Weight *w, uint8_t *scales) {
    const size_t bytes = weight_scale_bytes(w) * (size_t)w->rows;
    const size_t unit = w->quant == QUANT_K ? K_BYTES : w->quant == QUANT_K_SYMMETRIC ? K_SYMMETRIC_BYTES : 2;
    const float size = unit == 2 ? 0.02f : 0.0005f;
    for (size_t at = 0; at < bytes; at += unit) {
        for (size_t i = 0; i < unit; i++) scales[at + i] = (uint8_t)(random_bits() % (w->quant == QUANT_K ? 64 : 256));
        const uint16_t d = at / unit % 13 == 5 ? 0 : f32_to_f16(size * random_float());
        const uint16_t e = f32_to_f16(-8 * size * random_float());
        memcpy(scales + at, &d, sizeof d);
        if (w->quant == QUANT_K) memcpy(scales + at + 2, &e, sizeof e);
    }
}

static Sample sample_make(int64_t rows, int64_t cols, Quant quant, int bits, int group, DType dtype, bool bias) {
    Sample s = {.weight = {.rows = rows, .cols = cols, .quant = quant, .bits = bits, .group = group, .dtype = dtype}};
    Weight *w = &s.weight;
    size_t bytes = weight_row_bytes(w) * (size_t)rows;
    uint8_t *data = guarded(&s, 0, bytes);
    w->data = data;
    if (quant == QUANT_NONE) {
        for (int64_t i = 0; i < rows * cols; i++) {
            float value = random_float();
            floats_from_f32(data + (size_t)i * dtype_bytes(dtype), dtype, &value, 1);
        }
    } else {
        for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)random_bits();
        if (quant == QUANT_MXFP8) /* no NaN */
            for (size_t i = 0; i < bytes; i++) data[i] = (data[i] & 0x7f) == 0x7f ? 0 : data[i];
        int64_t groups = rows * (cols / group);
        size_t scale_bytes = weight_scale_bytes(w) * (size_t)rows,
               size = quant == QUANT_AFFINE ? dtype_bytes(dtype) : 1;
        uint8_t *scales = guarded(&s, 1, scale_bytes);
        uint8_t *biases = quant == QUANT_AFFINE ? guarded(&s, 2, scale_bytes) : NULL;
        const bool numbers = quant_is_affine(quant) && !biases;
        if (numbers) (quant == QUANT_TERNARY ? fill_row_scales : fill_number_scales)(w, scales);
        for (int64_t i = 0; i < groups && !numbers; i++) {
            float scale = 0.01f + 0.01f * random_float(), zero = -scale * (float)(1 << (bits - 1));
            if (i % 17 == 0) scale = zero = 0;
            if (!biases) {
                scales[i] = (uint8_t)(quant == QUANT_NVFP4 ? random_bits() % 0x60 : 118 + random_bits() % 6);
                if (i % 29 == 0) scales[i] = (uint8_t)(i % 3);
                continue;
            }
            floats_from_f32(scales + (size_t)i * size, dtype, &scale, 1);
            floats_from_f32(biases + (size_t)i * size, dtype, &zero, 1);
        }
        w->scales = scales;
        w->biases = biases;
    }
    if (bias) {
        s.bias = malloc((size_t)rows * sizeof *s.bias);
        for (int64_t i = 0; i < rows; i++) s.bias[i] = random_float();
        w->bias = s.bias;
    }
    return s;
}

static void sample_free(Sample *s) {
    for (int i = 0; i < 3; i++)
        if (s->pages[i]) munmap(s->pages[i], s->sizes[i]);
    free(s->bias);
}

/* One product by the definition. */
static float spec_product(const Weight *w, int64_t row, const float *x) {
    float y;
    if (!linear_is_integer(w)) {
        y = linear_spec_plain(w, row, x);
    } else {
        int group = linear_group(w);
        int64_t stride = linear_stride(w->cols, group);
        int8_t *q = malloc((size_t)stride);
        float *scales = malloc((size_t)(stride / group) * 2 * sizeof *scales), *sums = scales + stride / group;
        linear_spec_quantise(x, w->cols, group, q, scales, sums);
        y = linear_spec_integer(w, row, q, scales, sums);
        free(q);
        free(scales);
    }
    return w->bias ? y + w->bias[row] : y;
}

static bool same_bits(float a, float b) { return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)); }

typedef struct Case {
    Quant quant;
    int bits, group;
    DType dtype;
} Case;

enum { MOST_ROWS = 70, GUARD = 16, SHORT_ROWS = 17, MANY_THREADS = 16 };
static int most_rows = MOST_ROWS; /* of activations; fewer on an emulator */

/* All activation rows against the definition; expected has been computed once per weight. */
static bool compare(const float *out, const float *expected, int rows, int64_t width) {
    for (int64_t i = 0; i < rows * width; i++)
        if (!same_bits(out[i], expected[i])) {
            printf("  at row %lld, column %lld: %a instead of %a\n", (long long)(i / width), (long long)(i % width),
                (double)out[i], (double)expected[i]);
            return false;
        }
    for (int i = 0; i < GUARD; i++)
        if (out[rows * width + i] != 12345.0f) return false;
    return true;
}

static float *guarded_out(int64_t count) {
    float *out = malloc((size_t)(count + GUARD) * sizeof *out);
    for (int64_t i = 0; i < count + GUARD; i++) out[i] = 12345.0f;
    return out;
}

static const int ROWS[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17, 24, 25, 64, 70};

/* Products with up to `most` activation rows. */
static void check_matmul(CpuBackend *cpu, const Sample *s, const float *x, const float *expected, int most) {
    const Weight *w = &s->weight;
    for (size_t i = 0; i < COUNT_OF(ROWS) && ROWS[i] <= most; i++) {
        float *out = guarded_out(ROWS[i] * w->rows);
        cpu_matmul(&cpu->base, &(Matmul){.rows = ROWS[i], .x = x, .count = 1, .weight = {w}, .out = {out}});
        TEST_MSG(compare(out, expected, ROWS[i], w->rows), "%s: %s bits %d group %d %s, %lldx%lld, %d rows, %d threads",
            cpu->kernels->name, quant_name(w->quant), w->bits, w->group, dtype_name(w->dtype), (long long)w->rows,
            (long long)w->cols, ROWS[i], pool_threads(cpu->pool));
        free(out);
    }
}

static float *random_rows(int rows, int64_t cols) {
    float *x = malloc((size_t)(rows * cols) * sizeof *x);
    for (int64_t i = 0; i < rows * cols; i++) x[i] = random_float() * (random_bits() % 64 == 0 ? 20.0f : 1.0f);
    for (int64_t i = 0; i < cols && i < 64; i++) x[i] = 0;                       /* an empty group */
    for (int64_t i = 64; i < cols && i < 128; i++) x[i] = x[i] * 1e-38f * 1e-3f; /* denormals */
    return x;
}

/* Mean square of the difference to the exact product, over the mean square of that: int8 rounding gives about 6e-3². */
static double relative_error(const Weight *w, const float *x, const float *y) {
    double error = 0, all = 0;
    float *row = malloc((size_t)w->cols * sizeof *row);
    for (int64_t r = 0; r < w->rows; r++) {
        weight_dequantize_row(w, r, 0, w->cols, row);
        double exact = w->bias ? w->bias[r] : 0;
        for (int64_t k = 0; k < w->cols; k++) exact += (double)row[k] * x[k];
        error += (exact - y[r]) * (exact - y[r]);
        all += exact * exact;
    }
    free(row);
    return sqrt(error / all);
}

static void test_kinds(CpuBackend *cpus, int count) {
    static const int BITS[] = {2, 3, 4, 5, 6, 8};
    static const DType DTYPES[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
    Case cases[COUNT_OF(BITS) * 3 * COUNT_OF(DTYPES) + 15] = {
        {QUANT_SYMMETRIC, 4, 32, DTYPE_F16},
        {QUANT_SYMMETRIC, 5, 32, DTYPE_F16},
        {QUANT_SYMMETRIC, 8, 32, DTYPE_F16},
        {QUANT_K, 4, 32, DTYPE_U8},
        {QUANT_K, 5, 32, DTYPE_U8},
        {QUANT_K_SYMMETRIC, 6, 16, DTYPE_U8},
        {QUANT_MXFP4, 4, 32, DTYPE_U8},
        {QUANT_NVFP4, 4, 16, DTYPE_U8},
        {QUANT_MXFP8, 8, 32, DTYPE_U8},
        {QUANT_NONE, 0, 0, DTYPE_F32},
        {QUANT_NONE, 0, 0, DTYPE_F16},
        {QUANT_NONE, 0, 0, DTYPE_BF16},
        {QUANT_TERNARY, 2, 64, DTYPE_F32},
        {QUANT_TERNARY, 2, 64, DTYPE_F16},
        {QUANT_TERNARY, 2, 64, DTYPE_BF16},
    };
    size_t made = 15;
    for (size_t i = 0; i < COUNT_OF(BITS); i++)
        for (int group = 32; group <= 128; group *= 2)
            for (size_t d = 0; d < COUNT_OF(DTYPES); d++)
                cases[made++] = (Case){QUANT_AFFINE, BITS[i], group, DTYPES[d]};
    /* groups per row: below, at and beyond 8, 16, 32, so that every tail occurs */
    static const int GROUPS[] = {1, 7, 14, 16, 21, 35};
    for (size_t c = 0; c < made; c++)
        for (size_t g = 0; g < COUNT_OF(GROUPS); g++) {
            const Case *k = &cases[c];
            if (test_sampled() && k->quant == QUANT_AFFINE && (c + g) % 2) continue;
            const bool records = k->quant == QUANT_K || k->quant == QUANT_K_SYMMETRIC;
            const int64_t cols = records ? (int64_t)K_COLS * (1 + (int64_t)g)
                : k->quant == QUANT_NONE ? GROUPS[g] * 17 + 3
                                         : (int64_t)GROUPS[g] * k->group;
            const int64_t rows = 1 + (int64_t)(random_bits() % 80);
            Sample s = sample_make(rows, cols, k->quant, k->bits, k->group, k->dtype, g & 1);
            float *x = random_rows(MOST_ROWS, cols), *expected = malloc((size_t)(MOST_ROWS * rows) * sizeof *expected);
            for (int t = 0; t < most_rows; t++)
                for (int64_t r = 0; r < rows; r++) expected[t * rows + r] = spec_product(&s.weight, r, x + t * cols);
            for (int i = 0; i < count; i++) check_matmul(&cpus[i], &s, x, expected, most_rows);
            if (GROUPS[g] == 35 && rows >= 16) { /* fewer results may all be near zero */
                /* a step of at most 20 / 127, rounded: (20/127)² / 12 of a mean square of 2.4; plain ones only round */
                double error = relative_error(&s.weight, x + 5 * cols, expected + 5 * rows);
                TEST_MSG(error < (linear_is_integer(&s.weight) ? 0.03 : 1e-6), "%s %d: relative error %g",
                    quant_name(k->quant), k->bits, error);
            }
            sample_free(&s);
            free(x);
            free(expected);
        }
}

/* Rows of BitNet b1.58 2B4T: ternary ones, whose products are those of the same numbers as 2-bit groups. */
static void test_ternary(CpuBackend *cpus, int count) {
    enum { OUT = 48 };
    static const int COLS[] = {2560, 6912};
    for (size_t c = 0; c < COUNT_OF(COLS); c++) {
        const int64_t groups = COLS[c] / 64;
        Sample s = sample_make(OUT, COLS[c], QUANT_TERNARY, 2, 64, DTYPE_BF16, false);
        uint16_t *scales = malloc((size_t)(2 * OUT * groups) * sizeof *scales), *biases = scales + OUT * groups;
        for (int64_t i = 0; i < OUT * groups; i++) {
            memcpy(&scales[i], (const uint8_t *)s.weight.scales + i / groups * 2, 2);
            biases[i] = scales[i] ^ 0x8000;
        }
        Weight affine = s.weight;
        affine.quant = QUANT_AFFINE;
        affine.scales = scales;
        affine.biases = biases;
        float *x = random_rows(MOST_ROWS, COLS[c]), *expected = malloc(sizeof *expected * MOST_ROWS * OUT);
        for (int t = 0; t < most_rows; t++)
            for (int r = 0; r < OUT; r++) {
                expected[t * OUT + r] = spec_product(&s.weight, r, x + t * COLS[c]);
                TEST(same_bits(expected[t * OUT + r], spec_product(&affine, r, x + t * COLS[c])));
            }
        for (int i = 0; i < count; i++) check_matmul(&cpus[i], &s, x, expected, most_rows);
        sample_free(&s);
        free(scales);
        free(x);
        free(expected);
    }
}

/* Rows of few columns, as the second matrices of LoRA adapters have. */
static void test_short(CpuBackend *cpus, int count) {
    static const DType DTYPES[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static const int COLS[] = {1, 4, 8, 16, 24, 32, 64, 80};
    for (size_t d = 0; d < COUNT_OF(DTYPES); d++)
        for (size_t c = 0; c < COUNT_OF(COLS); c++) {
            const int64_t rows = 16 + (int64_t)(random_bits() % 160);
            Sample s = sample_make(rows, COLS[c], QUANT_NONE, 0, 0, DTYPES[d], c & 1);
            float *x = random_rows(MOST_ROWS, COLS[c]),
                  *expected = malloc((size_t)(MOST_ROWS * rows) * sizeof *expected);
            for (int t = 0; t < most_rows; t++)
                for (int64_t r = 0; r < rows; r++) expected[t * rows + r] = spec_product(&s.weight, r, x + t * COLS[c]);
            for (int i = 0; i < count; i++) check_matmul(&cpus[i], &s, x, expected, most_rows);
            sample_free(&s);
            free(x);
            free(expected);
        }
}

/* Quantised rows of few columns, as the matrices of MLA's heads have: several rows of one and two activation rows. */
static void test_few_groups(CpuBackend *cpus, int count) {
    static const int BITS[] = {2, 3, 4, 5, 6, 8}, GROUPS[] = {1, 2, 3, 4, 5, 6, 8, 9};
    static const DType DTYPES[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
    for (size_t b = 0; b < COUNT_OF(BITS); b++)
        for (size_t g = 0; g < COUNT_OF(GROUPS); g++)
            for (int group = 32; group <= 128; group *= 2) {
                const int64_t rows = 64 + (int64_t)(random_bits() % 80), cols = (int64_t)GROUPS[g] * group;
                Sample s = sample_make(rows, cols, QUANT_AFFINE, BITS[b], group, DTYPES[(b + g) % 3], g & 1);
                float *x = random_rows(2, cols), *expected = malloc((size_t)(2 * rows) * sizeof *expected);
                for (int64_t i = 0; i < 2 * rows; i++)
                    expected[i] = spec_product(&s.weight, i % rows, x + i / rows * cols);
                for (int i = 0; i < count; i++) check_matmul(&cpus[i], &s, x, expected, 2);
                sample_free(&s);
                free(x);
                free(expected);
            }
}

/* Fused forms: three weights of different kinds with a norm, glu, matmul_add with and without a norm. */
static void test_fused(CpuBackend *cpu) {
    enum { COLS = 448, TALL = 83, LOW = 33 };
    Sample q = sample_make(TALL, COLS, QUANT_AFFINE, 4, 32, DTYPE_F16, true);
    Sample k = sample_make(LOW, COLS, QUANT_AFFINE, 8, 64, DTYPE_BF16, false);
    Sample v = sample_make(LOW, COLS, QUANT_NONE, 0, 0, DTYPE_BF16, true);
    Sample up = sample_make(TALL, COLS, QUANT_AFFINE, 6, 32, DTYPE_F16, false);
    float *x = random_rows(MOST_ROWS, COLS), *normed = malloc(sizeof *x * MOST_ROWS * COLS);
    const Norm norm = {.kind = NORM_RMS, .width = COLS, .eps = 1e-5f}, after = {.kind = NORM_RMS, .width = TALL};
    for (int t = 0; t < MOST_ROWS; t++) norm_row(x + t * COLS, &norm, normed + t * COLS);
    for (size_t i = 0; i < COUNT_OF(ROWS) && ROWS[i] <= most_rows; i += 2) {
        const int rows = ROWS[i];
        float *a = guarded_out(rows * TALL), *b = guarded_out(rows * LOW), *c = guarded_out(rows * LOW);
        float *g = guarded_out(rows * TALL), *sum = guarded_out(rows * TALL), *sum2 = guarded_out(rows * TALL);
        cpu_matmul(
            &cpu->base, &(Matmul){rows, 0, x, &norm, 3, {&q.weight, &k.weight, &v.weight}, {a, b, c}, false, false, 0});
        cpu_glu(&cpu->base, &(Glu){rows, 0, x, &norm, &q.weight, &up.weight, {.kind = ACT_SILU}, g});
        for (int j = 0; j < rows * TALL; j++) sum[j] = sum2[j] = (float)j;
        cpu_matmul_add(&cpu->base, &(MatmulAdd){rows, 0, x, &q.weight, NULL, 0.5f, sum, NULL});
        cpu_matmul_add(&cpu->base, &(MatmulAdd){rows, 0, x, &q.weight, &after, 0.5f, sum2, NULL});
        bool same = true, glu = true, added = true, added_norm = true;
        for (int t = 0; t < rows; t++) {
            const float *xt = normed + t * COLS;
            float y[TALL];
            for (int r = 0; r < TALL; r++) {
                float gate = spec_product(&q.weight, r, xt), u = spec_product(&up.weight, r, xt), e;
                same = same && same_bits(a[t * TALL + r], gate);
                glu_row(1, &gate, &u, (Activation){.kind = ACT_SILU}, &e);
                glu = glu && same_bits(g[t * TALL + r], e);
                y[r] = spec_product(&q.weight, r, x + t * COLS);
                added = added && same_bits(sum[t * TALL + r], (float)(t * TALL + r) + 0.5f * y[r]);
            }
            norm_row(y, &after, y);
            for (int r = 0; r < TALL; r++)
                added_norm = added_norm && same_bits(sum2[t * TALL + r], (float)(t * TALL + r) + 0.5f * y[r]);
            for (int r = 0; r < LOW; r++) {
                same = same && same_bits(b[t * LOW + r], spec_product(&k.weight, r, xt));
                same = same && same_bits(c[t * LOW + r], spec_product(&v.weight, r, xt));
            }
        }
        const char *name = cpu->kernels->name;
        const int threads = pool_threads(cpu->pool);
        TEST_MSG(same, "%s: q, k, v, %d rows, %d threads", name, rows, threads);
        TEST_MSG(glu, "%s: glu, %d rows, %d threads", name, rows, threads);
        TEST_MSG(added, "%s: matmul_add, %d rows, %d threads", name, rows, threads);
        TEST_MSG(added_norm, "%s: matmul_add with a norm, %d rows, %d threads", name, rows, threads);
        float *all[] = {a, b, c, g, sum, sum2};
        for (size_t j = 0; j < COUNT_OF(all); j++) free(all[j]);
    }
    sample_free(&q);
    sample_free(&k);
    sample_free(&v);
    sample_free(&up);
    free(x);
    free(normed);
}

/* Matrices of two precisions in one operation have the bits that they have in one each. */
static void test_fine_last(CpuBackend *cpu) {
    enum { COLS = 576, TALL = 83, LOW = 33, MOST = 3 };
    Sample q = sample_make(TALL, COLS, QUANT_AFFINE, 4, 64, DTYPE_BF16, true);
    Sample z = sample_make(LOW, COLS, QUANT_AFFINE, 8, 32, DTYPE_F16, false);
    Sample a = sample_make(LOW, COLS, QUANT_AFFINE, 4, 64, DTYPE_BF16, false);
    Sample b = sample_make(LOW, COLS, QUANT_NONE, 0, 0, DTYPE_BF16, true);
    const Sample *const samples[] = {&q, &z, &a, &b};
    const Norm norm = {.kind = NORM_RMS, .width = COLS, .eps = 1e-5f};
    float *x = random_rows(MOST, COLS);
    for (int rows = 1; rows <= MOST; rows += 2) {
        Matmul together = {.rows = rows, .x = x, .norm = &norm, .count = 4, .fine = true, .fine_last = 2};
        float *expected[4], *coarse = guarded_out(rows * LOW);
        for (int i = 0; i < 4; i++) {
            together.weight[i] = &samples[i]->weight;
            together.out[i] = guarded_out(rows * (int)samples[i]->weight.rows);
            expected[i] = guarded_out(rows * (int)samples[i]->weight.rows);
            Matmul alone = {.rows = rows, .x = x, .norm = &norm, .count = 1, .fine = i >= 2};
            alone.weight[0] = together.weight[i];
            alone.out[0] = expected[i];
            cpu_matmul(&cpu->base, &alone);
        }
        cpu_matmul(&cpu->base, &together);
        for (int i = 0; i < 4; i++) {
            const size_t bytes = (size_t)(rows * samples[i]->weight.rows) * sizeof(float);
            TEST_MSG(!memcmp(together.out[i], expected[i], bytes), "%s: matrix %d of two precisions, %d rows",
                cpu->kernels->name, i, rows);
        }
        cpu_matmul(&cpu->base,
            &(Matmul){.rows = rows, .x = x, .norm = &norm, .count = 1, .weight = {&a.weight}, .out = {coarse}});
        TEST(memcmp(coarse, together.out[2], (size_t)(rows * LOW) * sizeof(float)) != 0);
        free(coarse);
        for (int i = 0; i < 4; i++) {
            free(together.out[i]);
            free(expected[i]);
        }
    }
    sample_free(&q);
    sample_free(&z);
    sample_free(&a);
    sample_free(&b);
    free(x);
}

/* Values that are no numbers spoil their own row only. */
static void test_not_finite(CpuBackend *cpu) {
    enum { COLS = 256, ROWS_OUT = 20 };
    Sample s = sample_make(ROWS_OUT, COLS, QUANT_AFFINE, 4, 64, DTYPE_F16, false);
    for (int rows = 3; rows <= 9; rows += 6) {
        float *x = random_rows(rows, COLS), *out = guarded_out(rows * ROWS_OUT);
        x[COLS + 3] = INFINITY;
        x[COLS + 200] = NAN;
        cpu_matmul(&cpu->base, &(Matmul){.rows = rows, .x = x, .count = 1, .weight = {&s.weight}, .out = {out}});
        for (int t = 0; t < rows; t++)
            for (int r = 0; r < ROWS_OUT; r++)
                TEST(same_bits(out[t * ROWS_OUT + r], spec_product(&s.weight, r, x + t * COLS)));
        TEST(isnan(out[ROWS_OUT]) && isfinite(out[0]) && isfinite(out[2 * ROWS_OUT]));
        free(x);
        free(out);
    }
    sample_free(&s);
}

/* More rows than a panel meets at a time. */
static void test_chunks(CpuBackend *cpu) {
    enum { COLS = 1280, ROWS_OUT = 35, MANY = 278 };
    Sample s = sample_make(ROWS_OUT, COLS, QUANT_AFFINE, 4, 64, DTYPE_BF16, false);
    float *x = random_rows(MANY, COLS), *out = guarded_out(MANY * ROWS_OUT), *expected = guarded_out(MANY * ROWS_OUT);
    for (int t = 0; t < MANY; t++)
        for (int r = 0; r < ROWS_OUT; r++) expected[t * ROWS_OUT + r] = spec_product(&s.weight, r, x + t * COLS);
    cpu_matmul(&cpu->base, &(Matmul){.rows = MANY, .x = x, .count = 1, .weight = {&s.weight}, .out = {out}});
    TEST_MSG(compare(out, expected, MANY, ROWS_OUT), "%s: %d rows", cpu->kernels->name, MANY);
    free(x);
    free(out);
    free(expected);
    sample_free(&s);
}

/* Rows whose activations are set apart, as they would lie in the same cache lines. */
static void test_apart(CpuBackend *cpu) {
    enum { COLS = 4096, ROWS_OUT = 5, MANY = 33 };
    static const int COUNTS[] = {2, 8, MANY};
    for (int kind = 0; kind < 2; kind++) {
        Sample s = sample_make(ROWS_OUT, COLS, QUANT_AFFINE, kind ? 8 : 4, kind ? 32 : 64, DTYPE_BF16, false);
        float *x = random_rows(MANY, COLS), *expected = guarded_out(MANY * ROWS_OUT);
        for (int t = 0; t < MANY; t++)
            for (int r = 0; r < ROWS_OUT; r++) expected[t * ROWS_OUT + r] = spec_product(&s.weight, r, x + t * COLS);
        for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
            float *out = guarded_out(COUNTS[i] * ROWS_OUT);
            cpu_matmul(
                &cpu->base, &(Matmul){.rows = COUNTS[i], .x = x, .count = 1, .weight = {&s.weight}, .out = {out}});
            TEST_MSG(compare(out, expected, COUNTS[i], ROWS_OUT), "%s: %d rows", cpu->kernels->name, COUNTS[i]);
            free(out);
        }
        free(x);
        free(expected);
        sample_free(&s);
    }
}

static void test_embed(CpuBackend *cpu) {
    Sample s = sample_make(50, 96, QUANT_AFFINE, 5, 32, DTYPE_F16, false);
    const int32_t tokens[] = {49, 0, 7};
    float *out = guarded_out(3 * 96), row[96];
    cpu_embed(&cpu->base, &(Embed){.rows = 3, .tokens = tokens, .table = &s.weight, .scale = 2.5f, .out = out});
    for (int t = 0; t < 3; t++) {
        weight_dequantize_row(&s.weight, tokens[t], 0, 96, row);
        for (int i = 0; i < 96; i++) TEST(out[t * 96 + i] == 2.5f * row[i]);
    }
    sample_free(&s);
    free(out);
}

static CpuBackend open_cpu(const CpuKernels *kernels, int threads) {
    CpuBackend cpu = {.base = {.rows_max = MOST_ROWS}, .kernels = kernels};
    Error error;
    cpu.pool = pool_open(threads, &error);
    CHECK(cpu.pool);
    cpu.work_bytes = linear_work_bytes(MOST_ROWS, threads);
    cpu.work = mmap(NULL, cpu.work_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(cpu.work != MAP_FAILED);
    return cpu;
}

static void close_cpu(CpuBackend *cpu) {
    pool_close(cpu->pool);
    munmap(cpu->work, cpu->work_bytes);
}

/* The instruction sets of this machine. */
enum { SETS = 3 };
static int kernel_sets(const CpuKernels *sets[SETS]) {
    int count = 0;
#if defined(__x86_64__)
    static const CpuKernels AVX2 = {
        .name = "avx2", .linear = &linear_kernels_avx2, .norm_row = norm_row, .glu_row = glu_row};
    static const CpuKernels AVX512 = {
        .name = "avx512", .linear = &linear_kernels_avx512, .norm_row = norm_row, .glu_row = glu_row};
    static const CpuKernels AMX = {
        .name = "amx", .linear = &linear_kernels_amx, .norm_row = norm_row, .glu_row = glu_row};
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets[count++] = &AVX2;
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("gfni")) {
        sets[count++] = &AVX512;
        if (amx_available()) sets[count++] = &AMX;
    }
#elif defined(__aarch64__)
    static const CpuKernels NEON = {
        .name = "neon", .linear = &linear_kernels_neon, .norm_row = norm_row, .glu_row = glu_row};
    const BackendOptions options = {.cpu = "neon", .threads = 1, .rows_max = 1};
    Error error;
    Backend *backend = backend_open(&options, &error);
    if (backend) sets[count++] = &NEON;
    backend_close(backend);
#endif
    return count;
}

/* test_linear [short]: fewer rows and threads, for an emulator. */
int main(int argument_count, char **arguments) {
    const bool is_short = argument_count > 1 && strcmp(arguments[1], "short") == 0;
    if (is_short) most_rows = SHORT_ROWS;
    const CpuKernels *sets[SETS];
    const int set_count = kernel_sets(sets);
    for (int i = 0; i < set_count; i++) printf("%s%s", sets[i]->name, i < set_count - 1 ? ", " : "\n");
    if (set_count == 0) return test_skip_all("products: neither AVX2 nor NEON with dot products on this machine");
    static const int THREADS[] = {1, 2, 4};
    CpuBackend cpus[COUNT_OF(THREADS) * SETS];
    int count = 0;
    for (int i = 0; i < set_count; i++)
        for (size_t t = 0; t < (is_short || test_sampled() ? 2 : COUNT_OF(THREADS)); t++)
            cpus[count++] = open_cpu(sets[i], THREADS[t]);
    test_kinds(cpus, count);
    test_ternary(cpus, count);
    test_short(cpus, count);
    if (!is_short) test_few_groups(cpus, count);       /* kernels of AVX-512 */
    for (int i = 0; i < set_count && !is_short; i++) { /* many threads take turns on few cores: a product or two */
        CpuBackend many = open_cpu(sets[i], MANY_THREADS);
        test_chunks(&many);
        close_cpu(&many);
    }
    for (int i = 0; i < count; i++) {
        test_fused(&cpus[i]);
        test_fine_last(&cpus[i]);
        test_not_finite(&cpus[i]);
        test_apart(&cpus[i]);
        if (!is_short) test_chunks(&cpus[i]);
        test_embed(&cpus[i]);
        close_cpu(&cpus[i]);
    }
    return test_done();
}
