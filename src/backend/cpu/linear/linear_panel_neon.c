/* Weight rows unpacked to panels with NEON: bytes of 4 rows transposed at a time. */
#include <string.h>

#include "backend/cpu/linear/linear_neon.h"

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

/* 4 rows; after the transposition a register has 4 columns of every row: the even or the odd ones of 8. */
INLINE void unpack_codes(const Weight *w, const uint8_t *const *rows, const int64_t *left, const Places *places,
    uint8_t *out, const int bits, const bool coded) {
    for (int64_t col = 0; col < w->cols; col += UNIT) {
        const int64_t count = w->cols - col < UNIT ? w->cols - col : UNIT;
        uint32x4_t even[4], odd[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const uint8_t *p = rows[i] + col * bits / 8;
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
            uint8_t *to = place_codes(places, out, at, PANEL);
            vst1q_u8(to, vreinterpretq_u8_u32(even[i]));
            vst1q_u8(to + 4 * PANEL, vreinterpretq_u8_u32(odd[i]));
        }
    }
}

UNPACK_KERNELS(unpack_codes)

static void unpack_scales(
    const Weight *w, const int64_t *rows, const Places *places, int64_t groups, float *scales, float *biases) {
    const size_t row_bytes = weight_scale_bytes(w);
    for (int64_t g = 0; g < groups; g += QUAD) {
        const int64_t count = groups - g < QUAD ? groups - g : QUAD;
        uint32x4_t s[4], b[4];
        for (int i = 0; i < 4; i++) {
            float32x4_t si, bi;
            load_scales(w, row_bytes, rows[i], g, count, &si, &bi);
            s[i] = vreinterpretq_u32_f32(si);
            b[i] = vreinterpretq_u32_f32(bi);
        }
        transpose4(s);
        transpose4(b);
        for (int i = 0; i < count; i++) {
            const size_t place = place_of(places, g + i) * PANEL;
            vst1q_f32(scales + place, vreinterpretq_f32_u32(s[i]));
            vst1q_f32(biases + place, vreinterpretq_f32_u32(b[i]));
        }
    }
}

void linear_unpack_neon(const Weight *w, int64_t first, LinearPanel *panel) {
    linear_unpack(w, first, panel, PANEL, 4, unpack_codes_kernels, unpack_scales);
}
