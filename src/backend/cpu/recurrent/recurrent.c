/* Recurrent layers of the vector backends: work for threads. */
#include "backend/cpu/recurrent/recurrent.h"

#include "base/math.h"

enum {
    C = RECURRENT_PAGE_TOKENS,
    SMALL_FLOATS = 1 << 15, /* below this an operation is not worth waking threads */
    SMALL_CONV = 1 << 12,   /* the same of a convolution, which transposes its weights for few rows, too */
};

/* The memory of a head: state, columns and their products, updates, weights of the anchor, decays. */
size_t recurrent_scratch_bytes(void) {
    const size_t d = RECURRENT_DIM_MAX, c = C;
    return (d * d + 2 * c * d + 2 * c * d + c * d + c * d + c * d + 2 * d) * sizeof(float);
}

static float *scratch_of(const CpuBackend *cpu, int index) {
    return (float *)(void *)(cpu->recurrent + (size_t)index * recurrent_scratch_bytes());
}

PageRows page_rows(const RecurrentPart *place, const SequenceChunk *chunk, int first) {
    const int position = chunk->position + first;
    return (PageRows){.first = first,
        .rows = min_int(C - position % C, chunk->rows - first),
        .begin = position % C,
        .page = chunk->tables[place->kv.group][position / C]};
}

int32_t page_before(const RecurrentPart *place, const SequenceChunk *chunk) {
    return chunk->tables[place->kv.group][(chunk->position - 1) / C];
}

/* ---- convolution ---- */

ConvHistory conv_history(const Conv *op, const SequenceChunk *chunk) {
    ConvHistory history = {{NULL}};
    const int64_t channels = conv_channels(op);
    if (chunk->position == 0) return history;
    const int32_t page = page_before(&op->place, chunk);
    const int rows = (chunk->position - 1) % C + 1;
    for (int i = 0; i < op->taps - 1; i++) {
        const int row = rows - op->taps + 1 + i; /* negative: before the page */
        history.input[i] = row >= 0 ? recurrent_row(&op->place, page, row)
                                    : recurrent_anchor(&op->place, page) + (row + op->taps - 1) * channels;
    }
    return history;
}

/* Inputs of channels of a part at a row of the chunk, or before it. */
static void copy_input(const Conv *op, const SequenceChunk *chunk, const ConvHistory *history, int part, int64_t at,
    int64_t first, int64_t count, int row, float *to) {
    const ConvPart *p = &op->part[part];
    const float *from = row >= 0             ? p->x + (chunk->row + row) * p->channels + first
        : history->input[op->taps - 1 + row] ? history->input[op->taps - 1 + row] + at + first
                                             : NULL;
    const float *gate = row >= 0 && op->in_gate ? op->in_gate + (chunk->row + row) * p->channels + first : NULL;
    for (int64_t c = 0; c < count; c++) to[c] = !from ? 0 : gate ? from[c] * gate[c] : from[c];
}

/* Writes the rows of these channels, and anchors, to the pages that are stored. */
static void store_inputs(
    const Conv *op, const SequenceChunk *chunk, int part, int64_t at, int64_t first, int64_t count) {
    const ConvHistory history = conv_history(op, chunk);
    for (int row = 0; row < chunk->rows && op->taps > 1;) {
        const PageRows run = page_rows(&op->place, chunk, row);
        for (int i = 0; run.page >= 0 && run.begin == 0 && i < op->taps - 1; i++)
            copy_input(op, chunk, &history, part, at, first, count, row - op->taps + 1 + i,
                recurrent_anchor(&op->place, run.page) + i * conv_channels(op) + at + first);
        for (int i = 0; run.page >= 0 && i < run.rows; i++)
            copy_input(op, chunk, &history, part, at, first, count, row + i,
                recurrent_row(&op->place, run.page, run.begin + i) + at + first);
        row += run.rows;
    }
}

/* Items: pieces of the channels of each part, for each chunk. */
static int64_t conv_pieces(const Conv *op) {
    int64_t pieces = 0;
    for (int i = 0; i < op->part_count; i++) pieces += (op->part[i].channels + CONV_ITEM - 1) / CONV_ITEM;
    return pieces;
}

static void conv_item(const RecurrentJob *job, int64_t item) {
    const Conv *op = job->conv;
    const SequenceChunk *chunk = &job->cpu->step.chunks[item / conv_pieces(op)];
    int64_t piece = item % conv_pieces(op), at = 0;
    int part = 0;
    for (;; part++) {
        const int64_t pieces = (op->part[part].channels + CONV_ITEM - 1) / CONV_ITEM;
        if (piece < pieces) break;
        piece -= pieces;
        at += op->part[part].channels;
    }
    const int64_t first = piece * CONV_ITEM, count = min_i64(op->part[part].channels - first, CONV_ITEM);
    job->cpu->kernels->recurrent->conv(op, chunk, part, at, first, count);
    store_inputs(op, chunk, part, at, first, count);
}

static void conv_task(void *argument, int index, int count) {
    const RecurrentJob *job = argument;
    int64_t first, items;
    while (pool_next(job->cpu->pool, 0, index, 1, &first, &items))
        for (int64_t i = first; i < first + items; i++) conv_item(job, i);
}

void cpu_conv(Backend *backend, const Conv *op) {
    CpuBackend *cpu = cpu_backend(backend);
    RecurrentJob job = {.cpu = cpu, .conv = op};
    const int64_t items = cpu->step.chunk_count * conv_pieces(op);
    if (op->rows * conv_channels(op) < SMALL_CONV) {
        for (int64_t i = 0; i < items; i++) conv_item(&job, i);
        return;
    }
    pool_share(cpu->pool, 0, items);
    pool_run(cpu->pool, conv_task, &job);
}

/* ---- recurrences with a matrix state ---- */

/* Runs of rows in one page, over all chunks of the step. */
static int64_t count_runs(const Recurrence *op, const Step *step) {
    int64_t runs = 0;
    for (int i = 0; i < step->chunk_count; i++) {
        const SequenceChunk *chunk = &step->chunks[i];
        runs += (chunk->position + chunk->rows - 1) / C - chunk->position / C + 1;
    }
    return runs;
}

/* One run of rows of the first phase, found by its number. */
static void products_item(const RecurrentJob *job, int64_t item) {
    const Recurrence *op = job->recurrence;
    const SequenceChunk *chunk = job->cpu->step.chunks;
    int64_t run = item / op->key_heads;
    for (;; chunk++) {
        const int64_t runs = (chunk->position + chunk->rows - 1) / C - chunk->position / C + 1;
        if (run < runs) break;
        run -= runs;
    }
    const int64_t first = run == 0 ? 0 : run * C - chunk->position % C;
    job->cpu->kernels->recurrent->products(job, chunk, (int)first, (int)(item % op->key_heads));
}

static void recurrence_task(void *argument, int index, int count) {
    const RecurrentJob *job = argument;
    const Recurrence *op = job->recurrence;
    int64_t first, items;
    while (pool_next(job->cpu->pool, 0, index, 1, &first, &items))
        for (int64_t i = first; i < first + items; i++) products_item(job, i);
    pool_barrier(job->cpu->pool, index);
    while (pool_next(job->cpu->pool, 1, index, 1, &first, &items))
        for (int64_t i = first; i < first + items; i++)
            job->cpu->kernels->recurrent->head(job, &job->cpu->step.chunks[i / op->value_heads],
                (int)(i % op->value_heads), scratch_of(job->cpu, index));
}

void cpu_recurrence(Backend *backend, const Recurrence *op) {
    CpuBackend *cpu = cpu_backend(backend);
    RecurrentJob job = {.cpu = cpu, .recurrence = op};
    pool_share(cpu->pool, 0, count_runs(op, &cpu->step) * op->key_heads);
    pool_share(cpu->pool, 1, (int64_t)cpu->step.chunk_count * op->value_heads);
    pool_run(cpu->pool, recurrence_task, &job);
}

/* ---- Mamba-1 ---- */

static void mamba_task(void *argument, int index, int count) {
    const RecurrentJob *job = argument;
    const int64_t pieces = (job->mamba->channels + MAMBA_ITEM - 1) / MAMBA_ITEM;
    int64_t first, items;
    while (pool_next(job->cpu->pool, 0, index, 4, &first, &items))
        for (int64_t i = first; i < first + items; i++)
            job->cpu->kernels->recurrent->mamba(
                job, &job->cpu->step.chunks[i / pieces], i % pieces * MAMBA_ITEM, scratch_of(job->cpu, index));
}

void cpu_mamba(Backend *backend, const Mamba *op) {
    CpuBackend *cpu = cpu_backend(backend);
    RecurrentJob job = {.cpu = cpu, .mamba = op};
    pool_share(cpu->pool, 0, cpu->step.chunk_count * ((op->channels + MAMBA_ITEM - 1) / MAMBA_ITEM));
    pool_run(cpu->pool, mamba_task, &job);
}

/* ---- RG-LRU ---- */

static void rg_lru_task(void *argument, int index, int count) {
    const RecurrentJob *job = argument;
    const int64_t pieces = job->rg_lru->channels / RG_LRU_UNIT;
    int64_t first, items;
    while (pool_next(job->cpu->pool, 0, index, 4, &first, &items))
        for (int64_t i = first; i < first + items; i++)
            job->cpu->kernels->recurrent->rg_lru(
                job->rg_lru, &job->cpu->step.chunks[i / pieces], i % pieces * RG_LRU_UNIT);
}

void cpu_rg_lru(Backend *backend, const RgLru *op) {
    CpuBackend *cpu = cpu_backend(backend);
    RecurrentJob job = {.cpu = cpu, .rg_lru = op};
    pool_share(cpu->pool, 0, cpu->step.chunk_count * (op->channels / RG_LRU_UNIT));
    pool_run(cpu->pool, rg_lru_task, &job);
}

/* ---- gated norm ---- */

static void gated_norm_task(void *argument, int index, int count) {
    const RecurrentJob *job = argument;
    const GatedNorm *op = job->gated_norm;
    for (int64_t row = (int64_t)op->rows * index / count; row < (int64_t)op->rows * (index + 1) / count; row++)
        job->cpu->kernels->recurrent->gated_norm(op, row);
}

void cpu_gated_norm(Backend *backend, const GatedNorm *op) {
    CpuBackend *cpu = cpu_backend(backend);
    RecurrentJob job = {.cpu = cpu, .gated_norm = op};
    if (op->rows * op->width < SMALL_FLOATS || op->rows == 1)
        gated_norm_task(&job, 0, 1);
    else
        pool_run(cpu->pool, gated_norm_task, &job);
}
