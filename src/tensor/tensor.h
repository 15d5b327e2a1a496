/* tensor/: numbers as files hold them: types, quantised forms, safetensors. Nothing here computes with a model.
 *
 * What a checkpoint holds: typed arrays, and weights (a matrix and how it is quantised). Views: they own nothing. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { TENSOR_RANK_MAX = 5 };

typedef enum DType {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_U8,
    DTYPE_I8,
    DTYPE_U16,
    DTYPE_I16,
    DTYPE_U32,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_U64,
    DTYPE_F64,
    DTYPE_BOOL,
    DTYPE_COUNT
} DType;

size_t dtype_bytes(DType dtype);
const char *dtype_name(DType dtype); /* as in safetensors: "BF16" */
static inline bool dtype_is_float(DType d) { return d == DTYPE_F32 || d == DTYPE_F16 || d == DTYPE_BF16; }

/* A dense row-major array somewhere in a file. data may be unaligned. */
typedef struct Tensor {
    const void *data;
    DType dtype;
    int rank;
    int64_t shape[TENSOR_RANK_MAX];
    size_t bytes;
} Tensor;

typedef enum Quant {
    QUANT_NONE,   /* data: rows × cols of dtype (f32, f16, bf16) */
    QUANT_AFFINE, /* w = scale·q + bias per group; bits 2 3 4 5 6 8; group 32 64 128; scales and biases of dtype */
    QUANT_MXFP4,  /* E2M1 elements, E8M0 scale (u8) per 32 */
    QUANT_NVFP4,  /* E2M1 elements, E4M3 scale (u8) per 16 */
    QUANT_MXFP8,  /* E4M3 elements, E8M0 scale (u8) per 32 */
    /* The same affine numbers as GGUF's blocks keep them, with scales of fewer bits (ggml-common.h there). h =
       2^(bits−1). */
    QUANT_SYMMETRIC, /* w = scale·(q − h); group 32; scales f16 (Q4_0 Q5_0 Q8_0) */
    QUANT_K, /* w = d·s·q + e·m; group 32; scales: records of 20 bytes per 256 columns: d, e f16, then s, m u8 of
                8 groups (Q4_K Q5_K, whose dmin is −e) */
    QUANT_K_SYMMETRIC, /* w = d·s·(q − h); group 16; records of 18 bytes per 256 columns: d f16, then s i8 (Q6_K) */
    QUANT_TERNARY,     /* w = scale·(q − 1), q = 0, 1 or 2 (BitNet); bits 2; group 64; one scale of dtype per row */
} Quant;
const char *quant_name(Quant quant);

enum { K_COLS = 256, K_BYTES = 20, K_SYMMETRIC_BYTES = 18 }; /* columns and bytes of one scale record */

/* How a backend of several devices divides a weight. */
typedef enum Split {
    SPLIT_NONE,    /* each has all of it */
    SPLIT_ROWS,    /* each has so many rows; of a vector, elements */
    SPLIT_COLUMNS, /* each has so many columns, and what they give is summed */
} Split;

/* A matrix to multiply by: y[rows] = W[rows, cols] · x[cols] (+ bias). In the file's layout (mlx/ops.cpp, quantize): a
 * row is cols·bits/8 bytes, one little-endian bit stream, element i = bits [i·b, (i+1)·b); rows are contiguous; scales
 * and biases are [rows, cols/group], or records, or [rows]. A slice of rows is again a Weight (weight_rows), so fused
 * projections are views.
 */
typedef struct Weight {
    int64_t rows, cols; /* out, in */
    Quant quant;
    int bits, group;         /* quantised formats only */
    DType dtype;             /* QUANT_NONE: the elements; else: of scales and biases (U8: bytes or records) */
    const void *data;        /* row stride = weight_row_bytes */
    const void *scales;      /* NULL when plain */
    const void *biases;      /* affine only: the group's zero point, not the layer's bias */
    const float *bias;       /* added to the product, f32 [rows], or NULL */
    struct LowRank *updates; /* [ADAPTERS_MAX] of LoRA adapters (model/adapter.h), applied by components; NULL: none */
    Split split;             /* said by who binds it */
} Weight;

size_t weight_row_bytes(const Weight *w);   /* bytes of one row of data */
size_t weight_scale_bytes(const Weight *w); /* bytes of one row of scales (= of biases when affine) */
size_t weight_bytes(const Weight *w);       /* all that a product reads: data, scales, biases */
/* Whether codes are numbers: w = scale·code + bias. */
static inline bool quant_is_affine(Quant q) { return q == QUANT_AFFINE || q >= QUANT_SYMMETRIC; }
/* Scale and bias of a group of such a weight, exact. */
void weight_scale(const Weight *w, int64_t row, int64_t group, float *scale, float *bias);
Weight weight_rows(const Weight *w, int64_t first, int64_t count);
/* A slice of columns is a copy: first and count are multiples of weight_column_unit(). It lies in `memory`, aligned as
 * malloc() does, of weight_columns_bytes() of its shape, data first; the bias stays where it is. */
int64_t weight_column_unit(const Weight *w);
size_t weight_columns_bytes(const Weight *slice);
Weight weight_columns(const Weight *w, int64_t first, int64_t count, void *memory);
/* Elements [first, first+count) of one row as f32, exactly as mx.dequantize, or GGUF's definition, computes them in
 * f32.
 */
void weight_dequantize_row(const Weight *w, int64_t row, int64_t first, int64_t count, float *out);

/* Affine quantisation as mx.quantize does it (mlx/backend/cpu/quantized.cpp): one row of cols floats, f32 scales and
 * biases. */
void quantize_affine_row(
    const float *x, int64_t cols, int bits, int group, uint8_t *data, float *scales, float *biases);

/* 16-bit floats. to_f32 is exact; from_f32 rounds to nearest even. */
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);
static inline float bf16_to_f32(uint16_t h) {
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}
uint16_t f32_to_bf16(float f);
/* count elements of a float dtype at unaligned src as f32 / back. */
void floats_to_f32(float *out, const void *src, DType dtype, int64_t count);
void floats_from_f32(void *out, DType dtype, const float *src, int64_t count);
