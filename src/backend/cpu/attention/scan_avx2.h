/* Scans on AVX2: vpmaddubsw, unsigned by signed, two of which are added in 16 bits. Narrow keys are made unsigned, wide
 * ones give their sign to the query; weights are unsigned. With narrow codes, queries and weights are narrow as well,
 * so that four products fit into 16 bits and widening is needed half as often: 4 · 74 · (54 + 56) and 4 · 137 · 59 are
 * below 2¹⁵, and the added error of a score is a hundredth of the quantisation error. */
#pragma once

typedef __m256i Ints;
enum { INT_LANES = 8, SCAN_TILE = 6, TILE_REGS = 1, TOGETHER = 2, KEYS_UNSIGNED = false };
/* Queries for which codes are looked up again in each tile: tables of several registers leave too few for sums. */
VEC_INLINE int direct_most(KvForm form) { return form == KV_Q5 || form == KV_Q6 ? 3 : 12; }
VEC_INLINE int key_offset(KvForm form) { return form_is_wide(form) ? 0 : 56; }
VEC_INLINE int query_most(KvForm form) { return form_is_wide(form) ? 127 : 74; }
VEC_INLINE int weight_most(KvForm form) { return form_is_wide(form) ? 126 : 136; }
VEC_INLINE Ints ints_zero(void) { return _mm256_setzero_si256(); }
VEC_INLINE Ints ints_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
VEC_INLINE void ints_keep(Ints *x) { __asm__ volatile("" : "+x"(*x)); } /* keeps the value in a register */
VEC_INLINE void ints_store(void *p, Ints x) { _mm256_storeu_si256((__m256i *)p, x); }
VEC_INLINE Ints ints_four(const void *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}
VEC_INLINE Ints ints_flip(Ints x) { return _mm256_xor_si256(x, _mm256_set1_epi8((char)0x80)); }
VEC_INLINE Ints ints_right(Ints x, int n) { return n ? _mm256_srli_epi16(x, n) : x; }
/* mask ? a : b */
VEC_INLINE Ints bits_of(uint8_t mask, Ints a, Ints b) {
    const Ints m = _mm256_set1_epi8((char)mask);
    return _mm256_or_si256(_mm256_and_si256(m, a), _mm256_andnot_si256(m, b));
}
VEC_INLINE Ints ints_pairs(bool wide, bool values, Ints codes, Ints x) {
    return values ? _mm256_maddubs_epi16(x, codes)
        : wide    ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
                  : _mm256_maddubs_epi16(codes, x);
}
VEC_INLINE Ints ints_widen(Ints sum, Ints pairs) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
VEC_INLINE Ints ints_dot(bool wide, bool values, Ints sum, Ints codes, Ints x) {
    return ints_widen(sum, ints_pairs(wide, values, codes, x));
}
/* Two quads of narrow codes. */
VEC_INLINE Ints ints_dot2(bool values, Ints sum, Ints codes, Ints x, Ints other_codes, Ints other_x) {
    return ints_widen(
        sum, _mm256_add_epi16(ints_pairs(false, values, codes, x), ints_pairs(false, values, other_codes, other_x)));
}

/* Sixteen bytes for each value of the bits above an index's lowest four. */
typedef struct Table {
    __m256i of[4];
} Table;
VEC_INLINE Table table_load(const uint8_t *p) {
    Table table;
    for (int i = 0; i < 4; i++)
        table.of[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)));
    return table;
}
VEC_INLINE void table_fill(KvForm form, const int8_t *codebook, int offset, uint8_t *table) {
    const int levels = form_levels(form);
    for (int i = 0; i < SCAN_TABLE; i++) table[i] = (uint8_t)(codebook[i % levels] + offset);
}
VEC_INLINE Ints look_up(const int levels, const Table *table, Ints index) {
    const Ints low = _mm256_and_si256(index, _mm256_set1_epi8(15));
    const Ints first = _mm256_shuffle_epi8(table->of[0], low);
    if (levels <= 16) return first;
    const Ints four = _mm256_slli_epi16(index, 3); /* bit 4 at the top */
    const Ints under = _mm256_blendv_epi8(first, _mm256_shuffle_epi8(table->of[1], low), four);
    if (levels == 32) return under;
    const Ints over =
        _mm256_blendv_epi8(_mm256_shuffle_epi8(table->of[2], low), _mm256_shuffle_epi8(table->of[3], low), four);
    return _mm256_blendv_epi8(under, over, _mm256_slli_epi16(index, 2));
}

VEC_INLINE Vec vec_from_ints(const int32_t *p) {
    return (Vec){_mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(const void *)p)),
        _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p + 8)))};
}
VEC_INLINE Vec vec_load_f16(const uint8_t *p) {
    return (Vec){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
        _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 16)))};
}
VEC_INLINE __m256i vec_words(Vec x) { /* a's and b's halves in turn */
    return _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
}
/* Whole numbers of an int8. */
VEC_INLINE void vec_store_bytes(void *p, Vec x) {
    const __m256i words = _mm256_permute4x64_epi64(vec_words(x), 0xD8);
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(words, words), 0xD8);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(bytes));
}
/* Whole numbers as integers: the nearest to x, differences, and 64 that fit a uint8. */
typedef struct Wholes {
    __m256i a, b;
} Wholes;
VEC_INLINE Wholes wholes_of(Vec x) { return (Wholes){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
VEC_INLINE Wholes wholes_less(Wholes x, Wholes y) {
    return (Wholes){_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
VEC_INLINE Vec vec_of_wholes(Wholes x) { return (Vec){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
VEC_INLINE void wholes_store_bytes(uint8_t *p, const Wholes x[4]) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int i = 0; i < 4; i += 2) {
        const __m256i one = _mm256_packs_epi32(x[i].a, x[i].b), other = _mm256_packs_epi32(x[i + 1].a, x[i + 1].b);
        ints_store(p + i * 16, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(one, other), order));
    }
}
/* x − ⌊x⌋, and ⌊x⌋ for vec_raise. */
VEC_INLINE Vec vec_fraction(Vec x, Vec *whole) {
    *whole = (Vec){_mm256_floor_ps(x.a), _mm256_floor_ps(x.b)};
    return vec_sub(x, *whole);
}
VEC_INLINE __m256 raise_half(__m256 a, __m256 n) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
/* a · 2ⁿ for ½ < a < 2 and whole −125 ≤ n ≤ 0 */
VEC_INLINE Vec vec_raise(Vec a, Vec n) { return (Vec){raise_half(a.a, n.a), raise_half(a.b, n.b)}; }
