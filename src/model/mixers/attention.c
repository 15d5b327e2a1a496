/* Grouped-query attention. What differs between models (norms of q and k, rotation, window, softcap) is in the
 * Attention operation, whose meaning cpu/ref.c defines. */
#include "model/mixers/attention.h"

int64_t attention_width(const AttentionMixer *mixer) {
    return mixer->q.rows + mixer->k.rows + mixer->v.rows + mixer->o.cols;
}

void attention_forward(const AttentionMixer *mixer, const Block *block) {
    const BackendOps *ops = block->backend->ops;
    float *q = block->work;
    float *k = q + block->rows * mixer->q.rows;
    float *v = k + block->rows * mixer->k.rows;
    float *attended = v + block->rows * mixer->v.rows;

    const Matmul project = {.rows = block->rows,
        .x = block->x,
        .norm = block->in,
        .count = 3,
        .weight = {&mixer->q, &mixer->k, &mixer->v},
        .out = {q, k, v}};
    ops->matmul(block->backend, &project);

    Attention attention = mixer->op;
    attention.q = q;
    attention.k = k;
    attention.v = v;
    attention.out = attended;
    ops->attention(block->backend, &attention);

    const MatmulAdd back = {.rows = block->rows,
        .x = attended,
        .weight = &mixer->o,
        .norm = block->out,
        .scale = block->scale,
        .residual = block->residual};
    ops->matmul_add(block->backend, &back);
}
