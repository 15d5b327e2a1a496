/* Scans on AVX-512: vpdpbusd, unsigned by signed. Keys are made unsigned; weights are unsigned already. */
#pragma once

typedef __m512i Ints;
enum {
    INT_LANES = 16,
    SCAN_TILE = 6,        /* queries of a register tile */
    TILE_REGS = 4,        /* registers of codes of a register tile */
    TOGETHER = 1,         /* quads of narrow codes whose products are added before widening */
    KEYS_UNSIGNED = true, /* index − 128 as it is, with the offset */
};
/* Queries for which codes are looked up again in each tile. */
VEC_INLINE int direct_most(KvForm form) { return 12; }
VEC_INLINE int key_offset(KvForm form) { return 128; }
VEC_INLINE int query_most(KvForm form) { return 127; }
VEC_INLINE int weight_most(KvForm form) { return 254; }
VEC_INLINE Ints ints_zero(void) { return _mm512_setzero_si512(); }
VEC_INLINE Ints ints_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
VEC_INLINE void ints_keep(Ints *x) { __asm__ volatile("" : "+v"(*x)); } /* keeps the value in a register */
VEC_INLINE void ints_store(void *p, Ints x) { _mm512_storeu_si512(p, x); }
VEC_INLINE Ints ints_four(const void *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}
VEC_INLINE Ints ints_flip(Ints x) { return _mm512_xor_si512(x, _mm512_set1_epi8((char)0x80)); }
VEC_INLINE Ints ints_right(Ints x, int n) { return n ? _mm512_srli_epi16(x, (unsigned)n) : x; }
/* mask ? a : b */
VEC_INLINE Ints bits_of(uint8_t mask, Ints a, Ints b) {
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8((char)mask), 0xE4);
}
VEC_INLINE Ints ints_dot(bool wide, bool values, Ints sum, Ints codes, Ints x) {
    return values ? _mm512_dpbusd_epi32(sum, x, codes) : _mm512_dpbusd_epi32(sum, codes, x);
}
VEC_INLINE Ints ints_dot2(bool values, Ints sum, Ints codes, Ints x, Ints other_codes, Ints other_x) {
    return ints_dot(false, values, ints_dot(false, values, sum, codes, x), other_codes, other_x);
}

/* vpermb looks at six bits: tables of fewer entries are repeated, and bits above an index do no harm. */
typedef __m512i Table;
VEC_INLINE Table table_load(const uint8_t *table) { return _mm512_loadu_si512(table); }
VEC_INLINE void table_fill(KvForm form, const int8_t *codebook, int offset, uint8_t *table) {
    const int levels = form_levels(form);
    for (int i = 0; i < SCAN_TABLE; i++) table[i] = (uint8_t)(codebook[i % levels] + offset);
}
VEC_INLINE Ints look_up(const int levels, const Table *table, Ints index) {
    return _mm512_permutexvar_epi8(index, *table);
}

VEC_INLINE Vec vec_from_ints(const int32_t *p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
VEC_INLINE Vec vec_load_f16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
/* Whole numbers of an int8. */
VEC_INLINE void vec_store_bytes(void *p, Vec x) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}
/* Whole numbers as integers: the nearest to x, differences, and 64 that fit a uint8. */
typedef __m512i Wholes;
VEC_INLINE Wholes wholes_of(Vec x) { return _mm512_cvtps_epi32(x); }
VEC_INLINE Wholes wholes_less(Wholes a, Wholes b) { return _mm512_sub_epi32(a, b); }
VEC_INLINE Vec vec_of_wholes(Wholes x) { return _mm512_cvtepi32_ps(x); }
VEC_INLINE void wholes_store_bytes(uint8_t *p, const Wholes x[4]) {
    const __m512i low = _mm512_packus_epi32(x[0], x[1]), high = _mm512_packus_epi32(x[2], x[3]);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high)));
}
/* x − ⌊x⌋, and ⌊x⌋ for vec_raise. */
VEC_INLINE Vec vec_fraction(Vec x, Vec *whole) {
    *whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    return _mm512_sub_ps(x, *whole);
}
/* a · 2ⁿ for ½ < a < 2 and whole −125 ≤ n ≤ 0 */
VEC_INLINE Vec vec_raise(Vec a, Vec n) { return _mm512_scalef_ps(a, n); }
