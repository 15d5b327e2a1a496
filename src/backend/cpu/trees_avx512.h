/* The sum over 16 lanes as a tree of halves (lanes j + (j+8), then j + (j+4), j + (j+2), j + (j+1)), of many registers
 * at once: that takes a third of the instructions of one after the other, and gives the same bits. */
#pragma once
#include <immintrin.h>

#define TREE_INLINE static inline __attribute__((always_inline))

/* The halves of 16 registers added: register i has 8 lanes of number i, then 8 of i + 8. */
TREE_INLINE void tree_eights(const __m512 v[16], __m512 out[8]) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        out[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44), _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee));
}

/* Of 8 registers with two numbers each: 4 lanes of each number of register i, then of register i + 4. */
TREE_INLINE void tree_fours(const __m512 v[8], __m512 out[4]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        out[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[i], v[i + 4], 0x88), _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd));
}

/* Of 4 registers with four numbers each, 4 lanes a number: 2 lanes of a number of register i and of one of i + 2 in
 * turn. */
TREE_INLINE void tree_twos(const __m512 v[4], __m512 out[2]) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const __m512d x = _mm512_castps_pd(v[i]), y = _mm512_castps_pd(v[i + 2]);
        out[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
}

/* Of 2 registers with eight numbers each, 2 lanes a number: all sums, in the order of tree_sums(). */
TREE_INLINE __m512 tree_ones(const __m512 v[2]) {
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return _mm512_permutexvar_ps(
        order, _mm512_add_ps(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xdd)));
}

/* Lane i: the sum of register i. */
TREE_INLINE __m512 tree_sums(const __m512 v[16]) {
    __m512 eights[8], fours[4], twos[2];
    tree_eights(v, eights);
    tree_fours(eights, fours);
    tree_twos(fours, twos);
    return tree_ones(twos);
}

/* The same of 16 numbers that share registers, `together` (2, 4 or 8) in each, one behind the other with 16 / together
 * lanes each. */
TREE_INLINE __m512 tree_shared_sums(const __m512 *v, const int together) {
    /* where tree_ones() puts the numbers */
    const __m512i pairs = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    const __m512i quads = _mm512_setr_epi32(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15);
    const __m512i octets = _mm512_setr_epi32(0, 2, 8, 10, 4, 6, 12, 14, 1, 3, 9, 11, 5, 7, 13, 15);
    __m512 fours[4], twos[2];
    if (together == 8) return _mm512_permutexvar_ps(octets, tree_ones(v));
    if (together == 2) tree_fours(v, fours);
    tree_twos(together == 2 ? fours : v, twos);
    return _mm512_permutexvar_ps(together == 2 ? pairs : quads, tree_ones(twos));
}
