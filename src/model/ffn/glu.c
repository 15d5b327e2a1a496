/* Gated feed-forward (SwiGLU, GeGLU): down · (act(gate · x) ∘ (up · x)). */
#include "model/component.h"

static int64_t glu_width(const Layer *layer) { return layer->glu.gate.rows; }

static void glu_visit(Layer *layer, const Visitor *visitor) {
    visit_split(visitor, &layer->glu.gate, SPLIT_ROWS);
    visit_split(visitor, &layer->glu.up, SPLIT_ROWS);
    visit_split(visitor, &layer->glu.down, SPLIT_COLUMNS);
}

static ComponentCost glu_cost(const Layer *layer, int depth) {
    return component_cost_of_weights((const Weight *const[]){&layer->glu.gate, &layer->glu.up, &layer->glu.down}, 3);
}

static void glu_describe(const Layer *layer, Buffer *out) {
    buffer_printf(out, "gated %lld %s", (long long)layer->glu.up.rows, activation_name(layer->glu.activation));
}

static void glu_forward(const Layer *layer, const Block *block) {
    const GluFfn *ffn = &layer->glu;
    const BackendOps *ops = block->backend->ops;
    const Glu glu = {.rows = block->rows,
        .decode_rows = block->decode_rows,
        .x = block->x,
        .norm = block->in,
        .gate = &ffn->gate,
        .up = &ffn->up,
        .activation = ffn->activation,
        .out = block->work};
    const MatmulAdd down = {.rows = block->rows,
        .decode_rows = block->decode_rows,
        .x = block->work,
        .weight = &ffn->down,
        .norm = block->out,
        .scale = block->scale,
        .residual = block->residual,
        .next = block->next};
    if (ops->ffn_block) {
        const FfnBlock op = {glu, down};
        ops->ffn_block(block->backend, &op);
        return;
    }
    ops->glu(block->backend, &glu);
    ops->matmul_add(block->backend, &down);
}

const ComponentOps glu_component = {
    .width = glu_width, .visit = glu_visit, .cost = glu_cost, .describe = glu_describe, .forward = glu_forward};
