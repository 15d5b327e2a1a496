/* Hyper-connections: one component makes the residual of the streams, another, behind what reads it, the streams of the
 * residual (HyperConnection of backend/compressed.h). Both compute the logits of the same streams. */
#include "model/component.h"

static int64_t hyper_width(const Component *component) { return component->hyper.mix.rows; }

static void hyper_visit(Component *component, const Visitor *visitor) {
    HyperMix *hyper = &component->hyper;
    visit_weight(visitor, &hyper->mix);
    visit_norm(visitor, &hyper->norm);
    visit_vector(visitor, &hyper->scale, 3, SPLIT_NONE);
    visit_vector(visitor, &hyper->base, hyper->mix.rows, SPLIT_NONE);
}

static ComponentCost hyper_cost(const Component *component, int depth) {
    return component_cost_of_weights((const Weight *const[]){&component->hyper.mix}, 1);
}

static HyperConnection operation(const HyperMix *hyper, const ComponentCall *call) {
    const Matmul mix = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->streams,
        .norm = hyper->norm,
        .count = 1,
        .weight = {&hyper->mix},
        .out = {call->work},
        .fine = true};
    call->backend->ops->matmul(call->backend, &mix);
    return (HyperConnection){.rows = call->rows,
        .streams = call->hyper->streams,
        .width = call->hidden,
        .iterations = call->hyper->iterations,
        .eps = call->hyper->eps,
        .x = call->streams,
        .logits = call->work,
        .scale = hyper->scale,
        .base = hyper->base};
}

static void collapse_describe(const Component *component, Buffer *out) { buffer_text(out, "a sum of streams"); }

static void collapse_forward(const Component *component, const ComponentCall *call) {
    HyperConnection op = operation(&component->hyper, call);
    op.out = call->residual;
    call->backend->ops->hyper_connect(call->backend, &op);
}

static void expand_describe(const Component *component, Buffer *out) { buffer_text(out, "mixed into the streams"); }

static void expand_forward(const Component *component, const ComponentCall *call) {
    HyperConnection op = operation(&component->hyper, call);
    op.y = call->residual;
    call->backend->ops->hyper_connect(call->backend, &op);
}

const ComponentOps hyper_collapse_ops = {.width = hyper_width,
    .visit = hyper_visit,
    .cost = hyper_cost,
    .describe = collapse_describe,
    .forward = collapse_forward};
const ComponentOps hyper_expand_ops = {.width = hyper_width,
    .visit = hyper_visit,
    .cost = hyper_cost,
    .describe = expand_describe,
    .forward = expand_forward};
