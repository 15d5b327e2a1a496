/* Sixteen floats at once, whatever the register width: one zmm, two ymm or four NEON registers. Included by files
 * compiled for one instruction set, so that the same source gives the same arithmetic, element by element, on each. */
#pragma once
#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include "backend/cpu/trees_avx512.h"
#endif

#define VEC_INLINE static inline __attribute__((always_inline))

/* Prefetches into the second-level cache: the first has no room for data that far ahead. */
#if defined(__aarch64__)
VEC_INLINE void prefetch(const void *p) { __builtin_prefetch(p, 0, 2); }
#else
VEC_INLINE void prefetch(const void *p) { _mm_prefetch(p, _MM_HINT_T1); }
#endif

#if defined(__aarch64__)

typedef struct Vec {
    float32x4_t v[4];
} Vec;
typedef struct Mask {
    uint32x4_t v[4];
} Mask;
#define VEC_EACH(expression)                                                                                           \
    Vec out;                                                                                                           \
    for (int i = 0; i < 4; i++) out.v[i] = (expression);                                                               \
    return out
VEC_INLINE Vec vec_load(const float *p) { VEC_EACH(vld1q_f32(p + 4 * i)); }
VEC_INLINE void vec_store(float *p, Vec x) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, x.v[i]);
}
VEC_INLINE Vec vec_set(float x) { VEC_EACH(vdupq_n_f32(x)); }
VEC_INLINE Vec vec_add(Vec x, Vec y) { VEC_EACH(vaddq_f32(x.v[i], y.v[i])); }
VEC_INLINE Vec vec_sub(Vec x, Vec y) { VEC_EACH(vsubq_f32(x.v[i], y.v[i])); }
VEC_INLINE Vec vec_mul(Vec x, Vec y) { VEC_EACH(vmulq_f32(x.v[i], y.v[i])); }
VEC_INLINE Vec vec_div(Vec x, Vec y) { VEC_EACH(vdivq_f32(x.v[i], y.v[i])); }
VEC_INLINE Vec vec_fma(Vec x, Vec y, Vec z) { VEC_EACH(vfmaq_f32(z.v[i], x.v[i], y.v[i])); }
/* As on x86, y where either is NaN. */
VEC_INLINE float32x4_t max_quarter(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
VEC_INLINE Vec vec_max(Vec x, Vec y) { VEC_EACH(max_quarter(x.v[i], y.v[i])); }
VEC_INLINE Vec vec_round(Vec x) { VEC_EACH(vrndnq_f32(x.v[i])); }
VEC_INLINE float32x4_t scale_quarter(float32x4_t x, float32x4_t n) {
    const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}
VEC_INLINE Vec vec_scale2(Vec x, Vec n) { VEC_EACH(scale_quarter(x.v[i], n.v[i])); }
VEC_INLINE Mask mask_less(Vec x, Vec y) {
    Mask out;
    for (int i = 0; i < 4; i++) out.v[i] = vcltq_f32(x.v[i], y.v[i]);
    return out;
}
VEC_INLINE Mask mask_range(int from, int to) {
    static const int32_t first[4] = {0, 1, 2, 3};
    Mask out;
    for (int i = 0; i < 4; i++) {
        const int32x4_t lane = vaddq_s32(vld1q_s32(first), vdupq_n_s32(4 * i));
        out.v[i] = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(from)), vcltq_s32(lane, vdupq_n_s32(to)));
    }
    return out;
}
VEC_INLINE Vec vec_select(Mask m, Vec yes, Vec no) { VEC_EACH(vbslq_f32(m.v[i], yes.v[i], no.v[i])); }
VEC_INLINE Vec vec_load_some(const float *p, int count) {
    float padded[16] = {0};
    memcpy(padded, p, (size_t)(count < 16 ? count : 16) * sizeof *p);
    return vec_load(padded);
}
VEC_INLINE void vec_store_some(float *p, Vec v, int count) {
    float padded[16];
    vec_store(padded, v);
    memcpy(p, padded, (size_t)(count < 16 ? count : 16) * sizeof *p);
}
VEC_INLINE void vec_store_f16(uint16_t *p, Vec x) {
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
VEC_INLINE float vec_first(Vec x) { return vgetq_lane_f32(x.v[0], 0); }

/* Two registers: the tiles are made of eights, and sixteen pairs fill the register file. */
typedef struct Reg {
    float32x4_t a, b;
} Reg;
enum { REG_LANES = 8 };
VEC_INLINE Reg reg_set(float x) { return (Reg){vdupq_n_f32(x), vdupq_n_f32(x)}; }
VEC_INLINE Reg reg_zero(void) { return reg_set(0); }
VEC_INLINE Reg reg_load(const float *p) { return (Reg){vld1q_f32(p), vld1q_f32(p + 4)}; }
VEC_INLINE void reg_store(float *p, Reg r) {
    vst1q_f32(p, r.a);
    vst1q_f32(p + 4, r.b);
}
VEC_INLINE Reg reg_fma(Reg x, Reg y, Reg z) { return (Reg){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)}; }
VEC_INLINE Reg reg_load_f16(const uint16_t *p) {
    const uint16x8_t v = vld1q_u16(p);
    return (Reg){
        vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(v))), vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(v)))};
}
VEC_INLINE Reg reg_load_bf16(const uint16_t *p) {
    const uint16x8_t v = vld1q_u16(p);
    return (Reg){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(v), 16)),
        vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(v), 16))};
}

#elif defined(__AVX512F__)

typedef __m512 Vec;
typedef __mmask16 Mask;
VEC_INLINE Vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
VEC_INLINE void vec_store(float *p, Vec v) { _mm512_storeu_ps(p, v); }
VEC_INLINE Vec vec_set(float x) { return _mm512_set1_ps(x); }
VEC_INLINE Vec vec_add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
VEC_INLINE Vec vec_sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
VEC_INLINE Vec vec_mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
VEC_INLINE Vec vec_div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
VEC_INLINE Vec vec_fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
VEC_INLINE Vec vec_max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
VEC_INLINE Vec vec_round(Vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* a · 2ⁿ for whole −126 ≤ n ≤ 127 */
VEC_INLINE Vec vec_scale2(Vec a, Vec n) { return _mm512_scalef_ps(a, n); }
VEC_INLINE Mask mask_less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
VEC_INLINE Mask mask_range(int from, int to) { /* lanes from ≤ i < to, clamped */
    from = from < 0 ? 0 : from > 16 ? 16 : from;
    to = to < from ? from : to > 16 ? 16 : to;
    return (Mask)(((1u << to) - 1) & ~((1u << from) - 1));
}
VEC_INLINE Vec vec_select(Mask m, Vec yes, Vec no) { return _mm512_mask_blend_ps(m, no, yes); }
VEC_INLINE Vec vec_load_some(const float *p, int count) { return _mm512_maskz_loadu_ps(mask_range(0, count), p); }
VEC_INLINE void vec_store_some(float *p, Vec v, int count) { _mm512_mask_storeu_ps(p, mask_range(0, count), v); }
VEC_INLINE void vec_store_f16(uint16_t *p, Vec v) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
VEC_INLINE float vec_first(Vec v) { return _mm512_cvtss_f32(v); }
VEC_INLINE __m256 vec_low(Vec v) { return _mm512_castps512_ps256(v); }
VEC_INLINE __m256 vec_high(Vec v) { return _mm512_extractf32x8_ps(v, 1); }

/* A register, for kernels whose shape depends on how many there are. */
typedef __m512 Reg;
enum { REG_LANES = 16 };
VEC_INLINE Reg reg_zero(void) { return _mm512_setzero_ps(); }
VEC_INLINE Reg reg_set(float x) { return _mm512_set1_ps(x); }
VEC_INLINE Reg reg_load(const float *p) { return _mm512_loadu_ps(p); }
VEC_INLINE void reg_store(float *p, Reg r) { _mm512_storeu_ps(p, r); }
VEC_INLINE Reg reg_fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
VEC_INLINE Reg reg_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
VEC_INLINE Reg reg_load_bf16(const uint16_t *p) {
    const __m512i halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(halves, 16));
}

#else

typedef struct Vec {
    __m256 a, b;
} Vec;
typedef Vec Mask;
VEC_INLINE Vec vec_load(const float *p) { return (Vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
VEC_INLINE void vec_store(float *p, Vec v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
VEC_INLINE Vec vec_set(float x) { return (Vec){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
VEC_INLINE Vec vec_add(Vec x, Vec y) { return (Vec){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
VEC_INLINE Vec vec_sub(Vec x, Vec y) { return (Vec){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
VEC_INLINE Vec vec_mul(Vec x, Vec y) { return (Vec){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
VEC_INLINE Vec vec_div(Vec x, Vec y) { return (Vec){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
VEC_INLINE Vec vec_fma(Vec x, Vec y, Vec z) {
    return (Vec){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
VEC_INLINE Vec vec_max(Vec x, Vec y) { return (Vec){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
VEC_INLINE Vec vec_round(Vec x) {
    return (Vec){_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
        _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
VEC_INLINE __m256 scale_half(__m256 x, __m256 n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
VEC_INLINE Vec vec_scale2(Vec x, Vec n) { return (Vec){scale_half(x.a, n.a), scale_half(x.b, n.b)}; }
VEC_INLINE Mask mask_less(Vec x, Vec y) {
    return (Mask){_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
VEC_INLINE __m256 range_half(int base, int from, int to) {
    const __m256i lane = _mm256_add_epi32(_mm256_set1_epi32(base), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_castsi256_ps(_mm256_andnot_si256(
        _mm256_cmpgt_epi32(_mm256_set1_epi32(from), lane), _mm256_cmpgt_epi32(_mm256_set1_epi32(to), lane)));
}
VEC_INLINE Mask mask_range(int from, int to) { return (Mask){range_half(0, from, to), range_half(8, from, to)}; }
VEC_INLINE Vec vec_select(Mask m, Vec yes, Vec no) {
    return (Vec){_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}
VEC_INLINE Vec vec_load_some(const float *p, int count) {
    float padded[16] = {0};
    memcpy(padded, p, (size_t)(count < 16 ? count : 16) * sizeof *p);
    return vec_load(padded);
}
VEC_INLINE void vec_store_some(float *p, Vec v, int count) {
    float padded[16];
    vec_store(padded, v);
    memcpy(p, padded, (size_t)(count < 16 ? count : 16) * sizeof *p);
}
VEC_INLINE void vec_store_f16(uint16_t *p, Vec v) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT));
}
VEC_INLINE float vec_first(Vec v) { return _mm256_cvtss_f32(v.a); }
VEC_INLINE __m256 vec_low(Vec v) { return v.a; }
VEC_INLINE __m256 vec_high(Vec v) { return v.b; }

typedef __m256 Reg;
enum { REG_LANES = 8 };
VEC_INLINE Reg reg_zero(void) { return _mm256_setzero_ps(); }
VEC_INLINE Reg reg_set(float x) { return _mm256_set1_ps(x); }
VEC_INLINE Reg reg_load(const float *p) { return _mm256_loadu_ps(p); }
VEC_INLINE void reg_store(float *p, Reg r) { _mm256_storeu_ps(p, r); }
VEC_INLINE Reg reg_fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
VEC_INLINE Reg reg_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
VEC_INLINE Reg reg_load_bf16(const uint16_t *p) {
    const __m256i halves = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
}

#endif

/* Sums and maxima over the lanes, as a tree of halves. */
#if defined(__aarch64__)
VEC_INLINE float vec_sum(Vec x) {
    const float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
VEC_INLINE float vec_most(Vec x) {
    float32x4_t most = max_quarter(max_quarter(x.v[0], x.v[2]), max_quarter(x.v[1], x.v[3]));
    most = max_quarter(most, vextq_f32(most, most, 2));
    most = max_quarter(most, vextq_f32(most, most, 1));
    return vgetq_lane_f32(most, 0);
}
#else
VEC_INLINE float vec_sum(Vec v) {
    const __m256 eight = _mm256_add_ps(vec_low(v), vec_high(v));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
VEC_INLINE float vec_most(Vec v) {
    const __m256 eight = _mm256_max_ps(vec_low(v), vec_high(v));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
#endif

/* vec_sum() of 16 vectors. */
VEC_INLINE Vec vec_sums(float lanes[16][16]) {
#if defined(__AVX512F__)
    Vec v[16];
    for (int i = 0; i < 16; i++) v[i] = vec_load(lanes[i]);
    return tree_sums(v);
#else
    float sums[16];
    for (int i = 0; i < 16; i++) sums[i] = vec_sum(vec_load(lanes[i]));
    return vec_load(sums);
#endif
}

/* eˣ to about 2 ulp for x < 88; 0 below −87. x = n·ln2 + r, |r| ≤ ln2/2, Taylor polynomial of degree 6 in r. */
VEC_INLINE Vec vec_exp_falling(Vec x) {
    const Vec low = vec_set(-87.0f);
    const Mask under = mask_less(x, low);
    x = vec_select(under, low, x);
    const Vec n = vec_round(vec_mul(x, vec_set(1.44269504f)));
    Vec r = vec_fma(n, vec_set(-0.693359375f), x);
    r = vec_fma(n, vec_set(2.12194440e-4f), r);
    Vec p = vec_set(1.0f / 720);
    p = vec_fma(p, r, vec_set(1.0f / 120));
    p = vec_fma(p, r, vec_set(1.0f / 24));
    p = vec_fma(p, r, vec_set(1.0f / 6));
    p = vec_fma(p, r, vec_set(0.5f));
    p = vec_fma(p, r, vec_set(1));
    p = vec_fma(p, r, vec_set(1));
    return vec_select(under, vec_set(0), vec_scale2(p, n));
}

/* The same for any x; above 88 the value at 88. */
VEC_INLINE Vec vec_exp(Vec x) {
    const Vec high = vec_set(88.0f);
    return vec_exp_falling(vec_select(mask_less(high, x), high, x));
}

/* x · σ(argument) */
VEC_INLINE Vec vec_swish(Vec x, Vec argument) {
    return vec_div(x, vec_add(vec_set(1), vec_exp(vec_sub(vec_set(0), argument))));
}

/* tanh: near 0 by its continued fraction x/(1 + x²/(3 + x²/(5 + x²/7))), else 1 − 2/(e^2x + 1); to about 3e-7 of the
 * value. */
VEC_INLINE Vec vec_tanh(Vec x) {
    const Vec s = vec_mul(x, x), e = vec_exp(vec_add(x, x));
    const Vec far = vec_sub(vec_set(1), vec_div(vec_set(2), vec_add(e, vec_set(1))));
    const Vec over = vec_mul(x, vec_fma(vec_set(10), s, vec_set(105)));
    const Vec under = vec_fma(vec_add(s, vec_set(45)), s, vec_set(105));
    return vec_select(mask_less(s, vec_set(0.09f)), vec_div(over, under), far);
}

/* erfc x for x ≥ 0, to about 2e-6 of the value: t·exp(P(t) − x²) with t = 1/(1 + x/2), P fitted to 4e-8. */
VEC_INLINE Vec vec_erfc(Vec x) {
    static const float coefficients[] = {0.13808000f, -0.64341635f, 1.06847537f, -0.57853454f, -0.17779966f,
        0.05312869f, 0.01695947f, 0.39033037f, 0.99820364f, -1.26542687f};
    const Vec t = vec_div(vec_set(1), vec_fma(x, vec_set(0.5f), vec_set(1)));
    Vec p = vec_set(coefficients[0]);
    for (int i = 1; i < 10; i++) p = vec_fma(p, t, vec_set(coefficients[i]));
    return vec_mul(t, vec_exp_falling(vec_fma(vec_sub(vec_set(0), x), x, p)));
}

/* The first `lanes` of 16 numbers, all of them if there are more; the others are 0, or are not stored. */
VEC_INLINE Vec load_lanes(const float *p, int lanes) { return lanes >= 16 ? vec_load(p) : vec_load_some(p, lanes); }
VEC_INLINE void store_lanes(float *p, Vec v, int lanes) {
    if (lanes >= 16)
        vec_store(p, v);
    else
        vec_store_some(p, v, lanes);
}
