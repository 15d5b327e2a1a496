/* The layer's own input of the token: projection · (act(gate · x) ∘ input) (Gemma 3n and 4), or the input alone. */
#include "model/component.h"

static int64_t layer_input_width(const Component *component) {
    return component->layer_input.gate.rows + component->layer_input.projection.rows;
}

static void layer_input_visit(Component *component, const Visitor *visitor) {
    if (!component->layer_input.gate.rows) return;
    visit_weight(visitor, &component->layer_input.gate);
    visit_weight(visitor, &component->layer_input.projection);
}

static ComponentCost layer_input_cost(const Component *component, int depth) {
    const LayerInputComponent *input = &component->layer_input;
    return component_cost_of_weights((const Weight *const[]){&input->gate, &input->projection}, 2);
}

static void layer_input_describe(const Component *component, Buffer *out) {
    const long long width = component->layer_input.gate.rows;
    if (width)
        buffer_printf(out, "own input of %lld", width);
    else
        buffer_text(out, "embedding");
}

/* projection · the work area, added to all streams but the first. */
static void add_to_streams(const LayerInputComponent *input, const ComponentCall *call) {
    const BackendOps *ops = call->backend->ops;
    float *y = call->work + call->rows * input->gate.rows;
    const Matmul projection = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = call->work,
        .count = 1,
        .weight = {&input->projection},
        .out = {y}};
    ops->matmul(call->backend, &projection);
    for (int i = 1; i < call->altup->streams; i++)
        ops->add(call->backend, call->rows, call->hidden, call->streams + i * call->stream_stride, y, call->scale,
            call->output_norm);
}

static void layer_input_forward(const Component *component, const ComponentCall *call) {
    const LayerInputComponent *input = &component->layer_input;
    const BackendOps *ops = call->backend->ops;
    if (!input->gate.rows) {
        ops->add(call->backend, call->rows, call->hidden, call->residual, call->layer_inputs, call->scale,
            call->output_norm);
        return;
    }
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
    if (call->streams)
        add_to_streams(input, call);
    else
        ops->matmul_add(call->backend, &projection);
}

const ComponentOps layer_input_ops = {.width = layer_input_width,
    .visit = layer_input_visit,
    .cost = layer_input_cost,
    .describe = layer_input_describe,
    .forward = layer_input_forward};
