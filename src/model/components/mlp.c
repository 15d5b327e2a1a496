/* Feed-forward network without a gate: down · act(up · x). */
#include "model/component.h"

static int64_t mlp_width(const Component *component) { return component->mlp.up.rows; }

static void mlp_visit(Component *component, const Visitor *visitor) {
    visit_split(visitor, &component->mlp.up, SPLIT_ROWS);
    visit_split(visitor, &component->mlp.down, SPLIT_COLUMNS);
}

static ComponentCost mlp_cost(const Component *component, int depth) {
    return component_cost_of_weights((const Weight *const[]){&component->mlp.up, &component->mlp.down}, 2);
}

static void mlp_describe(const Component *component, Buffer *out) {
    buffer_printf(out, "mlp %lld %s", (long long)component->mlp.up.rows, activation_name(component->mlp.activation));
}

static void mlp_forward(const Component *component, const ComponentCall *call) {
    const MlpComponent *mlp = &component->mlp;
    const BackendOps *ops = call->backend->ops;
    const Matmul up = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->x,
        .norm = call->norm,
        .count = 1,
        .weight = {&mlp->up},
        .out = {call->work}};
    component_matmul(call, &up);
    const int64_t count = call->rows * mlp->up.rows;
    if (mlp->slope != 0) ops->logits(call->backend, count, call->work, mlp->slope, 0);
    ops->activate(call->backend, count, call->work, mlp->activation, call->work);
    if (mlp->slope != 0) ops->logits(call->backend, count, call->work, 1 / mlp->slope, 0);
    const MatmulAdd down = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->work,
        .weight = &mlp->down,
        .norm = call->output_norm,
        .scale = call->scale,
        .residual = call->residual};
    component_matmul_add(call, &down);
}

const ComponentOps mlp_ops = {
    .width = mlp_width, .visit = mlp_visit, .cost = mlp_cost, .describe = mlp_describe, .forward = mlp_forward};
