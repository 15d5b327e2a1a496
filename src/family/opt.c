/* OPT, BioGPT, XGLM (fairseq's decoders): layer norms and biases, a network without a gate, positions from row 2 of a
 * table on, which XGLM computes and the others have learned. References: transformers/models/opt, biogpt, xglm.
 * OPT-350m, whose norms are behind both parts and whose embeddings are projected, is refused. */
#include "family/family.h"

#include <math.h>

enum { FIRST = 2 };

static Weight learned(Loader *ld, const Spec *spec, const char *name) {
    const Weight table = load_linear(ld, name, (int64_t)spec->positions + FIRST, spec->hidden, false);
    return load_part(&table, FIRST, spec->positions);
}

/* Sines, then cosines of each position. */
static Weight sinusoids(Loader *ld, int positions, int width) {
    float *rows = load_floats(ld, (int64_t)positions * width);
    const int half = width / 2;
    for (int64_t i = 0; rows && i < (int64_t)positions * half; i++) {
        const float frequency = expf((float)(i % half) * -(float)(log(10000) / (half - 1)));
        const float angle = (float)(i / half + FIRST) * frequency;
        float *at = rows + i / half * width + i % half;
        at[0] = sinf(angle);
        at[half] = cosf(angle);
    }
    return (Weight){.rows = positions, .cols = width, .dtype = DTYPE_F32, .data = rows};
}

static Dims load_sizes(Loader *ld, Spec *spec) {
    load_ignore(ld, "dropout", "activation_dropout", "layerdrop", "init_std", NULL);
    return family_sizes(ld, spec, &(Sizes){.positions = 2048, .eps = 1e-5, .eps_field = "layer_norm_eps"});
}

/* Embeddings, norm, head and layers. */
static void load_model(Loader *ld, Spec *spec, const Dims *d, ActivationKind activation, bool bias) {
    static const NormNames norms = {
        load_layer_norm, .attention_input = "self_attn_layer_norm", .ffn_input = "final_layer_norm"};
    family_ends_as(ld, spec, d, "model.embed_tokens", "model.norm", load_layer_norm,
        load_bool_or(ld, "tie_word_embeddings", true));
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = {
            .kind = COMPONENT_ATTENTION, .attention = family_attention(ld, d, "out_proj", NULL, bias, bias)};
        const Component mlp =
            family_mlp(ld, "fc1", "fc2", d->hidden, d->intermediate_size, (Activation){.kind = activation}, bias);
        family_block(ld, spec, i, &(Block){.dims = d, .norms = &norms, .attention = &attention, .ffn = &mlp});
    }
}

static void load_opt(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"model.layers", "model.decoder.layers"},
        {"model.embed_tokens", "model.decoder.embed_tokens"}, {"model.norm", "model.decoder.final_layer_norm"}, {0}};
    static const LoadName fields[] = {{"intermediate_size", "ffn_dim"}, {0}};
    load_field_names(ld, fields);
    load_module_names(ld, names);
    const Dims d = load_sizes(ld, spec);
    load_expect_text(ld, "activation_function", "relu");
    load_expect_bool(ld, "do_layer_norm_before", true);
    load_expect_bool(ld, "_remove_final_layer_norm", false);
    load_expect_bool(ld, "layer_norm_elementwise_affine", true);
    load_expect_int(ld, "word_embed_proj_dim", d.hidden);
    load_ignore(ld, "prefix", NULL);
    spec->position_embedding = learned(ld, spec, "model.decoder.embed_positions");
    load_model(ld, spec, &d, ACT_RELU, load_bool_or(ld, "enable_bias", true));
}

/* PyTorch's epsilon: the references do not read the field. */
static Dims load_scaled_sizes(Loader *ld, Spec *spec) {
    Dims d = load_sizes(ld, spec);
    d.eps = 1e-5f;
    if (load_bool_or(ld, "scale_embedding", true)) spec->embedding_scale = sqrtf((float)d.hidden);
    return d;
}

static void load_biogpt(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"model.layers", "biogpt.layers"}, {"model.embed_tokens", "biogpt.embed_tokens"},
        {"model.norm", "biogpt.layer_norm"}, {"lm_head", "output_projection"}, {0}};
    load_module_names(ld, names);
    load_skip(ld, "output_projection.");
    const Dims d = load_scaled_sizes(ld, spec);
    load_expect_text(ld, "hidden_act", "gelu");
    load_ignore(ld, "hidden_dropout_prob", "attention_probs_dropout_prob", NULL);
    spec->position_embedding = learned(ld, spec, "biogpt.embed_positions");
    load_model(ld, spec, &d, ACT_GELU, true);
}

static void load_xglm(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"hidden_size", "d_model"}, {"num_attention_heads", "attention_heads"},
        {"num_hidden_layers", "num_layers"}, {"intermediate_size", "ffn_dim"}, {0}};
    static const LoadName names[] = {{"model.norm", "model.layer_norm"}, {0}};
    load_field_names(ld, fields);
    load_module_names(ld, names);
    const Dims d = load_scaled_sizes(ld, spec);
    load_expect_text(ld, "activation_function", "gelu");
    load_expect_bool(ld, "add_cross_attention", false);
    load_ignore(ld, "decoder_start_token_id", NULL);
    load_require(ld, d.hidden % 2 == 0 && d.hidden > 2, "d_model is %d, must be even and more than 2", d.hidden);
    spec->position_embedding = sinusoids(ld, spec->positions, d.hidden);
    load_model(ld, spec, &d, ACT_GELU, true);
}

const Family opt_family = {.load = load_opt};
const Family biogpt_family = {.load = load_biogpt};
const Family xglm_family = {.load = load_xglm};
