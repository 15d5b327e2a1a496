/* Shared by the products with AVX2: floats of every kind, the tree over the lanes.
 *
 * VPMADDUBSW adds two products of u8 × s8 in 16 bits with saturation, so codes are kept small enough that it never
 * occurs: with codes to 15 eight of its results fit in one sum, to 31 four, to 63 two; 8-bit codes are split or
 * widened. */
#pragma once
#include "backend/cpu/linear/linear_x86.h"

enum { PANEL = 16, TILE = 4 };

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

/* The rest of add_tree() of 8 vectors at once, which is shorter than one after the other. */
INLINE __m256 add_trees(const __m256 v[8]) {
    const __m256i order = _mm256_setr_epi32(0, 2, 1, 3, 4, 6, 5, 7);
    __m256 a[4], b[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        a[i] =
            _mm256_add_ps(_mm256_permute2f128_ps(v[i], v[i + 4], 0x20), _mm256_permute2f128_ps(v[i], v[i + 4], 0x31));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const __m256d x = _mm256_castps_pd(a[i]), y = _mm256_castps_pd(a[i + 2]);
        b[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
    }
    const __m256 sums = _mm256_add_ps(_mm256_shuffle_ps(b[0], b[1], 0x88), _mm256_shuffle_ps(b[0], b[1], 0xdd));
    return _mm256_permutevar8x32_ps(sums, order);
}

/* ---- scales of 8 activation groups ---- */

INLINE __m256 half_e8m0(__m256i v) { /* 2^(v−128) */
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(v, _mm256_set1_epi32(1)), 23);
    __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), v);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), v)));
}

/* Which of 8 lanes exist. */
INLINE __m256i first_lanes(int64_t count) {
    return _mm256_cmpgt_epi32(
        _mm256_set1_epi32((int)(count > 8 ? 8 : count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* count ≤ 8 floats, then zeros; nothing at or behind end is read. */
INLINE __m256 load_floats_part(const uint8_t *p, const uint8_t *end, DType dtype, int64_t count) {
    const int size = dtype == DTYPE_F32 ? 4 : 2;
    uint8_t copy[32] = {0};
    if (end - p < 8 * size) {
        memcpy(copy, p, (size_t)(count * size));
        p = copy;
    }
    return _mm256_and_ps(load_floats(p, dtype), _mm256_castsi256_ps(first_lanes(count)));
}

INLINE __m256 half_to_all(const uint8_t *p) {
    short half;
    memcpy(&half, p, sizeof half);
    return _mm256_cvtph_ps(_mm_set1_epi16(half));
}
INLINE __m128i load_eight(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)p); }

/* Forms with records, which are whole. */
INLINE void load_records(const Weight *w, const uint8_t *scales, int64_t group, __m256 *s, __m256 *b) {
    if (w->quant == QUANT_K) {
        const uint8_t *record = scales + group / 8 * K_BYTES;
        int both;
        memcpy(&both, record, sizeof both);
        const __m128 halves = _mm_cvtph_ps(_mm_cvtsi32_si128(both));
        *s = _mm256_mul_ps(
            _mm256_broadcastss_ps(halves), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_eight(record + 4))));
        *b = _mm256_mul_ps(_mm256_broadcastss_ps(_mm_movehdup_ps(halves)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_eight(record + 12))));
        return;
    }
    const uint8_t *record = scales + group / 16 * K_SYMMETRIC_BYTES;
    const __m256i values = _mm256_cvtepi8_epi32(load_eight(record + 2 + group % 16));
    *s = _mm256_mul_ps(half_to_all(record), _mm256_cvtepi32_ps(values));
    *b = _mm256_mul_ps(*s, _mm256_set1_ps(-(float)(1 << (w->bits - 1))));
}

/* count: groups of the block that exist; the rest are zeros. scales, biases: a row's; bytes: of all rows from there. */
INLINE void load_scales(const Weight *w, const uint8_t *scales, const uint8_t *biases, int64_t bytes, int64_t group,
    int64_t count, __m256 *s, __m256 *b) {
    const uint8_t *end = scales + bytes;
    if (w->quant == QUANT_TERNARY) {
        const __m256 lanes = _mm256_castsi256_ps(first_lanes(count));
        *s = _mm256_and_ps(_mm256_set1_ps(ternary_scale(scales, w->dtype)), lanes);
        *b = _mm256_sub_ps(_mm256_setzero_ps(), *s);
        return;
    }
    if (w->quant == QUANT_AFFINE) {
        const int size = w->dtype == DTYPE_F32 ? 4 : 2;
        if (w->group <= 64) {
            const int64_t at = group * size;
            if (count >= 8) {
                *s = load_floats(scales + at, w->dtype);
                *b = load_floats(biases + at, w->dtype);
                return;
            }
            *s = load_floats_part(scales + at, end, w->dtype, count);
            *b = load_floats_part(biases + at, biases + bytes, w->dtype, count);
            return;
        }
        const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
        const int64_t half = count >= 8 ? 4 : count / 2, at = group / 2 * size;
        *s = _mm256_permutevar8x32_ps(load_floats_part(scales + at, end, w->dtype, half), twice);
        *b = _mm256_permutevar8x32_ps(load_floats_part(biases + at, biases + bytes, w->dtype, half), twice);
        return;
    }
    if (w->quant == QUANT_SYMMETRIC) {
        *s = count >= 8 ? load_floats(scales + 2 * group, DTYPE_F16)
                        : load_floats_part(scales + 2 * group, end, DTYPE_F16, count);
        *b = _mm256_mul_ps(*s, _mm256_set1_ps(-(float)(1 << (w->bits - 1))));
        return;
    }
    if (quant_is_affine(w->quant)) {
        load_records(w, scales, group, s, b);
        return;
    }
    uint64_t eight = 0;
    memcpy(&eight, scales + group, count >= 8 ? 8 : (size_t)count);
    const __m128i v = _mm_cvtsi64_si128((long long)eight);
    *s = w->quant == QUANT_MXFP4 ? half_e8m0(_mm256_cvtepu8_epi32(v))
                                 : _mm256_mul_ps(e4m3_part(v), _mm256_set1_ps(128.0f));
    *b = _mm256_mul_ps(*s, _mm256_set1_ps(-12.0f));
}

/* ---- codes ---- */

INLINE __m256i e2m1_codes(__m256i v) {
    return _mm256_shuffle_epi8(_mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0, 12, 13, 14,
                                   15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0),
        v);
}

/* How 32 codes of 2, 3, 5 or 6 bits are spread: each two into a 16-bit lane, shifted to the top, then each to its byte.
 */
typedef struct Spread {
    __m256i index; /* bytes behind an address; another 16 codes behind the second one */
    __m256i shift; /* by multiplication */
} Spread;

INLINE Spread spread_make(const int bits) {
    uint8_t index[32];
    uint16_t shift[16];
    for (int i = 0; i < 16; i++) {
        const int at = i % 8 * 2 * bits, from = bits == 3 ? i / 8 * 2 * bits : 0;
        index[2 * i] = (uint8_t)(from + at / 8);
        index[2 * i + 1] = (uint8_t)(from + (at + 2 * bits - 1) / 8);
        shift[i] = (uint16_t)(1u << (16 - 2 * bits - at % 8));
    }
    return (Spread){_mm256_loadu_si256((const __m256i *)index), _mm256_loadu_si256((const __m256i *)shift)};
}

/* Reads 16 − 2·bits bytes more than the codes take. */
INLINE __m256i spread(const Spread *s, const uint8_t *p, const int bits) {
    const __m256i code = _mm256_set1_epi16((short)((1 << bits) - 1));
    const __m128i first = _mm_loadu_si128((const __m128i *)p);
    const __m256i v = bits == 3
        ? _mm256_broadcastsi128_si256(first)
        : _mm256_inserti128_si256(_mm256_castsi128_si256(first), _mm_loadu_si128((const __m128i *)(p + 2 * bits)), 1);
    const __m256i pairs = _mm256_mullo_epi16(_mm256_shuffle_epi8(v, s->index), s->shift);
    return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(pairs, 16 - 2 * bits), code),
        _mm256_and_si256(_mm256_srli_epi16(pairs, 8 - bits), _mm256_slli_epi16(code, 8)));
}

/* 8 vectors of 8 dwords: rows become columns. */
INLINE void transpose8(__m256i r[8]) {
    __m256i t[8], u[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2x128_si256(u[i], u[4 + i], 0x20);
        r[i + 4] = _mm256_permute2x128_si256(u[i], u[4 + i], 0x31);
    }
}

/* The same for 4 in each half. */
INLINE void transpose4(__m256i r[4]) {
    const __m256i a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpacklo_epi32(r[2], r[3]);
    const __m256i c = _mm256_unpackhi_epi32(r[0], r[1]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    r[0] = _mm256_unpacklo_epi64(a, b);
    r[1] = _mm256_unpackhi_epi64(a, b);
    r[2] = _mm256_unpacklo_epi64(c, d);
    r[3] = _mm256_unpackhi_epi64(c, d);
}

/* `count` ≤ 4 dwords from p of 8 groups, which lie `bytes` apart: vector j becomes dword j of all. */
INLINE void transpose_groups(const uint8_t *p, const int bytes, const int count, __m256i v[4]) {
    __m256i t[4];
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) {
        const uint8_t *low = p + 16 * i, *high = p + 4 * bytes + 16 * i; /* two groups of 8 bytes */
        if (count == 4) {
            low = p + i * bytes;
            high = low + 4 * bytes;
        }
        t[i] = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)), _mm_loadu_si128((const __m128i *)high), 1);
    }
    if (count == 2) {
        const __m256 a = _mm256_castsi256_ps(t[0]), b = _mm256_castsi256_ps(t[1]);
        v[0] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
        v[1] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
        return;
    }
    transpose4(t);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) v[i] = t[i];
}

/* Codes per byte; 1: codes in order. */
INLINE int planes_of(const Kind k) { return k.bits == 4 ? 2 : k.bits == 2 ? 4 : 1; }

/* linear_input_avx2.c */
void linear_quantise_avx2(const float *x, int64_t cols, int group, int8_t *q, float *scales, float *sums);
void linear_arrange_avx2(LinearLayout layout, const int8_t *q, int64_t cols, int group, int8_t *out);
/* linear_few_avx2.c */
LinearLayout linear_layout_avx2(const Weight *w, int rows);
void linear_few_avx2(
    const Weight *w, int64_t first, int64_t count, const LinearInput *x, int rows, float *y, int64_t stride);
/* linear_block_avx2.c: few() for more than one or two activation rows */
void linear_block_avx2(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride);
/* linear_panel_avx2.c, linear_tile_avx2.c, linear_plain_avx2.c */
void linear_unpack_avx2(const Weight *w, int64_t first, LinearPanel *panel);
void linear_tile_avx2(const LinearPanel *panel, const LinearInput *x, int64_t first, int rows, float *y);
void linear_plain_avx2(const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride, int64_t rows,
    float *y, int64_t stride);
