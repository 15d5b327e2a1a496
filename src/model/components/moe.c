/* Mixture of experts: a router picks some of many gated feed-forward networks for each row and adds their weighted sum.
 * Every row also uses the shared expert, if there is one. Order of the sum: best expert first, shared expert last. */
#include "model/component.h"

static int slots_of(const MoeComponent *moe) { return moe->top_k + moe->shared; }
static int banks_of(const MoeComponent *moe) { return moe->experts + moe->shared; }

static int64_t inner_of(const MoeComponent *moe) {
    int64_t intermediate_size = 0;
    for (int e = 0; e < banks_of(moe); e++)
        intermediate_size = moe->gate[e].rows > intermediate_size ? moe->gate[e].rows : intermediate_size;
    return intermediate_size;
}

/* Floats of work per row, in the order of Places; int32 values take as much as floats. */
static int64_t moe_width(const Component *component) {
    const MoeComponent *moe = &component->moe;
    const int64_t hidden = moe->router.cols, slots = slots_of(moe);
    const int64_t dense = moe->dense.gate.rows ? moe->dense.gate.rows + hidden : 0;
    return dense + 2 * hidden + moe->latent_in.rows + moe->router.rows + moe->shared_gate.rows + 2 * slots +
        slots * (inner_of(moe) + hidden + 2);
}

static void moe_visit(Component *component, const Visitor *visitor) {
    MoeComponent *moe = &component->moe;
    visit_weight(visitor, &moe->router);
    if (moe->shared_gate.rows) visit_weight(visitor, &moe->shared_gate);
    visit_vector(visitor, &moe->correction_bias, moe->experts + moe->identities, SPLIT_NONE);
    visit_vector(visitor, &moe->expert_scale, moe->experts, SPLIT_NONE);
    visit_vector(visitor, &moe->table, (int64_t)moe->table_tokens * moe->top_k, SPLIT_NONE);
    visit_norm(visitor, &moe->router_norm);
    if (moe->dense.gate.rows) {
        visit_weight(visitor, &moe->dense.gate);
        visit_weight(visitor, &moe->dense.up);
        visit_weight(visitor, &moe->dense.down);
        visit_norm(visitor, &moe->dense_input_norm);
        visit_norm(visitor, &moe->dense_output_norm);
        visit_norm(visitor, &moe->experts_output_norm);
    }
    if (moe->latent_in.rows) visit_weight(visitor, &moe->latent_in);
    if (moe->latent_out.rows) visit_weight(visitor, &moe->latent_out);
    const bool has_gate = moe->gate != moe->up;
    if (has_gate) visit_bank(visitor, &moe->gate, banks_of(moe), SPLIT_ROWS);
    visit_bank(visitor, &moe->up, banks_of(moe), SPLIT_ROWS);
    if (!has_gate) moe->gate = moe->up; /* the visitor may have replaced it */
    visit_bank(visitor, &moe->down, banks_of(moe), SPLIT_COLUMNS);
}

/* A token reads the router, the experts that it uses (counted as large as the first), and the shared one. */
static ComponentCost moe_cost(const Component *component, int depth) {
    const MoeComponent *moe = &component->moe;
    const Weight *const always[] = {
        &moe->router, &moe->latent_in, &moe->latent_out, &moe->dense.gate, &moe->dense.up, &moe->dense.down};
    ComponentCost cost = component_cost_of_weights(always, moe->dense.gate.rows ? 6 : 3);
    for (int i = 0; i < slots_of(moe); i++) {
        const int e = i < moe->top_k ? 0 : moe->experts;
        const Weight *const weights[] = {&moe->up[e], &moe->down[e], &moe->gate[e]};
        const ComponentCost one = component_cost_of_weights(weights, moe->gate == moe->up ? 2 : 3);
        cost.weight_bytes += one.weight_bytes;
        cost.operations += one.operations;
    }
    return cost;
}

static void moe_describe(const Component *component, Buffer *out) {
    const MoeComponent *moe = &component->moe;
    buffer_printf(out, "%d of %d experts of %lld %s", moe->top_k, moe->experts, (long long)moe->gate[0].rows,
        activation_name(moe->activation));
    if (moe->dense.gate.rows) buffer_printf(out, " beside a dense one of %lld", (long long)moe->dense.gate.rows);
    if (moe->identities) buffer_printf(out, " and %d identities", moe->identities);
    if (moe->shared) buffer_printf(out, " and a shared one of %lld", (long long)moe->gate[moe->experts].rows);
}

/* The parts of a call's work area. */
typedef struct Places {
    float *x, *sum, *latent, *logits, *shared_logits, *weight, *work;
    float *dense, *dense_sum; /* product and result of the dense network */
    int32_t *index;
    const float *in; /* input of the router: x, or the call's if there is no norm */
} Places;

static Places places_of(const MoeComponent *moe, const ComponentCall *call) {
    const int64_t rows = call->rows, hidden = moe->router.cols, slots = slots_of(moe);
    Places p = {.dense = call->work};
    p.dense_sum = p.dense + rows * moe->dense.gate.rows;
    p.x = moe->dense.gate.rows ? p.dense_sum + rows * hidden : call->work;
    p.sum = p.x + rows * hidden;
    p.latent = p.sum + rows * hidden;
    p.logits = p.latent + rows * moe->latent_in.rows;
    p.shared_logits = p.logits + rows * moe->router.rows;
    p.weight = p.shared_logits + rows * moe->shared_gate.rows;
    p.index = (int32_t *)(void *)(p.weight + rows * slots);
    p.work = p.weight + 2 * rows * slots;
    p.in = call->norm ? p.x : call->x;
    return p;
}

static Matmul router_of(const MoeComponent *moe, const ComponentCall *call, const Places *p) {
    return (Matmul){.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = moe->router_norm ? call->x : p->in,
        .norm = moe->router_norm,
        .count = moe->shared_gate.rows ? 2 : 1,
        .weight = {&moe->router, &moe->shared_gate},
        .out = {p->logits, p->shared_logits},
        .fine = true};
}

static Routing route_of(const MoeComponent *moe, const ComponentCall *call, const Places *p) {
    return (Routing){.rows = call->rows,
        .experts = moe->experts + moe->identities,
        .top_k = moe->top_k,
        .logits = p->logits,
        .score = moe->score,
        .bias = moe->correction_bias,
        .groups = moe->groups,
        .topk_group = moe->topk_group,
        .group_best = moe->group_best,
        .jitter_eps = moe->jitter_eps,
        .norm_topk_prob = moe->norm_topk_prob,
        .epsilon = moe->epsilon,
        .scale = moe->scale,
        .shared = moe->shared,
        .shared_logits = moe->shared_gate.rows ? p->shared_logits : NULL,
        .shared_pair = moe->shared_gate.rows == 2,
        .expert_scale = moe->expert_scale,
        .table = moe->table,
        .tokens = call->tokens,
        .index = p->index,
        .weight = p->weight};
}

static Experts experts_of(const MoeComponent *moe, const ComponentCall *call, const Places *p, ExpertsStage stage) {
    return (Experts){.rows = call->rows,
        .decode_rows = call->decode_rows,
        .count = banks_of(moe),
        .top_k = slots_of(moe),
        .identities = moe->identities,
        .weigh_inputs = moe->weigh_inputs,
        .x = moe->latent_in.rows ? p->latent : p->in,
        .gate = moe->gate,
        .up = moe->up,
        .down = moe->down,
        .source = moe->source,
        .layer = moe->source_layer,
        .micro_batch = call->micro_batch,
        .stage = stage,
        .activation = moe->activation,
        .index = p->index,
        .weight = p->weight,
        .work = p->work,
        .out = p->sum};
}

/* Chooses the experts of each row. */
static void choose(const MoeComponent *moe, const ComponentCall *call, const Places *p) {
    const BackendOps *ops = call->backend->ops;
    if (call->norm) ops->norm(call->backend, call->rows, call->x, call->norm, p->x);
    const Matmul router = router_of(moe, call, p);
    ops->matmul(call->backend, &router);
    if (moe->router_softcap > 0)
        ops->logits(call->backend, call->rows * moe->router.rows, p->logits, 1, moe->router_softcap);
    const Routing route = route_of(moe, call, p);
    ops->route(call->backend, &route);
    const Matmul latent = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = p->in,
        .count = 1,
        .weight = {&moe->latent_in},
        .out = {p->latent}};
    if (moe->latent_in.rows) ops->matmul(call->backend, &latent);
}

/* Projects the sum of experts in a smaller space back. */
static void add_latent(const MoeComponent *moe, const ComponentCall *call, const Places *p) {
    const MatmulAdd back = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = p->sum,
        .weight = &moe->latent_out,
        .norm = call->output_norm,
        .scale = call->scale,
        .residual = call->residual};
    call->backend->ops->matmul_add(call->backend, &back);
}

static void use_experts(const MoeComponent *moe, const ComponentCall *call, const Places *p, ExpertsStage stage) {
    const Experts experts = experts_of(moe, call, p, stage);
    call->backend->ops->experts(call->backend, &experts);
}

static void choose_and_request(const MoeComponent *moe, const ComponentCall *call, ExpertsStage stage) {
    if (!moe->source) return;
    const Places p = places_of(moe, call);
    choose(moe, call, &p);
    use_experts(moe, call, &p, stage);
}

static void moe_begin(const Component *component, const ComponentCall *call) {
    choose_and_request(&component->moe, call, EXPERTS_REQUEST);
}
static void moe_prefetch(const Component *component, const ComponentCall *call) {
    choose_and_request(&component->moe, call, EXPERTS_PREFETCH);
}

static DenseBeside dense_of(const MoeComponent *moe, const ComponentCall *call, const Places *p) {
    return (DenseBeside){.glu = {.rows = call->rows,
                             .decode_rows = call->decode_rows,
                             .x = call->x,
                             .norm = moe->dense_input_norm,
                             .gate = &moe->dense.gate,
                             .up = &moe->dense.up,
                             .activation = moe->dense.activation,
                             .out = p->dense},
        .down = {.rows = call->rows,
            .decode_rows = call->decode_rows,
            .x = p->dense,
            .count = 1,
            .weight = {&moe->dense.down},
            .out = {p->dense_sum}},
        .sums = {.rows = call->rows,
            .width = moe->router.cols,
            .residual = call->residual,
            .x = p->dense_sum,
            .y = p->sum,
            .scale = call->scale,
            .x_norm = moe->dense_output_norm,
            .y_norm = moe->experts_output_norm,
            .norm = call->output_norm}};
}

static void add_dense(const ComponentCall *call, const DenseBeside *dense) {
    const BackendOps *ops = call->backend->ops;
    const AddPair *sums = &dense->sums;
    ops->glu(call->backend, &dense->glu);
    ops->matmul(call->backend, &dense->down);
    if (sums->x_norm) ops->norm(call->backend, sums->rows, sums->x, sums->x_norm, sums->x);
    ops->add(call->backend, sums->rows, sums->width, sums->x, sums->y, 1, sums->y_norm);
    ops->add(call->backend, sums->rows, sums->width, sums->residual, sums->x, sums->scale, sums->norm);
}

static void moe_forward(const Component *component, const ComponentCall *call) {
    const MoeComponent *moe = &component->moe;
    const BackendOps *ops = call->backend->ops;
    const Places p = places_of(moe, call);
    const bool begun = call->begun && moe->source;
    const bool has_dense = moe->dense.gate.rows > 0, latent = moe->latent_in.rows > 0;
    const DenseBeside dense = has_dense ? dense_of(moe, call, &p) : (DenseBeside){0};
    if (ops->moe_block && !moe->source && !latent && moe->router_softcap == 0) {
        const MoeBlock moe_block = {.x = call->x,
            .norm = call->norm,
            .out_norm = call->output_norm,
            .normed = p.x,
            .router = router_of(moe, call, &p),
            .route = route_of(moe, call, &p),
            .experts = experts_of(moe, call, &p, EXPERTS_WHOLE),
            .residual = has_dense ? NULL : call->residual,
            .scale = call->scale,
            .dense = has_dense ? &dense : NULL};
        ops->moe_block(call->backend, &moe_block);
        return;
    }
    if (!begun) choose(moe, call, &p);
    use_experts(moe, call, &p, begun ? EXPERTS_COMPUTE : EXPERTS_WHOLE);
    if (latent)
        add_latent(moe, call, &p);
    else if (has_dense)
        add_dense(call, &dense);
    else
        ops->add(call->backend, call->rows, moe->router.cols, call->residual, p.sum, call->scale, call->output_norm);
}

const ComponentOps moe_ops = {.width = moe_width,
    .visit = moe_visit,
    .cost = moe_cost,
    .describe = moe_describe,
    .forward = moe_forward,
    .begin = moe_begin,
    .prefetch = moe_prefetch};
