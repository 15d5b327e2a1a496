/* Products of 3 and more activation rows (of 6-bit weights 2) with AVX2: codes are unpacked once for all of them.
 *
 * Lanes are groups, as for one row. But codes are transposed before they meet the activations, which lie in the same
 * order (LAYOUT_GROUPS…), so that a group's sum grows in one lane, first in words, and none is added across lanes. A
 * piece of the activations that fits the first-level cache meets 8 weight rows before the next piece. */
#include "backend/cpu/linear/linear_avx2.h"

enum {
    BLOCK_ROWS = 8,
    BLOCK_GROUPS = 8,
    OVER = 16,            /* bytes that unpacking reads past the end */
    CACHED_BYTES = 16384, /* bytes of activations */
};

/* Vectors of codes of 8 groups; how many are fetched at a time, of 6 bits by sixteens of elements; how many of them
 * meet the activations at a time, and how often. */
INLINE int vectors_of(const Kind k) { return k.group / 4; }
INLINE int fetch_of(const Kind k) {
    const int most = k.bits == 6 ? 4 : 4 * planes_of(k);
    return vectors_of(k) < most ? vectors_of(k) : most;
}
INLINE int step_of(const Kind k) { return fetch_of(k) < 8 ? fetch_of(k) : 8; }
INLINE int steps_of(const Kind k) { return vectors_of(k) / step_of(k); }

/* How many results of VPMADDUBSW fit into a 16-bit sum: a power of two, at most 16. 8-bit codes go as two halves. */
INLINE int sums_that_fit(const Kind k) {
    const int most = is_coded(k) ? 24 : k.bits == 8 ? 15 : (1 << k.bits) - 1, fit = INT16_MAX / (most * 254);
    return fit >= 16 ? 16 : fit >= 8 ? 8 : fit >= 4 ? 4 : 2;
}

/* The codes of 8 groups as bytes where they neither lie in planes nor are unpacked by themselves. May read OVER bytes
 * too many. */
INLINE const uint8_t *block_bytes(const uint8_t *p, const Kind k, uint8_t spare[64 * BLOCK_GROUPS]) {
    if (k.bits != 3 && k.bits != 5) return p;
    const Spread s = spread_make(k.bits);
    for (int i = 0; i < k.group / 4; i++)
        _mm256_storeu_si256((__m256i *)(spare + 32 * i), spread(&s, p + 4 * k.bits * i, k.bits));
    return spare;
}

/* 16 codes of 6 bits of 8 groups, which lie `bytes` apart: elements 4i, 4i+1, 4i+2, 4i+3. Of each three bytes the first
 * are brought together, the second and the third: the codes' bits are then in the same places in all lanes. */
INLINE void fetch_sixteen(const uint8_t *p, const int bytes, __m256i v[4]) {
    const __m256i split = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, 0, 0, 0, 0));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m128i low = _mm_loadu_si128((const __m128i *)(p + i * bytes)),
                      high = _mm_loadu_si128((const __m128i *)(p + (i + 4) * bytes));
        v[i] = _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1), split);
    }
    transpose4(v);
}
INLINE void sixteen_codes(const __m256i v[4], __m256i code[4]) {
    const __m256i low6 = _mm256_set1_epi8(63), low4 = _mm256_set1_epi8(15), low2 = _mm256_set1_epi8(3);
    code[0] = _mm256_and_si256(v[0], low6);
    code[1] = _mm256_or_si256(
        _mm256_and_si256(_mm256_srli_epi16(v[0], 6), low2), _mm256_slli_epi16(_mm256_and_si256(v[1], low4), 2));
    code[2] = _mm256_or_si256(
        _mm256_and_si256(_mm256_srli_epi16(v[1], 4), low4), _mm256_slli_epi16(_mm256_and_si256(v[2], low2), 4));
    code[3] = _mm256_and_si256(_mm256_srli_epi16(v[2], 2), low6);
}

/* Dwords of weights of 8 groups, so that each lane has one group's. number: of the fetch. */
INLINE void fetch_codes(const uint8_t *p, const int number, const Kind k, __m256i v[4]) {
    if (k.bits == 6)
        fetch_sixteen(p + 12 * number, k.group / 16 * 12, v);
    else
        transpose_groups(p + 16 * number, k.group / planes_of(k), fetch_of(k) / planes_of(k), v);
}

/* The codes in them from number `first`, as bytes in the order of the activations; of 8 bits the lower, then the upper
 * halves. */
INLINE void step_codes(const __m256i v[4], const int first, const Kind k, __m256i code[8]) {
    if (k.bits == 6) {
        sixteen_codes(v, code);
        return;
    }
    const int planes = k.bits == 8 ? 2 : planes_of(k), bits = k.bits == 8 ? 4 : k.bits;
    const __m256i low = _mm256_set1_epi8((char)((1 << bits) - 1));
#pragma GCC unroll 8
    for (int n = 0; n < 8; n++) {
        if (n >= step_of(k) / planes_of(k) * planes) continue; /* gcc unrolls by a constant bound alone */
        const int i = n / planes, j = n % planes;
        __m256i *to = &code[k.bits == 8 ? 4 * j + i : n], from = v[first / planes_of(k) + i];
        *to = planes > 1 ? _mm256_and_si256(j ? _mm256_srli_epi16(from, j * bits) : from, low) : from;
        if (is_coded(k)) *to = e2m1_codes(*to);
    }
}

/* Sums of the products of 2, 4 or 8 vectors of codes, as words. gcc would load the activations first, for which there
 * are too few registers. */
typedef const int8_t Activations[256];
INLINE __m256i multiply_two(const __m256i code[2], const int8_t *q) {
    __m256i sum, other;
    __asm__("vpmaddubsw (%2), %3, %0\n\tvpmaddubsw 32(%2), %4, %1\n\tvpaddw %1, %0, %0"
            : "=&x"(sum), "=&x"(other)
            : "r"(q), "x"(code[0]), "x"(code[1]), "m"(*(Activations *)q));
    return sum;
}
INLINE __m256i multiply_four(const __m256i code[4], const int8_t *q) {
    __m256i sum, other, product;
    __asm__("vpmaddubsw (%3), %4, %0\n\tvpmaddubsw 32(%3), %5, %1\n\tvpaddw %1, %0, %0\n\t"
            "vpmaddubsw 64(%3), %6, %1\n\tvpmaddubsw 96(%3), %7, %2\n\tvpaddw %2, %1, %1\n\tvpaddw %1, %0, %0"
            : "=&x"(sum), "=&x"(other), "=&x"(product)
            : "r"(q), "x"(code[0]), "x"(code[1]), "x"(code[2]), "x"(code[3]), "m"(*(Activations *)q));
    return sum;
}
INLINE __m256i multiply_eight(const __m256i code[8], const int8_t *q) {
    __m256i sum, other, third, fourth;
    __asm__("vpmaddubsw (%4), %5, %0\n\tvpmaddubsw 32(%4), %6, %1\n\tvpmaddubsw 64(%4), %7, %2\n\t"
            "vpmaddubsw 96(%4), %8, %3\n\tvpaddw %1, %0, %0\n\tvpmaddubsw 128(%4), %9, %1\n\tvpaddw %3, %2, %2\n\t"
            "vpmaddubsw 160(%4), %10, %3\n\tvpaddw %2, %0, %0\n\tvpmaddubsw 192(%4), %11, %2\n\t"
            "vpaddw %3, %1, %1\n\tvpmaddubsw 224(%4), %12, %3\n\tvpaddw %1, %0, %0\n\tvpaddw %3, %2, %2\n\t"
            "vpaddw %2, %0, %0"
            : "=&x"(sum), "=&x"(other), "=&x"(third), "=&x"(fourth)
            : "r"(q), "x"(code[0]), "x"(code[1]), "x"(code[2]), "x"(code[3]), "x"(code[4]), "x"(code[5]), "x"(code[6]),
            "x"(code[7]), "m"(*(Activations *)q));
    return sum;
}

/* The products of a step with an activation row. */
INLINE __m256i step_dot(const __m256i code[8], const int8_t *q, const Kind k) {
    const int codes = step_of(k), fit = sums_that_fit(k) < codes ? sums_that_fit(k) : codes, turns = codes / fit,
              halves = k.bits == 8 ? 2 : 1;
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int turn = 0; turn < turns * halves; turn++) {
        const int half = turn / turns, first = turn % turns * fit;
        const __m256i *c = code + 4 * half + first;
        const int8_t *x = q + 32 * first;
        const __m256i words = fit == 2 ? multiply_two(c, x) : fit == 4 ? multiply_four(c, x) : multiply_eight(c, x);
        const __m256i wide = _mm256_madd_epi16(words, _mm256_set1_epi16(half ? 16 : 1));
        sum = turn ? _mm256_add_epi32(sum, wide) : wide;
    }
    return sum;
}

/* A step of 8 groups of one weight row with all activation rows. q: of the first. part: the sums of the steps before;
 * acc: after the last step, for each of those 8 lanes, on top of before. */
INLINE void step_rows(const Few *f, const __m256i code[8], const int8_t *q, int64_t group, __m256 s, __m256 b,
    const Kind k, const int step, __m256i part[LINEAR_FEW], const __m256 *before, __m256 *acc) {
    const float *d = f->scales + group, *z = f->sums + group;
    const __m256 *end = acc + f->rows;
    for (__m256 *a = acc; a < end; a++, before++, part++, q += f->stride, d += f->scale_stride, z += f->scale_stride) {
        __m256i sum = step_dot(code, q, k);
        if (step > 0) sum = _mm256_add_epi32(sum, *part);
        if (step < steps_of(k) - 1) {
            *part = sum;
            continue;
        }
        const __m256 sd = _mm256_mul_ps(s, _mm256_loadu_ps(d));
        *a = _mm256_fmadd_ps(b, _mm256_loadu_ps(z), _mm256_fmadd_ps(sd, _mm256_cvtepi32_ps(sum), *before));
    }
}

/* The last groups of a row, away from the loop over the others: its registers would not survive this. */
static __attribute__((noinline)) void load_last_scales(const Weight *w, const uint8_t *scales, const uint8_t *biases,
    int64_t bytes, int64_t group, int64_t count, __m256 both[2]) {
    load_scales(w, scales, biases, bytes, group, count, &both[0], &both[1]);
}

/* Zeros that the first groups of a row add to, so that their sums need not be cleared. */
static const __m256 nothing[LINEAR_FEW];

/* Start of a weight row; biases: nullable. bytes: of all scales from there. */
typedef struct Place {
    const uint8_t *codes, *scales, *biases;
    int64_t bytes;
    size_t far; /* how far ahead codes are fetched */
} Place;

/* Groups first … last−1 of a weight row. acc: lanes 0 to 7, and 8 to 15, for each activation row. Codes are fetched
 * while those before them are computed with. */
INLINE void block_row(const Few *f, Place at, int64_t first, int64_t last, const Kind k, __m256 acc[2][LINEAR_FEW]) {
    const int bytes = k.group * k.bits; /* bytes of 8 groups */
    const int steps = steps_of(k), turns = fetch_of(k) / step_of(k);
    const uint8_t *p = at.codes + first / BLOCK_GROUPS * bytes;
    uint8_t copy[64 * BLOCK_GROUPS + OVER], spare[64 * BLOCK_GROUPS];
    Weight w = *f->w;
    w.quant = k.quant; /* now a constant */
    __m256i v[4];
    const uint8_t *from = f->end - p < bytes + OVER ? memcpy(copy, p, (size_t)(f->end - p)) : p;
    from = block_bytes(from, k, spare);
    fetch_codes(from, 0, k, v);
    for (int64_t g = first; g < last; g += BLOCK_GROUPS) {
        const int8_t *q = f->q + g * k.group;
        __m256 s, b;
        __m256i part[LINEAR_FEW];
        prefetch(p, at.far, bytes);
        p += bytes;
        if (last - g >= BLOCK_GROUPS) {
            load_scales(&w, at.scales, at.biases, at.bytes, g, BLOCK_GROUPS, &s, &b);
        } else {
            __m256 both[2];
            load_last_scales(f->w, at.scales, at.biases, at.bytes, g, last - g, both);
            s = both[0];
            b = both[1];
        }
#pragma GCC unroll 8
        for (int step = 0; step < steps; step++, q += k.group * 8 / steps) {
            __m256i code[8];
            step_codes(v, step % turns * step_of(k), k, code);
            if (step + 1 < steps) {
                if ((step + 1) % turns == 0) fetch_codes(from, (step + 1) / turns, k, v);
            } else if (g + BLOCK_GROUPS < last) {
                from = f->end - p < bytes + OVER ? memcpy(copy, p, (size_t)(f->end - p)) : p;
                from = block_bytes(from, k, spare);
                fetch_codes(from, 0, k, v);
            }
            __m256 *own = acc[g / BLOCK_GROUPS % 2];
            step_rows(f, code, q, g, s, b, k, step, part, g < 2 * BLOCK_GROUPS ? nothing : own, own);
        }
    }
}

INLINE void block_rows(
    const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride, const Kind k, const int most) {
    const int64_t groups = f->w->cols / k.group, fit = CACHED_BYTES / (f->rows * k.group) / LINEAR_LANES,
                  piece = (fit > 0 ? fit : 1) * LINEAR_LANES;
    const size_t row_bytes = weight_row_bytes(f->w), scale_bytes = weight_scale_bytes(f->w), far = far_rows(row_bytes);
    const uint8_t *codes = f->w->data, *scales = f->w->scales, *biases = f->w->biases;
    for (int64_t r = 0; r < count; r += BLOCK_ROWS) {
        const int exist = count - r < BLOCK_ROWS ? (int)(count - r) : BLOCK_ROWS;
        __m256 acc[BLOCK_ROWS][2][LINEAR_FEW];
        for (int64_t from = 0; from < groups; from += piece) {
            const int64_t to = groups - from < piece ? groups : from + piece;
            for (int i = 0; i < exist; i++) {
                const size_t row = (size_t)(first + r + i), at = row * scale_bytes;
                const Place place = {codes + row * row_bytes, scales + at, biases ? biases + at : NULL,
                    (f->w->rows - (int64_t)row) * (int64_t)scale_bytes, far};
                few_prefetch_scales(place.scales, scale_bytes);
                if (biases) few_prefetch_scales(place.biases, scale_bytes);
                block_row(f, place, from, to, k, acc[i]);
            }
        }
        for (int t = 0; t < f->rows; t++) {
            __m256 done[BLOCK_ROWS];
            for (int i = 0; i < BLOCK_ROWS; i++)
                done[i] = _mm256_add_ps(acc[i][0][t], groups > BLOCK_GROUPS ? acc[i][1][t] : nothing[t]);
            _mm256_maskstore_ps(y + t * y_stride + r, first_lanes(exist), add_trees(done));
        }
    }
}

FEW_KERNELS(block_rows, 8)

void linear_block_avx2(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride) {
    block_rows_8[linear_kind(f->w)](f, first, count, y, y_stride);
}
