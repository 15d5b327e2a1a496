/* Weight rows unpacked to panels with AVX-512: bytes of 16 rows transposed at a time. AMX takes them as well. */
#include "backend/cpu/linear/linear_avx512.h"

/* Even bytes of 8, then the odd ones. */
INLINE __m512i split_eights(__m512i v) {
    return _mm512_shuffle_epi8(v, _mm512_set4_epi32(0x0f0d0b09, 0x0e0c0a08, 0x07050301, 0x06040200));
}

/* 16 rows × one vector of weights: 128 columns of 4 bits, 64 of all others. After the transposition dword j holds 8 (4)
 * columns of every row. */
INLINE void unpack_vector(const Weight *w, const uint8_t *const *rows, int64_t col, const Places *places, uint8_t *out,
    const int bits, const bool coded) {
    const int cols = bits == 4 ? 128 : 64;
    const int64_t count = w->cols - col < cols ? w->cols - col : cols;
    const __mmask64 mask = first_bytes(count * bits / 8);
    const __m512i index = spread_index(bits), shift = spread_shift(bits, true);
    __m512i r[16];
    const uint8_t *ahead = rows[15] + weight_row_bytes(w) + 2 * bits * col; /* the next rows, one after the other */
    for (int line = 0; line < 2 * bits * cols; line += 64) _mm_prefetch((const char *)ahead + line, _MM_HINT_T1);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        __m512i v = _mm512_maskz_loadu_epi8(mask, rows[i] + col * bits / 8);
        r[i] = bits == 4 ? v : bits == 8 ? split_eights(v) : spread(v, index, shift, bits);
    }
    transpose16(r);
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) {
        const int64_t at = col + j * (cols / 16);
        if (j * (cols / 16) >= count) break;
        uint8_t *to = place_codes(places, out, at, PANEL);
        if (bits != 4) {
            _mm512_store_si512(to, r[j]);
            continue;
        }
        __m512i even = plane_of(r[j], 4, 0), odd = plane_of(r[j], 4, 1);
        _mm512_store_si512(to, coded ? e2m1_codes(even) : even);
        _mm512_store_si512(to + 4 * PANEL, coded ? e2m1_codes(odd) : odd);
    }
}

INLINE void unpack_codes(const Weight *w, const uint8_t *const *rows, const int64_t *left, const Places *places,
    uint8_t *out, const int bits, const bool coded) {
    for (int64_t col = 0; col < w->cols; col += bits == 4 ? 128 : 64)
        unpack_vector(w, rows, col, places, out, bits, coded);
}
UNPACK_KERNELS(unpack_codes)

static void unpack_scales(
    const Weight *w, const int64_t *rows, const Places *places, int64_t groups, float *scales, float *biases) {
    const size_t stride = weight_scale_bytes(w);
    for (int64_t g = 0; g < groups; g += 16) {
        __m512i s[16], b[16];
        for (int i = 0; i < 16; i++) {
            __m512 si, bi;
            size_t offset = (size_t)rows[i] * stride;
            load_scales(w, (const uint8_t *)w->scales + offset, w->biases ? (const uint8_t *)w->biases + offset : NULL,
                g, groups - g, &si, &bi);
            s[i] = _mm512_castps_si512(si);
            b[i] = _mm512_castps_si512(bi);
        }
        transpose16(s);
        transpose16(b);
        for (int j = 0; j < 16 && g + j < groups; j++) {
            size_t place = place_of(places, g + j) * PANEL;
            _mm512_store_si512(scales + place, s[j]);
            _mm512_store_si512(biases + place, b[j]);
        }
    }
}

void linear_unpack_avx512(const Weight *w, int64_t first, LinearPanel *panel) {
    linear_unpack(w, first, panel, PANEL, 16, unpack_codes_kernels, unpack_scales);
}
