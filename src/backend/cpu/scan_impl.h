/* Scans of coded pages, compiled once per instruction set; scan.h has the order of the arithmetic. Included after
 * attention_impl.h, whose softmax they share. */
#include <float.h>

#include "backend/cpu/scan_tile.h"
#include "backend/cpu/scan_weights.h"

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

static int fetch_over(const ScanForm *f, bool values, int queries, size_t bytes) {
    const Source source = is_direct(f, queries) ? (Source)f->form : SOURCE_NARROW;
    const int blocks = values ? f->layout.d / LANES : TOKEN_BLOCKS, quads = values ? TOKEN_QUADS : f->layout.d / 4,
              parts = FETCH_PARTS ? quads / part_quads(source) : 1,
              calls = tiles_of(queries) * (blocks * QUAD_REGS / tile_regs_of(queries)) * parts + 1;
    return ((int)(bytes / 64) + calls - 1) / calls;
}

static void scan_plan(ScanPage *page, int queries) {
    page->fetch_keys = fetch_over(page->keys, false, queries, page->values->layout.bytes);
    page->fetch_values = fetch_over(page->values, true, queries, page->keys->layout.bytes);
}

static void start_fetching(ScanWork *work, const uint8_t *from, size_t bytes, int together) {
    work->ahead = (ScanAhead){from, (int)(bytes / 64), together};
}

/* Some blocks as products take them: as they are, or looked up. quads: of a run. */
static Product open_product(const ScanForm *f, bool values, int queries, const uint8_t *page, int block, int blocks,
    int quads, ScanWork *work) {
    const uint8_t *codes = page + f->layout.codes + (size_t)block * f->layout.block;
    Product p = {codes, f->table, (int64_t)f->layout.block, blocks, NULL, 0, quads, &work->ahead, work->sums};
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

/* What a group's codes meet of a query: its step, and what their offset and half make of its codes' sum. */
typedef struct Meet {
    float step, more;
} Meet;

/* p ← before + (sums · step + more) · scale; gives each lane's largest. */
VEC_INLINE Vec add_group(
    Meet meet, const float *scales, int tokens, const int32_t *sums, const float *before, float *p) {
    const Vec step = vec_set(meet.step), more = vec_set(meet.more);
    Vec most = vec_set(-INFINITY);
    for (int t = 0; t < tokens; t += LANES) {
        const Vec part = vec_fma(vec_from_ints(sums + t), step, more);
        const Vec score = vec_fma(part, vec_load(scales + t), vec_load(before + t));
        most = vec_max(most, score);
        vec_store(p + t, score);
    }
    return most;
}

/* Integer products with the tokens of some blocks: the rotated queries' part of p. waiting: a page whose weights are
 * computed on the way. */
static void score_blocks(
    const ScanPage *page, int first, int count, int block, int blocks, ScanWork *work, ScanWork *waiting) {
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
            if (waiting) weigh_until(waiting, waiting->count * (tile + 1) / tiles_of(count));
            const float *scales = work->scales + g * TOKENS + block * LANES;
            for (int i = 0; i < height; i++) {
                const ScanQuery *query = query_at(page, first + from + i);
                const Meet meet = {query->step, query->step * query->sums[g] * centre};
                float *to = work->p + (from + i) * TOKENS + block * LANES, *lanes = work->lanes[from + i];
                const Vec most = add_group(
                    meet, scales, tokens, work->sums + i * tokens, g == 0 ? work->logs + block * LANES : to, to);
                if (g + 1 == f->layout.groups) vec_store(lanes, block ? vec_max(most, vec_load(lanes)) : most);
            }
        }
    }
}

/* p ← p + ⟨q, B⟩; gives each lane's largest. */
static Vec add_bias(const ScanPage *page, const ScanQuery *query, float *p) {
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
    return most;
}

static void score_page(const ScanPage *page, int first, int count, ScanWork *work, ScanWork *waiting) {
    const ScanForm *f = page->keys;
    take_logs(page->values, page->v, work);
    load_scales(f, page->k, work->scales);
    load_mean(f, page->k, work->mean);
    for (int i = 0; i < count; i++)
        work->constant[i] = score_of_mean(query_at(page, first + i), f->layout.d, work->mean);
    for (int block = 0, blocks; block < TOKEN_BLOCKS; block += blocks) {
        blocks = blocks_together(f, count, TOKEN_BLOCKS - block);
        score_blocks(page, first, count, block, blocks, work, waiting);
    }
    for (int i = 0; page->pairs && i < count; i++)
        vec_store(work->lanes[i], add_bias(page, query_at(page, first + i), work->p + i * TOKENS));
    for (int i = 0; i < count; i++) work->most[i] = vec_most(vec_load(work->lanes[i]));
    work->values = page->values;
    work->v = page->v;
    work->first = first;
    work->count = count;
    work->weighed = 0;
}

static void scan_scores(const ScanPage *page, int first, int count, ScanWork *work) {
    score_page(page, first, count, work, NULL);
}

/* ---- values ---- */

static int scan_most(KvForm form, bool values) { return values ? weight_most(form) : query_most(form); }

/* Dims of some blocks, of one group. */
static void add_blocks(int block, int blocks, ScanWork *work, int stride, float *o) {
    const ScanForm *f = work->values;
    const ScanWeights *w = &work->weights;
    const int count = work->count, group = block * LANES / f->layout.group, groups = f->layout.groups,
              dims = blocks * LANES;
    Product p = open_product(f, true, count, work->v, block, blocks, TOKEN_QUADS, work);
    p.x_stride = groups * TOKENS;
    for (int tile = 0; tile < tiles_of(count); tile++) {
        const int from = tile_at(count, tile), height = tile_at(count, tile + 1) - from;
        p.x = w->bytes + (from * groups + group) * TOKENS;
        multiply(f, true, count, height, &p);
        for (int i = 0; i < height; i++) {
            const float each = w->step[group][from + i];
            const Vec step = vec_set(each), more = vec_set(each * w->half[group][from + i]),
                      factor = vec_set(work->factor[from + i]);
            float *row = o + (int64_t)(from + i) * stride + block * LANES;
            for (int j = 0; j < dims; j += LANES) {
                const Vec before = vec_fma(vec_load(row + j), factor, more);
                vec_store(row + j, vec_fma(vec_from_ints(work->sums + i * dims + j), step, before));
            }
        }
    }
}

static void scan_values(ScanWork *work, int stride, float *o) {
    const ScanForm *f = work->values;
    const int group_blocks = f->layout.group / LANES, all = f->layout.d / LANES;
    for (int block = 0, blocks; block < all; block += blocks) {
        blocks = blocks_together(f, work->count, group_blocks - block % group_blocks);
        add_blocks(block, blocks, work, stride, o);
    }
}

/* ---- a page ---- */

/* Softcap on scores, which become nothing but what weights are made of. */
static void cap_scores(float softcap, int count, ScanWork *work) {
    const Vec cap = vec_set(softcap * TO_TWO), inverse = vec_set(1 / (softcap * TO_TWO));
    for (int i = 0; i < count; i++) {
        float *p = work->p + i * TOKENS;
        Vec most = vec_set(-INFINITY);
        for (int t = 0; t < TOKENS; t += LANES) {
            const Vec log = vec_load(work->logs + t);
            const Vec score = vec_add(vec_sub(vec_load(p + t), log), vec_set(work->constant[i]));
            const Vec capped = vec_fma(cap, vec_tanh(vec_mul(score, inverse)), log);
            most = vec_max(most, capped);
            vec_store(p + t, capped);
        }
        work->most[i] = vec_most(most);
        work->constant[i] = 0;
    }
}

/* The tile's m for queries from `first` on with this page, and factors for what they have so far. */
static void raise_most(AttentionTile *t, int first, int count, ScanWork *work) {
    for (int i = 0; i < count; i += LANES) {
        float *m = t->m + first + i;
        const Vec before = vec_load(m);
        const Vec page = vec_mul(vec_add(vec_load(work->most + i), vec_load(work->constant + i)), vec_set(1 / TO_TWO));
        const Vec now = vec_max(before, page);
        vec_store(m, now);
        vec_store(work->factor + i, vec_exp_falling(vec_sub(before, now)));
    }
}

/* Steps of weights, and the tile's l. What coded values gave so far is left to be multiplied by the factors. */
static void add_weights(AttentionTile *t, int first, int count, int groups, ScanWork *work) {
    ScanWeights *w = &work->weights;
    for (int i = 0; i < count; i += LANES) {
        const Vec m = vec_load(t->m + first + i), constant = vec_load(work->constant + i);
        const Vec more = vec_fma(m, vec_set(-TO_TWO), constant);
        for (int g = 0; g < groups; g++) {
            const Vec log = vec_add(vec_load(w->log[g] + i), more);
            vec_store(w->step[g] + i, vec_exp_falling(vec_mul(log, vec_set(1 / TO_TWO))));
        }
    }
    for (int i = 0; i < count; i++) {
        const int query = first + i;
        const float factor = work->factor[i];
        t->l[query] = fmaf(t->l[query], factor, work->sum[i] * w->step[0][i]);
        if (t->kinds[query] & ATTENTION_EXACT && factor != 1)
            scale_row(t->value_stride, factor, t->o + (int64_t)query * t->value_stride);
    }
}

/* What is left to do with a page whose weights are there. */
static void take_values(AttentionTile *t, ScanWork *work) {
    add_weights(t, work->first, work->count, work->values->layout.groups, work);
    scan_values(work, t->value_stride, t->coded + (int64_t)work->first * t->value_stride);
}

static void scan_page(AttentionTile *t, int first, const ScanPage *page, ScanSpace *space) {
    ScanWork *waiting = space->waiting, *work = &space->work[waiting == &space->work[0]];
    if (waiting)
        start_fetching(work, waiting->v, waiting->values->layout.bytes, page->fetch_keys);
    else
        start_fetching(work, page->next_k, page->keys->layout.bytes, page->fetch_keys);
    score_page(page, first, t->queries - first, work, waiting);
    if (t->softcap > 0) cap_scores(t->softcap, work->count, work);
    if (waiting) {
        start_fetching(waiting, page->next_k, page->keys->layout.bytes, page->fetch_values);
        take_values(t, waiting);
    }
    raise_most(t, work->first, work->count, work);
    space->waiting = work;
}

static void scan_finish(AttentionTile *t, ScanSpace *space) {
    ScanWork *work = space->waiting;
    if (!work) return;
    start_fetching(work, work->v, 0, 0);
    scan_weigh(work);
    take_values(t, work);
    space->waiting = NULL;
}

#include "backend/cpu/scan_latent.h"

static const ScanKernels scan_kernels = {
    .table = scan_table,
    .plan = scan_plan,
    .quantise = scan_quantise,
    .scores = scan_scores,
    .most = scan_most,
    .weigh = scan_weigh,
    .values = scan_values,
    .page = scan_page,
    .finish = scan_finish,
    .latent_page = scan_latent_page,
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
