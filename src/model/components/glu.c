/* Gated feed-forward network (SwiGLU, GeGLU): down · (act(gate · x) ∘ (up · x)). */
#include "model/component.h"

static int64_t glu_width(const Component *component) {
    const GluComponent *glu = &component->glu;
    return glu->clips ? 2 * (glu->gate.rows + glu->gate.cols) : glu->gate.rows;
}

static void glu_visit(Component *component, const Visitor *visitor) {
    visit_split(visitor, &component->glu.gate, SPLIT_ROWS);
    visit_split(visitor, &component->glu.up, SPLIT_ROWS);
    visit_split(visitor, &component->glu.down, SPLIT_COLUMNS);
    visit_norm(visitor, &component->glu.sub_norm);
}

static ComponentCost glu_cost(const Component *component, int depth) {
    const GluComponent *glu = &component->glu;
    return component_cost_of_weights((const Weight *const[]){&glu->gate, &glu->up, &glu->down}, 3);
}

static void glu_describe(const Component *component, Buffer *out) {
    buffer_printf(out, "gated %lld %s", (long long)component->glu.up.rows, activation_name(component->glu.activation));
}

static void forward_clipped(const GluComponent *glu, const ComponentCall *call) {
    const BackendOps *ops = call->backend->ops;
    float *gate = call->work, *up = gate + call->rows * glu->gate.rows, *normed = up + call->rows * glu->gate.rows;
    float *clipped = normed + call->rows * glu->gate.cols;
    const Multiply product = {.rows = call->rows,
        .width = glu->gate.rows,
        .x = gate,
        .activation = glu->activation,
        .y = up,
        .y_stride = glu->gate.rows,
        .out = gate};
    component_norm_input(call, normed);
    component_clipped(call, &glu->gate, &glu->clips[0], normed, clipped, gate);
    component_clipped(call, &glu->up, &glu->clips[1], normed, clipped, up);
    ops->multiply(call->backend, &product);
    component_clipped_add(call, &glu->down, &glu->clips[2], gate, normed);
}

static void glu_forward(const Component *component, const ComponentCall *call) {
    const GluComponent *weights = &component->glu;
    const BackendOps *ops = call->backend->ops;
    if (weights->clips) {
        forward_clipped(weights, call);
        return;
    }
    const Glu glu = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->x,
        .norm = call->norm,
        .gate = &weights->gate,
        .up = &weights->up,
        .activation = weights->activation,
        .out = call->work};
    const MatmulAdd down = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->work,
        .weight = &weights->down,
        .norm = call->output_norm,
        .scale = call->scale,
        .residual = call->residual};
    if (ops->ffn_block && !weights->sub_norm) {
        const FfnBlock op = {glu, down};
        ops->ffn_block(call->backend, &op);
        return;
    }
    ops->glu(call->backend, &glu);
    if (weights->sub_norm) ops->norm(call->backend, call->rows, call->work, weights->sub_norm, call->work);
    ops->matmul_add(call->backend, &down);
}

const ComponentOps glu_ops = {
    .width = glu_width, .visit = glu_visit, .cost = glu_cost, .describe = glu_describe, .forward = glu_forward};
