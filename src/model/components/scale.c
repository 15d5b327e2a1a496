/* Normalises the residual in place (MiniMax-Text-01) and multiplies it by a number (Gemma 4's layer_scalar). */
#include "model/component.h"

static int64_t scale_width(const Component *component) { return 0; }

static void scale_visit(Component *component, const Visitor *visitor) {}

static ComponentCost scale_cost(const Component *component, int depth) { return (ComponentCost){0}; }

static void scale_describe(const Component *component, Buffer *out) {
    buffer_text(out, component->input_norm ? "normalised" : "scaled");
}

static void scale_forward(const Component *component, const ComponentCall *call) {
    const BackendOps *ops = call->backend->ops;
    if (call->norm) ops->norm(call->backend, call->rows, call->residual, call->norm, call->residual);
    if (component->scale_factor != 1)
        ops->logits(call->backend, call->rows * (int64_t)call->hidden, call->residual, component->scale_factor, 0);
}

const ComponentOps scale_ops = {.width = scale_width,
    .visit = scale_visit,
    .cost = scale_cost,
    .describe = scale_describe,
    .forward = scale_forward};
