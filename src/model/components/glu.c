/* Gated feed-forward network (SwiGLU, GeGLU): down · (act(gate · x) ∘ (up · x)). */
#include "model/component.h"

static int64_t glu_width(const Component *component) {
    const GluComponent *glu = &component->glu;
    if (glu->clips) return 2 * (glu->gate.rows + glu->gate.cols);
    return glu->sparse ? 2 * glu->gate.rows : glu->gate.rows;
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

/* The product of up and the gate's largest activations. */
static void sparse_product(const GluComponent *weights, const ComponentCall *call) {
    const BackendOps *ops = call->backend->ops;
    const int64_t width = weights->gate.rows;
    float *gate = call->work, *up = gate + call->rows * width;
    const Matmul both = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->x,
        .norm = call->norm,
        .count = 2,
        .weight = {&weights->gate, &weights->up},
        .out = {gate, up}};
    const Sparsify sparsify = {.rows = call->rows, .width = width, .cutoff = weights->cutoff, .x = gate};
    const Multiply multiply = {.rows = call->rows,
        .width = width,
        .x = gate,
        .activation = weights->activation,
        .y = up,
        .y_stride = width,
        .out = gate};
    component_matmul(call, &both);
    ops->sparsify(call->backend, &sparsify);
    ops->multiply(call->backend, &multiply);
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
    if (ops->ffn_block && !call->adapted && !weights->sub_norm && !weights->sparse) {
        const FfnBlock op = {glu, down};
        ops->ffn_block(call->backend, &op);
        return;
    }
    if (weights->sparse)
        sparse_product(weights, call);
    else
        component_glu(call, &glu);
    if (weights->sub_norm) ops->norm(call->backend, call->rows, call->work, weights->sub_norm, call->work);
    component_matmul_add(call, &down);
}

const ComponentOps glu_ops = {
    .width = glu_width, .visit = glu_visit, .cost = glu_cost, .describe = glu_describe, .forward = glu_forward};
