/* Activations of the products with AVX2: quantised, and arranged as the kernels read them. */
#include <math.h>
#include <string.h>

#include "backend/cpu/linear/linear_avx2.h"

INLINE int add_epi32(__m256i v) {
    __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}

INLINE float largest(const float *values, int group) {
    __m256i most = _mm256_setzero_si256(); /* as integers, so that NaN is the largest */
    for (int i = 0; i < group; i += 8)
        most = _mm256_max_epu32(
            most, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(values + i)), _mm256_set1_epi32(0x7fffffff)));
    __m128i a = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(a));
}

void linear_quantise_avx2(const float *x, int64_t cols, int group, int8_t *q, float *scales, float *sums) {
    const int64_t padded = linear_stride(cols, group);
    for (int64_t g = 0; g < cols / group; g++) {
        const float *values = x + g * group;
        int8_t *out = q + g * group;
        const float most = largest(values, group);
        if (!(most >= 1e-30f && most < INFINITY)) {
            memset(out, 0, (size_t)group);
            scales[g] = sums[g] = most < 1e-30f ? 0 : NAN;
            continue;
        }
        const __m256 inverse = _mm256_set1_ps(127.0f / most);
        __m256i sum = _mm256_setzero_si256();
        for (int i = 0; i < group; i += 16) {
            __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values + i), inverse));
            __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values + i + 8), inverse));
            sum = _mm256_add_epi32(sum, _mm256_add_epi32(a, b));
            __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
            _mm_storeu_si128((__m128i *)(out + i),
                _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
        }
        scales[g] = most / 127.0f;
        sums[g] = scales[g] * (float)add_epi32(sum);
    }
    memset(q + cols, 0, (size_t)(padded - cols));
    const size_t extra = (size_t)((padded - cols) / group) * sizeof *scales;
    memset(scales + cols / group, 0, extra);
    memset(sums + cols / group, 0, extra);
}

/* 8 groups' planes apart: of 2 the even and the odd elements, of 4 each fourth. */
static void split_planes(const int8_t *q, int group, int planes, uint8_t plane[4][8 * 64]) {
    const __m256i halves =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    const __m256i quarters =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int j = 0; j < 8 * group; j += 32) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(q + j));
        if (planes == 1) {
            _mm256_storeu_si256((__m256i *)(plane[0] + j), v);
            continue;
        }
        v = planes == 2 ? _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, halves), 0xd8)
                        : _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(v, quarters), order);
        const __m128i low = _mm256_castsi256_si128(v), high = _mm256_extracti128_si256(v, 1);
        if (planes == 2) {
            _mm_storeu_si128((__m128i *)(plane[0] + j / 2), low);
            _mm_storeu_si128((__m128i *)(plane[1] + j / 2), high);
            continue;
        }
        _mm_storel_epi64((__m128i *)(plane[0] + j / 4), low);
        _mm_storel_epi64((__m128i *)(plane[1] + j / 4), _mm_unpackhi_epi64(low, low));
        _mm_storel_epi64((__m128i *)(plane[2] + j / 4), high);
        _mm_storel_epi64((__m128i *)(plane[3] + j / 4), _mm_unpackhi_epi64(high, high));
    }
}

/* LAYOUT_GROUPS…: planes apart, then each transposed as the codes are. */
static void arrange_groups(const int8_t *q, int64_t size, int group, int planes, int8_t *out) {
    const int bytes = group / planes, count = bytes < 16 ? bytes / 4 : 4; /* bytes of a group in a plane */
    for (int64_t i = 0; i < size; i += 8 * group) {
        uint8_t plane[4][8 * 64];
        split_planes(q + i, group, planes, plane);
        for (int first = 0; first < bytes; first += 4 * count)
            for (int p = 0; p < planes; p++) {
                __m256i v[4];
                if (count == 1)
                    v[0] = _mm256_loadu_si256((const __m256i *)plane[p]);
                else if (count == 2)
                    transpose_groups(plane[p], bytes, 2, v);
                else
                    transpose_groups(plane[p] + first, bytes, 4, v);
                for (int j = 0; j < count; j++)
                    _mm256_storeu_si256((__m256i *)(out + i + 8 * planes * first + 32 * (j * planes + p)), v[j]);
            }
    }
}

void linear_arrange_avx2(LinearLayout layout, const int8_t *q, int64_t cols, int group, int8_t *out) {
    if (layout == LAYOUT_PANEL) {
        arrange_panel(q, cols, group, out, TILE);
        return;
    }
    const int64_t size = linear_stride(cols, group);
    if (layout >= LAYOUT_GROUPS1 && layout <= LAYOUT_GROUPS4) {
        arrange_groups(q, size, group, 1 << (layout - LAYOUT_GROUPS1), out);
        return;
    }
    if (layout == LAYOUT_PLANES2) {
        const __m256i split = _mm256_set1_epi16(0xff);
        for (int64_t i = 0; i < size; i += 64) {
            __m256i a = _mm256_loadu_si256((const __m256i *)(q + i)),
                    b = _mm256_loadu_si256((const __m256i *)(q + i + 32));
            __m256i even = _mm256_packus_epi16(_mm256_and_si256(a, split), _mm256_and_si256(b, split));
            __m256i odd = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
            _mm256_storeu_si256((__m256i *)(out + i), _mm256_permute4x64_epi64(even, 0xd8));
            _mm256_storeu_si256((__m256i *)(out + i + 32), _mm256_permute4x64_epi64(odd, 0xd8));
        }
        return;
    }
    const __m128i planes = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int64_t i = 0; i < size; i += 128)
        for (int v = 0; v < 8; v++) {
            __m128i a = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(q + i + 16 * v)), planes);
            for (int plane = 0; plane < 4; plane++, a = _mm_srli_si128(a, 4)) {
                int four = _mm_cvtsi128_si32(a);
                memcpy(out + i + 32 * plane + 4 * v, &four, 4);
            }
        }
}
