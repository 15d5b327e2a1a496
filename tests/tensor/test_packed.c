/* tensor/packed: every kind against its formula, element by element, and wrong shapes. tests/model/check_packed.py
 * compares whole checkpoints. */
#include "tensor/packed.h"

#include <math.h>

#include "tensor/float8.h"
#include "test.h"

enum { ROWS = 64, COLS = 192, GROUP = 64, GROUPS = COLS / GROUP, BYTES_MAX = ROWS * COLS * 4 };

static uint8_t data[BYTES_MAX], zeros[BYTES_MAX], scales[BYTES_MAX], order[BYTES_MAX];
static uint8_t out[BYTES_MAX], out_scales[BYTES_MAX], out_biases[BYTES_MAX];

static Tensor matrix(const void *bytes, DType dtype, int64_t rows, int64_t cols) {
    return (Tensor){.data = bytes,
        .dtype = dtype,
        .rank = 2,
        .shape = {rows, cols},
        .bytes = (size_t)(rows * cols) * dtype_bytes(dtype)};
}

/* A packed matrix of random codes, and scales between 0.5 and 1 that are f16. */
static PackedMatrix make(PackedKind kind, int bits, uint64_t *seed) {
    const int64_t per = 32 / bits;
    const bool by_group = kind == PACKED_AWQ || kind == PACKED_GPTQ;
    for (int i = 0; i < BYTES_MAX; i++) {
        data[i] = (uint8_t)test_random(seed);
        zeros[i] = (uint8_t)test_random(seed);
        scales[i] = i % 2 ? 0x38 : (uint8_t)test_random(seed);
    }
    PackedMatrix p = {.kind = kind, .rows = ROWS, .cols = COLS, .bits = bits, .group = GROUP};
    p.scales = by_group ? matrix(scales, DTYPE_F16, GROUPS, ROWS) : matrix(scales, DTYPE_F16, ROWS, GROUPS);
    if (kind == PACKED_AWQ) p.data = matrix(data, DTYPE_I32, COLS, ROWS / per);
    if (kind == PACKED_GPTQ) p.data = matrix(data, DTYPE_I32, COLS / per, ROWS);
    if (kind == PACKED_WORDS) p.data = matrix(data, DTYPE_I32, ROWS, COLS / per);
    if (kind == PACKED_BYTES) p.data = matrix(data, DTYPE_I8, ROWS, COLS);
    if (kind == PACKED_FP8) p.data = matrix(data, DTYPE_U8, ROWS, COLS);
    if (by_group) p.zeros = matrix(zeros, DTYPE_I32, GROUPS, ROWS / per);
    return p;
}

static int bits_at(const uint8_t *words, int64_t word, int64_t shift, int bits) {
    uint32_t value;
    memcpy(&value, words + 4 * word, sizeof value);
    return (int)(value >> shift & ((1u << bits) - 1));
}

/* The number at a place by the program's own formula. */
static float expected(const PackedMatrix *p, int64_t r, int64_t c) {
    static const int awq[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const int64_t per = 32 / p->bits, g = c / GROUP;
    const bool by_group = p->kind == PACKED_AWQ || p->kind == PACKED_GPTQ;
    float scale;
    floats_to_f32(&scale, scales + 2 * (by_group ? g * ROWS + r : r * GROUPS + g), DTYPE_F16, 1);
    if (p->kind == PACKED_NVFP4) {
        static const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
        const int code = data[r * COLS / 2 + c / 2] >> c % 2 * 4 & 15;
        const float factor = *(const float *)p->factor.data, block = e4m3_to_f32(scales[r * (COLS / 16) + c / 16]);
        return (code & 8 ? -1.0f : 1.0f) * values[code & 7] * (p->inverse_scale ? block / factor : block * factor);
    }
    if (p->kind == PACKED_FP8) return e4m3_to_f32(data[r * COLS + c]) * scale;
    if (p->kind == PACKED_BYTES) return (float)(int8_t)data[r * COLS + c] * scale;
    if (p->kind == PACKED_WORDS)
        return (float)(bits_at(data, r * (COLS / per) + c / per, c % per * p->bits, p->bits) - (1 << (p->bits - 1))) *
            scale;
    if (p->kind == PACKED_AWQ)
        return (float)(bits_at(data, c * (ROWS / 8) + r / 8, 4 * awq[r % 8], 4) -
                   bits_at(zeros, g * (ROWS / 8) + r / 8, 4 * awq[r % 8], 4)) *
            scale;
    const int zero = bits_at(zeros, g * (ROWS / per) + r / per, r % per * p->bits, p->bits) + p->zeros_less_one;
    return (float)(bits_at(data, c / per * ROWS + r, c % per * p->bits, p->bits) - zero) * scale;
}

static void compare(const PackedMatrix *p, int64_t first, int64_t count) {
    Error error = {0};
    float row[COLS];
    int wrong = 0;
    TEST(packed_read(p, 0, count, out, out_scales, out_biases, &error));
    Weight w = p->form;
    w.data = out;
    w.scales = w.quant == QUANT_NONE ? NULL : out_scales;
    w.biases = w.quant == QUANT_AFFINE ? out_biases : NULL;
    for (int64_t r = 0; r < count; r++) {
        weight_dequantize_row(&w, r, 0, COLS, row);
        for (int64_t c = 0; c < COLS; c++) {
            float want = expected(p, first + r, c);
            uint8_t bytes[4];
            if (w.quant == QUANT_NONE) { /* rounded once */
                floats_from_f32(bytes, w.dtype, &want, 1);
                floats_to_f32(&want, bytes, w.dtype, 1);
            }
            wrong += row[c] != want && !(row[c] != row[c] && want != want);
        }
    }
    TEST_MSG(wrong == 0, "kind %d, %d bits: %d of %d differ", (int)p->kind, p->bits, wrong, (int)(count * COLS));
}

static void test_kind(PackedKind kind, int bits, bool less_one, uint64_t *seed) {
    Error error = {0};
    PackedMatrix p = make(kind, bits, seed);
    p.zeros_less_one = less_one;
    if (kind == PACKED_FP8) p.block_rows = 1;
    TEST_MSG(packed_check(&p, &error), "%s", error.text);
    TEST((kind == PACKED_FP8) == (p.form.quant == QUANT_NONE));
    compare(&p, 0, ROWS);
    const PackedMatrix part = packed_rows(&p, 40, 8);
    compare(&part, 40, 8);
    PackedMatrix broken = p;
    broken.data.shape[1]++;
    TEST(!packed_check(&broken, &error) && error.code == ERROR_FORMAT);
    broken = p;
    broken.scales.shape[0]--;
    TEST(!packed_check(&broken, &error) && error.code == ERROR_FORMAT);
}

/* Columns in another order become plain numbers. */
static void test_order(uint64_t *seed) {
    Error error = {0};
    PackedMatrix p = make(PACKED_GPTQ, 4, seed);
    for (int32_t c = 0; c < COLS; c++) {
        const int32_t group = c % GROUPS;
        memcpy(order + 4 * c, &group, sizeof group);
    }
    p.group_of = (Tensor){.data = order, .dtype = DTYPE_I32, .rank = 1, .shape = {COLS}, .bytes = 4 * COLS};
    TEST(packed_check(&p, &error) && p.form.quant == QUANT_NONE && p.form.dtype == DTYPE_F16);
    TEST(packed_read(&p, 0, ROWS, out, NULL, NULL, &error));
    const int32_t beyond = GROUPS;
    memcpy(order, &beyond, sizeof beyond);
    TEST(!packed_check(&p, &error) && error.code == ERROR_FORMAT);
}

/* Rows of two matrices that alternate. */
static void test_mxfp4(uint64_t *seed) {
    Error error = {0};
    for (int i = 0; i < BYTES_MAX; i++) data[i] = (uint8_t)test_random(seed);
    for (int i = 0; i < BYTES_MAX; i++) scales[i] = (uint8_t)(120 + test_random(seed) % 10);
    for (int first = 0; first < 2; first++) {
        PackedMatrix p = {.kind = PACKED_MXFP4, .rows = ROWS / 2, .cols = COLS, .first_row = first, .row_step = 2};
        p.data = (Tensor){.data = data, .dtype = DTYPE_U8, .rank = 4, .shape = {2, ROWS / 2, COLS / 32, 16}};
        p.scales = (Tensor){.data = scales, .dtype = DTYPE_U8, .rank = 3, .shape = {2, ROWS / 2, COLS / 32}};
        TEST_MSG(packed_check(&p, &error), "%s", error.text);
        TEST(packed_read(&p, 0, ROWS / 2, out, out_scales, NULL, &error));
        for (int r = 0; r < ROWS / 2; r++) {
            TEST(!memcmp(out + r * COLS / 2, data + (2 * r + first) * COLS / 2, COLS / 2));
            TEST(!memcmp(out_scales + r * COLS / 32, scales + (2 * r + first) * COLS / 32, COLS / 32));
        }
        p.data.shape[3] = 15;
        TEST(!packed_check(&p, &error));
    }
}

/* NVFP4 keeps its form where the factor goes into all scales, those that no scale has aside; else bf16, rounded once.
 */
static void test_nvfp4(bool inverse, uint64_t *seed) {
    static const struct {
        float factor;
        uint8_t top; /* of the scales' codes */
        bool folds;
    } cases[] = {{1, 0x7E, true}, {0.25f, 0x7E, true}, {2, 0x76, true}, {2, 0x77, false}, {0.001f, 0x7E, false},
        {1.5f, 0x40, false}, {3, 0, true}};
    Error error = {0};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        const float factor = inverse ? 1 / cases[k].factor : cases[k].factor;
        for (int i = 0; i < BYTES_MAX; i++) data[i] = (uint8_t)test_random(seed);
        for (int i = 0; i < ROWS * COLS / 16; i++) /* of 2^-4 and more, or 0 */
            scales[i] =
                i % 7 == 0 ? 0 : (uint8_t)(0x18 + test_random(seed) % (cases[k].top > 0x18 ? cases[k].top - 0x17 : 1));
        for (int i = 0; i < ROWS * COLS / 16 && !cases[k].top; i++) scales[i] = 0;
        scales[5] = cases[k].top;
        PackedMatrix p = {.kind = PACKED_NVFP4, .rows = ROWS, .cols = COLS, .bits = 4, .inverse_scale = inverse};
        p.data = matrix(data, DTYPE_U8, ROWS, COLS / 2);
        p.scales = matrix(scales, DTYPE_U8, ROWS, COLS / 16);
        p.factor = (Tensor){.data = &factor, .dtype = DTYPE_F32, .bytes = sizeof factor};
        TEST_MSG(packed_check(&p, &error), "%s", error.text);
        TEST_MSG(p.form.quant == (cases[k].folds ? QUANT_NVFP4 : QUANT_NONE), "factor %g to %d",
            (double)cases[k].factor, cases[k].top);
        compare(&p, 0, ROWS);
        const PackedMatrix part = packed_rows(&p, 40, 8);
        compare(&part, 40, 8);
        p.scales.shape[1]--;
        TEST(!packed_check(&p, &error) && error.code == ERROR_FORMAT);
    }
}

/* Rows a quarter of the matrix apart share bytes; one scale multiplies or divides all. */
static void test_ternary(bool inverse, bool for_file, uint64_t *seed) {
    Error error = {0};
    float row[COLS], scale = 0.75f;
    int wrong = 0;
    for (int i = 0; i < BYTES_MAX; i++) {
        const uint8_t random = (uint8_t)test_random(seed);
        data[i] = random & (uint8_t) ~(random & random >> 1 & 0x55); /* no code is 3 */
    }
    floats_from_f32(scales, DTYPE_BF16, &scale, 1);
    PackedMatrix p = {
        .kind = PACKED_TERNARY, .rows = ROWS, .cols = COLS, .bits = 2, .inverse_scale = inverse, .for_file = for_file};
    p.data = matrix(data, DTYPE_U8, ROWS / 4, COLS);
    p.scales = (Tensor){.data = scales, .dtype = DTYPE_BF16, .rank = 1, .shape = {1}, .bytes = 2};
    TEST_MSG(packed_check(&p, &error), "%s", error.text);
    TEST(p.form.quant == (for_file ? QUANT_AFFINE : QUANT_TERNARY) && p.form.bits == 2);
    TEST(p.form.dtype == (inverse ? DTYPE_F32 : DTYPE_BF16));
    TEST(for_file || weight_bytes(&p.form) == ROWS * (COLS / 4 + dtype_bytes(p.form.dtype)));
    TEST(packed_read(&p, 0, ROWS, out, out_scales, for_file ? out_biases : NULL, &error));
    Weight w = p.form;
    w.data = out;
    w.scales = out_scales;
    w.biases = for_file ? out_biases : NULL;
    if (inverse) scale = 1 / scale;
    for (int r = 0; r < ROWS; r++) {
        weight_dequantize_row(&w, r, 0, COLS, row);
        for (int c = 0; c < COLS; c++) {
            const int code = data[r % (ROWS / 4) * COLS + c] >> 2 * (r / (ROWS / 4)) & 3;
            wrong += row[c] != fmaf((float)code, scale, -scale);
        }
    }
    TEST_MSG(wrong == 0, "%d of %d differ", wrong, ROWS * COLS);
    PackedMatrix broken = p;
    broken.data.shape[0]++;
    TEST(!packed_check(&broken, &error) && error.code == ERROR_FORMAT);
    broken = p;
    broken.scales.bytes = 4;
    TEST(!packed_check(&broken, &error) && error.code == ERROR_FORMAT);
    broken = p;
    broken.rows += 2;
    TEST(!packed_check(&broken, &error) && error.code == ERROR_FORMAT);
}

int main(void) {
    uint64_t seed = 5;
    test_kind(PACKED_AWQ, 4, false, &seed);
    for (int bits = 2; bits <= 8; bits *= 2) {
        test_kind(PACKED_GPTQ, bits, true, &seed);
        test_kind(PACKED_GPTQ, bits, false, &seed);
        test_kind(PACKED_WORDS, bits, false, &seed);
    }
    test_kind(PACKED_BYTES, 8, false, &seed);
    test_kind(PACKED_FP8, 8, false, &seed);
    for (int i = 0; i < 4; i++) test_ternary(i & 1, i & 2, &seed);
    test_order(&seed);
    test_mxfp4(&seed);
    test_nvfp4(false, &seed);
    test_nvfp4(true, &seed);
    return test_done();
}
