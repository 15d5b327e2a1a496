/* ERNIE 4.5 MoE: neighbours rotate, experts in a range of layers, their weights always normalised.
 * Reference: mlx_lm/models/ernie4_5_moe.py; the bias for the choice, which it leaves out and Baidu's files have:
 * transformers/models/ernie4_5_moe. */
#include "family/family.h"
#include "family/gguf/models.h"

static bool has_experts(int layer, int first, int last, int every) {
    return layer >= first && layer <= last && (layer + 1) % every == 0;
}

/* −1 is the last layer. */
static int last_mixture(Loader *ld, int layers) {
    return load_is_int(ld, "moe_layer_end_index", -1) ? layers - 1
                                                      : load_count_or(ld, "moe_layer_end_index", layers - 1);
}

static RouteScore score_of(Loader *ld) {
    const bool sigmoid = load_text_is(ld, "moe_gate_act", "sigmoid");
    if (!sigmoid) load_expect_text(ld, "moe_gate_act", "softmax");
    return sigmoid ? ROUTE_SIGMOID : ROUTE_SOFTMAX;
}

/* The multi-token prediction head: a dense block, and the model's own norm behind it. Reference: FastDeploy's
 * ernie4_5_mtp.py (the publisher's). */
static void load_mtp_head(Loader *ld, Spec *spec, const Block *block) {
    static const MtpNames names = {"mtp_linear_proj.0", "mtp_emb_norm.0", "mtp_hidden_norm.0", .final_norm = NULL};
    load_scope(ld, "model.");
    Spec *mtp = family_mtp(ld, spec, &names, load_rms, block->dims->eps);
    if (!mtp) return;
    load_scope(ld, "model.mtp_block.0.");
    family_block_here(ld, mtp, mtp->layers, block);
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5});
    const bool bias = load_bool_or(ld, "use_bias", false);
    const int first = load_count_or(ld, "moe_layer_start_index", 0), every = load_int_or(ld, "moe_layer_interval", 1),
              last = last_mixture(ld, spec->layer_count);
    const int intermediate_size = load_count_or(ld, "moe_intermediate_size", 0);
    Moe moe = family_moe_open(ld, &moe_usual, d.hidden, intermediate_size ? intermediate_size : d.intermediate_size,
        load_int(ld, "moe_num_experts"), load_int_or(ld, "moe_k", 1));
    moe.moe.score = score_of(ld);
    moe.moe.norm_topk_prob = true;
    moe.moe.epsilon = 1e-20f; /* the usual bound is never met */
    load_require(ld, load_number_or(ld, "moe_norm_min", 1e-12) <= 1e-6, "moe_norm_min must be at most 1e-6");
    moe.shared = family_moe_shared(ld, moe.intermediate_size, load_count_or(ld, "moe_num_shared_experts", 0));
    moe.bias = bias;
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 500000, .interleaved = true});
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "moe_capacity", "moe_use_aux_free", "num_nextn_predict_layers", "output_router_logits",
        "router_aux_loss_coef", "moe_gate", NULL);
    load_skip(ld, "model.mtp_");
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        moe.names.bias =
            load_has(ld, "mlp.moe_statics.e_score_correction_bias") ? "moe_statics.e_score_correction_bias" : NULL;
        family_block(ld, spec, i,
            &(Block){.dims = &d,
                .rope = rope,
                .bias = bias,
                .out_bias = bias,
                .moe = has_experts(i, first, last, every) ? &moe : NULL,
                .mlp_bias = bias});
    }
    load_mtp_head(ld, spec, &(Block){.dims = &d, .rope = rope, .bias = bias, .out_bias = bias, .mlp_bias = bias});
}

const Family ernie4_5_moe_family = {.load = load, .gguf = &ernie4_5_moe_gguf};
