/* Mamba-1 (Mamba of backend/recurrent.h): projects to the inputs and the gate, sends the inputs through a convolution,
 * projects these to time step, b and c, computes the recurrence, multiplies by the gate, projects back. The cache entry
 * holds the state, then the inputs of the convolution. */
#include "model/component.h"

static Conv conv_of(const MambaComponent *mamba) {
    Conv conv = mamba->conv;
    conv.part_count = 1;
    conv.part[0].channels = mamba->in.rows;
    return conv;
}

static Mamba operation(const MambaComponent *mamba) {
    Mamba op = mamba->op;
    op.channels = mamba->in.rows;
    return op;
}

static int64_t mamba_width(const Component *component) {
    const MambaComponent *mamba = &component->mamba;
    return 2 * mamba->in.rows + mamba->gate.rows + mamba->dt_low.rows + mamba->b.rows + mamba->c.rows + mamba->dt.rows +
        mamba->o.cols;
}

static void mamba_visit(Component *component, const Visitor *visitor) {
    MambaComponent *mamba = &component->mamba;
    ConvPart *part = &mamba->conv.part[0];
    visit_weight(visitor, &mamba->in);
    visit_weight(visitor, &mamba->gate);
    visit_weight(visitor, &mamba->o);
    visit_weight(visitor, &mamba->dt_low);
    visit_weight(visitor, &mamba->b);
    visit_weight(visitor, &mamba->c);
    visit_weight(visitor, &mamba->dt);
    visit_norm(visitor, &mamba->dt_norm);
    visit_norm(visitor, &mamba->b_norm);
    visit_norm(visitor, &mamba->c_norm);
    visit_vector(visitor, &part->weight, mamba->in.rows * mamba->conv.taps, SPLIT_NONE);
    visit_vector(visitor, &part->bias, mamba->in.rows, SPLIT_NONE);
    visit_vector(visitor, &mamba->op.rate, mamba->in.rows * mamba->op.state, SPLIT_NONE);
    visit_vector(visitor, &mamba->op.skip, mamba->in.rows, SPLIT_NONE);
    visit_vector(visitor, &mamba->gated_norm.weight, mamba->o.cols, SPLIT_NONE);
}

static ComponentCost mamba_cost(const Component *component, int depth) {
    const MambaComponent *mamba = &component->mamba;
    const Weight *const weights[] = {
        &mamba->in, &mamba->gate, &mamba->o, &mamba->dt_low, &mamba->b, &mamba->c, &mamba->dt};
    const Conv conv = conv_of(mamba);
    const Mamba op = operation(mamba);
    ComponentCost cost = component_cost_of_weights(weights, COUNT_OF(weights));
    cost.cache_values = (uint64_t)(mamba_anchor_width(&op) + conv_anchor_width(&conv));
    return cost;
}

static CacheSpec mamba_cache(const Component *component) {
    const Conv conv = conv_of(&component->mamba);
    const Mamba op = operation(&component->mamba);
    return (CacheSpec){.page_tokens = RECURRENT_PAGE_TOKENS,
        .anchor_bytes = (size_t)(mamba_anchor_width(&op) + conv_anchor_width(&conv)) * sizeof(float),
        .row_bytes = (size_t)(mamba_row_width(&op) + conv_row_width(&conv)) * sizeof(float)};
}

static void mamba_describe(const Component *component, Buffer *out) {
    const MambaComponent *mamba = &component->mamba;
    buffer_printf(
        out, "mamba %lld channels of %d, conv %d", (long long)mamba->in.rows, mamba->op.state, mamba->conv.taps);
}

static void mamba_forward(const Component *component, const ComponentCall *call) {
    const MambaComponent *mamba = &component->mamba;
    const BackendOps *ops = call->backend->ops;
    const int64_t rows = call->rows;
    float *in = call->work, *gate = in + rows * mamba->in.rows, *x = gate + rows * mamba->gate.rows;
    float *dt_low = x + rows * mamba->in.rows, *b = dt_low + rows * mamba->dt_low.rows, *c = b + rows * mamba->b.rows;
    float *dt = c + rows * mamba->c.rows, *out = dt + rows * mamba->dt.rows;

    Matmul project = {.rows = call->rows, .decode_rows = call->decode_rows, .x = call->x, .norm = call->norm};
    component_project(call, &project, &mamba->in, in);
    component_project(call, &project, &mamba->gate, gate);
    component_project(call, &project, NULL, NULL);

    Mamba op = operation(mamba);
    Conv conv = conv_of(mamba);
    conv.place = (RecurrentPart){*call->entry, mamba_anchor_width(&op), mamba_row_width(&op)};
    conv.rows = call->rows;
    conv.part[0].x = in;
    conv.part[0].out = x;
    ops->conv(call->backend, &conv);

    /* An error of a decay grows with the text. */
    project = (Matmul){.rows = call->rows, .decode_rows = call->decode_rows, .x = x, .fine = true};
    component_project(call, &project, &mamba->dt_low, dt_low);
    component_project(call, &project, &mamba->b, b);
    component_project(call, &project, &mamba->c, c);
    component_project(call, &project, NULL, NULL);
    if (mamba->dt_norm) ops->norm(call->backend, call->rows, dt_low, mamba->dt_norm, dt_low);
    if (mamba->b_norm) ops->norm(call->backend, call->rows, b, mamba->b_norm, b);
    if (mamba->c_norm) ops->norm(call->backend, call->rows, c, mamba->c_norm, c);
    project.x = dt_low;
    component_project(call, &project, &mamba->dt, dt);
    component_project(call, &project, NULL, NULL);

    op.place = (RecurrentPart){.kv = *call->entry};
    op.rows = call->rows;
    op.x = x;
    op.dt = dt;
    op.b = b;
    op.c = c;
    op.out = out;
    ops->mamba(call->backend, &op);

    GatedNorm norm = mamba->gated_norm;
    norm.rows = call->rows;
    norm.width = mamba->o.cols;
    norm.x = norm.out = out;
    norm.gate = gate;
    ops->gated_norm(call->backend, &norm);

    const MatmulAdd back = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = out,
        .weight = &mamba->o,
        .norm = call->output_norm,
        .scale = call->scale,
        .residual = call->residual};
    component_matmul_add(call, &back);
}

const ComponentOps mamba_ops = {.width = mamba_width,
    .visit = mamba_visit,
    .cost = mamba_cost,
    .cache_spec = mamba_cache,
    .recurrent = true,
    .describe = mamba_describe,
    .forward = mamba_forward};
