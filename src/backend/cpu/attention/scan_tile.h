/* Register tiles of the scans: queries × registers of codes, which are looked up on the way, in any format. Every
 * sum runs over its quads in order and is exact, so the result does not depend on the shape of a tile. */
#pragma once
#include "backend/cpu/attention/scan_int.h"

/* Unrolls before gcc allocates registers: otherwise it keeps a copy of all sums in memory. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* True if each part of a tile prefetches, false if only its beginning: narrow tiles are many. */
enum { FETCH_PARTS = TILE_REGS > 1 };

/* A product of some blocks with some queries. */
typedef struct Product {
    const uint8_t *codes, *table;
    int64_t block_bytes;
    int blocks;
    const uint8_t *x; /* a query's codes or weights; x_stride bytes to the next query's */
    int64_t x_stride;
    int quads;
    ScanAhead *ahead;
    int32_t *sums; /* [query][blocks][16] */
} Product;

VEC_INLINE void fetch_lines(const uint8_t *at, int lines) {
    for (int l = 0; l < lines; l++) __builtin_prefetch(at + l * 64, 0, 3);
}
VEC_INLINE void fetch_ahead(ScanAhead *ahead) {
    const int lines = ahead->left < ahead->fetch.query ? ahead->left : ahead->fetch.query;
    fetch_lines(ahead->at, lines);
    ahead->at += (ptrdiff_t)lines * 64;
    ahead->left -= lines;
}

/* Quads n … n + TOGETHER − 1 of a part. at: of each register's codes. */
VEC_INLINE void add_quads(const int queries, const int regs, const Source source, const bool values, const int n,
    const uint8_t *const *at, const Table *table, const uint8_t *x, int64_t x_stride, Ints sum[SCAN_TILE][TILE_REGS]) {
    Ints codes[TILE_REGS], next[TILE_REGS];
    const bool wide = source_is_wide(source), two = TOGETHER == 2 && !wide;
    UNROLL for (int r = 0; r < regs; r++) {
        codes[r] = quad_bytes(source, values, at[r], n, table);
        if (two) next[r] = quad_bytes(source, values, at[r], n + 1, table);
    }
    UNROLL for (int i = 0; i < queries; i++) {
        const uint8_t *four = x + i * x_stride + n * 4;
        const Ints one = ints_four(four), other = two ? ints_four(four + 4) : one;
        UNROLL for (int r = 0; r < regs; r++) sum[i][r] = two
            ? ints_dot2(values, sum[i][r], codes[r], one, next[r], other)
            : ints_dot(wide, values, sum[i][r], codes[r], one);
    }
    /* Keeps sums in registers and loads codes and queries late: no registers are free for hoisted work of the next
     * quads, as compilers would attempt. */
    UNROLL for (int i = 0; i < queries; i++) UNROLL for (int r = 0; r < regs; r++) ints_keep(&sum[i][r]);
    __asm__ volatile("" ::: "memory");
}

VEC_INLINE void add_part(const int queries, const int regs, const Source source, const bool values, const int quads,
    const uint8_t *const *at, const Table *table, const uint8_t *x, int64_t x_stride, Ints sum[SCAN_TILE][TILE_REGS]) {
    const int step = TOGETHER == 2 && !source_is_wide(source) ? 2 : 1;
#define ADD_QUADS(n)                                                                                                   \
    if (n < quads && n % step == 0) add_quads(queries, regs, source, values, n, at, table, x, x_stride, sum);
    ADD_QUADS(0)
    ADD_QUADS(1) ADD_QUADS(2) ADD_QUADS(3) ADD_QUADS(4) ADD_QUADS(5) ADD_QUADS(6) ADD_QUADS(7)
#undef ADD_QUADS
}

/* `regs` registers of codes from number `first` on. */
VEC_INLINE void product_tile(
    const int queries, const int regs, const Source source, const bool values, const Product *p, int first) {
    const int whole = part_quads(source), half = source == SOURCE_CODE5 ? 4 : whole;
    const Table table = table_load(p->table);
    Ints sum[SCAN_TILE][TILE_REGS];
    const uint8_t *at[TILE_REGS], *x = p->x;
    UNROLL for (int i = 0; i < queries; i++) UNROLL for (int r = 0; r < regs; r++) sum[i][r] = ints_zero();
    UNROLL for (int r = 0; r < regs; r++) at[r] =
        p->codes + (first + r) / QUAD_REGS * p->block_bytes + (first + r) % QUAD_REGS * (INT_LANES * 4);
    int quads = p->quads;
    const uint8_t *ahead = p->ahead->at;
    const int lines = p->ahead->fetch.product;
    if (!FETCH_PARTS) fetch_lines(ahead, lines);
    for (; quads >= whole; quads -= whole, x += whole * 4) {
        if (FETCH_PARTS) {
            fetch_lines(ahead, lines);
            ahead += (ptrdiff_t)lines * 64;
        }
        add_part(queries, regs, source, values, whole, at, &table, x, p->x_stride, sum);
        UNROLL for (int r = 0; r < regs; r++) at[r] += layer_tile_rows(source) * QUAD_BYTES;
    }
    if (!FETCH_PARTS) ahead += (ptrdiff_t)lines * 64;
    p->ahead->left -= (int)(ahead - p->ahead->at) / 64;
    p->ahead->at = ahead;
    if (half < whole && quads > 0) add_part(queries, regs, source, values, half, at, &table, x, p->x_stride, sum);
    UNROLL for (int i = 0; i < queries; i++) UNROLL for (int r = 0; r < regs; r++)
        ints_store(p->sums + (i * p->blocks * QUAD_REGS + first + r) * INT_LANES, sum[i][r]);
}

VEC_INLINE void product(const int queries, const Source source, const bool values, const Product *p) {
    const int regs = p->blocks * QUAD_REGS;
    int r = 0;
    for (; r + TILE_REGS <= regs; r += TILE_REGS) product_tile(queries, TILE_REGS, source, values, p, r);
    for (; (int)TILE_REGS > (int)QUAD_REGS && r < regs; r++) product_tile(queries, 1, source, values, p, r);
}

_Static_assert((int)SCAN_TILE <= (int)SCAN_TILE_MAX, "there is room for as many sums");

typedef void Products(const Product *p);
enum { HALF_keys = false, HALF_values = true };

#define PRODUCT(queries, half, source)                                                                                 \
    static void half##_##queries##_##source(const Product *p) { product(queries, SOURCE_##source, HALF_##half, p); }
#define PRODUCTS_OF(half, source)                                                                                      \
    PRODUCT(1, half, source)                                                                                           \
    PRODUCT(2, half, source)                                                                                           \
    PRODUCT(3, half, source) PRODUCT(4, half, source) PRODUCT(5, half, source) PRODUCT_SIX(half, source)
#if defined(__aarch64__)
#define PRODUCT_SIX(half, source)
#define EACH_SIX(half, source)
#else
#define PRODUCT_SIX(half, source) PRODUCT(6, half, source)
#define EACH_SIX(half, source) , half##_6_##source
#endif
#define EACH_QUERIES(half, source)                                                                                     \
    [SOURCE_##source] = {half##_1_##source, half##_2_##source, half##_3_##source, half##_4_##source,                   \
        half##_5_##source EACH_SIX(half, source)}
PRODUCTS_OF(keys, CODE4)
PRODUCTS_OF(keys, CODE5)
PRODUCTS_OF(keys, CODE6)
PRODUCTS_OF(keys, CODE8)
PRODUCTS_OF(keys, NARROW)
PRODUCTS_OF(keys, WIDE)
PRODUCTS_OF(values, CODE3)
PRODUCTS_OF(values, CODE4)
PRODUCTS_OF(values, CODE5)
PRODUCTS_OF(values, CODE6)
PRODUCTS_OF(values, CODE8)
PRODUCTS_OF(values, NARROW)
PRODUCTS_OF(values, WIDE)

/* [values][source][queries − 1] */
static Products *const products[2][SOURCES][SCAN_TILE] = {
    {EACH_QUERIES(keys, CODE4), EACH_QUERIES(keys, CODE5), EACH_QUERIES(keys, CODE6), EACH_QUERIES(keys, CODE8),
        EACH_QUERIES(keys, NARROW), EACH_QUERIES(keys, WIDE)},
    {EACH_QUERIES(values, CODE3), EACH_QUERIES(values, CODE4), EACH_QUERIES(values, CODE5), EACH_QUERIES(values, CODE6),
        EACH_QUERIES(values, CODE8), EACH_QUERIES(values, NARROW), EACH_QUERIES(values, WIDE)}};

/* ---- looked up before ---- */

VEC_INLINE void unpack_part(
    const Source source, const bool values, const int quads, const uint8_t *part, const Table *table, uint8_t *out) {
    for (int r = 0; r < QUAD_BYTES; r += INT_LANES * 4) {
#define UNPACK_QUAD(n)                                                                                                 \
    if (n < quads) ints_store(out + n * QUAD_BYTES + r, quad_bytes(source, values, part + r, n, table));
        UNPACK_QUAD(0)
        UNPACK_QUAD(1)
        UNPACK_QUAD(2) UNPACK_QUAD(3) UNPACK_QUAD(4) UNPACK_QUAD(5) UNPACK_QUAD(6) UNPACK_QUAD(7)
#undef UNPACK_QUAD
    }
}

VEC_INLINE void unpack_as(
    const Source source, const bool values, int quads, const uint8_t *codes, const uint8_t *lookup, uint8_t *out) {
    const int whole = part_quads(source);
    const Table table = table_load(lookup);
    for (; quads >= whole; quads -= whole, codes += layer_tile_rows(source) * QUAD_BYTES, out += whole * QUAD_BYTES)
        unpack_part(source, values, whole, codes, &table, out);
    if (source == SOURCE_CODE5 && quads > 0) unpack_part(source, values, 4, codes, &table, out);
}

/* Quads of one block to [quads][16][4] bytes. */
static void unpack(const ScanForm *f, bool values, int quads, const uint8_t *codes, uint8_t *out) {
    switch (f->form) {
    case KV_Q3: unpack_as(SOURCE_CODE3, values, quads, codes, f->table, out); break;
    case KV_Q4: unpack_as(SOURCE_CODE4, values, quads, codes, f->table, out); break;
    case KV_Q5: unpack_as(SOURCE_CODE5, values, quads, codes, f->table, out); break;
    case KV_Q6: unpack_as(SOURCE_CODE6, values, quads, codes, f->table, out); break;
    default:
        if (values)
            unpack_as(SOURCE_CODE8, true, quads, codes, f->table, out);
        else
            unpack_as(SOURCE_CODE8, false, quads, codes, f->table, out);
    }
}
