/* Products of plain weights and of mxfp8 with AVX-512, f32 activations, in the order that linear.h defines: lanes are
 * columns. */
#include "backend/cpu/linear/linear_avx512.h"

enum {
    WIDE = 6,        /* activation rows of a tile */
    SHORT_COLS = 64, /* weight rows as short are multiplied 16 at a time: adding up lanes takes most of their time */
    SHORT_MANY = 4,  /* activation rows from which on transposing the weights pays */
};

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

/* ---- short rows, as the second matrices of LoRA adapters have ---- */

/* Columns of 16 rows become rows. */
INLINE void transpose(__m512 v[16]) {
    __m512 a[16], b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const __m512d x = _mm512_castps_pd(a[i + h]), y = _mm512_castps_pd(a[i + h + 2]);
            b[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
            b[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const __m512 x = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x44), y = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xee);
        const __m512 z = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x44);
        const __m512 w = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xee);
        v[c] = _mm512_shuffle_f32x4(x, z, 0x88);
        v[4 + c] = _mm512_shuffle_f32x4(x, z, 0xdd);
        v[8 + c] = _mm512_shuffle_f32x4(y, w, 0x88);
        v[12 + c] = _mm512_shuffle_f32x4(y, w, 0xdd);
    }
}

INLINE void load_short(const Plain kind, const Weight *w, int64_t first, int64_t k, __mmask16 mask, __m512 v[16]) {
    const size_t row_bytes = weight_row_bytes(w);
    const uint8_t *row = (const uint8_t *)w->data + (size_t)first * row_bytes;
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++) v[r] = load_plain(kind, row + (size_t)r * row_bytes, k, mask);
}

INLINE __mmask16 short_mask(int64_t cols, int64_t k) {
    return cols - k >= 16 ? 0xffff : (__mmask16)((1u << (cols - k)) - 1);
}

/* 16 products of one activation row: lanes are columns. */
INLINE void short_row(const Plain kind, const Weight *w, int64_t first, const float *x, float *y) {
    __m512 v[16], acc[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++) acc[r] = _mm512_setzero_ps();
    for (int64_t k = 0; k < w->cols; k += 16) {
        const __mmask16 mask = short_mask(w->cols, k);
        const __m512 xt = _mm512_maskz_loadu_ps(mask, x + k);
        load_short(kind, w, first, k, mask, v);
#pragma GCC unroll 16
        for (int r = 0; r < 16; r++) acc[r] = _mm512_fmadd_ps(v[r], xt, acc[r]);
    }
    _mm512_storeu_ps(y, tree_sums(acc));
}

/* The same of many activation rows: lanes are rows of the weight, and the tree adds whole vectors. */
INLINE void short_tile(const Plain kind, const Weight *w, int64_t first, const float *x, int64_t x_stride, int64_t rows,
    float *y, int64_t stride) {
    __m512 columns[SHORT_COLS];
    for (int64_t k = 0; k < w->cols; k += 16) {
        load_short(kind, w, first, k, short_mask(w->cols, k), columns + k);
        transpose(columns + k);
    }
    for (int64_t t = 0; t < rows; t++) {
        float own[SHORT_COLS];
        __m512 sums[8];
        for (int64_t k = 0; k < w->cols; k += 16)
            _mm512_storeu_ps(own + k, _mm512_maskz_loadu_ps(short_mask(w->cols, k), x + t * x_stride + k));
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            __m512 low = _mm512_setzero_ps(), high = low;
            for (int64_t k = j; k < w->cols + j; k += 16) {
                low = _mm512_fmadd_ps(columns[k], _mm512_set1_ps(own[k]), low);
                high = _mm512_fmadd_ps(columns[k + 8], _mm512_set1_ps(own[k + 8]), high);
            }
            sums[j] = _mm512_add_ps(low, high);
        }
#pragma GCC unroll 3
        for (int width = 4; width > 0; width /= 2)
#pragma GCC unroll 4
            for (int j = 0; j < width; j++) sums[j] = _mm512_add_ps(sums[j], sums[j + width]);
        _mm512_storeu_ps(y + t * stride, sums[0]);
    }
}

INLINE void short_rows(const Plain kind, const Weight *w, int64_t first, const float *x, int64_t x_stride, int64_t rows,
    float *y, int64_t stride) {
    if (rows >= SHORT_MANY) {
        short_tile(kind, w, first, x, x_stride, rows, y, stride);
        return;
    }
    for (int64_t t = 0; t < rows; t++) short_row(kind, w, first, x + t * x_stride, y + t * stride);
}

/* All whole tiles of 16 rows; returns how many rows they are. */
static int64_t short_product(const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride,
    int64_t rows, float *y, int64_t stride) {
    const Plain kind = linear_plain(w);
    int64_t r = 0;
    if (w->cols > SHORT_COLS || kind == PLAIN_MXFP8) return 0;
    for (; r + 16 <= count; r += 16) {
        if (kind == PLAIN_F32) short_rows(PLAIN_F32, w, first + r, x, x_stride, rows, y + r, stride);
        if (kind == PLAIN_F16) short_rows(PLAIN_F16, w, first + r, x, x_stride, rows, y + r, stride);
        if (kind == PLAIN_BF16) short_rows(PLAIN_BF16, w, first + r, x, x_stride, rows, y + r, stride);
    }
    return r;
}

/* ---- any rows ---- */

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
    const int64_t done = short_product(w, first, count, x, x_stride, rows, y, stride);
    first += done;
    count -= done;
    y += done;
    for (int64_t t = 0; t < rows && count > 0;) {
        const int64_t left = rows - t, n = left >= 6 ? 6 : left == 5 ? 3 : left;
        KERNELS[n][kind](w, first, count, x + t * x_stride, x_stride, y + t * stride, stride);
        t += n;
    }
}
