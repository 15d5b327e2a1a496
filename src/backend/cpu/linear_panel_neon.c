/* Weight rows unpacked to panels with NEON: bytes of 4 rows transposed at a time. */
#include <string.h>

#include "backend/cpu/linear_neon.h"

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

void linear_unpack_neon(const Weight *w, int64_t first, LinearPanel *panel) {
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
