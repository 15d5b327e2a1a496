/* Products of up to 8 activation rows with NEON: lanes are groups, 4 at a time. */
#include <string.h>

#include "backend/cpu/linear/linear_neon.h"

enum { FEW_PASS = 4 }; /* most activation rows at once */

struct Few {
    const Weight *w;
    const int8_t *q;
    const float *scales, *sums;
    int64_t stride, scale_stride; /* from activation row to row */
};

/* The sums of 4 groups, in order. */
INLINE void few_quad(
    const Few *f, const uint8_t *p, const int8_t *q, const Kind k, const int rows, int32x4_t sums[FEW_PASS]) {
    const int units = QUAD * k.group / UNIT, per_group = k.group == 64 ? 2 : 1; /* group 16: two in a unit */
    const int8x16_t minus128 = vdupq_n_s8(-128);
    int32x4_t part[QUAD][FEW_PASS];
#pragma GCC unroll 8
    for (int i = 0; i < units; i++) {
        int8x16_t codes[2];
        load_codes(p + i * 4 * k.bits, k.bits, is_coded(k), codes);
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++) {
            const int8_t *at = q + t * f->stride + i * UNIT;
            const int8x16_t a = vld1q_s8(at), b = vld1q_s8(at + 16);
            const int32x4_t zero = vdupq_n_s32(0);
            if (k.group == 16 && k.bits != 4) { /* in order: the halves of a unit are its groups */
                part[i][t] = vpaddq_s32(vdotq_s32(zero, codes[0], a), vdotq_s32(zero, codes[1], b));
                continue;
            }
            int32x4_t sum = i % per_group ? part[i / per_group][t] : zero;
            sum = vdotq_s32(vdotq_s32(sum, codes[0], a), codes[1], b);
            if (k.bits == 8) sum = vsubq_s32(sum, vdotq_s32(vdotq_s32(vdupq_n_s32(0), minus128, a), minus128, b));
            part[i / per_group][t] = sum;
        }
    }
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++)
        sums[t] = k.group == 16 ? vpaddq_s32(part[0][t], part[1][t])
                                : vpaddq_s32(vpaddq_s32(part[0][t], part[1][t]), vpaddq_s32(part[2][t], part[3][t]));
}

INLINE void few_rows(
    const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride, const Kind k, const int rows) {
    const size_t row_bytes = weight_row_bytes(f->w), scale_bytes = weight_scale_bytes(f->w);
    Weight w = *f->w;
    w.quant = k.quant; /* now a constant */
    const int64_t groups = f->w->cols / k.group;
    for (int64_t row = first; row < first + count; row++) {
        const uint8_t *data = (const uint8_t *)f->w->data + (size_t)row * row_bytes;
        float32x4_t acc[LINEAR_LANES / QUAD][FEW_PASS];
        for (int i = 0; i < LINEAR_LANES / QUAD; i++)
            for (int t = 0; t < rows; t++) acc[i][t] = vdupq_n_f32(0);
        for (int64_t g = 0; g < groups; g += QUAD) {
            const int64_t here = groups - g < QUAD ? groups - g : QUAD;
            const uint8_t *p = data + g * k.group * k.bits / 8;
            uint8_t copy[QUAD * 64];
            if (here < QUAD) {
                memset(copy, 0, sizeof copy);
                memcpy(copy, p, (size_t)(here * k.group * k.bits / 8));
                p = copy;
            }
            int32x4_t sums[FEW_PASS];
            few_quad(f, p, f->q + g * k.group, k, rows, sums);
            float32x4_t s, b, *lanes = acc[g / QUAD % (LINEAR_LANES / QUAD)];
            load_scales(&w, scale_bytes, row, g, here, &s, &b);
#pragma GCC unroll 4
            for (int t = 0; t < rows; t++) {
                const int64_t at = t * f->scale_stride + g;
                const float32x4_t sd = vmulq_f32(s, vld1q_f32(f->scales + at));
                const float32x4_t sum = vfmaq_f32(lanes[t], sd, vcvtq_f32_s32(sums[t]));
                lanes[t] = vfmaq_f32(sum, b, vld1q_f32(f->sums + at));
            }
        }
        for (int t = 0; t < rows; t++)
            y[t * y_stride + row - first] = add_tree(acc[0][t], acc[1][t], acc[2][t], acc[3][t]);
    }
}

FEW_KERNELS(few_rows, 1)
FEW_KERNELS(few_rows, 2)
FEW_KERNELS(few_rows, 3)
FEW_KERNELS(few_rows, 4)

LinearLayout linear_layout_neon(const Weight *w, int rows) { return w->bits == 4 ? LAYOUT_PLANES2 : LAYOUT_NATURAL; }

void linear_few_neon(
    const Weight *w, int64_t first, int64_t count, const LinearInput *x, int rows, float *y, int64_t stride) {
    static FewKernel *const *const KERNELS[FEW_PASS] = {few_rows_1, few_rows_2, few_rows_3, few_rows_4};
    const LinearKind kind = linear_kind(w);
    /* the weights come from memory once and from the second-level cache for the other passes */
    for (int from = 0; from < rows; from += FEW_PASS) {
        const int64_t groups = x->stride / x->group;
        const Few f = {w, x->q[linear_layout_neon(w, rows)] + from * x->stride, x->scales + from * groups,
            x->sums + from * groups, x->stride, groups};
        KERNELS[(rows - from < FEW_PASS ? rows - from : FEW_PASS) - 1][kind](
            &f, first, count, y + from * stride, stride);
    }
}
