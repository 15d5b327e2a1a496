/* AFMoE (Trinity): sandwich norms, norms on q and k, gated attention; RoPE only in layers with a window; experts chosen
 * by biased scores after the first layers. Reference: mlx_lm/models/afmoe.py. */
#include "family/family.h"
#include "family/gguf/models.h"

#include <math.h>

static const MoeNames moe_names = {
    "mlp", "router.gate", "experts", "gate_proj", "up_proj", "down_proj", "shared_experts", .bias = "expert_bias"};

static Moe load_moe(Loader *ld, const Dims *d) {
    Moe moe = family_moe_open(ld, &moe_names, d->hidden, load_int(ld, "moe_intermediate_size"),
        load_int(ld, "num_experts"), load_int(ld, "num_experts_per_tok"));
    const int groups = load_int_or(ld, "n_group", 1), topk_group = load_int_or(ld, "topk_group", 1);
    const bool softmax = load_text_is(ld, "score_func", "softmax");
    if (!softmax) load_expect_text(ld, "score_func", "sigmoid");
    moe.moe.score = softmax ? ROUTE_SOFTMAX : ROUTE_SIGMOID;
    moe.moe.groups = groups > 1 ? groups : 0;
    moe.moe.topk_group = groups > 1 ? topk_group : 0;
    moe.moe.norm_topk_prob = load_bool_or(ld, "route_norm", true) && moe.moe.top_k > 1;
    moe.moe.epsilon = 1e-20f;
    moe.moe.scale = load_positive_or(ld, "route_scale", 2.826);
    moe.shared = family_moe_shared(ld, moe.intermediate_size, load_count_or(ld, "num_shared_experts", 1));
    return moe;
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5});
    const Moe moe = load_moe(ld, &d);
    const int dense = load_count_or(ld, "num_dense_layers", 2);
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    const Windows windows = {
        .types = load_list(ld, "layer_types", spec->layer_count), .width = load_int_or(ld, "sliding_window", 2048)};
    const bool scaled = load_bool_or(ld, "mup_enabled", true);
    load_require(ld, windows.types, "layer_types is missing");
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "attention_bias", false);
    load_ignore(ld, "global_attn_every_n_layers", "load_balance_coeff", "num_expert_groups", "num_limited_groups",
        "use_grouped_mm", "output_router_logits", NULL);
    family_ends(ld, spec, &d);
    if (scaled) spec->embedding_scale = sqrtf((float)d.hidden);
    load_layers(ld, spec);
    const NormNames norms = {
        load_rms, "input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"};
    for (int i = 0; windows.types && i < spec->layer_count; i++) {
        const int window = family_window(ld, &windows, i);
        Layer *layer = family_block(ld, spec, i,
            &(Block){.dims = &d,
                .norms = &norms,
                .rope = window ? rope : NULL,
                .window = window,
                .q_norm = "q_norm",
                .k_norm = "k_norm",
                .moe = i >= dense ? &moe : NULL});
        layer->components[0].attention.gate =
            load_linear(ld, "self_attn.gate_proj", (int64_t)d.heads * d.head_dim, d.hidden, false);
    }
}

const Family afmoe_family = {.load = load, .gguf = &afmoe_gguf};
