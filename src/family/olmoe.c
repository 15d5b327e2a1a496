/* OLMoE: norms over the whole of q and of k; every layer's feed-forward part is an MoE block. FlexOlmo: the same with
 * OLMo 2's norms, which are behind both parts. References: mlx_lm/models/olmoe.py, transformers/models/flex_olmo. */
#include "family/family.h"
#include "family/gguf/models.h"

static void load_blocks(Loader *ld, Spec *spec, const NormNames *norms, double eps, double theta) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = eps});
    const bool bias = load_bool_or(ld, "attention_bias", false);
    Moe moe = family_moe_open(ld, &moe_usual, d.hidden, d.intermediate_size, load_int(ld, "num_experts"),
        load_int(ld, "num_experts_per_tok"));
    moe.moe.norm_topk_prob = load_bool_or(ld, "norm_topk_prob", false);
    moe.bias = load_bool_or(ld, "mlp_bias", false);
    const Rope *rope = load_rope(ld,
        &(RopeOptions){
            .head_dim = d.head_dim, .theta = theta, .interleaved = load_bool_or(ld, "rope_traditional", false)});
    load_expect_text(ld, "hidden_act", "silu");
    load_require(
        ld, load_number_or(ld, "clip_qkv", 0) == 0, "clip_qkv, which would be behind the norms, is not supported");
    load_ignore(ld, "output_router_logits", "router_aux_loss_coef", NULL);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++)
        family_block(ld, spec, i,
            &(Block){.dims = &d,
                .norms = norms,
                .rope = rope,
                .bias = bias,
                .out_bias = bias,
                .q_norm = "q_norm",
                .k_norm = "k_norm",
                .norm_full = true,
                .moe = &moe});
}

static void load(Loader *ld, Spec *spec) { load_blocks(ld, spec, &norms_usual, 1e-5, 10000); }

static void load_flex(Loader *ld, Spec *spec) {
    static const NormNames norms = {
        load_rms, .attention_output = "post_attention_layernorm", .ffn_output = "post_feedforward_layernorm"};
    load_blocks(ld, spec, &norms, 1e-6, 500000);
}

const Family flex_olmo_family = {.load = load_flex};
const Family olmoe_family = {.load = load, .gguf = &olmoe_gguf};
