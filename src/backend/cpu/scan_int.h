/* Integer registers of the scans, for each instruction set: what unpacks codes to bytes, and sums of four products of
 * bytes a lane. A quad is what meets one load of four query elements or weights: 16 lanes of four bytes, 64 bytes. */
#pragma once
#include "backend/cpu/scan.h"
#include "backend/cpu/vec16.h"

/* What is multiplied: keys by a query or values by weights; wide where the codebook fills the int8. */
typedef enum ScanKind { SCAN_KEYS, SCAN_WIDE_KEYS, SCAN_VALUES, SCAN_WIDE_VALUES, SCAN_KINDS } ScanKind;

VEC_INLINE bool kind_is_wide(ScanKind kind) { return kind == SCAN_WIDE_KEYS || kind == SCAN_WIDE_VALUES; }
VEC_INLINE bool form_is_wide(KvForm form) { return form > KV_CODE4; }
VEC_INLINE int form_levels(KvForm form) {
    return form == KV_CODE3 ? 8 : form == KV_CODE4 ? 16 : form == KV_CODE5 ? 32 : 64;
}

#if defined(__AVX512F__)

/* vpdpbusd: unsigned by signed. Keys are made unsigned; weights are. */
typedef __m512i Ints;
enum { INT_LANES = 16, QUAD_REGS = 1, SCAN_TILE = 6, NARROW_QUADS = 1 };
VEC_INLINE int key_offset(KvForm form) { return 128; }
VEC_INLINE int query_most(KvForm form) { return 127; }
VEC_INLINE int weight_most(KvForm form) { return 254; }
VEC_INLINE Ints ints_zero(void) { return _mm512_setzero_si512(); }
VEC_INLINE Ints ints_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
VEC_INLINE void ints_store(int32_t *p, Ints x) { _mm512_storeu_si512(p, x); }
VEC_INLINE Ints ints_four(const void *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}
VEC_INLINE Ints ints_dot(ScanKind kind, Ints sum, Ints codes, Ints x) {
    return kind >= SCAN_VALUES ? _mm512_dpbusd_epi32(sum, x, codes) : _mm512_dpbusd_epi32(sum, codes, x);
}
VEC_INLINE Ints ints_dot2(ScanKind kind, Ints sum, Ints codes, Ints x, Ints other_codes, Ints other_x) {
    return ints_dot(kind, ints_dot(kind, sum, codes, x), other_codes, other_x);
}

typedef __m512i Table;
VEC_INLINE Table table_load(const uint8_t *table) { return _mm512_loadu_si512(table); }
/* vpermb looks at six bits: tables of fewer entries are repeated, and bits above an index do no harm. */
VEC_INLINE void table_fill(KvForm form, const int8_t *codebook, int offset, uint8_t *table) {
    const int levels = form_levels(form);
    for (int i = 0; i < SCAN_TABLE; i++) table[i] = (uint8_t)(codebook[i % levels] + offset);
}
/* mask ? a : b */
VEC_INLINE Ints bits_of(uint8_t mask, Ints a, Ints b) {
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8((char)mask), 0xE4);
}
VEC_INLINE void unpack4(int quads, const uint8_t *codes, Table table, uint8_t *out) {
    for (int q = 0; q < quads; q += 2, codes += 64) {
        const Ints x = ints_load(codes);
        _mm512_storeu_si512(out + q * 64, _mm512_permutexvar_epi8(x, table));
        _mm512_storeu_si512(out + q * 64 + 64, _mm512_permutexvar_epi8(_mm512_srli_epi16(x, 4), table));
    }
}
VEC_INLINE void unpack5(int quads, const uint8_t *codes, const uint8_t *bits, Table table, uint8_t *out) {
    Ints plane = ints_zero();
    for (int q = 0; q < quads; q += 2, codes += 64) {
        if (q % 8 == 0) plane = ints_load(bits + q * 8);
        const Ints x = ints_load(codes);
        const Ints low = bits_of(1, plane, _mm512_slli_epi16(x, 1));
        const Ints high = bits_of(1, _mm512_srli_epi16(plane, 1), _mm512_srli_epi16(x, 3));
        _mm512_storeu_si512(out + q * 64, _mm512_permutexvar_epi8(low, table));
        _mm512_storeu_si512(out + q * 64 + 64, _mm512_permutexvar_epi8(high, table));
        plane = _mm512_srli_epi16(plane, 2);
    }
}
VEC_INLINE void unpack6(int quads, const uint8_t *codes, const uint8_t *pairs, Table table, uint8_t *out) {
    Ints plane = ints_zero();
    for (int q = 0; q < quads; q += 2, codes += 64) {
        if (q % 4 == 0) plane = ints_load(pairs + q * 16);
        const Ints x = ints_load(codes);
        const Ints low = bits_of(3, plane, _mm512_slli_epi16(x, 2));
        const Ints high = bits_of(3, _mm512_srli_epi16(plane, 2), _mm512_srli_epi16(x, 2));
        _mm512_storeu_si512(out + q * 64, _mm512_permutexvar_epi8(low, table));
        _mm512_storeu_si512(out + q * 64 + 64, _mm512_permutexvar_epi8(high, table));
        plane = _mm512_srli_epi16(plane, 4);
    }
}
VEC_INLINE void unpack3(int quads, const uint8_t *pairs, const uint8_t *bits, Table table, uint8_t *out) {
    for (int q = 0; q < quads; q += 4) {
        Ints plane = ints_load(pairs + q * 16), third = ints_load(bits + q / 8 * 64);
        for (int n = 0; n < 4; n++) {
            /* A turn of each lane: bit q + n of a byte becomes its third. */
            const Ints top = _mm512_rorv_epi32(third, _mm512_set1_epi32((q % 8 + n + 30) % 32));
            _mm512_storeu_si512(out + (q + n) * 64, _mm512_permutexvar_epi8(bits_of(4, top, plane), table));
            plane = _mm512_srli_epi16(plane, 2);
        }
    }
}
VEC_INLINE void unpack8(int quads, const uint8_t *codes, bool values, uint8_t *out) {
    const Ints flip = _mm512_set1_epi8((char)(values ? 0x80 : 0)); /* index − 128 as it is, or with the offset */
    for (int q = 0; q < quads; q++) {
        _mm512_storeu_si512(out + q * 64, _mm512_xor_si512(ints_load(codes + q * 64), flip));
    }
}

VEC_INLINE Vec vec_from_ints(const int32_t *p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
VEC_INLINE Vec vec_load_f16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
/* Whole numbers of an int8 or a uint8. */
VEC_INLINE void vec_store_bytes(void *p, Vec x) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}

#elif defined(__aarch64__)

/* sdot: signed by signed, so weights have seven bits. */
typedef int32x4_t Ints;
enum { INT_LANES = 4, QUAD_REGS = 4, SCAN_TILE = 5, NARROW_QUADS = 1 };
VEC_INLINE int key_offset(KvForm form) { return 0; }
VEC_INLINE int query_most(KvForm form) { return 127; }
VEC_INLINE int weight_most(KvForm form) { return 126; }
VEC_INLINE Ints ints_zero(void) { return vdupq_n_s32(0); }
VEC_INLINE Ints ints_load(const uint8_t *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
VEC_INLINE void ints_store(int32_t *p, Ints x) { vst1q_s32(p, x); }
VEC_INLINE Ints ints_four(const void *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vdupq_n_s32(four);
}
VEC_INLINE Ints ints_dot(ScanKind kind, Ints sum, Ints codes, Ints x) {
    return vdotq_s32(sum, vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(x));
}
VEC_INLINE Ints ints_dot2(ScanKind kind, Ints sum, Ints codes, Ints x, Ints other_codes, Ints other_x) {
    return ints_dot(kind, ints_dot(kind, sum, codes, x), other_codes, other_x);
}

typedef struct Table {
    uint8x16x4_t t;
} Table;
VEC_INLINE Table table_load(const uint8_t *p) {
    return (Table){{{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}}};
}
VEC_INLINE void table_fill(KvForm form, const int8_t *codebook, int offset, uint8_t *table) {
    const int levels = form_levels(form);
    for (int i = 0; i < SCAN_TABLE; i++) table[i] = (uint8_t)(codebook[i % levels] + offset);
}
VEC_INLINE uint8x16_t bits_of(uint8_t mask, uint8x16_t a, uint8x16_t b) { return vbslq_u8(vdupq_n_u8(mask), a, b); }
/* x moved right by n bits, left by −n. */
VEC_INLINE uint8x16_t moved(uint8x16_t x, int n) { return vshlq_u8(x, vdupq_n_s8((int8_t)-n)); }
VEC_INLINE uint8x16_t look_up(Table table, int levels, uint8x16_t index) {
    index = vandq_u8(index, vdupq_n_u8((uint8_t)(levels - 1)));
    if (levels <= 16) return vqtbl1q_u8(table.t.val[0], index);
    if (levels == 32) return vqtbl2q_u8((uint8x16x2_t){{table.t.val[0], table.t.val[1]}}, index);
    return vqtbl4q_u8(table.t, index);
}
VEC_INLINE void unpack4(int quads, const uint8_t *codes, Table table, uint8_t *out) {
    for (int q = 0; q < quads; q += 2, codes += 64) {
        for (int r = 0; r < 64; r += 16) {
            const uint8x16_t x = vld1q_u8(codes + r);
            vst1q_u8(out + q * 64 + r, look_up(table, 16, x));
            vst1q_u8(out + q * 64 + 64 + r, look_up(table, 16, vshrq_n_u8(x, 4)));
        }
    }
}
/* Nibbles with `more` bits below them. */
VEC_INLINE void unpack_more(
    const int more, int quads, const uint8_t *codes, const uint8_t *extra, Table table, uint8_t *out) {
    const int each = 8 / more, levels = 16 << more;
    const uint8_t mask = (uint8_t)((1 << more) - 1);
    for (int q = 0; q < quads; q += 2, codes += 64) {
        for (int r = 0; r < 64; r += 16) {
            const uint8x16_t x = vld1q_u8(codes + r), plane = vld1q_u8(extra + q / each * 64 + r);
            const uint8x16_t low = bits_of(mask, moved(plane, q % each * more), moved(x, -more));
            const uint8x16_t high = bits_of(mask, moved(plane, (q % each + 1) * more), moved(x, 4 - more));
            vst1q_u8(out + q * 64 + r, look_up(table, levels, low));
            vst1q_u8(out + q * 64 + 64 + r, look_up(table, levels, high));
        }
    }
}
VEC_INLINE void unpack5(int quads, const uint8_t *codes, const uint8_t *bits, Table table, uint8_t *out) {
    unpack_more(1, quads, codes, bits, table, out);
}
VEC_INLINE void unpack6(int quads, const uint8_t *codes, const uint8_t *pairs, Table table, uint8_t *out) {
    unpack_more(2, quads, codes, pairs, table, out);
}
VEC_INLINE void unpack3(int quads, const uint8_t *pairs, const uint8_t *bits, Table table, uint8_t *out) {
    for (int q = 0; q < quads; q++) {
        for (int r = 0; r < 64; r += 16) {
            const uint8x16_t plane = moved(vld1q_u8(pairs + q / 4 * 64 + r), q % 4 * 2);
            const uint8x16_t top = moved(vld1q_u8(bits + q / 8 * 64 + r), q % 8 - 2);
            vst1q_u8(out + q * 64 + r, look_up(table, 8, bits_of(4, top, plane)));
        }
    }
}
VEC_INLINE void unpack8(int quads, const uint8_t *codes, bool values, uint8_t *out) {
    for (int q = 0; q < quads; q++) {
        for (int r = 0; r < 64; r += 16)
            vst1q_u8(out + q * 64 + r, veorq_u8(vld1q_u8(codes + q * 64 + r), vdupq_n_u8(0x80)));
    }
}

VEC_INLINE Vec vec_from_ints(const int32_t *p) { VEC_EACH(vcvtq_f32_s32(vld1q_s32(p + 4 * i))); }
VEC_INLINE Vec vec_load_f16(const uint8_t *p) { VEC_EACH(vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i)))); }
VEC_INLINE void vec_store_bytes(void *p, Vec x) {
    int32_t ints[16];
    for (int i = 0; i < 4; i++) vst1q_s32(ints + 4 * i, vcvtnq_s32_f32(x.v[i]));
    for (int i = 0; i < 16; i++) ((uint8_t *)p)[i] = (uint8_t)ints[i];
}

#else

/* vpmaddubsw: unsigned by signed, two of which are added in 16 bits. Narrow keys are made unsigned, wide ones give
 * their sign to the query; weights are unsigned. Where codes are narrow, queries and weights are so as well, so that
 * four products fit into 16 bits and widening is needed half as often: 4 · 74 · (54 + 56) and 4 · 137 · 59 are below
 * 2¹⁵, and what that adds to the error of a score is a hundredth of what the codes do. */
typedef __m256i Ints;
enum { INT_LANES = 8, QUAD_REGS = 2, SCAN_TILE = 4, NARROW_QUADS = 2 };
VEC_INLINE int key_offset(KvForm form) { return form_is_wide(form) ? 0 : 56; }
VEC_INLINE int query_most(KvForm form) { return form_is_wide(form) ? 127 : 74; }
VEC_INLINE int weight_most(KvForm form) { return form_is_wide(form) ? 126 : 136; }
VEC_INLINE Ints ints_zero(void) { return _mm256_setzero_si256(); }
VEC_INLINE Ints ints_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
VEC_INLINE void ints_store(int32_t *p, Ints x) { _mm256_storeu_si256((__m256i *)(void *)p, x); }
VEC_INLINE Ints ints_four(const void *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}
VEC_INLINE Ints ints_dot(ScanKind kind, Ints sum, Ints codes, Ints x) {
    const Ints pairs = kind == SCAN_KEYS ? _mm256_maddubs_epi16(codes, x)
        : kind >= SCAN_VALUES            ? _mm256_maddubs_epi16(x, codes)
                                         : _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* Two quads of narrow codes. */
VEC_INLINE Ints ints_dot2(ScanKind kind, Ints sum, Ints codes, Ints x, Ints other_codes, Ints other_x) {
    const Ints one = kind == SCAN_KEYS ? _mm256_maddubs_epi16(codes, x) : _mm256_maddubs_epi16(x, codes);
    const Ints other =
        kind == SCAN_KEYS ? _mm256_maddubs_epi16(other_codes, other_x) : _mm256_maddubs_epi16(other_x, other_codes);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(one, other), _mm256_set1_epi16(1)));
}

/* Table n of 16 bytes belongs to the nibbles whose bits below are n. */
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
    const int levels = form_levels(form), below = levels > 16 ? levels / 16 : 1;
    for (int i = 0; i < SCAN_TABLE; i++)
        table[i] = (uint8_t)(codebook[(i % 16 * below + i / 16 % below) % levels] + offset);
}
VEC_INLINE Ints nibble(Ints x, bool high) {
    return _mm256_and_si256(high ? _mm256_srli_epi16(x, 4) : x, _mm256_set1_epi8(15));
}
VEC_INLINE void put(uint8_t *p, Ints x) { _mm256_storeu_si256((__m256i *)(void *)p, x); }
/* Each byte's bit n at its top. */
VEC_INLINE Ints top_bit(Ints x, int n) { return _mm256_sll_epi16(x, _mm_cvtsi32_si128(7 - n)); }
VEC_INLINE void unpack4(int quads, const uint8_t *codes, Table table, uint8_t *out) {
    for (int q = 0; q < quads; q += 2, codes += 64) {
        for (int r = 0; r < 64; r += 32) {
            const Ints x = ints_load(codes + r);
            put(out + q * 64 + r, _mm256_shuffle_epi8(table.of[0], nibble(x, false)));
            put(out + q * 64 + 64 + r, _mm256_shuffle_epi8(table.of[0], nibble(x, true)));
        }
    }
}
VEC_INLINE void unpack5(int quads, const uint8_t *codes, const uint8_t *bits, Table table, uint8_t *out) {
    for (int q = 0; q < quads; q++) {
        for (int r = 0; r < 64; r += 32) {
            const Ints x = nibble(ints_load(codes + q / 2 * 64 + r), q % 2);
            const Ints bit = top_bit(ints_load(bits + q / 8 * 64 + r), q % 8);
            put(out + q * 64 + r,
                _mm256_blendv_epi8(_mm256_shuffle_epi8(table.of[0], x), _mm256_shuffle_epi8(table.of[1], x), bit));
        }
    }
}
VEC_INLINE void unpack6(int quads, const uint8_t *codes, const uint8_t *pairs, Table table, uint8_t *out) {
    for (int q = 0; q < quads; q++) {
        for (int r = 0; r < 64; r += 32) {
            const Ints x = nibble(ints_load(codes + q / 2 * 64 + r), q % 2), pair = ints_load(pairs + q / 4 * 64 + r);
            const Ints low = top_bit(pair, q % 4 * 2), high = top_bit(pair, q % 4 * 2 + 1);
            const Ints zero =
                _mm256_blendv_epi8(_mm256_shuffle_epi8(table.of[0], x), _mm256_shuffle_epi8(table.of[1], x), low);
            const Ints one =
                _mm256_blendv_epi8(_mm256_shuffle_epi8(table.of[2], x), _mm256_shuffle_epi8(table.of[3], x), low);
            put(out + q * 64 + r, _mm256_blendv_epi8(zero, one, high));
        }
    }
}
VEC_INLINE void unpack3(int quads, const uint8_t *pairs, const uint8_t *bits, Table table, uint8_t *out) {
    const Ints three = _mm256_set1_epi8(3), four = _mm256_set1_epi8(4);
    for (int q = 0; q < quads; q += 4) {
        for (int r = 0; r < 64; r += 32) {
            Ints plane = ints_load(pairs + q * 16 + r);
            const Ints third = ints_load(bits + q / 8 * 64 + r);
            for (int n = 0; n < 4; n++) {
                const int bit = q % 8 + n; /* to become the third */
                const Ints top =
                    bit < 2 ? _mm256_slli_epi16(third, 2 - bit) : _mm256_srl_epi16(third, _mm_cvtsi32_si128(bit - 2));
                const Ints index = _mm256_or_si256(_mm256_and_si256(plane, three), _mm256_and_si256(top, four));
                put(out + (q + n) * 64 + r, _mm256_shuffle_epi8(table.of[0], index));
                plane = _mm256_srli_epi16(plane, 2);
            }
        }
    }
}
VEC_INLINE void unpack8(int quads, const uint8_t *codes, bool values, uint8_t *out) {
    const Ints flip = _mm256_set1_epi8((char)0x80);
    for (int q = 0; q < quads; q++) {
        for (int r = 0; r < 64; r += 32) put(out + q * 64 + r, _mm256_xor_si256(ints_load(codes + q * 64 + r), flip));
    }
}

VEC_INLINE Vec vec_from_ints(const int32_t *p) {
    return (Vec){_mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(const void *)p)),
        _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p + 8)))};
}
VEC_INLINE Vec vec_load_f16(const uint8_t *p) {
    return (Vec){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
        _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 16)))};
}
VEC_INLINE void vec_store_bytes(void *p, Vec x) {
    const __m256i words =
        _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)), 0xD8);
    const __m256i low = _mm256_and_si256(words, _mm256_set1_epi16(0xFF));
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, low), 0xD8);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(bytes));
}

#endif
