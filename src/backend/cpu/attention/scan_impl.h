/* Scans of quantised pages, compiled once per instruction set; scan.h has the order of the arithmetic. Included after
 * attention_impl.h, whose softmax they share. */
#include <float.h>

#include "backend/cpu/attention/scan_tile.h"

enum { TOKENS = KV_PAGE_TOKENS, LANES = 16, TOKEN_BLOCKS = TOKENS / LANES, TOKEN_QUADS = TOKENS / 4 };

static void scan_table(KvForm form, bool values, uint8_t *table) {
    memset(table, 0, SCAN_TABLE);
    if (form != KV_Q8) table_fill(form, kv_codebook(form), values ? 0 : key_offset(form), table);
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
    const bool some = most > FLT_MIN * 256; /* otherwise the inverse would be infinite, and scores are 0 */
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

/* ---- products of a page ---- */

/* Register tiles for some queries, of even heights: where tile i begins. */
static int tiles_of(int queries) { return (queries + SCAN_TILE - 1) / SCAN_TILE; }
static int tile_at(int queries, int i) { return queries * i / tiles_of(queries); }

/* True if codes are looked up in every register tile instead of once for all. */
static bool is_direct(const ScanForm *f, int queries) { return queries <= direct_most(f->form); }

/* Number of blocks processed together: all, or those that are looked up at a time. */
static int blocks_together(const ScanForm *f, int queries, int left) {
    return is_direct(f, queries) || left < SCAN_CHUNK ? left : SCAN_CHUNK;
}

/* Some two thirds of the time pass in products, and the rest in two passes over each query's floats. */
static ScanFetch fetch_over(const ScanForm *f, bool values, int queries, size_t bytes) {
    const Source source = is_direct(f, queries) ? (Source)f->form : SOURCE_NARROW;
    const int regs = (values ? f->layout.d / LANES : TOKEN_BLOCKS) * QUAD_REGS,
              quads = values ? TOKEN_QUADS : f->layout.d / 4, pieces = FETCH_PARTS ? quads / part_quads(source) : 1,
              calls = tiles_of(queries) * (regs / TILE_REGS) * pieces + 1, lines = (int)(bytes / 64);
    int product = (lines * 7 / calls + 5) / 10;
    if (product * calls > lines) product--;
    return (ScanFetch){product, (lines - product * calls) / (2 * queries) + 1};
}

static void scan_plan(ScanPage *page, int queries) {
    page->fetch_v = fetch_over(page->keys, false, queries, page->values->layout.bytes);
    page->fetch_k = fetch_over(page->values, true, queries, page->keys->layout.bytes);
}

static void start_fetching(ScanWork *work, const uint8_t *from, size_t bytes, ScanFetch fetch) {
    work->ahead = (ScanAhead){from, (int)(bytes / 64), fetch};
}

/* Opens a product over some blocks, raw or looked up. quads: of a group of a block. */
static Product open_product(const ScanForm *f, bool values, int queries, const uint8_t *page, int block, int blocks,
    int quads, ScanWork *work) {
    const uint8_t *codes = page + f->layout.codes + (size_t)block * f->layout.block;
    Product p = {codes, f->table, (int64_t)f->layout.block, blocks, NULL, 0, quads, &work->ahead, work->sums};
    if (is_direct(f, queries)) return p;
    const int chunks = values ? 1 : f->layout.groups;
    p.codes = work->unpacked;
    p.block_bytes = (int64_t)chunks * quads * QUAD_BYTES;
    for (int b = 0; b < blocks; b++)
        for (int r = 0; r < chunks; r++)
            unpack(f, values, quads, codes + (size_t)b * f->layout.block + (size_t)r * f->layout.run,
                work->unpacked + (b * chunks + r) * (int64_t)quads * QUAD_BYTES);
    return p;
}

static void multiply(const ScanForm *f, bool values, int queries, int height, const Product *p) {
    const Source source = is_direct(f, queries) ? (Source)f->form : form_is_wide(f->form) ? SOURCE_WIDE : SOURCE_NARROW;
    products[values][source][height - 1](p);
}

static void load_scales(const ScanForm *f, const uint8_t *page, float *scales) {
    for (int i = 0; i < f->layout.groups * TOKENS; i += LANES)
        vec_store(scales + i, vec_load_f16(page + f->layout.scale + (size_t)i * 2));
}

static void load_mean(const ScanForm *f, const uint8_t *page, float *mean) {
    for (int i = 0; i < f->layout.d; i += LANES)
        vec_store(mean + i, vec_load_f16(page + f->layout.mean + (size_t)i * 2));
}

/* ---- keys ---- */

static const ScanQuery *query_at(const ScanPage *page, int i) {
    return (const ScanQuery *)(const void *)((const uint8_t *)page->queries + (size_t)i * page->stride);
}

/* ⟨rotated, mean⟩ */
VEC_INLINE float score_of_mean(const ScanQuery *query, int d, const float *mean) {
    const float *rotated = scan_rotated(query);
    Vec sum = vec_set(0), other = vec_set(0);
    for (int i = 0; i < d; i += 2 * LANES) {
        sum = vec_fma(vec_load(rotated + i), vec_load(mean + i), sum);
        if (i + LANES < d) other = vec_fma(vec_load(rotated + i + LANES), vec_load(mean + i + LANES), other);
    }
    return vec_sum(vec_add(sum, other));
}

/* A query's factors for one group: its step, and the correction for offset and half from the sum of its codes. */
typedef struct Meet {
    float step, more;
} Meet;

/* p ← p + (sums · step + more) · scale, where p is `constant` before the first group; returns each lane's largest. */
VEC_INLINE Vec add_group(
    Meet meet, const float *scales, int tokens, const int32_t *sums, bool first, float constant, float *p) {
    const Vec step = vec_set(meet.step), more = vec_set(meet.more), start = vec_set(constant);
    Vec most = vec_set(-INFINITY);
    for (int t = 0; t < tokens; t += LANES) {
        const Vec part = vec_fma(vec_from_ints(sums + t), step, more);
        const Vec score = vec_fma(part, vec_load(scales + t), first ? start : vec_load(p + t));
        most = vec_max(most, score);
        vec_store(p + t, score);
    }
    return most;
}

/* Integer products with the tokens of some blocks: the contribution of the rotated queries to p. */
static void score_blocks(const ScanPage *page, int first, int count, int block, int blocks, ScanWork *work) {
    const ScanForm *f = page->keys;
    const int d = f->layout.d, group = f->layout.group, tokens = blocks * LANES;
    const float centre = 0.5f - (float)key_offset(f->form);
    Product p = open_product(f, false, count, page->k, block, blocks, group / 4, work);
    const uint8_t *codes = p.codes;
    const int64_t run = is_direct(f, count) ? (int64_t)f->layout.run : group / 4 * QUAD_BYTES;
    p.x_stride = (int64_t)page->stride;
    for (int tile = 0; tile < tiles_of(count); tile++) {
        const int from = tile_at(count, tile), height = tile_at(count, tile + 1) - from;
        for (int g = 0; g < f->layout.groups; g++) {
            p.codes = codes + g * run;
            p.x = (const uint8_t *)scan_codes(query_at(page, first + from), d) + g * group;
            multiply(f, false, count, height, &p);
            const float *scales = work->scales + g * TOKENS + block * LANES;
            for (int i = 0; i < height; i++) {
                const ScanQuery *query = query_at(page, first + from + i);
                const Meet meet = {query->step, query->step * query->sums[g] * centre};
                float *to = work->p + (from + i) * TOKENS + block * LANES;
                fetch_ahead(&work->ahead);
                const Vec lanes =
                    add_group(meet, scales, tokens, work->sums + i * tokens, g == 0, work->constant[from + i], to);
                if (g + 1 < f->layout.groups) continue;
                const float most = vec_most(lanes);
                if (block == 0 || most > work->most[from + i]) work->most[from + i] = most;
            }
        }
    }
}

/* p ← p + ⟨q, B⟩; returns the largest. */
static float add_bias(const ScanPage *page, const ScanQuery *query, float *p) {
    float along[KV_QUANT_BIAS_PAIRS], across[KV_QUANT_BIAS_PAIRS];
    Vec most = vec_set(-INFINITY);
    for (int n = 0; n < page->pairs; n++) {
        const float *turn = query->turns[n], c = page->start_cosine[n], s = page->start_sine[n];
        along[n] = turn[0] * c + turn[1] * s;
        across[n] = turn[1] * c - turn[0] * s;
    }
    for (int t = 0; t < TOKENS; t += LANES) {
        Vec score = vec_load(p + t);
        for (int n = 0; n < page->pairs; n++) {
            score = vec_fma(vec_set(along[n]), vec_load(page->cosines[n] + t), score);
            score = vec_fma(vec_set(across[n]), vec_load(page->sines[n] + t), score);
        }
        most = vec_max(most, score);
        vec_store(p + t, score);
    }
    return vec_most(most);
}

static void scan_scores(const ScanPage *page, int first, int count, ScanWork *work) {
    const ScanForm *f = page->keys;
    load_scales(f, page->k, work->scales);
    load_mean(f, page->k, work->mean);
    for (int i = 0; i < count; i++)
        work->constant[i] = score_of_mean(query_at(page, first + i), f->layout.d, work->mean);
    for (int block = 0, blocks; block < TOKEN_BLOCKS; block += blocks) {
        blocks = blocks_together(f, count, TOKEN_BLOCKS - block);
        score_blocks(page, first, count, block, blocks, work);
    }
    for (int i = 0; page->pairs && i < count; i++)
        work->most[i] = add_bias(page, query_at(page, first + i), work->p + i * TOKENS);
}

/* ---- values ---- */

static int scan_most(KvForm form, bool values) { return values ? weight_most(form) : query_most(form); }

/* The largest p · scale. */
VEC_INLINE float heaviest(const float *p, const float *scales) {
    Vec most = vec_set(0);
    for (int t = 0; t < TOKENS; t += LANES) most = vec_max(most, vec_mul(vec_load(p + t), vec_load(scales + t)));
    return vec_most(most);
}

/* Bytes of p · scale · inverse, each the step that the running sum over a lane's tokens takes when it is rounded;
 * returns the sum of the bytes. */
VEC_INLINE float round_weights(const float *p, const float *scales, float inverse, uint8_t *bytes) {
    Vec exact = vec_set(0);
    Wholes before = wholes_of(exact);
    for (int t = 0; t < TOKENS; t += 4 * LANES) {
        Wholes steps[4];
        for (int i = 0; i < 4; i++) {
            const int at = t + i * LANES;
            exact = vec_fma(vec_mul(vec_load(p + at), vec_load(scales + at)), vec_set(inverse), exact);
            const Wholes now = wholes_of(exact);
            steps[i] = wholes_less(now, before);
            before = now;
        }
        wholes_store_bytes(bytes + t, steps);
    }
    return vec_sum(vec_of_wholes(before));
}

/* Computes the weights of all queries in passes over the queries, as each division has a long latency. */
static void weigh(const ScanForm *f, const uint8_t *page, int count, ScanWork *work) {
    ScanWeights *w = &work->weights;
    const float most = (float)weight_most(f->form);
    float top[ATTENTION_QUERIES], inverse[ATTENTION_QUERIES];
    load_scales(f, page, work->scales);
    for (int g = 0; g < f->layout.groups; g++) {
        const float *scales = work->scales + g * TOKENS;
        for (int i = 0; i < count; i++) {
            fetch_ahead(&work->ahead);
            top[i] = heaviest(work->p + i * TOKENS, scales);
        }
        for (int i = 0; i < count; i++) {
            const bool some = top[i] > FLT_MIN * 256; /* smaller weights add nothing; inverse infinite */
            inverse[i] = some ? most / top[i] : 0;
            w->step[i][g] = some ? top[i] / most : 0;
        }
        for (int i = 0; i < count; i++) {
            uint8_t *bytes = w->bytes + (i * f->layout.groups + g) * TOKENS;
            fetch_ahead(&work->ahead);
            w->half[i][g] = 0.5f * round_weights(work->p + i * TOKENS, scales, inverse[i], bytes);
        }
    }
}

/* Dims of some blocks, of one group. */
static void add_blocks(const ScanPage *page, int count, int block, int blocks, ScanWork *work, int stride, float *o) {
    const ScanForm *f = page->values;
    const ScanWeights *w = &work->weights;
    const int group = block * LANES / f->layout.group, groups = f->layout.groups, dims = blocks * LANES;
    Product p = open_product(f, true, count, page->v, block, blocks, TOKEN_QUADS, work);
    p.x_stride = groups * TOKENS;
    for (int tile = 0; tile < tiles_of(count); tile++) {
        const int from = tile_at(count, tile), height = tile_at(count, tile + 1) - from;
        p.x = w->bytes + (from * groups + group) * TOKENS;
        multiply(f, true, count, height, &p);
        for (int i = 0; i < height; i++) {
            const Vec step = vec_set(w->step[from + i][group]), half = vec_set(w->half[from + i][group]),
                      factor = vec_set(work->factor[from + i]);
            float *row = o + (int64_t)(from + i) * stride + block * LANES;
            for (int j = 0; j < dims; j += LANES) {
                const Vec whole = vec_add(vec_from_ints(work->sums + i * dims + j), half);
                vec_store(row + j, vec_fma(whole, step, vec_mul(vec_load(row + j), factor)));
            }
        }
    }
}

static void scan_values(const ScanPage *page, int count, ScanWork *work, int stride, float *o) {
    const ScanForm *f = page->values;
    const int group_blocks = f->layout.group / LANES, all = f->layout.d / LANES;
    weigh(f, page->v, count, work);
    for (int block = 0, blocks; block < all; block += blocks) {
        blocks = blocks_together(f, count, group_blocks - block % group_blocks);
        add_blocks(page, count, block, blocks, work, stride, o);
    }
}

/* ---- a page ---- */

/* 2ˣ to 3e-6 for x ≤ 0, 1 for 0; below −125 some 1e-38. */
VEC_INLINE Vec power_of_two(Vec x) {
    Vec n;
    const Vec r = vec_fraction(vec_max(x, vec_set(-125)), &n);
    Vec p = vec_set(0.01342653149f);
    p = vec_fma(p, r, vec_set(0.05224271954f));
    p = vec_fma(p, r, vec_set(0.2412800906f));
    p = vec_fma(p, r, vec_set(0.6930448591f));
    p = vec_fma(p, r, vec_set(1));
    return vec_raise(p, n);
}

static void cap_scores(float softcap, int count, ScanWork *work) {
    for (int i = 0; i < count; i++) {
        Vec most = vec_set(-INFINITY);
        for (float *p = work->p + i * TOKENS; p < work->p + (i + 1) * TOKENS; p += LANES) {
            const Vec s = vec_mul(vec_set(softcap), vec_tanh(vec_mul(vec_load(p), vec_set(1.0f / softcap))));
            vec_store(p, s);
            most = vec_max(most, s);
        }
        work->most[i] = vec_most(most);
    }
}

static void slope_scores(const AttentionTile *t, int first, int count, ScanWork *work) {
    for (int i = 0; i < count; i++) {
        float *p = work->p + i * TOKENS;
        add_slope(t, first + i, 0, TOKENS, p);
        Vec most = vec_set(-INFINITY);
        for (int j = 0; j < TOKENS; j += LANES) most = vec_max(most, vec_load(p + j));
        work->most[i] = vec_most(most);
    }
}

/* Turns scores of the tile's queries from `first` on into weights in place. The caller multiplies earlier sums of
 * quantised values by the factors. */
static void soften_page(AttentionTile *t, int first, int count, ScanWork *work) {
    const float to_two = 1.44269504f;
    float factor[ATTENTION_QUERIES + LANES];
    if (t->softcap > 0) cap_scores(t->softcap, count, work);
    if (t->slopes) slope_scores(t, first, count, work);
    for (int i = 0; i < count; i++) {
        const float before = t->m[first + i], now = before > work->most[i] ? before : work->most[i];
        factor[i] = before - now;
        t->m[first + i] = now;
    }
    for (int i = 0; i < count; i += LANES) vec_store(factor + i, vec_exp_falling(vec_load_some(factor + i, count - i)));
    memcpy(work->factor, factor, (size_t)count * sizeof *factor);
    for (int i = 0; i < count; i++) {
        const Vec now = vec_set(-to_two * t->m[first + i]);
        Vec sum = vec_set(0);
        fetch_ahead(&work->ahead);
        for (float *p = work->p + i * TOKENS; p < work->p + (i + 1) * TOKENS; p += LANES) {
            const Vec e = power_of_two(vec_fma(vec_load(p), vec_set(to_two), now));
            vec_store(p, e);
            sum = vec_add(sum, e);
        }
        t->l[first + i] = fmaf(t->l[first + i], factor[i], vec_sum(sum));
        if (t->kinds[first + i] & ATTENTION_FULL && factor[i] != 1)
            scale_row(t->value_stride, factor[i], t->o + (int64_t)(first + i) * t->value_stride);
    }
}

static void scan_page(AttentionTile *t, int first, const ScanPage *page, ScanWork *work) {
    const int count = t->queries - first, stride = t->value_stride;
    start_fetching(work, page->v, page->values->layout.bytes, page->fetch_v);
    scan_scores(page, first, count, work);
    soften_page(t, first, count, work);
    start_fetching(work, page->next_k, page->keys->layout.bytes, page->fetch_k);
    scan_values(page, count, work, stride, t->quantised + (int64_t)first * stride);
}

#include "backend/cpu/attention/scan_latent.h"

static const ScanKernels scan_kernels = {
    .table = scan_table,
    .plan = scan_plan,
    .quantise = scan_quantise,
    .scores = scan_scores,
    .most = scan_most,
    .values = scan_values,
    .page = scan_page,
    .latent_page = scan_latent_page,
};

static const AttentionKernels attention_kernels = {
    .pack = attention_pack,
    .page = attention_page,
    .mix = attention_mix,
    .rotate = attention_rotate,
    .index_page = attention_index_page,
    .to_f16 = to_f16,
    .square = attention_square,
    .scan = &scan_kernels,
};
