/* Shared by the products with NEON's SDOT: scales, codes, the tree over the lanes.
 *
 * SDOT takes two signed factors: codes of fewer than 8 bits are that as they are; a code of 8 bits is taken as 128 + s,
 * and 128·Σq is added to the sum. */
#pragma once
#include <arm_neon.h>
#include <string.h>

#include "backend/cpu/linear/linear_kinds.h"

enum {
    PANEL = 16,
    TILE = 4,
    UNIT = 32, /* codes read together */
    QUAD = 4,  /* groups whose sums fill a register */
};

INLINE float add_tree(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d) {
    const float32x4_t four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/* ---- scales of 4 activation groups ---- */

INLINE float32x4_t half_e8m0(uint32x4_t v) { /* 2^(v−128) */
    const uint32x4_t normal = vshlq_n_u32(vsubq_u32(v, vdupq_n_u32(1)), 23);
    const uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x200000), vreinterpretq_s32_u32(v));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(v, vdupq_n_u32(2)), tiny, normal));
}

/* E4M3 / 256: the same bits as f16, whose exponent bias is 15 instead of 7. 0x7f reads as 480. */
INLINE uint16x8_t e4m3_bits(uint8x8_t v) {
    const int16x8_t high = vreinterpretq_s16_u16(vshll_n_u8(v, 8));
    return vandq_u16(vreinterpretq_u16_s16(vshrq_n_s16(high, 1)), vdupq_n_u16(0xbfff));
}

INLINE float32x4_t load_floats(const uint8_t *p, DType dtype) {
    if (dtype == DTYPE_F32) return vreinterpretq_f32_u8(vld1q_u8(p));
    const uint8x8_t v = vld1_u8(p);
    if (dtype == DTYPE_F16) return vcvt_f32_f16(vreinterpret_f16_u8(v));
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(v), 16));
}

/* count ≤ 4 floats, then zeros. */
INLINE float32x4_t load_floats_part(const uint8_t *p, DType dtype, int64_t count) {
    uint8_t copy[16] = {0};
    if (count == 4) return load_floats(p, dtype);
    memcpy(copy, p, (size_t)count * dtype_bytes(dtype));
    return load_floats(copy, dtype);
}

INLINE float32x4_t half_to_all(const uint8_t *p) {
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half)));
}

/* Four bytes as floats; or, when they are signed, so. */
INLINE float32x4_t bytes_to_floats(const uint8_t *p, const bool is_signed) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    const uint8x8_t v = vreinterpret_u8_u32(vdup_n_u32(four));
    if (is_signed) return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(v)))));
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(v))));
}

/* Forms with records, which are whole. */
INLINE void load_records(const Weight *w, const uint8_t *scales, int64_t group, float32x4_t *s, float32x4_t *b) {
    if (w->quant == QUANT_K) {
        const uint8_t *record = scales + group / 8 * K_BYTES, *at = record + 4 + group % 8;
        *s = vmulq_f32(half_to_all(record), bytes_to_floats(at, false));
        *b = vmulq_f32(half_to_all(record + 2), bytes_to_floats(at + 8, false));
        return;
    }
    const uint8_t *record = scales + group / 16 * K_SYMMETRIC_BYTES;
    *s = vmulq_f32(half_to_all(record), bytes_to_floats(record + 2 + group % 16, true));
    *b = vmulq_n_f32(*s, -(float)(1 << (w->bits - 1)));
}

/* row_bytes: of scales. count ≤ 4: groups that exist; the rest are zeros. */
INLINE void load_scales(
    const Weight *w, size_t row_bytes, int64_t row, int64_t group, int64_t count, float32x4_t *s, float32x4_t *b) {
    const size_t from = (size_t)row * row_bytes;
    const uint8_t *scales = (const uint8_t *)w->scales + from;
    if (w->quant == QUANT_TERNARY) {
        static const int32_t lanes[4] = {0, 1, 2, 3};
        const uint32x4_t exists = vcltq_s32(vld1q_s32(lanes), vdupq_n_s32((int32_t)count));
        const float32x4_t one = load_floats_part(scales, w->dtype, 1);
        *s = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(vdupq_laneq_f32(one, 0)), exists));
        *b = vnegq_f32(*s);
        return;
    }
    if (w->quant == QUANT_AFFINE) {
        const uint8_t *biases = (const uint8_t *)w->biases + from;
        const int64_t size = (int64_t)dtype_bytes(w->dtype);
        if (w->group <= 64) {
            *s = load_floats_part(scales + group * size, w->dtype, count);
            *b = load_floats_part(biases + group * size, w->dtype, count);
            return;
        }
        *s = load_floats_part(scales + group / 2 * size, w->dtype, count / 2);
        *b = load_floats_part(biases + group / 2 * size, w->dtype, count / 2);
        *s = vzip1q_f32(*s, *s);
        *b = vzip1q_f32(*b, *b);
        return;
    }
    if (w->quant == QUANT_SYMMETRIC) {
        *s = load_floats_part(scales + group * 2, DTYPE_F16, count);
        *b = vmulq_n_f32(*s, -(float)(1 << (w->bits - 1)));
        return;
    }
    if (quant_is_affine(w->quant)) {
        load_records(w, scales, group, s, b);
        return;
    }
    uint8_t copy[8] = {0};
    memcpy(copy, scales + group, (size_t)count);
    const uint8x8_t v = vld1_u8(copy);
    if (w->quant == QUANT_MXFP4)
        *s = half_e8m0(vmovl_u16(vget_low_u16(vmovl_u8(v))));
    else
        *s = vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(e4m3_bits(v)))), 128.0f);
    *b = vmulq_n_f32(*s, -12.0f);
}

/* ---- codes ---- */

/* 16 codes of 2, 3, 5 or 6 bits, the first at byte `skip` of v: two bytes of each into 16 bits, shifted and masked. */
INLINE uint8x16_t spread(uint8x16_t v, const int bits, const int skip) {
    uint8_t index[2][16];
    int16_t shift[8];
    for (int half = 0; half < 2; half++)
        for (int e = 0; e < 8; e++) {
            index[half][2 * e] = (uint8_t)(skip + half * bits + e * bits / 8);
            index[half][2 * e + 1] = (uint8_t)(index[half][2 * e] + 1);
            shift[e] = (int16_t) - (e * bits % 8);
        }
    const int16x8_t by = vld1q_s16(shift);
    const uint16x8_t low = vshlq_u16(vreinterpretq_u16_u8(vqtbl1q_u8(v, vld1q_u8(index[0]))), by);
    const uint16x8_t high = vshlq_u16(vreinterpretq_u16_u8(vqtbl1q_u8(v, vld1q_u8(index[1]))), by);
    const uint8x16_t codes = vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
    return vandq_u8(codes, vdupq_n_u8((uint8_t)((1 << bits) - 1)));
}

INLINE uint8x16_t e2m1_codes(uint8x16_t v) {
    static const uint8_t CODES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    return vqtbl1q_u8(vld1q_u8(CODES), v);
}

/* 32 codes. 4 bits: the even ones, then the odd ones; else in order. 8 bits: less 128. Reads what they take, no more.
 */
INLINE void load_codes(const uint8_t *p, const int bits, const bool coded, int8x16_t out[2]) {
    uint8x16_t a, b;
    if (bits == 4) {
        const uint8x16_t v = vld1q_u8(p);
        a = vandq_u8(v, vdupq_n_u8(15));
        b = vshrq_n_u8(v, 4);
        if (coded) {
            a = e2m1_codes(a);
            b = e2m1_codes(b);
        }
    } else if (bits == 8) {
        a = veorq_u8(vld1q_u8(p), vdupq_n_u8(128));
        b = veorq_u8(vld1q_u8(p + 16), vdupq_n_u8(128));
    } else if (bits < 4) {
        uint8_t copy[16] = {0};
        memcpy(copy, p, (size_t)(4 * bits));
        a = spread(vld1q_u8(copy), bits, 0);
        b = spread(vld1q_u8(copy), bits, 2 * bits);
    } else {
        a = spread(vld1q_u8(p), bits, 0);
        b = spread(vld1q_u8(p + 4 * bits - 16), bits, 16 - 2 * bits);
    }
    out[0] = vreinterpretq_s8_u8(a);
    out[1] = vreinterpretq_s8_u8(b);
}

/* linear_input_neon.c */
void linear_quantise_neon(const float *x, int64_t cols, int group, int8_t *q, float *scales, float *sums);
void linear_arrange_neon(LinearLayout layout, const int8_t *q, int64_t cols, int group, int8_t *out);
/* linear_few_neon.c */
LinearLayout linear_layout_neon(const Weight *w, int rows);
void linear_few_neon(
    const Weight *w, int64_t first, int64_t count, const LinearInput *x, int rows, float *y, int64_t stride);
/* linear_panel_neon.c, linear_tile_neon.c, linear_plain_neon.c */
void linear_unpack_neon(const Weight *w, int64_t first, LinearPanel *panel);
void linear_tile_neon(const LinearPanel *panel, const LinearInput *x, int64_t first, int rows, float *y);
void linear_plain_neon(const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride, int64_t rows,
    float *y, int64_t stride);
