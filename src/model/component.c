#include "model/component.h"

static const ComponentOps *const kinds[] = {
    [COMPONENT_ATTENTION] = &attention_ops,
    [COMPONENT_MLA] = &mla_ops,
    [COMPONENT_INDEXER] = &indexer_ops,
    [COMPONENT_GLU] = &glu_ops,
    [COMPONENT_MLP] = &mlp_ops,
    [COMPONENT_MOE] = &moe_ops,
    [COMPONENT_RECURRENT] = &recurrent_ops,
    [COMPONENT_SHORT_CONV] = &short_conv_ops,
    [COMPONENT_MAMBA] = &mamba_ops,
    [COMPONENT_RG_LRU] = &rg_lru_ops,
    [COMPONENT_LAYER_INPUT] = &layer_input_ops,
    [COMPONENT_SHARED_ATTENTION] = &shared_attention_ops,
    [COMPONENT_SCALE] = &scale_ops,
    [COMPONENT_LINEAR] = &linear_ops,
    [COMPONENT_LAUREL] = &laurel_ops,
    [COMPONENT_ALTUP_PREDICT] = &altup_predict_ops,
    [COMPONENT_ALTUP_CORRECT] = &altup_correct_ops,
    [COMPONENT_COMPRESSOR] = &compressor_ops,
    [COMPONENT_COMPRESSED_ATTENTION] = &compressed_attention_ops,
    [COMPONENT_HYPER_COLLAPSE] = &hyper_collapse_ops,
    [COMPONENT_HYPER_EXPAND] = &hyper_expand_ops,
    [COMPONENT_NORM_GATE] = &norm_gate_ops,
};

const ComponentOps *component_ops(ComponentKind kind) { return kinds[kind]; }

void component_visit(Component *component, const Visitor *visitor) {
    visit_norm(visitor, &component->input_norm);
    visit_norm(visitor, &component->output_norm);
    kinds[component->kind]->visit(component, visitor);
}

Component *layer_add(Spec *spec, Layer *layer, ComponentKind kind) {
    CHECK(layer->component_count < LAYER_COMPONENTS_MAX);
    Component *component = &layer->components[layer->component_count++];
    *component = (Component){.kind = kind,
        .residual_scale = 1,
        .cache_entry = kinds[kind]->cache_spec ? spec->cache_entries++ : -1,
        .state_entry = -1};
    return component;
}

void layer_add_state(Spec *spec, Component *component) { component->state_entry = spec->cache_entries++; }

bool component_recurrent(const Component *component) {
    const ComponentOps *ops = kinds[component->kind];
    if (ops->recurrent || component->state_entry < 0 || !ops->state_spec) return ops->recurrent;
    return ops->state_spec(component).page_tokens > 0;
}

MoeComponent *layer_moe(Layer *layer) {
    for (int c = 0; c < layer->component_count; c++)
        if (layer->components[c].kind == COMPONENT_MOE) return &layer->components[c].moe;
    return NULL;
}

void layer_visit(Layer *layer, const Visitor *visitor) {
    for (int c = 0; c < layer->component_count; c++) component_visit(&layer->components[c], visitor);
}

ComponentCost layer_cost(const Layer *layer, int depth) {
    ComponentCost sum = {0};
    for (int c = 0; c < layer->component_count; c++) {
        const ComponentCost one = kinds[layer->components[c].kind]->cost(&layer->components[c], depth);
        sum.weight_bytes += one.weight_bytes;
        sum.cache_values += one.cache_values;
        sum.operations += one.operations;
    }
    return sum;
}

/* The largest rank of a component's updates, and the most rows of a matrix with one. */
typedef struct Widths {
    int64_t rank, rows;
} Widths;

static void widen(void *context, Weight *weight) {
    Widths *widths = context;
    for (int i = 0; weight->updates && i < ADAPTERS_MAX; i++) {
        const int64_t rank = weight->updates[i].a.rows;
        if (rank == 0) continue;
        widths->rank = rank > widths->rank ? rank : widths->rank;
        widths->rows = weight->rows > widths->rows ? weight->rows : widths->rows;
    }
}

static void leave_bank(void *context, Weight **weights, int count, Split split) {}

int64_t component_width(const Component *component) {
    Component copy = *component;
    Widths widths = {0};
    const Visitor visitor = {.weight = widen, .bank = leave_bank, .context = &widths};
    component_visit(&copy, &visitor);
    return kinds[component->kind]->width(component) + MATMUL_MAX * widths.rank + widths.rows;
}

int64_t layer_width(const Layer *layer) {
    int64_t width = 0;
    for (int c = 0; c < layer->component_count; c++) {
        const int64_t own = component_width(&layer->components[c]);
        width = own > width ? own : width;
    }
    return width;
}

void layer_describe(const Layer *layer, Buffer *out) {
    for (int c = 0; c < layer->component_count; c++) {
        if (c) buffer_text(out, "; ");
        kinds[layer->components[c].kind]->describe(&layer->components[c], out);
    }
}

void visit_weight(const Visitor *visitor, Weight *weight) {
    if (visitor->weight) visitor->weight(visitor->context, weight);
}

void visit_split(const Visitor *visitor, Weight *weight, Split split) {
    weight->split = split;
    visit_weight(visitor, weight);
}

void visit_norm(const Visitor *visitor, const Norm **norm) {
    if (visitor->norm && *norm) visitor->norm(visitor->context, norm);
}

void visit_rope(const Visitor *visitor, const Rope **rope) {
    if (visitor->rope && *rope) visitor->rope(visitor->context, rope);
}

void visit_vector(const Visitor *visitor, const float **vector, int64_t count, Split split) {
    if (visitor->vector && *vector) visitor->vector(visitor->context, vector, count, split);
}

void visit_bank(const Visitor *visitor, Weight **weights, int count, Split split) {
    if (visitor->bank)
        visitor->bank(visitor->context, weights, count, split);
    else
        for (int i = 0; i < count; i++) visit_weight(visitor, &(*weights)[i]);
}

void component_norm_input(const ComponentCall *call, float *normed) {
    const BackendOps *ops = call->backend->ops;
    CHECK(call->norm);
    ops->norm(call->backend, call->rows, call->x, call->norm, normed);
}

static void clamp(const ComponentCall *call, int64_t width, const float *x, float low, float high, float *out) {
    const Activation within = {.kind = ACT_CLAMP, .a = low, .b = high};
    call->backend->ops->activate(call->backend, call->rows * width, x, within, out);
}

void component_clipped(
    const ComponentCall *call, const Weight *weight, const Clip *clip, const float *x, float *clipped, float *out) {
    const Matmul product = {.rows = call->rows,
        .decode_rows = call->decode_rows,
        .x = clipped,
        .count = 1,
        .weight = {weight},
        .out = {out}};
    clamp(call, weight->cols, x, clip->in_low, clip->in_high, clipped);
    call->backend->ops->matmul(call->backend, &product);
    clamp(call, weight->rows, out, clip->out_low, clip->out_high, out);
}

void component_clipped_add(const ComponentCall *call, const Weight *weight, const Clip *clip, float *x, float *work) {
    component_clipped(call, weight, clip, x, x, work);
    call->backend->ops->add(
        call->backend, call->rows, weight->rows, call->residual, work, call->scale, call->output_norm);
}

ComponentCost component_cost_of_weights(const Weight *const *weights, int count) {
    ComponentCost cost = {0};
    for (int i = 0; i < count; i++) {
        cost.weight_bytes += weight_bytes(weights[i]);
        cost.operations += 2 * (uint64_t)weights[i]->rows * (uint64_t)weights[i]->cols;
    }
    return cost;
}

const char *activation_name(Activation activation) {
    static const char *const names[] = {"silu", "gelu", "gelu tanh", "relu²", "no activation", "clamped silu", "xielu",
        "clamp", "relu", "limited silu"};
    return names[activation.kind];
}
