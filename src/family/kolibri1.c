/* Kolibri 1: sandwich norms, norms on q and k, windows in four of five layers, positions only in those; experts are
 * chosen by biased logits and weighed by the sigmoids of these. Reference: transformers/models/kolibri1. */
#include "family/family.h"

static void load(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"post_self_attn_layernorm", "post_attn_norm"},
        {"post_mlp_layernorm", "post_ffn_norm"}, {"mlp.gate.e_score_correction_bias", "moe.router.expert_bias"}, {0}};
    static const NormNames norms = {
        load_rms, "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"};
    load_module_names(ld, names);
    const Dims d = family_sizes(ld, spec, &(Sizes){.intermediate_size = SIZE_OWN, .head_dim = 128, .eps = 1e-6});
    Moe moe = family_moe_fields(ld, &moe_deepseek, d.hidden, "num_experts");
    moe.moe.score = ROUTE_TOP_SIGMOID;
    moe.moe.norm_topk_prob = load_bool_or(ld, "norm_topk_prob", false);
    moe.shared = load_int_or(ld, "shared_expert_intermediate_size", 512);
    const Windows windows = {.types = load_list(ld, "layer_types", spec->layer_count),
        .width = load_int_or(ld, "sliding_window", load_null(ld, "sliding_window") ? 0 : 513),
        .full_every = 5};
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "output_router_logits", "router_aux_loss_coef", NULL);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const int window = family_window(ld, &windows, i);
        family_block(ld, spec, i,
            &(Block){.dims = &d,
                .norms = &norms,
                .rope = window || !windows.width ? rope : NULL,
                .window = window,
                .q_norm = "q_norm",
                .k_norm = "k_norm",
                .moe = &moe});
    }
}

const Family kolibri1_family = {.load = load};
