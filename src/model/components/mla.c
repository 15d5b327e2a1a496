/* Multi-head latent attention: the cache entry holds one latent and one rotary key for all heads (Mla of backend.h). */
#include "model/component.h"

static Mla operation(const MlaComponent *mla) {
    return (Mla){.attention = mla->op, .nope_dim = (int)mla->w_uk[0].cols, .w_uk = mla->w_uk, .w_uv = mla->w_uv};
}

static int64_t results(const MlaComponent *mla) { return mla->op.heads * mla->w_uv[0].rows; }

static int64_t mla_component_width(const Component *component) {
    const MlaComponent *mla = &component->mla;
    const Mla op = operation(mla);
    return mla->q_a.rows * (mla->joined ? 4 : 1) + mla->q.rows + mla->k.rows + mla->latent.rows + mla->gate.rows +
        results(mla) + mla_width(&op);
}

static void mla_visit(Component *component, const Visitor *visitor) {
    MlaComponent *mla = &component->mla;
    if (mla->q_a.rows) visit_weight(visitor, &mla->q_a);
    if (mla->gate.rows) visit_weight(visitor, &mla->gate);
    visit_weight(visitor, &mla->q);
    visit_weight(visitor, &mla->k);
    visit_weight(visitor, &mla->latent);
    visit_weight(visitor, &mla->o);
    visit_bank(visitor, &mla->w_uk, mla->op.heads, SPLIT_NONE);
    visit_bank(visitor, &mla->w_uv, mla->op.heads, SPLIT_NONE);
    visit_norm(visitor, &mla->q_norm);
    visit_norm(visitor, &mla->latent_norm);
    visit_norm(visitor, &mla->k_norm);
    visit_vector(visitor, &mla->op.sinks, mla->op.heads, SPLIT_NONE);
    visit_rope(visitor, &mla->op.rope);
}

static ComponentCost mla_cost(const Component *component, int depth) {
    const MlaComponent *mla = &component->mla;
    const KvLayout *l = &mla->op.kv.layout;
    const Weight *const weights[] = {&mla->q, &mla->k, &mla->latent, &mla->o, &mla->q_a, &mla->gate};
    ComponentCost cost = component_cost_of_weights(weights, COUNT_OF(weights));
    for (int h = 0; h < mla->op.heads; h++) {
        const ComponentCost head = component_cost_of_weights((const Weight *const[]){&mla->w_uk[h], &mla->w_uv[h]}, 2);
        cost.weight_bytes += head.weight_bytes;
        cost.operations += head.operations;
    }
    const int seen = mla->op.window && mla->op.window < depth + 1 ? mla->op.window : depth + 1;
    cost.cache_values = (uint64_t)seen * (uint64_t)(l->head_dim + l->value_dim);
    return cost;
}

static CacheSpec mla_cache(const Component *component) {
    const Attention *op = &component->mla.op;
    return (CacheSpec){.kv_heads = 1,
        .head_dim = op->kv.layout.head_dim,
        .value_dim = op->kv.layout.value_dim,
        .latent = true,
        .window = op->window,
        .rope = op->rope,
        .exact = op->selection.block > 0};
}

static void mla_describe(const Component *component, Buffer *out) {
    const MlaComponent *mla = &component->mla;
    const KvLayout *l = &mla->op.kv.layout;
    buffer_printf(out, "latent attention %d heads of %lld + %d on %d", mla->op.heads, (long long)mla->w_uk[0].cols,
        l->head_dim, l->value_dim);
    if (mla->gate.rows) buffer_text(out, ", gated");
    if (mla->op.window) buffer_printf(out, ", window %d", mla->op.window);
    if (mla->op.selection.block) buffer_printf(out, ", the %d best keys", mla->op.selection.top_k);
}

/* Queries, and gates, from RMSNorm(q_a · x) and q_a · x together; work: [4, rows, rank], whose second part
 * is q_a · x. */
static void project_joined(const MlaComponent *mla, const ComponentCall *call, float *work, float *q, float *gate) {
    const BackendOps *ops = call->backend->ops;
    const int64_t count = call->rows * mla->q_a.rows;
    float *normed = work, *low = work + count, *joined = low + count;
    const GroupJoin join = {.rows = call->rows, .groups = 2, .width = mla->q_a.rows, .x = normed, .out = joined};
    const Matmul expand = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = joined,
        .count = 2,
        .weight = {&mla->q, &mla->gate},
        .out = {q, gate}};
    ops->norm(call->backend, call->rows, low, mla->q_norm, normed);
    ops->join_groups(call->backend, &join);
    component_matmul(call, &expand);
}

static void mla_forward(const Component *component, const ComponentCall *call) {
    const MlaComponent *mla = &component->mla;
    const BackendOps *ops = call->backend->ops;
    const int64_t rows = call->rows;
    const bool low_rank = mla->q_a.rows > 0;
    float *q = call->work, *k = q + rows * mla->q.rows, *latent = k + rows * mla->k.rows;
    float *out = latent + rows * mla->latent.rows, *q_a = out + rows * results(mla);
    float *gate = q_a + rows * mla->q_a.rows * (mla->joined ? 4 : 1);
    if (mla->joined) q_a += rows * mla->q_a.rows;
    const Matmul project = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->x,
        .norm = call->norm,
        .count = mla->gate.rows && !mla->joined ? 4 : 3,
        .weight = {low_rank ? &mla->q_a : &mla->q, &mla->k, &mla->latent, &mla->gate},
        .out = {low_rank ? q_a : q, k, latent, gate}};
    component_matmul(call, &project);
    const Matmul expand = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = q_a,
        .norm = mla->q_norm,
        .count = 1,
        .weight = {&mla->q},
        .out = {q}};
    if (mla->joined)
        project_joined(mla, call, q_a - rows * mla->q_a.rows, q, gate);
    else if (low_rank)
        component_matmul(call, &expand);
    if (mla->k_norm) ops->norm(call->backend, call->rows, k, mla->k_norm, k);
    if (mla->query_scaling.scale != 0)
        ops->scale_queries(call->backend, call->rows, mla->q.rows, &mla->query_scaling, q);

    Mla op = operation(mla);
    op.attention.kv = *call->entry;
    op.attention.selection.chosen = call->chosen;
    op.rows = call->rows;
    op.decode_rows = call->decode_rows;
    op.q = q;
    op.k = k;
    op.latent = latent;
    op.latent_norm = mla->latent_norm;
    op.work = gate + rows * mla->gate.rows;
    op.out = out;
    ops->mla(call->backend, &op);
    const HeadGate gated = {.rows = call->rows,
        .heads = (int)mla->gate.rows,
        .width = mla->gate.rows ? results(mla) / mla->gate.rows : 0,
        .gate = gate,
        .x = out};
    if (mla->gate.rows) ops->gate_heads(call->backend, &gated);

    const MatmulAdd back = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = out,
        .weight = &mla->o,
        .norm = call->output_norm,
        .scale = call->scale,
        .residual = call->residual};
    component_matmul_add(call, &back);
}

const ComponentOps mla_ops = {.width = mla_component_width,
    .visit = mla_visit,
    .cost = mla_cost,
    .cache_spec = mla_cache,
    .describe = mla_describe,
    .forward = mla_forward};
