/* Weight rows unpacked to panels with AVX2: bytes of 8 rows transposed at a time. */
#include <string.h>

#include "backend/cpu/linear/linear_avx2.h"

/* 8 rows × one vector of weights: 64 columns of 4 bits, 32 of all others. After the transposition dword j holds 8 (4)
 * columns of every row. left: bytes that may be read behind the start of each row. */
INLINE void unpack_vector(const Weight *w, const uint8_t *const *rows, const int64_t *left, int64_t col,
    const Places *places, uint8_t *out, const int bits, const bool coded) {
    const int cols = bits == 4 ? 64 : 32;
    const int64_t count = w->cols - col < cols ? w->cols - col : cols, at_byte = col * bits / 8;
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i split =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    const Spread s = spread_make(bits == 8 || bits == 4 ? 6 : bits);
    const int64_t read = bits == 8 || bits == 4 ? 32 : 2 * bits + 16;
    __m256i r[8];
    const uint8_t *ahead = rows[7] + weight_row_bytes(w) + bits * col; /* the next rows, one after the other */
    for (int line = 0; line < bits * cols; line += 64) _mm_prefetch((const char *)ahead + line, _MM_HINT_T1);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const uint8_t *p = rows[i] + at_byte;
        uint8_t copy[48];
        if (left[i] - at_byte < read) {
            memset(copy, 0, sizeof copy);
            memcpy(copy, p, (size_t)(count * bits / 8));
            p = copy;
        }
        if (bits == 4)
            r[i] = _mm256_loadu_si256((const __m256i *)p);
        else
            r[i] = _mm256_shuffle_epi8(bits == 8 ? _mm256_loadu_si256((const __m256i *)p) : spread(&s, p, bits), split);
    }
    transpose8(r);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        const int64_t at = col + j * (cols / 8);
        if (j * (cols / 8) >= count) break;
        uint8_t *to = place_codes(places, out, at, PANEL);
        if (bits != 4) {
            _mm256_store_si256((__m256i *)to, r[j]);
            continue;
        }
        __m256i even = _mm256_and_si256(r[j], low), odd = _mm256_and_si256(_mm256_srli_epi16(r[j], 4), low);
        _mm256_store_si256((__m256i *)to, coded ? e2m1_codes(even) : even);
        _mm256_store_si256((__m256i *)(to + 4 * PANEL), coded ? e2m1_codes(odd) : odd);
    }
}

INLINE void unpack_codes(const Weight *w, const uint8_t *const *rows, const int64_t *left, const Places *places,
    uint8_t *out, const int bits, const bool coded) {
    for (int64_t col = 0; col < w->cols; col += bits == 4 ? 64 : 32)
        unpack_vector(w, rows, left, col, places, out, bits, coded);
}
UNPACK_KERNELS(unpack_codes)

static void unpack_scales(
    const Weight *w, const int64_t *rows, const Places *places, int64_t groups, float *scales, float *biases) {
    const size_t stride = weight_scale_bytes(w);
    for (int64_t g = 0; g < groups; g += 8) {
        __m256i s[8], b[8];
        for (int i = 0; i < 8; i++) {
            __m256 si, bi;
            const size_t offset = (size_t)rows[i] * stride;
            load_scales(w, (const uint8_t *)w->scales + offset, w->biases ? (const uint8_t *)w->biases + offset : NULL,
                (w->rows - rows[i]) * (int64_t)stride, g, groups - g, &si, &bi);
            s[i] = _mm256_castps_si256(si);
            b[i] = _mm256_castps_si256(bi);
        }
        transpose8(s);
        transpose8(b);
        for (int j = 0; j < 8 && g + j < groups; j++) {
            const size_t place = place_of(places, g + j) * PANEL;
            _mm256_store_si256((__m256i *)(scales + place), s[j]);
            _mm256_store_si256((__m256i *)(biases + place), b[j]);
        }
    }
}

void linear_unpack_avx2(const Weight *w, int64_t first, LinearPanel *panel) {
    linear_unpack(w, first, panel, PANEL, 8, unpack_codes_kernels, unpack_scales);
}
