/* Products with NEON's SDOT, in the order that linear.h defines.
 *
 * few(): lanes are groups, 4 at a time. tile(): lanes are weight rows of an unpacked panel, an activation row is a lane
 * of the other factor. SDOT takes two signed factors: codes of fewer than 8 bits are that as they are; a code of 8 bits
 * is taken as 128 + s, and 128·Σq is added to the sum. */
#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    FEW_PASS = 4, /* most activation rows at once */
    PANEL = 16,
    TILE = 4,
    UNIT = 32, /* codes read together */
    QUAD = 4,  /* groups whose sums fill a register */
};

/* ---- activations ---- */

INLINE float largest(const float *values, int group) {
    uint32x4_t most = vdupq_n_u32(0); /* as integers, so that NaN is the largest */
    for (int i = 0; i < group; i += 4) most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(values + i))));
    return vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32(vmaxvq_u32(most))), 0);
}

static void quantise(const float *x, int64_t cols, int group, int8_t *q, float *scales, float *sums) {
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

static void arrange(LinearLayout layout, const int8_t *q, int64_t cols, int group, int8_t *out) {
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

static LinearLayout layout(const Weight *w) { return w->bits == 4 ? LAYOUT_PLANES2 : LAYOUT_NATURAL; }

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

/* count ≤ 4: groups that exist; the rest are zeros. */
INLINE void load_scales(const Weight *w, int64_t row, int64_t group, int64_t count, float32x4_t *s, float32x4_t *b) {
    const size_t from = (size_t)row * weight_scale_bytes(w);
    const uint8_t *scales = (const uint8_t *)w->scales + from;
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

/* ---- a few activation rows ---- */

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

INLINE float add_tree(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d) {
    const float32x4_t four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
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

static void few(
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
        const Few f = {w, x->q[layout(w)] + from * x->stride, x->scales + from * groups, x->sums + from * groups,
            x->stride, groups};
        kind[(rows - from < FEW_PASS ? rows - from : FEW_PASS) - 1](&f, first, count, y + from * stride, stride);
    }
}

/* ---- panels ---- */

INLINE void transpose4(uint32x4_t r[4]) {
    const uint64x2_t a = vreinterpretq_u64_u32(vzip1q_u32(r[0], r[1])),
                     b = vreinterpretq_u64_u32(vzip2q_u32(r[0], r[1]));
    const uint64x2_t c = vreinterpretq_u64_u32(vzip1q_u32(r[2], r[3])),
                     d = vreinterpretq_u64_u32(vzip2q_u32(r[2], r[3]));
    r[0] = vreinterpretq_u32_u64(vzip1q_u64(a, c));
    r[1] = vreinterpretq_u32_u64(vzip2q_u64(a, c));
    r[2] = vreinterpretq_u32_u64(vzip1q_u64(b, d));
    r[3] = vreinterpretq_u32_u64(vzip2q_u64(b, d));
}

/* Where the unpacked groups of a row go. */
typedef struct Places {
    int64_t start[LINEAR_LANES]; /* first place of a lane's groups */
} Places;

INLINE int64_t place_of(const Places *places, int64_t group) {
    return places->start[group % LINEAR_LANES] + group / LINEAR_LANES;
}

/* 4 rows; after the transposition a register has 4 columns of every row: the even or the odd ones of 8. */
INLINE void unpack_codes(const Weight *w, const int64_t rows[4], const Places *places, int group, uint8_t *out,
    const int bits, const bool coded) {
    const size_t row_bytes = weight_row_bytes(w);
    for (int64_t col = 0; col < w->cols; col += UNIT) {
        const int64_t count = w->cols - col < UNIT ? w->cols - col : UNIT;
        uint32x4_t even[4], odd[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const uint8_t *p = (const uint8_t *)w->data + (size_t)rows[i] * row_bytes + col * bits / 8;
            uint8_t copy[UNIT] = {0};
            if (count < UNIT) {
                memcpy(copy, p, (size_t)(count * bits / 8));
                p = copy;
            }
            int8x16_t codes[2];
            load_codes(p, bits, coded, codes);
            even[i] = vreinterpretq_u32_s8(bits == 4 ? codes[0] : vuzp1q_s8(codes[0], codes[1]));
            odd[i] = vreinterpretq_u32_s8(bits == 4 ? codes[1] : vuzp2q_s8(codes[0], codes[1]));
        }
        transpose4(even);
        transpose4(odd);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const int64_t at = col + 8 * i;
            if (8 * i >= count) break;
            uint8_t *to = out + (place_of(places, at / group) * group + at % group) * PANEL;
            vst1q_u8(to, vreinterpretq_u8_u32(even[i]));
            vst1q_u8(to + 4 * PANEL, vreinterpretq_u8_u32(odd[i]));
        }
    }
}

static void unpack_scales(
    const Weight *w, const int64_t rows[4], const Places *places, int64_t groups, float *scales, float *biases) {
    for (int64_t g = 0; g < groups; g += QUAD) {
        const int64_t count = groups - g < QUAD ? groups - g : QUAD;
        uint32x4_t s[4], b[4];
        for (int i = 0; i < 4; i++) {
            float32x4_t si, bi;
            load_scales(w, rows[i], g, count, &si, &bi);
            s[i] = vreinterpretq_u32_f32(si);
            b[i] = vreinterpretq_u32_f32(bi);
        }
        transpose4(s);
        transpose4(b);
        for (int i = 0; i < count; i++) {
            const int64_t place = place_of(places, g + i) * PANEL;
            vst1q_f32(scales + place, vreinterpretq_f32_u32(s[i]));
            vst1q_f32(biases + place, vreinterpretq_f32_u32(b[i]));
        }
    }
}

typedef void Unpack(const Weight *w, const int64_t rows[4], const Places *places, int group, uint8_t *out);
#define UNPACK_KIND(name, bits, coded)                                                                                 \
    static void name(const Weight *w, const int64_t rows[4], const Places *places, int group, uint8_t *out) {          \
        unpack_codes(w, rows, places, group, out, bits, coded);                                                        \
    }
UNPACK_KIND(unpack_2, 2, false)
UNPACK_KIND(unpack_3, 3, false)
UNPACK_KIND(unpack_4, 4, false)
UNPACK_KIND(unpack_5, 5, false)
UNPACK_KIND(unpack_6, 6, false)
UNPACK_KIND(unpack_8, 8, false)
UNPACK_KIND(unpack_e2m1, 4, true)

static void unpack(const Weight *w, int64_t first, LinearPanel *panel) {
    static Unpack *const AFFINE[9] = {
        [2] = unpack_2, [3] = unpack_3, [4] = unpack_4, [5] = unpack_5, [6] = unpack_6, [8] = unpack_8};
    const int64_t groups = w->cols / panel->group;
    Places places;
    for (int lane = 0; lane < LINEAR_LANES; lane++) places.start[lane] = linear_panel_place(lane, groups);
    for (int quarter = 0; quarter < PANEL; quarter += 4) {
        int64_t rows[4];
        for (int i = 0; i < 4; i++) rows[i] = first + quarter + i < w->rows ? first + quarter + i : w->rows - 1;
        Unpack *codes = quant_is_affine(w->quant) ? AFFINE[w->bits] : unpack_e2m1;
        codes(w, rows, &places, panel->group, panel->codes + quarter * 4);
        unpack_scales(w, rows, &places, groups, panel->scales + quarter, panel->biases + quarter);
    }
}

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

static void tile(const LinearPanel *panel, const LinearInput *x, int64_t first, int rows, float *y) {
    (panel->code_max > INT8_MAX ? tile_255 : tile_small)[rows - 1](panel, x, first, y);
}

/* ---- plain weights ---- */

typedef enum Plain { PLAIN_F32, PLAIN_F16, PLAIN_BF16, PLAIN_MXFP8, PLAIN_COUNT } Plain;

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

typedef void PlainRows(
    const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride, float *y, int64_t stride);
#define PLAIN_ROWS(kind, rows)                                                                                         \
    static void plain_##kind##_##rows(                                                                                 \
        const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride, float *y, int64_t stride) {   \
        plain_rows(kind, w, first, count, x, x_stride, y, stride, rows);                                               \
    }
#define PLAIN_KIND(kind) PLAIN_ROWS(kind, 1) PLAIN_ROWS(kind, 2) PLAIN_ROWS(kind, 3)
PLAIN_KIND(PLAIN_F32)
PLAIN_KIND(PLAIN_F16)
PLAIN_KIND(PLAIN_BF16)
PLAIN_KIND(PLAIN_MXFP8)
#define PLAIN_ENTRY(kind) [kind] = {plain_##kind##_1, plain_##kind##_2, plain_##kind##_3}

static void plain(const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride, int64_t rows,
    float *y, int64_t stride) {
    static PlainRows *const KERNELS[PLAIN_COUNT][3] = {
        PLAIN_ENTRY(PLAIN_F32), PLAIN_ENTRY(PLAIN_F16), PLAIN_ENTRY(PLAIN_BF16), PLAIN_ENTRY(PLAIN_MXFP8)};
    const Plain kind = w->quant == QUANT_MXFP8 ? PLAIN_MXFP8
        : w->dtype == DTYPE_F32                ? PLAIN_F32
        : w->dtype == DTYPE_F16                ? PLAIN_F16
                                               : PLAIN_BF16;
    for (int64_t t = 0; t < rows; t += 3) {
        const int64_t n = rows - t >= 3 ? 3 : rows - t;
        KERNELS[kind][n - 1](w, first, count, x + t * x_stride, x_stride, y + t * stride, stride);
    }
}

const LinearKernels linear_kernels_neon = {
    .quantise = quantise,
    .arrange = arrange,
    .few = few,
    .layout = layout,
    .panel_rows = PANEL,
    .tile_rows = TILE,
    .unpack = unpack,
    .tile = tile,
    .plain = plain,
};
