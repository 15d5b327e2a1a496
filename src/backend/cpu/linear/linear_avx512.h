/* Shared by the products with AVX-512: floats of every kind, the tree over the lanes. */
#pragma once
#include "backend/cpu/linear/linear_x86.h"
#include "backend/cpu/trees_avx512.h"

enum { PANEL = 32, FEW_BLOCK = 8 };

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

/* 128-bit lanes: of a, then of b, neighbours added. */
INLINE __m512i add_lanes(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* ---- scales of 16 activation groups ---- */

INLINE __m512 half_e8m0(__m512i v) { /* 2^(v−128) */
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(v, _mm512_set1_epi32(1)), 23);
    __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), v);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, _mm512_cmplt_epu32_mask(v, _mm512_set1_epi32(2)), tiny));
}

/* Records of QUANT_K: 8 groups, or 16. Bytes become dwords, halves floats; missing groups are zeros. A masked load
 * would wait for bytes behind the records as well, until they come from memory. */
INLINE void load_k(const uint8_t *records, int64_t count, __m512 *s, __m512 *b) {
    static const uint8_t PAIRS[32] = {/* bytes 0 and 1 of both records */
        0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 20, 21, 20, 21, 20, 21, 20, 21, 20, 21, 20, 21, 20, 21, 20, 21};
    const __m512i first = _mm512_setr_epi32(4, 5, 6, 7, 8, 9, 10, 11, 24, 25, 26, 27, 28, 29, 30, 31);
    const __m512i last = _mm512_setr_epi32(12, 13, 14, 15, 16, 17, 18, 19, 40, 41, 42, 43, 44, 45, 46, 47);
    const __mmask64 bytes = 0x1111111111111111;
    __m512i v = _mm512_castsi256_si512(_mm256_maskz_loadu_epi8(((__mmask32)1 << K_BYTES) - 1, records));
    if (count >= 16) {
        v = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)records));
        v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(records + 2 * K_BYTES - 16)), 2);
    }
    const __m256i low = _mm512_castsi512_si256(v), pairs = _mm256_loadu_si256((const __m256i *)PAIRS);
    const __m512 d = _mm512_cvtph_ps(_mm256_permutexvar_epi8(pairs, low));
    const __m512 e = _mm512_cvtph_ps(_mm256_permutexvar_epi8(_mm256_add_epi8(pairs, _mm256_set1_epi8(2)), low));
    *s = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_maskz_permutexvar_epi8(bytes, first, v)));
    *b = _mm512_mul_ps(e, _mm512_cvtepi32_ps(_mm512_maskz_permutexvar_epi8(bytes, last, v)));
}

/* Forms whose bias is −2^(bits−1) times the scale. */
INLINE __m512 load_symmetric(const Weight *w, const uint8_t *scales, int64_t group, __mmask16 mask) {
    if (w->quant == QUANT_SYMMETRIC) return load_floats(scales + (size_t)group * 2, DTYPE_F16, mask);
    const uint8_t *record = scales + group / 16 * K_SYMMETRIC_BYTES;
    short d;
    memcpy(&d, record, sizeof d);
    const __m512i bytes = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(record + 2)));
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_set1_epi16(d)), _mm512_cvtepi32_ps(bytes));
}

/* count: groups of the block that exist. The rest are zeros and not read. */
INLINE void load_scales(
    const Weight *w, const uint8_t *scales, const uint8_t *biases, int64_t group, int64_t count, __m512 *s, __m512 *b) {
    __mmask16 mask = count >= 16 ? 0xffff : (__mmask16)((1u << count) - 1);
    if (w->quant == QUANT_TERNARY) {
        *s = _mm512_maskz_mov_ps(mask, _mm512_set1_ps(ternary_scale(scales, w->dtype)));
        *b = _mm512_sub_ps(_mm512_setzero_ps(), *s);
        return;
    }
    if (w->quant == QUANT_AFFINE) {
        size_t size = w->dtype == DTYPE_F32 ? 4 : 2;
        if (w->group <= 64) {
            *s = load_floats(scales + (size_t)group * size, w->dtype, mask);
            *b = load_floats(biases + (size_t)group * size, w->dtype, mask);
            return;
        }
        const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        mask = count >= 16 ? 0xff : (__mmask16)((1u << count / 2) - 1);
        *s = _mm512_permutexvar_ps(twice, load_floats(scales + (size_t)group / 2 * size, w->dtype, mask));
        *b = _mm512_permutexvar_ps(twice, load_floats(biases + (size_t)group / 2 * size, w->dtype, mask));
        return;
    }
    if (w->quant == QUANT_K) {
        load_k(scales + group / 8 * K_BYTES, count, s, b);
        return;
    }
    if (quant_is_affine(w->quant)) {
        *s = load_symmetric(w, scales, group, mask);
        *b = _mm512_mul_ps(*s, _mm512_set1_ps(-(float)(1 << (w->bits - 1))));
        return;
    }
    __m128i bytes = _mm_maskz_loadu_epi8(mask, scales + group);
    *s = w->quant == QUANT_MXFP4 ? half_e8m0(_mm512_cvtepu8_epi32(bytes))
                                 : _mm512_mul_ps(e4m3_part(bytes), _mm512_set1_ps(128.0f));
    *b = _mm512_mul_ps(*s, _mm512_set1_ps(-12.0f));
}

/* ---- codes ---- */

INLINE __m512i e2m1_codes(__m512i v) {
    return _mm512_shuffle_epi8(_mm512_set4_epi32(0x00040608, 0x090a0b0c, 0x18141210, 0x0f0e0d0c), v);
}

/* Plane j of bytes that hold 8/bits codes each: one bit-matrix product instead of shift and mask. */
INLINE __m512i plane_of(__m512i v, const int bits, const int j) {
    if (j == 0) return _mm512_and_si512(v, _mm512_set1_epi8((char)((1 << bits) - 1)));
    uint64_t matrix = 0; /* row 7−i of 8 makes bit i */
    for (int i = 0; i < bits; i++) matrix |= (uint64_t)1 << (j * bits + i) << (8 * (7 - i));
    return _mm512_gf2p8affine_epi64_epi8(v, _mm512_set1_epi64((int64_t)matrix), 0);
}

/* For codes of `bits` bits: the bytes of each 8 codes into a 64-bit lane, then each code to its byte. split: even
 * first. */
INLINE __m512i spread_index(const int bits) {
    uint8_t index[64];
    for (int i = 0; i < 64; i++) index[i] = (uint8_t)(i / 8 * bits + (i % 8 < bits ? i % 8 : bits - 1));
    return _mm512_loadu_si512(index);
}
INLINE __m512i spread_shift(const int bits, const bool split) {
    uint8_t shift[64];
    for (int i = 0; i < 64; i++) shift[i] = (uint8_t)((split ? 2 * (i & 3) + (i >> 2 & 1) : i & 7) * bits);
    return _mm512_loadu_si512(shift);
}
INLINE __m512i spread(__m512i v, __m512i index, __m512i shift, const int bits) {
    return _mm512_and_si512(_mm512_multishift_epi64_epi8(shift, _mm512_permutexvar_epi8(index, v)),
        _mm512_set1_epi8((char)((1 << bits) - 1)));
}

/* Run number j of every `runs` runs of `bytes` bytes, in 64-bit lanes. first, last: 64 bytes at the beginning and at
 * the end of them all. */
INLINE __m512i take_runs(__m512i first, __m512i last, const int bytes, const int chunks, const int j) {
    uint8_t index[64];
    for (int i = 0; i < 64; i++) {
        const int byte = (i / 8 * chunks + j) * bytes + (i % 8 < bytes ? i % 8 : bytes - 1);
        index[i] = (uint8_t)(byte < 64 ? byte : byte - 8 * bytes * chunks + 128);
    }
    return _mm512_permutex2var_epi8(first, _mm512_loadu_si512(index), last);
}

INLINE __mmask64 first_bytes(int64_t count) {
    return count >= 64 ? ~(__mmask64)0 : count <= 0 ? 0 : ((__mmask64)1 << count) - 1;
}

/* 16 vectors of 16 dwords: rows become columns. */
INLINE void transpose16(__m512i r[16]) {
    __m512i t[16], u[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i a = _mm512_shuffle_i32x4(u[i], u[4 + i], 0x88), b = _mm512_shuffle_i32x4(u[8 + i], u[12 + i], 0x88);
        __m512i c = _mm512_shuffle_i32x4(u[i], u[4 + i], 0xdd), d = _mm512_shuffle_i32x4(u[8 + i], u[12 + i], 0xdd);
        r[i] = _mm512_shuffle_i32x4(a, b, 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(a, b, 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(c, d, 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
}

/* Dwords of groups that have `dwords` each, one after the other in as many vectors, at most 4: vector j becomes dword j
 * of 16 groups; of longer groups dword j of each 128-bit lane (see add_halves()). */
INLINE void transpose_groups(__m512i v[4], const int dwords) {
    if (dwords == 2) {
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i a = v[0], b = v[1];
        v[0] = _mm512_permutex2var_epi32(a, even, b);
        v[1] = _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
        return;
    }
    __m512i t[4];
    if (dwords == 4) {
        const __m512i low = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
        const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(2));
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) { /* 2 dwords of 8 groups */
            t[i] = _mm512_permutex2var_epi32(v[2 * i], low, v[2 * i + 1]);
            t[i + 2] = _mm512_permutex2var_epi32(v[2 * i], high, v[2 * i + 1]);
        }
#pragma GCC unroll 2
        for (int i = 0; i < 4; i += 2) {
            v[i] = _mm512_shuffle_i32x4(t[i], t[i + 1], 0x44);
            v[i + 1] = _mm512_shuffle_i32x4(t[i], t[i + 1], 0xee);
        }
        return;
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        t[i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        t[i + 2] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2) {
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 1]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 1]);
    }
}

/* linear_input_avx512.c */
void linear_quantise_avx512(const float *x, int64_t cols, int group, int8_t *q, float *scales, float *sums);
void linear_arrange_avx512(LinearLayout layout, const int8_t *q, int64_t cols, int group, int8_t *out);
/* linear_few_avx512.c */
LinearLayout linear_layout_avx512(const Weight *w, int rows);
void linear_few_avx512(
    const Weight *w, int64_t first, int64_t count, const LinearInput *x, int rows, float *y, int64_t stride);
/* linear_block_avx512.c: few() for more than FEW_SINGLE activation rows */
void linear_block_avx512(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride);
/* linear_panel_avx512.c, linear_tile_avx512.c, linear_plain_avx512.c */
void linear_unpack_avx512(const Weight *w, int64_t first, LinearPanel *panel);
void linear_tile_avx512(const LinearPanel *panel, const LinearInput *x, int64_t first, int rows, float *y);
void linear_plain_avx512(const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride, int64_t rows,
    float *y, int64_t stride);
/* linear_amx.c: the parts of LAYOUT_PANEL, and tiles */
enum { LINEAR_AMX_ROWS = 16 };
void linear_arrange_amx(const int8_t *q, int64_t cols, int group, int8_t *out);
void linear_tile_amx(const LinearPanel *panel, const LinearInput *x, int64_t first, int rows, float *y);
