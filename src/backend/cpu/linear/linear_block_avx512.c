/* Products of 3 to 8 activation rows with AVX-512: codes are unpacked once for all of them.
 *
 * Lanes are groups, as for one row. But codes are transposed before they meet the activations, which lie in the same
 * order (LAYOUT_GROUPS…), so that a group's sum grows in one lane, or in 2 or 4 where a group is long: per activation
 * row almost nothing but multiplications is left. Their accumulators stay in registers: a store costs as much as three
 * products. A piece of the activations that fits the first-level cache meets 16 weight rows before the next piece. */
#include <string.h>

#include "backend/cpu/linear/linear_avx512.h"

enum {
    BLOCK_ROWS = 16,
    CODES = 16, /* most vectors of codes in registers */
    OVER = 64,
    CACHED_BYTES = 24576, /* bytes of activations */
};

/* Codes per byte; 1: codes in order. */
INLINE int planes_of(const Kind k) { return k.bits == 4 ? 2 : k.bits == 2 ? 4 : 1; }
/* Dwords of a group; lanes that a group's sum is spread over. */
INLINE int dwords_of(const Kind k) { return k.group / (4 * planes_of(k)); }
INLINE int parts_of(const Kind k) { return dwords_of(k) > 4 ? dwords_of(k) / 4 : 1; }
/* Vectors of codes of as many groups as fit the lanes of one. */
INLINE int codes_of(const Kind k) { return k.group / 4 / parts_of(k); }

/* The codes of 16/parts groups, in the order of the activations. May read OVER bytes too many. */
INLINE void block_codes(const uint8_t *p, const Kind k, __m512i code[CODES]) {
    const int planes = planes_of(k), vectors = codes_of(k) / planes;
    const __m512i index = spread_index(k.bits), shift = spread_shift(k.bits, false);
    __m512i v[4];
#pragma GCC unroll 4
    for (int i = 0; i < vectors; i++) {
        v[i] = _mm512_loadu_si512(p + 8 * k.bits * planes * i);
        __asm__("" : "+v"(v[i])); /* one load: gcc would read it again for each use */
        if (planes == 1 && k.bits != 8) v[i] = spread(v[i], index, shift, k.bits);
    }
    transpose_groups(v, dwords_of(k));
#pragma GCC unroll 4
    for (int i = 0; i < vectors; i++)
#pragma GCC unroll 4
        for (int j = 0; j < planes; j++) {
            __m512i *to = &code[i * planes + j];
            *to = planes > 1 ? plane_of(v[i], k.bits, j) : v[i];
            if (is_coded(k)) *to = e2m1_codes(*to);
        }
}

/* The sums of 16 groups in order, each spread over 2 lanes by transpose_groups(). */
INLINE __m512i add_halves(__m512i a, __m512i b) {
    const __m512i low = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(4));
    return _mm512_add_epi32(_mm512_permutex2var_epi32(a, low, b), _mm512_permutex2var_epi32(a, high, b));
}

/* The codes' products with an activation row, whose place is q. */
INLINE __m512i block_dot(const __m512i code[CODES], const int8_t *q, const int codes) {
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 16
    for (int i = 0; i < codes; i++) sum = _mm512_dpbusd_epi32(sum, code[i], _mm512_loadu_si512(q + 64 * i));
    return sum;
}

/* 16 groups from `group` of one weight row, of which `left` exist, with all activation rows. acc: the weight row's
 * lanes. */
INLINE void block_groups(const Few *f, const uint8_t *p, int64_t group, int64_t left, __m512 s, __m512 b, const Kind k,
    const int rows, __m512 acc[FEW_BLOCK]) {
    const int parts = parts_of(k), codes = codes_of(k), bytes = 2 * k.group * k.bits / parts;
    const int8_t *q = f->q + group * k.group;
    __m512i part[4][FEW_BLOCK], code[CODES];
#pragma GCC unroll 4
    for (int i = 0; i < parts; i++, p += bytes, q += 64 * codes) {
        const bool exists = i == 0 || left > i * LINEAR_LANES / parts;
        if (exists) block_codes(p, k, code);
        const int8_t *x = q;
        const float *d = f->scales + group, *z = f->sums + group;
#pragma GCC unroll 8
        for (int t = 0; t < rows; t++, x += f->stride, d += f->scale_stride, z += f->scale_stride) {
            __m512i sum = exists ? block_dot(code, x, codes) : _mm512_setzero_si512();
            if (parts == 4 && i & 1) sum = add_lanes(part[i - 1][t], sum);
            part[i][t] = sum;
            if (i < parts - 1) continue;
            sum = parts == 4 ? add_lanes(part[1][t], sum) : parts == 2 ? add_halves(part[0][t], sum) : sum;
            const __m512 sd = _mm512_mul_ps(s, _mm512_loadu_ps(d));
            acc[t] = _mm512_fmadd_ps(sd, _mm512_cvtepi32_ps(sum), acc[t]);
            acc[t] = _mm512_fmadd_ps(b, _mm512_loadu_ps(z), acc[t]);
        }
    }
}

/* Start of the groups of a weight row; biases: nullable. */
typedef struct Place {
    const uint8_t *codes, *scales, *biases;
    size_t far; /* how far ahead codes are fetched */
} Place;

/* Groups first … last−1 of a weight row. */
INLINE void block_row(
    const Few *f, Place at, int64_t first, int64_t last, const Kind k, const int rows, __m512 acc[FEW_BLOCK]) {
    const int bytes = 2 * k.group * k.bits; /* bytes of 16 groups */
    const uint8_t *p = at.codes + first / LINEAR_LANES * bytes;
    Weight w = *f->w;
    w.quant = k.quant; /* now a constant */
    for (int64_t g = first; g < last; g += LINEAR_LANES, p += bytes) {
        uint8_t copy[16 * 64 + OVER];
        __m512 s, b;
        prefetch(p, at.far, bytes);
        const uint8_t *from = f->end - p < bytes + OVER ? memcpy(copy, p, (size_t)(f->end - p)) : p;
        load_scales(&w, at.scales, at.biases, g, last - g, &s, &b);
        block_groups(f, from, g, last - g, s, b, k, rows, acc);
    }
}

INLINE void block_rows(
    const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride, const Kind k, const int rows) {
    const int64_t groups = f->w->cols / k.group, piece = CACHED_BYTES / (rows * k.group) / LINEAR_LANES * LINEAR_LANES;
    const size_t row_bytes = weight_row_bytes(f->w), scale_bytes = weight_scale_bytes(f->w), far = far_rows(row_bytes);
    const uint8_t *scales = f->w->scales, *biases = f->w->biases;
    __m512 done[FEW_BLOCK][BLOCK_ROWS];
    for (int64_t r = 0; r < count; r += BLOCK_ROWS) {
        const int exist = count - r < BLOCK_ROWS ? (int)(count - r) : BLOCK_ROWS;
        for (int64_t from = 0; from < groups; from += piece) {
            const int64_t to = groups - from < piece ? groups : from + piece;
            for (int i = 0; i < exist; i++) {
                const size_t row = (size_t)(first + r + i), at = row * scale_bytes;
                const Place place = {
                    (const uint8_t *)f->w->data + row * row_bytes, scales + at, biases ? biases + at : NULL, far};
                __m512 acc[FEW_BLOCK];
#pragma GCC unroll 8
                for (int t = 0; t < rows; t++) acc[t] = from ? done[t][i] : _mm512_setzero_ps();
                few_prefetch_scales(place.scales, scale_bytes);
                if (biases) few_prefetch_scales(place.biases, scale_bytes);
                block_row(f, place, from, to, k, rows, acc);
#pragma GCC unroll 8
                for (int t = 0; t < rows; t++) done[t][i] = acc[t];
            }
        }
        const __mmask16 mask = (__mmask16)((1u << exist) - 1);
        for (int t = 0; t < rows; t++) _mm512_mask_storeu_ps(y + t * y_stride + r, mask, tree_sums(done[t]));
    }
}

FEW_KERNELS(block_rows, 3)
FEW_KERNELS(block_rows, 4)
FEW_KERNELS(block_rows, 5)
FEW_KERNELS(block_rows, 6)
FEW_KERNELS(block_rows, 7)
FEW_KERNELS(block_rows, 8)

void linear_block_avx512(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride) {
    static FewKernel *const *const KERNELS[] = {
        block_rows_3, block_rows_4, block_rows_5, block_rows_6, block_rows_7, block_rows_8};
    KERNELS[f->rows - FEW_SINGLE - 1][linear_kind(f->w)](f, first, count, y, y_stride);
}
