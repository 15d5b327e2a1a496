/* Gated short convolution (Conv of backend/recurrent.h): o · (out_gate · x ∘ conv(in_gate · x ∘ in · x)). The cache
 * entry holds the last inputs of the convolution. */
#include "model/component.h"

static Conv conv_of(const ShortConvComponent *short_conv) {
    Conv conv = short_conv->conv;
    conv.part_count = 1;
    conv.part[0].channels = short_conv->in.rows;
    return conv;
}

static int64_t short_conv_width(const Component *component) {
    const ShortConvComponent *short_conv = &component->short_conv;
    return short_conv->in.rows + short_conv->in_gate.rows + short_conv->out_gate.rows + short_conv->o.cols;
}

static void short_conv_visit(Component *component, const Visitor *visitor) {
    ShortConvComponent *short_conv = &component->short_conv;
    ConvPart *part = &short_conv->conv.part[0];
    visit_split(visitor, &short_conv->in, SPLIT_ROWS);
    visit_split(visitor, &short_conv->in_gate, SPLIT_ROWS);
    visit_split(visitor, &short_conv->out_gate, SPLIT_ROWS);
    visit_split(visitor, &short_conv->o, SPLIT_COLUMNS);
    visit_vector(visitor, &part->weight, short_conv->in.rows * short_conv->conv.taps, SPLIT_ROWS);
    visit_vector(visitor, &part->bias, short_conv->in.rows, SPLIT_ROWS);
}

static ComponentCost short_conv_cost(const Component *component, int depth) {
    const ShortConvComponent *short_conv = &component->short_conv;
    const Weight *const weights[] = {&short_conv->in, &short_conv->in_gate, &short_conv->out_gate, &short_conv->o};
    const Conv conv = conv_of(short_conv);
    ComponentCost cost = component_cost_of_weights(weights, COUNT_OF(weights));
    cost.cache_values = (uint64_t)conv_anchor_width(&conv);
    return cost;
}

static CacheSpec short_conv_cache(const Component *component) {
    const Conv conv = conv_of(&component->short_conv);
    return (CacheSpec){.page_tokens = RECURRENT_PAGE_TOKENS,
        .anchor_bytes = (size_t)conv_anchor_width(&conv) * sizeof(float),
        .row_bytes = (size_t)conv_row_width(&conv) * sizeof(float)};
}

static void short_conv_describe(const Component *component, Buffer *out) {
    buffer_printf(out, "short convolution %d of %lld channels", component->short_conv.conv.taps,
        (long long)component->short_conv.in.rows);
}

static void short_conv_forward(const Component *component, const ComponentCall *call) {
    const ShortConvComponent *short_conv = &component->short_conv;
    const BackendOps *ops = call->backend->ops;
    float *in = call->work, *in_gate = in + call->rows * short_conv->in.rows;
    float *out_gate = in_gate + call->rows * short_conv->in_gate.rows;
    float *out = out_gate + call->rows * short_conv->out_gate.rows;

    Matmul project = {.rows = call->rows, .decode_rows = call->decode_rows, .x = call->x, .norm = call->norm};
    component_project(call, &project, &short_conv->in, in);
    component_project(call, &project, &short_conv->in_gate, in_gate);
    component_project(call, &project, &short_conv->out_gate, out_gate);
    component_project(call, &project, NULL, NULL);

    Conv conv = conv_of(short_conv);
    conv.place = (RecurrentPart){.kv = *call->entry};
    conv.rows = call->rows;
    conv.part[0].x = in;
    conv.part[0].out = out;
    conv.in_gate = in_gate;
    conv.out_gate = out_gate;
    ops->conv(call->backend, &conv);

    const MatmulAdd back = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = out,
        .weight = &short_conv->o,
        .norm = call->output_norm,
        .scale = call->scale,
        .residual = call->residual};
    component_matmul_add(call, &back);
}

const ComponentOps short_conv_ops = {.width = short_conv_width,
    .visit = short_conv_visit,
    .cost = short_conv_cost,
    .cache_spec = short_conv_cache,
    .recurrent = true,
    .describe = short_conv_describe,
    .forward = short_conv_forward};
