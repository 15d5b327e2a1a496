/* Spark 2.5: windows in three of four layers, each kind of layer with its own, partly rotating embedding; q, k and v in
 * one matrix, a gate for each head, GELU. Reference: mlx_lm/models/spark2_5.py. */
#include "family/family.h"
#include "family/gguf/models.h"

/* The rotary embedding of a kind of layers. */
static const Rope *load_kind(Loader *ld, int head_dim, const char *kind) {
    const LoadPlace here = load_place(ld);
    load_enter(ld, "rope_parameters", "");
    load_enter(ld, kind, "");
    const float part = load_positive_or(ld, "partial_rotary_factor", 1);
    load_return(ld, &here);
    load_require(ld, part <= 1, "partial_rotary_factor is %g, must be at most 1", (double)part);
    const int dims = part <= 1 ? (int)((float)head_dim * part) : head_dim;
    return load_rope(
        ld, &(RopeOptions){.head_dim = head_dim, .dims = dims > 0 ? dims : 1, .theta = 10000, .layer_type = kind});
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.positions = 8192, .eps = 1e-6});
    const bool bias = load_bool_or(ld, "attention_bias", false), mlp_bias = load_bool_or(ld, "mlp_bias", false);
    const Windows windows = {.types = load_list(ld, "layer_types", spec->layer_count),
        .width = load_int(ld, "sliding_window"),
        .full_every = 4};
    const Rope *full = load_kind(ld, d.head_dim, "full_attention"),
               *sliding = load_kind(ld, d.head_dim, "sliding_attention");
    load_expect_text(ld, "hidden_act", "gelu");
    load_expect_text(ld, "gate_attn_act_mode", "sigmoid");
    load_expect_bool(ld, "headwise_attn_output_gate", true);
    const bool renamed = load_has(ld, "model.embed_tokens.weight");
    family_ends_named(ld, spec, &d, renamed ? "model.embed_tokens" : "model.embedding", "model.norm");
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const int window = family_window(ld, &windows, i);
        family_layer(ld, spec, i);
        Component attention = {.kind = COMPONENT_ATTENTION,
            .attention = family_fused_attention(
                ld, &d, "self_attn.q_k_v_proj", "self_attn.out_proj", window ? sliding : full, bias, bias)};
        attention.attention.op.window = window;
        attention.attention.head_gate = true;
        attention.attention.gate = load_linear(ld, "self_attn.g_proj", d.heads, d.hidden, bias);
        family_block(ld, spec, i,
            &(Block){.dims = &d, .attention = &attention, .activation = {.kind = ACT_GELU}, .mlp_bias = mlp_bias});
    }
}

const Family spark2_5_family = {.load = load, .gguf = &spark2_5_gguf};
