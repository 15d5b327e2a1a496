/* Activations of the products with AVX-512: quantised, and arranged as the kernels read them. */
#include <math.h>
#include <string.h>

#include "backend/cpu/linear/linear_avx512.h"

void linear_quantise_avx512(const float *x, int64_t cols, int group, int8_t *q, float *scales, float *sums) {
    int64_t padded = linear_stride(cols, group);
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    for (int64_t g = 0; g < cols / group; g++) {
        const float *values = x + g * group;
        int8_t *out = q + g * group;
        __m512i most_bits = _mm512_setzero_si512(); /* as integers, so that NaN is the largest */
        for (int i = 0; i < group; i += 16)
            most_bits = _mm512_max_epu32(
                most_bits, _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(values + i)), magnitude));
        union {
            unsigned u;
            float f;
        } most = {_mm512_reduce_max_epu32(most_bits)};
        if (!(most.f >= 1e-30f && most.f < INFINITY)) {
            memset(out, 0, (size_t)group);
            scales[g] = sums[g] = most.f < 1e-30f ? 0 : NAN;
            continue;
        }
        __m512 inverse = _mm512_set1_ps(127.0f / most.f);
        __m512i sum = _mm512_setzero_si512();
        for (int i = 0; i < group; i += 16) {
            __m512i value = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(values + i), inverse));
            sum = _mm512_add_epi32(sum, value);
            _mm_storeu_si128((__m128i *)(out + i), _mm512_cvtepi32_epi8(value));
        }
        scales[g] = most.f / 127.0f;
        sums[g] = scales[g] * (float)_mm512_reduce_add_epi32(sum);
    }
    memset(q + cols, 0, (size_t)(padded - cols));
    size_t extra = (size_t)((padded - cols) / group) * sizeof *scales;
    memset(scales + cols / group, 0, extra);
    memset(sums + cols / group, 0, extra);
}

INLINE __m512i every_other(__m512i a, __m512i b, const int odd) {
    uint8_t index[64];
    for (int i = 0; i < 64; i++) index[i] = (uint8_t)(2 * i + odd);
    return _mm512_permutex2var_epi8(a, _mm512_loadu_si512(index), b);
}

/* LAYOUT_GROUPS…: planes apart, then each transposed as the codes are. */
static void arrange_groups(const int8_t *q, int64_t size, int group, int planes, int8_t *out) {
    const int dwords = group / (4 * planes), vectors = dwords < 4 ? dwords : 4;
    for (int64_t i = 0; i < size; i += 64 * planes * vectors) {
        __m512i v[4][4] = {0};
        for (int j = 0; j < vectors; j++) {
            const int8_t *from = q + i + 64 * planes * j;
            __m512i x[4] = {0};
            for (int p = 0; p < planes; p++) x[p] = _mm512_loadu_si512(from + 64 * p);
            if (planes == 4) { /* the even and the odd ones of both halves; below, of these again */
                const __m512i a = x[0], b = x[2];
                x[0] = every_other(a, x[1], 0);
                x[2] = every_other(a, x[1], 1);
                x[1] = every_other(b, x[3], 0);
                x[3] = every_other(b, x[3], 1);
            }
            for (int p = 0; p < planes; p++) {
                const __m512i *pair = planes == 4 ? &x[p % 2 * 2] : x;
                v[p][j] = planes == 1 ? x[0] : every_other(pair[0], pair[1], planes == 4 ? p / 2 : p);
            }
        }
        for (int p = 0; p < planes; p++) {
            transpose_groups(v[p], dwords);
            for (int j = 0; j < vectors; j++) _mm512_storeu_si512(out + i + 64 * (j * planes + p), v[p][j]);
        }
    }
}

void linear_arrange_avx512(LinearLayout layout, const int8_t *q, int64_t cols, int group, int8_t *out) {
    if (layout == LAYOUT_PANEL) {
        arrange_panel(q, cols, group, out, LINEAR_TILE_ROWS);
        return;
    }
    const int64_t size = linear_stride(cols, group);
    if (layout >= LAYOUT_GROUPS1 && layout <= LAYOUT_GROUPS4) {
        arrange_groups(q, size, group, 1 << (layout - LAYOUT_GROUPS1), out);
        return;
    }
    if (layout == LAYOUT_EIGHTS2) {
        for (int64_t i = 0; i < size; i += 128)
            for (int eight = 0; eight < 16; eight++)
                memcpy(out + i + 64 * (eight % 2) + 8 * (eight / 2), q + i + 8 * eight, 8);
        return;
    }
    uint8_t index[64];
    if (layout == LAYOUT_PLANES2) {
        for (int i = 0; i < 64; i++) index[i] = (uint8_t)(2 * i);
        __m512i even = _mm512_loadu_si512(index), odd = _mm512_add_epi8(even, _mm512_set1_epi8(1));
        for (int64_t i = 0; i < size; i += 128) {
            __m512i a = _mm512_loadu_si512(q + i), b = _mm512_loadu_si512(q + i + 64);
            _mm512_storeu_si512(out + i, _mm512_permutex2var_epi8(a, even, b));
            _mm512_storeu_si512(out + i + 64, _mm512_permutex2var_epi8(a, odd, b));
        }
        return;
    }
    for (int i = 0; i < 64; i++) /* planes of 16 out of 64 */
        index[i] = (uint8_t)(layout == LAYOUT_PLANES4 ? 4 * (i & 15) + (i >> 4)
                                                      : (i >> 3 & 1) * 32 + (i >> 5) * 16 + (i & 7) * 2 + (i >> 4 & 1));
    __m512i planes = _mm512_loadu_si512(index);
    for (int64_t i = 0; i < size; i += 256)
        for (int v = 0; v < 4; v++) {
            __m512i a = _mm512_permutexvar_epi8(planes, _mm512_loadu_si512(q + i + 64 * v));
            _mm_storeu_si128((__m128i *)(out + i + 16 * v), _mm512_castsi512_si128(a));
            _mm_storeu_si128((__m128i *)(out + i + 64 + 16 * v), _mm512_extracti32x4_epi32(a, 1));
            _mm_storeu_si128((__m128i *)(out + i + 128 + 16 * v), _mm512_extracti32x4_epi32(a, 2));
            _mm_storeu_si128((__m128i *)(out + i + 192 + 16 * v), _mm512_extracti32x4_epi32(a, 3));
        }
}
