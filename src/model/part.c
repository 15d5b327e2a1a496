#include "model/part.h"

static const Part *const mixers[] = {[MIXER_ATTENTION] = &attention_part, [MIXER_LATENT] = &latent_part};
static const Part *const ffns[] = {[FFN_GLU] = &glu_part, [FFN_MLP] = &mlp_part, [FFN_MOE] = &moe_part};

const Part *part_of_mixer(const Layer *layer) { return mixers[layer->mixer]; }
const Part *part_of_ffn(const Layer *layer) { return ffns[layer->ffn]; }

void layer_visit(Layer *layer, const Visitor *visitor) {
    visit_norm(visitor, &layer->mixer_in);
    visit_norm(visitor, &layer->mixer_out);
    visit_norm(visitor, &layer->ffn_in);
    visit_norm(visitor, &layer->ffn_out);
    part_of_mixer(layer)->visit(layer, visitor);
    part_of_ffn(layer)->visit(layer, visitor);
}

PartCost layer_cost(const Layer *layer, int depth) {
    const PartCost mixer = part_of_mixer(layer)->cost(layer, depth), ffn = part_of_ffn(layer)->cost(layer, depth);
    return (PartCost){mixer.weight_bytes + ffn.weight_bytes, mixer.cache_values + ffn.cache_values,
        mixer.operations + ffn.operations};
}

CacheSpec layer_remembers(const Layer *layer) {
    const Part *mixer = part_of_mixer(layer);
    return mixer->remembers ? mixer->remembers(layer) : (CacheSpec){.kind = CACHE_NONE};
}

int64_t layer_width(const Layer *layer) {
    const int64_t mixer = part_of_mixer(layer)->width(layer), ffn = part_of_ffn(layer)->width(layer);
    return mixer > ffn ? mixer : ffn;
}

void layer_describe(const Layer *layer, Buffer *out) {
    part_of_mixer(layer)->describe(layer, out);
    buffer_text(out, "; ");
    part_of_ffn(layer)->describe(layer, out);
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

PartCost cost_of_weights(const Weight *const *weights, int count) {
    PartCost cost = {0};
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
