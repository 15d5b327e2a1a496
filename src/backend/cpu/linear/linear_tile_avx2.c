/* Products of a panel with a tile of activation rows with AVX2: lanes are weight rows. */
#include <string.h>

#include "backend/cpu/linear/linear_avx2.h"

/* words += codes · q. gcc 12 would copy the accumulators in every round. */
INLINE void dot_into(__m256i *words, __m256i codes, __m256i q) {
    __m256i product;
    __asm__("vpmaddubsw %3, %2, %1\n vpaddw %1, %0, %0" : "+x"(*words), "=&x"(product) : "x"(codes), "x"(q));
}

/* Adds the products of `steps` × 4 columns. plane: 0 all bits of a code, 1 the low four, 2 the high four. */
INLINE void tile_steps(
    const uint8_t *p, const int8_t *q, const int steps, const int plane, const int rows, __m256i words[TILE][2]) {
    const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 8
    for (int step = 0; step < steps; step++, p += 4 * PANEL) {
        __m256i p0 = _mm256_load_si256((const __m256i *)p), p1 = _mm256_load_si256((const __m256i *)(p + 32));
        if (plane == 2) {
            p0 = _mm256_srli_epi16(p0, 4);
            p1 = _mm256_srli_epi16(p1, 4);
        }
        if (plane) {
            p0 = _mm256_and_si256(p0, low);
            p1 = _mm256_and_si256(p1, low);
        }
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++) {
            int four;
            memcpy(&four, q + 4 * (step * TILE + t), 4);
            const __m256i v = _mm256_set1_epi32(four);
            if (step == 0) {
                words[t][0] = _mm256_maddubs_epi16(p0, v);
                words[t][1] = _mm256_maddubs_epi16(p1, v);
                continue;
            }
            dot_into(&words[t][0], p0, v);
            dot_into(&words[t][1], p1, v);
        }
    }
}

/* sums += products of `steps` × 4 columns; fresh: sums are still zero. */
INLINE void tile_part(const uint8_t *p, const int8_t *q, const int steps, const bool two_planes, const bool fresh,
    const int rows, __m256i sums[TILE][2]) {
#pragma GCC unroll 2
    for (int plane = 0; plane < 1 + two_planes; plane++) {
        const __m256i weight = _mm256_set1_epi16(plane ? 16 : 1);
        __m256i words[TILE][2];
        tile_steps(p, q, steps, two_planes ? 1 + plane : 0, rows, words);
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++)
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                const __m256i wide = _mm256_madd_epi16(words[t][h], weight);
                sums[t][h] = fresh && !plane ? wide : _mm256_add_epi32(sums[t][h], wide);
            }
    }
}

/* One group's integer sums. steps: as many as 16 bits hold. */
INLINE void tile_group(const uint8_t *p, const int8_t *q, int group, const int steps, const bool two_planes,
    const int rows, __m256i sums[TILE][2]) {
    if (two_planes) { /* where the first part on its own is slower */
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++) sums[t][0] = sums[t][1] = _mm256_setzero_si256();
    } else {
        tile_part(p, q, steps, two_planes, true, rows, sums);
    }
    for (int at = two_planes ? 0 : 4 * steps; at < group; at += 4 * steps)
        tile_part(p + at * PANEL, q + at * TILE, steps, two_planes, false, rows, sums);
}

/* See linear_leaf(): after a lane is finished it is added to as many waiting sums as its turn has trailing ones. */
INLINE void tile(const LinearPanel *panel, const LinearInput *x, int64_t first, const int steps, const bool two_planes,
    const int rows, float *y) {
    float waiting[4][TILE * PANEL] __attribute__((aligned(32)));
    const int group = panel->group;
    const int8_t *q = x->q[LAYOUT_PANEL] + first * x->stride;
    const float *d = x->scales + first * (x->stride / group), *z = x->sums + first * (x->stride / group);
    const uint8_t *p = panel->codes;
    const float *scales = panel->scales, *biases = panel->biases;
    int depth = 0;
    for (int turn = 0; turn < LINEAR_LANES; turn++) {
        __m256 acc[TILE][2];
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++) acc[t][0] = acc[t][1] = _mm256_setzero_ps();
        const int64_t count = (panel->groups - linear_leaf(turn) + LINEAR_LANES - 1) / LINEAR_LANES;
        for (int64_t i = 0; i < count; i++) {
            __m256i sums[TILE][2];
            tile_group(p, q, group, steps, two_planes, rows, sums);
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                const __m256 s = _mm256_load_ps(scales + 8 * h), b = _mm256_load_ps(biases + 8 * h);
#pragma GCC unroll 4
                for (int t = 0; t < rows; t++) {
                    const __m256 sd = _mm256_mul_ps(s, _mm256_set1_ps(d[t]));
                    acc[t][h] = _mm256_fmadd_ps(sd, _mm256_cvtepi32_ps(sums[t][h]), acc[t][h]);
                    acc[t][h] = _mm256_fmadd_ps(b, _mm256_set1_ps(z[t]), acc[t][h]);
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
                for (int h = 0; h < 2; h++)
                    acc[t][h] = _mm256_add_ps(_mm256_load_ps(left + t * PANEL + 8 * h), acc[t][h]);
        }
        float *to = turn == LINEAR_LANES - 1 ? y : waiting[depth++];
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++)
            for (int h = 0; h < 2; h++) _mm256_storeu_ps(to + t * PANEL + 8 * h, acc[t][h]);
    }
}

typedef void Tile(const LinearPanel *panel, const LinearInput *x, int64_t first, float *y);
#define TILE_ROWS(name, steps, two_planes, rows)                                                                       \
    static void name##_##rows(const LinearPanel *panel, const LinearInput *x, int64_t first, float *y) {               \
        tile(panel, x, first, steps, two_planes, rows, y);                                                             \
    }
#define TILE_KIND(name, steps, two_planes)                                                                             \
    TILE_ROWS(name, steps, two_planes, 1)                                                                              \
    TILE_ROWS(name, steps, two_planes, 2)                                                                              \
    TILE_ROWS(name, steps, two_planes, 3)                                                                              \
    TILE_ROWS(name, steps, two_planes, 4)                                                                              \
    static Tile *const name[TILE] = {name##_1, name##_2, name##_3, name##_4};
TILE_KIND(tile_15, 8, false)
TILE_KIND(tile_31, 4, false)
TILE_KIND(tile_63, 2, false)
TILE_KIND(tile_255, 8, true)

void linear_tile_avx2(const LinearPanel *panel, const LinearInput *x, int64_t first, int rows, float *y) {
    const int most = panel->code_max;
    Tile *const *kind = most <= 15 ? tile_15 : most <= 31 ? tile_31 : most <= 63 ? tile_63 : tile_255;
    kind[rows - 1](panel, x, first, y);
}
