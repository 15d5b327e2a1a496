/* Activations of the products with NEON: quantised, and arranged as the kernels read them. */
#include <math.h>
#include <string.h>

#include "backend/cpu/linear/linear_neon.h"

INLINE float largest(const float *values, int group) {
    uint32x4_t most = vdupq_n_u32(0); /* as integers, so that NaN is the largest */
    for (int i = 0; i < group; i += 4) most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(values + i))));
    return vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32(vmaxvq_u32(most))), 0);
}

void linear_quantise_neon(const float *x, int64_t cols, int group, int8_t *q, float *scales, float *sums) {
    const int64_t padded = linear_stride(cols, group), groups = cols / group;
    for (int64_t g = 0; g < groups; g++) {
        const float *values = x + g * group;
        int8_t *out = q + g * group;
        const float most = largest(values, group);
        if (!(most >= 1e-30f && most < INFINITY)) {
            for (int i = 0; i < group; i += 8) vst1_s8(out + i, vdup_n_s8(0));
            scales[g] = sums[g] = most < 1e-30f ? 0 : NAN;
            continue;
        }
        const float32x4_t inverse = vdupq_n_f32(127.0f / most);
        int32x4_t sum = vdupq_n_s32(0);
        for (int i = 0; i < group; i += 8) {
            const int32x4_t a = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(values + i), inverse));
            const int32x4_t b = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(values + i + 4), inverse));
            sum = vaddq_s32(sum, vaddq_s32(a, b));
            vst1_s8(out + i, vmovn_s16(vcombine_s16(vmovn_s32(a), vmovn_s32(b))));
        }
        scales[g] = most / 127.0f;
        sums[g] = scales[g] * (float)vaddvq_s32(sum);
    }
    memset(q + cols, 0, (size_t)(padded - cols));
    const size_t extra = (size_t)(padded / group - groups) * sizeof *scales;
    memset(scales + groups, 0, extra);
    memset(sums + groups, 0, extra);
}

static void arrange_panel(const int8_t *q, int64_t cols, int group, int8_t *out) {
    for (int lane = 0; lane < LINEAR_LANES && lane < cols / group; lane++) {
        int8_t *to = out + linear_panel_place(lane, cols / group) * group * TILE;
        for (int64_t g = lane; g < cols / group; g += LINEAR_LANES)
            for (int i = 0; i < group; i += 8, to += 8 * TILE) {
                const int8x8_t v = vld1_s8(q + g * group + i);
                const int8x8_t split = vuzp1_s8(v, vext_s8(v, v, 1)); /* 0 2 4 6 1 3 5 7 */
                memcpy(to, &split, 4);
                memcpy(to + 4 * TILE, (const char *)&split + 4, 4);
            }
    }
}

void linear_arrange_neon(LinearLayout layout, const int8_t *q, int64_t cols, int group, int8_t *out) {
    if (layout == LAYOUT_PANEL) {
        arrange_panel(q, cols, group, out);
        return;
    }
    for (int64_t i = 0; i < linear_stride(cols, group); i += UNIT) { /* LAYOUT_PLANES2 */
        const int8x16x2_t planes = vld2q_s8(q + i);
        vst1q_s8(out + i, planes.val[0]);
        vst1q_s8(out + i + 16, planes.val[1]);
    }
}
