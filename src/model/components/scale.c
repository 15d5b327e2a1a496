/* Multiplies the residual by a number (Gemma 4's layer_scalar). */
#include "model/component.h"

static int64_t scale_width(const Component *component) { return 0; }

static void scale_visit(Component *component, const Visitor *visitor) {}

static ComponentCost scale_cost(const Component *component, int depth) { return (ComponentCost){0}; }

static void scale_describe(const Component *component, Buffer *out) { buffer_text(out, "scaled"); }

static void scale_forward(const Component *component, const ComponentCall *call) {
    call->backend->ops->logits(
        call->backend, call->rows * (int64_t)call->hidden, call->residual, component->scale_factor, 0);
}

const ComponentOps scale_ops = {.width = scale_width,
    .visit = scale_visit,
    .cost = scale_cost,
    .describe = scale_describe,
    .forward = scale_forward};
