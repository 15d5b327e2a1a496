/* Multi-head latent attention: the cache holds a latent and a rotating key for all heads (Latent of backend.h). Queries
 * come from the input, or through a narrow matrix and a norm. */
#include "model/component.h"

static Mla operation(const MlaMixer *mixer) {
    return (Mla){
        .attention = mixer->op, .plain = (int)mixer->embed[0].cols, .embed = mixer->embed, .w_uv = mixer->w_uv};
}

static int64_t results(const MlaMixer *mixer) { return mixer->op.heads * mixer->w_uv[0].rows; }

static int64_t latent_part_width(const Layer *layer) {
    const MlaMixer *mixer = &layer->latent;
    const Mla op = operation(mixer);
    return mixer->q_a.rows + mixer->q.rows + mixer->k.rows + mixer->latent.rows + results(mixer) + mla_width(&op);
}

static void mla_visit(Layer *layer, const Visitor *visitor) {
    MlaMixer *mixer = &layer->latent;
    if (mixer->q_a.rows) visit_weight(visitor, &mixer->q_a);
    visit_weight(visitor, &mixer->q);
    visit_weight(visitor, &mixer->k);
    visit_weight(visitor, &mixer->latent);
    visit_weight(visitor, &mixer->o);
    visit_bank(visitor, &mixer->embed, mixer->op.heads, SPLIT_NONE);
    visit_bank(visitor, &mixer->w_uv, mixer->op.heads, SPLIT_NONE);
    visit_norm(visitor, &mixer->q_norm);
    visit_norm(visitor, &mixer->latent_norm);
    visit_rope(visitor, &mixer->op.rope);
}

static ComponentCost mla_cost(const Layer *layer, int depth) {
    const MlaMixer *mixer = &layer->latent;
    const KvLayout *l = &mixer->op.kv.layout;
    const Weight *const weights[] = {&mixer->q, &mixer->k, &mixer->latent, &mixer->o, &mixer->q_a};
    ComponentCost cost = component_cost_of_weights(weights, mixer->q_a.rows ? 5 : 4);
    for (int h = 0; h < mixer->op.heads; h++) {
        const ComponentCost head =
            component_cost_of_weights((const Weight *const[]){&mixer->embed[h], &mixer->w_uv[h]}, 2);
        cost.weight_bytes += head.weight_bytes;
        cost.operations += head.operations;
    }
    cost.cache_values = (uint64_t)(depth + 1) * (uint64_t)(l->head_dim + l->value_dim);
    return cost;
}

static CacheSpec mla_cache(const Layer *layer) {
    const Attention *op = &layer->latent.op;
    return (CacheSpec){.kv_heads = 1,
        .head_dim = op->kv.layout.head_dim,
        .value_dim = op->kv.layout.value_dim,
        .latent = true,
        .rope = op->rope};
}

static void mla_describe(const Layer *layer, Buffer *out) {
    const MlaMixer *mixer = &layer->latent;
    const KvLayout *l = &mixer->op.kv.layout;
    buffer_printf(out, "latent attention %d heads of %lld + %d on %d", mixer->op.heads, (long long)mixer->embed[0].cols,
        l->head_dim, l->value_dim);
}

static void mla_forward(const Layer *layer, const Block *block) {
    const MlaMixer *mixer = &layer->latent;
    const BackendOps *ops = block->backend->ops;
    const int64_t rows = block->rows;
    const bool narrow = mixer->q_a.rows > 0;
    float *q = block->work, *k = q + rows * mixer->q.rows, *latent = k + rows * mixer->k.rows;
    float *out = latent + rows * mixer->latent.rows, *q_a = out + rows * results(mixer);
    const Matmul project = {.rows = block->rows,
        .decode_rows = block->decode_rows,
        .x = block->x,
        .norm = block->in,
        .count = 3,
        .weight = {narrow ? &mixer->q_a : &mixer->q, &mixer->k, &mixer->latent},
        .out = {narrow ? q_a : q, k, latent}};
    ops->matmul(block->backend, &project);
    const Matmul widen = {.rows = block->rows,
        .decode_rows = block->decode_rows,
        .x = q_a,
        .norm = mixer->q_norm,
        .count = 1,
        .weight = {&mixer->q},
        .out = {q}};
    if (narrow) ops->matmul(block->backend, &widen);
    ops->norm(block->backend, block->rows, latent, mixer->latent_norm, latent);

    Mla op = operation(mixer);
    op.attention.kv = *block->cache;
    op.rows = block->rows;
    op.decode_rows = block->decode_rows;
    op.q = q;
    op.k = k;
    op.latent = latent;
    op.work = q_a + rows * mixer->q_a.rows;
    op.out = out;
    ops->latent(block->backend, &op);

    const MatmulAdd back = {.rows = block->rows,
        .decode_rows = block->decode_rows,
        .x = out,
        .weight = &mixer->o,
        .norm = block->out,
        .scale = block->scale,
        .residual = block->residual,
        .next = block->next};
    ops->matmul_add(block->backend, &back);
}

const ComponentOps mla_component = {.width = latent_part_width,
    .visit = mla_visit,
    .cost = mla_cost,
    .cache_spec = mla_cache,
    .describe = mla_describe,
    .forward = mla_forward};
