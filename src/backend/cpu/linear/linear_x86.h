/* Shared by the products with AVX2 and AVX-512: streams of weights, the parameters of few rows, a row's place in a
 * tile. */
#pragma once
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/linear/linear_kinds.h"

enum { FAR_BYTES = 8192, NEAR_BYTES = 768, SCALES_AHEAD = 512, FEW_SINGLE = 2 };

/* A stream of weights: far ahead into the second-level cache, which has more misses in flight than the first, then near
 * ahead into the first. */
INLINE void prefetch(const uint8_t *p, const size_t far, const int bytes) {
#pragma GCC unroll 32
    for (int i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *)p + far + i, _MM_HINT_T1);
        _mm_prefetch((const char *)p + NEAR_BYTES + i, _MM_HINT_T0);
    }
}
/* How far where rows are taken in pieces: to the same piece of a row ahead. */
INLINE size_t far_rows(size_t row_bytes) { return (FAR_BYTES + row_bytes - 1) / row_bytes * row_bytes; }
INLINE void few_prefetch_scales(const uint8_t *scales, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)scales + SCALES_AHEAD + i, _MM_HINT_T0);
}

/* The scale of a ternary row. */
INLINE float ternary_scale(const uint8_t *scales, DType dtype) {
    uint32_t bits = 0;
    float value;
    memcpy(&bits, scales, dtype == DTYPE_F32 ? 4 : 2);
    if (dtype == DTYPE_F16) return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128((int)bits)));
    if (dtype == DTYPE_BF16) bits <<= 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A product of a few activation rows. */
struct Few {
    const Weight *w;
    const int8_t *q;
    const float *scales, *sums;
    int64_t stride, scale_stride; /* from activation row to row */
    const uint8_t *end;           /* end of the weights' data */
    /* rest of a row after the last whole block of groups */
    int tail_groups, tail_vectors; /* AVX2: whole vectors (in order: units of 32 codes); AVX-512: the last may be a
                                      part, as the activations behind the row are zeros */
    int tail_bytes;                /* AVX2: bytes of one more vector */
    int rows;                      /* activation rows */
};

/* A row into its place in a tile of `height` rows. */
INLINE void arrange_panel(const int8_t *q, int64_t cols, int group, int8_t *out, const int height) {
    const __m128i split = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    for (int lane = 0; lane < LINEAR_LANES && lane < cols / group; lane++) {
        int8_t *to = out + linear_panel_place(lane, cols / group) * group * height;
        for (int64_t g = lane; g < cols / group; g += LINEAR_LANES)
            for (int i = 0; i < group; i += 16, to += 16 * height) {
                const __m128i v = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(q + g * group + i)), split);
                const int fours[4] = {
                    _mm_cvtsi128_si32(v), _mm_extract_epi32(v, 1), _mm_extract_epi32(v, 2), _mm_extract_epi32(v, 3)};
                for (int j = 0; j < 4; j++) memcpy(to + 4 * height * j, &fours[j], 4);
            }
    }
}
