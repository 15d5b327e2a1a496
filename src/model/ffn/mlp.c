/* Feed-forward without a gate. */
#include "model/ffn/mlp.h"

int64_t mlp_width(const MlpFfn *ffn) { return ffn->up.rows; }

void mlp_forward(const MlpFfn *ffn, const Block *block) {
    const BackendOps *ops = block->backend->ops;
    const Matmul up = {
        .rows = block->rows, .x = block->x, .norm = block->in, .count = 1, .weight = {&ffn->up}, .out = {block->work}};
    ops->matmul(block->backend, &up);
    ops->activate(block->backend, block->rows * ffn->up.rows, block->work, ffn->activation, block->work);
    const MatmulAdd down = {.rows = block->rows,
        .x = block->work,
        .weight = &ffn->down,
        .norm = block->out,
        .scale = block->scale,
        .residual = block->residual};
    ops->matmul_add(block->backend, &down);
}
