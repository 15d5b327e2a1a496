/* The attention operation over the kernels of attention_impl.h: prepare heads and append to the cache, then visit
 * pages.
 *
 * The queries of a chunk that share a kv head, in the order (row, head), are cut into tiles. When there are fewer tiles
 * than the threads could use (decoding), the spans of each tile are distributed instead and merged afterwards, in the
 * order in which a single thread would. */
#include "backend/cpu/attention/attention_job.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/math.h"

enum {
    ITEMS_PER_THREAD = 4, /* tiles per thread below which spans are distributed */
    FEW_ROWS = 4,
    CUT_LEAST = 4,            /* least queries of a part of a tile: each part reads the keys and values again */
    ALONE_PRODUCTS = 1 << 17, /* one thread computes so many products before it could wake another: about 5 µs */
};

/* A query's result over some spans: largest score, sum of exponentials; the weighted values, per kind of page, are
 * stored beside it. */
typedef struct Partial {
    float m, l;
    int kinds;
} Partial;

/* Weighted values of one or more queries, [value_stride] each. */
typedef struct Values {
    float *full, *quantised;
} Values;

/* ---- memory of a thread ---- */

enum { SPACE_FLOATS = ATTENTION_QUERIES * ATTENTION_HEAD_MAX, SPACES = 5 };
_Static_assert(NORM_WIDTH_MAX <= SPACES * SPACE_FLOATS, "elementwise operations keep a normalised row there");

/* Upper bound of codes_record_bytes(). */
static size_t records_bytes(void) {
    return ATTENTION_QUERIES * (scan_query_bytes(ATTENTION_HEAD_MAX) + scan_query_bytes(KV_QUANT_DIM));
}
size_t attention_thread_bytes(void) {
    return SPACES * SPACE_FLOATS * sizeof(float) + records_bytes() + sizeof(ScanWork);
}
size_t attention_shared_bytes(void) { return SHARED_FLOATS * sizeof(float); }

static Space thread_space(const Job *job, int index) {
    uint8_t *memory = job->cpu->attention + attention_shared_bytes() + (size_t)index * attention_thread_bytes();
    float *floats = (float *)(void *)memory;
    uint8_t *records = (uint8_t *)(floats + SPACES * SPACE_FLOATS);
    return (Space){.q = floats,
        .o = floats + SPACE_FLOATS,
        .total = floats + 2 * SPACE_FLOATS,
        .quantised = floats + 3 * SPACE_FLOATS,
        .quantised_total = floats + 4 * SPACE_FLOATS,
        .records = records,
        .work = (ScanWork *)(void *)(records + records_bytes())};
}

static uint8_t *page_head(const Job *job, const SequenceChunk *chunk, int position, int kv_head) {
    const KvLayer *kv = &job->op->kv;
    return attention_head(kv, chunk->tables[kv->group][position / KV_PAGE_TOKENS], kv_head);
}

/* ---- heads ---- */

typedef struct Angles {
    const Step *step;
    const RopeTable *table;
} Angles;

static void compute_angles(void *argument, int index, int count) {
    const Angles *a = argument;
    const int half = a->table->rope->dims / 2, rows = a->step->rows;
    for (int row = rows * index / count; row < rows * (index + 1) / count; row++) {
        float *c = a->table->cosines + (size_t)row * (size_t)half, *s = a->table->sines + (size_t)row * (size_t)half;
        rope_angles(a->table->rope, a->step, row, c);
        for (int i = 0; i < half; i++) {
            s[i] = sinf(c[i]);
            c[i] = cosf(c[i]);
        }
    }
}

static bool same_angles(const Rope *a, const Rope *b) {
    return a->dims == b->dims && !memcmp(a->mrope_section, b->mrope_section, sizeof a->mrope_section) &&
        a->mrope_interleaved == b->mrope_interleaved && a->dynamic.positions == b->dynamic.positions &&
        a->dynamic.theta == b->dynamic.theta && a->dynamic.factor == b->dynamic.factor &&
        (a->frequencies == b->frequencies ||
            !memcmp(a->frequencies, b->frequencies, (size_t)(a->dims / 2) * sizeof(float)));
}

const RopeTable *attention_angles(CpuBackend *cpu, const Rope *rope) {
    for (int i = 0; i < cpu->rope_count; i++)
        if (same_angles(cpu->ropes[i].rope, rope)) return &cpu->ropes[i];
    CHECK(rope->dims / 2 <= CPU_ROPE_PAIRS);
    /* With more Ropes than tables, the last table is recomputed for each. */
    RopeTable *table = &cpu->ropes[cpu->rope_count < CPU_ROPES ? cpu->rope_count++ : CPU_ROPES - 1];
    table->rope = rope;
    Angles angles = {&cpu->step, table};
    if (cpu->step.rows <= FEW_ROWS)
        compute_angles(&angles, 0, 1);
    else
        pool_run(cpu->pool, compute_angles, &angles);
    return table;
}

static void rotate_head(const Job *job, int row, float *head) {
    if (!job->rope) return;
    const size_t at = (size_t)row * (size_t)(job->op->rope->dims / 2);
    job->kernels->rotate(job->op->rope, job->rope->cosines + at, job->rope->sines + at, head);
}

void attention_narrow(const AttentionKernels *kernels, DType dtype, const float *x, int count, void *out) {
    if (dtype == DTYPE_F16)
        kernels->to_f16(x, count, out);
    else
        floats_from_f32(out, dtype, x, count);
}

void attention_store_key(const AttentionKernels *kernels, const KvLayout *l, uint8_t *page, int slot, const float *k) {
    uint8_t *block = page + (size_t)(slot / 16) * 16 * (size_t)l->head_dim * dtype_bytes(l->dtype);
    if (l->dtype == DTYPE_F32) {
        float *keys = (float *)(void *)block + slot % 16;
        for (int d = 0; d < l->head_dim; d++) keys[d * 16] = k[d];
        return;
    }
    uint16_t halfs[ATTENTION_HEAD_MAX], *keys = (uint16_t *)(void *)block + slot % 16;
    attention_narrow(kernels, l->dtype, k, l->head_dim, halfs);
    for (int d = 0; d < l->head_dim; d++) keys[d * 16] = halfs[d];
}

static void append_head(const Job *job, const SequenceChunk *chunk, int position, int kv_head, const float *k,
    const float *v, float energy) {
    const KvLayout *l = job->layout;
    const size_t size = dtype_bytes(l->dtype);
    const int slot = position % KV_PAGE_TOKENS;
    uint8_t *page = page_head(job, chunk, position, kv_head);
    uint8_t *values = page + attention_key_bytes(l) + (size_t)slot * (size_t)job->value_stride * size;
    attention_energies(l, page)[slot] = energy;
    attention_narrow(job->kernels, l->dtype, v, l->value_dim, values);
    memset(values + (size_t)l->value_dim * size, 0, (size_t)(job->value_stride - l->value_dim) * size);
    attention_store_key(job->kernels, l, page, slot, k);
}

/* One kv head of a row and its query heads; q and k are prepared in place. */
static void prepare_head(const Job *job, const SequenceChunk *chunk, int row, int kv_head) {
    const Attention *op = job->op;
    const KvLayout *l = job->layout;
    const CpuKernels *rows = job->cpu->kernels;
    const int width = l->head_dim, position = chunk->position + row - chunk->row;
    float energy = 0;
    for (int h = kv_head * job->group; op->q && h < (kv_head + 1) * job->group; h++) {
        float *q = op->q + ((int64_t)row * op->heads + h) * width;
        if (op->q_norm && !op->norm_full && !op->norm_last) rows->norm_row(q, op->q_norm, q);
        rotate_head(job, row, q);
        if (op->q_norm && op->norm_last) rows->norm_row(q, op->q_norm, q);
        for (int i = 0; i < width; i++) q[i] *= op->scale;
        float *latent = op->q_latent ? op->q_latent + ((int64_t)row * op->heads + h) * l->value_dim : NULL;
        for (int i = 0; latent && i < l->value_dim; i++) latent[i] *= op->scale;
        energy += latent ? job->kernels->square(latent, l->value_dim) : job->kernels->square(q, width);
        if (job->shared && codes_end(job, chunk, position)) {
            const int query = (row - chunk->row) * job->group + h - kv_head * job->group;
            codes_record(job, chunk, row, h, codes_shared_record(job, chunk, kv_head, query));
        }
    }
    if (!op->k) return;
    const int64_t at = (int64_t)row * l->kv_heads + kv_head;
    float *k = op->k + at * width;
    if (op->k_norm && !op->norm_full && !op->norm_last) rows->norm_row(k, op->k_norm, k);
    rotate_head(job, row, k);
    if (op->k_norm && op->norm_last) rows->norm_row(k, op->k_norm, k);
    append_head(job, chunk, chunk->position + row - chunk->row, kv_head, k, op->v + at * l->value_dim,
        energy / (float)job->group);
}

static void norm_whole_row(const Job *job, int64_t row) {
    const Attention *op = job->op;
    float *q = op->q + row * op->heads * job->layout->head_dim;
    if (op->q && op->q_norm) job->cpu->kernels->norm_row(q, op->q_norm, q);
    if (!op->k) return;
    float *k = op->k + row * job->layout->kv_heads * job->layout->head_dim;
    if (op->k_norm) job->cpu->kernels->norm_row(k, op->k_norm, k);
}

/* Neighbouring rows go to one thread, as their keys share lines of memory. */
static void prepare_rows(const Job *job, int index, int count) {
    const Step *step = &job->cpu->step;
    const int kv_heads = job->layout->kv_heads;
    const bool whole = job->op->norm_full || step->rows >= count * FEW_ROWS;
    const int64_t units = whole ? step->rows : (int64_t)step->rows * kv_heads;
    const SequenceChunk *chunk = step->chunks;
    for (int64_t unit = units * index / count; unit < units * (index + 1) / count; unit++) {
        const int row = (int)(whole ? unit : unit / kv_heads);
        while (row >= chunk->row + chunk->rows) chunk++;
        if (job->op->norm_full) norm_whole_row(job, row);
        const int first = whole ? 0 : (int)(unit % kv_heads), last = whole ? kv_heads : first + 1;
        for (int h = first; h < last; h++) prepare_head(job, chunk, row, h);
    }
}

/* ---- tiles ---- */

static int blocks_of(const Job *job, const SequenceChunk *chunk) {
    return (chunk->rows * job->group + job->tile_queries - 1) / job->tile_queries;
}

static Place find_tile(const Job *job, int64_t item) {
    const SequenceChunk *chunk = job->cpu->step.chunks;
    for (int64_t own; item >= (own = (int64_t)blocks_of(job, chunk) * job->layout->kv_heads); chunk++) item -= own;
    /* Later rows see more keys: they are computed first, so that the threads end together. */
    const int blocks = blocks_of(job, chunk), block = blocks - 1 - (int)(item / job->layout->kv_heads);
    const int first = block * job->tile_queries, left = chunk->rows * job->group - first;
    const int count = left < job->tile_queries ? left : job->tile_queries;
    return (Place){chunk, (int)(item % job->layout->kv_heads), first, count};
}

static int row_of(const Job *job, const Place *place, int i) {
    return place->chunk->row + (place->first + i) / job->group;
}
static int head_of(const Job *job, const Place *place, int i) {
    return place->kv_head * job->group + (place->first + i) % job->group;
}

static void fill_tile(const Job *job, const Place *place, const Space *space, AttentionTile *tile) {
    tile->queries = place->count;
    tile->head_dim = job->layout->head_dim;
    tile->value_stride = job->value_stride;
    tile->dtype = job->layout->dtype;
    tile->softcap = job->op->softcap;
    tile->slopes = job->op->slopes;
    tile->slopes_bf16 = job->op->slopes_bf16;
    tile->reads = NULL;
    tile->q = tile->latent = NULL; /* packed at the first full-precision page */
    tile->o = space->o;
    tile->quantised = job->quantised ? space->quantised : NULL;
    for (int i = 0; i < place->count; i++) {
        const int row = row_of(job, place, i), position = place->chunk->position + row - place->chunk->row;
        const AttentionRange seen =
            attention_range(place->chunk, job->op->window, job->op->chunked, job->op->span_rule, position);
        tile->first[i] = seen.first;
        tile->last[i] = seen.end;
        tile->heads[i] = head_of(job, place, i);
        tile->positions[i] = position;
    }
}

static const float *query_of(const Job *job, const Place *place, int i) {
    return job->op->q +
        ((int64_t)row_of(job, place, i) * job->op->heads + head_of(job, place, i)) * job->layout->head_dim;
}

/* Behind the packed queries there is room for them, as head_dim and value_stride together fit ATTENTION_HEAD_MAX. */
static const float *pack_latents(const Job *job, const Place *place, float *out) {
    const int width = job->layout->value_dim, stride = job->value_stride;
    CHECK(job->layout->head_dim + stride <= ATTENTION_HEAD_MAX);
    for (int i = 0; i < place->count; i++) {
        const int64_t query = (int64_t)row_of(job, place, i) * job->op->heads + head_of(job, place, i);
        memcpy(out + (int64_t)i * stride, job->op->q_latent + query * width, (size_t)width * sizeof *out);
        memset(out + (int64_t)i * stride + width, 0, (size_t)(stride - width) * sizeof *out);
    }
    return out;
}

static void pack_tile(const Job *job, const Place *place, const Space *space, AttentionTile *tile) {
    const float *rows[ATTENTION_QUERIES];
    for (int i = 0; i < place->count; i++) rows[i] = query_of(job, place, i);
    job->kernels->pack(place->count, job->layout->head_dim, rows, space->q);
    tile->q = space->q;
    if (job->op->q_latent) tile->latent = pack_latents(job, place, space->q + place->count * job->layout->head_dim);
}

/* The keys of the page at `base` that the queries read by their selection. False: none reads any. */
static bool mask_queries(const Job *job, const Place *place, int queries, int base, KeyMask *masks) {
    bool any = false;
    for (int i = 0; i < queries; i++) {
        const int row = row_of(job, place, i), position = place->chunk->position + row - place->chunk->row;
        masks[i] = key_mask(&job->op->selection, row, head_of(job, place, i), place->kv_head, position, base);
        any = any || key_mask_any(&masks[i]);
    }
    return any;
}

/* Processes the full-precision page at `base` for the first queries. */
static void visit_full(
    const Job *job, const Place *place, const Space *space, AttentionTile *tile, int queries, int base) {
    const int next = base + KV_PAGE_TOKENS, all = tile->queries;
    const KvLayer *kv = &job->op->kv;
    const uint8_t *k = page_head(job, place->chunk, base, place->kv_head), *k_next = k;
    KeyMask masks[ATTENTION_QUERIES];
    if (job->op->selection.block) {
        if (!mask_queries(job, place, queries, base, masks)) return;
        tile->reads = masks;
    }
    if (next < tile->last[all - 1] && place->chunk->tables[kv->group][next / KV_PAGE_TOKENS] >= 0)
        k_next = page_head(job, place->chunk, next, place->kv_head);
    if (!tile->q) pack_tile(job, place, space, tile);
    int first[ATTENTION_QUERIES], last[ATTENTION_QUERIES];
    for (int i = queries; i < all; i++) { /* the other queries see no key before its end */
        first[i] = tile->first[i];
        last[i] = tile->last[i];
        tile->first[i] = tile->last[i] = next;
    }
    job->kernels->page(tile, k, k + attention_key_bytes(job->layout), k_next, base);
    tile->reads = NULL;
    for (int i = queries; i < all; i++) {
        tile->first[i] = first[i];
        tile->last[i] = last[i];
    }
}

/* Number of queries that read the page at `base` in full precision: the first ones, as the others are later in the
 * text. */
static int full_queries(const Job *job, const Place *place, const QuantTile *quantised, int base) {
    if (!job->quantised || !place->chunk->quant || base < place->chunk->quant->sink) return place->count;
    int full = 0;
    while (full < place->count && quantised->end[full] <= base) full++;
    return full;
}

static void visit_span(
    const Job *job, const Place *place, const Space *space, QuantTile *quantised, AttentionTile *tile, int span) {
    const int from = span * ATTENTION_SPAN, to = from + ATTENTION_SPAN;
    const int first = tile->first[0] < from ? from : tile->first[0];
    const int last = tile->last[tile->queries - 1] > to ? to : tile->last[tile->queries - 1];
    for (int i = 0; i < tile->queries; i++) {
        tile->m[i] = -INFINITY;
        tile->l[i] = 0;
        tile->kinds[i] = 0;
    }
    const size_t bytes = (size_t)tile->queries * (size_t)tile->value_stride * sizeof(float);
    memset(tile->o, 0, bytes);
    if (tile->quantised) memset(tile->quantised, 0, bytes);
    for (int base = first / KV_PAGE_TOKENS * KV_PAGE_TOKENS; base < last; base += KV_PAGE_TOKENS) {
        const int full = full_queries(job, place, quantised, base);
        if (full > 0) visit_full(job, place, space, tile, full, base);
        if (full < tile->queries) codes_visit(job, place, quantised, tile, full, base, space->work);
        for (int i = 0; i < tile->queries; i++) tile->kinds[i] |= i < full ? ATTENTION_FULL : ATTENTION_QUANTISED;
    }
}

/* total ← total · a + part · b, where either may be empty. */
static void mix(const Job *job, int kind, const Partial *total, float *to, float a, const Partial *part,
    const float *from, float b) {
    if (part->kinds & kind)
        job->kernels->mix(job->value_stride, to, a, from, b);
    else if (a != 1 && (total->kinds & kind))
        job->kernels->mix(job->value_stride, to, a, to, 0);
}

/* total ← total and then part. A part without a visible key (l = 0) changes nothing. */
static void merge(const Job *job, Partial *total, const Values *sums, const Partial *part, const Values *more) {
    if (part->l == 0) return;
    const float most = total->m > part->m ? total->m : part->m;
    const float a = total->m == most ? 1 : expf(total->m - most), b = part->m == most ? 1 : expf(part->m - most);
    mix(job, ATTENTION_FULL, total, sums->full, a, part, more->full, b);
    mix(job, ATTENTION_QUANTISED, total, sums->quantised, a, part, more->quantised, b);
    *total = (Partial){most, total->l * a + part->l * b, total->kinds | part->kinds};
}

static void start_total(const Job *job, int head, Partial *total, const Values *sums) {
    *total = job->op->sinks ? (Partial){job->op->sinks[head], 1, 0} : (Partial){-INFINITY, 0, 0};
    memset(sums->full, 0, (size_t)job->value_stride * sizeof *sums->full);
    if (job->quantised) memset(sums->quantised, 0, (size_t)job->value_stride * sizeof *sums->quantised);
}

static void finish_query(const Job *job, int row, int head, const Partial *total, const Values *sums) {
    const int width = job->layout->value_dim;
    if (total->kinds & ATTENTION_QUANTISED) codes_add(job, sums->quantised, sums->full);
    const int64_t at = ((int64_t)row * job->op->heads + head) * width;
    const float *gate = job->op->gate ? job->op->gate + at : NULL;
    float *out = job->op->out + at;
    for (int i = 0; i < width; i++) out[i] = sums->full[i] / total->l;
    for (int i = 0; gate && i < width; i++) out[i] /= 1.0f + expf(-gate[i]);
    /* Pages that no query of a tile reads are left out, which could change the sign of a zero: it becomes positive. */
    for (int i = 0; job->op->selection.block && i < width; i++) out[i] += 0.0f;
}

static Values values_at(const Job *job, float *full, float *quantised, int query) {
    const size_t at = (size_t)query * (size_t)job->value_stride;
    return (Values){full + at, quantised + at};
}

static void make_records(const Job *job, const Place *place, const QuantTile *quantised, const Space *space) {
    for (int i = 0; i < place->count; i++) {
        if (!quantised->end[i]) continue;
        uint8_t *record = space->records + (size_t)i * codes_record_bytes(job->layout);
        codes_record(job, place->chunk, row_of(job, place, i), head_of(job, place, i), (ScanQuery *)(void *)record);
    }
}

static void whole_tile(const Job *job, const Place *place, const Space *space) {
    AttentionTile tile;
    QuantTile quantised;
    Partial total[ATTENTION_QUERIES];
    Values sums[ATTENTION_QUERIES];
    fill_tile(job, place, space, &tile);
    if (job->quantised) {
        codes_tile(job, place, (const ScanQuery *)(const void *)space->records, &quantised);
        make_records(job, place, &quantised, space);
    }
    for (int i = 0; i < tile.queries; i++) {
        sums[i] = values_at(job, space->total, space->quantised_total, i);
        start_total(job, head_of(job, place, i), &total[i], &sums[i]);
    }
    const int last = (tile.last[tile.queries - 1] - 1) / ATTENTION_SPAN;
    for (int span = tile.first[0] / ATTENTION_SPAN; span <= last; span++) {
        visit_span(job, place, space, &quantised, &tile, span);
        for (int i = 0; i < tile.queries; i++) {
            const Partial part = {tile.m[i], tile.l[i], tile.kinds[i]};
            const Values more = values_at(job, space->o, space->quantised, i);
            merge(job, &total[i], &sums[i], &part, &more);
        }
    }
    for (int i = 0; i < tile.queries; i++)
        finish_query(job, row_of(job, place, i), head_of(job, place, i), &total[i], &sums[i]);
}

/* ---- distributed spans ---- */

static int64_t partial_floats(const Job *job) { return 16 + job->value_stride * (job->quantised ? 2 : 1); }

/* The partial result of a query over a span: [row of step][head][span]. */
static float *partial_of(const Job *job, int row, int head, int span) {
    const int64_t query = (int64_t)row * job->op->heads + head;
    return (float *)(void *)job->cpu->attention + (query * job->spans + span) * partial_floats(job);
}

static void span_of_tile(const Job *job, const Place *place, int span, const Space *space) {
    AttentionTile tile;
    QuantTile quantised;
    const size_t stride = (size_t)job->value_stride;
    fill_tile(job, place, space, &tile);
    if (job->quantised)
        codes_tile(job, place, codes_shared_record(job, place->chunk, place->kv_head, place->first), &quantised);
    visit_span(job, place, space, &quantised, &tile, job->first_span + span);
    for (int i = 0; i < tile.queries; i++) {
        float *to = partial_of(job, row_of(job, place, i), head_of(job, place, i), span);
        const Partial part = {tile.m[i], tile.l[i], tile.kinds[i]};
        const Values from = values_at(job, space->o, space->quantised, i);
        memcpy(to, &part, sizeof part);
        if (part.kinds & ATTENTION_FULL) memcpy(to + 16, from.full, stride * sizeof *to);
        if (part.kinds & ATTENTION_QUANTISED) memcpy(to + 16 + stride, from.quantised, stride * sizeof *to);
    }
}

static void merge_query(const Job *job, int row, int head, const Space *space) {
    const Values sums = {space->total, space->quantised_total};
    Partial total;
    start_total(job, head, &total, &sums);
    for (int span = 0; span < job->spans; span++) {
        float *from = partial_of(job, row, head, span);
        Partial part;
        memcpy(&part, from, sizeof part);
        merge(job, &total, &sums, &part, &(Values){from + 16, from + 16 + job->value_stride});
    }
    finish_query(job, row, head, &total, &sums);
}

/* ---- the operation ---- */

static void attention_task(void *argument, int index, int count) {
    const Job *job = argument;
    Pool *pool = job->cpu->pool;
    const Space space = thread_space(job, index);
    prepare_rows(job, index, count);
    if (!job->op->q) return;
    if (count > 1) pool_barrier(pool, index);
    /* Spans one after the other, each for all kv heads: their pages lie beside each other. */
    const int64_t tiles = job->shared ? job->items / job->spans : job->items;
    for (int64_t item, items; pool_next(pool, 0, index, 1, &item, &items);) {
        const Place place = find_tile(job, item % tiles);
        if (job->shared)
            span_of_tile(job, &place, (int)(item / tiles), &space);
        else
            whole_tile(job, &place, &space);
    }
    if (!job->shared) return;
    if (count > 1) pool_barrier(pool, index);
    const int queries = job->cpu->step.rows * job->op->heads;
    for (int i = queries * index / count; i < queries * (index + 1) / count; i++)
        merge_query(job, i / job->op->heads, i % job->op->heads, &space);
}

static int64_t count_tiles(const Job *job) {
    const Step *step = &job->cpu->step;
    int64_t tiles = 0;
    for (int i = 0; i < step->chunk_count; i++)
        tiles += (int64_t)blocks_of(job, &step->chunks[i]) * job->layout->kv_heads;
    return tiles;
}

/* Cuts the queries of tiles that would leave threads without work: those of latent attention are all of one kv head.
 * Spans differ in length, so there are more of them than threads. */
static void cut_tiles(Job *job) {
    const int64_t wanted = (int64_t)pool_threads(job->cpu->pool) * (job->shared ? 2 : 1);
    int most = 0; /* queries of a kv head */
    for (int i = 0; i < job->cpu->step.chunk_count; i++)
        most = max_int(most, job->cpu->step.chunks[i].rows * job->group);
    most = min_int(most, ATTENTION_QUERIES);
    const int parts = min_int((int)((wanted + job->items - 1) / job->items), most / CUT_LEAST);
    if (parts <= 1) return;
    job->tile_queries = (most + parts - 1) / parts;
    job->items = count_tiles(job) * (job->shared ? job->spans : 1);
}

/* Divides the work; returns the number of products of query and key elements. */
static int64_t plan_job(Job *job) {
    const Step *step = &job->cpu->step;
    int first = INT32_MAX, last = 0;
    int64_t visits = 0;
    for (int i = 0; i < step->chunk_count; i++) {
        const SequenceChunk *chunk = &step->chunks[i];
        const Attention *op = job->op;
        const int position = chunk->position, last_position = position + chunk->rows - 1;
        const int begin = attention_range(chunk, op->window, op->chunked, op->span_rule, position).first;
        const int end = attention_range(chunk, op->window, op->chunked, op->span_rule, last_position).end;
        first = begin < first ? begin : first;
        last = end > last ? end : last;
        visits += (int64_t)chunk->rows * (end - begin);
    }
    job->items = count_tiles(job);
    job->first_span = first / ATTENTION_SPAN;
    job->spans = (last - 1) / ATTENTION_SPAN + 1 - job->first_span;
    const int64_t queries = (int64_t)step->rows * job->op->heads, partials = queries * job->spans * partial_floats(job),
                  records = job->quantised ? queries * (int64_t)codes_record_bytes(job->layout) / 4 : 0;
    job->shared = job->spans > 1 && job->items < (int64_t)pool_threads(job->cpu->pool) * ITEMS_PER_THREAD &&
        partials + 16 + records <= SHARED_FLOATS;
    job->records = job->cpu->attention + (partials + 15) / 16 * 64;
    if (job->shared) job->items *= job->spans;
    return visits * job->op->heads * (job->layout->head_dim + (job->op->q_latent ? job->layout->value_dim : 0));
}

void cpu_attention(Backend *backend, const Attention *op) {
    CpuBackend *cpu = cpu_backend(backend);
    const KvLayout *layout = &op->kv.layout;
    CHECK(dtype_is_float(layout->dtype) && op->heads % layout->kv_heads == 0);
    CHECK(layout->head_dim <= ATTENTION_HEAD_MAX && layout->value_dim <= ATTENTION_HEAD_MAX);
    Job job = {.cpu = cpu,
        .op = op,
        .layout = layout,
        .kernels = cpu->kernels->attention,
        .group = op->heads / layout->kv_heads,
        .tile_queries = ATTENTION_QUERIES,
        .value_stride = attention_value_stride(layout->value_dim)};
    if (op->rope) job.rope = attention_angles(cpu, op->rope);
    codes_plan(&job);
    const bool alone = plan_job(&job) < ALONE_PRODUCTS;
    if (!alone) cut_tiles(&job);
    pool_share(cpu->pool, 0, job.items);
    if (alone)
        attention_task(&job, 0, 1);
    else
        pool_run(cpu->pool, attention_task, &job);
}
