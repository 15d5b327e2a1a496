/* Products of a panel with a tile of activation rows with NEON: lanes are weight rows, an activation row is a lane of
 * the other factor. */
#include "backend/cpu/linear/linear_neon.h"

/* sums += four columns of 16 weight rows · four of each activation row. */
INLINE void tile_step(const uint8_t *p, int8x16_t q, const int rows, int32x4_t sums[TILE][4]) {
#pragma GCC unroll 4
    for (int h = 0; h < 4; h++) {
        const int8x16_t codes = vreinterpretq_s8_u8(vld1q_u8(p + 16 * h));
        sums[0][h] = vdotq_laneq_s32(sums[0][h], codes, q, 0);
        if (rows > 1) sums[1][h] = vdotq_laneq_s32(sums[1][h], codes, q, 1);
        if (rows > 2) sums[2][h] = vdotq_laneq_s32(sums[2][h], codes, q, 2);
        if (rows > 3) sums[3][h] = vdotq_laneq_s32(sums[3][h], codes, q, 3);
    }
}

/* One group's integer sums. */
INLINE void tile_group(
    const uint8_t *p, const int8_t *q, int group, const bool less128, const int rows, int32x4_t sums[TILE][4]) {
    int32x4_t added = vdupq_n_s32(0); /* −128·Σq, a lane per activation row */
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++)
        for (int h = 0; h < 4; h++) sums[t][h] = vdupq_n_s32(0);
    for (int i = 0; i < group; i += 4) {
        const int8x16_t v = vld1q_s8(q + i * TILE);
        if (less128) added = vdotq_s32(added, v, vdupq_n_s8(-128));
        tile_step(p + i * PANEL, v, rows, sums);
    }
    if (!less128) return;
#pragma GCC unroll 4
    for (int h = 0; h < 4; h++) {
        sums[0][h] = vsubq_s32(sums[0][h], vdupq_laneq_s32(added, 0));
        if (rows > 1) sums[1][h] = vsubq_s32(sums[1][h], vdupq_laneq_s32(added, 1));
        if (rows > 2) sums[2][h] = vsubq_s32(sums[2][h], vdupq_laneq_s32(added, 2));
        if (rows > 3) sums[3][h] = vsubq_s32(sums[3][h], vdupq_laneq_s32(added, 3));
    }
}

/* See linear_leaf(): after a lane is finished it is added to as many waiting sums as its turn has trailing ones. */
INLINE void tile_rows(
    const LinearPanel *panel, const LinearInput *x, int64_t first, const bool less128, const int rows, float *y) {
    float waiting[4][TILE * PANEL];
    const int group = panel->group;
    const int8_t *q = x->q[LAYOUT_PANEL] + first * x->stride;
    const float *d = x->scales + first * (x->stride / group), *z = x->sums + first * (x->stride / group);
    const uint8_t *p = panel->codes;
    const float *scales = panel->scales, *biases = panel->biases;
    int depth = 0;
    for (int turn = 0; turn < LINEAR_LANES; turn++) {
        float32x4_t acc[TILE][4];
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++)
            for (int h = 0; h < 4; h++) acc[t][h] = vdupq_n_f32(0);
        const int64_t count = (panel->groups - linear_leaf(turn) + LINEAR_LANES - 1) / LINEAR_LANES;
        for (int64_t i = 0; i < count; i++) {
            int32x4_t sums[TILE][4];
            tile_group(p, q, group, less128, rows, sums);
#pragma GCC unroll 4
            for (int h = 0; h < 4; h++) {
                const float32x4_t s = vld1q_f32(scales + 4 * h), b = vld1q_f32(biases + 4 * h);
#pragma GCC unroll 4
                for (int t = 0; t < rows; t++) {
                    const float32x4_t sd = vmulq_n_f32(s, d[t]);
                    acc[t][h] = vfmaq_f32(acc[t][h], sd, vcvtq_f32_s32(sums[t][h]));
                    acc[t][h] = vfmaq_n_f32(acc[t][h], b, z[t]);
                }
            }
            q += group * TILE;
            p += group * PANEL;
            d += TILE;
            z += TILE;
            scales += PANEL;
            biases += PANEL;
        }
        for (int more = turn; more & 1; more >>= 1) {
            const float *left = waiting[--depth];
#pragma GCC unroll 4
            for (int t = 0; t < rows; t++)
                for (int h = 0; h < 4; h++) acc[t][h] = vaddq_f32(vld1q_f32(left + t * PANEL + 4 * h), acc[t][h]);
        }
        float *to = turn == LINEAR_LANES - 1 ? y : waiting[depth++];
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++)
            for (int h = 0; h < 4; h++) vst1q_f32(to + t * PANEL + 4 * h, acc[t][h]);
    }
}

typedef void Tile(const LinearPanel *panel, const LinearInput *x, int64_t first, float *y);
#define TILE_ROWS(name, less128, rows)                                                                                 \
    static void name##_##rows(const LinearPanel *panel, const LinearInput *x, int64_t first, float *y) {               \
        tile_rows(panel, x, first, less128, rows, y);                                                                  \
    }
#define TILE_KIND(name, less128)                                                                                       \
    TILE_ROWS(name, less128, 1)                                                                                        \
    TILE_ROWS(name, less128, 2)                                                                                        \
    TILE_ROWS(name, less128, 3)                                                                                        \
    TILE_ROWS(name, less128, 4)                                                                                        \
    static Tile *const name[TILE] = {name##_1, name##_2, name##_3, name##_4};
TILE_KIND(tile_small, false)
TILE_KIND(tile_255, true)

void linear_tile_neon(const LinearPanel *panel, const LinearInput *x, int64_t first, int rows, float *y) {
    (panel->code_max > INT8_MAX ? tile_255 : tile_small)[rows - 1](panel, x, first, y);
}
