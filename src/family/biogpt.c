/* BioGPT, XGLM: layer norms and biases everywhere, scaled embeddings, a network of GELU without a gate, positions from
 * row 2 of a table on, which BioGPT has learned and XGLM computes. References: transformers/models/biogpt, xglm. */
#include "family/family.h"

#include <math.h>

enum { FIRST = 2 };

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

static void load(Loader *ld, Spec *spec, const char *activation, const char *table) {
    static const NormNames norms = {
        load_layer_norm, .attention_input = "self_attn_layer_norm", .ffn_input = "final_layer_norm"};
    Dims d = family_sizes(ld, spec, &(Sizes){.positions = 2048, .eps = 1e-5, .eps_field = "layer_norm_eps"});
    d.eps = 1e-5f; /* PyTorch's: the references do not read the field */
    load_expect_text(ld, activation, "gelu");
    load_ignore(ld, "activation_dropout", "layerdrop", "init_std", "dropout", "hidden_dropout_prob",
        "attention_probs_dropout_prob", NULL);
    family_ends_as(ld, spec, &d, "model.embed_tokens", "model.norm", load_layer_norm,
        load_bool_or(ld, "tie_word_embeddings", true));
    if (load_bool_or(ld, "scale_embedding", true)) spec->embedding_scale = sqrtf((float)d.hidden);
    if (table) {
        const Weight rows = load_linear(ld, table, (int64_t)spec->positions + FIRST, d.hidden, false);
        spec->position_embedding = load_part(&rows, FIRST, spec->positions);
    } else {
        load_require(ld, d.hidden % 2 == 0 && d.hidden > 2, "d_model is %d, must be even and more than 2", d.hidden);
        spec->position_embedding = sinusoids(ld, spec->positions, d.hidden);
    }
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = {
            .kind = COMPONENT_ATTENTION, .attention = family_attention(ld, &d, "out_proj", NULL, true, true)};
        const Component mlp =
            family_mlp(ld, "fc1", "fc2", d.hidden, d.intermediate_size, (Activation){.kind = ACT_GELU}, true);
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention, .ffn = &mlp});
    }
}

static void load_biogpt(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"model.layers", "biogpt.layers"}, {"model.embed_tokens", "biogpt.embed_tokens"},
        {"model.norm", "biogpt.layer_norm"}, {"lm_head", "output_projection"}, {0}};
    load_module_names(ld, names);
    load_skip(ld, "output_projection.");
    load(ld, spec, "hidden_act", "biogpt.embed_positions");
}

static void load_xglm(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"hidden_size", "d_model"}, {"num_attention_heads", "attention_heads"},
        {"num_hidden_layers", "num_layers"}, {"intermediate_size", "ffn_dim"}, {0}};
    static const LoadName names[] = {{"model.norm", "model.layer_norm"}, {0}};
    load_field_names(ld, fields);
    load_module_names(ld, names);
    load_expect_bool(ld, "add_cross_attention", false);
    load_ignore(ld, "decoder_start_token_id", NULL);
    load(ld, spec, "activation_function", NULL);
}

const Family biogpt_family = {.load = load_biogpt};
const Family xglm_family = {.load = load_xglm};
