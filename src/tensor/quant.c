/* Quantised rows to floats and back, bit for bit as MLX computes them in f32 (product and sum rounded one after the
 * other). Every width packs eight elements into `bits` bytes, so rows are handled in blocks of eight. */
#include <math.h>
#include <string.h>

#include "tensor/float8.h"
#include "tensor/tensor.h"

enum { BLOCK = 8 };

static uint64_t block_load(const uint8_t *data, int bits) {
    uint64_t packed = 0;
    memcpy(&packed, data, (size_t)bits);
    return packed;
}

static float scale_at(const void *scales, DType dtype, int64_t group) {
    float value;
    floats_to_f32(&value, (const uint8_t *)scales + (size_t)group * dtype_bytes(dtype), dtype, 1);
    return value;
}

/* 2^(code − 127): code 0 is the subnormal 2^-127, code 255 is infinite, as in MLX. */
static float e8m0_to_f32(uint8_t code) {
    uint32_t bits = code ? (uint32_t)code << 23 : 1u << 22;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float e2m1_to_f32(uint8_t code) {
    static const float values[16] = {
        0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return values[code];
}

static float element_to_f32(Quant quant, uint8_t code) {
    if (quant_is_affine(quant)) return (float)code;
    return quant == QUANT_MXFP8 ? e4m3_to_f32(code) : e2m1_to_f32(code);
}

static float group_scale(const Weight *w, const uint8_t *scales, int64_t group) {
    return w->quant == QUANT_NVFP4 ? e4m3_to_f32(scales[group]) : e8m0_to_f32(scales[group]);
}

void weight_scale(const Weight *w, int64_t row, int64_t group, float *scale, float *bias) {
    const size_t at = (size_t)row * weight_scale_bytes(w);
    const uint8_t *scales = (const uint8_t *)w->scales + at;
    if (w->quant == QUANT_K) {
        const int64_t in_record = group % (K_COLS / 32);
        const uint8_t *record = scales + group / (K_COLS / 32) * K_BYTES;
        *scale = scale_at(record, DTYPE_F16, 0) * (float)record[4 + in_record];
        *bias = scale_at(record, DTYPE_F16, 1) * (float)record[12 + in_record];
        return;
    }
    if (w->quant == QUANT_K_SYMMETRIC) {
        const uint8_t *record = scales + group / (K_COLS / 16) * K_SYMMETRIC_BYTES;
        *scale = scale_at(record, DTYPE_F16, 0) * (float)(int8_t)record[2 + group % (K_COLS / 16)];
    } else {
        CHECK(quant_is_affine(w->quant));
        *scale = scale_at(scales, w->dtype, w->quant == QUANT_TERNARY ? 0 : group);
    }
    if (w->quant == QUANT_AFFINE)
        *bias = scale_at((const uint8_t *)w->biases + at, w->dtype, group);
    else
        *bias = w->quant == QUANT_TERNARY ? -*scale : -(float)(1 << (w->bits - 1)) * *scale;
}

void weight_dequantize_row(const Weight *w, int64_t row, int64_t first, int64_t count, float *out) {
    CHECK(row >= 0 && row < w->rows && first >= 0 && count >= 0 && count <= w->cols && first <= w->cols - count);
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row * weight_row_bytes(w);
    if (w->quant == QUANT_NONE) {
        floats_to_f32(out, data + (size_t)first * dtype_bytes(w->dtype), w->dtype, count);
        return;
    }
    const uint8_t *scales = (const uint8_t *)w->scales + (size_t)row * weight_scale_bytes(w);
    const bool affine = quant_is_affine(w->quant);
    uint64_t mask = (1u << w->bits) - 1;
    int64_t end = first + count;
    for (int64_t i = first; i < end;) {
        int64_t group = i / w->group, group_end = (group + 1) * w->group;
        if (group_end > end) group_end = end;
        float scale, bias = 0;
        if (affine)
            weight_scale(w, row, group, &scale, &bias);
        else
            scale = group_scale(w, scales, group);
        while (i < group_end) {
            int64_t block = i / BLOCK, block_end = (block + 1) * BLOCK;
            if (block_end > group_end) block_end = group_end;
            uint64_t packed = block_load(data + block * w->bits, w->bits) >> (i - block * BLOCK) * w->bits;
            for (; i < block_end; i++, packed >>= w->bits) {
                float product = scale * element_to_f32(w->quant, (uint8_t)(packed & mask));
                out[i - first] = affine ? product + bias : product;
            }
        }
    }
}

/* One group: the codes and, through scale and bias, how they are read. The end of the range that is larger in magnitude
 * becomes exact, and so does zero where it lies inside. */
static void quantize_group(const float *x, int group, int bits, uint8_t *codes, float *scale_out, float *bias_out) {
    const float eps = 1e-7f, top = (float)((1 << bits) - 1);
    float low = INFINITY, high = -INFINITY;
    for (int i = 0; i < group; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    bool from_low = fabsf(low) > fabsf(high);
    float scale = fmaxf((high - low) / top, eps);
    if (!from_low) scale = -scale;
    float edge = from_low ? low : high;
    float zero = rintf(edge / scale), bias = 0;
    if (zero != 0) {
        scale = edge / zero;
        bias = edge;
    }
    for (int i = 0; i < group; i++) codes[i] = (uint8_t)fminf(fmaxf(rintf((x[i] - bias) / scale), 0), top);
    *scale_out = scale;
    *bias_out = bias;
}

void quantize_affine_row(
    const float *x, int64_t cols, int bits, int group, uint8_t *data, float *scales, float *biases) {
    enum { GROUP_MAX = 128 };
    CHECK(group > 0 && group <= GROUP_MAX && group % BLOCK == 0 && cols % group == 0 && bits >= 1 && bits <= 8);
    for (int64_t at = 0; at < cols; at += group) {
        uint8_t codes[GROUP_MAX];
        quantize_group(x + at, group, bits, codes, &scales[at / group], &biases[at / group]);
        for (int i = 0; i < group; i += BLOCK) {
            uint64_t packed = 0;
            for (int k = 0; k < BLOCK; k++) packed |= (uint64_t)codes[i + k] << k * bits;
            memcpy(data + (at + i) / BLOCK * bits, &packed, (size_t)bits);
        }
    }
}
