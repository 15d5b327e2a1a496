/* DeepSeekMoE (deepseek): a llama with experts and shared ones behind the first layers, used with the softmax over all.
 * References: mlx_lm/models/deepseek.py; the weights' division by their sum, which mlx-lm leaves out: the publisher's
 * modeling_deepseek.py. */
#include "family/family.h"
#include "family/gguf/models.h"

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-6});
    const bool bias = load_bool_or(ld, "attention_bias", false);
    const bool experts = load_has_field(ld, "n_routed_experts");
    const int dense = load_count_or(ld, "first_k_dense_replace", 0), every = load_int_or(ld, "moe_layer_freq", 1);
    Moe moe = {0};
    if (experts) {
        moe = family_moe_fields(ld, &moe_usual, d.hidden, "n_routed_experts");
        moe.moe.norm_topk_prob = load_bool_or(ld, "norm_topk_prob", false) && moe.moe.top_k > 1;
        moe.shared = family_moe_shared(ld, moe.intermediate_size, load_count_or(ld, "n_shared_experts", 0));
    }
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_text(ld, "scoring_func", "softmax");
    load_ignore(ld, "aux_loss_alpha", "seq_aux", "pretraining_tp", NULL);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++)
        family_block(ld, spec, i,
            &(Block){.dims = &d,
                .rope = rope,
                .bias = bias,
                .out_bias = bias,
                .moe = experts && i >= dense && i % every == 0 ? &moe : NULL});
}

const Family deepseek_family = {.load = load, .gguf = &deepseek_gguf};
