/* Slices of columns are the numbers of the whole matrix. */
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"
#include "test.h"

enum { ROWS = 5, COLS = 1024 };

static uint64_t seed = 1;

static void *random_bytes(size_t size) {
    uint8_t *bytes = malloc(size);
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)(test_random(&seed) & 0x3f); /* no scale is infinite */
    return bytes;
}

static void check(Weight w) {
    void *data = random_bytes(ROWS * weight_row_bytes(&w)), *scales = random_bytes(ROWS * weight_scale_bytes(&w) + 1);
    float bias[ROWS], whole[COLS], part[COLS];
    w.data = data;
    w.bias = bias;
    if (w.quant != QUANT_NONE) w.scales = scales;
    if (w.quant == QUANT_AFFINE) w.biases = scales;
    const int64_t unit = weight_column_unit(&w);
    for (int64_t first = 0; first < COLS; first += COLS / 4) {
        Weight shape = w;
        shape.cols = COLS / 4;
        TEST(first % unit == 0 && shape.cols % unit == 0);
        void *memory = malloc(weight_columns_bytes(&shape));
        const Weight slice = weight_columns(&w, first, shape.cols, memory);
        TEST(slice.rows == ROWS && slice.cols == COLS / 4 && slice.data == memory && slice.bias == bias);
        for (int r = 0; r < ROWS; r++) {
            weight_dequantize_row(&w, r, 0, COLS, whole);
            weight_dequantize_row(&slice, r, 0, slice.cols, part);
            TEST_MSG(!memcmp(whole + first, part, sizeof *part * COLS / 4), "%s %d bits, columns from %d, row %d",
                quant_name(w.quant), w.bits, (int)first, r);
        }
        free(memory);
    }
    free(data);
    free(scales);
}

int main(void) {
    static const DType floats[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static const int bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    for (int i = 0; i < 3; i++) check((Weight){.rows = ROWS, .cols = COLS, .dtype = floats[i]});
    for (int b = 0; b < 6; b++)
        for (int g = 0; g < 3; g++)
            check((Weight){.rows = ROWS,
                .cols = COLS,
                .quant = QUANT_AFFINE,
                .bits = bits[b],
                .group = groups[g],
                .dtype = DTYPE_BF16});
    check((Weight){.rows = ROWS, .cols = COLS, .quant = QUANT_MXFP4, .bits = 4, .group = 32, .dtype = DTYPE_U8});
    check((Weight){.rows = ROWS, .cols = COLS, .quant = QUANT_NVFP4, .bits = 4, .group = 16, .dtype = DTYPE_U8});
    check((Weight){.rows = ROWS, .cols = COLS, .quant = QUANT_MXFP8, .bits = 8, .group = 32, .dtype = DTYPE_U8});
    check((Weight){.rows = ROWS, .cols = COLS, .quant = QUANT_SYMMETRIC, .bits = 5, .group = 32, .dtype = DTYPE_F16});
    check((Weight){.rows = ROWS, .cols = COLS, .quant = QUANT_K, .bits = 4, .group = 32, .dtype = DTYPE_U8});
    check((Weight){.rows = ROWS, .cols = COLS, .quant = QUANT_K_SYMMETRIC, .bits = 6, .group = 16, .dtype = DTYPE_U8});
    check((Weight){.rows = ROWS, .cols = COLS, .quant = QUANT_TERNARY, .bits = 2, .group = 64, .dtype = DTYPE_BF16});
    return test_done();
}
