/* Mixture of experts: a router picks some of many gated feed-forward parts for each row, whose weighted sum is added;
 * where there is a shared expert, every row uses it as well. The order of the sum: best first, the shared one last. */
#include "model/part.h"

static int slots_of(const MoeFfn *moe) { return moe->used + moe->shared; }
static int banks_of(const MoeFfn *moe) { return moe->experts + moe->shared; }

static int64_t inner_of(const MoeFfn *moe) {
    int64_t inner = 0;
    for (int e = 0; e < banks_of(moe); e++) inner = moe->gate[e].rows > inner ? moe->gate[e].rows : inner;
    return inner;
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
    visit_vector(visitor, &moe->choice_bias, moe->experts);
    visit_bank(visitor, &moe->gate, banks_of(moe));
    visit_bank(visitor, &moe->up, banks_of(moe));
    visit_bank(visitor, &moe->down, banks_of(moe));
}

/* A token reads the router, the experts it uses (taken to be as large as the first), and the shared one. */
static PartCost moe_cost(const Layer *layer, int depth) {
    const MoeFfn *moe = &layer->moe;
    PartCost cost = cost_of_weights((const Weight *const[]){&moe->router}, 1);
    for (int i = 0; i < slots_of(moe); i++) {
        const int e = i < moe->used ? 0 : moe->experts;
        const PartCost one = cost_of_weights((const Weight *const[]){&moe->gate[e], &moe->up[e], &moe->down[e]}, 3);
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

static void moe_forward(const Layer *layer, const Block *block) {
    const MoeFfn *moe = &layer->moe;
    const BackendOps *ops = block->backend->ops;
    const int64_t rows = block->rows, hidden = moe->router.cols, slots = slots_of(moe);
    float *x = block->work, *sum = x + rows * hidden, *logits = sum + rows * hidden;
    float *shared_logits = logits + rows * moe->router.rows, *weight = shared_logits + rows * moe->shared_gate.rows;
    int32_t *index = (int32_t *)(void *)(weight + rows * slots);
    float *work = weight + 2 * rows * slots;
    const float *in = block->x;
    if (block->in) {
        ops->norm(block->backend, block->rows, block->x, block->in, x);
        in = x;
    }
    const Matmul router = {.rows = block->rows,
        .x = in,
        .count = moe->shared_gate.rows ? 2 : 1,
        .weight = {&moe->router, &moe->shared_gate},
        .out = {logits, shared_logits},
        .fine = true};
    ops->matmul(block->backend, &router);
    const Routing route = {.rows = block->rows,
        .experts = moe->experts,
        .used = moe->used,
        .logits = logits,
        .score = moe->score,
        .bias = moe->choice_bias,
        .groups = moe->groups,
        .groups_used = moe->groups_used,
        .group_best = moe->group_best,
        .band = moe->band,
        .normalise = moe->normalise,
        .epsilon = moe->epsilon,
        .scale = moe->scale,
        .shared = moe->shared,
        .shared_logits = moe->shared_gate.rows ? shared_logits : NULL,
        .shared_pair = moe->shared_gate.rows == 2,
        .index = index,
        .weight = weight};
    ops->route(block->backend, &route);
    const Experts experts = {.rows = block->rows,
        .count = banks_of(moe),
        .used = (int)slots,
        .x = in,
        .gate = moe->gate,
        .up = moe->up,
        .down = moe->down,
        .source = moe->source,
        .layer = moe->source_layer,
        .activation = moe->activation,
        .index = index,
        .weight = weight,
        .work = work,
        .out = sum};
    ops->experts(block->backend, &experts);
    ops->add(block->backend, block->rows, hidden, block->residual, sum, block->scale, block->out);
}

const Part moe_part = {
    .width = moe_width, .visit = moe_visit, .cost = moe_cost, .describe = moe_describe, .forward = moe_forward};
