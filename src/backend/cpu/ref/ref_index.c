/* The sparse indexer of the reference backend: one key after another, the best block picked again and again. */
#include <math.h>
#include <stdlib.h>

#include "backend/cpu/ref/ref_internal.h"

static float *key_at(const IndexSelect *op, const SequenceChunk *chunk, int position) {
    const int32_t page = chunk->tables[op->kv.group][position / KV_PAGE_TOKENS];
    return ref_head(&op->kv, page, 0) + (size_t)(position % KV_PAGE_TOKENS) * (size_t)op->kv.layout.head_dim;
}

/* Rotates the heads of a row and appends its key. */
static void prepare_row(const IndexSelect *op, const Step *step, const SequenceChunk *chunk, int row) {
    const KvLayout *l = &op->kv.layout;
    const int position = chunk->position + row - chunk->row;
    float *q = op->q + (int64_t)row * op->heads * l->head_dim, *k = op->k + (int64_t)row * l->head_dim;
    if (op->rope) {
        float angles[ATTENTION_HEAD_MAX / 2];
        rope_angles(op->rope, step, row, angles);
        for (int h = 0; h < op->heads; h++) ref_rotate(op->rope, angles, q + (int64_t)h * l->head_dim);
        ref_rotate(op->rope, angles, k);
    }
    ref_store_head(key_at(op, chunk, position), k, l->head_dim, l->dtype);
    ref_energies(&op->kv, chunk->tables[op->kv.group][position / KV_PAGE_TOKENS], 0)[position % KV_PAGE_TOKENS] = 0;
}

/* The score of a key for one head, or with weights for all. */
static float score_of(const IndexSelect *op, int row, int head, const float *key) {
    const int width = op->kv.layout.head_dim;
    const float *q = op->q + (int64_t)row * op->heads * width;
    if (!op->weights) return ref_dot(q + (int64_t)head * width, key, width);
    const float *weights = op->weights + (int64_t)row * op->heads;
    float sum = 0;
    for (int h = 0; h < op->heads; h++) sum += weights[h] * fmaxf(0, ref_dot(q + (int64_t)h * width, key, width));
    return sum;
}

/* The blocks of one group: the latest ones, then the best of the others. scores: [blocks]; taken: [blocks] to mark
 * those that are chosen. */
static void choose(const IndexSelect *op, float *scores, float *taken, int blocks, int32_t *chosen) {
    for (int i = 0; i < op->top_k; i++) chosen[i] = -1;
    for (int b = blocks - 1; b >= 0 && b >= blocks - op->local; b--) scores[b] = INFINITY;
    for (int b = 0; b < blocks; b++) taken[b] = 0;
    for (int i = 0; i < op->top_k && i < blocks; i++) {
        int best = -1;
        for (int b = 0; b < blocks; b++)
            if (taken[b] == 0 && (best < 0 || scores[b] > scores[best])) best = b;
        taken[best] = 1;
    }
    for (int b = 0, i = 0; b < blocks; b++)
        if (taken[b] != 0) chosen[i++] = b;
}

/* scores, taken: [keys of the row] */
static void select_row(const IndexSelect *op, const SequenceChunk *chunk, int row, float *scores, float *taken) {
    const int groups = op->weights ? 1 : op->heads, position = chunk->position + row - chunk->row;
    for (int g = 0; g < groups; g++) {
        for (int j = 0; j <= position; j++) {
            const float score = score_of(op, row, g, key_at(op, chunk, j));
            const int block = j / op->block;
            scores[block] = j % op->block == 0 ? score : fmaxf(scores[block], score);
        }
        choose(op, scores, taken, position / op->block + 1, op->chosen + ((int64_t)row * groups + g) * op->top_k);
    }
}

void ref_index_select(Backend *backend, const IndexSelect *op) {
    RefBackend *r = ref_backend(backend);
    int longest = 0;
    for (int i = 0; i < r->step.chunk_count; i++) {
        const SequenceChunk *chunk = &r->step.chunks[i];
        const int end = chunk->position + chunk->rows;
        longest = end > longest ? end : longest;
        for (int row = chunk->row; row < chunk->row + chunk->rows; row++) prepare_row(op, &r->step, chunk, row);
    }
    float *scores = ref_take(r, 2 * (int64_t)longest);
    for (int i = 0; scores && i < r->step.chunk_count; i++) {
        const SequenceChunk *chunk = &r->step.chunks[i];
        for (int row = chunk->row; row < chunk->row + chunk->rows; row++)
            select_row(op, chunk, row, scores, scores + longest);
    }
    r->starved = r->starved || !scores;
    free(scores);
}
