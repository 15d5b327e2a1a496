/* Random matrices of every kind that products take. */
#pragma once
#include "ops.h"

typedef struct Kind {
    Quant quant;
    int bits, group;
    DType dtype;
} Kind;

static const Kind kinds[] = {{QUANT_AFFINE, 4, 64, DTYPE_BF16}, {QUANT_AFFINE, 2, 128, DTYPE_F16},
    {QUANT_AFFINE, 3, 64, DTYPE_F32}, {QUANT_AFFINE, 5, 32, DTYPE_F16}, {QUANT_AFFINE, 6, 64, DTYPE_BF16},
    {QUANT_AFFINE, 8, 32, DTYPE_F32}, {QUANT_MXFP4, 4, 32, DTYPE_F32}, {QUANT_NVFP4, 4, 16, DTYPE_F32},
    {QUANT_MXFP8, 8, 32, DTYPE_F32}, {QUANT_SYMMETRIC, 5, 32, DTYPE_F16}, {QUANT_NONE, 16, 0, DTYPE_BF16},
    {QUANT_NONE, 16, 0, DTYPE_F16}, {QUANT_NONE, 32, 0, DTYPE_F32}};

typedef struct Matrix {
    Weight weight;
    uint8_t *memory[3];
    float *bias;
} Matrix;

static inline Matrix matrix_make(const Kind *kind, int64_t rows, int64_t cols, bool bias) {
    Matrix m = {.weight = {rows, cols, kind->quant, kind->bits, kind->group, kind->dtype, NULL, NULL, NULL, NULL}};
    Weight *w = &m.weight;
    const size_t bytes = weight_row_bytes(w) * (size_t)rows, scale_bytes = weight_scale_bytes(w) * (size_t)rows;
    for (int i = 0; i < 3; i++) {
        m.memory[i] = malloc(bytes + scale_bytes + 1); /* used from byte 1 on: aligned to nothing */
        if (!m.memory[i]) abort();
    }
    for (size_t i = 0; i < bytes; i++) {
        m.memory[0][1 + i] = (uint8_t)test_random(&ops_seed);
        if (kind->quant == QUANT_MXFP8 && (m.memory[0][1 + i] & 0x7f) == 0x7f) m.memory[0][1 + i] = 0; /* no NaN */
    }
    if (kind->quant == QUANT_NONE)
        for (int64_t i = 0; i < rows * cols; i++) {
            const float value = test_uniform(&ops_seed);
            floats_from_f32(m.memory[0] + 1 + (size_t)i * dtype_bytes(kind->dtype), kind->dtype, &value, 1);
        }
    const bool floats = quant_is_affine(kind->quant);
    const size_t size = floats ? dtype_bytes(kind->dtype) : 1;
    for (size_t i = 0; kind->quant != QUANT_NONE && i < scale_bytes / size; i++) {
        const float scale = i % 11 == 0 ? 0 : 0.02f * test_uniform(&ops_seed),
                    zero = i % 11 == 0 ? 0 : test_uniform(&ops_seed);
        if (!floats) {
            m.memory[1][1 + i] = (uint8_t)(kind->quant == QUANT_NVFP4 ? 0x20 + i % 16 : 118 + i % 8);
            continue;
        }
        floats_from_f32(m.memory[1] + 1 + i * size, kind->dtype, &scale, 1);
        floats_from_f32(m.memory[2] + 1 + i * size, kind->dtype, &zero, 1);
    }
    w->data = m.memory[0] + 1;
    w->scales = kind->quant == QUANT_NONE ? NULL : m.memory[1] + 1;
    w->biases = kind->quant == QUANT_AFFINE ? m.memory[2] + 1 : NULL;
    m.bias = random_floats(rows, 1);
    w->bias = bias ? m.bias : NULL;
    return m;
}

static inline void matrix_free(Matrix *m) {
    for (int i = 0; i < 3; i++) free(m->memory[i]);
    free(m->bias);
}
