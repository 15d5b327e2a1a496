/* LAuReL: the normalised input and a low-rank product of it, beside attention. */
#include "model/component.h"

static int64_t laurel_width(const Component *component) { return component->laurel.left.rows; }

static void laurel_visit(Component *component, const Visitor *visitor) {
    visit_weight(visitor, &component->laurel.left);
    visit_weight(visitor, &component->laurel.right);
}

static ComponentCost laurel_cost(const Component *component, int depth) {
    const LaurelComponent *laurel = &component->laurel;
    return component_cost_of_weights((const Weight *const[]){&laurel->left, &laurel->right}, 2);
}

static void laurel_describe(const Component *component, Buffer *out) {
    buffer_printf(out, "low-rank residual of %lld", (long long)component->laurel.left.rows);
}

static void laurel_forward(const Component *component, const ComponentCall *call) {
    const LaurelComponent *laurel = &component->laurel;
    const BackendOps *ops = call->backend->ops;
    const Matmul left = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->x,
        .count = 1,
        .weight = {&laurel->left},
        .out = {call->work}};
    const MatmulAdd right = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->work,
        .weight = &laurel->right,
        .norm = call->output_norm,
        .scale = call->scale,
        .residual = call->residual};
    ops->matmul(call->backend, &left);
    ops->matmul_add(call->backend, &right);
    ops->add(call->backend, call->rows, call->hidden, call->residual, call->x, call->scale, NULL);
}

const ComponentOps laurel_ops = {.width = laurel_width,
    .visit = laurel_visit,
    .cost = laurel_cost,
    .describe = laurel_describe,
    .forward = laurel_forward};
