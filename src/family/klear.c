/* Klear: norms on q and k, experts chosen by biased sigmoids; what they and the shared expert count for is a softmax
 * over two numbers. Reference: mlx_lm/models/Klear.py. */
#include "family/family.h"

static const MoeNames names = {"mlp", "gate", "experts", "gate_proj", "up_proj", "down_proj", "shared_experts",
    .bias = "expert_bias", .shared_gate = "coefficient"};

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_dims(ld, spec);
    const bool bias = load_bool_or(ld, "attention_bias", false);
    const int every = load_int_or(ld, "decoder_sparse_step", 1);
    const Json *dense = load_list(ld, "mlp_only_layers", -1);
    Moe moe = family_moe_fields(ld, &names, d.hidden, "num_experts");
    moe.moe.score = ROUTE_SIGMOID;
    moe.moe.norm_topk_prob = load_bool_or(ld, "norm_topk_prob", false);
    moe.moe.epsilon = 1e-20f;
    moe.shared_gate_rows = 2;
    moe.shared_gate_bias = true;
    moe.shared = family_moe_shared(ld, moe.intermediate_size, load_int(ld, "n_shared_experts"));
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "use_sliding_window", false);
    load_ignore(ld, "sliding_window", "max_window_layers", "output_router_logits", "router_aux_loss_coef", NULL);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool experts = (i + 1) % every == 0 && !family_listed(dense, i);
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

const Family klear_family = {.load = load};
