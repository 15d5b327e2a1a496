/* Products of plain weights and of mxfp8 with AVX2, f32 activations, in the order that linear.h defines: lanes are
 * columns. */
#include <string.h>

#include "backend/cpu/linear/linear_avx2.h"

enum {
    SHORT_COLS = 64, /* weight rows as short are multiplied 8 at a time: adding up lanes takes most of their time */
    SHORT_MANY = 4,  /* activation rows from which on transposing the weights pays */
};

/* Scales × 256 of the next 256 columns of one row. */
INLINE void load_e8m0(const uint8_t *scales, int64_t group, int64_t count, float out[8]) {
    uint64_t eight = 0;
    memcpy(&eight, scales + group, count >= 8 ? 8 : (size_t)count);
    const __m256i e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)eight));
    const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(8)), 23);
    _mm256_storeu_si256((__m256i *)out, _mm256_min_epu32(bits, _mm256_set1_epi32(0x7f800000)));
}

/* 8 elements of a row from col. */
INLINE __m256 load_plain(const Plain kind, const uint8_t *row, int64_t col) {
    if (kind == PLAIN_F32) return load_floats(row + 4 * col, DTYPE_F32);
    if (kind == PLAIN_F16) return load_floats(row + 2 * col, DTYPE_F16);
    if (kind == PLAIN_BF16) return load_floats(row + 2 * col, DTYPE_BF16);
    return e4m3_part(_mm_loadl_epi64((const __m128i *)(row + col)));
}

/* 16 columns; of mxfp8 a group of 32. h: which 8 lanes. */
INLINE void plain_step(const Plain kind, const uint8_t *row, float scale, const float *x, int64_t x_stride, int64_t k,
    const int h, const int rows, __m256 acc[3][2]) {
    const __m256 v = load_plain(kind, row, k + 8 * h);
    if (kind != PLAIN_MXFP8) {
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++)
            acc[t][h] = _mm256_fmadd_ps(v, _mm256_loadu_ps(x + t * x_stride + k + 8 * h), acc[t][h]);
        return;
    }
    const __m256 other = load_plain(kind, row, k + 8 * h + 16), s = _mm256_set1_ps(scale);
#pragma GCC unroll 3
    for (int t = 0; t < rows; t++) {
        const float *at = x + t * x_stride + k + 8 * h;
        const __m256 low = _mm256_mul_ps(v, _mm256_loadu_ps(at));
        acc[t][h] = _mm256_fmadd_ps(s, _mm256_fmadd_ps(other, _mm256_loadu_ps(at + 16), low), acc[t][h]);
    }
}

/* height × rows products, lanes over columns. */
INLINE void plain_tile(const Plain kind, const Weight *w, int64_t first, const float *x, int64_t x_stride, float *y,
    int64_t stride, const int height, const int rows) {
    const size_t row_bytes = weight_row_bytes(w), scale_bytes = kind == PLAIN_MXFP8 ? weight_scale_bytes(w) : 0;
    const uint8_t *row = (const uint8_t *)w->data + (size_t)first * row_bytes;
    const int size = kind == PLAIN_F32 ? 4 : kind == PLAIN_MXFP8 ? 1 : 2, step = kind == PLAIN_MXFP8 ? 32 : 16;
    const int64_t whole = w->cols / step * step, left = w->cols - whole; /* mxfp8 rows are whole groups */
    float scale[2][8] = {{0}};
    __m256 acc[2][3][2];
#pragma GCC unroll 2
    for (int r = 0; r < height; r++)
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++) acc[r][t][0] = acc[r][t][1] = _mm256_setzero_ps();
    for (int64_t k = 0; k < whole; k += step)
#pragma GCC unroll 2
        for (int r = 0; r < height; r++) {
            if (rows == 1 && k % (64 / size) == 0) prefetch(row + r * row_bytes + size * k, FAR_BYTES, 64);
            if (kind == PLAIN_MXFP8 && k % 256 == 0)
                load_e8m0((const uint8_t *)w->scales + (size_t)(first + r) * scale_bytes, k / 32, (w->cols - k) / 32,
                    scale[r]);
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++)
                plain_step(kind, row + r * row_bytes, scale[r][k / 32 % 8], x, x_stride, k, h, rows, acc[r]);
        }
    if (kind != PLAIN_MXFP8 && left > 0) {
        float xs[3][16] = {{0}};
        for (int t = 0; t < rows; t++) memcpy(xs[t], x + t * x_stride + whole, (size_t)left * sizeof **xs);
#pragma GCC unroll 2
        for (int r = 0; r < height; r++) {
            uint8_t tail[64] = {0};
            memcpy(tail, row + r * row_bytes + (size_t)(whole * size), (size_t)(left * size));
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) plain_step(kind, tail, 0, xs[0], 16, 0, h, rows, acc[r]);
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < height; r++)
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++) y[t * stride + r] = add_tree(acc[r][t][0], acc[r][t][1]);
}

/* ---- short rows, as the second matrices of LoRA adapters have ---- */

/* Columns of 8 rows become rows. */
INLINE void transpose(__m256 v[8]) {
    __m256 a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const __m256d x = _mm256_castps_pd(a[i + h]), y = _mm256_castps_pd(a[i + h + 2]);
            b[i + 2 * h] = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
            b[i + 2 * h + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
        }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        v[c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x20);
        v[4 + c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x31);
    }
}

/* 8 products of one activation row: lanes are columns. */
INLINE void short_row(const Plain kind, const uint8_t *row, size_t row_bytes, int64_t cols, const float *x, float *y) {
    __m256 sums[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++) {
        __m256 low = _mm256_setzero_ps(), high = low;
        for (int64_t k = 0; k < cols; k += 16) {
            const uint8_t *at = row + (size_t)r * row_bytes;
            low = _mm256_fmadd_ps(load_plain(kind, at, k), _mm256_loadu_ps(x + k), low);
            high = _mm256_fmadd_ps(load_plain(kind, at, k + 8), _mm256_loadu_ps(x + k + 8), high);
        }
        sums[r] = _mm256_add_ps(low, high);
    }
    _mm256_storeu_ps(y, add_trees(sums));
}

/* The same of many activation rows: lanes are rows of the weight, and the tree adds whole vectors. */
INLINE void short_tile(const Plain kind, const uint8_t *row, size_t row_bytes, int64_t cols, const float *x,
    int64_t x_stride, int64_t rows, float *y, int64_t stride) {
    __m256 columns[SHORT_COLS];
    for (int64_t k = 0; k < cols; k += 8) {
#pragma GCC unroll 8
        for (int r = 0; r < 8; r++) columns[k + r] = load_plain(kind, row + (size_t)r * row_bytes, k);
        transpose(columns + k);
    }
    for (int64_t t = 0; t < rows; t++) {
        const float *own = x + t * x_stride;
        __m256 sums[8];
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            __m256 low = _mm256_setzero_ps(), high = low;
            for (int64_t k = j; k < cols; k += 16) {
                low = _mm256_fmadd_ps(columns[k], _mm256_broadcast_ss(own + k), low);
                high = _mm256_fmadd_ps(columns[k + 8], _mm256_broadcast_ss(own + k + 8), high);
            }
            sums[j] = _mm256_add_ps(low, high);
        }
#pragma GCC unroll 3
        for (int width = 4; width > 0; width /= 2)
#pragma GCC unroll 4
            for (int j = 0; j < width; j++) sums[j] = _mm256_add_ps(sums[j], sums[j + width]);
        _mm256_storeu_ps(y + t * stride, sums[0]);
    }
}

INLINE void short_rows(const Plain kind, const Weight *w, int64_t first, const float *x, int64_t x_stride, int64_t rows,
    float *y, int64_t stride) {
    const size_t row_bytes = weight_row_bytes(w);
    const uint8_t *row = (const uint8_t *)w->data + (size_t)first * row_bytes;
    if (rows >= SHORT_MANY) {
        short_tile(kind, row, row_bytes, w->cols, x, x_stride, rows, y, stride);
        return;
    }
    for (int64_t t = 0; t < rows; t++) short_row(kind, row, row_bytes, w->cols, x + t * x_stride, y + t * stride);
}

/* All whole tiles of 8 rows; returns how many rows they are. */
static int64_t short_product(const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride,
    int64_t rows, float *y, int64_t stride) {
    const Plain kind = linear_plain(w);
    int64_t r = 0;
    if (w->cols > SHORT_COLS || w->cols % 16 || kind == PLAIN_MXFP8) return 0;
    for (; r + 8 <= count; r += 8) {
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
    for (; r + 2 <= count; r += 2) plain_tile(kind, w, first + r, x, x_stride, y + r, stride, 2, rows);
    for (; r < count; r++) plain_tile(kind, w, first + r, x, x_stride, y + r, stride, 1, rows);
}
PLAIN_KERNELS(plain_rows, 1)
PLAIN_KERNELS(plain_rows, 2)
PLAIN_KERNELS(plain_rows, 3)

void linear_plain_avx2(const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride, int64_t rows,
    float *y, int64_t stride) {
    static PlainKernel *const *const KERNELS[] = {NULL, plain_rows_1, plain_rows_2, plain_rows_3};
    const Plain kind = linear_plain(w);
    const int64_t done = short_product(w, first, count, x, x_stride, rows, y, stride);
    first += done;
    count -= done;
    y += done;
    for (int64_t t = 0; t < rows && count > 0;) {
        const int64_t n = rows - t >= 3 ? 3 : rows - t;
        KERNELS[n][kind](w, first, count, x + t * x_stride, x_stride, y + t * stride, stride);
        t += n;
    }
}
