/* Products of plain weights and of mxfp8 with AVX-512, f32 activations, in the order that linear.h defines: lanes are
 * columns. */
#include "backend/cpu/linear/linear_avx512.h"

enum { WIDE = 6 }; /* activation rows of a tile */

/* Scales × 256 of the next 512 columns of one row. */
INLINE void load_e8m0(const uint8_t *scales, int64_t group, int64_t count, float out[16]) {
    const __mmask16 mask = count >= 16 ? 0xffff : (__mmask16)((1u << count) - 1);
    const __m512i e = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, scales + group));
    const __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(e, _mm512_set1_epi32(8)), 23);
    _mm512_storeu_si512(out, _mm512_min_epu32(bits, _mm512_set1_epi32(0x7f800000)));
}

/* 16 elements of a row from col; mask: elements inside of the row. */
INLINE __m512 load_plain(const Plain kind, const uint8_t *row, int64_t col, const __mmask16 mask) {
    if (kind == PLAIN_F32) return _mm512_maskz_loadu_ps(mask, row + 4 * col);
    if (kind == PLAIN_F16) return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, row + 2 * col));
    if (kind == PLAIN_MXFP8) return e4m3_part(_mm_loadu_si128((const __m128i *)(row + col)));
    const __m512i v = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row + 2 * col));
    return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
}

INLINE void plain_step(const Plain kind, const uint8_t *row, size_t row_bytes, const float *x, int64_t x_stride,
    int64_t k, const __mmask16 mask, const int height, const int rows, __m512 acc[4][WIDE]) {
    __m512 v[4];
#pragma GCC unroll 4
    for (int r = 0; r < height; r++) v[r] = load_plain(kind, row + r * row_bytes, k, mask);
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++) {
        const __m512 xt = _mm512_maskz_loadu_ps(mask, x + t * x_stride + k);
#pragma GCC unroll 4
        for (int r = 0; r < height; r++) acc[r][t] = _mm512_fmadd_ps(v[r], xt, acc[r][t]);
    }
}

/* A group of 32 columns of mxfp8. */
INLINE void plain_group(const uint8_t *row, size_t row_bytes, float scale[4][16], const float *x, int64_t x_stride,
    int64_t k, const int height, const int rows, __m512 acc[4][WIDE]) {
    __m512 low[4], high[4], s[4];
#pragma GCC unroll 4
    for (int r = 0; r < height; r++) {
        low[r] = load_plain(PLAIN_MXFP8, row + r * row_bytes, k, 0xffff);
        high[r] = load_plain(PLAIN_MXFP8, row + r * row_bytes, k + 16, 0xffff);
        s[r] = _mm512_set1_ps(scale[r][k / 32 % 16]);
    }
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++) {
        const __m512 x0 = _mm512_loadu_ps(x + t * x_stride + k), x1 = _mm512_loadu_ps(x + t * x_stride + k + 16);
#pragma GCC unroll 4
        for (int r = 0; r < height; r++)
            acc[r][t] = _mm512_fmadd_ps(s[r], _mm512_fmadd_ps(high[r], x1, _mm512_mul_ps(low[r], x0)), acc[r][t]);
    }
}

/* height × rows products, lanes over columns. */
INLINE void plain_tile(const Plain kind, const Weight *w, int64_t first, const float *x, int64_t x_stride, float *y,
    int64_t stride, const int height, const int rows) {
    const size_t row_bytes = weight_row_bytes(w), scale_bytes = kind == PLAIN_MXFP8 ? weight_scale_bytes(w) : 0;
    const uint8_t *row = (const uint8_t *)w->data + (size_t)first * row_bytes;
    const int size = kind == PLAIN_F32 ? 4 : kind == PLAIN_MXFP8 ? 1 : 2, step = kind == PLAIN_MXFP8 ? 32 : 16;
    const int line = 64 / size; /* columns */
    const int64_t whole = w->cols / step * step;
    float scale[4][16];
    __m512 acc[4][WIDE];
#pragma GCC unroll 4
    for (int r = 0; r < height; r++)
#pragma GCC unroll 6
        for (int t = 0; t < rows; t++) acc[r][t] = _mm512_setzero_ps();
    for (int64_t k = 0; k < whole; k += step) {
        if (k % line == 0)
#pragma GCC unroll 4
            for (int r = 0; r < height; r++) {
                if (rows == 1) prefetch(row + r * row_bytes + size * k, FAR_BYTES, 64);
                if (kind == PLAIN_MXFP8 && k % 512 == 0)
                    load_e8m0((const uint8_t *)w->scales + (size_t)(first + r) * scale_bytes, k / 32,
                        (w->cols - k) / 32, scale[r]);
            }
        if (kind == PLAIN_MXFP8)
            plain_group(row, row_bytes, scale, x, x_stride, k, height, rows, acc);
        else
            plain_step(kind, row, row_bytes, x, x_stride, k, 0xffff, height, rows, acc);
    }
    if (whole < w->cols) { /* never in mxfp8: its rows are whole groups */
        const __mmask16 mask = (__mmask16)((1u << (w->cols - whole)) - 1);
        if (kind != PLAIN_MXFP8) plain_step(kind, row, row_bytes, x, x_stride, whole, mask, height, rows, acc);
    }
#pragma GCC unroll 4
    for (int r = 0; r < height; r++)
#pragma GCC unroll 6
        for (int t = 0; t < rows; t++) y[t * stride + r] = add_tree(acc[r][t]);
}

INLINE void plain_rows(const Plain kind, const Weight *w, int64_t first, int64_t count, const float *x,
    int64_t x_stride, float *y, int64_t stride, const int rows) {
    int64_t r = 0;
    const int height = rows == 1 ? 2 : 4; /* two streams of weights, as few as keep the additions busy */
    for (; r + height <= count; r += height) plain_tile(kind, w, first + r, x, x_stride, y + r, stride, height, rows);
    for (; r < count; r++) plain_tile(kind, w, first + r, x, x_stride, y + r, stride, 1, rows);
}
PLAIN_KERNELS(plain_rows, 1)
PLAIN_KERNELS(plain_rows, 2)
PLAIN_KERNELS(plain_rows, 3)
PLAIN_KERNELS(plain_rows, 4)
PLAIN_KERNELS(plain_rows, 6)

void linear_plain_avx512(const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride, int64_t rows,
    float *y, int64_t stride) {
    static PlainKernel *const *const KERNELS[WIDE + 1] = {
        [1] = plain_rows_1, [2] = plain_rows_2, [3] = plain_rows_3, [4] = plain_rows_4, [6] = plain_rows_6};
    const Plain kind = linear_plain(w);
    for (int64_t t = 0; t < rows;) {
        const int64_t left = rows - t, n = left >= 6 ? 6 : left == 5 ? 3 : left;
        KERNELS[n][kind](w, first, count, x + t * x_stride, x_stride, y + t * stride, stride);
        t += n;
    }
}
