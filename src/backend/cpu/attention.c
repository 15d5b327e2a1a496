/* The attention operation over the kernels of attention_impl.h: prepare heads and append to the cache, then visit pages.
 *
 * Work is cut into tiles: some rows of a run × the query heads of one kv head. When there are fewer tiles than threads could use
 * (decoding), the spans of each tile are shared out instead and merged afterwards, in the same order as a single thread would. */
#include "backend/cpu/attention.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

enum {
    SHARED_FLOATS = 4 << 20, /* partial results of shared-out spans */
    ITEMS_PER_THREAD = 4,    /* tiles per thread below which spans are shared out */
    FEW_ROWS = 4,
};

typedef struct Partial { /* a query's result over some spans; o follows it */
    float m, l;
} Partial;

typedef struct Job {
    CpuBackend *cpu;
    const Attention *op;
    const KvLayout *layout;
    RopeTable *rope;
    int group;      /* query heads per kv head */
    int tile_heads; /* of them in a tile */
    int tile_rows;
    int value_stride, spans;
    bool shared; /* spans are shared out */
    int64_t items;
} Job;

static size_t tile_floats(void) {
    return (size_t)ATTENTION_QUERIES * (ATTENTION_KEYS + KV_PAGE_TOKENS + 2 * ATTENTION_VALUES);
}
size_t attention_thread_bytes(void) { return tile_floats() * sizeof(float); }
size_t attention_shared_bytes(void) { return (size_t)SHARED_FLOATS * sizeof(float); }

static float *thread_floats(const Job *job, int index) {
    return (float *)(void *)(job->cpu->attention + attention_shared_bytes() + (size_t)index * attention_thread_bytes());
}

static uint16_t *page_head(const Job *job, const Run *run, int position, int kv_head) {
    const KvLayer *kv = &job->op->kv;
    const int32_t page = run->tables[kv->group][position / KV_PAGE_TOKENS];
    CHECK(page >= 0);
    uint8_t *start = kv->base + (size_t)page * kv->page_stride + kv->layer_offset;
    return (uint16_t *)(void *)start + (size_t)kv_head * attention_head_halfs(job->layout);
}

/* ---- heads ---- */

static void compute_angles(CpuBackend *cpu, const RopeTable *table, int index, int count) {
    const int half = table->rope->dims / 2;
    for (int row = index; row < cpu->step.rows; row += count) {
        float *c = table->cosines + (size_t)row * (size_t)half, *s = table->sines + (size_t)row * (size_t)half;
        for (int i = 0; i < half; i++) {
            const float angle = (float)cpu->step.positions[row] * table->rope->frequencies[i];
            c[i] = cosf(angle);
            s[i] = sinf(angle);
        }
    }
}

typedef struct Angles {
    CpuBackend *cpu;
    RopeTable *table;
} Angles;

static void angles_task(void *argument, int index, int count) {
    const Angles *angles = argument;
    compute_angles(angles->cpu, angles->table, index, count);
}

static RopeTable *angles_of(CpuBackend *cpu, const Rope *rope) {
    for (int i = 0; i < cpu->rope_count; i++)
        if (cpu->ropes[i].rope == rope) return &cpu->ropes[i];
    CHECK(rope->dims / 2 <= CPU_ROPE_PAIRS);
    const int slot = cpu->rope_count < CPU_ROPES ? cpu->rope_count++ : CPU_ROPES - 1; /* more ropes: the last is recomputed */
    RopeTable *table = &cpu->ropes[slot];
    table->rope = rope;
    Angles angles = {cpu, table};
    if (cpu->step.rows <= FEW_ROWS) angles_task(&angles, 0, 1);
    else pool_run(cpu->pool, angles_task, &angles);
    return table;
}

static void rotate_head(const Job *job, int row, float *head) {
    if (!job->rope) return;
    const Rope *rope = job->op->rope;
    const size_t at = (size_t)row * (size_t)(rope->dims / 2);
    job->cpu->kernels->rotate_row(rope, job->rope->cosines + at, job->rope->sines + at, head);
}

static void append_head(const Job *job, const Run *run, int position, int kv_head, const float *k, const float *v) {
    const KvLayout *l = job->layout;
    uint16_t *page = page_head(job, run, position, kv_head);
    const int slot = position % KV_PAGE_TOKENS;
    uint16_t halfs[ATTENTION_KEYS];
    job->cpu->kernels->to_f16(k, l->head_dim, halfs);
    uint16_t *block = page + (size_t)(slot / 16) * 16 * (size_t)l->head_dim + slot % 16;
    for (int d = 0; d < l->head_dim; d++) block[d * 16] = halfs[d];
    uint16_t *values = page + (size_t)KV_PAGE_TOKENS * (size_t)l->head_dim + (size_t)slot * (size_t)job->value_stride;
    job->cpu->kernels->to_f16(v, l->value_dim, values);
    for (int d = l->value_dim; d < job->value_stride; d++) values[d] = 0;
}

/* Head number h of a row: the query heads, then the kv heads. q and k are prepared in place. */
static void prepare_head(const Job *job, const Run *run, int row, int h) {
    const Attention *op = job->op;
    const KvLayout *l = job->layout;
    const CpuKernels *kernels = job->cpu->kernels;
    const int width = l->head_dim, position = run->position + row - run->row;
    if (h < op->heads) {
        float *q = (float *)op->q + ((int64_t)row * op->heads + h) * width;
        if (op->q_norm && !op->norm_full) kernels->norm_row(q, op->q_norm, q);
        rotate_head(job, row, q);
        for (int i = 0; i < width; i++) q[i] *= op->scale;
        return;
    }
    h -= op->heads;
    float *k = (float *)op->k + ((int64_t)row * l->kv_heads + h) * width;
    if (op->k_norm && !op->norm_full) kernels->norm_row(k, op->k_norm, k);
    rotate_head(job, row, k);
    append_head(job, run, position, h, k, op->v + ((int64_t)row * l->kv_heads + h) * l->value_dim);
}

static void norm_whole_row(const Job *job, int row) {
    const Attention *op = job->op;
    const int64_t q_width = (int64_t)op->heads * job->layout->head_dim, k_width = (int64_t)job->layout->kv_heads * job->layout->head_dim;
    float *q = (float *)op->q + row * q_width, *k = (float *)op->k + row * k_width;
    if (op->q_norm) job->cpu->kernels->norm_row(q, op->q_norm, q);
    if (op->k_norm) job->cpu->kernels->norm_row(k, op->k_norm, k);
}

static void prepare_rows(const Job *job, int index, int count) {
    const Step *step = &job->cpu->step;
    const int heads = job->op->heads + job->layout->kv_heads;
    const bool by_row = job->op->norm_full || step->rows >= count * FEW_ROWS;
    for (int r = 0; r < step->run_count; r++) {
        const Run *run = &step->runs[r];
        for (int row = run->row; row < run->row + run->rows; row++) {
            if (by_row && row % count != index) continue;
            if (job->op->norm_full) norm_whole_row(job, row);
            for (int h = by_row ? 0 : (index + count - row % count) % count; h < heads; h += by_row ? 1 : count)
                prepare_head(job, run, row, h);
        }
    }
}

/* ---- tiles ---- */

typedef struct Place { /* what an item is */
    const Run *run;
    int row, rows;          /* of the step */
    int kv_head, head, heads; /* query heads from head, all of one kv head */
} Place;

static int tiles_of_run(const Job *job, const Run *run) {
    const int parts = (job->group + job->tile_heads - 1) / job->tile_heads;
    return (run->rows + job->tile_rows - 1) / job->tile_rows * job->layout->kv_heads * parts;
}

static Place find_tile(const Job *job, int64_t item) {
    const Step *step = &job->cpu->step;
    int r = 0;
    while (item >= tiles_of_run(job, &step->runs[r])) item -= tiles_of_run(job, &step->runs[r++]);
    const Run *run = &step->runs[r];
    const int parts = (job->group + job->tile_heads - 1) / job->tile_heads, per_rows = job->layout->kv_heads * parts;
    /* Later rows see more: they come first, so that the threads end together. */
    const int row_tiles = (run->rows + job->tile_rows - 1) / job->tile_rows, tile = row_tiles - 1 - (int)(item / per_rows);
    const int kv_head = (int)(item % per_rows) / parts, part = (int)(item % per_rows) % parts;
    Place place = {.run = run, .row = run->row + tile * job->tile_rows, .kv_head = kv_head};
    place.rows = run->row + run->rows - place.row < job->tile_rows ? run->row + run->rows - place.row : job->tile_rows;
    place.head = kv_head * job->group + part * job->tile_heads;
    place.heads = job->group - part * job->tile_heads < job->tile_heads ? job->group - part * job->tile_heads : job->tile_heads;
    return place;
}

static void fill_tile(const Job *job, const Place *place, float *memory, AttentionTile *tile) {
    const Attention *op = job->op;
    const int width = job->layout->head_dim;
    *tile = (AttentionTile){.queries = place->rows * place->heads,
        .head_dim = width,
        .value_dim = job->layout->value_dim,
        .value_stride = job->value_stride,
        .softcap = op->softcap,
        .q = memory,
        .p = memory + (size_t)ATTENTION_QUERIES * ATTENTION_KEYS,
        .o = memory + (size_t)ATTENTION_QUERIES * (ATTENTION_KEYS + KV_PAGE_TOKENS)};
    for (int r = 0; r < place->rows; r++) {
        const int row = place->row + r, position = place->run->position + row - place->run->row;
        memcpy(memory + (size_t)(r * place->heads) * (size_t)width, op->q + ((int64_t)row * op->heads + place->head) * width,
            (size_t)(place->heads * width) * sizeof(float));
        for (int h = 0; h < place->heads; h++) {
            tile->first[r * place->heads + h] = op->window && position >= op->window ? position - op->window + 1 : 0;
            tile->last[r * place->heads + h] = position + 1;
        }
    }
}

static void visit_span(const Job *job, const Place *place, AttentionTile *tile, int span) {
    int first = tile->first[0], last = tile->last[tile->queries - 1];
    const int from = span * ATTENTION_SPAN, to = from + ATTENTION_SPAN;
    first = first < from ? from : first;
    last = last > to ? to : last;
    for (int i = 0; i < tile->queries; i++) {
        tile->m[i] = -INFINITY;
        tile->l[i] = 0;
    }
    memset(tile->o, 0, (size_t)tile->queries * (size_t)tile->value_stride * sizeof(float));
    for (int base = first / KV_PAGE_TOKENS * KV_PAGE_TOKENS; base < last; base += KV_PAGE_TOKENS) {
        const uint16_t *k = page_head(job, place->run, base, place->kv_head);
        job->cpu->kernels->attention_page(tile, k, k + (size_t)KV_PAGE_TOKENS * (size_t)tile->head_dim, base);
    }
}

/* total ← total and then part. A part without a visible key (l = 0) changes nothing. */
static void merge(Partial *total, float *total_o, float m, float l, const float *o, int width) {
    if (l == 0) return;
    if (total->l == 0) {
        *total = (Partial){m, l};
        memcpy(total_o, o, (size_t)width * sizeof *o);
        return;
    }
    const float most = total->m > m ? total->m : m, a = expf(total->m - most), b = expf(m - most);
    *total = (Partial){most, total->l * a + l * b};
    for (int i = 0; i < width; i++) total_o[i] = total_o[i] * a + o[i] * b;
}

static void start_total(const Job *job, int head, Partial *total, float *o) {
    *total = job->op->sinks ? (Partial){job->op->sinks[head], 1} : (Partial){0, 0};
    memset(o, 0, (size_t)job->value_stride * sizeof *o);
}

static void finish_query(const Job *job, int row, int head, const Partial *total, const float *o) {
    const int width = job->layout->value_dim;
    float *out = job->op->out + ((int64_t)row * job->op->heads + head) * width;
    for (int i = 0; i < width; i++) out[i] = o[i] / total->l;
}

static void whole_tile(const Job *job, const Place *place, float *memory) {
    AttentionTile tile;
    fill_tile(job, place, memory, &tile);
    Partial totals[ATTENTION_QUERIES];
    float *sums = tile.o + (size_t)ATTENTION_QUERIES * ATTENTION_VALUES;
    for (int i = 0; i < tile.queries; i++)
        start_total(job, place->head + i % place->heads, &totals[i], sums + (size_t)i * (size_t)job->value_stride);
    for (int span = tile.first[0] / ATTENTION_SPAN; span * ATTENTION_SPAN < tile.last[tile.queries - 1]; span++) {
        visit_span(job, place, &tile, span);
        for (int i = 0; i < tile.queries; i++) {
            const size_t at = (size_t)i * (size_t)job->value_stride;
            merge(&totals[i], sums + at, tile.m[i], tile.l[i], tile.o + at, job->value_stride);
        }
    }
    for (int i = 0; i < tile.queries; i++)
        finish_query(job, place->row + i / place->heads, place->head + i % place->heads, &totals[i],
            sums + (size_t)i * (size_t)job->value_stride);
}

/* Where the partial result of a query over a span waits: [row of step][head][span]. */
static float *partial_of(const Job *job, int row, int head, int span) {
    const size_t size = 2 + (size_t)job->value_stride;
    return (float *)(void *)job->cpu->attention + (((size_t)row * (size_t)job->op->heads + (size_t)head) * (size_t)job->spans + (size_t)span) * size;
}

static void span_of_tile(const Job *job, const Place *place, int span, float *memory) {
    AttentionTile tile;
    fill_tile(job, place, memory, &tile);
    visit_span(job, place, &tile, span);
    for (int i = 0; i < tile.queries; i++) {
        float *to = partial_of(job, place->row + i / place->heads, place->head + i % place->heads, span);
        to[0] = tile.m[i];
        to[1] = tile.l[i];
        memcpy(to + 2, tile.o + (size_t)i * (size_t)job->value_stride, (size_t)job->value_stride * sizeof(float));
    }
}

static void merge_query(const Job *job, int row, int head, float *memory) {
    Partial total;
    start_total(job, head, &total, memory);
    for (int span = 0; span < job->spans; span++) {
        const float *part = partial_of(job, row, head, span);
        merge(&total, memory, part[0], part[1], part + 2, job->value_stride);
    }
    finish_query(job, row, head, &total, memory);
}

static void attention_task(void *argument, int index, int count) {
    const Job *job = argument;
    Pool *pool = job->cpu->pool;
    float *memory = thread_floats(job, index);
    prepare_rows(job, index, count);
    pool_barrier(pool, index);
    for (int64_t item, items; pool_next(pool, 0, index, 1, &item, &items);) {
        const Place place = find_tile(job, job->shared ? item / job->spans : item);
        if (job->shared) span_of_tile(job, &place, (int)(item % job->spans), memory);
        else whole_tile(job, &place, memory);
    }
    if (!job->shared) return;
    pool_barrier(pool, index);
    const int queries = job->cpu->step.rows * job->op->heads;
    for (int i = index; i < queries; i += count) merge_query(job, i / job->op->heads, i % job->op->heads, memory);
}

static void plan_job(Job *job) {
    const Step *step = &job->cpu->step;
    int reach = 0;
    job->group = job->op->heads / job->layout->kv_heads;
    job->tile_heads = job->group < ATTENTION_QUERIES ? job->group : ATTENTION_QUERIES;
    job->tile_rows = ATTENTION_QUERIES / job->tile_heads;
    for (int i = 0; i < step->run_count; i++) {
        const int end = step->runs[i].position + step->runs[i].rows;
        reach = end > reach ? end : reach;
        job->items += tiles_of_run(job, &step->runs[i]);
    }
    job->spans = (reach + ATTENTION_SPAN - 1) / ATTENTION_SPAN;
    const int64_t partials = (int64_t)step->rows * job->op->heads * job->spans * (2 + job->value_stride);
    job->shared = job->spans > 1 && job->items < (int64_t)pool_threads(job->cpu->pool) * ITEMS_PER_THREAD && partials <= SHARED_FLOATS;
    if (job->shared) job->items *= job->spans;
}

void cpu_attention(Backend *backend, const Attention *op) {
    CpuBackend *cpu = cpu_backend(backend);
    const KvLayout *layout = &op->kv.layout;
    CHECK(layout->dtype == DTYPE_F16 && layout->head_dim <= ATTENTION_KEYS && layout->value_dim <= ATTENTION_VALUES);
    Job job = {.cpu = cpu, .op = op, .layout = layout, .value_stride = attention_value_stride(layout->value_dim)};
    if (op->rope) job.rope = angles_of(cpu, op->rope);
    plan_job(&job);
    pool_share(cpu->pool, 0, job.items);
    pool_run(cpu->pool, attention_task, &job);
}
