/* Real-gated linear recurrent unit (RgLru of backend/recurrent.h): projects to the inputs and the gate, sends the
 * inputs through a convolution, computes the recurrence, multiplies by the gate's GELU, projects back. The cache entry
 * holds the states, then the inputs of the convolution. */
#include "model/component.h"

static Conv conv_of(const RgLruComponent *own) {
    Conv conv = own->conv;
    conv.part_count = 1;
    conv.part[0].channels = own->in.rows;
    return conv;
}

static RgLru operation(const RgLruComponent *own) {
    RgLru op = own->op;
    op.channels = own->in.rows;
    return op;
}

static int64_t rg_lru_width(const Component *component) {
    return 3 * component->rg_lru.in.rows + component->rg_lru.gate.rows;
}

static void rg_lru_visit(Component *component, const Visitor *visitor) {
    RgLruComponent *own = &component->rg_lru;
    ConvPart *part = &own->conv.part[0];
    const int64_t channels = own->in.rows, gates = channels * (channels / own->op.heads);
    visit_weight(visitor, &own->in);
    visit_weight(visitor, &own->gate);
    visit_weight(visitor, &own->o);
    visit_vector(visitor, &part->weight, channels * own->conv.taps, SPLIT_NONE);
    visit_vector(visitor, &part->bias, channels, SPLIT_NONE);
    visit_vector(visitor, &own->op.rate, channels, SPLIT_NONE);
    visit_vector(visitor, &own->op.decay_gate, gates, SPLIT_NONE);
    visit_vector(visitor, &own->op.decay_bias, channels, SPLIT_NONE);
    visit_vector(visitor, &own->op.input_gate, gates, SPLIT_NONE);
    visit_vector(visitor, &own->op.input_bias, channels, SPLIT_NONE);
}

static ComponentCost rg_lru_cost(const Component *component, int depth) {
    const RgLruComponent *own = &component->rg_lru;
    const Weight *const weights[] = {&own->in, &own->gate, &own->o};
    const Conv conv = conv_of(own);
    const RgLru op = operation(own);
    ComponentCost cost = component_cost_of_weights(weights, COUNT_OF(weights));
    const uint64_t gates = 2 * (uint64_t)(op.channels * (op.channels / op.heads));
    cost.weight_bytes += gates * sizeof(float);
    cost.operations += 2 * gates;
    cost.cache_values = (uint64_t)(rg_lru_row_width(&op) + conv_anchor_width(&conv));
    return cost;
}

static CacheSpec rg_lru_cache(const Component *component) {
    const Conv conv = conv_of(&component->rg_lru);
    const RgLru op = operation(&component->rg_lru);
    return (CacheSpec){.page_tokens = RECURRENT_PAGE_TOKENS,
        .anchor_bytes = (size_t)conv_anchor_width(&conv) * sizeof(float),
        .row_bytes = (size_t)(rg_lru_row_width(&op) + conv_row_width(&conv)) * sizeof(float)};
}

static void rg_lru_describe(const Component *component, Buffer *out) {
    const RgLruComponent *own = &component->rg_lru;
    buffer_printf(
        out, "rg-lru %lld channels in %d heads, conv %d", (long long)own->in.rows, own->op.heads, own->conv.taps);
}

static void rg_lru_forward(const Component *component, const ComponentCall *call) {
    const RgLruComponent *own = &component->rg_lru;
    const BackendOps *ops = call->backend->ops;
    const int64_t rows = call->rows, channels = own->in.rows;
    float *in = call->work, *gate = in + rows * channels, *x = gate + rows * own->gate.rows;
    float *out = x + rows * channels;

    Matmul project = {.rows = call->rows, .decode_rows = call->decode_rows, .x = call->x, .norm = call->norm};
    component_project(call, &project, &own->in, in);
    component_project(call, &project, &own->gate, gate);
    component_project(call, &project, NULL, NULL);

    RgLru op = operation(own);
    Conv conv = conv_of(own);
    conv.place = (RecurrentPart){.kv = *call->entry, .row_at = rg_lru_row_width(&op)};
    conv.rows = call->rows;
    conv.part[0].x = in;
    conv.part[0].out = x;
    ops->conv(call->backend, &conv);

    op.place = (RecurrentPart){.kv = *call->entry};
    op.rows = call->rows;
    op.x = x;
    op.out = out;
    ops->rg_lru(call->backend, &op);

    const Multiply gated = {.rows = call->rows,
        .width = channels,
        .x = gate,
        .activation = {.kind = ACT_GELU_TANH},
        .y = out,
        .y_stride = channels,
        .out = gate};
    ops->multiply(call->backend, &gated);
    const MatmulAdd back = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = gate,
        .weight = &own->o,
        .norm = call->output_norm,
        .scale = call->scale,
        .residual = call->residual};
    component_matmul_add(call, &back);
}

const ComponentOps rg_lru_ops = {.width = rg_lru_width,
    .visit = rg_lru_visit,
    .cost = rg_lru_cost,
    .cache_spec = rg_lru_cache,
    .recurrent = true,
    .describe = rg_lru_describe,
    .forward = rg_lru_forward};
