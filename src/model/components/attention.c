/* Grouped-query attention: projects to q, k and v, attends over the pages of the cache entry, projects back. Norms of q
 * and k, RoPE, window, softcap and sinks belong to the Attention operation (backend/cpu/ref/). */
#include "model/component.h"

/* Elements of v: with v_norm its rows may be those of k. */
static int64_t v_width(const AttentionComponent *attention) {
    return attention->v.rows || !attention->v_norm ? attention->v.rows : attention->k.rows;
}

static int64_t attention_width(const Component *component) {
    const AttentionComponent *attention = &component->attention;
    const int64_t clipped = attention->clips ? 2 * attention->q.cols : 0;
    const int64_t mixed = attention->conv.taps ? attention->k.rows + v_width(attention) : 0;
    return attention->q.rows + attention->k.rows + v_width(attention) + attention->gate.rows + attention->o.cols +
        clipped + mixed;
}

static void attention_visit(Component *component, const Visitor *visitor) {
    AttentionComponent *attention = &component->attention;
    Attention *op = &attention->op;
    visit_split(visitor, &attention->q, SPLIT_ROWS);
    if (attention->k.rows) visit_split(visitor, &attention->k, SPLIT_ROWS);
    if (attention->v.rows) visit_split(visitor, &attention->v, SPLIT_ROWS);
    visit_split(visitor, &attention->o, SPLIT_COLUMNS);
    if (attention->gate.rows) visit_split(visitor, &attention->gate, SPLIT_ROWS);
    visit_norm(visitor, &attention->v_norm);
    visit_norm(visitor, &attention->head_norm);
    visit_vector(visitor, &attention->q_factors, attention->q.rows, SPLIT_ROWS);
    visit_vector(visitor, &attention->k_factors, attention->k.rows, SPLIT_ROWS);
    visit_norm(visitor, &attention->sub_norm);
    for (int i = 0; i < attention->conv.part_count; i++) {
        ConvPart *part = &attention->conv.part[i];
        visit_vector(visitor, &part->weight, part->channels * attention->conv.taps, SPLIT_NONE);
    }
    visit_norm(visitor, &op->q_norm);
    visit_norm(visitor, &op->k_norm);
    visit_rope(visitor, &op->rope);
    visit_vector(visitor, &op->sinks, op->heads, SPLIT_ROWS);
    visit_vector(visitor, &op->slopes, op->heads, SPLIT_ROWS);
}

static ComponentCost attention_cost(const Component *component, int depth) {
    const AttentionComponent *attention = &component->attention;
    const KvLayout *l = &attention->op.kv.layout;
    const int window = attention->op.window, seen = window && window < depth + 1 ? window : depth + 1;
    const Weight *const weights[] = {&attention->q, &attention->k, &attention->v, &attention->o, &attention->gate};
    ComponentCost cost = component_cost_of_weights(weights, COUNT_OF(weights));
    cost.cache_values = (uint64_t)seen * (uint64_t)(l->kv_heads * (l->head_dim + l->value_dim));
    return cost;
}

static CacheSpec attention_cache(const Component *component) {
    const Attention *op = &component->attention.op;
    return (CacheSpec){.kv_heads = op->kv.layout.kv_heads,
        .head_dim = op->kv.layout.head_dim,
        .value_dim = op->kv.layout.value_dim,
        .window = op->window,
        .k_bias = op->k_norm || component->attention.head_norm || component->attention.conv.taps
            ? NULL
            : component->attention.k.bias,
        .rope = op->rope,
        .exact = op->selection.block > 0};
}

/* The last inputs of the convolution. */
static CacheSpec attention_state(const Component *component) {
    const Conv *conv = &component->attention.conv;
    return (CacheSpec){.page_tokens = RECURRENT_PAGE_TOKENS,
        .anchor_bytes = (size_t)conv_anchor_width(conv) * sizeof(float),
        .row_bytes = (size_t)conv_row_width(conv) * sizeof(float)};
}

static void attention_describe(const Component *component, Buffer *out) {
    const Attention *op = &component->attention.op;
    buffer_printf(out, "attention %d heads of %d on %d kv", op->heads, op->kv.layout.head_dim, op->kv.layout.kv_heads);
    if (op->window) buffer_printf(out, ", %s %d", op->chunked ? "chunks of" : "window", op->window);
    if (!op->rope) buffer_text(out, op->slopes ? ", ALiBi" : ", no rope");
    if (op->selection.block) buffer_printf(out, ", blocks of %d", op->selection.block);
    if (!component->attention.k.rows) buffer_text(out, ", of an earlier layer");
    if (component->attention.gate.rows) buffer_text(out, ", gated");
}

static void project_add(Matmul *op, const Weight *weight, float *out) {
    op->weight[op->count] = weight;
    op->out[op->count++] = out;
}

/* head_norm of [rows, heads·head_dim], in place. */
static void norm_heads(const ComponentCall *call, const Norm *norm, int64_t width, const float *factors, float *x) {
    const BackendOps *ops = call->backend->ops;
    ops->norm(call->backend, (int)(call->rows * width / norm->width), x, norm, x);
    if (!factors) return;
    const Multiply op = {
        .rows = call->rows, .width = width, .x = x, .activation = {.kind = ACT_NONE}, .y = factors, .out = x};
    ops->multiply(call->backend, &op);
}

/* What happens between the products and the attention operation. q NULL: not of queries; k NULL: of them alone. */
static bool needs_preparation(const AttentionComponent *attention) {
    return attention->v_norm || attention->clip != 0 || attention->head_norm || attention->query_scaling.scale != 0;
}

static void prepare(const AttentionComponent *attention, const ComponentCall *call, float *q, float *k, float *v) {
    const BackendOps *ops = call->backend->ops;
    const int64_t rows = call->rows, q_width = attention->q.rows, k_width = attention->k.rows;
    const int64_t width = v_width(attention);
    if (attention->clip != 0) {
        const Activation clamp = {.kind = ACT_CLAMP, .a = -attention->clip, .b = attention->clip};
        if (q) ops->activate(call->backend, rows * q_width, q, clamp, q);
        if (k) ops->activate(call->backend, rows * k_width, k, clamp, k);
        if (k) ops->activate(call->backend, rows * width, v, clamp, v);
    }
    if (k && attention->v_norm)
        ops->norm(call->backend, (int)(rows * width / attention->v_norm->width), attention->v.rows ? v : k,
            attention->v_norm, v);
    if (q && attention->head_norm) norm_heads(call, attention->head_norm, q_width, attention->q_factors, q);
    if (k && attention->head_norm) norm_heads(call, attention->head_norm, k_width, attention->k_factors, k);
    if (q && attention->query_scaling.scale != 0)
        ops->scale_queries(call->backend, call->rows, q_width, &attention->query_scaling, q);
}

/* k and v, convolved: they move to `mixed`, which has room for both. */
static void convolve(
    const AttentionComponent *attention, const ComponentCall *call, float **k, float **v, float *mixed) {
    Conv conv = attention->conv;
    conv.place = (RecurrentPart){.kv = *call->state};
    conv.rows = call->rows;
    conv.part[0].x = *k;
    conv.part[0].out = mixed;
    conv.part[1].x = *v;
    conv.part[1].out = mixed + call->rows * attention->k.rows;
    call->backend->ops->conv(call->backend, &conv);
    *k = conv.part[0].out;
    *v = conv.part[1].out;
}

/* q, k and v with bounds, those that are not NULL; work: room for twice the input. */
static void project_clipped(
    const AttentionComponent *attention, const ComponentCall *call, float *q, float *k, float *v, float *work) {
    const Clip *clips = attention->clips;
    float *clipped = work + call->rows * attention->q.cols;
    component_norm_input(call, work);
    if (q) component_clipped(call, &attention->q, &clips[0], work, clipped, q);
    if (k) component_clipped(call, &attention->k, &clips[1], work, clipped, k);
    if (v) component_clipped(call, &attention->v, &clips[2], work, clipped, v);
}

static void gate_heads(const AttentionComponent *attention, const ComponentCall *call, const float *gate, float *x) {
    const HeadGate op = {.rows = call->rows,
        .heads = (int)attention->gate.rows,
        .width = attention->o.cols / attention->gate.rows,
        .gate = gate,
        .softplus = attention->gate_softplus,
        .x = x};
    call->backend->ops->gate_heads(call->backend, &op);
}

static void attention_forward(const Component *component, const ComponentCall *call) {
    const AttentionComponent *attention = &component->attention;
    const BackendOps *ops = call->backend->ops;
    const bool fills = attention->k.rows > 0 && call->part != ATTENTION_QUERIES;
    const bool attends = call->part != ATTENTION_KEYS, gated = attends && attention->gate.rows > 0;
    float *const q_at = call->work, *const k_at = q_at + call->rows * attention->q.rows;
    float *const v_at = k_at + call->rows * attention->k.rows, *const gate = v_at + call->rows * v_width(attention);
    float *const attended = gate + call->rows * attention->gate.rows;
    float *q = attends ? q_at : NULL, *k = fills ? k_at : NULL, *v = fills ? v_at : NULL;
    if (!attends && !fills) return; /* another layer's keys and values */

    Matmul project = {.rows = call->rows, .decode_rows = call->decode_rows, .x = call->x, .norm = call->norm};
    if (attends) project_add(&project, &attention->q, q);
    if (fills) project_add(&project, &attention->k, k);
    if (fills && attention->v.rows) project_add(&project, &attention->v, v);
    if (gated) project_add(&project, &attention->gate, gate);

    Attention op = attention->op;
    op.kv = *call->entry;
    op.q = q;
    op.k = k;
    op.v = v;
    op.gate = gated && !attention->head_gate ? gate : NULL;
    op.out = attends ? attended : NULL;
    op.selection.chosen = call->chosen;

    const MatmulAdd output = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = attended,
        .weight = &attention->o,
        .norm = call->output_norm,
        .scale = call->scale * attention->value_scale,
        .residual = call->residual};
    if (ops->attention_block && call->part == ATTENTION_ALL && !call->adapted && !attention->sub_norm &&
        !attention->clips && !attention->head_gate && !attention->conv.taps && !needs_preparation(attention)) {
        const AttentionBlock block = {project, op, output};
        ops->attention_block(call->backend, &block);
        return;
    }
    float *clipped = attended + call->rows * attention->o.cols;
    if (attention->clips)
        project_clipped(attention, call, q, k, v, clipped);
    else
        component_matmul(call, &project);
    if (attention->conv.taps) {
        CHECK(call->part == ATTENTION_ALL);
        convolve(attention, call, &k, &v, clipped);
        op.k = k;
        op.v = v;
    }
    prepare(attention, call, q, k, v);
    ops->attention(call->backend, &op);
    if (!attends) return;
    if (attention->head_gate) gate_heads(attention, call, gate, attended);
    if (attention->sub_norm) ops->norm(call->backend, call->rows, attended, attention->sub_norm, attended);
    if (attention->clips)
        component_clipped_add(call, &attention->o, &attention->clips[3], attended, clipped);
    else
        component_matmul_add(call, &output);
}

const ComponentOps attention_ops = {.width = attention_width,
    .visit = attention_visit,
    .cost = attention_cost,
    .cache_spec = attention_cache,
    .state_spec = attention_state,
    .describe = attention_describe,
    .forward = attention_forward};
