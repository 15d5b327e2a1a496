/* nanochat: norms without weights, also behind the embedding and, after the rotation, of q and k; heads turn backwards;
 * squared ReLU. References: mlx_lm/models/nanochat.py; transformers/models/nanochat, whose files have other names. */
#include "family/family.h"

static const Norm *load_plain(Loader *ld, const char *name, int64_t width, float eps) {
    return load_rms(ld, NULL, width, eps);
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName mlx[] = {{"model.layers", "transformer.h"}, {"model.embed_tokens", "transformer.wte"},
        {"self_attn.q_proj", "attn.c_q"}, {"self_attn.k_proj", "attn.c_k"}, {"self_attn.v_proj", "attn.c_v"},
        {"self_attn.o_proj", "attn.c_proj"}, {"mlp.fc1", "mlp.c_fc"}, {"mlp.fc2", "mlp.c_proj"}, {0}};
    static const NormNames norms = {load_plain, .attention_input = "", .ffn_input = ""};
    const bool published = load_has(ld, "model.embed_tokens.weight");
    Dims d = {.hidden = load_int(ld, "hidden_size"),
        .heads = load_int(ld, "num_attention_heads"),
        .head_dim = load_int_or(ld, "head_dim", 0),
        .intermediate_size = load_int(ld, "intermediate_size"),
        .eps = load_positive_or(ld, "rms_norm_eps", published ? 1e-6 : 1e-5)};
    d.kv_heads = load_int_or(ld, "num_key_value_heads", d.heads);
    family_check(ld, &d);
    spec->hidden = d.hidden;
    spec->layer_count = load_int(ld, "num_hidden_layers");
    spec->vocab = load_int(ld, "vocab_size");
    spec->positions = load_int_or(ld, "max_position_embeddings", 2048);
    spec->logit_softcap =
        load_null(ld, "final_logit_softcapping") ? 0 : load_positive_or(ld, "final_logit_softcapping", 15);
    const bool bias = load_bool_or(ld, "attention_bias", false);
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000, .backwards = true});
    load_expect_text(ld, "hidden_act", "relu2");
    if (!published) load_module_names(ld, mlx);
    load_scope(ld, "%s", "");
    spec->embedding = load_linear(ld, "model.embed_tokens", spec->vocab, d.hidden, false);
    spec->embedding_norm = spec->final_norm = load_plain(ld, NULL, d.hidden, d.eps);
    family_head(ld, spec, &d, load_bool_or(ld, "tie_word_embeddings", false));
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        Component attention = {
            .kind = COMPONENT_ATTENTION, .attention = family_attention(ld, &d, "o_proj", rope, bias, bias)};
        attention.attention.op.q_norm = attention.attention.op.k_norm = load_plain(ld, NULL, d.head_dim, d.eps);
        attention.attention.op.norm_last = true;
        const Component mlp = {.kind = COMPONENT_MLP,
            .mlp = {.up = load_linear(ld, "mlp.fc1", d.intermediate_size, d.hidden, false),
                .down = load_linear(ld, "mlp.fc2", d.hidden, d.intermediate_size, false),
                .activation = {.kind = ACT_RELU2}}};
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention, .ffn = &mlp});
    }
}

const Family nanochat_family = {.load = load};
