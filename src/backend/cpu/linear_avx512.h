/* What the products with AVX-512 share: streams of weights, floats of every kind, the tree over the lanes. */
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

/* E4M3 / 256: the same bits as f16, whose exponent bias is 15 instead of 7. 0x7f reads as 480. */
INLINE __m512 e4m3_part(__m128i v) {
    const __m256i high = _mm256_slli_epi16(_mm256_cvtepu8_epi16(v), 8);
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(high, 1), _mm256_set1_epi16((short)0xbfff)));
}

INLINE __m512 load_floats(const void *p, DType dtype, __mmask16 mask) {
    if (dtype == DTYPE_F32) return _mm512_maskz_loadu_ps(mask, p);
    __m256i v = mask == 0xffff ? _mm256_loadu_si256(p) : _mm256_maskz_loadu_epi16(mask, p);
    if (dtype == DTYPE_F16) return _mm512_cvtph_ps(v);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

INLINE float add_tree(__m512 v) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* Panels and tiles of linear_kernels_amx: linear_amx.c */
enum { LINEAR_AMX_ROWS = 16 };
void linear_arrange_amx(const int8_t *q, int64_t cols, int group, int8_t *out);
void linear_tile_amx(const LinearPanel *panel, const LinearInput *x, int64_t first, int rows, float *y);
/* LinearKernels.plain: linear_plain_avx512.c */
void linear_plain_avx512(const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride, int64_t rows,
    float *y, int64_t stride);
