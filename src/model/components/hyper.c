/* Hyper-connections: one component makes the residual of the streams, another, behind what reads it, the streams of the
 * residual (HyperConnection of backend/compressed.h), both with the logits that the first computes. */
#include "model/component.h"

static int64_t hyper_width(const Component *component) { return 0; }

static void visit_vectors(Component *component, const Visitor *visitor) {
    HyperMix *hyper = &component->hyper;
    visit_vector(visitor, &hyper->scale, hyper->scales, SPLIT_NONE);
    visit_vector(visitor, &hyper->base, hyper->mix.rows, SPLIT_NONE);
}

static HyperConnection operation(const HyperMix *hyper, const ComponentCall *call) {
    return (HyperConnection){.rows = call->rows,
        .streams = call->hyper->streams,
        .width = call->hidden,
        .iterations = call->hyper->iterations,
        .magnitude = call->hyper->magnitude,
        .eps = call->hyper->eps,
        .x = call->streams,
        .logits = call->mix_logits,
        .scale = hyper->scale,
        .base = hyper->base};
}

/* ---- streams to the residual ---- */

static void collapse_visit(Component *component, const Visitor *visitor) {
    visit_weight(visitor, &component->hyper.mix);
    visit_norm(visitor, &component->hyper.norm);
    visit_vectors(component, visitor);
}

static ComponentCost collapse_cost(const Component *component, int depth) {
    return component_cost_of_weights((const Weight *const[]){&component->hyper.mix}, 1);
}

static void collapse_describe(const Component *component, Buffer *out) { buffer_text(out, "a sum of streams"); }

static void collapse_forward(const Component *component, const ComponentCall *call) {
    const HyperMix *hyper = &component->hyper;
    const Matmul mix = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->streams,
        .norm = hyper->norm,
        .count = 1,
        .weight = {&hyper->mix},
        .out = {call->mix_logits},
        .fine = true};
    HyperConnection op = operation(hyper, call);
    op.out = call->residual;
    call->backend->ops->matmul(call->backend, &mix);
    call->backend->ops->hyper_connect(call->backend, &op);
}

/* ---- the residual into the streams ---- */

static ComponentCost expand_cost(const Component *component, int depth) { return (ComponentCost){0}; }

static void expand_describe(const Component *component, Buffer *out) { buffer_text(out, "mixed into the streams"); }

static void expand_forward(const Component *component, const ComponentCall *call) {
    HyperConnection op = operation(&component->hyper, call);
    op.y = call->residual;
    call->backend->ops->hyper_connect(call->backend, &op);
}

const ComponentOps hyper_collapse_ops = {.width = hyper_width,
    .visit = collapse_visit,
    .cost = collapse_cost,
    .describe = collapse_describe,
    .forward = collapse_forward};
const ComponentOps hyper_expand_ops = {.width = hyper_width,
    .visit = visit_vectors,
    .cost = expand_cost,
    .describe = expand_describe,
    .forward = expand_forward};
