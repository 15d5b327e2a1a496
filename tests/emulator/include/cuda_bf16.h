/* What kernels use of the toolkit's header of this name. */
#pragma once
#include <cuda_runtime.h>

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float v) {
        uint32_t word;
        memcpy(&word, &v, 4);
        bits = v == v ? (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16) : 0x7fff;
    }
    operator float() const {
        const uint32_t word = (uint32_t)bits << 16;
        float v;
        memcpy(&v, &word, 4);
        return v;
    }
};
struct __align__(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
static inline __nv_bfloat16 __float2bfloat16(float v) { return v; }
static inline __nv_bfloat16 __float2bfloat16_rn(float v) { return v; }
static inline float __bfloat162float(__nv_bfloat16 v) { return v; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return make_float2(v.x, v.y); }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) {
    __nv_bfloat16 b;
    b.bits = v;
    return b;
}
