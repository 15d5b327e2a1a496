/* Mellum 2: Qwen3-MoE with windows in some layers and a rotary embedding for each kind of them; files made from GGUF
 * have swa_rope_theta for those with a window. References: mlx_lm/models/mellum.py, transformers/models/mellum. */
#include "family/family.h"
#include "family/gguf/models.h"

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-6});
    const bool bias = load_bool_or(ld, "attention_bias", false);
    Moe moe = family_moe_fields(ld, &moe_usual, d.hidden, "num_experts");
    moe.moe.norm_topk_prob = load_bool_or(ld, "norm_topk_prob", true);
    const Windows windows = {
        .types = load_list(ld, "layer_types", spec->layer_count), .width = load_int_or(ld, "sliding_window", 0)};
    const Json *kinds = load_list(ld, "mlp_layer_types", spec->layer_count); /* NULL: all layers have experts */
    const Rope *full = load_rope(
                   ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 500000, .layer_type = "full_attention"}),
               *sliding = load_rope(ld,
                   &(RopeOptions){.head_dim = d.head_dim,
                       .theta_field = "swa_rope_theta",
                       .theta = 500000,
                       .unscaled = load_has_field(ld, "swa_rope_theta"),
                       .layer_type = "sliding_attention"});
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "output_router_logits", "router_aux_loss_coef", NULL);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const int window = windows.types ? family_window(ld, &windows, i) : 0;
        const bool experts = !kinds || family_kind(ld, "mlp_layer_types", kinds, i, "sparse", "dense");
        family_block(ld, spec, i,
            &(Block){.dims = &d,
                .rope = window ? sliding : full,
                .window = window,
                .bias = bias,
                .out_bias = bias,
                .q_norm = "q_norm",
                .k_norm = "k_norm",
                .moe = experts ? &moe : NULL});
    }
}

const Family mellum_family = {.load = load, .gguf = &mellum_gguf};
