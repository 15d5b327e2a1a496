/* Products of one or two activation rows with AVX-512 VNNI and VBMI: lanes are groups, and the weights are one stream.
 * VPDPBUSD leaves 2, 4, 8 or 16 partial sums per group; 16 groups are brought together by a transposing addition, and
 * one vector then carries 16 groups through the float part. */
#include <string.h>

#include "backend/cpu/linear/linear_avx512.h"

/* Vectors of codes that are added up: codes per byte, or eights; 1: codes in order. */
INLINE int planes_of(const Kind k) { return k.bits < 4 ? 4 : k.bits < 8 ? 2 : 1; }

/* Each 128-bit lane: the sums of the four elements of that lane of a, b, c, d, whose size is at most `most`. Small ones
 * are added as 16-bit pairs. */
INLINE __m512i add4(__m512i a, __m512i b, __m512i c, __m512i d, const int most) {
    const __m512i one = _mm512_set1_epi16(1);
    if (most > INT16_MAX) {
        __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    __m512i ab = _mm512_madd_epi16(_mm512_packs_epi32(a, b), one),
            cd = _mm512_madd_epi16(_mm512_packs_epi32(c, d), one);
    if (2 * most <= INT16_MAX) return _mm512_madd_epi16(_mm512_packs_epi32(ab, cd), one);
    __m512 x = _mm512_castsi512_ps(ab), y = _mm512_castsi512_ps(cd);
    return _mm512_add_epi32(
        _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)), _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
}

/* 16 groups' sums in order from `lanes` vectors, each with `lanes` partial sums of 16/lanes groups. */
INLINE __m512i add_groups(const __m512i *v, const int lanes, const int most) {
    if (lanes == 2) {
        const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
        if (most <= INT16_MAX)
            return _mm512_permutexvar_epi64(
                order, _mm512_madd_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_set1_epi16(1)));
        const __m512 a = _mm512_castsi512_ps(v[0]), b = _mm512_castsi512_ps(v[1]);
        const __m512i even = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88));
        return _mm512_permutexvar_epi64(
            order, _mm512_add_epi32(even, _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd))));
    }
    if (lanes == 4) {
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        return _mm512_permutexvar_epi32(order, add4(v[0], v[1], v[2], v[3], most));
    }
    __m512i low = add_lanes(add4(v[0], v[1], v[2], v[3], most), add4(v[4], v[5], v[6], v[7], most));
    if (lanes == 8) {
        const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
        return _mm512_permutexvar_epi32(order, low);
    }
    __m512i high = add_lanes(add4(v[8], v[9], v[10], v[11], most), add4(v[12], v[13], v[14], v[15], most));
    return add_lanes(low, high);
}

/* One load: gcc would read v again for each plane. 8-bit rows are read in order, as the processor's own prefetching
 * wants them; the others are prefetched. */
INLINE __m512i load_once(const uint8_t *p, const Kind k) {
    __m512i v = _mm512_loadu_si512(p);
    if (k.bits == 8)
        __asm__ volatile("" : "+v"(v));
    else
        __asm__("" : "+v"(v));
    return v;
}

/* The codes of 64 · planes columns, 64 in a vector. With 3 bits those of odd planes come as multiples of 8. */
INLINE void load_codes(const uint8_t *p, const Kind k, __m512i code[4]) {
    const __m512i v = load_once(p, k), low = _mm512_set1_epi8((char)((1 << k.bits) - 1));
    if (k.bits == 8) {
        code[0] = v;
        return;
    }
    if (8 * k.bits * planes_of(k) == 64) {
#pragma GCC unroll 4
        for (int j = 0; j < planes_of(k); j++) {
            code[j] = plane_of(v, k.bits, j);
            if (is_coded(k)) code[j] = e2m1_codes(code[j]);
        }
        return;
    }
    const __m512i last = load_once(p + 8 * k.bits * planes_of(k) - 64, k);
    if (k.bits == 3) { /* a byte takes two codes at once */
        const __m512i shift = spread_shift(6, false), high = _mm512_set1_epi8(7 << 3);
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const __m512i pairs = _mm512_multishift_epi64_epi8(shift, take_runs(v, last, 6, 2, j));
            code[2 * j] = _mm512_and_si512(pairs, low);
            code[2 * j + 1] = _mm512_and_si512(pairs, high);
        }
        return;
    }
    const __m512i shift = spread_shift(k.bits, false);
#pragma GCC unroll 4
    for (int j = 0; j < planes_of(k); j++)
        code[j] =
            _mm512_and_si512(_mm512_multishift_epi64_epi8(shift, take_runs(v, last, k.bits, planes_of(k), j)), low);
}

/* Products of 64 codes per plane. */
INLINE void few_vector(
    const Few *f, const uint8_t *p, const int8_t *q, const Kind k, const int rows, __m512i part[FEW_SINGLE]) {
    __m512i code[4];
    load_codes(p, k, code);
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++) {
        __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
#pragma GCC unroll 4
        for (int j = 0; j < planes_of(k); j++) {
            __m512i *to = &sum[k.bits == 3 ? j & 1 : 0];
            *to = _mm512_dpbusd_epi32(*to, code[j], _mm512_loadu_si512(q + t * f->stride + 64 * j));
        }
        part[t] = k.bits == 3 ? _mm512_add_epi32(sum[0], _mm512_srai_epi32(sum[1], 3)) : sum[0];
    }
}

/* 8-bit rows are read as fast as the processor itself prefetches, which more prefetching only disturbs. */
INLINE void few_prefetch(const uint8_t *p, const Kind k, const int bytes) {
    if (k.bits < 8) prefetch(p, FAR_BYTES, bytes);
}

/* The float part of 16 groups from group_index; count of them exist. part: as few_vector() left it. */
INLINE void few_finish(const Few *f, const Weight *w, const uint8_t *scales, const uint8_t *biases, int64_t group_index,
    int64_t count, const Kind k, const int rows, __m512i part[][FEW_SINGLE], __m512 acc[FEW_SINGLE]) {
    const int lanes = k.group / (4 * planes_of(k)),
              most = (is_coded(k) ? 24 : (1 << k.bits) - 1) * 127 * 4 * planes_of(k);
    __m512 s, b;
    load_scales(w, scales, biases, group_index, count, &s, &b);
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++) {
        const int64_t at = t * f->scale_stride + group_index;
        __m512i v[16];
#pragma GCC unroll 16
        for (int i = 0; i < lanes; i++) v[i] = part[i][t];
        __m512 sd = _mm512_mul_ps(s, _mm512_loadu_ps(f->scales + at));
        acc[t] = _mm512_fmadd_ps(sd, _mm512_cvtepi32_ps(add_groups(v, lanes, most)), acc[t]);
        acc[t] = _mm512_fmadd_ps(b, _mm512_loadu_ps(f->sums + at), acc[t]);
    }
}

/* ---- short rows, as the matrices of the heads of latent attention have ---- */

enum { SHORT_GROUPS = 8, SHORT_BYTES = SHORT_GROUPS * 64 /* most bytes of a row */ };

/* How many rows of so many groups have room in the 16 lanes of a vector. */
INLINE int rows_together(int groups) { return groups > 4 ? 2 : groups > 2 ? 4 : 8; }

/* Products of one activation row with tiles of 16 rows, `together` of which share each vector of groups: alone, a short
 * row would leave most lanes of few_finish() empty. Each row has 16 / together lanes; those of missing groups are
 * zeros. Returns how many rows are done. */
INLINE int64_t short_rows(const Few *f, int64_t first, int64_t count, float *y, const Kind k, const int together) {
    const int lanes = k.group / (4 * planes_of(k)), step = 8 * k.bits * planes_of(k), codes = 64 * planes_of(k);
    const int vectors = lanes / together, own = 16 / together, most = ((1 << k.bits) - 1) * 127 * 4 * planes_of(k);
    const size_t row_bytes = weight_row_bytes(f->w), scale_bytes = weight_scale_bytes(f->w);
    const int groups = f->tail_groups;
    const uint8_t *p = (const uint8_t *)f->w->data + (size_t)first * row_bytes;
    const uint8_t *scales = (const uint8_t *)f->w->scales + (size_t)first * scale_bytes;
    const uint8_t *biases = (const uint8_t *)f->w->biases + (size_t)first * scale_bytes;
    Weight w = *f->w;
    w.quant = k.quant; /* now a constant */
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i group = _mm512_and_si512(lane, _mm512_set1_epi32(own - 1));
    const __m512i row = _mm512_srli_epi32(lane, (unsigned)__builtin_ctz((unsigned)own));
    const __m512i scale = _mm512_add_epi32(_mm512_mullo_epi32(row, _mm512_set1_epi32(groups)), group);
    const __mmask16 some = _mm512_cmplt_epi32_mask(group, _mm512_set1_epi32(groups));
    const __m512 d = _mm512_permutexvar_ps(group, _mm512_loadu_ps(f->scales));
    const __m512 z = _mm512_permutexvar_ps(group, _mm512_loadu_ps(f->sums));
    int64_t r = 0;
    for (; r + 16 <= count; r += 16) {
        uint8_t copy[16 * SHORT_BYTES + 64]; /* the last row is read past its end */
        __m512 acc[8];
        for (size_t i = 0; i < 16 * row_bytes; i += 64) few_prefetch(p + i, k, 64);
        for (size_t i = 0; i < 16; i += 8) {
            few_prefetch_scales(scales + i * scale_bytes, 8 * scale_bytes);
            few_prefetch_scales(biases + i * scale_bytes, 8 * scale_bytes);
        }
        const uint8_t *from = p;
        if (f->end - p < (int64_t)row_bytes * 15 + vectors * step) from = memcpy(copy, p, 16 * row_bytes);
        for (int a = 0; a < own; a++) {
            __m512i v[16];
            __m512 s, b;
#pragma GCC unroll 16
            for (int i = 0; i < lanes; i++) {
                const int at = i % vectors;
                v[i] = _mm512_setzero_si512();
                if (at < f->tail_vectors)
                    few_vector(f, from + (size_t)(i / vectors) * row_bytes + at * step, f->q + at * codes, k, 1, &v[i]);
            }
            load_scales(&w, scales, biases, 0, together * groups, &s, &b);
            s = _mm512_maskz_permutexvar_ps(some, scale, s);
            b = _mm512_maskz_permutexvar_ps(some, scale, b);
            const __m512 sums = _mm512_cvtepi32_ps(add_groups(v, lanes, most)), zero = _mm512_setzero_ps();
            acc[a] = _mm512_fmadd_ps(b, z, _mm512_fmadd_ps(_mm512_mul_ps(s, d), sums, zero));
            acc[a] = _mm512_add_ps(acc[a], zero); /* as the tree adds missing lanes: −0 becomes 0 */
            from += (size_t)together * row_bytes;
            scales += (size_t)together * scale_bytes;
            biases += (size_t)together * scale_bytes;
        }
        p += 16 * row_bytes;
        _mm512_storeu_ps(y + r, tree_shared_sums(acc, together));
    }
    return r;
}

/* The rows that can be done so, of all `count`. */
INLINE int64_t few_short(const Few *f, int64_t first, int64_t count, float *y, const Kind k) {
    const int lanes = k.group / (4 * planes_of(k)), together = rows_together(f->tail_groups);
    if (k.quant != QUANT_AFFINE || f->w->cols > SHORT_GROUPS * k.group) return 0;
    if (together == 2) return short_rows(f, first, count, y, k, 2);
    if (together == 4 && lanes >= 4) return short_rows(f, first, count, y, k, 4);
    if (together == 8 && lanes >= 8) return short_rows(f, first, count, y, k, 8);
    return 0;
}

/* ---- any rows ---- */

INLINE void few_rows(
    const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride, const Kind k, const int rows) {
    const int lanes = k.group / (4 * planes_of(k)), step = 8 * k.bits * planes_of(k), codes = 64 * planes_of(k);
    Weight w = *f->w;
    w.quant = k.quant; /* now a constant */
    const size_t row_bytes = weight_row_bytes(f->w), scale_bytes = weight_scale_bytes(f->w);
    const int64_t whole = f->w->cols / k.group / 16 * 16, done_rows = rows == 1 ? few_short(f, first, count, y, k) : 0;
    first += done_rows;
    count -= done_rows;
    y += done_rows;
    const uint8_t *p = (const uint8_t *)f->w->data + (size_t)first * row_bytes;
    const uint8_t *scales = (const uint8_t *)f->w->scales + (size_t)first * scale_bytes;
    const uint8_t *biases = f->w->biases ? (const uint8_t *)f->w->biases + (size_t)first * scale_bytes : NULL;
    __m512 done[FEW_SINGLE][16]; /* finished lanes of up to 16 rows */
    for (int64_t r = 0; r < count; r++) {
        __m512 acc[FEW_SINGLE];
        __m512i part[16][FEW_SINGLE];
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++) acc[t] = _mm512_setzero_ps();
        const uint8_t *v = p;
        const int8_t *q = f->q;
        few_prefetch_scales(scales, scale_bytes);
        if (biases) few_prefetch_scales(biases, scale_bytes);
        for (int64_t g = 0; g < whole; g += 16, v += lanes * step, q += lanes * codes) {
            few_prefetch(v, k, lanes * step);
#pragma GCC unroll 16
            for (int i = 0; i < lanes; i++) few_vector(f, v + i * step, q + i * codes, k, rows, part[i]);
            few_finish(f, &w, scales, biases, g, 16, k, rows, part, acc);
        }
        if (f->tail_groups > 0) {
            uint8_t copy[16 * 64];
            few_prefetch(v, k, lanes * step / 2);
            if (f->end - v < lanes * step) v = memcpy(copy, v, (size_t)(f->end - v));
#pragma GCC unroll 16
            for (int i = 0; i < lanes; i++) {
                if (i == lanes / 2 && f->tail_vectors > i) few_prefetch(v + i * step, k, lanes * step / 2);
                if (i < f->tail_vectors) {
                    few_vector(f, v + i * step, q + i * codes, k, rows, part[i]);
                } else {
#pragma GCC unroll 4
                    for (int t = 0; t < rows; t++) part[i][t] = _mm512_setzero_si512();
                }
            }
            few_finish(f, &w, scales, biases, whole, f->tail_groups, k, rows, part, acc);
        }
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++) done[t][r % 16] = acc[t];
        if (r % 16 == 15 || r == count - 1) {
            const __mmask16 mask = (__mmask16)((2u << r % 16) - 1);
#pragma GCC unroll 4
            for (int t = 0; t < rows; t++)
                _mm512_mask_storeu_ps(y + t * y_stride + r / 16 * 16, mask, tree_sums(done[t]));
        }
        p += row_bytes;
        scales += scale_bytes;
        if (biases) biases += scale_bytes;
    }
}

FEW_KERNELS(few_rows, 1)
FEW_KERNELS(few_rows, 2)

LinearLayout linear_layout_avx512(const Weight *w, int rows) {
    if (rows > FEW_SINGLE) return w->bits == 4 ? LAYOUT_GROUPS2 : w->bits == 2 ? LAYOUT_GROUPS4 : LAYOUT_GROUPS1;
    static const LinearLayout LAYOUTS[9] = {
        [2] = LAYOUT_PLANES4,
        [3] = LAYOUT_PAIRS4,
        [4] = LAYOUT_PLANES2,
        [5] = LAYOUT_EIGHTS2,
        [6] = LAYOUT_EIGHTS2,
        [8] = LAYOUT_NATURAL,
    };
    return LAYOUTS[w->bits];
}

void linear_few_avx512(
    const Weight *w, int64_t first, int64_t count, const LinearInput *x, int rows, float *y, int64_t stride) {
    const LinearLayout q = linear_layout_avx512(w, rows);
    const int planes = q == LAYOUT_NATURAL ? 1 : q == LAYOUT_PLANES4 || q == LAYOUT_PAIRS4 ? 4 : 2;
    const int64_t left = w->cols % ((int64_t)x->group * LINEAR_LANES);
    Few f = {w, x->q[q], x->scales, x->sums, x->stride, x->stride / x->group,
        (const uint8_t *)w->data + (size_t)w->rows * weight_row_bytes(w), (int)(left / x->group),
        (int)((left + 64 * planes - 1) / (64 * planes)), 0, rows};
    if (rows <= FEW_SINGLE) {
        (rows == 1 ? few_rows_1 : few_rows_2)[linear_kind(w)](&f, first, count, y, stride);
        return;
    }
    /* the weights come from memory once and from the second-level cache for the other passes */
    for (int more = rows; more > 0; more -= f.rows) {
        const int passes = (more + FEW_BLOCK - 1) / FEW_BLOCK;
        f.rows = (more + passes - 1) / passes;
        linear_block_avx512(&f, first, count, y, stride);
        f.q += f.rows * f.stride;
        f.scales += f.rows * f.scale_stride;
        f.sums += f.rows * f.scale_stride;
        y += f.rows * stride;
    }
}
