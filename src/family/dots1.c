/* dots.llm1: norms on q and k, DeepSeek-V3's MoE blocks after the first layers.
 * Reference: mlx_lm/models/dots1.py. */
#include "family/family.h"

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_dims(ld, spec);
    const int dense = load_count_or(ld, "first_k_dense_replace", 0);
    const bool mlp_bias = load_bool_or(ld, "mlp_bias", false);
    Moe moe = family_moe_open(ld, &moe_deepseek, d.hidden, load_int(ld, "moe_intermediate_size"),
        load_int(ld, "n_routed_experts"), load_int(ld, "num_experts_per_tok"));
    family_moe_sigmoid(ld, &moe);
    moe.names.stack = "experts";
    moe.shared = family_moe_shared(ld, moe.intermediate_size, load_count_or(ld, "n_shared_experts", 0));
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    const Windows windows = {.types = load_list(ld, "layer_types", spec->layer_count)};
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "attention_bias", false);
    load_require(ld, !mlp_bias, "mlp_bias is true; experts have none");
    load_ignore(ld, "scoring_func", "max_window_layers", "sliding_window", "use_sliding_window", NULL);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++)
        family_block(ld, spec, i,
            &(Block){.dims = &d,
                .rope = rope,
                .window = family_window(ld, &windows, i),
                .q_norm = "q_norm",
                .k_norm = "k_norm",
                .moe = i >= dense ? &moe : NULL,
                .mlp_bias = mlp_bias});
}

static const GgufName names[] = {
    {"blk.*.ffn_gate_inp", "model.layers.*.mlp.gate", 0},
    {"blk.*.ffn_gate_exps", "model.layers.*.mlp.experts.gate_proj", 0},
    {"blk.*.ffn_up_exps", "model.layers.*.mlp.experts.up_proj", 0},
    {"blk.*.ffn_down_exps", "model.layers.*.mlp.experts.down_proj", 0},
    {"blk.*.exp_probs_b", "model.layers.*.mlp.gate.e_score_correction_bias", GGUF_NAMED},
    {0},
};

static const GgufField fields[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"n_routed_experts", .key = ".expert_count"},
    {"n_shared_experts", .key = ".expert_shared_count", .optional = true},
    {"first_k_dense_replace", .key = ".leading_dense_block_count", .optional = true},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .key = ".expert_weights_norm", .absent = 0},
    {"routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {0},
};

const Family dots1_family = {
    .load = load,
    .gguf = &(const GgufModel){.architecture = "dots1",
        .class_name = "Dots1ForCausalLM",
        .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu, gguf_head_norms, gguf_shared, names},
        .fields = {gguf_sizes, gguf_rms, gguf_moe, fields}},
};
