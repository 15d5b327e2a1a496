/* Products with AVX2, in the order that linear.h defines.
 *
 * few(): lanes are groups, 8 at a time. tile(): lanes are weight rows of an unpacked panel.
 * VPMADDUBSW adds two products of u8 × s8 in 16 bits with saturation, so codes are kept small enough that it never
 * occurs: with codes to 15 eight of its results fit in one sum, to 31 four, to 63 two; 8-bit codes are split or
 * widened. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/linear_avx2.h"

enum { BLOCK_GROUPS = 8, PANEL = 16, TILE = 4 };

/* ---- activations ---- */

INLINE int add_epi32(__m256i v) {
    __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}

INLINE float largest(const float *values, int group) {
    __m256i most = _mm256_setzero_si256(); /* as integers, so that NaN is the largest */
    for (int i = 0; i < group; i += 8)
        most = _mm256_max_epu32(
            most, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(values + i)), _mm256_set1_epi32(0x7fffffff)));
    __m128i a = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0x4e));
    a = _mm_max_epu32(a, _mm_shuffle_epi32(a, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(a));
}

static void quantise(const float *x, int64_t cols, int group, int8_t *q, float *scales, float *sums) {
    const int64_t padded = linear_stride(cols, group);
    for (int64_t g = 0; g < cols / group; g++) {
        const float *values = x + g * group;
        int8_t *out = q + g * group;
        const float most = largest(values, group);
        if (!(most >= 1e-30f && most < INFINITY)) {
            memset(out, 0, (size_t)group);
            scales[g] = sums[g] = most < 1e-30f ? 0 : NAN;
            continue;
        }
        const __m256 inverse = _mm256_set1_ps(127.0f / most);
        __m256i sum = _mm256_setzero_si256();
        for (int i = 0; i < group; i += 16) {
            __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values + i), inverse));
            __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values + i + 8), inverse));
            sum = _mm256_add_epi32(sum, _mm256_add_epi32(a, b));
            __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
            _mm_storeu_si128((__m128i *)(out + i),
                _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
        }
        scales[g] = most / 127.0f;
        sums[g] = scales[g] * (float)add_epi32(sum);
    }
    memset(q + cols, 0, (size_t)(padded - cols));
    const size_t extra = (size_t)((padded - cols) / group) * sizeof *scales;
    memset(scales + cols / group, 0, extra);
    memset(sums + cols / group, 0, extra);
}

static void arrange_panel(const int8_t *q, int64_t cols, int group, int8_t *out) {
    const __m128i split = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    for (int lane = 0; lane < LINEAR_LANES && lane < cols / group; lane++) {
        int8_t *to = out + linear_panel_place(lane, cols / group) * group * TILE;
        for (int64_t g = lane; g < cols / group; g += LINEAR_LANES)
            for (int i = 0; i < group; i += 16, to += 16 * TILE) {
                const __m128i v = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(q + g * group + i)), split);
                const int fours[4] = {
                    _mm_cvtsi128_si32(v), _mm_extract_epi32(v, 1), _mm_extract_epi32(v, 2), _mm_extract_epi32(v, 3)};
                for (int j = 0; j < 4; j++) memcpy(to + 4 * TILE * j, &fours[j], 4);
            }
    }
}

static void arrange(LinearLayout layout, const int8_t *q, int64_t cols, int group, int8_t *out) {
    if (layout == LAYOUT_PANEL) {
        arrange_panel(q, cols, group, out);
        return;
    }
    const int64_t size = linear_stride(cols, group);
    if (layout == LAYOUT_PLANES2) {
        const __m256i split = _mm256_set1_epi16(0xff);
        for (int64_t i = 0; i < size; i += 64) {
            __m256i a = _mm256_loadu_si256((const __m256i *)(q + i)),
                    b = _mm256_loadu_si256((const __m256i *)(q + i + 32));
            __m256i even = _mm256_packus_epi16(_mm256_and_si256(a, split), _mm256_and_si256(b, split));
            __m256i odd = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
            _mm256_storeu_si256((__m256i *)(out + i), _mm256_permute4x64_epi64(even, 0xd8));
            _mm256_storeu_si256((__m256i *)(out + i + 32), _mm256_permute4x64_epi64(odd, 0xd8));
        }
        return;
    }
    const __m128i planes = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int64_t i = 0; i < size; i += 128)
        for (int v = 0; v < 8; v++) {
            __m128i a = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(q + i + 16 * v)), planes);
            for (int plane = 0; plane < 4; plane++, a = _mm_srli_si128(a, 4)) {
                int four = _mm_cvtsi128_si32(a);
                memcpy(out + i + 32 * plane + 4 * v, &four, 4);
            }
        }
}

/* ---- a few activation rows ---- */

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
    for (int j = 0; j < k.planes; j++) {
        code[j] = _mm256_and_si256(j ? _mm256_srli_epi16(v, j * k.bits) : v, low);
        if (k.coded) code[j] = e2m1_codes(code[j]);
    }
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++) {
        __m256i words = _mm256_maddubs_epi16(code[0], load_q(q + t * f->stride));
#pragma GCC unroll 4
        for (int j = 1; j < k.planes; j++)
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
    if (k.planes > 1) {
        few_planes(f, load_once(block + 32 * i), q + i * k.planes * 32, k, rows, part);
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
INLINE int lanes_of(const Kind k) { return k.planes > 1 ? k.group / (4 * k.planes) : k.group == 16 ? 4 : 8; }

INLINE void few_prefetch_scales(const uint8_t *scales, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch((const char *)scales + SCALES_AHEAD + i, _MM_HINT_T0);
}

/* Where a block from v may be read: spread() reads more than its codes take. */
INLINE const uint8_t *few_block(const Few *f, const uint8_t *v, const Kind k, uint8_t *copy) {
    if (k.planes > 1 || k.bits == 8 || f->end - v >= k.group * k.bits + 16) return v;
    const int64_t left = f->end - v;
    return memcpy(copy, v, (size_t)(left < k.group * k.bits ? left : k.group * k.bits));
}

/* The float part of 8 groups from group_index; count of them exist. part: as few_vector() left it. */
INLINE void few_finish(const Few *f, const Weight *w, const uint8_t *scales, const uint8_t *biases, int64_t bytes,
    int64_t group_index, int64_t count, const Kind k, const int rows, __m256i part[][FEW_SINGLE],
    __m256 acc[FEW_SINGLE]) {
    const int lanes = lanes_of(k);
    const int most = (k.coded ? 24 : (1 << k.bits) - 1) * 127 * (k.planes > 1 ? 2 * k.planes : k.group == 64 ? 8 : 4);
    __m256 s, b;
    load_scales(w, scales, biases, bytes, group_index, count, &s, &b);
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++) {
        const int64_t at = t * f->scale_stride + group_index;
        __m256i v[8];
#pragma GCC unroll 8
        for (int i = 0; i < lanes; i++) v[i] = part[i][t];
        __m256 sd = _mm256_mul_ps(s, _mm256_loadu_ps(f->scales + at));
        const __m256i sums = k.planes > 1 ? add_word_groups(v, lanes, most) : add_groups(v, lanes, most);
        acc[t] = _mm256_fmadd_ps(sd, _mm256_cvtepi32_ps(sums), acc[t]);
        acc[t] = _mm256_fmadd_ps(b, _mm256_loadu_ps(f->sums + at), acc[t]);
    }
}

/* The rest of add_tree() of 8 vectors at once, which is shorter than one after the other. */
INLINE __m256 add_trees(const __m256 v[8]) {
    const __m256i order = _mm256_setr_epi32(0, 2, 1, 3, 4, 6, 5, 7);
    __m256 a[4], b[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        a[i] =
            _mm256_add_ps(_mm256_permute2f128_ps(v[i], v[i + 4], 0x20), _mm256_permute2f128_ps(v[i], v[i + 4], 0x31));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const __m256d x = _mm256_castps_pd(a[i]), y = _mm256_castps_pd(a[i + 2]);
        b[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
    }
    const __m256 sums = _mm256_add_ps(_mm256_shuffle_ps(b[0], b[1], 0x88), _mm256_shuffle_ps(b[0], b[1], 0xdd));
    return _mm256_permutevar8x32_ps(sums, order);
}

INLINE void few_rows(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride, const Quant quant,
    const Kind k, const int rows) {
    const int block_bytes = k.group * k.bits, lanes = lanes_of(k);
    Weight w = *f->w;
    w.quant = quant; /* now a constant */
    const size_t row_bytes = weight_row_bytes(f->w), scale_bytes = weight_scale_bytes(f->w);
    const int64_t whole = f->w->cols / k.group / 8 * 8;
    const uint8_t *p = (const uint8_t *)f->w->data + (size_t)first * row_bytes;
    const uint8_t *scales = (const uint8_t *)f->w->scales + (size_t)first * scale_bytes;
    const uint8_t *biases = f->w->biases ? (const uint8_t *)f->w->biases + (size_t)first * scale_bytes : NULL;
    __m256 done[FEW_SINGLE][8]; /* of up to 8 rows */
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
            prefetch(v, block_bytes);
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
                    prefetch(v + i * (block_bytes / lanes), block_bytes / lanes);
                    few_vector(f, block, q, i, k, rows, part[i]);
                } else if (i == f->tail_vectors && f->tail_bytes) {
                    uint8_t part_of[32] = {0};
                    memcpy(part_of, v + i * 32, (size_t)f->tail_bytes);
                    few_planes(
                        f, _mm256_loadu_si256((const __m256i *)part_of), q + i * k.planes * 32, k, rows, part[i]);
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

typedef void FewRows(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride);
#define FEW_ROWS(name, quant, bits, group, planes, rows)                                                               \
    static void name##_##rows(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride) {                \
        few_rows(f, first, count, y, y_stride, quant, (Kind){bits, group, !quant_is_affine(quant), planes}, rows);     \
    }
#define FEW_KIND(name, quant, bits, group, planes)                                                                     \
    FEW_ROWS(name, quant, bits, group, planes, 1)                                                                      \
    FEW_ROWS(name, quant, bits, group, planes, 2)                                                                      \
    static FewRows *const name[FEW_SINGLE] = {name##_1, name##_2};
FEW_KIND(few_2_32, QUANT_AFFINE, 2, 32, 4)
FEW_KIND(few_2_64, QUANT_AFFINE, 2, 64, 4)
FEW_KIND(few_3_32, QUANT_AFFINE, 3, 32, 1)
FEW_KIND(few_3_64, QUANT_AFFINE, 3, 64, 1)
FEW_KIND(few_4_32, QUANT_AFFINE, 4, 32, 2)
FEW_KIND(few_4_64, QUANT_AFFINE, 4, 64, 2)
FEW_KIND(few_5_32, QUANT_AFFINE, 5, 32, 1)
FEW_KIND(few_5_64, QUANT_AFFINE, 5, 64, 1)
FEW_KIND(few_6_32, QUANT_AFFINE, 6, 32, 1)
FEW_KIND(few_6_64, QUANT_AFFINE, 6, 64, 1)
FEW_KIND(few_8_32, QUANT_AFFINE, 8, 32, 1)
FEW_KIND(few_8_64, QUANT_AFFINE, 8, 64, 1)
FEW_KIND(few_symmetric_4, QUANT_SYMMETRIC, 4, 32, 2)
FEW_KIND(few_symmetric_5, QUANT_SYMMETRIC, 5, 32, 1)
FEW_KIND(few_symmetric_8, QUANT_SYMMETRIC, 8, 32, 1)
FEW_KIND(few_k_4, QUANT_K, 4, 32, 2)
FEW_KIND(few_k_5, QUANT_K, 5, 32, 1)
FEW_KIND(few_k_symmetric, QUANT_K_SYMMETRIC, 6, 16, 1)
FEW_KIND(few_mxfp4, QUANT_MXFP4, 4, 32, 2)
FEW_KIND(few_nvfp4, QUANT_NVFP4, 4, 16, 2)

static FewRows *few_kernel(const Weight *w, int rows) {
    static FewRows *const *const AFFINE[9][2] = {
        [2] = {few_2_32, few_2_64},
        [3] = {few_3_32, few_3_64},
        [4] = {few_4_32, few_4_64},
        [5] = {few_5_32, few_5_64},
        [6] = {few_6_32, few_6_64},
        [8] = {few_8_32, few_8_64},
    };
    static FewRows *const *const SYMMETRIC[9] = {[4] = few_symmetric_4, [5] = few_symmetric_5, [8] = few_symmetric_8};
    static FewRows *const *const K[9] = {[4] = few_k_4, [5] = few_k_5};
    switch (w->quant) {
    case QUANT_SYMMETRIC: return SYMMETRIC[w->bits][rows - 1];
    case QUANT_K: return K[w->bits][rows - 1];
    case QUANT_K_SYMMETRIC: return few_k_symmetric[rows - 1];
    case QUANT_MXFP4: return few_mxfp4[rows - 1];
    case QUANT_NVFP4: return few_nvfp4[rows - 1];
    default: return AFFINE[w->bits][w->group > 32][rows - 1];
    }
}

static LinearLayout layout(const Weight *w) {
    return w->bits == 4 ? LAYOUT_PLANES2 : w->bits == 2 ? LAYOUT_PLANES4 : LAYOUT_NATURAL;
}

static void few(
    const Weight *w, int64_t first, int64_t count, const LinearInput *x, int rows, float *y, int64_t stride) {
    const int64_t left = w->cols % (x->group * BLOCK_GROUPS), bytes = left * w->bits / 8;
    const bool planes = w->bits == 4 || w->bits == 2;
    const int groups = (int)(left / x->group);
    const Few f = {w, x->q[layout(w)], x->scales, x->sums, x->stride, x->stride / x->group,
        (const uint8_t *)w->data + (size_t)w->rows * weight_row_bytes(w), groups, planes ? (int)(bytes / 32) : groups,
        planes ? (int)(bytes % 32) : 0, rows};
    (rows > FEW_SINGLE ? linear_block_avx2 : few_kernel(w, rows))(&f, first, count, y, stride);
}

/* ---- panels ---- */

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

static void unpack(const Weight *w, int64_t first, LinearPanel *panel) {
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

/* sums += the products of `steps` × 4 columns; fresh: there is nothing in them yet. */
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

static void tile_any(const LinearPanel *panel, const LinearInput *x, int64_t first, int rows, float *y) {
    const int most = panel->code_max;
    Tile *const *kind = most <= 15 ? tile_15 : most <= 31 ? tile_31 : most <= 63 ? tile_63 : tile_255;
    kind[rows - 1](panel, x, first, y);
}

const LinearKernels linear_kernels_avx2 = {
    .quantise = quantise,
    .arrange = arrange,
    .few = few,
    .layout = layout,
    .panel_rows = PANEL,
    .tile_rows = TILE,
    .unpack = unpack,
    .tile = tile_any,
    .plain = linear_plain_avx2,
};
