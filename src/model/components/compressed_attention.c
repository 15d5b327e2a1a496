/* Attention to the latest keys and to compressed ones (CompressedAttention of backend/compressed.h), whose result is
 * projected back in two steps: each group of heads by itself, then all of them. */
#include "model/component.h"

static int64_t low_rows(const CompressedAttentionComponent *c) { return c->op.groups * c->o_low[0].rows; }

static int64_t compressed_width(const Component *component) {
    const CompressedAttentionComponent *c = &component->compressed;
    return 2 * c->q.rows + c->q_low.rows + c->k.rows + 2 * low_rows(c);
}

static void compressed_visit(Component *component, const Visitor *visitor) {
    CompressedAttentionComponent *c = &component->compressed;
    visit_weight(visitor, &c->q_low);
    visit_weight(visitor, &c->q);
    visit_weight(visitor, &c->k);
    visit_bank(visitor, &c->o_low, c->op.groups, SPLIT_NONE);
    visit_weight(visitor, &c->o);
    visit_norm(visitor, &c->q_low_norm);
    visit_norm(visitor, &c->op.q_norm);
    visit_norm(visitor, &c->op.k_norm);
    visit_rope(visitor, &c->op.rope);
    visit_vector(visitor, &c->op.sinks, c->op.heads, SPLIT_NONE);
}

static ComponentCost compressed_cost(const Component *component, int depth) {
    const CompressedAttentionComponent *c = &component->compressed;
    ComponentCost cost = component_cost_of_weights((const Weight *const[]){&c->q_low, &c->q, &c->k, &c->o}, 4);
    const ComponentCost low = component_cost_of_weights((const Weight *const[]){&c->o_low[0]}, 1);
    const int seen = depth + 1, latest = seen < c->op.window ? seen : c->op.window;
    int compressed = c->op.rate ? compressed_keys(c->op.rate, depth) : 0;
    if (c->op.top_k && compressed > c->op.top_k) compressed = c->op.top_k;
    cost.weight_bytes += (uint64_t)c->op.groups * low.weight_bytes;
    cost.operations += (uint64_t)c->op.groups * low.operations;
    cost.cache_values = (uint64_t)(latest + compressed) * (uint64_t)c->op.width;
    return cost;
}

static CacheSpec compressed_cache(const Component *component) {
    const CompressedAttention *op = &component->compressed.op;
    return (CacheSpec){.row_bytes = (size_t)op->width * sizeof(float), .window = op->window};
}

static void compressed_describe(const Component *component, Buffer *out) {
    const CompressedAttention *op = &component->compressed.op;
    buffer_printf(out, "attention %d heads of %d on one key, window %d", op->heads, op->width, op->window);
    if (op->rate) buffer_printf(out, ", keys of %d positions", op->rate);
    if (op->top_k) buffer_printf(out, ", the %d best", op->top_k);
}

/* Adds o · (the groups' products) to the residual; low: room for twice of them. */
static void project_back(
    const CompressedAttentionComponent *c, const ComponentCall *call, const float *attended, float *low) {
    const int64_t width = c->o_low[0].rows, cols = c->o_low[0].cols;
    float *joined = low + call->rows * low_rows(c);
    for (int g = 0; g < c->op.groups; g++) {
        const Matmul own = {.rows = call->rows,
            .decode_rows = call->decode_rows,
            .x = attended + g * call->rows * cols,
            .count = 1,
            .weight = {&c->o_low[g]},
            .out = {low + g * call->rows * width}};
        call->backend->ops->matmul(call->backend, &own);
    }
    const GroupJoin join = {.rows = call->rows, .groups = c->op.groups, .width = width, .x = low, .out = joined};
    const MatmulAdd back = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = joined,
        .weight = &c->o,
        .norm = call->output_norm,
        .scale = call->scale,
        .residual = call->residual};
    call->backend->ops->join_groups(call->backend, &join);
    component_matmul_add(call, &back);
}

static void compressed_forward(const Component *component, const ComponentCall *call) {
    const CompressedAttentionComponent *c = &component->compressed;
    const int64_t rows = call->rows;
    float *q = call->work, *out = q + rows * c->q.rows, *k = out + rows * c->q.rows, *q_low = k + rows * c->k.rows;
    const Matmul project = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->x,
        .norm = call->norm,
        .count = 2,
        .weight = {&c->q_low, &c->k},
        .out = {q_low, k}};
    const Matmul expand = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = q_low,
        .norm = c->q_low_norm,
        .count = 1,
        .weight = {&c->q},
        .out = {q}};
    component_matmul(call, &project);
    component_matmul(call, &expand);
    CompressedAttention op = c->op;
    op.latest = *call->entry;
    if (op.rate) op.keys = *call->state;
    op.rows = call->rows;
    op.chosen = op.top_k ? call->chosen : NULL;
    op.q = q;
    op.k = k;
    op.out = out;
    call->backend->ops->compressed_attention(call->backend, &op);
    project_back(c, call, out, q_low + rows * c->q_low.rows);
}

const ComponentOps compressed_attention_ops = {.width = compressed_width,
    .visit = compressed_visit,
    .cost = compressed_cost,
    .cache_spec = compressed_cache,
    .describe = compressed_describe,
    .forward = compressed_forward};
