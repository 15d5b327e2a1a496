/* The sparse indexer over the kernels of attention_impl.h: prepare heads and append keys, score pages, choose. Rows are
 * taken in slices whose scores fit the memory that attention's threads share. */
#include <math.h>
#include <string.h>

#include "backend/cpu/attention/attention_job.h"
#include "backend/cpu/cpu.h"

typedef struct IndexJob {
    CpuBackend *cpu;
    const IndexSelect *op;
    const AttentionKernels *kernels;
    const RopeTable *rope;
    int groups, pages; /* pages of the longest sequence */
    int slice;         /* rows whose scores are kept together */
    float *scores;     /* [slice, groups, pages · KV_PAGE_TOKENS] */
} IndexJob;

static const SequenceChunk *chunk_of(const IndexJob *job, int row) {
    const SequenceChunk *chunk = job->cpu->step.chunks;
    while (row >= chunk->row + chunk->rows) chunk++;
    return chunk;
}

static int position_of(const SequenceChunk *chunk, int row) { return chunk->position + row - chunk->row; }

static uint8_t *page_of(const IndexJob *job, const SequenceChunk *chunk, int page) {
    const KvLayer *kv = &job->op->kv;
    return attention_head(kv, chunk->tables[kv->group][page], 0);
}

static void rotate(const IndexJob *job, int row, float *head) {
    const Rope *rope = job->op->rope;
    const size_t at = rope ? (size_t)row * (size_t)(rope->dims / 2) : 0;
    if (rope) job->kernels->rotate(rope, job->rope->cosines + at, job->rope->sines + at, head);
}

static void prepare_row(const IndexJob *job, int row) {
    const IndexSelect *op = job->op;
    const KvLayout *l = &op->kv.layout;
    const SequenceChunk *chunk = chunk_of(job, row);
    const int position = position_of(chunk, row), slot = position % KV_PAGE_TOKENS;
    uint8_t *page = page_of(job, chunk, position / KV_PAGE_TOKENS);
    float *k = op->k + (int64_t)row * l->head_dim;
    for (int h = 0; h < op->heads; h++) rotate(job, row, op->q + ((int64_t)row * op->heads + h) * l->head_dim);
    rotate(job, row, k);
    attention_store_key(job->kernels, l, page, slot, k);
    attention_energies(l, page)[slot] = 0;
}

/* ---- choosing ---- */

/* Whether block a gives way to block b. */
static bool is_worse(const float *scores, int32_t a, int32_t b) {
    return scores[a] < scores[b] || (scores[a] == scores[b] && a > b);
}

/* Sinks heap[i] to its place: the worst block is at the root. */
static void sink_worst(const float *scores, int32_t *heap, int count, int i) {
    for (int child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && is_worse(scores, heap[child + 1], heap[child])) child++;
        if (!is_worse(scores, heap[child], heap[i])) return;
        const int32_t moved = heap[i];
        heap[i] = heap[child];
        heap[child] = moved;
    }
}

static void sink_largest(int32_t *heap, int count, int i) {
    for (int child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= heap[i]) return;
        const int32_t moved = heap[i];
        heap[i] = heap[child];
        heap[child] = moved;
    }
}

static void sort_ascending(int32_t *x, int count) {
    for (int i = count / 2 - 1; i >= 0; i--) sink_largest(x, count, i);
    for (int last = count - 1; last > 0; last--) {
        const int32_t largest = x[0];
        x[0] = x[last];
        x[last] = largest;
        sink_largest(x, last, 0);
    }
}

void index_best(const float *scores, int count, int top_k, int32_t *chosen) {
    const int kept = count < top_k ? count : top_k;
    for (int i = 0; i < top_k; i++) chosen[i] = i < kept ? i : -1;
    if (count <= top_k) return;
    for (int i = kept / 2 - 1; i >= 0; i--) sink_worst(scores, chosen, kept, i);
    for (int b = kept; b < count; b++) {
        if (!is_worse(scores, chosen[0], b)) continue;
        chosen[0] = b;
        sink_worst(scores, chosen, kept, 0);
    }
    sort_ascending(chosen, kept);
}

/* The best blocks, ascending; scores: of the keys up to the row's own, which become those of blocks. */
static void choose(const IndexSelect *op, int keys, float *scores, int32_t *chosen) {
    const int blocks = (keys + op->block - 1) / op->block;
    const bool all = blocks <= op->top_k;
    for (int b = 0; b < blocks && op->block > 1 && !all; b++) {
        float best = scores[b * op->block];
        for (int j = b * op->block + 1; j < (b + 1) * op->block && j < keys; j++) best = fmaxf(best, scores[j]);
        scores[b] = best;
    }
    for (int b = blocks - op->local; b < blocks && !all; b++) scores[b] = INFINITY;
    index_best(scores, blocks, op->top_k, chosen);
}

/* ---- the operation ---- */

static float *scores_of(const IndexJob *job, int row, int group) {
    const int64_t at = (int64_t)(row % job->slice) * job->groups + group;
    return job->scores + at * job->pages * KV_PAGE_TOKENS;
}

/* Pages one after the other, each for all rows that see it. */
static void score_slice(const IndexJob *job, int first, int end, int index, int count) {
    const int64_t rows = end - first, items = rows * job->pages, stride = (int64_t)job->pages * KV_PAGE_TOKENS;
    for (int64_t item = items * index / count; item < items * (index + 1) / count; item++) {
        const int page = (int)(item / rows), row = first + (int)(item % rows);
        const SequenceChunk *chunk = chunk_of(job, row);
        if (page * KV_PAGE_TOKENS > position_of(chunk, row)) continue;
        job->kernels->index_page(
            job->op, row, page_of(job, chunk, page), stride, scores_of(job, row, 0) + (int64_t)page * KV_PAGE_TOKENS);
    }
}

static void choose_slice(const IndexJob *job, int first, int end, int index, int count) {
    for (int i = first * job->groups + index; i < end * job->groups; i += count) {
        const int row = i / job->groups;
        choose(job->op, position_of(chunk_of(job, row), row) + 1, scores_of(job, row, i % job->groups),
            job->op->chosen + (int64_t)i * job->op->top_k);
    }
}

static void index_task(void *argument, int index, int count) {
    const IndexJob *job = argument;
    Pool *pool = job->cpu->pool;
    const int rows = job->cpu->step.rows;
    for (int row = index; row < rows; row += count) prepare_row(job, row);
    for (int first = 0; first < rows; first += job->slice) {
        const int end = first + job->slice < rows ? first + job->slice : rows;
        pool_barrier(pool, index);
        score_slice(job, first, end, index, count);
        pool_barrier(pool, index);
        choose_slice(job, first, end, index, count);
    }
}

void cpu_index_select(Backend *backend, const IndexSelect *op) {
    CpuBackend *cpu = cpu_backend(backend);
    IndexJob job = {.cpu = cpu,
        .op = op,
        .kernels = cpu->kernels->attention,
        .groups = op->weights ? 1 : op->heads,
        .scores = (float *)(void *)cpu->attention};
    for (int i = 0; i < cpu->step.chunk_count; i++) {
        const SequenceChunk *chunk = &cpu->step.chunks[i];
        const int pages = (chunk->position + chunk->rows + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
        job.pages = pages > job.pages ? pages : job.pages;
    }
    const int64_t row_floats = (int64_t)job.groups * job.pages * KV_PAGE_TOKENS;
    CHECK(row_floats <= SHARED_FLOATS);
    job.slice = (int)(SHARED_FLOATS / row_floats);
    if (op->rope) job.rope = attention_angles(cpu, op->rope);
    pool_run(cpu->pool, index_task, &job);
}
