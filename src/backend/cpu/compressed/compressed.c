/* Attention to compressed keys and hyper-connections of the vector backends: work for threads. */
#include "backend/cpu/compressed/compressed.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/attention/attention_job.h"
#include "base/math.h"

enum {
    SMALL_FLOATS = 1 << 15, /* below this an operation is not worth waking threads */
    PHASES = 3,
    ROWS_TOGETHER = 8, /* rows of a thread whose scores are kept together */
    TILES = 16,        /* tiles of heads that read a block of keys one after the other */
};

/* Phases begin when the one before has ended; items of one are independent of each other. */
typedef struct CompressedJob CompressedJob;
typedef struct Phase {
    int64_t items;
    void (*item)(const CompressedJob *job, int64_t item);
} Phase;
struct CompressedJob {
    CpuBackend *cpu;
    const CompressedKernels *kernels;
    const RopeTable *rope;
    const Compression *compression;
    const CompressedSelect *select;
    const CompressedAttention *attention;
    const GroupJoin *join;
    const HyperConnection *hyper;
    int parts, tiles; /* attention: parts of a row; tiles of a group of heads */
    int first, pages; /* the choice: the first row of the slice; pages of the longest sequence */
    Phase phase[PHASES];
};

static CompressedJob job_of(Backend *backend) {
    CpuBackend *cpu = cpu_backend(backend);
    return (CompressedJob){.cpu = cpu, .kernels = cpu->kernels->compressed};
}

/* The items of the first phase cost the same. */
static void job_task(void *argument, int index, int count) {
    const CompressedJob *job = argument;
    const Phase *phase = job->phase;
    int64_t first, items;
    for (int64_t i = phase->items * index / count; i < phase->items * (index + 1) / count; i++) phase->item(job, i);
    for (int slot = 0; slot < PHASES - 1 && (++phase)->item; slot++) {
        pool_barrier(job->cpu->pool, index);
        while (pool_next(job->cpu->pool, slot, index, 1, &first, &items))
            for (int64_t i = first; i < first + items; i++) phase->item(job, i);
    }
}

/* floats: that the operation reads, about. */
static void run(CompressedJob *job, int64_t floats) {
    if (floats >= SMALL_FLOATS) {
        for (int slot = 0; slot < PHASES - 1; slot++) pool_share(job->cpu->pool, slot, job->phase[slot + 1].items);
        pool_run(job->cpu->pool, job_task, job);
        return;
    }
    for (int p = 0; p < PHASES && job->phase[p].item; p++)
        for (int64_t i = 0; i < job->phase[p].items; i++) job->phase[p].item(job, i);
}

static const SequenceChunk *chunk_of(const CompressedJob *job, int64_t row) {
    const SequenceChunk *chunk = job->cpu->step.chunks;
    while (row >= chunk->row + chunk->rows) chunk++;
    return chunk;
}
static int position_of(const SequenceChunk *chunk, int64_t row) { return chunk->position + (int)(row - chunk->row); }

/* Rotates the end of a head by the row's position. */
static void rotate_end(const CompressedJob *job, const Rope *rope, int64_t row, int width, bool back, float *head) {
    const int64_t at = row * (rope->dims / 2);
    job->kernels->rotate(rope->dims, job->rope->cosines + at, job->rope->sines + at, back, head + width - rope->dims);
}

/* ---- compression ---- */

static void keep_row(const CompressedJob *job, int64_t row) {
    const Compression *op = job->compression;
    const SequenceChunk *chunk = chunk_of(job, row);
    const int64_t all = compression_width(op);
    float *to = cache_row(&op->state, chunk, position_of(chunk, row));
    memcpy(to, op->values + row * all, (size_t)all * sizeof *to);
    memcpy(to + all, op->gates + row * all, (size_t)all * sizeof *to);
}

static int slots_of(const Compression *op, const SequenceChunk *chunk, int first, CompressedSlot *slots) {
    const int64_t all = compression_width(op);
    const int before = op->overlap && first >= op->rate ? op->rate : 0;
    for (int i = 0; i < before + op->rate; i++) {
        const float *row = cache_row(&op->state, chunk, first - before + i);
        const int64_t part = op->overlap && i >= before ? op->width : 0;
        slots[i] = (CompressedSlot){
            row + part, row + all + part, op->position_bias + (first - before + i) % op->rate * all + part};
    }
    return before + op->rate;
}

/* The key of the window that ends with the row, whose position is not the one that the key is rotated by. */
static void make_key(const CompressedJob *job, int64_t row) {
    const Compression *op = job->compression;
    const SequenceChunk *chunk = chunk_of(job, row);
    const int first = position_of(chunk, row) + 1 - op->rate, pairs = op->rope->dims / 2;
    if ((first + op->rate) % op->rate) return;
    CompressedSlot slots[2 * KV_PAGE_TOKENS];
    float *key = cache_row(&op->keys, chunk, first), cosines[ATTENTION_HEAD_MAX / 2], sines[ATTENTION_HEAD_MAX / 2];
    job->kernels->pool(op->width, slots, slots_of(op, chunk, first, slots), key);
    if (op->norm) job->cpu->kernels->norm_row(key, op->norm, key);
    for (int i = 0; i < pairs; i++) {
        const float angle = (float)first * op->rope->frequencies[i];
        cosines[i] = cosf(angle);
        sines[i] = sinf(angle);
    }
    job->kernels->rotate(op->rope->dims, cosines, sines, false, key + op->width - op->rope->dims);
}

void cpu_compress(Backend *backend, const Compression *op) {
    CompressedJob job = job_of(backend);
    job.compression = op;
    job.phase[0] = (Phase){op->rows, keep_row};
    job.phase[1] = (Phase){op->rows, make_key};
    run(&job, 2 * op->rows * compression_width(op));
}

/* ---- the choice of keys ---- */

static int page_keys(const CompressedSelect *op) { return KV_PAGE_TOKENS / op->rate; }
static int64_t packed_floats(const CompressedSelect *op) { return (int64_t)op->width * compressed_lanes(op->heads); }
static int64_t slice_row_floats(const CompressedJob *job) {
    return packed_floats(job->select) + (int64_t)job->pages * page_keys(job->select);
}
/* A row's heads as CompressedIndex has them, then the scores of its keys. */
static float *packed_of(const CompressedJob *job, int64_t row) {
    return (float *)(void *)job->cpu->attention + (row - job->first) * slice_row_floats(job);
}

/* Keys that a row sees, if it has to choose. */
static int keys_to_score(const CompressedJob *job, int64_t row) {
    const SequenceChunk *chunk = chunk_of(job, row);
    const int seen = compressed_keys(job->select->rate, position_of(chunk, row));
    return seen > job->select->top_k ? seen : 0;
}

/* Items: 16 heads of a row. */
static void pack_heads(const CompressedJob *job, int64_t item) {
    const CompressedSelect *op = job->select;
    const int lanes = compressed_lanes(op->heads);
    const int64_t row = job->first + item / (lanes / 16), first = item % (lanes / 16) * 16;
    if (!keys_to_score(job, row)) return;
    float *packed = packed_of(job, row);
    for (int64_t h = first; h < first + 16; h++) {
        float *q = op->q + (row * op->heads + h) * op->width;
        if (h < op->heads) rotate_end(job, op->rope, row, op->width, false, q);
        for (int e = 0; e < op->width; e++) packed[e * lanes + h] = h < op->heads ? q[e] : 0;
    }
}

/* Items: the keys in a page that a row sees. */
static void score_page(const CompressedJob *job, int64_t item) {
    const CompressedSelect *op = job->select;
    const int64_t row = job->first + item / job->pages;
    const int first = (int)(item % job->pages) * page_keys(op), seen = keys_to_score(job, row);
    if (first >= seen) return;
    const float *packed = packed_of(job, row);
    const CompressedIndex index = {op->heads, op->width, packed, op->weights + row * op->heads};
    job->kernels->score(&index, cache_row(&op->keys, chunk_of(job, row), first * op->rate),
        min_int(seen - first, page_keys(op)), packed_of(job, row) + packed_floats(op) + first);
}

static void choose_keys(const CompressedJob *job, int64_t item) {
    const CompressedSelect *op = job->select;
    const int64_t row = job->first + item;
    const SequenceChunk *chunk = chunk_of(job, row);
    const int position = position_of(chunk, row), seen = compressed_keys(op->rate, position);
    int32_t *chosen = op->chosen + row * compressed_chosen(op);
    index_best(packed_of(job, row) + packed_floats(op), seen, op->top_k, chosen);
    if (!op->tail) return;
    chosen[op->top_k] = -1;
    chosen[min_int(seen, op->top_k)] = compressed_tail(op->rate, position);
}

void cpu_compressed_select(Backend *backend, const CompressedSelect *op) {
    CompressedJob job = job_of(backend);
    int longest = 0;
    job.select = op;
    for (int i = 0; i < job.cpu->step.chunk_count; i++) {
        const SequenceChunk *chunk = &job.cpu->step.chunks[i];
        longest = max_int(longest, compressed_keys(op->rate, chunk->position + chunk->rows - 1));
    }
    job.pages = longest > op->top_k ? (longest + page_keys(op) - 1) / page_keys(op) : 0;
    CHECK(slice_row_floats(&job) <= SHARED_FLOATS);
    if (job.pages) job.rope = attention_angles(job.cpu, op->rope);
    const int64_t room = SHARED_FLOATS / slice_row_floats(&job);
    const int slice = (int)min_i64(room, (int64_t)ROWS_TOGETHER * pool_threads(job.cpu->pool));
    for (; job.first < op->rows; job.first += slice) {
        const int64_t rows = min_i64(op->rows - job.first, slice);
        job.phase[0] = (Phase){job.pages ? rows * compressed_lanes(op->heads) / 16 : 0, pack_heads};
        job.phase[1] = (Phase){rows * job.pages, score_page};
        job.phase[2] = (Phase){rows, choose_keys};
        run(&job, rows * job.pages * page_keys(op) * op->width);
    }
}

/* ---- attention ---- */

static void prepare_key(const CompressedJob *job, int64_t row) {
    const CompressedAttention *op = job->attention;
    const SequenceChunk *chunk = chunk_of(job, row);
    float *key = cache_row(&op->latest, chunk, position_of(chunk, row));
    job->cpu->kernels->norm_row(op->k + row * op->width, op->k_norm, key);
    rotate_end(job, op->rope, row, op->width, false, key);
}

/* Tile number `number` of a row, over groups and the heads of each, without keys so far. */
static CompressedTile open_tile(const CompressedJob *job, int64_t row, int number) {
    const CompressedAttention *op = job->attention;
    const int group = number / job->tiles, each = op->heads / op->groups;
    const int first = number % job->tiles * COMPRESSED_HEADS, head = group * each + first;
    float *q = op->q + (row * op->heads + head) * op->width;
    CompressedTile tile = {.heads = min_int(each - first, COMPRESSED_HEADS),
        .width = op->width,
        .scale = op->scale,
        .q = q,
        .out = op->out + (((int64_t)group * op->rows + row) * each + first) * op->width};
    memset(tile.out, 0, (size_t)tile.heads * (size_t)op->width * sizeof *tile.out);
    for (int h = 0; h < tile.heads; h++, q += op->width) {
        tile.most[h] = op->sinks[head + h];
        tile.sum[h] = 1;
        job->cpu->kernels->norm_row(q, op->q_norm, q);
        rotate_end(job, op->rope, row, op->width, false, q);
    }
    return tile;
}

static void close_tile(const CompressedJob *job, int64_t row, const CompressedTile *tile) {
    for (int h = 0; h < tile->heads; h++) {
        float *out = tile->out + (int64_t)h * tile->width;
        job->kernels->divide(tile->width, tile->sum[h], out);
        rotate_end(job, job->attention->rope, row, tile->width, true, out);
    }
}

static int keys_read(const CompressedAttention *op, const int32_t *chosen, int position) {
    if (!op->rate) return 0;
    const int seen = compressed_keys(op->rate, position);
    int count = 0;
    while (chosen && count < op->top_k && chosen[count] >= 0) count++;
    return chosen ? count : seen;
}

/* Some tiles of one row; blocks begin at the window's first key, and at the first compressed one. */
static void attend_part(const CompressedJob *job, int64_t item) {
    const CompressedAttention *op = job->attention;
    const int64_t row = item / job->parts;
    const SequenceChunk *chunk = chunk_of(job, row);
    const int part = (int)(item % job->parts), all = job->tiles * op->groups, position = position_of(chunk, row);
    const int first = all * part / job->parts, count = all * (part + 1) / job->parts - first;
    const int begin = max_int(position - op->window + 1, 0);
    const int32_t *chosen = op->chosen ? op->chosen + row * op->top_k : NULL;
    const int compressed = keys_read(op, chosen, position);
    CompressedTile tiles[TILES];
    const float *keys[COMPRESSED_BLOCK];
    for (int t = 0; t < count; t++) tiles[t] = open_tile(job, row, first + t);
    for (int at = begin, n; at <= position; at += n) {
        n = min_int(position + 1 - at, COMPRESSED_BLOCK);
        for (int i = 0; i < n; i++) keys[i] = cache_row(&op->latest, chunk, at + i);
        for (int t = 0; t < count; t++) job->kernels->attend(&tiles[t], keys, n);
    }
    for (int at = 0, n; at < compressed; at += n) {
        n = min_int(compressed - at, COMPRESSED_BLOCK);
        for (int i = 0; i < n; i++)
            keys[i] = cache_row(&op->keys, chunk, (chosen ? chosen[at + i] : at + i) * op->rate);
        for (int t = 0; t < count; t++) job->kernels->attend(&tiles[t], keys, n);
    }
    for (int t = 0; t < count; t++) close_tile(job, row, &tiles[t]);
}

void cpu_compressed_attention(Backend *backend, const CompressedAttention *op) {
    CompressedJob job = job_of(backend);
    job.attention = op;
    job.rope = attention_angles(job.cpu, op->rope);
    job.tiles = (op->heads / op->groups + COMPRESSED_HEADS - 1) / COMPRESSED_HEADS;
    const int all = job.tiles * op->groups, threads = pool_threads(job.cpu->pool);
    job.parts = min_int(all, max_int((threads + op->rows - 1) / op->rows, (all + TILES - 1) / TILES));
    job.phase[0] = (Phase){op->rows, prepare_key};
    job.phase[1] = (Phase){(int64_t)op->rows * job.parts, attend_part};
    run(&job, (int64_t)op->rows * op->heads * op->window * op->width);
}

static void join_row(const CompressedJob *job, int64_t row) {
    const GroupJoin *op = job->join;
    for (int g = 0; g < op->groups; g++)
        memcpy(op->out + (row * op->groups + g) * op->width,
            op->x + ((op->repeated ? 0 : (int64_t)g * op->rows) + row) * op->width,
            (size_t)op->width * sizeof *op->out);
}

void cpu_join_groups(Backend *backend, const GroupJoin *op) {
    CompressedJob job = job_of(backend);
    job.join = op;
    job.phase[0] = (Phase){op->rows, join_row};
    run(&job, op->rows == 1 ? 0 : op->rows * op->groups * op->width);
}

/* ---- hyper-connections ---- */

static void connect_row(const CompressedJob *job, int64_t row) {
    HyperWeights weights;
    hyper_weights(job->hyper, row, &weights);
    job->kernels->hyper(job->hyper, &weights, row);
}

void cpu_hyper_connect(Backend *backend, const HyperConnection *op) {
    CompressedJob job = job_of(backend);
    job.hyper = op;
    job.phase[0] = (Phase){op->rows, connect_row};
    run(&job, op->rows == 1 ? 0 : op->rows * op->streams * op->width);
}
