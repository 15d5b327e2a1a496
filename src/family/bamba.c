/* Bamba: Mamba-2, and partly rotated attention in the layers that attn_layer_indices names; a gated network in each.
 * Reference: transformers/models/bamba. */
#include "family/gguf/models.h"
#include "family/granite.h"

static void load(Loader *ld, Spec *spec) {
    static const NormNames norms = {load_rms, .attention_input = "input_layernorm", .ffn_input = "pre_ff_layernorm"};
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5});
    const bool bias = load_bool_or(ld, "attention_bias", false), mlp_bias = load_bool_or(ld, "mlp_bias", false);
    const Json *attention = load_list(ld, "attn_layer_indices", -1);
    const Json *types = load_list(ld, "layer_types", spec->layer_count); /* files made from GGUF have it */
    const Mamba2 mamba = granite_mamba2(ld, &d);
    const Rope *rope = load_rope(
        ld, &(RopeOptions){.head_dim = d.head_dim, .dims = load_rotary_dims(ld, d.head_dim, 0.5), .theta = 10000});
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "attn_rotary_emb", "mamba_chunk_size", "num_logits_to_keep", "z_loss_coefficient",
        "use_mamba_kernels", NULL);
    family_ends_named(ld, spec, &d, "model.embed_tokens", "model.final_layernorm");
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const bool attends = types ? !family_is_recurrent(ld, "layer_types", types, i, "mamba", "attention")
                                   : family_listed(attention, i);
        const Component mixer = attends ? (Component){.kind = COMPONENT_ATTENTION,
                                              .attention = family_attention(ld, &d, "o_proj", rope, bias, bias)}
                                        : family_mamba2(ld, "mamba", &mamba);
        const Component ffn = {.kind = COMPONENT_GLU,
            .glu = family_glu(
                ld, "feed_forward", d.hidden, d.intermediate_size, (Activation){.kind = ACT_SILU}, mlp_bias)};
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &mixer, .ffn = &ffn});
    }
}

const Family bamba_family = {.load = load, .gguf = &bamba_gguf};
