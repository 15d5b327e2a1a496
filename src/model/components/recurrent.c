/* Recurrence with a matrix state (Recurrence of backend/recurrent.h): projects to q, k, v, gate, time step and β, sends
 * q, k and v through a convolution, computes the recurrence, its gated norm, projects back. The cache entry holds the
 * state, then the inputs of the convolution. */
#include "model/component.h"

enum { INPUTS = 3 }; /* q, k, v */

static Conv conv_of(const RecurrentComponent *recurrent) {
    Conv conv = recurrent->conv;
    conv.part_count = conv.taps > 0 ? INPUTS : 0;
    conv.part[0].channels = recurrent->q.rows;
    conv.part[1].channels = recurrent->k.rows;
    conv.part[2].channels = recurrent->v.rows;
    return conv;
}

static int64_t recurrent_width(const Component *component) {
    const RecurrentComponent *recurrent = &component->recurrent;
    const int64_t inputs = recurrent->q.rows + recurrent->k.rows + recurrent->v.rows;
    return (recurrent->conv.taps > 0 ? 2 : 1) * inputs + recurrent->gate.rows + recurrent->a.rows + recurrent->b.rows +
        recurrent->a_low.rows + recurrent->gate_low.rows + recurrent->o.cols + recurrence_width(&recurrent->op);
}

static void visit_present(const Visitor *visitor, Weight *weight, Split split) {
    if (weight->rows) visit_split(visitor, weight, split);
}

static void recurrent_visit(Component *component, const Visitor *visitor) {
    RecurrentComponent *recurrent = &component->recurrent;
    Recurrence *op = &recurrent->op;
    const Conv conv = conv_of(recurrent);
    visit_split(visitor, &recurrent->q, SPLIT_ROWS);
    visit_split(visitor, &recurrent->k, SPLIT_ROWS);
    visit_split(visitor, &recurrent->v, SPLIT_ROWS);
    visit_split(visitor, &recurrent->o, SPLIT_COLUMNS);
    visit_present(visitor, &recurrent->gate, SPLIT_ROWS);
    visit_present(visitor, &recurrent->a, SPLIT_ROWS);
    visit_present(visitor, &recurrent->b, SPLIT_ROWS);
    visit_present(visitor, &recurrent->a_low, SPLIT_NONE);
    visit_present(visitor, &recurrent->gate_low, SPLIT_NONE);
    for (int i = 0; i < conv.part_count; i++) {
        ConvPart *part = &recurrent->conv.part[i];
        visit_vector(visitor, &part->weight, conv.part[i].channels * conv.taps, SPLIT_ROWS);
        visit_vector(visitor, &part->bias, conv.part[i].channels, SPLIT_ROWS);
    }
    visit_norm(visitor, &op->q_norm);
    visit_norm(visitor, &op->k_norm);
    visit_rope(visitor, &op->rope);
    visit_vector(visitor, &op->rate, op->value_heads, SPLIT_ROWS);
    visit_vector(visitor, &op->dt_bias, recurrent->a.rows, SPLIT_ROWS);
    visit_vector(visitor, &op->dt_slope, op->value_heads, SPLIT_ROWS);
    visit_vector(visitor, &op->skip, op->value_heads, SPLIT_ROWS);
    visit_vector(visitor, &recurrent->gated_norm.weight, recurrent->o.cols, SPLIT_ROWS);
}

static ComponentCost recurrent_cost(const Component *component, int depth) {
    const RecurrentComponent *recurrent = &component->recurrent;
    const Conv conv = conv_of(recurrent);
    const Weight *const weights[] = {&recurrent->q, &recurrent->k, &recurrent->v, &recurrent->o, &recurrent->gate,
        &recurrent->a, &recurrent->b, &recurrent->a_low, &recurrent->gate_low};
    const int64_t tail = depth % RECURRENT_PAGE_TOKENS + 1;
    ComponentCost cost = component_cost_of_weights(weights, COUNT_OF(weights));
    cost.cache_values = (uint64_t)(recurrence_anchor_width(&recurrent->op) + conv_anchor_width(&conv) +
        tail * recurrence_row_width(&recurrent->op));
    return cost;
}

static CacheSpec recurrent_cache(const Component *component) {
    const RecurrentComponent *recurrent = &component->recurrent;
    const Conv conv = conv_of(recurrent);
    const int64_t anchor = recurrence_anchor_width(&recurrent->op) + conv_anchor_width(&conv);
    const int64_t row = recurrence_row_width(&recurrent->op) + conv_row_width(&conv);
    return (CacheSpec){.page_tokens = RECURRENT_PAGE_TOKENS,
        .anchor_bytes = (size_t)anchor * sizeof(float),
        .row_bytes = (size_t)row * sizeof(float)};
}

static void recurrent_describe(const Component *component, Buffer *out) {
    const Recurrence *op = &component->recurrent.op;
    buffer_printf(out, "%s %d heads of %d × %d", op->kind == RECURRENCE_DELTA ? "delta" : "ssd", op->value_heads,
        op->key_dim, op->value_dim);
    if (op->key_heads != op->value_heads) buffer_printf(out, " on %d key heads", op->key_heads);
    if (op->channel_decay) buffer_text(out, ", a decay per channel");
    if (component->recurrent.conv.taps > 0) buffer_printf(out, ", conv %d", component->recurrent.conv.taps);
    if (component->recurrent.gate.rows) buffer_text(out, ", gated");
}

static void recurrent_forward(const Component *component, const ComponentCall *call) {
    const RecurrentComponent *recurrent = &component->recurrent;
    const BackendOps *ops = call->backend->ops;
    const int64_t rows = call->rows;
    const bool low_a = recurrent->a_low.rows > 0, low_gate = recurrent->gate_low.rows > 0;
    const Weight *const inputs[INPUTS] = {&recurrent->q, &recurrent->k, &recurrent->v};
    Conv conv = conv_of(recurrent);
    float *x[INPUTS], *next = call->work;
    for (int i = 0; i < INPUTS; i++) {
        x[i] = next;
        next += rows * inputs[i]->rows;
    }
    float *gate = next, *a = gate + rows * recurrent->gate.rows, *b = a + rows * recurrent->a.rows;
    float *a_low = b + rows * recurrent->b.rows, *gate_low = a_low + rows * recurrent->a_low.rows;
    float *out = gate_low + rows * recurrent->gate_low.rows;
    next = out + rows * recurrent->o.cols;

    Matmul project = {.rows = call->rows, .decode_rows = call->decode_rows, .x = call->x, .norm = call->norm};
    for (int i = 0; i < INPUTS; i++) component_project(call, &project, inputs[i], x[i]);
    component_project(call, &project, low_gate ? &recurrent->gate_low : &recurrent->gate, low_gate ? gate_low : gate);
    /* An error of a decay grows with the text. */
    const int decays = (recurrent->a.rows > 0) + (recurrent->b.rows > 0);
    if (!ops->one_precision && (decays == 0 || low_a || call->adapted)) component_project(call, &project, NULL, NULL);
    project.fine = true;
    project.fine_last = project.count > 0 ? decays : 0;
    component_project(call, &project, low_a ? &recurrent->a_low : &recurrent->a, low_a ? a_low : a);
    component_project(call, &project, &recurrent->b, b);
    component_project(call, &project, NULL, NULL);
    project.norm = NULL;
    project.fine_last = 0;
    project.x = a_low;
    if (low_a) component_project(call, &project, &recurrent->a, a);
    component_project(call, &project, NULL, NULL);
    project.fine = false;
    project.x = gate_low;
    if (low_gate) component_project(call, &project, &recurrent->gate, gate);
    component_project(call, &project, NULL, NULL);

    Recurrence op = recurrent->op;
    if (conv.taps > 0) {
        conv.place = (RecurrentPart){*call->entry, recurrence_anchor_width(&op), recurrence_row_width(&op)};
        conv.rows = call->rows;
        for (int i = 0; i < INPUTS; i++) {
            conv.part[i].x = x[i];
            conv.part[i].out = x[i] = next;
            next += rows * inputs[i]->rows;
        }
    }
    op.place = (RecurrentPart){.kv = *call->entry};
    op.rows = call->rows;
    op.q = x[0];
    op.k = x[1];
    op.v = x[2];
    op.a = recurrent->a.rows ? a : NULL;
    op.b = recurrent->b.rows ? b : NULL;
    op.work = next;
    op.out = out;
    GatedNorm norm = recurrent->gated_norm;
    norm.rows = call->rows;
    norm.width = recurrent->o.cols;
    norm.x = norm.out = out;
    norm.gate = recurrent->gate.rows ? gate : NULL;
    const RecurrentBlock block = {&conv, &op, &norm};
    const bool joins = ops->recurrent_block && conv.taps > 0 && !recurrent->silu;
    if (!joins || !ops->recurrent_block(call->backend, &block)) {
        const Activation silu = {.kind = ACT_SILU};
        if (conv.taps > 0) ops->conv(call->backend, &conv);
        for (int i = 0; i < INPUTS && recurrent->silu; i++)
            ops->activate(call->backend, rows * inputs[i]->rows, x[i], silu, x[i]);
        ops->recurrence(call->backend, &op);
        ops->gated_norm(call->backend, &norm);
    }

    const MatmulAdd back = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = out,
        .weight = &recurrent->o,
        .norm = call->output_norm,
        .scale = call->scale,
        .residual = call->residual};
    component_matmul_add(call, &back);
}

const ComponentOps recurrent_ops = {.width = recurrent_width,
    .visit = recurrent_visit,
    .cost = recurrent_cost,
    .cache_spec = recurrent_cache,
    .recurrent = true,
    .describe = recurrent_describe,
    .forward = recurrent_forward};
