/* Products of 3 to 8 activation rows with AVX-512: weights are unpacked once for all of them.
 *
 * Lanes are weight rows: 16 rows' vectors are transposed, so that a group's sum needs no addition across lanes. The 16
 * lanes of the definition (linear.h) are 16 vectors per activation row, in the first-level cache. */
#include <string.h>

#include "backend/cpu/linear_avx512.h"

/* Codes per byte; 1: codes in order. */
INLINE int planes_of(const Kind k) { return k.bits == 4 ? 2 : k.bits == 2 ? 4 : 1; }

/* Vectors of 16 weight rows at one place of the row, transposed: dword j of every row. Planes are still to be split. */
INLINE void block_codes(
    const uint8_t *const rows[16], int64_t at, const __mmask64 mask, const Kind k, const bool whole, __m512i r[16]) {
    const int step = 8 * k.bits * planes_of(k);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        const __m512i v =
            whole && step == 64 ? _mm512_loadu_si512(rows[i] + at) : _mm512_maskz_loadu_epi8(mask, rows[i] + at);
        r[i] = planes_of(k) > 1 || k.bits == 8
            ? v
            : spread(v, spread_index(k.bits), spread_shift(k.bits, k.bits == 3), k.bits);
    }
    transpose16(r);
}

/* Scales and biases of 16 weight rows and 16 groups: [group][row]. count of the groups exist. */
INLINE void block_scales(
    const Weight *w, size_t stride, const int64_t rows[16], int64_t group, int64_t count, __m512 s[16], __m512 b[16]) {
    __m512i si[16], bi[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        const size_t offset = (size_t)rows[i] * stride;
        __m512 x, y;
        load_scales(w, (const uint8_t *)w->scales + offset, w->biases ? (const uint8_t *)w->biases + offset : NULL,
            group, count, &x, &y);
        si[i] = _mm512_castps_si512(x);
        bi[i] = _mm512_castps_si512(y);
    }
    transpose16(si);
    transpose16(bi);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        s[i] = _mm512_castsi512_ps(si[i]);
        b[i] = _mm512_castsi512_ps(bi[i]);
    }
}

/* Of records, in code of its own: inlined, it made the block 4 % slower. */
static __attribute__((noinline)) void block_scales_k(
    const Weight *w, size_t stride, const int64_t rows[16], int64_t group, int64_t count, __m512 s[16], __m512 b[16]) {
    Weight k = *w;
    k.quant = QUANT_K;
    block_scales(&k, stride, rows, group, count, s, b);
}

/* Sums of the lanes of 16 weight rows, for one activation row. */
typedef struct Lanes {
    __m512 lane[LINEAR_LANES];
} Lanes;

/* Where the activations of dword j of a vector lie, behind those of its first (LAYOUT_EIGHTS2, _PAIRS4). */
INLINE int dword_place(const int bits, const int j) {
    if (bits == 8) return 4 * j;
    const int eight = j / 2, half = j % 2;
    if (bits == 3) return 64 * (2 * (eight / 2 % 2) + half) + 8 * (eight / 4) + 4 * (eight % 2);
    return 64 * (eight % 2) + 8 * (eight / 2) + 4 * half;
}

/* The activations of vector i of a row. */
INLINE const int8_t *vector_place(const int8_t *q, int64_t i, const Kind k) {
    if (planes_of(k) > 1 || k.bits == 8) return q + i * 64 * planes_of(k);
    const int planes = k.bits == 3 ? 4 : 2;
    return q + i / planes * (64 * planes) + i % planes * (64 / planes);
}

/* One group of 16 weight rows, whose codes lie in r from dword `from`, with all activation rows. */
INLINE void block_group(const Few *f, const __m512i *r, const int from, const int8_t *q, int64_t group, const Kind k,
    const int rows, const __m512 *s, const __m512 *b, Lanes *acc) {
    const int dwords = k.group / (4 * planes_of(k)), lane = (int)(group % LINEAR_LANES);
    __m512i code[16][4];
#pragma GCC unroll 16
    for (int j = 0; j < dwords; j++)
#pragma GCC unroll 4
        for (int p = 0; p < planes_of(k); p++) {
            code[j][p] = planes_of(k) > 1 ? plane_of(r[from + j], k.bits, p) : r[from + j];
            if (is_coded(k)) code[j][p] = e2m1_codes(code[j][p]);
        }
    for (int t = 0; t < rows; t++) {
        const int8_t *x = q + t * f->stride;
        __m512i even = _mm512_setzero_si512(), odd = even;
#pragma GCC unroll 16
        for (int j = 0; j < dwords; j++)
#pragma GCC unroll 4
            for (int p = 0; p < planes_of(k); p++) {
                int four;
                memcpy(&four, x + (planes_of(k) > 1 ? 64 * p + 4 * (from + j) : dword_place(k.bits, from + j)), 4);
                __m512i *sum = (planes_of(k) > 1 ? p : j) & 1 ? &odd : &even;
                *sum = _mm512_dpbusd_epi32(*sum, code[j][p], _mm512_set1_epi32(four));
            }
        const int64_t at = t * f->scale_stride + group;
        const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
        __m512 *to = &acc[t].lane[lane];
        *to = _mm512_fmadd_ps(b[lane], _mm512_set1_ps(f->sums[at]),
            _mm512_fmadd_ps(_mm512_mul_ps(s[lane], _mm512_set1_ps(f->scales[at])), sum, *to));
    }
}

/* One vector of 16 weight rows: 16/dwords groups. */
INLINE void block_vector(const Few *f, const __m512i r[16], const int8_t *q, int64_t group, const Kind k,
    const int rows, const __m512 *s, const __m512 *b, Lanes *acc) {
    const int dwords = k.group / (4 * planes_of(k));
    if (dwords == 16) {
        block_group(f, r, 0, q, group, k, rows, s, b, acc);
        return;
    }
#pragma GCC unroll 8
    for (int g = 0; g < 16; g += dwords) block_group(f, r, g, q, group + g / dwords, k, rows, s, b, acc);
}

INLINE __m512 lanes_tree(Lanes *acc) {
#pragma GCC unroll 4
    for (int half = LINEAR_LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++) acc->lane[i] = _mm512_add_ps(acc->lane[i], acc->lane[i + half]);
    return acc->lane[0];
}

/* For f->rows activation rows, at most `most`: a loop over them is as fast as instances. */
INLINE void block_rows(
    const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride, const Kind k, const int most) {
    const int rows = f->rows, lanes = k.group / (4 * planes_of(k)), step = 8 * k.bits * planes_of(k),
              in_vector = 16 / lanes;
    const __mmask64 tail = first_bytes(f->w->cols * k.bits / 8 % step);
    const size_t row_bytes = weight_row_bytes(f->w), scale_bytes = weight_scale_bytes(f->w);
    Weight w = *f->w;
    w.quant = k.quant; /* now a constant */
    const int64_t groups = f->w->cols / k.group;
    for (int64_t r = 0; r < count; r += 16) {
        const uint8_t *row[16];
        int64_t index[16];
        for (int i = 0; i < 16; i++) {
            index[i] = first + (r + i < count ? r + i : count - 1);
            row[i] = (const uint8_t *)f->w->data + (size_t)index[i] * row_bytes;
        }
        Lanes acc[LINEAR_FEW];
        memset(acc, 0, (size_t)rows * sizeof *acc);
        const uint8_t *ahead = row[15] + row_bytes; /* the next rows, which are read one after the other */
        for (int64_t g = 0; g < groups; g += LINEAR_LANES) {
            __m512 s[LINEAR_LANES], b[LINEAR_LANES];
            if (k.quant == QUANT_K)
                block_scales_k(&w, scale_bytes, index, g, groups - g, s, b);
            else
                block_scales(&w, scale_bytes, index, g, groups - g, s, b);
            for (int i = 0; i < lanes; i++) {
                const int64_t at = g + i * in_vector;
                if (at >= groups) break;
                const bool whole = groups - at >= in_vector;
                __m512i code[16];
                block_codes(row, at / in_vector * step, whole ? first_bytes(step) : tail, k, whole, code);
                for (int line = 0; line < 16 * step; line += 64) _mm_prefetch((const char *)ahead + line, _MM_HINT_T1);
                ahead += 16 * step;
                block_vector(f, code, vector_place(f->q, at / in_vector, k), at, k, rows, s, b, acc);
            }
        }
        const __mmask16 mask = count - r >= 16 ? 0xffff : (__mmask16)((1u << (count - r)) - 1);
        for (int t = 0; t < rows; t++) _mm512_mask_storeu_ps(y + t * y_stride + r, mask, lanes_tree(&acc[t]));
    }
}

FEW_KERNELS(block_rows, 8)

void linear_block_avx512(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride) {
    block_rows_8[linear_kind(f->w)](f, first, count, y, y_stride);
}
