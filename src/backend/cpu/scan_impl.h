/* Scans of coded pages, compiled once per instruction set; scan.h has the order of the arithmetic. Included after
 * attention_impl.h, whose softmax they share. */
#include <float.h>

#include "backend/cpu/scan_tile.h"

enum { TOKENS = KV_PAGE_TOKENS, LANES = 16, TOKEN_BLOCKS = TOKENS / LANES, TOKEN_QUADS = TOKENS / 4 };

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

/* ---- products of a page ---- */

/* Register tiles for some queries, of even heights: where tile i begins. */
static int tiles_of(int queries) { return (queries + SCAN_TILE - 1) / SCAN_TILE; }
static int tile_at(int queries, int i) { return queries * i / tiles_of(queries); }

/* Whether codes are looked up in every register tile, rather than once for all. */
static bool is_direct(const ScanForm *f, int queries) { return queries <= direct_most(f->form); }

/* Blocks that go together: all, or as many as are looked up at a time. */
static int blocks_together(const ScanForm *f, int queries, int left) {
    return is_direct(f, queries) || left < SCAN_CHUNK ? left : SCAN_CHUNK;
}

/* `bytes` from `from` (NULL: nothing) while `queries` meet `blocks` blocks of `quads` quads. */
static Ahead ahead_over(const uint8_t *from, size_t bytes, const ScanForm *codes, int queries, int blocks, int quads) {
    if (!from) return (Ahead){0};
    const Source source = is_direct(codes, queries) ? (Source)codes->form : SOURCE_NARROW;
    const int regs = blocks * QUAD_REGS, parts = (quads + part_quads(source) - 1) / part_quads(source);
    const int64_t times = (int64_t)tiles_of(queries) * ((regs + TILE_REGS - 1) / TILE_REGS) * parts;
    return (Ahead){from, from + bytes, (int)(((int64_t)(bytes + 63) / 64 + times - 1) / times)};
}

/* Some blocks as products take them: as they are, or looked up. quads: of a run. */
static Product open_product(const ScanForm *f, bool values, int queries, const uint8_t *page, int block, int blocks,
    int quads, Ahead *ahead, ScanWork *work) {
    const uint8_t *codes = page + f->layout.codes + (size_t)block * f->layout.block;
    Product p = {codes, f->table, (int64_t)f->layout.block, blocks, NULL, 0, quads, ahead, work->sums};
    if (is_direct(f, queries)) return p;
    const int runs = values ? 1 : f->layout.groups;
    p.codes = work->unpacked;
    p.block_bytes = (int64_t)runs * quads * QUAD_BYTES;
    for (int b = 0; b < blocks; b++)
        for (int r = 0; r < runs; r++)
            unpack(f, values, quads, codes + (size_t)b * f->layout.block + (size_t)r * f->layout.run,
                work->unpacked + (b * runs + r) * (int64_t)quads * QUAD_BYTES);
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

/* Of a group's sums, what they and codes' offset and half make, times the scales. */
VEC_INLINE Vec scaled(const int32_t *sums, Vec more, const float *scales) {
    return vec_mul(vec_add(vec_from_ints(sums), more), vec_load(scales));
}

/* p ← p + scaled sums, for groups before the last. */
VEC_INLINE void add_group(float more, const float *scales, int tokens, const int32_t *sums, bool first, float *p) {
    for (int t = 0; t < tokens; t += LANES) {
        const Vec part = scaled(sums + t, vec_set(more), scales + t);
        vec_store(p + t, first ? part : vec_add(part, vec_load(p + t)));
    }
}

/* The same for the last group, and p ← p · step + constant; gives the largest. */
VEC_INLINE float finish_group(float more, const float *scales, int tokens, const int32_t *sums, bool first, float step,
    float constant, float *p) {
    Vec most = vec_set(-INFINITY);
    for (int t = 0; t < tokens; t += LANES) {
        Vec score = scaled(sums + t, vec_set(more), scales + t);
        if (!first) score = vec_add(score, vec_load(p + t));
        score = vec_fma(score, vec_set(step), vec_set(constant));
        most = vec_max(most, score);
        vec_store(p + t, score);
    }
    return vec_most(most);
}

/* Integer products with the tokens of some blocks: the rotated queries' part of p. */
static void score_blocks(
    const ScanPage *page, int first, int count, int block, int blocks, Ahead *ahead, ScanWork *work) {
    const ScanForm *f = page->keys;
    const int d = f->layout.d, group = f->layout.group, tokens = blocks * LANES;
    const float centre = 0.5f - (float)key_offset(f->form);
    Product p = open_product(f, false, count, page->k, block, blocks, group / 4, ahead, work);
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
                const int32_t *sums = work->sums + i * tokens;
                float *to = work->p + (from + i) * TOKENS + block * LANES;
                if (g + 1 < f->layout.groups) {
                    add_group(query->sums[g] * centre, scales, tokens, sums, g == 0, to);
                    continue;
                }
                const float most = finish_group(
                    query->sums[g] * centre, scales, tokens, sums, g == 0, query->step, work->constant[from + i], to);
                if (block == 0 || most > work->most[from + i]) work->most[from + i] = most;
            }
        }
    }
}

/* p ← p + ⟨q, B⟩; gives the largest. */
static float add_bias(const ScanPage *page, const ScanQuery *query, float *p) {
    float along[KV_CODE_BIAS_PAIRS], across[KV_CODE_BIAS_PAIRS];
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

/* Meanwhile the page's values come. */
static void scan_scores(const ScanPage *page, int first, int count, ScanWork *work) {
    const ScanForm *f = page->keys;
    Ahead ahead = ahead_over(page->v, page->v ? page->values->layout.bytes : 0, f, count, TOKEN_BLOCKS,
        f->layout.groups * f->layout.group / 4);
    load_scales(f, page->k, work->scales);
    for (int i = 0; i < f->layout.d; i += LANES)
        vec_store(work->mean + i, vec_load_f16(page->k + f->layout.mean + (size_t)i * 2));
    for (int i = 0; i < count; i++)
        work->constant[i] = score_of_mean(query_at(page, first + i), f->layout.d, work->mean);
    for (int block = 0, blocks; block < TOKEN_BLOCKS; block += blocks) {
        blocks = blocks_together(f, count, TOKEN_BLOCKS - block);
        score_blocks(page, first, count, block, blocks, &ahead, work);
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

/* Bytes of p · scale · inverse, each the step that the running sum over a lane's tokens takes when it is rounded; gives
 * the sum of the bytes. */
VEC_INLINE float round_weights(const float *p, const float *scales, float inverse, uint8_t *bytes) {
    Vec exact = vec_set(0), before = vec_set(0);
    for (int t = 0; t < TOKENS; t += 4 * LANES) {
        Vec steps[4];
        for (int i = 0; i < 4; i++) {
            const int at = t + i * LANES;
            exact = vec_fma(vec_mul(vec_load(p + at), vec_load(scales + at)), vec_set(inverse), exact);
            const Vec now = vec_round(exact);
            steps[i] = vec_sub(now, before);
            before = now;
        }
        vec_store_weights(bytes + t, steps);
    }
    return vec_sum(before);
}

/* Weights of all queries. One after the other, in passes: each waits long for what it divides by. */
static void weigh(const ScanPage *page, int count, ScanWork *work) {
    const ScanForm *f = page->values;
    ScanWeights *w = &work->weights;
    const float most = (float)weight_most(f->form);
    float top[ATTENTION_QUERIES], inverse[ATTENTION_QUERIES];
    load_scales(f, page->v, work->scales);
    for (int g = 0; g < f->layout.groups; g++) {
        const float *scales = work->scales + g * TOKENS;
        for (int i = 0; i < count; i++) top[i] = heaviest(work->p + i * TOKENS, scales);
        for (int i = 0; i < count; i++) {
            const bool some = top[i] > FLT_MIN * 256; /* less would add nothing, and its inverse is infinite */
            inverse[i] = some ? most / top[i] : 0;
            w->step[i][g] = some ? top[i] / most : 0;
        }
        for (int i = 0; i < count; i++)
            w->half[i][g] = 0.5f *
                round_weights(work->p + i * TOKENS, scales, inverse[i], w->bytes + (i * f->layout.groups + g) * TOKENS);
    }
}

/* Dims of some blocks, of one group. */
static void add_blocks(
    const ScanPage *page, int count, int block, int blocks, Ahead *ahead, ScanWork *work, int stride, float *o) {
    const ScanForm *f = page->values;
    const ScanWeights *w = &work->weights;
    const int group = block * LANES / f->layout.group, groups = f->layout.groups, dims = blocks * LANES;
    Product p = open_product(f, true, count, page->v, block, blocks, TOKEN_QUADS, ahead, work);
    p.x_stride = groups * TOKENS;
    for (int tile = 0; tile < tiles_of(count); tile++) {
        const int from = tile_at(count, tile), height = tile_at(count, tile + 1) - from;
        p.x = w->bytes + (from * groups + group) * TOKENS;
        multiply(f, true, count, height, &p);
        for (int i = 0; i < height; i++) {
            const Vec step = vec_set(w->step[from + i][group]), half = vec_set(w->half[from + i][group]);
            float *row = o + (int64_t)(from + i) * stride + block * LANES;
            for (int j = 0; j < dims; j += LANES) {
                const Vec whole = vec_add(vec_from_ints(work->sums + i * dims + j), half);
                vec_store(row + j, vec_fma(whole, step, vec_load(row + j)));
            }
        }
    }
}

/* Meanwhile the next page's keys come. */
static void scan_values(const ScanPage *page, int count, ScanWork *work, int stride, float *o) {
    const ScanForm *f = page->values;
    const int group_blocks = f->layout.group / LANES, all = f->layout.d / LANES;
    Ahead ahead = ahead_over(page->next_k, page->next_k ? page->keys->layout.bytes : 0, f, count, all, TOKEN_QUADS);
    weigh(page, count, work);
    for (int block = 0, blocks; block < all; block += blocks) {
        blocks = blocks_together(f, count, group_blocks - block % group_blocks);
        add_blocks(page, count, block, blocks, &ahead, work, stride, o);
    }
}

/* ---- a page ---- */

/* 2ˣ to 3e-6 for x ≤ 0; below −125 some 1e-38. */
VEC_INLINE Vec power_of_two(Vec x) {
    x = vec_max(x, vec_set(-125));
    const Vec n = vec_round(x), r = vec_sub(x, n);
    Vec p = vec_set(0.00958285294f);
    p = vec_fma(p, r, vec_set(0.05590642616f));
    p = vec_fma(p, r, vec_set(0.24024099112f));
    p = vec_fma(p, r, vec_set(0.69312417507f));
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

/* Scores of the tile's queries from `first` on to weights in place. */
static void soften_page(AttentionTile *t, int first, int count, ScanWork *work) {
    const float to_two = 1.44269504f;
    float factor[ATTENTION_QUERIES + LANES];
    if (t->softcap > 0) cap_scores(t->softcap, count, work);
    for (int i = 0; i < count; i++) {
        const float before = t->m[first + i], now = before > work->most[i] ? before : work->most[i];
        factor[i] = before - now;
        t->m[first + i] = now;
    }
    for (int i = 0; i < count; i += LANES) vec_store(factor + i, vec_exp_falling(vec_load_some(factor + i, count - i)));
    for (int i = 0; i < count; i++) {
        const Vec now = vec_set(-to_two * t->m[first + i]);
        Vec sum = vec_set(0);
        for (float *p = work->p + i * TOKENS; p < work->p + (i + 1) * TOKENS; p += LANES) {
            const Vec e = power_of_two(vec_fma(vec_load(p), vec_set(to_two), now));
            vec_store(p, e);
            sum = vec_add(sum, e);
        }
        t->l[first + i] = fmaf(t->l[first + i], factor[i], vec_sum(sum));
        if (factor[i] != 1) scale_both(t, first + i, factor[i]);
    }
}

static void scan_page(AttentionTile *t, int first, const ScanPage *page, ScanWork *work) {
    const int count = t->queries - first, stride = t->value_stride;
    scan_scores(page, first, count, work);
    soften_page(t, first, count, work);
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
