/* A gate of low rank on a normalised residual, which the components parallel to it read (A.X K2). */
#include "model/component.h"

static int64_t norm_gate_width(const Component *component) {
    return component->norm_gate.down.rows + component->norm_gate.up.rows;
}

static void norm_gate_visit(Component *component, const Visitor *visitor) {
    visit_weight(visitor, &component->norm_gate.down);
    visit_weight(visitor, &component->norm_gate.up);
}

static ComponentCost norm_gate_cost(const Component *component, int depth) {
    const NormGateComponent *gate = &component->norm_gate;
    return component_cost_of_weights((const Weight *const[]){&gate->down, &gate->up}, 2);
}

static void norm_gate_describe(const Component *component, Buffer *out) {
    buffer_printf(out, "a gated norm of rank %lld", (long long)component->norm_gate.down.rows);
}

static void norm_gate_forward(const Component *component, const ComponentCall *call) {
    const NormGateComponent *gate = &component->norm_gate;
    const BackendOps *ops = call->backend->ops;
    const int64_t count = call->rows * gate->down.rows;
    float *low = call->work, *logits = low + count;
    const Matmul down = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->normed,
        .count = 1,
        .weight = {&gate->down},
        .out = {low}};
    const Matmul up = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = low,
        .count = 1,
        .weight = {&gate->up},
        .out = {logits}};
    const HeadGate gated = {.rows = call->rows, .heads = call->hidden, .width = 1, .gate = logits, .x = call->normed};
    component_matmul(call, &down);
    ops->activate(call->backend, count, low, (Activation){.kind = ACT_SILU}, low);
    component_matmul(call, &up);
    ops->gate_heads(call->backend, &gated);
}

const ComponentOps norm_gate_ops = {.width = norm_gate_width,
    .visit = norm_gate_visit,
    .cost = norm_gate_cost,
    .describe = norm_gate_describe,
    .forward = norm_gate_forward};
