/* Makes one key of each window of positions (Compression of backend/compressed.h). */
#include "model/component.h"

static int64_t compressor_width(const Component *component) {
    return component->compressor.values.rows + component->compressor.gates.rows;
}

static void compressor_visit(Component *component, const Visitor *visitor) {
    CompressorComponent *compressor = &component->compressor;
    Compression *op = &compressor->op;
    visit_weight(visitor, &compressor->values);
    visit_weight(visitor, &compressor->gates);
    visit_vector(visitor, &op->position_bias, op->rate * compression_width(op), SPLIT_NONE);
    visit_norm(visitor, &op->norm);
    visit_norm(visitor, &compressor->value_norm);
    visit_rope(visitor, &op->rope);
}

static ComponentCost compressor_cost(const Component *component, int depth) {
    const CompressorComponent *compressor = &component->compressor;
    return component_cost_of_weights((const Weight *const[]){&compressor->values, &compressor->gates}, 2);
}

static CacheSpec compressor_cache(const Component *component) {
    const Compression *op = &component->compressor.op;
    return (CacheSpec){.row_bytes = (size_t)(op->width / op->rate) * sizeof(float)};
}

/* The rows of the windows that a key is made of. */
static CacheSpec compressor_state(const Component *component) {
    const Compression *op = &component->compressor.op;
    return (CacheSpec){.row_bytes = 2 * (size_t)compression_width(op) * sizeof(float),
        .window = op->overlap ? 2 * op->rate : op->rate};
}

static void compressor_describe(const Component *component, Buffer *out) {
    const Compression *op = &component->compressor.op;
    buffer_printf(out, "a key of %d for each %d positions", op->width, op->rate);
}

static void compressor_forward(const Component *component, const ComponentCall *call) {
    const CompressorComponent *compressor = &component->compressor;
    float *values = call->work, *gates = values + call->rows * compressor->values.rows;
    const Matmul project = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->x,
        .norm = call->norm,
        .count = 2,
        .weight = {&compressor->values, &compressor->gates},
        .out = {values, gates}};
    Compression op = compressor->op;
    op.keys = *call->entry;
    op.state = *call->state;
    op.rows = call->rows;
    op.values = values;
    op.gates = gates;
    component_matmul(call, &project);
    if (compressor->value_norm)
        call->backend->ops->norm(call->backend, call->rows, values, compressor->value_norm, values);
    call->backend->ops->compress(call->backend, &op);
}

const ComponentOps compressor_ops = {.width = compressor_width,
    .visit = compressor_visit,
    .cost = compressor_cost,
    .cache_spec = compressor_cache,
    .state_spec = compressor_state,
    .describe = compressor_describe,
    .forward = compressor_forward};
