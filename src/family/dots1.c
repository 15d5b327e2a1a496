/* dots.llm1: norms on q and k, DeepSeek-V3's MoE blocks after the first layers.
 * References: mlx_lm/models/dots1.py; the biases and the windows, which it lacks: transformers/models/dots1. */
#include "family/family.h"
#include "family/gguf/models.h"

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-6});
    const int dense = load_count_or(ld, "first_k_dense_replace", 0);
    const bool mlp_bias = load_bool_or(ld, "mlp_bias", false);
    Moe moe = family_moe_open(ld, &moe_deepseek, d.hidden, load_int(ld, "moe_intermediate_size"),
        load_int(ld, "n_routed_experts"), load_int(ld, "num_experts_per_tok"));
    family_moe_sigmoid(ld, &moe);
    moe.names.stack = "experts";
    moe.shared = family_moe_shared(ld, moe.intermediate_size, load_count_or(ld, "n_shared_experts", 0));
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    const Windows windows = {.types = load_list(ld, "layer_types", spec->layer_count),
        .width = load_null(ld, "sliding_window") ? 0 : load_int_or(ld, "sliding_window", 4096),
        .first = load_count_or(ld, "max_window_layers", 62)};
    load_expect_text(ld, "hidden_act", "silu");
    const bool bias = load_bool_or(ld, "attention_bias", false);
    load_require(ld, !mlp_bias, "mlp_bias is true; experts have none");
    load_ignore(ld, "scoring_func", "use_sliding_window", "output_router_logits", NULL);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++)
        family_block(ld, spec, i,
            &(Block){.dims = &d,
                .rope = rope,
                .window = family_window(ld, &windows, i),
                .bias = bias,
                .out_bias = bias,
                .q_norm = "q_norm",
                .k_norm = "k_norm",
                .moe = i >= dense ? &moe : NULL,
                .mlp_bias = mlp_bias});
}

const Family dots1_family = {.load = load, .gguf = &dots1_gguf};
