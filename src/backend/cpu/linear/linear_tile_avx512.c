/* Products of a panel with a tile of activation rows with AVX-512: lanes are weight rows. */
#include <string.h>

#include "backend/cpu/linear/linear_avx512.h"

enum { TILE = LINEAR_TILE_ROWS };

/* gcc 12 copies the accumulators in every round of a loop around the intrinsic. */
INLINE void dot_into(__m512i *sum, __m512i codes, __m512i q) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(codes), "v"(q));
}

/* Adds a finished lane to the tree: as many earlier sums as the turn has trailing ones, the rest waits in `waiting`. */
INLINE void tile(const LinearPanel *panel, const LinearInput *x, int64_t first, const int rows, float *y) {
    float waiting[4][TILE * PANEL] __attribute__((aligned(64)));
    const int8_t *q = x->q[LAYOUT_PANEL] + first * x->stride;
    const float *d = x->scales + first * (x->stride / x->group), *z = x->sums + first * (x->stride / x->group);
    const uint8_t *p = panel->codes;
    const float *scales = panel->scales, *biases = panel->biases;
    int depth = 0;
    for (int turn = 0; turn < LINEAR_LANES; turn++) {
        __m512 acc[TILE][2];
#pragma GCC unroll 6
        for (int t = 0; t < rows; t++) acc[t][0] = acc[t][1] = _mm512_setzero_ps();
        const int64_t count = (panel->groups - linear_leaf(turn) + LINEAR_LANES - 1) / LINEAR_LANES;
        for (int64_t i = 0; i < count; i++, d += TILE, z += TILE, scales += PANEL, biases += PANEL) {
            __m512i sum[TILE][2];
#pragma GCC unroll 6
            for (int t = 0; t < rows; t++) sum[t][0] = sum[t][1] = _mm512_setzero_si512();
            for (const uint8_t *end = p + panel->group * PANEL; p < end; p += 16 * PANEL, q += 16 * TILE)
#pragma GCC unroll 4
                for (int step = 0; step < 4; step++) {
                    const __m512i p0 = _mm512_load_si512(p + 4 * PANEL * step);
                    const __m512i p1 = _mm512_load_si512(p + 4 * PANEL * step + 64);
#pragma GCC unroll 6
                    for (int t = 0; t < rows; t++) {
                        int four;
                        memcpy(&four, q + 4 * (step * TILE + t), 4);
                        const __m512i v = _mm512_set1_epi32(four);
                        dot_into(&sum[t][0], p0, v);
                        dot_into(&sum[t][1], p1, v);
                    }
                }
            const __m512 s0 = _mm512_load_ps(scales), s1 = _mm512_load_ps(scales + 16);
            const __m512 b0 = _mm512_load_ps(biases), b1 = _mm512_load_ps(biases + 16);
#pragma GCC unroll 6
            for (int t = 0; t < rows; t++) {
                const __m512 dt = _mm512_set1_ps(d[t]), zt = _mm512_set1_ps(z[t]);
                acc[t][0] = _mm512_fmadd_ps(_mm512_mul_ps(s0, dt), _mm512_cvtepi32_ps(sum[t][0]), acc[t][0]);
                acc[t][1] = _mm512_fmadd_ps(_mm512_mul_ps(s1, dt), _mm512_cvtepi32_ps(sum[t][1]), acc[t][1]);
                acc[t][0] = _mm512_fmadd_ps(b0, zt, acc[t][0]);
                acc[t][1] = _mm512_fmadd_ps(b1, zt, acc[t][1]);
            }
        }
        for (int more = turn; more & 1; more >>= 1) {
            const float *left = waiting[--depth];
#pragma GCC unroll 6
            for (int t = 0; t < rows; t++) {
                acc[t][0] = _mm512_add_ps(_mm512_load_ps(left + t * PANEL), acc[t][0]);
                acc[t][1] = _mm512_add_ps(_mm512_load_ps(left + t * PANEL + 16), acc[t][1]);
            }
        }
        float *to = turn == LINEAR_LANES - 1 ? y : waiting[depth++];
#pragma GCC unroll 6
        for (int t = 0; t < rows; t++) {
            _mm512_storeu_ps(to + t * PANEL, acc[t][0]);
            _mm512_storeu_ps(to + t * PANEL + 16, acc[t][1]);
        }
    }
}

#define TILE_ROWS(rows)                                                                                                \
    static void tile_##rows(const LinearPanel *panel, const LinearInput *x, int64_t first, float *y) {                 \
        tile(panel, x, first, rows, y);                                                                                \
    }
TILE_ROWS(1)
TILE_ROWS(2)
TILE_ROWS(3)
TILE_ROWS(4)
TILE_ROWS(5)
TILE_ROWS(6)

void linear_tile_avx512(const LinearPanel *panel, const LinearInput *x, int64_t first, int rows, float *y) {
    static void (*const TILES[])(const LinearPanel *, const LinearInput *, int64_t, float *) = {
        tile_1, tile_2, tile_3, tile_4, tile_5, tile_6};
    TILES[rows - 1](panel, x, first, y);
}
