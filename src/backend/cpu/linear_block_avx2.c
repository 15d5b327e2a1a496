/* Products of 3 to 8 activation rows with AVX2: weights are unpacked once for all of them.
 *
 * Lanes are weight rows: 8 rows' vectors are transposed, so that a group's sum needs no addition across lanes. The 16
 * lanes of the definition (linear.h) are 16 vectors per activation row, in the first-level cache. */
#include "backend/cpu/linear_avx2.h"

enum { BLOCK_ROWS = 8 };

/* 8 weight rows and the activation rows that meet them; missing ones repeat the last. */
typedef struct Block {
    const uint8_t *row[BLOCK_ROWS];
    int64_t index[BLOCK_ROWS];
    const int8_t *q[LINEAR_FEW];
    const float *scales[LINEAR_FEW], *sums[LINEAR_FEW];
} Block;

/* How many results of VPMADDUBSW fit into a 16-bit sum: a power of two, at most 16. 8-bit codes go as two halves. */
INLINE int sums_that_fit(const Kind k) {
    const int most = is_coded(k) ? 24 : k.bits == 8 ? 15 : (1 << k.bits) - 1, fit = INT16_MAX / (most * 254);
    return fit >= 16 ? 16 : fit >= 8 ? 8 : fit >= 4 ? 4 : 2;
}

/* 8 rows' vectors at one place, transposed: dword j of every row. Behind the end of a row anything may stand: groups
 * that do not exist are not used. */
INLINE void block_codes(const Few *f, const Block *block, int64_t at, const Kind k, __m256i r[8]) {
    const int bits = planes_of(k) > 1 || k.bits == 8 ? 6 : k.bits,
              read = planes_of(k) > 1 || k.bits == 8 ? 32 : 2 * k.bits + 16;
    const Spread s = spread_make(bits);
#pragma GCC unroll 8
    for (int i = 0; i < BLOCK_ROWS; i++) {
        const uint8_t *p = block->row[i] + at;
        uint8_t copy[32];
        if (f->end - p < read) {
            memcpy(copy, p, (size_t)(f->end - p));
            p = copy;
        }
        r[i] = planes_of(k) > 1 || k.bits == 8 ? _mm256_loadu_si256((const __m256i *)p) : spread(&s, p, bits);
    }
    transpose8(r);
}

/* Code i of a group: plane i % planes of dword i / planes; of 8 bits the lower or the upper half. */
INLINE __m256i block_code(const __m256i *r, int i, const Kind k, const int half) {
    const int shift = planes_of(k) > 1 ? i % planes_of(k) * k.bits : 4 * half;
    __m256i v = r[i / planes_of(k)];
    if (planes_of(k) == 1 && k.bits != 8) return v;
    const __m256i low = _mm256_set1_epi8((char)(k.bits == 8 ? 15 : (1 << k.bits) - 1));
    v = _mm256_and_si256(shift ? _mm256_srli_epi16(v, shift) : v, low);
    return is_coded(k) ? e2m1_codes(v) : v;
}

/* words += code · 4 activations at q, of each weight row. gcc would broadcast for all activation rows first and run out
 * of registers. */
INLINE void multiply_into(__m256i *words, __m256i code, const int8_t *q) {
    __m256i products;
    __asm__("vpbroadcastd %2, %1\n\tvpmaddubsw %1, %3, %1\n\tvpaddw %1, %0, %0"
            : "+x"(*words), "=&x"(products)
            : "m"(*(const int8_t(*)[4])q), "x"(code));
}

/* The integer part of one group: offset: of its first activation in a line. */
INLINE void block_sums(
    const Block *block, const __m256i *r, int64_t offset, const Kind k, const int rows, __m256i sum[LINEAR_FEW]) {
    const int codes = k.group / 4, fit = sums_that_fit(k) < codes ? sums_that_fit(k) : codes;
#pragma GCC unroll 8
    for (int t = 0; t < rows; t++) sum[t] = _mm256_setzero_si256();
    for (int half = 0; half < (k.bits == 8 ? 2 : 1); half++) {
        const __m256i one = _mm256_set1_epi16(half ? 16 : 1);
        for (int first = 0; first < codes; first += fit) {
            const __m256i *dwords = r + first / planes_of(k);
            const int64_t at = offset + (planes_of(k) > 1 ? 4 * first / planes_of(k) : 4 * first);
            __m256i words[LINEAR_FEW];
#pragma GCC unroll 8
            for (int t = 0; t < rows; t++) words[t] = _mm256_setzero_si256();
#pragma GCC unroll 16
            for (int i = 0; i < fit; i++) {
                const __m256i code = block_code(dwords, i, k, half);
#pragma GCC unroll 8
                for (int t = 0; t < rows; t++)
                    multiply_into(&words[t], code, block->q[t] + at + 32 * (i % planes_of(k)) + 4 * (i / planes_of(k)));
            }
#pragma GCC unroll 8
            for (int t = 0; t < rows; t++) sum[t] = _mm256_add_epi32(sum[t], _mm256_madd_epi16(words[t], one));
        }
    }
}

/* Scales and biases of the block's rows for 8 groups: [group][row]. count of the groups exist. */
INLINE void block_scales(
    const Weight *w, size_t stride, const Block *block, int64_t group, int64_t count, __m256 s[8], __m256 b[8]) {
    __m256i si[8], bi[8];
#pragma GCC unroll 8
    for (int i = 0; i < BLOCK_ROWS; i++) {
        const size_t offset = (size_t)block->index[i] * stride;
        __m256 x, y;
        load_scales(w, (const uint8_t *)w->scales + offset, w->biases ? (const uint8_t *)w->biases + offset : NULL,
            (w->rows - block->index[i]) * (int64_t)stride, group, count, &x, &y);
        si[i] = _mm256_castps_si256(x);
        bi[i] = _mm256_castps_si256(y);
    }
    transpose8(si);
    transpose8(bi);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        s[i] = _mm256_castsi256_ps(si[i]);
        b[i] = _mm256_castsi256_ps(bi[i]);
    }
}

/* Sums of the lanes of 8 weight rows, for one activation row. */
typedef struct Lanes {
    __m256 lane[LINEAR_LANES];
} Lanes;

INLINE __m256 lanes_tree(Lanes *acc) {
#pragma GCC unroll 4
    for (int half = LINEAR_LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++) acc->lane[i] = _mm256_add_ps(acc->lane[i], acc->lane[i + half]);
    return acc->lane[0];
}

INLINE void block_multiply(
    const Few *f, const Block *block, const uint8_t *ahead, const Kind k, const int rows, Lanes acc[LINEAR_FEW]) {
    const int vector_cols = 32 * planes_of(k), vector_bytes = 4 * k.bits * planes_of(k); /* of one row */
    const int lanes = k.group / (4 * planes_of(k)), vectors = lanes > 8 ? lanes / 8 : 1,
              at_once = lanes > 8 ? 1 : 8 / lanes;
    const int64_t groups = f->w->cols / k.group;
    const size_t scale_bytes = weight_scale_bytes(f->w);
    Weight w = *f->w;
    w.quant = k.quant; /* now a constant */
    for (int64_t g = 0; g < groups; g += 8) {
        __m256 s[8], b[8];
        block_scales(&w, scale_bytes, block, g, groups - g, s, b);
        for (int i = 0; i < 8 && g + i < groups; i += at_once) {
            const int64_t vector = (g + i) / at_once * vectors;
            __m256i r[16];
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) {
                for (int line = 0; line < BLOCK_ROWS * vector_bytes; line += 64, ahead += 64)
                    _mm_prefetch((const char *)ahead, _MM_HINT_T1);
                block_codes(f, block, (vector + v) * vector_bytes, k, r + 8 * v);
            }
            for (int j = 0; j < at_once && g + i + j < groups; j++) {
                __m256i sum[LINEAR_FEW];
                block_sums(block, r + j * lanes, vector * vector_cols + 4 * j * lanes, k, rows, sum);
                const int64_t group = g + i + j;
#pragma GCC unroll 8
                for (int t = 0; t < rows; t++) {
                    __m256 *to = &acc[t].lane[group % LINEAR_LANES];
                    const __m256 scale = _mm256_mul_ps(s[i + j], _mm256_set1_ps(block->scales[t][group]));
                    *to = _mm256_fmadd_ps(b[i + j], _mm256_set1_ps(block->sums[t][group]),
                        _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum[t]), *to));
                }
            }
        }
    }
}

INLINE void block_rows(
    const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride, const Kind k, const int rows) {
    const size_t row_bytes = weight_row_bytes(f->w);
    Block block;
    for (int t = 0; t < rows; t++) {
        const int row = t < f->rows ? t : f->rows - 1;
        block.q[t] = f->q + row * f->stride;
        block.scales[t] = f->scales + row * f->scale_stride;
        block.sums[t] = f->sums + row * f->scale_stride;
    }
    for (int64_t r = 0; r < count; r += BLOCK_ROWS) {
        const int64_t exist = count - r < BLOCK_ROWS ? count - r : BLOCK_ROWS;
        for (int i = 0; i < BLOCK_ROWS; i++) {
            block.index[i] = first + r + (i < exist ? i : exist - 1);
            block.row[i] = (const uint8_t *)f->w->data + (size_t)block.index[i] * row_bytes;
        }
        Lanes acc[LINEAR_FEW];
        memset(acc, 0, (size_t)rows * sizeof *acc);
        /* the next rows, read one after the other */
        block_multiply(f, &block, block.row[BLOCK_ROWS - 1] + row_bytes, k, rows, acc);
        for (int t = 0; t < f->rows; t++) {
            float result[BLOCK_ROWS];
            _mm256_storeu_ps(result, lanes_tree(&acc[t]));
            memcpy(y + t * y_stride + r, result, (size_t)exist * sizeof *result);
        }
    }
}

FEW_KERNELS(block_rows, 4)
FEW_KERNELS(block_rows, 8)

void linear_block_avx2(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride) {
    (f->rows <= 4 ? block_rows_4 : block_rows_8)[linear_kind(f->w)](f, first, count, y, y_stride);
}
