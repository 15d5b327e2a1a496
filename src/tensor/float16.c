/* 16-bit floats in plain integer arithmetic: the result does not depend on the processor's flush-to-zero mode. */
#include <string.h>

#include "tensor/tensor.h"

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 31) return float_of(sign | 0x7F800000 | mantissa << 13);
    if (exponent) return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
    float small = (float)mantissa * 0x1p-24f;
    return sign ? -small : small;
}

uint16_t f32_to_f16(float f) {
    enum { INFINITY_FROM = 0x477FF000 /* 65520 */, NORMAL_FROM = 0x38800000 /* 2^-14 */ };
    uint32_t u = bits_of(f), magnitude = u & 0x7FFFFFFF;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    if (magnitude > 0x7F800000) return (uint16_t)(sign | 0x7E00 | (magnitude >> 13 & 0x1FF));
    if (magnitude >= INFINITY_FROM) return sign | 0x7C00;
    if (magnitude < NORMAL_FROM) {
        /* The last place of 0.5 is 2^-24, a subnormal half's unit: the addition rounds to nearest even. */
        return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
    }
    magnitude += 0xFFF + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((magnitude >> 13) - (112 << 10)));
}

uint16_t f32_to_bf16(float f) {
    uint32_t u = bits_of(f);
    if ((u & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

void floats_to_f32(float *out, const void *src, DType dtype, int64_t count) {
    CHECK(dtype_is_float(dtype));
    const uint8_t *bytes = src;
    if (dtype == DTYPE_F32) {
        if (count) memcpy(out, src, (size_t)count * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, bytes + 2 * i, sizeof half);
        out[i] = dtype == DTYPE_F16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
}

void floats_from_f32(void *out, DType dtype, const float *src, int64_t count) {
    CHECK(dtype_is_float(dtype));
    uint8_t *bytes = out;
    if (dtype == DTYPE_F32) {
        if (count) memcpy(out, src, (size_t)count * sizeof *src);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint16_t half = dtype == DTYPE_F16 ? f32_to_f16(src[i]) : f32_to_bf16(src[i]);
        memcpy(bytes + 2 * i, &half, sizeof half);
    }
}
