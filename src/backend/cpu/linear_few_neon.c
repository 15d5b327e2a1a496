/* Products of up to 8 activation rows with NEON: lanes are groups, 4 at a time. */
#include <string.h>

#include "backend/cpu/linear_neon.h"

enum { FEW_PASS = 4 }; /* most activation rows at once */

/* A kind of weight. All members are constants where they are used. */
typedef struct Kind {
    int bits, group;
    bool coded; /* E2M1 */
} Kind;

typedef struct Few {
    const Weight *w;
    const int8_t *q;
    const float *scales, *sums;
    int64_t stride, scale_stride; /* from activation row to row */
} Few;

/* The sums of 4 groups, in order. */
INLINE void few_quad(
    const Few *f, const uint8_t *p, const int8_t *q, const Kind k, const int rows, int32x4_t sums[FEW_PASS]) {
    const int units = QUAD * k.group / UNIT, per_group = k.group == 64 ? 2 : 1; /* group 16: two in a unit */
    const int8x16_t minus128 = vdupq_n_s8(-128);
    int32x4_t part[QUAD][FEW_PASS];
#pragma GCC unroll 8
    for (int i = 0; i < units; i++) {
        int8x16_t codes[2];
        load_codes(p + i * 4 * k.bits, k.bits, k.coded, codes);
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
    const size_t row_bytes = weight_row_bytes(f->w);
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
            load_scales(f->w, row, g, here, &s, &b);
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

typedef void FewRows(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride);
#define FEW_ROWS(name, bits, group, coded, rows)                                                                       \
    static void name##_##rows(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride) {                \
        few_rows(f, first, count, y, y_stride, (Kind){bits, group, coded}, rows);                                      \
    }
#define FEW_KIND(name, bits, group, coded)                                                                             \
    FEW_ROWS(name, bits, group, coded, 1)                                                                              \
    FEW_ROWS(name, bits, group, coded, 2)                                                                              \
    FEW_ROWS(name, bits, group, coded, 3)                                                                              \
    FEW_ROWS(name, bits, group, coded, 4)                                                                              \
    static FewRows *const name[FEW_PASS] = {name##_1, name##_2, name##_3, name##_4};
FEW_KIND(few_2_32, 2, 32, false)
FEW_KIND(few_2_64, 2, 64, false)
FEW_KIND(few_3_32, 3, 32, false)
FEW_KIND(few_3_64, 3, 64, false)
FEW_KIND(few_4_32, 4, 32, false)
FEW_KIND(few_4_64, 4, 64, false)
FEW_KIND(few_5_32, 5, 32, false)
FEW_KIND(few_5_64, 5, 64, false)
FEW_KIND(few_6_16, 6, 16, false)
FEW_KIND(few_6_32, 6, 32, false)
FEW_KIND(few_6_64, 6, 64, false)
FEW_KIND(few_8_32, 8, 32, false)
FEW_KIND(few_8_64, 8, 64, false)
FEW_KIND(few_mxfp4, 4, 32, true)
FEW_KIND(few_nvfp4, 4, 16, true)

LinearLayout linear_layout_neon(const Weight *w) { return w->bits == 4 ? LAYOUT_PLANES2 : LAYOUT_NATURAL; }

void linear_few_neon(
    const Weight *w, int64_t first, int64_t count, const LinearInput *x, int rows, float *y, int64_t stride) {
    static FewRows *const *const AFFINE[9][3] = {
        [2] = {NULL, few_2_32, few_2_64},
        [3] = {NULL, few_3_32, few_3_64},
        [4] = {NULL, few_4_32, few_4_64},
        [5] = {NULL, few_5_32, few_5_64},
        [6] = {few_6_16, few_6_32, few_6_64},
        [8] = {NULL, few_8_32, few_8_64},
    };
    FewRows *const *kind = w->quant == QUANT_MXFP4 ? few_mxfp4
        : w->quant == QUANT_NVFP4                  ? few_nvfp4
                                                   : AFFINE[w->bits][(w->group > 16) + (w->group > 32)];
    /* the weights come from memory once and from the second-level cache for the other passes */
    for (int from = 0; from < rows; from += FEW_PASS) {
        const int64_t groups = x->stride / x->group;
        const Few f = {w, x->q[linear_layout_neon(w)] + from * x->stride, x->scales + from * groups,
            x->sums + from * groups, x->stride, groups};
        kind[(rows - from < FEW_PASS ? rows - from : FEW_PASS) - 1](&f, first, count, y + from * stride, stride);
    }
}
