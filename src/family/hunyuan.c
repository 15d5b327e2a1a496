/* Hunyuan (A13B): norms of q and k after their rotation, which has a base of its own making; experts in every layer,
 * used with their parts of the softmax over all. Models whose layers share keys and values (use_cla) are refused.
 * Reference: transformers/models/hunyuan_v1_moe; mlx_lm/models/hunyuan.py, which does not divide the weights by their
 * sum. */
#include "family/family.h"
#include "family/gguf/models.h"

static const MoeNames names = {
    "mlp", "gate.wg", "switch_mlp", "gate_proj", "up_proj", "down_proj", "shared_mlp", .bias = NULL};

/* The weight of a single expert is divided by itself in v1 alone. */
static Moe load_moe(Loader *ld, const Dims *d, int experts, bool mixed, bool v1, int i) {
    const int inner = load_int_at(ld, "moe_intermediate_size", i, d->intermediate_size);
    const int used = load_int_at(ld, "moe_topk", i, 1), shared = load_int_at(ld, "num_shared_expert", i, 1);
    Moe moe = family_moe_open(ld, &names, d->hidden, inner, experts, used);
    moe.moe.norm_topk_prob = load_bool_or(ld, "norm_topk_prob", true) && (used > 1 || v1);
    if (mixed) moe.shared = family_moe_shared(ld, d->intermediate_size, shared);
    return moe;
}

/* v1: as transformers writes it (hunyuan_v1_moe), where fields that say what all these models have may be absent. */
static void load(Loader *ld, Spec *spec, bool v1) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5});
    const int experts = load_int_or(ld, "num_experts", 1);
    const bool bias = load_bool_or(ld, "attention_bias", false), norms = load_bool_or(ld, "use_qk_norm", v1);
    const bool mixed = load_bool_or(ld, "use_mixed_mlp_moe", v1);
    load_ignore(ld, "norm_topk_prob", NULL); /* it counts in models with experts */
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000, .alpha = true});
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "use_cla", false);
    load_expect_bool(ld, "mlp_bias", false);
    const bool tied = load_bool_or(ld, "tie_word_embeddings", !v1);
    load_ignore(ld, "cla_share_factor", "attention_head_dim", "norm_type", "position_embedding_xdrope",
        "use_rotary_pos_emb", "moe_layer_num_skipped", "moe_drop_tokens", "moe_random_routing_dropped_token",
        "output_router_logits", "router_aux_loss_coef", "capacity_factor", "group_limited_greedy", "n_group",
        "topk_group", "routed_scaling_factor", "im_start_id", "im_end_id", "text_start_id", "text_end_id", NULL);
    load_ignore(ld, "org_vocab_size", "mask_init_id", "image_token_id", "video_start_id", "video_end_id",
        "eod_token_id", "sep_token_id", "class_num", "pool_type", "add_classification_head", "num_media_embeds", NULL);
    family_ends_as(ld, spec, &d, "model.embed_tokens", "model.norm", load_rms, tied);
    load_layers(ld, spec);
    const char *q_norm = norms ? "query_layernorm" : NULL, *k_norm = norms ? "key_layernorm" : NULL;
    for (int i = 0; i < spec->layer_count; i++) {
        const Moe moe = experts > 1 ? load_moe(ld, &d, experts, mixed, v1, i) : (Moe){0};
        Layer *layer = family_block(ld, spec, i,
            &(Block){.dims = &d,
                .rope = rope,
                .bias = bias,
                .out_bias = bias,
                .q_norm = q_norm,
                .k_norm = k_norm,
                .moe = experts > 1 ? &moe : NULL});
        layer->components[0].attention.op.norm_last = true;
    }
}

static void load_hunyuan(Loader *ld, Spec *spec) { load(ld, spec, false); }
static void load_v1(Loader *ld, Spec *spec) { load(ld, spec, true); }

const Family hunyuan_family = {.load = load_hunyuan};
const Family hunyuan_v1_moe_family = {.load = load_v1, .gguf = &hunyuan_moe_gguf};
