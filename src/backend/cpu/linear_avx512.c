/* Products with AVX-512 VNNI and VBMI, in the order that linear.h defines.
 *
 * few(): lanes are groups. VPDPBUSD leaves 2, 4, 8 or 16 partial sums per group; 16 groups are brought together by a
 * transposing addition, and one vector then carries 16 groups through the float part.
 * tile(): lanes are weight rows of an unpacked panel; groups come in the order of the tree's leaves. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/linear_avx512.h"

enum { PANEL = 32, TILE = LINEAR_TILE_ROWS };

/* ---- activations ---- */

static void quantise(const float *x, int64_t cols, int group, int8_t *q, float *scales, float *sums) {
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

/* Even bytes of 8, then the odd ones. */
INLINE __m512i split_eights(__m512i v) {
    return _mm512_shuffle_epi8(v, _mm512_set4_epi32(0x0f0d0b09, 0x0e0c0a08, 0x07050301, 0x06040200));
}

static void arrange_panel(const int8_t *q, int64_t cols, int group, int8_t *out) {
    const __m128i split = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    for (int lane = 0; lane < LINEAR_LANES && lane < cols / group; lane++) {
        int8_t *to = out + linear_panel_place(lane, cols / group) * group * TILE;
        for (int64_t g = lane; g < cols / group; g += LINEAR_LANES)
            for (int i = 0; i < group; i += 16, to += 16 * TILE) {
                const __m128i v = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(q + g * group + i)), split);
                const int fours[4] = {
                    _mm_cvtsi128_si32(v), _mm_extract_epi32(v, 1), _mm_extract_epi32(v, 2), _mm_extract_epi32(v, 3)};
                for (int j = 0; j < 4; j++) memcpy(to + 4 * TILE * j, &fours[j], 4);
            }
    }
}

static void arrange(LinearLayout layout, const int8_t *q, int64_t cols, int group, int8_t *out) {
    if (layout == LAYOUT_PANEL) {
        arrange_panel(q, cols, group, out);
        return;
    }
    const int64_t size = linear_stride(cols, group);
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

/* ---- a few activation rows ---- */

/* Each 128-bit lane: the sums of the four elements of that lane of a, b, c, d, whose size is at most `most`. Small ones
 * are added as 16-bit pairs. */
INLINE __m512i add4(__m512i a, __m512i b, __m512i c, __m512i d, const int most) {
    const __m512i one = _mm512_set1_epi16(1);
    if (most > INT16_MAX) {
        __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    __m512i ab = _mm512_madd_epi16(_mm512_packs_epi32(a, b), one),
            cd = _mm512_madd_epi16(_mm512_packs_epi32(c, d), one);
    if (2 * most <= INT16_MAX) return _mm512_madd_epi16(_mm512_packs_epi32(ab, cd), one);
    __m512 x = _mm512_castsi512_ps(ab), y = _mm512_castsi512_ps(cd);
    return _mm512_add_epi32(
        _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)), _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
}
INLINE __m512i add_lanes(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* 16 groups' sums in order from `lanes` vectors, each with `lanes` partial sums of 16/lanes groups. */
INLINE __m512i add_groups(const __m512i *v, const int lanes, const int most) {
    if (lanes == 2) {
        const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
        if (most <= INT16_MAX)
            return _mm512_permutexvar_epi64(
                order, _mm512_madd_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_set1_epi16(1)));
        const __m512 a = _mm512_castsi512_ps(v[0]), b = _mm512_castsi512_ps(v[1]);
        const __m512i even = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88));
        return _mm512_permutexvar_epi64(
            order, _mm512_add_epi32(even, _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd))));
    }
    if (lanes == 4) {
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        return _mm512_permutexvar_epi32(order, add4(v[0], v[1], v[2], v[3], most));
    }
    __m512i low = add_lanes(add4(v[0], v[1], v[2], v[3], most), add4(v[4], v[5], v[6], v[7], most));
    if (lanes == 8) {
        const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
        return _mm512_permutexvar_epi32(order, low);
    }
    __m512i high = add_lanes(add4(v[8], v[9], v[10], v[11], most), add4(v[12], v[13], v[14], v[15], most));
    return add_lanes(low, high);
}

/* One load: gcc would read v again for each plane. 8-bit rows are read in order, as the processor's own prefetching
 * wants them; the others are prefetched. */
INLINE __m512i load_once(const uint8_t *p, const Kind k) {
    __m512i v = _mm512_loadu_si512(p);
    if (k.bits == 8)
        __asm__ volatile("" : "+v"(v));
    else
        __asm__("" : "+v"(v));
    return v;
}

/* The codes of 64 · planes columns, 64 in a vector. With 3 bits those of odd planes come as multiples of 8. */
INLINE void load_codes(const uint8_t *p, const Kind k, __m512i code[4]) {
    const __m512i v = load_once(p, k), low = _mm512_set1_epi8((char)((1 << k.bits) - 1));
    if (k.bits == 8) {
        code[0] = v;
        return;
    }
    if (8 * k.bits * k.planes == 64) {
#pragma GCC unroll 4
        for (int j = 0; j < k.planes; j++) {
            code[j] = plane_of(v, k.bits, j);
            if (k.coded) code[j] = e2m1_codes(code[j]);
        }
        return;
    }
    const __m512i last = load_once(p + 8 * k.bits * k.planes - 64, k);
    if (k.bits == 3) { /* a byte takes two codes at once */
        const __m512i shift = spread_shift(6, false), high = _mm512_set1_epi8(7 << 3);
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const __m512i pairs = _mm512_multishift_epi64_epi8(shift, take_runs(v, last, 6, 2, j));
            code[2 * j] = _mm512_and_si512(pairs, low);
            code[2 * j + 1] = _mm512_and_si512(pairs, high);
        }
        return;
    }
    const __m512i shift = spread_shift(k.bits, false);
#pragma GCC unroll 4
    for (int j = 0; j < k.planes; j++)
        code[j] = _mm512_and_si512(_mm512_multishift_epi64_epi8(shift, take_runs(v, last, k.bits, k.planes, j)), low);
}

/* Products of 64 codes per plane. */
INLINE void few_vector(
    const Few *f, const uint8_t *p, const int8_t *q, const Kind k, const int rows, __m512i part[FEW_SINGLE]) {
    __m512i code[4];
    load_codes(p, k, code);
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++) {
        __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
#pragma GCC unroll 4
        for (int j = 0; j < k.planes; j++) {
            __m512i *to = &sum[k.bits == 3 ? j & 1 : 0];
            *to = _mm512_dpbusd_epi32(*to, code[j], _mm512_loadu_si512(q + t * f->stride + 64 * j));
        }
        part[t] = k.bits == 3 ? _mm512_add_epi32(sum[0], _mm512_srai_epi32(sum[1], 3)) : sum[0];
    }
}

/* 8-bit rows are read as fast as the processor itself prefetches, which more prefetching only disturbs. */
INLINE void few_prefetch(const uint8_t *p, const Kind k, const int bytes) {
    if (k.bits < 8) prefetch(p, bytes);
}
INLINE void few_prefetch_scales(const uint8_t *scales, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)scales + SCALES_AHEAD + i, _MM_HINT_T0);
}

/* The float part of 16 groups from group_index; count of them exist. part: as few_vector() left it. */
INLINE void few_finish(const Few *f, const Weight *w, const uint8_t *scales, const uint8_t *biases, int64_t group_index,
    int64_t count, const Kind k, const int rows, __m512i part[][FEW_SINGLE], __m512 acc[FEW_SINGLE]) {
    const int lanes = k.group / (4 * k.planes), most = (k.coded ? 24 : (1 << k.bits) - 1) * 127 * 4 * k.planes;
    __m512 s, b;
    load_scales(w, scales, biases, group_index, count, &s, &b);
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++) {
        const int64_t at = t * f->scale_stride + group_index;
        __m512i v[16];
#pragma GCC unroll 16
        for (int i = 0; i < lanes; i++) v[i] = part[i][t];
        __m512 sd = _mm512_mul_ps(s, _mm512_loadu_ps(f->scales + at));
        acc[t] = _mm512_fmadd_ps(sd, _mm512_cvtepi32_ps(add_groups(v, lanes, most)), acc[t]);
        acc[t] = _mm512_fmadd_ps(b, _mm512_loadu_ps(f->sums + at), acc[t]);
    }
}

/* add_tree() of 16 vectors at once, which is shorter than one after the other. */
INLINE __m512 add_trees(const __m512 v[16]) {
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    __m512 a[8], b[4], c[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44), _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const __m512d x = _mm512_castps_pd(b[i]), y = _mm512_castps_pd(b[i + 2]);
        c[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    const __m512 sums = _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
    return _mm512_permutexvar_ps(order, sums);
}

INLINE void few_rows(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride, const Quant quant,
    const Kind k, const int rows) {
    const int lanes = k.group / (4 * k.planes), step = 8 * k.bits * k.planes, codes = 64 * k.planes;
    Weight w = *f->w;
    w.quant = quant; /* now a constant */
    const size_t row_bytes = weight_row_bytes(f->w), scale_bytes = weight_scale_bytes(f->w);
    const int64_t whole = f->w->cols / k.group / 16 * 16;
    const uint8_t *p = (const uint8_t *)f->w->data + (size_t)first * row_bytes;
    const uint8_t *scales = (const uint8_t *)f->w->scales + (size_t)first * scale_bytes;
    const uint8_t *biases = f->w->biases ? (const uint8_t *)f->w->biases + (size_t)first * scale_bytes : NULL;
    __m512 done[FEW_SINGLE][16]; /* of up to 16 rows */
    for (int64_t r = 0; r < count; r++) {
        __m512 acc[FEW_SINGLE];
        __m512i part[16][FEW_SINGLE];
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++) acc[t] = _mm512_setzero_ps();
        const uint8_t *v = p;
        const int8_t *q = f->q;
        few_prefetch_scales(scales, scale_bytes);
        if (biases) few_prefetch_scales(biases, scale_bytes);
        for (int64_t g = 0; g < whole; g += 16, v += lanes * step, q += lanes * codes) {
            few_prefetch(v, k, lanes * step);
#pragma GCC unroll 16
            for (int i = 0; i < lanes; i++) few_vector(f, v + i * step, q + i * codes, k, rows, part[i]);
            few_finish(f, &w, scales, biases, g, 16, k, rows, part, acc);
        }
        if (f->tail_groups > 0) {
            uint8_t copy[16 * 64];
            few_prefetch(v, k, lanes * step / 2);
            if (f->end - v < lanes * step) v = memcpy(copy, v, (size_t)(f->end - v));
#pragma GCC unroll 16
            for (int i = 0; i < lanes; i++) {
                if (i == lanes / 2 && f->tail_vectors > i) few_prefetch(v + i * step, k, lanes * step / 2);
                if (i < f->tail_vectors) {
                    few_vector(f, v + i * step, q + i * codes, k, rows, part[i]);
                } else {
#pragma GCC unroll 4
                    for (int t = 0; t < rows; t++) part[i][t] = _mm512_setzero_si512();
                }
            }
            few_finish(f, &w, scales, biases, whole, f->tail_groups, k, rows, part, acc);
        }
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++) done[t][r % 16] = acc[t];
        if (r % 16 == 15 || r == count - 1) {
            const __mmask16 mask = (__mmask16)((2u << r % 16) - 1);
#pragma GCC unroll 4
            for (int t = 0; t < rows; t++)
                _mm512_mask_storeu_ps(y + t * y_stride + r / 16 * 16, mask, add_trees(done[t]));
        }
        p += row_bytes;
        scales += scale_bytes;
        if (biases) biases += scale_bytes;
    }
}

typedef void FewRows(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride);
#define FEW_ROWS(name, quant, bits, group, planes, rows)                                                               \
    static void name##_##rows(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride) {                \
        few_rows(f, first, count, y, y_stride, quant, (Kind){bits, group, !quant_is_affine(quant), planes}, rows);     \
    }
#define FEW_KIND(name, quant, bits, group, planes)                                                                     \
    FEW_ROWS(name, quant, bits, group, planes, 1)                                                                      \
    FEW_ROWS(name, quant, bits, group, planes, 2)                                                                      \
    static FewRows *const name[FEW_SINGLE] = {name##_1, name##_2};
FEW_KIND(few_2_32, QUANT_AFFINE, 2, 32, 4)
FEW_KIND(few_2_64, QUANT_AFFINE, 2, 64, 4)
FEW_KIND(few_3_32, QUANT_AFFINE, 3, 32, 4)
FEW_KIND(few_3_64, QUANT_AFFINE, 3, 64, 4)
FEW_KIND(few_4_32, QUANT_AFFINE, 4, 32, 2)
FEW_KIND(few_4_64, QUANT_AFFINE, 4, 64, 2)
FEW_KIND(few_5_32, QUANT_AFFINE, 5, 32, 2)
FEW_KIND(few_5_64, QUANT_AFFINE, 5, 64, 2)
FEW_KIND(few_6_32, QUANT_AFFINE, 6, 32, 2)
FEW_KIND(few_6_64, QUANT_AFFINE, 6, 64, 2)
FEW_KIND(few_8_32, QUANT_AFFINE, 8, 32, 1)
FEW_KIND(few_8_64, QUANT_AFFINE, 8, 64, 1)
FEW_KIND(few_symmetric_4, QUANT_SYMMETRIC, 4, 32, 2)
FEW_KIND(few_symmetric_5, QUANT_SYMMETRIC, 5, 32, 2)
FEW_KIND(few_symmetric_8, QUANT_SYMMETRIC, 8, 32, 1)
FEW_KIND(few_k_4, QUANT_K, 4, 32, 2)
FEW_KIND(few_k_5, QUANT_K, 5, 32, 2)
FEW_KIND(few_k_symmetric, QUANT_K_SYMMETRIC, 6, 16, 2)
FEW_KIND(few_mxfp4, QUANT_MXFP4, 4, 32, 2)
FEW_KIND(few_nvfp4, QUANT_NVFP4, 4, 16, 2)

static FewRows *few_kernel(const Weight *w, int rows) {
    static FewRows *const *const AFFINE[9][2] = {
        [2] = {few_2_32, few_2_64},
        [3] = {few_3_32, few_3_64},
        [4] = {few_4_32, few_4_64},
        [5] = {few_5_32, few_5_64},
        [6] = {few_6_32, few_6_64},
        [8] = {few_8_32, few_8_64},
    };
    static FewRows *const *const SYMMETRIC[9] = {[4] = few_symmetric_4, [5] = few_symmetric_5, [8] = few_symmetric_8};
    static FewRows *const *const K[9] = {[4] = few_k_4, [5] = few_k_5};
    switch (w->quant) {
    case QUANT_SYMMETRIC: return SYMMETRIC[w->bits][rows - 1];
    case QUANT_K: return K[w->bits][rows - 1];
    case QUANT_K_SYMMETRIC: return few_k_symmetric[rows - 1];
    case QUANT_MXFP4: return few_mxfp4[rows - 1];
    case QUANT_NVFP4: return few_nvfp4[rows - 1];
    default: return AFFINE[w->bits][w->group > 32][rows - 1];
    }
}

static LinearLayout layout(const Weight *w) {
    static const LinearLayout LAYOUTS[9] = {
        [2] = LAYOUT_PLANES4,
        [3] = LAYOUT_PAIRS4,
        [4] = LAYOUT_PLANES2,
        [5] = LAYOUT_EIGHTS2,
        [6] = LAYOUT_EIGHTS2,
        [8] = LAYOUT_NATURAL,
    };
    return LAYOUTS[w->bits];
}

static void few(
    const Weight *w, int64_t first, int64_t count, const LinearInput *x, int rows, float *y, int64_t stride) {
    const LinearLayout q = layout(w);
    const int planes = q == LAYOUT_NATURAL ? 1 : q == LAYOUT_PLANES4 || q == LAYOUT_PAIRS4 ? 4 : 2;
    const int64_t left = w->cols % ((int64_t)x->group * LINEAR_LANES);
    const Few f = {w, x->q[q], x->scales, x->sums, x->stride, x->stride / x->group,
        (const uint8_t *)w->data + (size_t)w->rows * weight_row_bytes(w), (int)(left / x->group),
        (int)((left + 64 * planes - 1) / (64 * planes)), rows};
    (rows > FEW_SINGLE ? linear_block_avx512 : few_kernel(w, rows))(&f, first, count, y, stride);
}

/* ---- panels ---- */

/* Where the unpacked groups of a row go. */
typedef struct Places {
    int64_t start[LINEAR_LANES]; /* first place of a lane's groups */
    int shift;                   /* log2 of the group */
    size_t group_bytes;
} Places;

INLINE size_t place_of(const Places *places, int64_t group) {
    return (size_t)(places->start[group % LINEAR_LANES] + group / LINEAR_LANES);
}

/* 16 rows × one vector of weights: 128 columns of 4 bits, 64 of all others. After the transposition dword j holds 8 (4)
 * columns of every row. */
INLINE void unpack_vector(const Weight *w, const uint8_t *const rows[16], int64_t col, const Places *places,
    uint8_t *out, const int bits, const bool coded) {
    const int cols = bits == 4 ? 128 : 64;
    const int64_t count = w->cols - col < cols ? w->cols - col : cols;
    const __mmask64 mask = first_bytes(count * bits / 8);
    const __m512i index = spread_index(bits), shift = spread_shift(bits, true);
    __m512i r[16];
    const uint8_t *ahead = rows[15] + weight_row_bytes(w) + 2 * bits * col; /* the next rows, one after the other */
    for (int line = 0; line < 2 * bits * cols; line += 64) _mm_prefetch((const char *)ahead + line, _MM_HINT_T1);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        __m512i v = _mm512_maskz_loadu_epi8(mask, rows[i] + col * bits / 8);
        r[i] = bits == 4 ? v : bits == 8 ? split_eights(v) : spread(v, index, shift, bits);
    }
    transpose16(r);
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) {
        const int64_t at = col + j * (cols / 16);
        if (j * (cols / 16) >= count) break;
        uint8_t *to = out + place_of(places, at >> places->shift) * places->group_bytes +
            (size_t)(at & ((1 << places->shift) - 1)) * PANEL;
        if (bits != 4) {
            _mm512_store_si512(to, r[j]);
            continue;
        }
        __m512i even = plane_of(r[j], 4, 0), odd = plane_of(r[j], 4, 1);
        _mm512_store_si512(to, coded ? e2m1_codes(even) : even);
        _mm512_store_si512(to + 4 * PANEL, coded ? e2m1_codes(odd) : odd);
    }
}

#define UNPACK_KIND(name, bits, coded)                                                                                 \
    static void name(const Weight *w, const uint8_t *const rows[16], const Places *places, uint8_t *out) {             \
        for (int64_t col = 0; col < w->cols; col += (bits) == 4 ? 128 : 64)                                            \
            unpack_vector(w, rows, col, places, out, bits, coded);                                                     \
    }
UNPACK_KIND(unpack_2, 2, false)
UNPACK_KIND(unpack_3, 3, false)
UNPACK_KIND(unpack_4, 4, false)
UNPACK_KIND(unpack_5, 5, false)
UNPACK_KIND(unpack_6, 6, false)
UNPACK_KIND(unpack_8, 8, false)
UNPACK_KIND(unpack_e2m1, 4, true)

static void unpack_scales(
    const Weight *w, const int64_t rows[16], const Places *places, int64_t groups, float *scales, float *biases) {
    const size_t stride = weight_scale_bytes(w);
    for (int64_t g = 0; g < groups; g += 16) {
        __m512i s[16], b[16];
        for (int i = 0; i < 16; i++) {
            __m512 si, bi;
            size_t offset = (size_t)rows[i] * stride;
            load_scales(w, (const uint8_t *)w->scales + offset, w->biases ? (const uint8_t *)w->biases + offset : NULL,
                g, groups - g, &si, &bi);
            s[i] = _mm512_castps_si512(si);
            b[i] = _mm512_castps_si512(bi);
        }
        transpose16(s);
        transpose16(b);
        for (int j = 0; j < 16 && g + j < groups; j++) {
            size_t place = place_of(places, g + j) * PANEL;
            _mm512_store_si512(scales + place, s[j]);
            _mm512_store_si512(biases + place, b[j]);
        }
    }
}

static void unpack(const Weight *w, int64_t first, LinearPanel *panel) {
    static void (*const AFFINE[9])(const Weight *, const uint8_t *const[16], const Places *, uint8_t *) = {
        [2] = unpack_2, [3] = unpack_3, [4] = unpack_4, [5] = unpack_5, [6] = unpack_6, [8] = unpack_8};
    const int64_t groups = w->cols / panel->group;
    Places places = {.shift = __builtin_ctz((unsigned)panel->group), .group_bytes = (size_t)panel->group * PANEL};
    for (int lane = 0; lane < LINEAR_LANES; lane++) places.start[lane] = linear_panel_place(lane, groups);
    for (int half = 0; half < PANEL; half += 16) {
        const uint8_t *data[16];
        int64_t rows[16];
        for (int i = 0; i < 16; i++) {
            rows[i] = first + half + i < w->rows ? first + half + i : w->rows - 1;
            data[i] = (const uint8_t *)w->data + (size_t)rows[i] * weight_row_bytes(w);
        }
        (quant_is_affine(w->quant) ? AFFINE[w->bits] : unpack_e2m1)(w, data, &places, panel->codes + half * 4);
        unpack_scales(w, rows, &places, groups, panel->scales + half, panel->biases + half);
    }
}

/* gcc 12 copies the accumulators in every round of a loop around the intrinsic. */
INLINE void dot_into(__m512i *sum, __m512i codes, __m512i q) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(codes), "v"(q));
}

/* Adds a finished lane to the tree: as many earlier sums as the turn has trailing ones, the rest waits in `waiting`. */
INLINE void tile(const LinearPanel *panel, const LinearInput *x, int64_t first, const int rows, float *y) {
    float waiting[4][TILE * PANEL] __attribute__((aligned(64)));
    const int8_t *q = x->q[LAYOUT_PANEL] + first * x->stride;
    const float *d = x->scales + first * (x->stride / x->group), *z = x->sums + first * (x->stride / x->group);
    const uint8_t *p = panel->codes;
    const float *scales = panel->scales, *biases = panel->biases;
    int depth = 0;
    for (int turn = 0; turn < LINEAR_LANES; turn++) {
        __m512 acc[TILE][2];
#pragma GCC unroll 6
        for (int t = 0; t < rows; t++) acc[t][0] = acc[t][1] = _mm512_setzero_ps();
        const int64_t count = (panel->groups - linear_leaf(turn) + LINEAR_LANES - 1) / LINEAR_LANES;
        for (int64_t i = 0; i < count; i++, d += TILE, z += TILE, scales += PANEL, biases += PANEL) {
            __m512i sum[TILE][2];
#pragma GCC unroll 6
            for (int t = 0; t < rows; t++) sum[t][0] = sum[t][1] = _mm512_setzero_si512();
            for (const uint8_t *end = p + panel->group * PANEL; p < end; p += 16 * PANEL, q += 16 * TILE)
#pragma GCC unroll 4
                for (int step = 0; step < 4; step++) {
                    const __m512i p0 = _mm512_load_si512(p + 4 * PANEL * step);
                    const __m512i p1 = _mm512_load_si512(p + 4 * PANEL * step + 64);
#pragma GCC unroll 6
                    for (int t = 0; t < rows; t++) {
                        int four;
                        memcpy(&four, q + 4 * (step * TILE + t), 4);
                        const __m512i v = _mm512_set1_epi32(four);
                        dot_into(&sum[t][0], p0, v);
                        dot_into(&sum[t][1], p1, v);
                    }
                }
            const __m512 s0 = _mm512_load_ps(scales), s1 = _mm512_load_ps(scales + 16);
            const __m512 b0 = _mm512_load_ps(biases), b1 = _mm512_load_ps(biases + 16);
#pragma GCC unroll 6
            for (int t = 0; t < rows; t++) {
                const __m512 dt = _mm512_set1_ps(d[t]), zt = _mm512_set1_ps(z[t]);
                acc[t][0] = _mm512_fmadd_ps(_mm512_mul_ps(s0, dt), _mm512_cvtepi32_ps(sum[t][0]), acc[t][0]);
                acc[t][1] = _mm512_fmadd_ps(_mm512_mul_ps(s1, dt), _mm512_cvtepi32_ps(sum[t][1]), acc[t][1]);
                acc[t][0] = _mm512_fmadd_ps(b0, zt, acc[t][0]);
                acc[t][1] = _mm512_fmadd_ps(b1, zt, acc[t][1]);
            }
        }
        for (int more = turn; more & 1; more >>= 1) {
            const float *left = waiting[--depth];
#pragma GCC unroll 6
            for (int t = 0; t < rows; t++) {
                acc[t][0] = _mm512_add_ps(_mm512_load_ps(left + t * PANEL), acc[t][0]);
                acc[t][1] = _mm512_add_ps(_mm512_load_ps(left + t * PANEL + 16), acc[t][1]);
            }
        }
        float *to = turn == LINEAR_LANES - 1 ? y : waiting[depth++];
#pragma GCC unroll 6
        for (int t = 0; t < rows; t++) {
            _mm512_storeu_ps(to + t * PANEL, acc[t][0]);
            _mm512_storeu_ps(to + t * PANEL + 16, acc[t][1]);
        }
    }
}

#define TILE_ROWS(rows)                                                                                                \
    static void tile_##rows(const LinearPanel *panel, const LinearInput *x, int64_t first, float *y) {                 \
        tile(panel, x, first, rows, y);                                                                                \
    }
TILE_ROWS(1)
TILE_ROWS(2)
TILE_ROWS(3)
TILE_ROWS(4)
TILE_ROWS(5)
TILE_ROWS(6)

static void tile_any(const LinearPanel *panel, const LinearInput *x, int64_t first, int rows, float *y) {
    static void (*const TILES[])(const LinearPanel *, const LinearInput *, int64_t, float *) = {
        tile_1, tile_2, tile_3, tile_4, tile_5, tile_6};
    TILES[rows - 1](panel, x, first, y);
}

static void arrange_amx(LinearLayout layout, const int8_t *q, int64_t cols, int group, int8_t *out) {
    if (layout == LAYOUT_PANEL)
        linear_arrange_amx(q, cols, group, out);
    else
        arrange(layout, q, cols, group, out);
}

const LinearKernels linear_kernels_avx512 = {
    .quantise = quantise,
    .arrange = arrange,
    .few = few,
    .layout = layout,
    .panel_rows = PANEL,
    .tile_rows = TILE,
    .unpack = unpack,
    .tile = tile_any,
    .plain = linear_plain_avx512,
};

const LinearKernels linear_kernels_amx = {
    .quantise = quantise,
    .arrange = arrange_amx,
    .few = few,
    .layout = layout,
    .panel_rows = PANEL,
    .tile_rows = LINEAR_AMX_ROWS,
    .row_groups = true,
    .many_tiles = true,
    .chunk_bytes = 1 << 20,
    .unpack = unpack,
    .tile = linear_tile_amx,
    .plain = linear_plain_avx512,
};
