/* MiniMax-M3, text: MiniMax-M2's experts with a shared one and clamped SwiGLU, norms of single heads, all norms stored
 * minus one. In most layers an indexer chooses blocks of keys; as long as a context fits the blocks that it may choose
 * it chooses all, and longer contexts are refused. References: mlx_lm/models/minimax_m3_vl.py,
 * transformers/models/minimax_m3_vl. */
#include "family/family.h"

static const MoeNames names = {
    "block_sparse_moe", "gate", "switch_mlp", "w1", "w3", "w2", "shared_experts", .bias = "e_score_correction_bias"};

/* Tokens of all blocks that a row may choose; 0: there is no indexer. */
static int load_indexer(Loader *ld) {
    const LoadPlace here = load_place(ld);
    int size = load_count_or(ld, "index_block_size", 0), count = load_count_or(ld, "index_topk_blocks", 0);
    if (load_has_field(ld, "sparse_attention_config")) {
        load_enter(ld, "sparse_attention_config", "");
        size = load_count_or(ld, "sparse_block_size", size);
        count = load_count_or(ld, "sparse_topk_blocks", count);
        load_ignore(ld, "sparse_num_index_heads", "sparse_index_dim", "sparse_local_block", "sparse_attention_freq",
            "sparse_init_block", "sparse_score_type", "sparse_disable_index_value", "use_sparse_attention", NULL);
        load_return(ld, &here);
    }
    load_ignore(
        ld, "index_n_heads", "index_head_dim", "index_local_blocks", "sparse_attention_freq", "layer_types", NULL);
    load_skip(ld, ".self_attn.index_");
    return size && count <= INT32_MAX / size ? size * count : 0;
}

static Moe load_moe(Loader *ld, const Dims *d) {
    Moe moe = family_moe_open(ld, &names, d->hidden, d->intermediate_size, load_int_or(ld, "num_local_experts", 128),
        load_int_or(ld, "num_experts_per_tok", 4));
    const float alpha = load_positive_or(ld, "swiglu_alpha", 1.702), limit = load_positive_or(ld, "swiglu_limit", 7);
    load_require(ld, alpha == 1.702f && limit == 7, "swiglu_alpha must be 1.702, and swiglu_limit 7");
    moe.moe.activation = (Activation){ACT_SILU_CLAMPED, .a = alpha, .b = limit};
    moe.moe.score = ROUTE_SIGMOID;
    moe.moe.norm_topk_prob = true;
    moe.moe.epsilon = 1e-20f;
    moe.moe.scale = load_positive_or(ld, "routed_scaling_factor", 2);
    moe.shared = load_int_or(ld, "shared_intermediate_size", 3072);
    load_expect_text(ld, "scoring_func", "sigmoid");
    load_expect_bool(ld, "use_routing_bias", true);
    return moe;
}

/* mlp_layer_types or moe_layer_freq; neither: all layers have experts. */
static bool has_experts(Loader *ld, const Json *types, const Json *flags, int i) {
    if (types) return family_kind(ld, "mlp_layer_types", types, i, "sparse", "dense");
    return !flags || family_flag(ld, "moe_layer_freq", flags, i);
}

static void load(Loader *ld, Spec *spec) {
    load_text_part(ld);
    const Dims d = family_dims(ld, spec);
    const bool qk_norm = load_bool_or(ld, "use_qk_norm", true);
    const NormNames norms = {load_bool_or(ld, "use_gemma_norm", true) ? load_rms_plus_one : load_rms,
        .attention_input = "input_layernorm", .ffn_input = "post_attention_layernorm"};
    const Json *types = load_list(ld, "mlp_layer_types", spec->layer_count),
               *flags = load_list(ld, "moe_layer_freq", spec->layer_count);
    const int dense_size = load_int_or(ld, "dense_intermediate_size", 12288), most = load_indexer(ld);
    const int rotary = load_int_or(ld, "rotary_dim", load_rotary_dims(ld, d.head_dim, 0.5));
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .dims = rotary, .theta = 5e6});
    const Moe moe = load_moe(ld, &d);
    load_require(ld, !most || load_context(ld) <= most,
        "contexts of more than %d tokens need the sparse indexer, which is not computed", most);
    if (most && spec->positions > most) spec->positions = most;
    load_ignore(ld, "hidden_act", "qk_norm_type", "attention_output_gate", "num_mtp_modules", "use_mtp",
        "mtp_transformer_layers", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", NULL);
    load_scope(ld, "%s", "");
    spec->embedding = load_linear(ld, "model.embed_tokens", spec->vocab, d.hidden, false);
    spec->final_norm = norms.load(ld, "model.norm", d.hidden, d.eps);
    family_head(ld, spec, &d, load_bool_or(ld, "tie_word_embeddings", false));
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool experts = has_experts(ld, types, flags, i);
        family_layer(ld, spec, i);
        Component glu = {.kind = COMPONENT_GLU};
        if (!experts) glu.glu = family_glu(ld, "mlp", d.hidden, dense_size, moe.moe.activation, false);
        family_block(ld, spec, i,
            &(Block){.dims = &d,
                .norms = &norms,
                .rope = rope,
                .q_norm = qk_norm ? "q_norm" : NULL,
                .k_norm = qk_norm ? "k_norm" : NULL,
                .ffn = experts ? NULL : &glu,
                .moe = experts ? &moe : NULL});
    }
}

const Family minimax_m3_family = {.load = load};
