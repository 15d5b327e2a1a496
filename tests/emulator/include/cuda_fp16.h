/* What kernels use of the toolkit's header of this name, exact, for the processor. */
#pragma once
#include <cuda_runtime.h>
#include <immintrin.h>
#include <math.h>

struct __half {
    uint16_t bits;
    __half() = default;
    __half(float v) : bits(v == v ? (uint16_t)_cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT) : 0x7fff) {}
    operator float() const { return _cvtsh_ss(bits); }
};
struct __align__(4) __half2 {
    __half x, y;
    __half2() = default;
    __half2(__half a, __half b) : x(a), y(b) {}
};
typedef __half half;
typedef __half2 half2;

/* A double, which holds the exact result or rounds what is far below, as f16: rounded once. */
static inline __half emulated_half(double v) {
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (f == f && (double)f != v && !isinf(f)) { /* to odd, so that the second rounding sees what the first has lost */
        if (fabs((double)f) > fabs(v)) bits--;
        bits |= 1;
        memcpy(&f, &bits, 4);
    }
    return __half(f);
}

static inline __half __float2half(float v) { return __half(v); }
static inline __half __float2half_rn(float v) { return __half(v); }
static inline float __half2float(__half v) { return v; }
static inline __half __ushort_as_half(unsigned short v) {
    __half h;
    h.bits = v;
    return h;
}
static inline unsigned short __half_as_ushort(__half v) { return v.bits; }
static inline __half __int2half_rn(int v) { return emulated_half(v); }
static inline __half2 __floats2half2_rn(float a, float b) { return __half2(a, b); }
static inline __half2 __float2half2_rn(float a) { return __half2(a, a); }
static inline __half2 __float22half2_rn(float2 v) { return __half2(v.x, v.y); }
static inline float2 __half22float2(__half2 v) { return make_float2(v.x, v.y); }
static inline __half2 __halves2half2(__half a, __half b) { return __half2(a, b); }
static inline __half2 __half2half2(__half a) { return __half2(a, a); }
static inline __half __low2half(__half2 v) { return v.x; }
static inline __half __high2half(__half2 v) { return v.y; }
static inline __half2 __low2half2(__half2 v) { return __half2(v.x, v.x); }
static inline __half2 __high2half2(__half2 v) { return __half2(v.y, v.y); }
static inline __half2 __lowhigh2highlow(__half2 v) { return __half2(v.y, v.x); }
static inline __half2 __lows2half2(__half2 a, __half2 b) { return __half2(a.x, b.x); }
static inline __half2 __highs2half2(__half2 a, __half2 b) { return __half2(a.y, b.y); }
static inline float __low2float(__half2 v) { return v.x; }
static inline float __high2float(__half2 v) { return v.y; }

static inline __half __habs(__half v) { return __ushort_as_half(v.bits & 0x7fff); }
static inline __half __hneg(__half v) { return __ushort_as_half(v.bits ^ 0x8000); }
static inline __half __hadd(__half a, __half b) { return emulated_half((double)(float)a + (float)b); }
static inline __half __hsub(__half a, __half b) { return emulated_half((double)(float)a - (float)b); }
static inline __half __hmul(__half a, __half b) { return emulated_half((double)(float)a * (float)b); }
static inline __half __hfma(__half a, __half b, __half c) {
    return emulated_half((double)(float)a * (float)b + (float)c);
}
/* The number, where one is none. */
static inline __half __hmax(__half a, __half b) { return fmaxf(a, b); }
static inline __half __hmin(__half a, __half b) { return fminf(a, b); }
static inline __half2 __habs2(__half2 v) { return __half2(__habs(v.x), __habs(v.y)); }
static inline __half2 __hneg2(__half2 v) { return __half2(__hneg(v.x), __hneg(v.y)); }
static inline __half2 __hadd2(__half2 a, __half2 b) { return __half2(__hadd(a.x, b.x), __hadd(a.y, b.y)); }
static inline __half2 __hsub2(__half2 a, __half2 b) { return __half2(__hsub(a.x, b.x), __hsub(a.y, b.y)); }
static inline __half2 __hmul2(__half2 a, __half2 b) { return __half2(__hmul(a.x, b.x), __hmul(a.y, b.y)); }
static inline __half2 __hmax2(__half2 a, __half2 b) { return __half2(__hmax(a.x, b.x), __hmax(a.y, b.y)); }
static inline __half2 __hmin2(__half2 a, __half2 b) { return __half2(__hmin(a.x, b.x), __hmin(a.y, b.y)); }
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    return __half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
