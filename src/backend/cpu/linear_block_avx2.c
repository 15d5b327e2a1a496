/* Products of 3 and more activation rows with AVX2: codes are unpacked once for all of them.
 *
 * Lanes are groups, as for one row. But codes are transposed before they meet the activations, which lie in the same
 * order (LAYOUT_GROUPS…), so that a group's sum grows in one lane, first in words, and none is added across lanes. A
 * piece of the activations that fits the first-level cache meets 8 weight rows before the next piece. */
#include "backend/cpu/linear_avx2.h"

enum {
    BLOCK_ROWS = 8,
    BLOCK_GROUPS = 8,
    CODES = 16,           /* most vectors of codes at a time */
    OVER = 16,            /* bytes that spread() reads too many */
    CACHED_BYTES = 16384, /* of activations */
};

/* Dwords of a group; how many at a time meet the activations, and how often. */
INLINE int dwords_of(const Kind k) { return k.group / (4 * planes_of(k)); }
INLINE int step_of(const Kind k) { return dwords_of(k) < 4 ? dwords_of(k) : 4; }
INLINE int steps_of(const Kind k) { return dwords_of(k) / step_of(k); }

/* How many results of VPMADDUBSW fit into a 16-bit sum: a power of two, at most 16. 8-bit codes go as two halves. */
INLINE int sums_that_fit(const Kind k) {
    const int most = is_coded(k) ? 24 : k.bits == 8 ? 15 : (1 << k.bits) - 1, fit = INT16_MAX / (most * 254);
    return fit >= 16 ? 16 : fit >= 8 ? 8 : fit >= 4 ? 4 : 2;
}

/* The codes of 8 groups as bytes where a byte does not hold whole ones. May read OVER bytes too many. */
INLINE const uint8_t *block_bytes(const uint8_t *p, const Kind k, uint8_t spare[64 * BLOCK_GROUPS]) {
    if (planes_of(k) > 1 || k.bits == 8) return p;
    const Spread s = spread_make(k.bits);
    for (int i = 0; i < k.group / 4; i++)
        _mm256_storeu_si256((__m256i *)(spare + 32 * i), spread(&s, p + 4 * k.bits * i, k.bits));
    return spare;
}

/* Some dwords of 8 groups, in the order of the activations; of 8 bits the lower, then the upper halves. */
INLINE void block_codes(const uint8_t *p, const int step, const Kind k, __m256i code[CODES]) {
    const int planes = k.bits == 8 ? 2 : planes_of(k), bits = k.bits == 8 ? 4 : k.bits, count = step_of(k);
    const __m256i low = _mm256_set1_epi8((char)((1 << bits) - 1));
    __m256i v[4];
    transpose_groups(p + 16 * step, 4 * dwords_of(k), count, v);
#pragma GCC unroll 4
    for (int i = 0; i < count; i++)
#pragma GCC unroll 4
        for (int j = 0; j < planes; j++) {
            __m256i *to = &code[k.bits == 8 ? 4 * j + i : planes * i + j];
            *to = planes > 1 ? _mm256_and_si256(j ? _mm256_srli_epi16(v[i], j * bits) : v[i], low) : v[i];
            if (is_coded(k)) *to = e2m1_codes(*to);
        }
}

/* words += code · q. gcc would add in another order, which takes more registers than there are. */
INLINE void multiply_into(__m256i *words, __m256i code, const int8_t *q) {
    __m256i products;
    __asm__("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0"
            : "+x"(*words), "=&x"(products)
            : "m"(*(const int8_t(*)[32])q), "x"(code));
}

/* Their products with an activation row. */
INLINE __m256i block_dot(const __m256i code[CODES], const int8_t *q, const Kind k) {
    const int codes = step_of(k) * planes_of(k), fit = sums_that_fit(k) < codes ? sums_that_fit(k) : codes,
              turns = codes / fit, halves = k.bits == 8 ? 2 : 1;
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int turn = 0; turn < turns * halves; turn++) {
        const int half = turn / turns, first = turn % turns * fit;
        const __m256i x = _mm256_loadu_si256((const __m256i *)(q + 32 * first));
        __m256i words = _mm256_maddubs_epi16(code[4 * half + first], x);
#pragma GCC unroll 16
        for (int i = first + 1; i < first + fit; i++) multiply_into(&words, code[4 * half + i], q + 32 * i);
        words = _mm256_madd_epi16(words, _mm256_set1_epi16(half ? 16 : 1));
        sum = turn ? _mm256_add_epi32(sum, words) : words;
    }
    return sum;
}

/* 8 groups of one weight row with all activation rows. acc: for each of those 8 lanes. */
INLINE void block_groups(const Few *f, const uint8_t *p, int64_t group, __m256 s, __m256 b, const Kind k, __m256 *acc) {
    uint8_t spare[64 * BLOCK_GROUPS];
    const uint8_t *bytes = block_bytes(p, k, spare);
    const int steps = steps_of(k), vectors = step_of(k) * planes_of(k);
    const int rows = f->rows;
    const int64_t stride = f->stride, scale_stride = f->scale_stride;
    __m256i part[FEW_BLOCK];
#pragma GCC unroll 4
    for (int step = 0; step < steps; step++) {
        const int8_t *q = f->q + group * k.group + 32 * vectors * step;
        const float *d = f->scales + group, *z = f->sums + group;
        __m256i code[CODES];
        block_codes(bytes, step, k, code);
        for (int t = 0; t < rows; t++, q += stride, d += scale_stride, z += scale_stride) {
            __m256i sum = block_dot(code, q, k);
            if (step > 0) sum = _mm256_add_epi32(sum, part[t]);
            if (step < steps - 1) {
                part[t] = sum;
                continue;
            }
            const __m256 sd = _mm256_mul_ps(s, _mm256_loadu_ps(d));
            const __m256 lanes = _mm256_fmadd_ps(sd, _mm256_cvtepi32_ps(sum), acc[t]);
            acc[t] = _mm256_fmadd_ps(b, _mm256_loadu_ps(z), lanes);
        }
    }
}

/* Where a weight row begins; biases may be NULL. bytes: of all scales from there. */
typedef struct Place {
    const uint8_t *codes, *scales, *biases;
    int64_t bytes;
    size_t far; /* how far ahead codes are fetched */
} Place;

/* Groups first … last−1 of a weight row. acc: lanes 0 to 7, and 8 to 15, for each activation row. */
INLINE void block_row(const Few *f, Place at, int64_t first, int64_t last, const Kind k, __m256 acc[2][FEW_BLOCK]) {
    const int bytes = k.group * k.bits; /* of 8 groups */
    const uint8_t *p = at.codes + first / BLOCK_GROUPS * bytes;
    Weight w = *f->w;
    w.quant = k.quant; /* now a constant */
    for (int64_t g = first; g < last; g += BLOCK_GROUPS, p += bytes) {
        uint8_t copy[64 * BLOCK_GROUPS + OVER];
        __m256 s, b;
        prefetch(p, at.far, bytes);
        const uint8_t *from = f->end - p < bytes + OVER ? memcpy(copy, p, (size_t)(f->end - p)) : p;
        load_scales(&w, at.scales, at.biases, at.bytes, g, last - g, &s, &b);
        block_groups(f, from, g, s, b, k, acc[g / BLOCK_GROUPS % 2]);
    }
}

INLINE void block_rows(
    const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride, const Kind k, const int most) {
    const int64_t groups = f->w->cols / k.group,
                  piece = CACHED_BYTES / (f->rows * k.group) / LINEAR_LANES * LINEAR_LANES;
    const size_t row_bytes = weight_row_bytes(f->w), scale_bytes = weight_scale_bytes(f->w), far = far_rows(row_bytes);
    const uint8_t *codes = f->w->data, *scales = f->w->scales, *biases = f->w->biases;
    for (int64_t r = 0; r < count; r += BLOCK_ROWS) {
        const int exist = count - r < BLOCK_ROWS ? (int)(count - r) : BLOCK_ROWS;
        __m256 acc[BLOCK_ROWS][2][FEW_BLOCK];
        memset(acc, 0, sizeof acc);
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
            for (int i = 0; i < BLOCK_ROWS; i++) done[i] = _mm256_add_ps(acc[i][0][t], acc[i][1][t]);
            _mm256_maskstore_ps(y + t * y_stride + r, first_lanes(exist), add_trees(done));
        }
    }
}

FEW_KERNELS(block_rows, 8)

void linear_block_avx2(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride) {
    block_rows_8[linear_kind(f->w)](f, first, count, y, y_stride);
}
