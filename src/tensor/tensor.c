/* Names and sizes of element types, and where the parts of a Weight lie. */
#include "tensor/tensor.h"

#include <string.h>

static const struct {
    const char *name; /* as in safetensors */
    size_t bytes;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_F32] = {"F32", 4},
    [DTYPE_F16] = {"F16", 2},
    [DTYPE_BF16] = {"BF16", 2},
    [DTYPE_U8] = {"U8", 1},
    [DTYPE_I8] = {"I8", 1},
    [DTYPE_U16] = {"U16", 2},
    [DTYPE_I16] = {"I16", 2},
    [DTYPE_U32] = {"U32", 4},
    [DTYPE_I32] = {"I32", 4},
    [DTYPE_I64] = {"I64", 8},
    [DTYPE_U64] = {"U64", 8},
    [DTYPE_F64] = {"F64", 8},
    [DTYPE_BOOL] = {"BOOL", 1},
};

size_t dtype_bytes(DType dtype) { return dtypes[dtype].bytes; }
const char *dtype_name(DType dtype) { return dtypes[dtype].name; }

const char *quant_name(Quant quant) {
    static const char *const names[] = {
        [QUANT_NONE] = "none",
        [QUANT_AFFINE] = "affine",
        [QUANT_MXFP4] = "mxfp4",
        [QUANT_NVFP4] = "nvfp4",
        [QUANT_MXFP8] = "mxfp8",
        [QUANT_SYMMETRIC] = "symmetric",
        [QUANT_K] = "k",
        [QUANT_K_SYMMETRIC] = "k_symmetric",
        [QUANT_TERNARY] = "ternary",
    };
    return names[quant];
}

size_t weight_row_bytes(const Weight *w) {
    if (w->quant == QUANT_NONE) return (size_t)w->cols * dtype_bytes(w->dtype);
    return (size_t)w->cols * (size_t)w->bits / 8;
}

size_t weight_scale_bytes(const Weight *w) {
    if (w->quant == QUANT_NONE) return 0;
    if (w->quant == QUANT_K) return (size_t)(w->cols / K_COLS) * K_BYTES;
    if (w->quant == QUANT_K_SYMMETRIC) return (size_t)(w->cols / K_COLS) * K_SYMMETRIC_BYTES;
    if (w->quant == QUANT_TERNARY) return dtype_bytes(w->dtype);
    const bool bytes = w->quant == QUANT_MXFP4 || w->quant == QUANT_NVFP4 || w->quant == QUANT_MXFP8;
    return (size_t)(w->cols / w->group) * (bytes ? 1 : dtype_bytes(w->dtype));
}

size_t weight_bytes(const Weight *w) {
    size_t scales = weight_scale_bytes(w);
    return (size_t)w->rows * (weight_row_bytes(w) + (w->quant == QUANT_AFFINE ? 2 * scales : scales));
}

Weight weight_rows(const Weight *w, int64_t first, int64_t count) {
    CHECK(first >= 0 && count >= 0 && count <= w->rows && first <= w->rows - count);
    Weight slice = *w;
    slice.rows = count;
    slice.data = (const uint8_t *)w->data + (size_t)first * weight_row_bytes(w);
    if (w->scales) slice.scales = (const uint8_t *)w->scales + (size_t)first * weight_scale_bytes(w);
    if (w->biases) slice.biases = (const uint8_t *)w->biases + (size_t)first * weight_scale_bytes(w);
    if (w->bias) slice.bias = w->bias + first;
    return slice;
}

int64_t weight_column_unit(const Weight *w) {
    if (w->quant == QUANT_NONE) return 1;
    return w->quant == QUANT_K || w->quant == QUANT_K_SYMMETRIC ? K_COLS : w->group;
}

enum { COLUMNS_ALIGN = 64 };
static size_t columns_up(size_t bytes) { return (bytes + COLUMNS_ALIGN - 1) / COLUMNS_ALIGN * COLUMNS_ALIGN; }

size_t weight_columns_bytes(const Weight *slice) {
    const size_t rows = (size_t)slice->rows;
    return columns_up(rows * weight_row_bytes(slice)) + 2 * columns_up(rows * weight_scale_bytes(slice));
}

/* A range of each row's bytes at *part, if there is such a part, at `to`; gives where the next one goes. */
static uint8_t *copy_columns(
    uint8_t *to, const void **part, int64_t rows, size_t row_bytes, size_t first, size_t count) {
    if (!*part) return to;
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + (size_t)r * count, (const uint8_t *)*part + (size_t)r * row_bytes + first, count);
    *part = to;
    return to + columns_up((size_t)rows * count);
}

Weight weight_columns(const Weight *w, int64_t first, int64_t count, void *memory) {
    const int64_t unit = weight_column_unit(w);
    CHECK(first >= 0 && count > 0 && first <= w->cols - count && first % unit == 0 && count % unit == 0);
    Weight slice = *w, before = *w;
    slice.cols = count;
    before.cols = first;
    const size_t data = weight_row_bytes(w), scales = weight_scale_bytes(w);
    const size_t data_at = weight_row_bytes(&before);
    const size_t scales_at = w->quant == QUANT_TERNARY ? 0 : weight_scale_bytes(&before);
    uint8_t *to = copy_columns(memory, &slice.data, w->rows, data, data_at, weight_row_bytes(&slice));
    to = copy_columns(to, &slice.scales, w->rows, scales, scales_at, weight_scale_bytes(&slice));
    copy_columns(to, &slice.biases, w->rows, scales, scales_at, weight_scale_bytes(&slice));
    return slice;
}
