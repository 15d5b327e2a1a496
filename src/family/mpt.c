/* MPT: ALiBi, layer norms, and a network without a gate; no biases. Reference: transformers/models/mpt, which computes
 * ALiBi with a largest exponent of 8 whatever the config says: other files are refused. */
#include "family/family.h"
#include "family/gguf/models.h"

#include <math.h>

typedef struct Mpt {
    Dims d;
    const float *slopes;
    float scale; /* factor of the scores; 0: the usual one */
    float clip;  /* limit of q, k and v; 0: none */
} Mpt;

/* 2^(−8 (h + 1) / n), n being the next power of two; where there are fewer heads, those of odd h come first. */
static const float *load_slopes(Loader *ld, int heads) {
    int n = 1;
    while (n < heads) n *= 2;
    float *slopes = load_floats(ld, heads);
    for (int h = 0; slopes && h < heads; h++) {
        const int odd = n == heads ? h + 1 : h < n / 2 ? 2 * (h + 1) : 2 * (h - n / 2) + 1;
        slopes[h] = (float)pow(2, -8.0 * odd / n);
    }
    return slopes;
}

static Mpt load_fields(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"hidden_size", "d_model"}, {"num_attention_heads", "n_heads"},
        {"num_hidden_layers", "n_layers"}, {"max_position_embeddings", "max_seq_len"}, {0}};
    load_field_names(ld, fields);
    Mpt m = {
        .d = family_sizes(ld, spec,
            &(Sizes){
                .intermediate_size = SIZE_OWN, .positions = 2048, .eps = 1e-5, .eps_field = "layer_norm_epsilon"})};
    m.d.intermediate_size = m.d.hidden * load_int_or(ld, "expansion_ratio", 4);
    load_expect_bool(ld, "no_bias", true);
    load_require(ld, !load_has_field(ld, "logit_scale"), "logit_scale is not supported");
    load_ignore(ld, "resid_pdrop", "emb_pdrop", "learned_pos_emb", "init_device", "verbose", "embedding_fraction",
        "norm_type", "init_config", "tokenizer_name", NULL);
    const LoadPlace place = load_place(ld);
    if (load_has_field(ld, "attn_config")) {
        load_enter(ld, "attn_config", "");
        load_expect_text(ld, "attn_type", "multihead_attention");
        load_expect_bool(ld, "alibi", true);
        load_expect_bool(ld, "prefix_lm", false);
        load_expect_bool(ld, "qk_ln", false);
        load_expect_bool(ld, "attn_uses_sequence_id", false);
        load_ignore(ld, "attn_pdrop", "attn_impl", "model_type", NULL);
        m.scale = load_number_or(ld, "softmax_scale", 0);
        m.clip = load_number_or(ld, "clip_qkv", 0);
        load_require(ld, load_number_or(ld, "alibi_bias_max", 8) == 8, "alibi_bias_max must be 8");
        load_return(ld, &place);
    }
    m.slopes = load_slopes(ld, m.d.heads);
    return m;
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"model.embed_tokens", "transformer.wte"}, {"model.norm", "transformer.norm_f"},
        {"model.layers", "transformer.blocks"}, {0}};
    static const NormNames norms = {load_layer_norm, .attention_input = "norm_1", .ffn_input = "norm_2"};
    load_module_names(ld, names);
    const Mpt m = load_fields(ld, spec);
    const Dims *d = &m.d;
    family_ends_as(ld, spec, d, "model.embed_tokens", "model.norm", load_layer_norm,
        load_bool_or(ld, "tie_word_embeddings", true));
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        Component attention = {.kind = COMPONENT_ATTENTION,
            .attention = family_fused_attention(ld, d, "attn.Wqkv", "attn.out_proj", NULL, false, false)};
        attention.attention.op.slopes = m.slopes;
        attention.attention.clip = m.clip;
        if (m.scale > 0) attention.attention.op.scale = m.scale;
        const Component mlp = family_mlp(
            ld, "ffn.up_proj", "ffn.down_proj", d->hidden, d->intermediate_size, (Activation){.kind = ACT_GELU}, false);
        family_block(ld, spec, i, &(Block){.dims = d, .norms = &norms, .attention = &attention, .ffn = &mlp});
    }
}

const Family mpt_family = {.load = load, .gguf = &mpt_gguf};
