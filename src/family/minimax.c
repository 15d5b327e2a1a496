/* MiniMax-M2: norms over the whole of q and of k, partly rotated heads, experts in every layer chosen by biased
 * sigmoids. Files of MiniMax-Text-01 may have the same model_type (minimax_text_01.c): they have layers with q, k and v
 * in one matrix. Reference: mlx_lm/models/minimax.py. */
#include "family/family.h"
#include "family/gguf/models.h"

static const MoeNames names = {
    "block_sparse_moe", "gate", "switch_mlp", "w1", "w3", "w2", NULL, .bias = "e_score_correction_bias"};

static void check_types(Loader *ld, const Json *types) {
    if (!types) return;
    for (JSON_EACH(type, types))
        load_require(ld, type->type == JSON_INTEGER && type->integer == 1, "attn_type_list must be all 1");
}

extern const Family minimax_text_01_family;

static bool is_text_01(Loader *ld) {
    bool found = false;
    for (int i = 0, layers = load_int(ld, "num_hidden_layers"); i < layers && !found; i++) {
        load_scope(ld, "model.layers.%d.", i);
        found = load_has(ld, "self_attn.qkv_proj.weight");
    }
    load_scope(ld, "%s", "");
    return found;
}

static void load(Loader *ld, Spec *spec) {
    if (is_text_01(ld)) {
        minimax_text_01_family.load(ld, spec);
        return;
    }
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-6});
    const bool norms = load_bool_or(ld, "use_qk_norm", true);
    const char *q_norm = norms ? "q_norm" : NULL, *k_norm = norms ? "k_norm" : NULL;
    Moe moe = family_moe_open(ld, &names, d.hidden, d.intermediate_size, load_int(ld, "num_local_experts"),
        load_int(ld, "num_experts_per_tok"));
    moe.moe.score = ROUTE_SIGMOID;
    moe.moe.norm_topk_prob = true;
    moe.moe.epsilon = 1e-20f;
    const Rope *rope = load_rope(ld,
        &(RopeOptions){.head_dim = d.head_dim,
            .dims = load_int_or(ld, "rotary_dim", load_rotary_dims(ld, d.head_dim, 1)),
            .theta = 5e6});
    check_types(ld, load_list(ld, "attn_type_list", spec->layer_count));
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_text(ld, "scoring_func", "sigmoid");
    load_expect_text(ld, "qk_norm_type", "per_layer");
    load_expect_bool(ld, "use_routing_bias", true);
    load_ignore(ld, "layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta",
        "mlp_intermediate_size", "shared_moe_mode", "shared_intermediate_size", "use_mtp", "num_mtp_modules",
        "mtp_transformer_layers", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", NULL);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++)
        family_block(ld, spec, i,
            &(Block){.dims = &d, .rope = rope, .q_norm = q_norm, .k_norm = k_norm, .norm_full = norms, .moe = &moe});
}

const Family minimax_family = {.load = load, .gguf = &minimax_gguf};
