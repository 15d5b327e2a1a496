/* Products of plain weights and of mxfp8 with NEON, f32 activations, in the order that linear.h defines: lanes are
 * columns. */
#include <string.h>

#include "backend/cpu/linear/linear_neon.h"

INLINE float e8m0_times_256(uint8_t v) {
    return vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32(v < 247 ? (uint32_t)(v + 8) << 23 : 0x7f800000)), 0);
}

/* Lanes 4h … 4h+3 of 16 elements. mxfp8: divided by 256. */
INLINE float32x4_t load_plain(const Plain kind, const uint8_t *p, const int h) {
    if (kind == PLAIN_F32) return load_floats(p + 16 * h, DTYPE_F32);
    if (kind == PLAIN_F16) return load_floats(p + 8 * h, DTYPE_F16);
    if (kind == PLAIN_BF16) return load_floats(p + 8 * h, DTYPE_BF16);
    const uint16x8_t v = e4m3_bits(vld1_u8(p + h / 2 * 8));
    return vcvt_f32_f16(vreinterpret_f16_u16(h % 2 ? vget_high_u16(v) : vget_low_u16(v)));
}

/* 16 columns; of mxfp8 a group of 32. */
INLINE void plain_step(const Plain kind, const uint8_t *p, float scale, const float *x, int64_t x_stride,
    const int rows, float32x4_t acc[3][4]) {
#pragma GCC unroll 4
    for (int h = 0; h < 4; h++) {
        const float32x4_t v = load_plain(kind, p, h);
        if (kind != PLAIN_MXFP8) {
#pragma GCC unroll 3
            for (int t = 0; t < rows; t++) acc[t][h] = vfmaq_f32(acc[t][h], v, vld1q_f32(x + t * x_stride + 4 * h));
            continue;
        }
        const float32x4_t other = load_plain(kind, p + 16, h);
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++) {
            const float *at = x + t * x_stride + 4 * h;
            const float32x4_t low = vmulq_f32(v, vld1q_f32(at));
            acc[t][h] = vfmaq_n_f32(acc[t][h], vfmaq_f32(low, other, vld1q_f32(at + 16)), scale);
        }
    }
}

INLINE void plain_rows(const Plain kind, const Weight *w, int64_t first, int64_t count, const float *x,
    int64_t x_stride, float *y, int64_t stride, const int rows) {
    const int size = kind == PLAIN_F32 ? 4 : kind == PLAIN_MXFP8 ? 1 : 2, step = kind == PLAIN_MXFP8 ? 32 : 16;
    const int64_t whole = w->cols / step * step, left = w->cols - whole; /* mxfp8 rows are whole groups */
    for (int64_t r = 0; r < count; r++) {
        const uint8_t *row = (const uint8_t *)w->data + (size_t)(first + r) * weight_row_bytes(w);
        const uint8_t *scales = kind == PLAIN_MXFP8 ? (const uint8_t *)w->scales + (first + r) * (w->cols / 32) : NULL;
        float32x4_t acc[3][4];
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++)
            for (int h = 0; h < 4; h++) acc[t][h] = vdupq_n_f32(0);
        for (int64_t k = 0; k < whole; k += step)
            plain_step(kind, row + size * k, scales ? e8m0_times_256(scales[k / 32]) : 0, x + k, x_stride, rows, acc);
        if (kind != PLAIN_MXFP8 && left > 0) {
            float xs[3][16] = {{0}};
            uint8_t tail[64] = {0};
            for (int t = 0; t < rows; t++) memcpy(xs[t], x + t * x_stride + whole, (size_t)left * sizeof **xs);
            memcpy(tail, row + whole * size, (size_t)(left * size));
            plain_step(kind, tail, 0, xs[0], 16, rows, acc);
        }
#pragma GCC unroll 3
        for (int t = 0; t < rows; t++) y[t * stride + r] = add_tree(acc[t][0], acc[t][1], acc[t][2], acc[t][3]);
    }
}

PLAIN_KERNELS(plain_rows, 1)
PLAIN_KERNELS(plain_rows, 2)
PLAIN_KERNELS(plain_rows, 3)

void linear_plain_neon(const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride, int64_t rows,
    float *y, int64_t stride) {
    static PlainKernel *const *const KERNELS[] = {NULL, plain_rows_1, plain_rows_2, plain_rows_3};
    const Plain kind = linear_plain(w);
    for (int64_t t = 0; t < rows; t += 3) {
        const int64_t n = rows - t >= 3 ? 3 : rows - t;
        KERNELS[n][kind](w, first, count, x + t * x_stride, x_stride, y + t * stride, stride);
    }
}
