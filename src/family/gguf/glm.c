/* GLM, and GLM-4.5 in GGUF files. */
#include "family/gguf/models.h"

/* ---- GLM-4 (0414) ---- */

static const GgufName glm4_glu[] = {
    {"blk.*.ffn_up", "model.layers.*.mlp.gate_up_proj", 0},
    {0},
};

static const GgufName glm4_names[] = {
    {"blk.*.post_attention_norm", "model.layers.*.post_self_attn_layernorm", 0},
    {"blk.*.post_ffw_norm", "model.layers.*.post_mlp_layernorm", 0},
    {0},
};

static const GgufField glm4_fields[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {0},
};

const GgufModel glm4_gguf = {.architecture = "glm4",
    .class_name = "Glm4ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, glm4_glu, glm4_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, glm4_fields}};

/* ---- GLM-4.5 ---- */

static const GgufName glm4_moe_names[] = {
    {"output_norm", "model.norm", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", 0},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", 0},
    {"blk.*.exp_probs_b", "model.layers.*.mlp.gate.e_score_correction_bias", GGUF_NAMED},
    {0},
};

static const GgufField glm4_moe_fields[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {"use_qk_norm", GGUF_FIELD_HAS, .key = "blk.0.attn_q_norm.weight"},
    {"n_routed_experts", .key = ".expert_count"},
    {"n_shared_experts", .key = ".expert_shared_count", .optional = true},
    {"first_k_dense_replace", .key = ".leading_dense_block_count", .optional = true},
    {"scoring_func", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .key = ".expert_weights_norm", .absent = 0},
    {"routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {0},
};

const GgufModel glm4_moe_gguf = {.architecture = "glm4moe",
    .class_name = "Glm4MoeForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, gguf_head_norms, gguf_experts, gguf_shared, glm4_moe_names},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, glm4_moe_fields}};

/* ---- GLM ---- */

static const GgufName glm_names[] = {
    {"blk.*.attn_qkv", "model.layers.*.self_attn.#_proj", GGUF_QKV},
    {"blk.*.ffn_up", "model.layers.*.mlp.gate_up_proj", 0},
    {0},
};

static const GgufField glm_fields[] = {
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_qkv.bias"},
    {0},
};

const GgufModel glm_gguf = {.architecture = "chatglm",
    .class_name = "GlmForCausalLM",
    .names = {gguf_ends, gguf_norms, glm_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, gguf_own_head_dim, glm_fields},
    .tokenizer = {.pre = "chatglm-bpe"}};
