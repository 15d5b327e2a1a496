/* A block that several layers share, beside what each of them adds to its matrices (Zamba): attention that reads the
 * residual and the embedding side by side, a gated network behind it, a matrix of the layer's own. */
#include "model/component.h"

static int64_t attention_rows(const SharedAttentionComponent *own) { return own->q.rows + own->k.rows + own->v.rows; }

/* What the attention part needs of a row beside its two inputs, and what the network needs in the same place. */
static int64_t work_rows(const SharedAttentionComponent *own) {
    const int64_t low = own->own_q.a.rows + own->own_k.a.rows + own->own_v.a.rows;
    const int64_t attention = attention_rows(own) + low + own->o.cols;
    const int64_t network = own->gate.rows + own->up.rows + own->own_down.rows + own->down.rows;
    return attention > network ? attention : network;
}

static int64_t shared_attention_width(const Component *component) {
    const SharedAttentionComponent *own = &component->shared_attention;
    return 2 * own->q.cols + own->o.rows + work_rows(own);
}

enum { WEIGHTS = 17 };

static void weights_of(SharedAttentionComponent *own, Weight *weights[WEIGHTS]) {
    Weight *const all[WEIGHTS] = {&own->q, &own->k, &own->v, &own->o, &own->gate, &own->up, &own->down, &own->out,
        &own->own_q.a, &own->own_q.b, &own->own_k.a, &own->own_k.b, &own->own_v.a, &own->own_v.b, &own->own_down,
        &own->own_gate, &own->own_up};
    for (int i = 0; i < WEIGHTS; i++) weights[i] = all[i];
}

static void shared_attention_visit(Component *component, const Visitor *visitor) {
    SharedAttentionComponent *own = &component->shared_attention;
    Weight *weights[WEIGHTS];
    weights_of(own, weights);
    for (int i = 0; i < WEIGHTS; i++)
        if (weights[i]->rows) visit_weight(visitor, weights[i]);
    visit_norm(visitor, &own->ffn_norm);
    visit_rope(visitor, &own->op.rope);
}

static ComponentCost shared_attention_cost(const Component *component, int depth) {
    SharedAttentionComponent own = component->shared_attention;
    const KvLayout *l = &own.op.kv.layout;
    Weight *weights[WEIGHTS];
    ComponentCost cost = {0};
    weights_of(&own, weights);
    for (int i = 0; i < WEIGHTS; i++) {
        if (!weights[i]->rows) continue;
        const ComponentCost one = component_cost_of_weights((const Weight *const[]){weights[i]}, 1);
        cost.weight_bytes += one.weight_bytes;
        cost.operations += one.operations;
    }
    cost.cache_values = (uint64_t)(depth + 1) * (uint64_t)(l->kv_heads * (l->head_dim + l->value_dim));
    return cost;
}

static CacheSpec shared_attention_cache(const Component *component) {
    const Attention *op = &component->shared_attention.op;
    const KvLayout *l = &op->kv.layout;
    return (CacheSpec){.kv_heads = l->kv_heads, .head_dim = l->head_dim, .value_dim = l->value_dim, .rope = op->rope};
}

static void shared_attention_describe(const Component *component, Buffer *out) {
    const SharedAttentionComponent *own = &component->shared_attention;
    const KvLayout *l = &own->op.kv.layout;
    buffer_printf(out, "shared attention %d heads of %d on %d kv, gated %lld %s", own->op.heads, l->head_dim,
        l->kv_heads, (long long)own->up.rows, activation_name(own->activation));
}

static void copy(const ComponentCall *call, const float *x, float *out) {
    const int64_t count = (int64_t)call->rows * call->hidden;
    call->backend->ops->activate(call->backend, count, x, (Activation){.kind = ACT_NONE}, out);
}

/* out += up · x */
static void add_product(const ComponentCall *call, const Weight *up, const float *x, float *out) {
    const MatmulAdd op = {
        .rows = call->rows, .decode_rows = call->decode_rows, .x = x, .weight = up, .scale = 1, .residual = out};
    if (up->rows) component_matmul_add(call, &op);
}

/* z of `both`, the residual and the embedding of each row. */
static void attend(
    const SharedAttentionComponent *own, const ComponentCall *call, const float *both, float *work, float *z) {
    const BackendOps *ops = call->backend->ops;
    const int64_t rows = call->rows;
    float *q = work, *k = q + rows * own->q.rows, *v = k + rows * own->k.rows, *attended = v + rows * own->v.rows;
    float *low_q = attended + rows * own->o.cols, *low_k = low_q + rows * own->own_q.a.rows;
    float *low_v = low_k + rows * own->own_k.a.rows;
    Matmul project = {.rows = call->rows, .decode_rows = call->decode_rows, .x = both, .norm = call->norm};
    component_project(call, &project, &own->q, q);
    component_project(call, &project, &own->k, k);
    component_project(call, &project, &own->v, v);
    component_project(call, &project, &own->own_q.a, low_q);
    component_project(call, &project, &own->own_k.a, low_k);
    component_project(call, &project, &own->own_v.a, low_v);
    component_project(call, &project, NULL, NULL);
    add_product(call, &own->own_q.b, low_q, q);
    add_product(call, &own->own_k.b, low_k, k);
    add_product(call, &own->own_v.b, low_v, v);
    Attention op = own->op;
    op.kv = *call->entry;
    op.q = q;
    op.k = k;
    op.v = v;
    op.out = attended;
    ops->attention(call->backend, &op);
    project = (Matmul){.rows = call->rows, .decode_rows = call->decode_rows, .x = attended};
    component_project(call, &project, &own->o, z);
    component_project(call, &project, NULL, NULL);
}

/* call->aside += the network's result of z. */
static void feed_forward(const SharedAttentionComponent *own, const ComponentCall *call, const float *z, float *work) {
    const int64_t rows = call->rows;
    float *gate = work, *up = gate + rows * own->gate.rows, *low = up + rows * own->up.rows;
    float *down = low + rows * own->own_down.rows;
    Matmul project = {.rows = call->rows, .decode_rows = call->decode_rows, .x = z, .norm = own->ffn_norm};
    component_project(call, &project, &own->gate, gate);
    component_project(call, &project, &own->up, up);
    component_project(call, &project, &own->own_down, low);
    component_project(call, &project, NULL, NULL);
    add_product(call, &own->own_gate, low, gate);
    add_product(call, &own->own_up, low, up);
    const Multiply gated = {.rows = call->rows,
        .width = own->up.rows,
        .x = gate,
        .activation = own->activation,
        .y = up,
        .y_stride = own->up.rows,
        .out = gate};
    call->backend->ops->multiply(call->backend, &gated);
    project = (Matmul){.rows = call->rows, .decode_rows = call->decode_rows, .x = gate};
    component_project(call, &project, &own->down, down);
    component_project(call, &project, NULL, NULL);
    add_product(call, &own->out, down, call->aside);
}

static void shared_attention_forward(const Component *component, const ComponentCall *call) {
    const SharedAttentionComponent *own = &component->shared_attention;
    const int64_t rows = call->rows, width = own->q.cols;
    float *apart = call->work, *both = apart + rows * width, *z = both + rows * width, *work = z + rows * own->o.rows;
    copy(call, call->x, apart);
    copy(call, call->layer_inputs, apart + rows * call->hidden);
    const GroupJoin join = {.rows = call->rows, .groups = 2, .width = call->hidden, .x = apart, .out = both};
    call->backend->ops->join_groups(call->backend, &join);
    attend(own, call, both, work, z);
    copy(call, call->x, call->aside);
    feed_forward(own, call, z, work);
}

const ComponentOps shared_attention_ops = {.width = shared_attention_width,
    .visit = shared_attention_visit,
    .cost = shared_attention_cost,
    .cache_spec = shared_attention_cache,
    .describe = shared_attention_describe,
    .forward = shared_attention_forward};
