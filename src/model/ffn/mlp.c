/* Feed-forward without a gate: down · act(up · x). */
#include "model/component.h"

static int64_t mlp_width(const Layer *layer) { return layer->mlp.up.rows; }

static void mlp_visit(Layer *layer, const Visitor *visitor) {
    visit_split(visitor, &layer->mlp.up, SPLIT_ROWS);
    visit_split(visitor, &layer->mlp.down, SPLIT_COLUMNS);
}

static ComponentCost mlp_cost(const Layer *layer, int depth) {
    return component_cost_of_weights((const Weight *const[]){&layer->mlp.up, &layer->mlp.down}, 2);
}

static void mlp_describe(const Layer *layer, Buffer *out) {
    buffer_printf(out, "mlp %lld %s", (long long)layer->mlp.up.rows, activation_name(layer->mlp.activation));
}

static void mlp_forward(const Layer *layer, const Block *block) {
    const MlpFfn *ffn = &layer->mlp;
    const BackendOps *ops = block->backend->ops;
    const Matmul up = {.rows = block->rows,
        .decode_rows = block->decode_rows,
        .x = block->x,
        .norm = block->in,
        .count = 1,
        .weight = {&ffn->up},
        .out = {block->work}};
    ops->matmul(block->backend, &up);
    ops->activate(block->backend, block->rows * ffn->up.rows, block->work, ffn->activation, block->work);
    const MatmulAdd down = {.rows = block->rows,
        .decode_rows = block->decode_rows,
        .x = block->work,
        .weight = &ffn->down,
        .norm = block->out,
        .scale = block->scale,
        .residual = block->residual,
        .next = block->next};
    ops->matmul_add(block->backend, &down);
}

const ComponentOps mlp_component = {
    .width = mlp_width, .visit = mlp_visit, .cost = mlp_cost, .describe = mlp_describe, .forward = mlp_forward};
