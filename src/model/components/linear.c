/* One matrix in place of attention or of a feed-forward network. */
#include "model/component.h"

static int64_t linear_width(const Component *component) { return component->input_norm ? component->linear.cols : 0; }

static void linear_visit(Component *component, const Visitor *visitor) { visit_weight(visitor, &component->linear); }

static ComponentCost linear_cost(const Component *component, int depth) {
    return component_cost_of_weights((const Weight *const[]){&component->linear}, 1);
}

static void linear_describe(const Component *component, Buffer *out) { buffer_text(out, "linear"); }

static void linear_forward(const Component *component, const ComponentCall *call) {
    const BackendOps *ops = call->backend->ops;
    const MatmulAdd op = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->norm ? call->work : call->x,
        .weight = &component->linear,
        .norm = call->output_norm,
        .scale = call->scale,
        .residual = call->residual};
    if (call->norm) ops->norm(call->backend, call->rows, call->x, call->norm, call->work);
    ops->matmul_add(call->backend, &op);
}

const ComponentOps linear_ops = {.width = linear_width,
    .visit = linear_visit,
    .cost = linear_cost,
    .describe = linear_describe,
    .forward = linear_forward};
