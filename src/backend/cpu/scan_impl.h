/* Scans of coded pages, compiled once per instruction set; scan.h has the order of the arithmetic. Included after
 * attention_impl.h, whose softmax they share. */
#include <float.h>

#include "backend/cpu/scan_int.h"

enum { TOKENS = KV_PAGE_TOKENS, LANES = 16, TOKEN_BLOCKS = TOKENS / LANES, QUAD_BYTES = 64, TOKEN_QUADS = TOKENS / 4 };

/* ---- products ---- */

/* Unrolled before gcc decides what lives in memory: it keeps a copy of all sums there otherwise. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Lines to be fetched while products are computed, some for each quad: in a burst they would keep loads waiting. */
typedef struct Ahead {
    const uint8_t *at, *end;
    int lines; /* for each quad */
} Ahead;

/* `bytes` from `from` (NULL: nothing) during `quads` quads. */
static Ahead ahead_over(const uint8_t *from, size_t bytes, int64_t quads) {
    if (!from) return (Ahead){0};
    return (Ahead){from, from + bytes, (int)(((int64_t)(bytes + 63) / 64 + quads - 1) / quads)};
}

static int ahead_lines(const Ahead *ahead) { return ahead->at < ahead->end ? ahead->lines : 0; }

static void ahead_advance(Ahead *ahead, int quads) {
    if (ahead->at) ahead->at += (ptrdiff_t)ahead->lines * 64 * quads;
}

enum { REGS_MOST = SCAN_CHUNK * QUAD_REGS };

VEC_INLINE void load_quad(const int regs, const uint8_t *codes, int64_t block_bytes, Ints *loaded) {
    UNROLL for (int r = 0; r < regs; r++) loaded[r] =
        ints_load(codes + r / QUAD_REGS * block_bytes + r % QUAD_REGS * (INT_LANES * 4));
}

/* sums[query][block][lane] of four-byte products over quads, an even number; x: a query's codes or weights. ahead: of
 * which `lines` lines are fetched for each quad. */
VEC_INLINE void product_tile(const int queries, const int blocks, const ScanKind kind, const uint8_t *codes,
    int64_t block_bytes, const uint8_t *x, int64_t x_stride, int quads, const uint8_t *ahead, int lines,
    int32_t *sums) {
    Ints sum[SCAN_TILE][REGS_MOST];
    const int regs = blocks * QUAD_REGS, together = kind_is_wide(kind) ? 1 : NARROW_QUADS;
    UNROLL for (int i = 0; i < queries; i++) UNROLL for (int r = 0; r < regs; r++) sum[i][r] = ints_zero();
    for (int64_t q = 0; q < quads; q += together) {
        Ints loaded[REGS_MOST], next[REGS_MOST];
        for (int l = 0; l < lines * together; l++) __builtin_prefetch(ahead + (q * lines + l) * 64, 0, 3);
        load_quad(regs, codes + q * QUAD_BYTES, block_bytes, loaded);
        if (together == 2) load_quad(regs, codes + (q + 1) * QUAD_BYTES, block_bytes, next);
        UNROLL for (int i = 0; i < queries; i++) {
            const uint8_t *four = x + i * x_stride + q * 4;
            const Ints one = ints_four(four), other = together == 2 ? ints_four(four + 4) : one;
            UNROLL for (int r = 0; r < regs; r++) sum[i][r] = together == 2
                ? ints_dot2(kind, sum[i][r], loaded[r], one, next[r], other)
                : ints_dot(kind, sum[i][r], loaded[r], one);
        }
    }
    UNROLL for (int i = 0; i < queries; i++) UNROLL for (int r = 0; r < regs; r++)
        ints_store(sums + (i * regs + r) * INT_LANES, sum[i][r]);
}

typedef void Product(const uint8_t *codes, int64_t block_bytes, const uint8_t *lookup, const uint8_t *x,
    int64_t x_stride, int quads, const uint8_t *ahead, int lines, int32_t *sums);

#define PRODUCT(queries, blocks, kind)                                                                                 \
    static void product_##queries##_##blocks##_##kind(const uint8_t *codes, int64_t block_bytes,                       \
        const uint8_t *lookup, const uint8_t *x, int64_t x_stride, int quads, const uint8_t *ahead, int lines,         \
        int32_t *sums) {                                                                                               \
        product_tile(queries, blocks, kind, codes, block_bytes, x, x_stride, quads, ahead, lines, sums);               \
    }
#define PRODUCT_KINDS(queries, blocks)                                                                                 \
    PRODUCT(queries, blocks, SCAN_KEYS)                                                                                \
    PRODUCT(queries, blocks, SCAN_WIDE_KEYS)                                                                           \
    PRODUCT(queries, blocks, SCAN_VALUES) PRODUCT(queries, blocks, SCAN_WIDE_VALUES)
#define PRODUCTS_OF(blocks)                                                                                            \
    PRODUCT_KINDS(1, blocks)                                                                                           \
    PRODUCT_KINDS(2, blocks) PRODUCT_KINDS(3, blocks) PRODUCT_KINDS(4, blocks) PRODUCTS_TALL(blocks)
#if defined(__AVX512F__)
#define PRODUCTS_TALL(blocks) PRODUCT_KINDS(5, blocks) PRODUCT_KINDS(6, blocks)
#define EACH_TALL(blocks, kind) , product_5_##blocks##_##kind, product_6_##blocks##_##kind
enum { WIDEST = 4 };
#elif defined(__aarch64__)
#define PRODUCTS_TALL(blocks) PRODUCT_KINDS(5, blocks)
#define EACH_TALL(blocks, kind) , product_5_##blocks##_##kind
enum { WIDEST = 1 };
#else
#define PRODUCTS_TALL(blocks)
#define EACH_TALL(blocks, kind)
enum { WIDEST = 1 };
#endif
#define EACH_QUERIES(blocks, kind)                                                                                     \
    {                                                                                                                  \
        product_1_##blocks##_##kind, product_2_##blocks##_##kind, product_3_##blocks##_##kind,                         \
            product_4_##blocks##_##kind EACH_TALL(blocks, kind)                                                        \
    }
#define EACH_KIND(blocks)                                                                                              \
    {                                                                                                                  \
        EACH_QUERIES(blocks, SCAN_KEYS), EACH_QUERIES(blocks, SCAN_WIDE_KEYS), EACH_QUERIES(blocks, SCAN_VALUES),      \
            EACH_QUERIES(blocks, SCAN_WIDE_VALUES)                                                                     \
    }
PRODUCTS_OF(1)
#if defined(__AVX512F__)
PRODUCTS_OF(2)
PRODUCTS_OF(4)
static Product *const products[][SCAN_KINDS][SCAN_TILE] = {EACH_KIND(1), EACH_KIND(2), EACH_KIND(4)};
#else
static Product *const products[][SCAN_KINDS][SCAN_TILE] = {EACH_KIND(1)};
#endif

/* Blocks that go together where `left` are to come: 4, 2 or 1. */
static int chunk_of(int left) { return left >= 4 && WIDEST == 4 ? 4 : left >= 2 && WIDEST == 4 ? 2 : 1; }

static int tiles_of(int queries) { return (queries + SCAN_TILE - 1) / SCAN_TILE; }

#if defined(__AVX512F__)
/* The same over nibbles of four blocks that are looked up on the way: for so few queries that codes are used once. */
VEC_INLINE void direct_tile(const int queries, const ScanKind kind, const uint8_t *codes, int64_t block_bytes,
    const uint8_t *lookup, const uint8_t *x, int64_t x_stride, int quads, const uint8_t *ahead, int lines,
    int32_t *sums) {
    Ints sum[SCAN_TILE][SCAN_CHUNK];
    const Table table = table_load(lookup);
    UNROLL for (int i = 0; i < queries; i++) UNROLL for (int b = 0; b < SCAN_CHUNK; b++) sum[i][b] = ints_zero();
    for (int64_t q = 0; q < quads; q += 2) {
        for (int l = 0; l < lines * 2; l++) __builtin_prefetch(ahead + (q * lines + l) * 64, 0, 3);
        UNROLL for (int high = 0; high < 2; high++) {
            Ints loaded[SCAN_CHUNK];
            UNROLL for (int b = 0; b < SCAN_CHUNK; b++) {
                const Ints two = ints_load(codes + b * block_bytes + q * (QUAD_BYTES / 2));
                loaded[b] = _mm512_permutexvar_epi8(high ? _mm512_srli_epi16(two, 4) : two, table);
            }
            UNROLL for (int i = 0; i < queries; i++) {
                const Ints four = ints_four(x + i * x_stride + (q + high) * 4);
                UNROLL for (int b = 0; b < SCAN_CHUNK; b++) sum[i][b] = ints_dot(kind, sum[i][b], loaded[b], four);
            }
            __asm__("" ::: "memory"); /* load both again rather than keep them: there is no register for that */
        }
    }
    UNROLL for (int i = 0; i < queries; i++) UNROLL for (int b = 0; b < SCAN_CHUNK; b++)
        ints_store(sums + (i * SCAN_CHUNK + b) * INT_LANES, sum[i][b]);
}

#define DIRECT_PRODUCT(queries, kind)                                                                                  \
    static void direct_##queries##_##kind(const uint8_t *codes, int64_t block_bytes, const uint8_t *lookup,            \
        const uint8_t *x, int64_t x_stride, int quads, const uint8_t *ahead, int lines, int32_t *sums) {               \
        direct_tile(queries, kind, codes, block_bytes, lookup, x, x_stride, quads, ahead, lines, sums);                \
    }
#define DIRECT_PRODUCTS(kind)                                                                                          \
    DIRECT_PRODUCT(1, kind)                                                                                            \
    DIRECT_PRODUCT(2, kind)                                                                                            \
    DIRECT_PRODUCT(3, kind) DIRECT_PRODUCT(4, kind) DIRECT_PRODUCT(5, kind) DIRECT_PRODUCT(6, kind)
DIRECT_PRODUCTS(SCAN_KEYS)
DIRECT_PRODUCTS(SCAN_VALUES)
#define EACH_DIRECT(kind)                                                                                              \
    { direct_1_##kind, direct_2_##kind, direct_3_##kind, direct_4_##kind, direct_5_##kind, direct_6_##kind }
static Product *const direct_products[SCAN_KINDS][SCAN_TILE] = {
    [SCAN_KEYS] = EACH_DIRECT(SCAN_KEYS), [SCAN_VALUES] = EACH_DIRECT(SCAN_VALUES)};
#else
static Product *const direct_products[SCAN_KINDS][SCAN_TILE];
#endif

/* ---- unpacking ---- */

static void unpack(const ScanForm *f, bool values, int quads, const uint8_t *page, int block, uint8_t *out) {
    const uint8_t *codes = page + f->layout.codes + (size_t)block * f->layout.block;
    const uint8_t *extra = page + f->layout.extra + (size_t)block * f->layout.extra_block;
    const Table table = table_load(f->table);
    switch (f->form) {
    case KV_CODE3: unpack3(quads, codes, extra, table, out); break;
    case KV_CODE4: unpack4(quads, codes, table, out); break;
    case KV_CODE5: unpack5(quads, codes, extra, table, out); break;
    case KV_CODE6: unpack6(quads, codes, extra, table, out); break;
    default: unpack8(quads, codes, values, out); break;
    }
}

/* Codes of some blocks as products take them: of the page itself, or unpacked. */
typedef struct Codes {
    const uint8_t *at;
    int64_t block_bytes;
    int quad_bytes;
    Product *const *products; /* [queries − 1] */
} Codes;

static Codes codes_of(
    const ScanForm *f, bool values, int count, const uint8_t *page, int block, int blocks, ScanWork *work) {
    const ScanKind kind = values ? (form_is_wide(f->form) ? SCAN_WIDE_VALUES : SCAN_VALUES)
                                 : (form_is_wide(f->form) ? SCAN_WIDE_KEYS : SCAN_KEYS);
    if (f->form == KV_CODE4 && count <= SCAN_TILE && blocks == SCAN_CHUNK && direct_products[kind][0])
        return (Codes){page + f->layout.codes + (size_t)block * f->layout.block, (int64_t)f->layout.block,
            QUAD_BYTES / 2, direct_products[kind]};
    const int quads = values ? TOKEN_QUADS : f->layout.d / 4;
    for (int b = 0; b < blocks; b++)
        unpack(f, values, quads, page, block + b, work->unpacked + (int64_t)b * quads * QUAD_BYTES);
    return (Codes){work->unpacked, (int64_t)quads * QUAD_BYTES, QUAD_BYTES, products[blocks / 2][kind]};
}

static void scan_table(KvForm form, bool values, uint8_t *table) {
    memset(table, 0, SCAN_TABLE);
    if (form != KV_CODE8) table_fill(form, kv_codebook(form), values ? 0 : key_offset(form), table);
}

/* ---- queries ---- */

static float largest(const float *x, int count) {
    Vec most = vec_set(0);
    for (int i = 0; i < count; i += 16) {
        const Vec v = vec_load(x + i);
        most = vec_max(most, vec_max(v, vec_sub(vec_set(0), v)));
    }
    return vec_most(most);
}

static void scan_quantise(ScanQuery *query, KvForm form, int d, int group) {
    const float *x = scan_rotated(query), most = largest(x, d);
    int8_t *codes = scan_codes(query, d);
    const float levels = (float)query_most(form);
    const bool some = most > FLT_MIN * 256; /* otherwise the inverse is infinite, and scores are nothing */
    query->step = some ? most / levels : 0;
    const Vec inverse = vec_set(some ? levels / most : 0);
    for (int g = 0; g * group < d; g++) {
        Vec sum = vec_set(0);
        for (int i = g * group; i < (g + 1) * group; i += 16) {
            const Vec whole = vec_round(vec_mul(vec_load(x + i), inverse));
            vec_store_bytes(codes + i, whole);
            sum = vec_add(sum, whole);
        }
        query->sums[g] = vec_sum(sum);
    }
}

/* ---- keys ---- */

static const ScanQuery *query_at(const ScanPage *page, int i) {
    return (const ScanQuery *)(const void *)((const uint8_t *)page->queries + (size_t)i * page->stride);
}

/* p ← p + scale · (sums + what the offset of codes and their half make) for the tokens of some blocks. */
static void add_group(const ScanQuery *query, const uint8_t *scales, int group, float centre, int blocks,
    const int32_t *sums, bool first, float *p) {
    const Vec more = vec_set(query->sums[group] * centre);
    for (int t = 0; t < blocks * LANES; t += LANES) {
        const Vec product = vec_add(vec_from_ints(sums + t), more), scale = vec_load_f16(scales + t * 2);
        vec_store(p + t, first ? vec_mul(product, scale) : vec_fma(product, scale, vec_load(p + t)));
    }
}

/* Integer products with the tokens of some blocks: the rotated queries' part of p. */
static void score_blocks(
    const ScanPage *page, int first, int count, int block, int blocks, Ahead *ahead, ScanWork *work) {
    const ScanForm *f = page->keys;
    const int group_quads = f->layout.group / 4;
    const Codes codes = codes_of(f, false, count, page->k, block, blocks, work);
    const float centre = 0.5f - (float)key_offset(f->form);
    int32_t sums[SCAN_TILE * SCAN_CHUNK * LANES];
    for (int start = 0; start < count;) {
        const int tiles = tiles_of(count - start), height = (count - start + tiles - 1) / tiles;
        const ScanQuery *query = query_at(page, first + start);
        for (int g = 0; g < f->layout.groups; g++) {
            codes.products[height - 1](codes.at + (int64_t)g * group_quads * codes.quad_bytes, codes.block_bytes,
                f->table, (const uint8_t *)scan_codes(query, f->layout.d) + g * f->layout.group, (int64_t)page->stride,
                group_quads, ahead->at, ahead_lines(ahead), sums);
            ahead_advance(ahead, group_quads);
            const uint8_t *scales = page->k + f->layout.scale + (size_t)(g * TOKENS + block * LANES) * 2;
            for (int i = 0; i < height; i++)
                add_group(query_at(page, first + start + i), scales, g, centre, blocks, sums + i * blocks * LANES,
                    g == 0, work->p + (start + i) * TOKENS + block * LANES);
        }
        start += height;
    }
}

/* p ← p · step + ⟨rotated, mean⟩ + ⟨q, B⟩ */
static void complete_scores(const ScanPage *page, const ScanQuery *query, const float *mean, float *p) {
    const float *rotated = scan_rotated(query);
    Vec constant = vec_set(0);
    for (int i = 0; i < page->keys->layout.d; i += LANES)
        constant = vec_fma(vec_load(rotated + i), vec_load(mean + i), constant);
    const Vec all = vec_set(vec_sum(constant)), step = vec_set(query->step);
    for (int t = 0; t < TOKENS; t += LANES) vec_store(p + t, vec_fma(vec_load(p + t), step, all));
    for (int n = 0; n < page->pairs; n++) {
        const float *turn = query->turns[n], c = page->start_cosine[n], s = page->start_sine[n];
        const Vec a = vec_set(turn[0] * c + turn[1] * s), b = vec_set(turn[1] * c - turn[0] * s);
        for (int t = 0; t < TOKENS; t += LANES) {
            const Vec one = vec_fma(a, vec_load(page->cosines[n] + t), vec_load(p + t));
            vec_store(p + t, vec_fma(b, vec_load(page->sines[n] + t), one));
        }
    }
}

/* Meanwhile the page's values come. */
static void scan_scores(const ScanPage *page, int first, int count, ScanWork *work) {
    const ScanForm *f = page->keys;
    const int chunks = TOKEN_BLOCKS / chunk_of(TOKEN_BLOCKS);
    Ahead ahead = ahead_over(
        page->v, page->v ? page->values->layout.bytes : 0, (int64_t)chunks * tiles_of(count) * f->layout.d / 4);
    for (int block = 0, blocks; block < TOKEN_BLOCKS; block += blocks) {
        blocks = chunk_of(TOKEN_BLOCKS - block);
        score_blocks(page, first, count, block, blocks, &ahead, work);
    }
    for (int i = 0; i < f->layout.d; i += LANES)
        vec_store(work->mean + i, vec_load_f16(page->k + f->layout.mean + (size_t)i * 2));
    for (int i = 0; i < count; i++) complete_scores(page, query_at(page, first + i), work->mean, work->p + i * TOKENS);
}

/* ---- values ---- */

static int scan_most(KvForm form, bool values) { return values ? weight_most(form) : query_most(form); }

/* The weights of a query for one group: bytes of p · scale, each the step that the running sum over a lane's tokens
 * takes when it is rounded. */
static void weigh(const float *p, const uint8_t *scales, float most, uint8_t *bytes, float *step, float *half) {
    Vec weight[TOKEN_BLOCKS], top = vec_set(0), exact = vec_set(0), before = vec_set(0);
    for (int b = 0; b < TOKEN_BLOCKS; b++) {
        weight[b] = vec_mul(vec_load(p + b * LANES), vec_load_f16(scales + b * LANES * 2));
        top = vec_max(top, weight[b]);
    }
    const float heaviest = vec_most(top);
    const bool some = heaviest > FLT_MIN * 256; /* less would add nothing, and its inverse is infinite */
    const Vec inverse = vec_set(some ? most / heaviest : 0);
    for (int b = 0; b < TOKEN_BLOCKS; b++) {
        exact = vec_fma(weight[b], inverse, exact);
        const Vec now = vec_round(exact);
        vec_store_bytes(bytes + b * LANES, vec_sub(now, before));
        before = now;
    }
    *step = some ? heaviest / most : 0;
    *half = 0.5f * vec_sum(before);
}

static void weigh_all(const ScanPage *page, int count, ScanWork *work) {
    const ScanForm *f = page->values;
    ScanWeights *w = &work->weights;
    for (int i = 0; i < count; i++)
        for (int g = 0; g < f->layout.groups; g++)
            weigh(work->p + i * TOKENS, page->v + f->layout.scale + (size_t)(g * TOKENS) * 2,
                (float)weight_most(f->form), w->bytes + (i * f->layout.groups + g) * TOKENS, &w->step[i][g],
                &w->half[i][g]);
}

/* Dims of some blocks, of one group. */
static void add_blocks(
    const ScanPage *page, int count, int block, int blocks, Ahead *ahead, ScanWork *work, int stride, float *o) {
    const ScanForm *f = page->values;
    const ScanWeights *w = &work->weights;
    const int group = block * LANES / f->layout.group, groups = f->layout.groups;
    const Codes codes = codes_of(f, true, count, page->v, block, blocks, work);
    int32_t sums[SCAN_TILE * SCAN_CHUNK * LANES];
    for (int start = 0; start < count;) {
        const int tiles = tiles_of(count - start), height = (count - start + tiles - 1) / tiles;
        codes.products[height - 1](codes.at, codes.block_bytes, f->table, w->bytes + (start * groups + group) * TOKENS,
            groups * TOKENS, TOKEN_QUADS, ahead->at, ahead_lines(ahead), sums);
        ahead_advance(ahead, TOKEN_QUADS);
        for (int i = 0; i < height; i++) {
            const Vec step = vec_set(w->step[start + i][group]), half = vec_set(w->half[start + i][group]);
            float *row = o + (int64_t)(start + i) * stride + block * LANES;
            for (int j = 0; j < blocks * LANES; j += LANES) {
                const Vec whole = vec_add(vec_from_ints(sums + i * blocks * LANES + j), half);
                vec_store(row + j, vec_fma(whole, step, vec_load(row + j)));
            }
        }
        start += height;
    }
}

/* Meanwhile the next page's keys come. */
static void scan_values(const ScanPage *page, int count, ScanWork *work, int stride, float *o) {
    const ScanForm *f = page->values;
    const int group_blocks = f->layout.group / LANES, all = f->layout.d / LANES;
    Ahead ahead = ahead_over(page->next_k, page->next_k ? page->keys->layout.bytes : 0,
        (int64_t)tiles_of(count) * TOKEN_QUADS * all / chunk_of(group_blocks));
    weigh_all(page, count, work);
    for (int block = 0, blocks; block < all; block += blocks) {
        blocks = chunk_of(group_blocks - block % group_blocks);
        add_blocks(page, count, block, blocks, &ahead, work, stride, o);
    }
}

/* ---- a page ---- */

/* eˣ to 3e-6 for x ≤ 0; below −87 some 1e-38. */
VEC_INLINE Vec exp_of_score(Vec x) {
    x = vec_max(x, vec_set(-87));
    const Vec n = vec_round(vec_mul(x, vec_set(1.44269504f))), r = vec_fma(n, vec_set(-0.69314718f), x);
    Vec p = vec_set(1.0f / 120);
    p = vec_fma(p, r, vec_set(1.0f / 24));
    p = vec_fma(p, r, vec_set(1.0f / 6));
    p = vec_fma(p, r, vec_set(0.5f));
    p = vec_fma(p, r, vec_set(1));
    p = vec_fma(p, r, vec_set(1));
    return vec_scale2(p, n);
}

/* Scores of a query to weights in place; gives the factor for what it had before. */
static float soften_page(AttentionTile *t, int query, float *p) {
    Vec top = vec_set(-INFINITY), sum = vec_set(0);
    for (int j = 0; j < TOKENS; j += LANES) {
        Vec s = vec_load(p + j);
        if (t->softcap > 0) s = vec_mul(vec_set(t->softcap), vec_tanh(vec_mul(s, vec_set(1.0f / t->softcap))));
        vec_store(p + j, s);
        top = vec_max(top, s);
    }
    const float before = t->m[query], page = vec_most(top), now = before > page ? before : page;
    for (int j = 0; j < TOKENS; j += LANES) {
        const Vec e = exp_of_score(vec_sub(vec_load(p + j), vec_set(now)));
        vec_store(p + j, e);
        sum = vec_add(sum, e);
    }
    const float factor = before == now ? 1 : vec_first(vec_exp_falling(vec_set(before - now)));
    t->m[query] = now;
    t->l[query] = fmaf(t->l[query], factor, vec_sum(sum));
    return factor;
}

static void scan_page(AttentionTile *t, int first, const ScanPage *page, ScanWork *work) {
    const int count = t->queries - first, stride = t->value_stride;
    scan_scores(page, first, count, work);
    for (int i = 0; i < count; i++) {
        const float factor = soften_page(t, first + i, work->p + i * TOKENS);
        if (factor != 1) scale_both(t, first + i, factor);
    }
    scan_values(page, count, work, stride, t->coded + (int64_t)first * stride);
}

static const ScanKernels scan_kernels = {
    .table = scan_table,
    .quantise = scan_quantise,
    .scores = scan_scores,
    .most = scan_most,
    .values = scan_values,
    .page = scan_page,
};

static const AttentionKernels attention_kernels = {
    .pack = attention_pack,
    .page = attention_page,
    .mix = attention_mix,
    .rotate = attention_rotate,
    .to_f16 = to_f16,
    .square = attention_square,
    .scan = &scan_kernels,
};
