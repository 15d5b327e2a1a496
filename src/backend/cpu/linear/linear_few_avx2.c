/* Products of one or two activation rows with AVX2: lanes are groups, 8 at a time, and the weights are one stream. */
#include <string.h>

#include "backend/cpu/linear/linear_avx2.h"

enum { BLOCK_GROUPS = 8 };

/* Each 128-bit lane: the sums of the four elements of that lane of a, b, c, d, whose size is at most `most`. Small ones
 * are added as 16-bit pairs. */
INLINE __m256i add4(__m256i a, __m256i b, __m256i c, __m256i d, const int most) {
    const __m256i one = _mm256_set1_epi16(1);
    if (most > INT16_MAX) {
        __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
    }
    __m256i ab = _mm256_madd_epi16(_mm256_packs_epi32(a, b), one),
            cd = _mm256_madd_epi16(_mm256_packs_epi32(c, d), one);
    if (2 * most <= INT16_MAX) return _mm256_madd_epi16(_mm256_packs_epi32(ab, cd), one);
    __m256 x = _mm256_castsi256_ps(ab), y = _mm256_castsi256_ps(cd);
    return _mm256_add_epi32(
        _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)), _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd)));
}

/* 8 groups' sums in order from 8 vectors, each with the 8 partial sums of one; or from 4, each with 4 of two. */
INLINE __m256i add_groups(const __m256i *v, const int lanes, const int most) {
    if (lanes == 4)
        return _mm256_permutevar8x32_epi32(
            add4(v[0], v[1], v[2], v[3], most), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    __m256i a = add4(v[0], v[1], v[2], v[3], most), b = add4(v[4], v[5], v[6], v[7], most);
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

INLINE __m256i widen(__m256i words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }

/* The two halves of each 64-bit pair of words … of a, then of b, added: 128-bit lanes hold 4 words of a and 4 of b. */
INLINE __m256i add_quads(__m256i a, __m256i b) {
    return _mm256_add_epi16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}
INLINE __m256i add_halves(__m256i a, __m256i b) { /* a's two halves added, then b's */
    return _mm256_add_epi16(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}
INLINE __m256i add_pairs(__m256i a, __m256i b) { /* neighbours added; of a, then of b, in each 128-bit lane */
    const __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
    return _mm256_add_epi32(
        _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)), _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd)));
}

/* 8 groups' sums in order from `lanes` vectors of 16-bit sums of at most `most`, each with 2·lanes of 8/lanes groups.
 * Added as words while they fit, which spares the multipliers. */
INLINE __m256i add_word_groups(const __m256i *v, const int lanes, const int most) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    if (lanes == 2) return _mm256_permute4x64_epi64(add_pairs(widen(v[0]), widen(v[1])), 0xd8);
    if (lanes == 4) {
        const __m256i a = widen(add_quads(v[0], v[1])), b = widen(add_quads(v[2], v[3]));
        const bool fit = 4 * most <= INT16_MAX;
        return _mm256_permutevar8x32_epi32(fit ? widen(_mm256_packs_epi32(a, b)) : add_pairs(a, b), order);
    }
    __m256i half[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) half[i] = add_halves(v[2 * i], v[2 * i + 1]);
    const bool fit = 4 * most <= INT16_MAX;
    const __m256i a = fit ? widen(add_quads(half[0], half[1])) : add_pairs(widen(half[0]), widen(half[1]));
    const __m256i b = fit ? widen(add_quads(half[2], half[3])) : add_pairs(widen(half[2]), widen(half[3]));
    return _mm256_permutevar8x32_epi32(add_pairs(a, b), order);
}

INLINE __m256i load_q(const int8_t *q) { return _mm256_loadu_si256((const __m256i *)q); }

/* One load: gcc would read it again for each plane. */
INLINE __m256i load_once(const uint8_t *p) {
    __m256i v = _mm256_loadu_si256((const __m256i *)p);
    __asm__("" : "+x"(v));
    return v;
}

/* Products of 32 bytes of 4-bit or 2-bit codes, as words. */
INLINE void few_planes(
    const Few *f, __m256i v, const int8_t *q, const Kind k, const int rows, __m256i part[FEW_SINGLE]) {
    const __m256i low = _mm256_set1_epi8((char)((1 << k.bits) - 1));
    __m256i code[4];
#pragma GCC unroll 4
    for (int j = 0; j < planes_of(k); j++) {
        code[j] = _mm256_and_si256(j ? _mm256_srli_epi16(v, j * k.bits) : v, low);
        if (is_coded(k)) code[j] = e2m1_codes(code[j]);
    }
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++) {
        __m256i words = _mm256_maddubs_epi16(code[0], load_q(q + t * f->stride));
#pragma GCC unroll 4
        for (int j = 1; j < planes_of(k); j++)
            words = _mm256_add_epi16(words, _mm256_maddubs_epi16(code[j], load_q(q + t * f->stride + 32 * j)));
        part[t] = words;
    }
}

/* Products of 32 codes in order. */
INLINE void few_codes(
    const Few *f, const uint8_t *p, const int8_t *q, const Kind k, const int rows, __m256i part[FEW_SINGLE]) {
    if (k.bits == 8) {
        const __m256i low = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
        const __m256i high = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(p + 16)));
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++) {
            const __m128i *x = (const __m128i *)(q + t * f->stride);
            part[t] = _mm256_add_epi32(_mm256_madd_epi16(low, _mm256_cvtepi8_epi16(_mm_loadu_si128(x))),
                _mm256_madd_epi16(high, _mm256_cvtepi8_epi16(_mm_loadu_si128(x + 1))));
        }
        return;
    }
    const Spread s = spread_make(k.bits == 8 ? 6 : k.bits);
    const __m256i code = spread(&s, p, k.bits);
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++) part[t] = widen(_mm256_maddubs_epi16(code, load_q(q + t * f->stride)));
}

/* Vector i of a block: 32 bytes of planes, or in order 32 codes or one group of 64. */
INLINE void few_vector(const Few *f, const uint8_t *block, const int8_t *q, const int i, const Kind k, const int rows,
    __m256i part[FEW_SINGLE]) {
    if (planes_of(k) > 1) {
        few_planes(f, load_once(block + 32 * i), q + i * planes_of(k) * 32, k, rows, part);
        return;
    }
    const int codes = k.group == 64 ? 64 : 32;
    few_codes(f, block + i * codes * k.bits / 8, q + i * codes, k, rows, part);
    if (codes == 32) return;
    __m256i more[FEW_SINGLE];
    few_codes(f, block + i * codes * k.bits / 8 + 4 * k.bits, q + i * codes + 32, k, rows, more);
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++) part[t] = _mm256_add_epi32(part[t], more[t]);
}

/* Vectors of 8 groups. */
INLINE int lanes_of(const Kind k) { return planes_of(k) > 1 ? k.group / (4 * planes_of(k)) : k.group == 16 ? 4 : 8; }

/* Where a block from v may be read: spread() reads more than its codes take. */
INLINE const uint8_t *few_block(const Few *f, const uint8_t *v, const Kind k, uint8_t *copy) {
    if (planes_of(k) > 1 || k.bits == 8 || f->end - v >= k.group * k.bits + 16) return v;
    const int64_t left = f->end - v;
    return memcpy(copy, v, (size_t)(left < k.group * k.bits ? left : k.group * k.bits));
}

/* The float part of 8 groups from group_index; count of them exist. part: as few_vector() left it. */
INLINE void few_finish(const Few *f, const Weight *w, const uint8_t *scales, const uint8_t *biases, int64_t bytes,
    int64_t group_index, int64_t count, const Kind k, const int rows, __m256i part[][FEW_SINGLE],
    __m256 acc[FEW_SINGLE]) {
    const int lanes = lanes_of(k);
    const int most = (is_coded(k) ? 24 : (1 << k.bits) - 1) * 127 *
        (planes_of(k) > 1       ? 2 * planes_of(k)
                : k.group == 64 ? 8
                                : 4);
    __m256 s, b;
    load_scales(w, scales, biases, bytes, group_index, count, &s, &b);
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++) {
        const int64_t at = t * f->scale_stride + group_index;
        __m256i v[8];
#pragma GCC unroll 8
        for (int i = 0; i < lanes; i++) v[i] = part[i][t];
        __m256 sd = _mm256_mul_ps(s, _mm256_loadu_ps(f->scales + at));
        const __m256i sums = planes_of(k) > 1 ? add_word_groups(v, lanes, most) : add_groups(v, lanes, most);
        acc[t] = _mm256_fmadd_ps(sd, _mm256_cvtepi32_ps(sums), acc[t]);
        acc[t] = _mm256_fmadd_ps(b, _mm256_loadu_ps(f->sums + at), acc[t]);
    }
}

INLINE void few_rows(
    const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride, const Kind k, const int rows) {
    const int block_bytes = k.group * k.bits, lanes = lanes_of(k);
    Weight w = *f->w;
    w.quant = k.quant; /* now a constant */
    const size_t row_bytes = weight_row_bytes(f->w), scale_bytes = weight_scale_bytes(f->w);
    const int64_t whole = f->w->cols / k.group / 8 * 8;
    const uint8_t *p = (const uint8_t *)f->w->data + (size_t)first * row_bytes;
    const uint8_t *scales = (const uint8_t *)f->w->scales + (size_t)first * scale_bytes;
    const uint8_t *biases = f->w->biases ? (const uint8_t *)f->w->biases + (size_t)first * scale_bytes : NULL;
    __m256 done[FEW_SINGLE][8]; /* finished lanes of up to 8 rows */
    uint8_t copy[64 * 6 + 16];
    for (int64_t r = 0; r < count; r++) {
        __m256 acc[FEW_SINGLE], other[FEW_SINGLE]; /* the lanes of even and odd blocks, exchanged after each */
        __m256i part[8][FEW_SINGLE];
        const int64_t bytes = (f->w->rows - first - r) * (int64_t)scale_bytes;
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++) acc[t] = other[t] = _mm256_setzero_ps();
        const uint8_t *v = p;
        const int8_t *q = f->q;
        few_prefetch_scales(scales, scale_bytes);
        if (biases) few_prefetch_scales(biases, scale_bytes);
        for (int64_t g = 0; g < whole; g += 8, v += block_bytes, q += 8 * k.group) {
            prefetch(v, FAR_BYTES, block_bytes);
            const uint8_t *block = few_block(f, v, k, copy);
#pragma GCC unroll 8
            for (int i = 0; i < lanes; i++) few_vector(f, block, q, i, k, rows, part[i]);
            few_finish(f, &w, scales, biases, bytes, g, 8, k, rows, part, acc);
#pragma GCC unroll 4
            for (int t = 0; t < rows; t++) {
                const __m256 next = other[t];
                other[t] = acc[t];
                acc[t] = next;
            }
        }
        if (f->tail_groups > 0) {
            const uint8_t *block = few_block(f, v, k, copy);
#pragma GCC unroll 8
            for (int i = 0; i < lanes; i++) {
                if (i < f->tail_vectors) {
                    prefetch(v + i * (block_bytes / lanes), FAR_BYTES, block_bytes / lanes);
                    few_vector(f, block, q, i, k, rows, part[i]);
                } else if (i == f->tail_vectors && f->tail_bytes) {
                    uint8_t part_of[32] = {0};
                    memcpy(part_of, v + i * 32, (size_t)f->tail_bytes);
                    few_planes(
                        f, _mm256_loadu_si256((const __m256i *)part_of), q + i * planes_of(k) * 32, k, rows, part[i]);
                } else {
#pragma GCC unroll 4
                    for (int t = 0; t < rows; t++) part[i][t] = _mm256_setzero_si256();
                }
            }
            few_finish(f, &w, scales, biases, bytes, whole, f->tail_groups, k, rows, part, acc);
        }
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++) done[t][r % 8] = _mm256_add_ps(acc[t], other[t]);
        if (r % 8 == 7 || r == count - 1)
#pragma GCC unroll 4
            for (int t = 0; t < rows; t++)
                _mm256_maskstore_ps(y + t * y_stride + r / 8 * 8, first_lanes(r % 8 + 1), add_trees(done[t]));
        p += row_bytes;
        scales += scale_bytes;
        if (biases) biases += scale_bytes;
    }
}

FEW_KERNELS(few_rows, 1)
FEW_KERNELS(few_rows, 2)

/* Up to how many activation rows: unpacking 6 bits takes so long that two share it. */
static int single_rows(const Weight *w) { return w->bits == 6 ? 1 : FEW_SINGLE; }

LinearLayout linear_layout_avx2(const Weight *w, int rows) {
    if (rows > single_rows(w)) {
        if (w->bits == 2 || w->bits == 6) return LAYOUT_GROUPS4;
        return w->bits == 4 ? LAYOUT_GROUPS2 : LAYOUT_GROUPS1;
    }
    return w->bits == 4 ? LAYOUT_PLANES2 : w->bits == 2 ? LAYOUT_PLANES4 : LAYOUT_NATURAL;
}

void linear_few_avx2(
    const Weight *w, int64_t first, int64_t count, const LinearInput *x, int rows, float *y, int64_t stride) {
    const int64_t left = w->cols % (x->group * BLOCK_GROUPS), bytes = left * w->bits / 8;
    const bool planes = w->bits == 4 || w->bits == 2;
    const int groups = (int)(left / x->group);
    Few f = {w, x->q[linear_layout_avx2(w, rows)], x->scales, x->sums, x->stride, x->stride / x->group,
        (const uint8_t *)w->data + (size_t)w->rows * weight_row_bytes(w), groups, planes ? (int)(bytes / 32) : groups,
        planes ? (int)(bytes % 32) : 0, rows};
    if (rows <= single_rows(w))
        (rows == 1 ? few_rows_1 : few_rows_2)[linear_kind(w)](&f, first, count, y, stride);
    else
        linear_block_avx2(&f, first, count, y, stride);
}
