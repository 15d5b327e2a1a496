/* Mixture of experts: a router picks some of many gated feed-forward parts for each row, whose weighted sum is added;
 * where there is a shared expert, every row uses it as well. The order of the sum: best first, the shared one last. */
#include "model/component.h"

static int slots_of(const MoeFfn *moe) { return moe->used + moe->shared; }
static int banks_of(const MoeFfn *moe) { return moe->experts + moe->shared; }

static int64_t inner_of(const MoeFfn *moe) {
    int64_t intermediate_size = 0;
    for (int e = 0; e < banks_of(moe); e++)
        intermediate_size = moe->gate[e].rows > intermediate_size ? moe->gate[e].rows : intermediate_size;
    return intermediate_size;
}

/* What a row needs of the work area, in this order; parts as int32 take as much. */
static int64_t moe_width(const Layer *layer) {
    const MoeFfn *moe = &layer->moe;
    const int64_t hidden = moe->router.cols, slots = slots_of(moe);
    return 2 * hidden + moe->router.rows + moe->shared_gate.rows + 2 * slots + slots * (inner_of(moe) + hidden + 2);
}

static void moe_visit(Layer *layer, const Visitor *visitor) {
    MoeFfn *moe = &layer->moe;
    visit_weight(visitor, &moe->router);
    if (moe->shared_gate.rows) visit_weight(visitor, &moe->shared_gate);
    visit_vector(visitor, &moe->correction_bias, moe->experts, SPLIT_NONE);
    visit_bank(visitor, &moe->gate, banks_of(moe), SPLIT_ROWS);
    visit_bank(visitor, &moe->up, banks_of(moe), SPLIT_ROWS);
    visit_bank(visitor, &moe->down, banks_of(moe), SPLIT_COLUMNS);
}

/* A token reads the router, the experts it uses (taken to be as large as the first), and the shared one. */
static ComponentCost moe_cost(const Layer *layer, int depth) {
    const MoeFfn *moe = &layer->moe;
    ComponentCost cost = component_cost_of_weights((const Weight *const[]){&moe->router}, 1);
    for (int i = 0; i < slots_of(moe); i++) {
        const int e = i < moe->used ? 0 : moe->experts;
        const ComponentCost one =
            component_cost_of_weights((const Weight *const[]){&moe->gate[e], &moe->up[e], &moe->down[e]}, 3);
        cost.weight_bytes += one.weight_bytes;
        cost.operations += one.operations;
    }
    return cost;
}

static void moe_describe(const Layer *layer, Buffer *out) {
    const MoeFfn *moe = &layer->moe;
    buffer_printf(out, "%d of %d experts of %lld %s", moe->used, moe->experts, (long long)moe->gate[0].rows,
        activation_name(moe->activation));
    if (moe->shared) buffer_printf(out, " and a shared one of %lld", (long long)moe->gate[moe->experts].rows);
}

/* A block's work area. */
typedef struct Places {
    float *x, *sum, *logits, *shared_logits, *weight, *work;
    int32_t *index;
    const float *in; /* what experts read */
} Places;

static Places places_of(const MoeFfn *moe, const Block *block) {
    const int64_t rows = block->rows, hidden = moe->router.cols, slots = slots_of(moe);
    Places p = {.x = block->work};
    p.sum = p.x + rows * hidden;
    p.logits = p.sum + rows * hidden;
    p.shared_logits = p.logits + rows * moe->router.rows;
    p.weight = p.shared_logits + rows * moe->shared_gate.rows;
    p.index = (int32_t *)(void *)(p.weight + rows * slots);
    p.work = p.weight + 2 * rows * slots;
    p.in = block->in ? p.x : block->x;
    return p;
}

static Matmul router_of(const MoeFfn *moe, const Block *block, const Places *p) {
    return (Matmul){.rows = block->rows,
        .decode_rows = block->decode_rows,
        .x = p->in,
        .count = moe->shared_gate.rows ? 2 : 1,
        .weight = {&moe->router, &moe->shared_gate},
        .out = {p->logits, p->shared_logits},
        .fine = true};
}

static Routing route_of(const MoeFfn *moe, const Block *block, const Places *p) {
    return (Routing){.rows = block->rows,
        .experts = moe->experts,
        .used = moe->used,
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
        .index = p->index,
        .weight = p->weight};
}

static Experts experts_of(const MoeFfn *moe, const Block *block, const Places *p, ExpertsStage stage) {
    return (Experts){.rows = block->rows,
        .decode_rows = block->decode_rows,
        .count = banks_of(moe),
        .used = slots_of(moe),
        .x = p->in,
        .gate = moe->gate,
        .up = moe->up,
        .down = moe->down,
        .source = moe->source,
        .layer = moe->source_layer,
        .micro_batch = block->micro_batch,
        .stage = stage,
        .activation = moe->activation,
        .index = p->index,
        .weight = p->weight,
        .work = p->work,
        .out = p->sum};
}

/* Which experts each row uses. */
static void choose(const MoeFfn *moe, const Block *block, const Places *p) {
    const BackendOps *ops = block->backend->ops;
    if (block->in) ops->norm(block->backend, block->rows, block->x, block->in, p->x);
    const Matmul router = router_of(moe, block, p);
    ops->matmul(block->backend, &router);
    const Routing route = route_of(moe, block, p);
    ops->route(block->backend, &route);
}

static void use_experts(const MoeFfn *moe, const Block *block, const Places *p, ExpertsStage stage) {
    const Experts experts = experts_of(moe, block, p, stage);
    block->backend->ops->experts(block->backend, &experts);
}

static void choose_and_tell(const MoeFfn *moe, const Block *block, ExpertsStage stage) {
    if (!moe->source) return;
    const Places p = places_of(moe, block);
    choose(moe, block, &p);
    use_experts(moe, block, &p, stage);
}

static void moe_begin(const Layer *layer, const Block *block) { choose_and_tell(&layer->moe, block, EXPERTS_REQUEST); }
static void moe_prefetch(const Layer *layer, const Block *block) {
    choose_and_tell(&layer->moe, block, EXPERTS_PREFETCH);
}

static void moe_forward(const Layer *layer, const Block *block) {
    const MoeFfn *moe = &layer->moe;
    const BackendOps *ops = block->backend->ops;
    const Places p = places_of(moe, block);
    const bool begun = block->begun && moe->source;
    if (ops->moe_block && !moe->source) {
        const MoeBlock moe_block = {.x = block->x,
            .norm = block->in,
            .out_norm = block->out,
            .normed = p.x,
            .router = router_of(moe, block, &p),
            .route = route_of(moe, block, &p),
            .experts = experts_of(moe, block, &p, EXPERTS_WHOLE),
            .residual = block->residual,
            .scale = block->scale};
        ops->moe_block(block->backend, &moe_block);
        return;
    }
    if (!begun) choose(moe, block, &p);
    use_experts(moe, block, &p, begun ? EXPERTS_COMPUTE : EXPERTS_WHOLE);
    ops->add(block->backend, block->rows, moe->router.cols, block->residual, p.sum, block->scale, block->out);
}

const ComponentOps moe_component = {.width = moe_width,
    .visit = moe_visit,
    .cost = moe_cost,
    .describe = moe_describe,
    .forward = moe_forward,
    .begin = moe_begin,
    .prefetch = moe_prefetch};
