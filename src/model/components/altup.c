/* AltUp: a layer predicts all streams of the residual from each other, changes the active one, and corrects the others
 * by how far that came from its prediction. */
#include "model/component.h"

static int64_t altup_width(const Component *component) {
    return component->altup.router.rows + component->altup.coefficients.rows;
}

static void altup_visit(Component *component, const Visitor *visitor) {
    AltUpComponent *altup = &component->altup;
    visit_weight(visitor, &altup->router);
    visit_weight(visitor, &altup->coefficients);
    visit_norm(visitor, &altup->router_norm);
    visit_vector(visitor, &altup->output_scale, altup->router.cols, SPLIT_NONE);
}

static ComponentCost altup_cost(const Component *component, int depth) {
    const AltUpComponent *altup = &component->altup;
    return component_cost_of_weights((const Weight *const[]){&altup->router, &altup->coefficients}, 2);
}

/* The coefficients of each row, in the call's work area. */
static const float *coefficients_of(const AltUpComponent *altup, const ComponentCall *call, const float *x) {
    const BackendOps *ops = call->backend->ops;
    float *modalities = call->work, *out = modalities + call->rows * altup->router.rows;
    const Matmul route = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = x,
        .norm = altup->router_norm,
        .count = 1,
        .weight = {&altup->router},
        .out = {modalities},
        .fine = true};
    const Matmul expand = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = modalities,
        .count = 1,
        .weight = {&altup->coefficients},
        .out = {out},
        .fine = true};
    ops->matmul(call->backend, &route);
    ops->logits(call->backend, call->rows * altup->router.rows, modalities, 1, 1); /* tanh */
    ops->matmul(call->backend, &expand);
    return out;
}

static StreamMix mix_of(const ComponentCall *call) {
    return (StreamMix){.rows = call->rows,
        .streams = call->altup->streams,
        .width = call->hidden,
        .stride = call->stream_stride,
        .x = call->streams};
}

static float *active_stream(const ComponentCall *call) {
    return call->streams + call->altup->active * call->stream_stride;
}

static void copy_active(const ComponentCall *call) {
    call->backend->ops->activate(call->backend, call->rows * (int64_t)call->hidden, active_stream(call),
        (Activation){.kind = ACT_NONE}, call->residual);
}

static void predict_describe(const Component *component, Buffer *out) {
    buffer_printf(out, "predicts %lld streams", (long long)component->altup.router.rows);
}

static void predict_forward(const Component *component, const ComponentCall *call) {
    StreamMix op = mix_of(call);
    op.mix = coefficients_of(&component->altup, call, active_stream(call));
    call->backend->ops->mix_streams(call->backend, &op);
    copy_active(call);
}

static void correct_describe(const Component *component, Buffer *out) { buffer_text(out, "corrects them"); }

/* The residual is then the corrected active stream, as a layer input's gate reads it. */
static void correct_forward(const Component *component, const ComponentCall *call) {
    const AltUpComponent *altup = &component->altup;
    const BackendOps *ops = call->backend->ops;
    StreamMix op = mix_of(call);
    op.gain = coefficients_of(altup, call, call->residual);
    op.y = call->residual;
    ops->add(call->backend, call->rows, call->hidden, call->residual, active_stream(call), -1, NULL);
    ops->mix_streams(call->backend, &op);
    const Multiply scale = {.rows = call->rows,
        .width = call->hidden,
        .x = active_stream(call),
        .activation = {.kind = ACT_NONE},
        .y = altup->output_scale,
        .out = call->residual};
    if (altup->output_scale)
        ops->multiply(call->backend, &scale);
    else
        copy_active(call);
}

const ComponentOps altup_predict_ops = {.width = altup_width,
    .visit = altup_visit,
    .cost = altup_cost,
    .describe = predict_describe,
    .forward = predict_forward};
const ComponentOps altup_correct_ops = {.width = altup_width,
    .visit = altup_visit,
    .cost = altup_cost,
    .describe = correct_describe,
    .forward = correct_forward};
