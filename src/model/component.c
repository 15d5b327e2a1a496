#include "model/component.h"

static const ComponentOps *const mixers[] = {[MIXER_ATTENTION] = &attention_component, [MIXER_MLA] = &mla_component};
static const ComponentOps *const ffns[] = {
    [FFN_GLU] = &glu_component, [FFN_MLP] = &mlp_component, [FFN_MOE] = &moe_component};

const ComponentOps *mixer_ops(const Layer *layer) { return mixers[layer->mixer]; }
const ComponentOps *ffn_ops(const Layer *layer) { return ffns[layer->ffn]; }

void layer_visit(Layer *layer, const Visitor *visitor) {
    visit_norm(visitor, &layer->mixer_in);
    visit_norm(visitor, &layer->mixer_out);
    visit_norm(visitor, &layer->ffn_in);
    visit_norm(visitor, &layer->ffn_out);
    mixer_ops(layer)->visit(layer, visitor);
    ffn_ops(layer)->visit(layer, visitor);
}

ComponentCost layer_cost(const Layer *layer, int depth) {
    const ComponentCost mixer = mixer_ops(layer)->cost(layer, depth), ffn = ffn_ops(layer)->cost(layer, depth);
    return (ComponentCost){mixer.weight_bytes + ffn.weight_bytes, mixer.cache_values + ffn.cache_values,
        mixer.operations + ffn.operations};
}

CacheSpec layer_cache(const Layer *layer) {
    const ComponentOps *mixer = mixer_ops(layer);
    CHECK(mixer->cache_spec);
    return mixer->cache_spec(layer);
}

int64_t layer_width(const Layer *layer) {
    const int64_t mixer = mixer_ops(layer)->width(layer), ffn = ffn_ops(layer)->width(layer);
    return mixer > ffn ? mixer : ffn;
}

void layer_describe(const Layer *layer, Buffer *out) {
    mixer_ops(layer)->describe(layer, out);
    buffer_text(out, "; ");
    ffn_ops(layer)->describe(layer, out);
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

ComponentCost component_cost_of_weights(const Weight *const *weights, int count) {
    ComponentCost cost = {0};
    for (int i = 0; i < count; i++) {
        cost.weight_bytes += weight_bytes(weights[i]);
        cost.operations += 2 * (uint64_t)weights[i]->rows * (uint64_t)weights[i]->cols;
    }
    return cost;
}

const char *activation_name(Activation activation) {
    static const char *const names[] = {"silu", "gelu", "gelu tanh", "relu²", "no activation", "clamped silu"};
    return names[activation];
}
