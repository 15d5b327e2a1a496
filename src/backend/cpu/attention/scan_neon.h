/* Scans on NEON: sdot, signed by signed, so weights have seven bits. */
#pragma once

typedef int32x4_t Ints;
enum { INT_LANES = 4, SCAN_TILE = 5, TILE_REGS = 4, TOGETHER = 1, KEYS_UNSIGNED = false };
VEC_INLINE int direct_most(KvForm form) { return 10; }
VEC_INLINE int key_offset(KvForm form) { return 0; }
VEC_INLINE int query_most(KvForm form) { return 127; }
VEC_INLINE int weight_most(KvForm form) { return 126; }
VEC_INLINE Ints ints_zero(void) { return vdupq_n_s32(0); }
VEC_INLINE Ints ints_load(const uint8_t *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
VEC_INLINE void ints_keep(Ints *x) { __asm__ volatile("" : "+w"(*x)); } /* keeps the value in a register */
VEC_INLINE void ints_store(void *p, Ints x) { vst1q_u8(p, vreinterpretq_u8_s32(x)); }
VEC_INLINE Ints ints_four(const void *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vdupq_n_s32(four);
}
VEC_INLINE Ints ints_flip(Ints x) { return vreinterpretq_s32_u8(veorq_u8(vreinterpretq_u8_s32(x), vdupq_n_u8(0x80))); }
VEC_INLINE Ints ints_right(Ints x, int n) {
    return vreinterpretq_s32_u8(vshlq_u8(vreinterpretq_u8_s32(x), vdupq_n_s8((int8_t)-n)));
}
/* mask ? a : b */
VEC_INLINE Ints bits_of(uint8_t mask, Ints a, Ints b) {
    return vreinterpretq_s32_u8(vbslq_u8(vdupq_n_u8(mask), vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(b)));
}
VEC_INLINE Ints ints_dot(bool wide, bool values, Ints sum, Ints codes, Ints x) {
    return vdotq_s32(sum, vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(x));
}
VEC_INLINE Ints ints_dot2(bool values, Ints sum, Ints codes, Ints x, Ints other_codes, Ints other_x) {
    return ints_dot(false, values, ints_dot(false, values, sum, codes, x), other_codes, other_x);
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
VEC_INLINE Ints look_up(const int levels, const Table *table, Ints index) {
    const uint8x16_t i = vandq_u8(vreinterpretq_u8_s32(index), vdupq_n_u8((uint8_t)(levels - 1)));
    if (levels <= 16) return vreinterpretq_s32_u8(vqtbl1q_u8(table->t.val[0], i));
    if (levels == 32) return vreinterpretq_s32_u8(vqtbl2q_u8((uint8x16x2_t){{table->t.val[0], table->t.val[1]}}, i));
    return vreinterpretq_s32_u8(vqtbl4q_u8(table->t, i));
}

VEC_INLINE Vec vec_from_ints(const int32_t *p) { VEC_EACH(vcvtq_f32_s32(vld1q_s32(p + 4 * i))); }
VEC_INLINE Vec vec_load_f16(const uint8_t *p) { VEC_EACH(vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i)))); }
VEC_INLINE int16x8_t vec_words(Vec x, int i) {
    return vcombine_s16(vmovn_s32(vcvtnq_s32_f32(x.v[i])), vmovn_s32(vcvtnq_s32_f32(x.v[i + 1])));
}
/* Whole numbers of an int8. */
VEC_INLINE void vec_store_bytes(void *p, Vec x) {
    vst1q_s8(p, vcombine_s8(vmovn_s16(vec_words(x, 0)), vmovn_s16(vec_words(x, 2))));
}
/* Whole numbers as integers: the nearest to x, differences, and 64 that fit a uint8. */
typedef struct Wholes {
    int32x4_t v[4];
} Wholes;
VEC_INLINE Wholes wholes_of(Vec x) {
    Wholes out;
    for (int i = 0; i < 4; i++) out.v[i] = vcvtnq_s32_f32(x.v[i]);
    return out;
}
VEC_INLINE Wholes wholes_less(Wholes a, Wholes b) {
    for (int i = 0; i < 4; i++) a.v[i] = vsubq_s32(a.v[i], b.v[i]);
    return a;
}
VEC_INLINE Vec vec_of_wholes(Wholes x) { VEC_EACH(vcvtq_f32_s32(x.v[i])); }
VEC_INLINE void wholes_store_bytes(uint8_t *p, const Wholes x[4]) {
    for (int i = 0; i < 4; i++) {
        const int16x8_t low = vcombine_s16(vmovn_s32(x[i].v[0]), vmovn_s32(x[i].v[1])),
                        high = vcombine_s16(vmovn_s32(x[i].v[2]), vmovn_s32(x[i].v[3]));
        vst1q_s8((int8_t *)p + 16 * i, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    }
}
/* x − ⌊x⌋, and ⌊x⌋ for vec_raise. */
VEC_INLINE Vec vec_fraction(Vec x, Vec *whole) {
    for (int i = 0; i < 4; i++) whole->v[i] = vrndmq_f32(x.v[i]);
    return vec_sub(x, *whole);
}
/* a · 2ⁿ for ½ < a < 2 and whole −125 ≤ n ≤ 0 */
VEC_INLINE Vec vec_raise(Vec a, Vec n) { return vec_scale2(a, n); }
