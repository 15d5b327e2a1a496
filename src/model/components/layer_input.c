/* The layer's own input of the token: projection · (act(gate · x) ∘ input) (Gemma 3n and 4). */
#include "model/component.h"

static int64_t layer_input_width(const Component *component) { return component->layer_input.gate.rows; }

static void layer_input_visit(Component *component, const Visitor *visitor) {
    visit_weight(visitor, &component->layer_input.gate);
    visit_weight(visitor, &component->layer_input.projection);
}

static ComponentCost layer_input_cost(const Component *component, int depth) {
    const LayerInputComponent *input = &component->layer_input;
    return component_cost_of_weights((const Weight *const[]){&input->gate, &input->projection}, 2);
}

static void layer_input_describe(const Component *component, Buffer *out) {
    buffer_printf(out, "own input of %lld", (long long)component->layer_input.gate.rows);
}

static void layer_input_forward(const Component *component, const ComponentCall *call) {
    const LayerInputComponent *input = &component->layer_input;
    const BackendOps *ops = call->backend->ops;
    const Matmul gate = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->x,
        .norm = call->norm,
        .count = 1,
        .weight = {&input->gate},
        .out = {call->work}};
    const Multiply multiply = {.rows = call->rows,
        .width = input->gate.rows,
        .x = call->work,
        .activation = input->activation,
        .y = call->layer_inputs + input->layer * input->gate.rows,
        .y_stride = call->layer_inputs_stride,
        .out = call->work};
    const MatmulAdd projection = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->work,
        .weight = &input->projection,
        .norm = call->output_norm,
        .scale = call->scale,
        .residual = call->residual};
    ops->matmul(call->backend, &gate);
    ops->multiply(call->backend, &multiply);
    ops->matmul_add(call->backend, &projection);
}

const ComponentOps layer_input_ops = {.width = layer_input_width,
    .visit = layer_input_visit,
    .cost = layer_input_cost,
    .describe = layer_input_describe,
    .forward = layer_input_forward};
