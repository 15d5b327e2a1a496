/* DeepSeek-V2 and V3 (R1, Kimi-K2, the text model of Kimi-K2.5): MLA, MoE blocks after the first layers. V2 uses the
 * softmax over all experts, V3 sigmoids with a bias for the choice. Reference: mlx_lm/models/deepseek_v2.py,
 * deepseek_v3.py, kimi_k25.py. */
#include "family/mla.h"

static void load_v2(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec, 128);
    MoeComponent *moe = &s.moe.moe;
    moe->scale = load_positive_or(ld, "routed_scaling_factor", 1);
    if (load_text_is(ld, "topk_method", "group_limited_greedy")) {
        moe->groups = load_int(ld, "n_group");
        moe->topk_group = load_int(ld, "topk_group");
        moe->group_best = true;
    }
    load_expect_text(ld, "scoring_func", "softmax");
    load_expect_bool(ld, "norm_topk_prob", false);
    load_ignore(ld, "n_group", "topk_group", NULL);
    mla_load_blocks(ld, spec, &s);
}

static void load_v3(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec, 128);
    s.moe.names = moe_deepseek;
    family_moe_sigmoid(ld, &s.moe);
    load_expect_text(ld, "scoring_func", "sigmoid");
    mla_load_blocks(ld, spec, &s);
}

static void load_kimi_k25(Loader *ld, Spec *spec) {
    load_text_part(ld);
    load_v3(ld, spec);
}

/* Older files have the matrices of the heads in one. */
static const GgufName names[] = {
    {"blk.*.attn_q", "model.layers.*.self_attn.q_proj", 0},
    {"blk.*.attn_q_a", "model.layers.*.self_attn.q_a_proj", 0},
    {"blk.*.attn_q_b", "model.layers.*.self_attn.q_b_proj", 0},
    {"blk.*.attn_q_a_norm", "model.layers.*.self_attn.q_a_layernorm", 0},
    {"blk.*.attn_kv_a_mqa", "model.layers.*.self_attn.kv_a_proj_with_mqa", 0},
    {"blk.*.attn_kv_a_norm", "model.layers.*.self_attn.kv_a_layernorm", 0},
    {"blk.*.attn_kv_b", "model.layers.*.self_attn.kv_b_proj", 0},
    {"blk.*.attn_k_b", "model.layers.*.self_attn.embed_q", 0},
    {"blk.*.attn_v_b", "model.layers.*.self_attn.unembed_out", 0},
    {"blk.*.exp_probs_b", "model.layers.*.mlp.gate.e_score_correction_bias", GGUF_NAMED},
    {0},
};

static double plain_dims(const GgufSizes *sizes) { return (double)sizes->plain_dims; }

static const GgufField fields[] = {
    {"q_lora_rank", .key = ".attention.q_lora_rank", .optional = true},
    {"kv_lora_rank", .key = ".attention.kv_lora_rank"},
    {"qk_rope_head_dim", .key = ".rope.dimension_count"},
    {"qk_nope_head_dim", .key = ".attention.key_length_mla", .compute = plain_dims},
    {"v_head_dim", .key = ".attention.value_length_mla", .or_key = ".attention.value_length"},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_kv_a_mqa.bias"},
    {"n_routed_experts", .key = ".expert_count"},
    {"n_shared_experts", .key = ".expert_shared_count", .optional = true},
    {"first_k_dense_replace", .key = ".leading_dense_block_count", .optional = true},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .key = ".expert_weights_norm", .absent = 0},
    {"routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {"topk_group", .key = ".expert_group_used_count", .optional = true},
    {0},
};

/* Models of V2 that choose among groups are refused: what a group is worth, the file does not say. */
static const GgufField fields_v2[] = {
    {"scoring_func", GGUF_FIELD_TEXT, .text = "softmax", .key = ".expert_gating_func", .absent = 1},
    {"topk_method", GGUF_FIELD_TEXT, .text = "greedy", .key = ".expert_group_count", .absent = 1},
    {0},
};

static const GgufField fields_v3[] = {
    {"scoring_func", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"n_group", .key = ".expert_group_count", .optional = true},
    {0},
};

const Family deepseek_v2_family = {
    .load = load_v2,
    .gguf = &(const GgufModel){.architecture = "deepseek2",
        .latent = true,
        .class_name = "DeepseekV2ForCausalLM",
        .names = {gguf_ends, gguf_norms, gguf_glu, gguf_experts, gguf_shared, names},
        .fields = {gguf_sizes, gguf_rms, gguf_moe, fields, fields_v2}},
};

const Family kimi_k25_family = {.load = load_kimi_k25};

const Family deepseek_v3_family = {
    .load = load_v3,
    .gguf = &(const GgufModel){.architecture = "deepseek2",
        .with_key = ".expert_gating_func",
        .with_value = 2,
        .latent = true,
        .class_name = "DeepseekV3ForCausalLM",
        .names = {gguf_ends, gguf_norms, gguf_glu, gguf_experts, gguf_shared, names},
        .fields = {gguf_sizes, gguf_rms, gguf_moe, fields, fields_v3}},
};
