/* Hy3 (Tencent): norms on the heads of q and k, experts chosen by sigmoids with a bias beside a shared one, one dense
 * layer or more. Names are the publisher's or those that transformers writes. Reference: transformers/models/hy_v3. */
#include "family/family.h"
#include "family/gguf/models.h"

static void load(Loader *ld, Spec *spec) {
    static const MoeNames published = {"mlp", "router.gate", "switch_mlp", "gate_proj", "up_proj", "down_proj",
                              "shared_mlp", .bias = "expert_bias"},
                          again = {"mlp", "gate", "switch_mlp", "gate_proj", "up_proj", "down_proj", "shared_experts",
                              .bias = "e_score_correction_bias"};
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5});
    const bool own_names = load_has_part(ld, ".mlp.router.gate."), bias = load_bool_or(ld, "attention_bias", false);
    Moe moe = family_moe_fields(ld, own_names ? &published : &again, d.hidden, "num_experts");
    moe.moe.score = ROUTE_SIGMOID;
    moe.moe.norm_topk_prob = load_bool_or(ld, "route_norm", true);
    moe.moe.epsilon = 1e-20f;
    moe.moe.scale = load_positive_or(ld, "router_scaling_factor", 2.826);
    moe.shared = family_moe_shared(ld, moe.intermediate_size, load_count_or(ld, "num_shared_experts", 1));
    const Json *kinds = load_list(ld, "mlp_layer_types", spec->layer_count);
    const int dense = load_count_or(ld, "first_k_dense_replace", 1);
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 11158840});
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "mlp_bias", false);
    load_expect_bool(ld, "qk_norm", true);
    load_ignore(ld, "enable_moe_fp32_combine", "enable_attention_fp32_softmax", "enable_lm_head_fp32",
        "moe_router_use_sigmoid", "moe_router_enable_expert_bias", "use_grouped_mm", "output_router_logits",
        "num_nextn_predict_layers", "expert_hidden_dim", NULL);
    load_skip(ld, "model.layers.%d.", spec->layer_count);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool experts = kinds ? family_kind(ld, "mlp_layer_types", kinds, i, "sparse", "dense") : i >= dense;
        family_block(ld, spec, i,
            &(Block){.dims = &d,
                .rope = rope,
                .bias = bias,
                .out_bias = bias,
                .q_norm = "q_norm",
                .k_norm = "k_norm",
                .moe = experts ? &moe : NULL});
    }
}

const Family hy_v3_family = {.load = load, .gguf = &hy_v3_gguf};
