/* The layer that most families have. */
#include <math.h>
#include <stdio.h>

#include "family/family.h"

const NormNames norms_usual = {
    .load = load_rms, .attention_input = "input_layernorm", .ffn_input = "post_attention_layernorm"};

Layer *family_layer(Loader *ld, Spec *spec, int i) {
    load_scope(ld, "model.layers.%d.", i);
    return &spec->layers[i];
}

static const Norm *head_norm(Loader *ld, const Block *b, LoadNorm *load, const char *name, int heads) {
    char full[64];
    snprintf(full, sizeof full, "self_attn.%s", name);
    return load(ld, full, (int64_t)(b->norm_full ? heads : 1) * b->dims->head_dim, b->dims->eps);
}

static Component load_attention(Loader *ld, const Block *b, LoadNorm *load) {
    Component component = {.kind = COMPONENT_ATTENTION,
        .attention = family_attention(ld, b->dims, "o_proj", b->rope, b->bias, b->out_bias)};
    Attention *op = &component.attention.op;
    op->window = b->window;
    op->norm_full = b->norm_full;
    if (b->q_norm) op->q_norm = head_norm(ld, b, load, b->q_norm, b->dims->heads);
    if (b->k_norm) op->k_norm = head_norm(ld, b, load, b->k_norm, b->dims->kv_heads);
    return component;
}

static Component load_ffn(Loader *ld, const Block *b) {
    if (b->moe) return (Component){.kind = COMPONENT_MOE, .moe = family_moe(ld, b->moe)};
    const Dims *d = b->dims;
    return (Component){.kind = COMPONENT_GLU,
        .glu = family_glu(ld, "mlp", d->hidden, d->intermediate_size, b->activation, b->mlp_bias)};
}

Component *family_add(Spec *spec, Layer *layer, const Component *loaded) {
    Component *own = layer_add(spec, layer, loaded->kind);
    const Component empty = *own;
    *own = *loaded;
    own->cache_entry = empty.cache_entry;
    own->state_entry = empty.state_entry;
    own->residual_scale = empty.residual_scale;
    return own;
}

static void add_component(Loader *ld, Spec *spec, Layer *layer, const Block *b, const Component *loaded,
    const char *input, const char *output) {
    const NormNames *norms = b->norms ? b->norms : &norms_usual;
    Component *own = family_add(spec, layer, loaded);
    if (b->residual_scale != 0) own->residual_scale = b->residual_scale;
    if (input) own->input_norm = norms->load(ld, input, b->dims->hidden, b->dims->eps);
    if (output) own->output_norm = norms->load(ld, output, b->dims->hidden, b->dims->eps);
}

void family_layer_inputs(Loader *ld, Spec *spec, int width, int rows, float eps) {
    const int64_t all = (int64_t)width * spec->layer_count;
    load_require(ld, all <= MATRIX_COLS_MAX, "hidden_size_per_layer_input is %d, too much for %d layers", width,
        spec->layer_count);
    /* The projection is divided by √hidden before its norm; the norm's eps makes up for it. */
    spec->layer_inputs = (LayerInputs){.width = width,
        .embedding = load_linear(ld, "model.embed_tokens_per_layer", rows, all, false),
        .projection = load_linear(ld, "model.per_layer_model_projection", all, spec->hidden, false),
        .norm = load_rms(ld, "model.per_layer_projection_norm", width, eps * (float)spec->hidden),
        .scale = sqrtf(0.5f),
        .embedding_scale = sqrtf((float)width)};
}

void family_layer_input(Loader *ld, Spec *spec, Layer *layer, int i, float eps) {
    const int width = spec->layer_inputs.width;
    Component *component = layer_add(spec, layer, COMPONENT_LAYER_INPUT);
    component->layer_input =
        (LayerInputComponent){.gate = load_linear(ld, "per_layer_input_gate", width, spec->hidden, false),
            .projection = load_linear(ld, "per_layer_projection", spec->hidden, width, false),
            .activation = {.kind = ACT_GELU_TANH},
            .layer = i};
    component->output_norm = load_rms(ld, "post_per_layer_input_norm", spec->hidden, eps);
}

void family_block_here(Loader *ld, Spec *spec, Layer *layer, const Block *b) {
    const NormNames *norms = b->norms ? b->norms : &norms_usual;
    const Component attention = b->attention ? *b->attention : load_attention(ld, b, norms->load);
    add_component(ld, spec, layer, b, &attention, norms->attention_input, norms->attention_output);
    const Component ffn = b->ffn ? *b->ffn : load_ffn(ld, b);
    add_component(ld, spec, layer, b, &ffn, norms->ffn_input, norms->ffn_output);
}

Layer *family_block(Loader *ld, Spec *spec, int i, const Block *b) {
    Layer *layer = family_layer(ld, spec, i);
    family_block_here(ld, spec, layer, b);
    return layer;
}

Spec *family_mtp(Loader *ld, Spec *spec, const MtpNames *names, LoadNorm *load_norm, float eps) {
    char weight[64];
    snprintf(weight, sizeof weight, "%s.weight", names->projection);
    Spec *mtp = load_mtp(ld, spec, weight);
    if (!mtp) return NULL;
    load_state_input(ld, mtp, names->projection, mtp->hidden, names->state_first);
    mtp->input.token_norm = load_norm(ld, names->token_norm, spec->hidden, eps);
    mtp->input.state_norm = load_norm(ld, names->state_norm, spec->hidden, eps);
    mtp->final_norm = names->final_norm ? load_norm(ld, names->final_norm, spec->hidden, eps) : spec->final_norm;
    spec->mtp = mtp;
    return mtp;
}

Spec *family_nextn(Loader *ld, Spec *spec, float eps) {
    static const MtpNames names = {"eh_proj", "enorm", "hnorm", "shared_head.norm", .state_first = false};
    load_scope(ld, "model.layers.%d.", spec->layer_count);
    return family_mtp(ld, spec, &names, load_rms, eps);
}
