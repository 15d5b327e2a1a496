/* Sparse indexer (IndexSelect of backend.h): small heads of its own score the keys, and attention reads the best. Its
 * cache entry holds one key for all of its heads. */
#include "model/component.h"

int indexer_width(const IndexerComponent *indexer) {
    return (indexer->head_weights.rows ? 1 : indexer->op.heads) * (indexer->op.top_k + indexer->tail);
}

static int64_t indexer_work(const Component *component) {
    const IndexerComponent *indexer = &component->indexer;
    const int64_t candidates = indexer->compressed_rate ? 2 * indexer->op.top_k : 0;
    return candidates + indexer->q_a.rows + indexer->q.rows + indexer->k.rows + indexer->head_weights.rows;
}

static void indexer_visit(Component *component, const Visitor *visitor) {
    IndexerComponent *indexer = &component->indexer;
    if (indexer->q_a.rows) visit_weight(visitor, &indexer->q_a);
    visit_weight(visitor, &indexer->q);
    if (indexer->k.rows) visit_weight(visitor, &indexer->k);
    if (indexer->head_weights.rows) visit_weight(visitor, &indexer->head_weights);
    visit_norm(visitor, &indexer->low_rank_norm);
    visit_norm(visitor, &indexer->q_norm);
    visit_norm(visitor, &indexer->k_norm);
    visit_rope(visitor, &indexer->op.rope);
}

static ComponentCost indexer_cost(const Component *component, int depth) {
    const IndexerComponent *indexer = &component->indexer;
    const Weight *const weights[] = {&indexer->q_a, &indexer->q, &indexer->k, &indexer->head_weights};
    ComponentCost cost = component_cost_of_weights(weights, COUNT_OF(weights));
    cost.cache_values = (uint64_t)(depth + 1) * (uint64_t)indexer->op.kv.layout.head_dim;
    if (indexer->compressed_rate) cost.cache_values /= (uint64_t)indexer->compressed_rate;
    return cost;
}

static CacheSpec indexer_cache(const Component *component) {
    const IndexSelect *op = &component->indexer.op;
    return (CacheSpec){.kv_heads = 1, .head_dim = op->kv.layout.head_dim, .rope = op->rope, .exact = true};
}

static void indexer_describe(const Component *component, Buffer *out) {
    const IndexSelect *op = &component->indexer.op;
    buffer_printf(out, "indexer of %d heads of %d: the %d best of ", op->heads, op->kv.layout.head_dim, op->top_k);
    if (component->indexer.compressed_rate)
        buffer_text(out, "compressed keys");
    else if (op->block > 1)
        buffer_printf(out, "all blocks of %d", op->block);
    else
        buffer_text(out, "all keys");
}

static void select_compressed(
    const IndexerComponent *indexer, const ComponentCall *call, float *q, const float *weights, float *work) {
    const CompressedSelect op = {.keys = *call->entry,
        .rows = call->rows,
        .rate = indexer->compressed_rate,
        .width = indexer->op.kv.layout.head_dim,
        .heads = indexer->op.heads,
        .top_k = indexer->op.top_k,
        .tail = indexer->tail,
        .rope = indexer->op.rope,
        .q = q,
        .weights = weights,
        .work = work,
        .chosen = call->chosen};
    call->backend->ops->compressed_select(call->backend, &op);
}

static void indexer_forward(const Component *component, const ComponentCall *call) {
    const IndexerComponent *indexer = &component->indexer;
    const BackendOps *ops = call->backend->ops;
    const int64_t rows = call->rows;
    const bool low_rank = indexer->q_a.rows > 0, weighted = indexer->head_weights.rows > 0;
    float *q = call->work, *k = q + rows * indexer->q.rows, *weights = k + rows * indexer->k.rows;
    float *q_a = weights + rows * indexer->head_weights.rows;
    Matmul project = {
        .rows = call->rows, .decode_rows = call->decode_rows, .x = call->x, .norm = call->norm, .fine = true};
    component_project(call, &project, low_rank ? &indexer->q_a : &indexer->q, low_rank ? q_a : q);
    component_project(call, &project, &indexer->k, k);
    component_project(call, &project, &indexer->head_weights, weights);
    component_project(call, &project, NULL, NULL);
    const Matmul expand = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = q_a,
        .norm = indexer->low_rank_norm,
        .count = 1,
        .weight = {&indexer->q},
        .out = {q},
        .fine = true};
    if (low_rank) component_matmul(call, &expand);
    IndexSelect op = indexer->op;
    if (indexer->compressed_rate) {
        select_compressed(indexer, call, q, weights, q_a + rows * indexer->q_a.rows);
        return;
    }
    if (indexer->q_norm) ops->norm(call->backend, call->rows * op.heads, q, indexer->q_norm, q);
    if (indexer->k_norm) ops->norm(call->backend, call->rows, k, indexer->k_norm, k);
    op.kv = *call->entry;
    op.q = q;
    op.k = k;
    op.weights = weighted ? weights : NULL;
    op.chosen = call->chosen;
    ops->index_select(call->backend, &op);
}

const ComponentOps indexer_ops = {.width = indexer_work,
    .visit = indexer_visit,
    .cost = indexer_cost,
    .cache_spec = indexer_cache,
    .describe = indexer_describe,
    .forward = indexer_forward};
