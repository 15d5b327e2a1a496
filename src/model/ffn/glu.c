/* Gated feed-forward: SwiGLU, GeGLU. */
#include "model/ffn/glu.h"

int64_t glu_width(const GluFfn *ffn) { return ffn->gate.rows; }

void glu_forward(const GluFfn *ffn, const Block *block) {
    const BackendOps *ops = block->backend->ops;
    const Glu inner = {.rows = block->rows,
        .x = block->x,
        .norm = block->in,
        .gate = &ffn->gate,
        .up = &ffn->up,
        .activation = ffn->activation,
        .out = block->work};
    ops->glu(block->backend, &inner);
    const MatmulAdd down = {.rows = block->rows,
        .x = block->work,
        .weight = &ffn->down,
        .norm = block->out,
        .scale = block->scale,
        .residual = block->residual};
    ops->matmul_add(block->backend, &down);
}
