/* Weight rows unpacked to panels with AVX2: bytes of 8 rows transposed at a time. */
#include <string.h>

#include "backend/cpu/linear_avx2.h"

/* Where the unpacked groups of a row go. */
typedef struct Places {
    int64_t start[LINEAR_LANES]; /* first place of a lane's groups */
    int shift;                   /* log2 of the group */
    size_t group_bytes;
} Places;

INLINE size_t place_of(const Places *places, int64_t group) {
    return (size_t)(places->start[group % LINEAR_LANES] + group / LINEAR_LANES);
}

/* 8 rows × one vector of weights: 64 columns of 4 bits, 32 of all others. After the transposition dword j holds 8 (4)
 * columns of every row. left: bytes that may be read behind the start of each row. */
INLINE void unpack_vector(const Weight *w, const uint8_t *const rows[8], const int64_t left[8], int64_t col,
    const Places *places, uint8_t *out, const int bits, const bool coded) {
    const int cols = bits == 4 ? 64 : 32;
    const int64_t count = w->cols - col < cols ? w->cols - col : cols, at_byte = col * bits / 8;
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i split =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    const Spread s = spread_make(bits == 8 || bits == 4 ? 6 : bits);
    const int64_t read = bits == 8 || bits == 4 ? 32 : 2 * bits + 16;
    __m256i r[8];
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
        uint8_t *to = out + place_of(places, at >> places->shift) * places->group_bytes +
            (size_t)(at & ((1 << places->shift) - 1)) * PANEL;
        if (bits != 4) {
            _mm256_store_si256((__m256i *)to, r[j]);
            continue;
        }
        __m256i even = _mm256_and_si256(r[j], low), odd = _mm256_and_si256(_mm256_srli_epi16(r[j], 4), low);
        _mm256_store_si256((__m256i *)to, coded ? e2m1_codes(even) : even);
        _mm256_store_si256((__m256i *)(to + 4 * PANEL), coded ? e2m1_codes(odd) : odd);
    }
}

#define UNPACK_KIND(name, bits, coded)                                                                                 \
    static void name(                                                                                                  \
        const Weight *w, const uint8_t *const rows[8], const int64_t left[8], const Places *places, uint8_t *out) {    \
        for (int64_t col = 0; col < w->cols; col += (bits) == 4 ? 64 : 32)                                             \
            unpack_vector(w, rows, left, col, places, out, bits, coded);                                               \
    }
UNPACK_KIND(unpack_2, 2, false)
UNPACK_KIND(unpack_3, 3, false)
UNPACK_KIND(unpack_4, 4, false)
UNPACK_KIND(unpack_5, 5, false)
UNPACK_KIND(unpack_6, 6, false)
UNPACK_KIND(unpack_8, 8, false)
UNPACK_KIND(unpack_e2m1, 4, true)

static void unpack_scales(
    const Weight *w, const int64_t rows[8], const Places *places, int64_t groups, float *scales, float *biases) {
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
    static void (*const AFFINE[9])(const Weight *, const uint8_t *const[8], const int64_t[8], const Places *,
        uint8_t *) = {[2] = unpack_2, [3] = unpack_3, [4] = unpack_4, [5] = unpack_5, [6] = unpack_6, [8] = unpack_8};
    const int64_t groups = w->cols / panel->group, row_bytes = (int64_t)weight_row_bytes(w);
    Places places = {.shift = __builtin_ctz((unsigned)panel->group), .group_bytes = (size_t)panel->group * PANEL};
    for (int lane = 0; lane < LINEAR_LANES; lane++) places.start[lane] = linear_panel_place(lane, groups);
    for (int half = 0; half < PANEL; half += 8) {
        const uint8_t *data[8];
        int64_t rows[8], left[8];
        for (int i = 0; i < 8; i++) {
            rows[i] = first + half + i < w->rows ? first + half + i : w->rows - 1;
            data[i] = (const uint8_t *)w->data + rows[i] * row_bytes;
            left[i] = (w->rows - rows[i]) * row_bytes;
        }
        (quant_is_affine(w->quant) ? AFFINE[w->bits] : unpack_e2m1)(w, data, left, &places, panel->codes + half * 4);
        unpack_scales(w, rows, &places, groups, panel->scales + half, panel->biases + half);
    }
}
