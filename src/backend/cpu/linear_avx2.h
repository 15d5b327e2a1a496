/* What the products with AVX2 share: streams of weights, floats of every kind, the tree over the lanes. */
#pragma once
#include <immintrin.h>

#include "backend/cpu/linear.h"

#define INLINE static inline __attribute__((always_inline))

enum { FAR_BYTES = 8192, NEAR_BYTES = 768 };

/* A stream of weights: far ahead into the second-level cache, which has more misses in flight than the first, then near
 * ahead into the first. */
INLINE void prefetch(const uint8_t *p, const int bytes) {
#pragma GCC unroll 32
    for (int i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *)p + FAR_BYTES + i, _MM_HINT_T1);
        _mm_prefetch((const char *)p + NEAR_BYTES + i, _MM_HINT_T0);
    }
}

/* E4M3 / 256 of the 8 low bytes: the same bits as f16, whose exponent bias is 15 instead of 7. 0x7f reads as 480. */
INLINE __m256 e4m3_part(__m128i v) {
    const __m128i high = _mm_unpacklo_epi8(_mm_setzero_si128(), v);
    return _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(high, 1), _mm_set1_epi16((short)0xbfff)));
}

INLINE __m256 load_floats(const void *p, DType dtype) {
    if (dtype == DTYPE_F32) return _mm256_loadu_ps(p);
    __m128i v = _mm_loadu_si128(p);
    if (dtype == DTYPE_F16) return _mm256_cvtph_ps(v);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

INLINE float add_tree(__m256 low, __m256 high) {
    __m256 a = _mm256_add_ps(low, high);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* LinearKernels.plain: linear_plain_avx2.c */
void linear_plain_avx2(const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride, int64_t rows,
    float *y, int64_t stride);
