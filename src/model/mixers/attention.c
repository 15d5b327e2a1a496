/* Grouped-query attention: project to q, k, v; attend over the pages of the cache; project back. What differs between
 * models (norms of q and k, rotation, window, softcap) is in the Attention operation, whose meaning cpu/ref.c defines.
 */
#include "model/component.h"

static int64_t attention_width(const Layer *layer) {
    const AttentionMixer *mixer = &layer->attention;
    return mixer->q.rows + mixer->k.rows + mixer->v.rows + mixer->gate.rows + mixer->o.cols;
}

static void attention_visit(Layer *layer, const Visitor *visitor) {
    AttentionMixer *mixer = &layer->attention;
    Attention *op = &mixer->op;
    visit_split(visitor, &mixer->q, SPLIT_ROWS);
    visit_split(visitor, &mixer->k, SPLIT_ROWS);
    visit_split(visitor, &mixer->v, SPLIT_ROWS);
    visit_split(visitor, &mixer->o, SPLIT_COLUMNS);
    if (mixer->gate.rows) visit_split(visitor, &mixer->gate, SPLIT_ROWS);
    visit_norm(visitor, &op->q_norm);
    visit_norm(visitor, &op->k_norm);
    visit_rope(visitor, &op->rope);
    visit_vector(visitor, &op->sinks, op->heads, SPLIT_ROWS);
}

static ComponentCost attention_cost(const Layer *layer, int depth) {
    const AttentionMixer *mixer = &layer->attention;
    const KvLayout *l = &mixer->op.kv.layout;
    const uint64_t seen = (uint64_t)(mixer->op.window && mixer->op.window < depth + 1 ? mixer->op.window : depth + 1);
    const Weight *const weights[] = {&mixer->q, &mixer->k, &mixer->v, &mixer->o, &mixer->gate};
    ComponentCost cost = component_cost_of_weights(weights, mixer->gate.rows ? 5 : 4);
    cost.cache_values = seen * (uint64_t)(l->kv_heads * (l->head_dim + l->value_dim));
    return cost;
}

static CacheSpec attention_cache(const Layer *layer) {
    const Attention *op = &layer->attention.op;
    return (CacheSpec){.kv_heads = op->kv.layout.kv_heads,
        .head_dim = op->kv.layout.head_dim,
        .value_dim = op->kv.layout.value_dim,
        .window = op->window,
        .k_bias = op->k_norm ? NULL : layer->attention.k.bias,
        .rope = op->rope};
}

static void attention_describe(const Layer *layer, Buffer *out) {
    const Attention *op = &layer->attention.op;
    buffer_printf(out, "attention %d heads of %d on %d kv", op->heads, op->kv.layout.head_dim, op->kv.layout.kv_heads);
    if (op->window) buffer_printf(out, ", window %d", op->window);
    if (!op->rope) buffer_text(out, ", no rope");
    if (layer->attention.gate.rows) buffer_text(out, ", gated");
}

static void attention_forward(const Layer *layer, const Block *block) {
    const AttentionMixer *mixer = &layer->attention;
    const BackendOps *ops = block->backend->ops;
    float *q = block->work;
    float *k = q + block->rows * mixer->q.rows;
    float *v = k + block->rows * mixer->k.rows;
    float *gate = v + block->rows * mixer->v.rows;
    float *attended = gate + block->rows * mixer->gate.rows;

    const Matmul project = {.rows = block->rows,
        .decode_rows = block->decode_rows,
        .x = block->x,
        .norm = block->in,
        .count = mixer->gate.rows ? 4 : 3,
        .weight = {&mixer->q, &mixer->k, &mixer->v, &mixer->gate},
        .out = {q, k, v, gate}};
    ops->matmul(block->backend, &project);

    Attention attention = mixer->op;
    attention.kv = *block->cache;
    attention.q = q;
    attention.k = k;
    attention.v = v;
    attention.gate = mixer->gate.rows ? gate : NULL;
    attention.out = attended;
    ops->attention(block->backend, &attention);

    const MatmulAdd back = {.rows = block->rows,
        .decode_rows = block->decode_rows,
        .x = attended,
        .weight = &mixer->o,
        .norm = block->out,
        .scale = block->scale * mixer->value_scale,
        .residual = block->residual,
        .next = block->next};
    ops->matmul_add(block->backend, &back);
}

const ComponentOps attention_component = {.width = attention_width,
    .visit = attention_visit,
    .cost = attention_cost,
    .cache_spec = attention_cache,
    .describe = attention_describe,
    .forward = attention_forward};
