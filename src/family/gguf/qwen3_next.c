/* Qwen3-Next and Qwen3.5 in GGUF files. The converter orders the value heads of Qwen3.5 by their number within the
 * group of a key head, then by group: linear_value_heads_tiled. */
#include "family/gguf/models.h"

static const GgufName names[] = {
    {"blk.*.attn_q", "model.layers.*.self_attn.q_proj", 0},
    {"blk.*.attn_k", "model.layers.*.self_attn.k_proj", 0},
    {"blk.*.attn_v", "model.layers.*.self_attn.v_proj", 0},
    {"output_norm", "model.norm", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", 0},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", 0},
    {"blk.*.attn_qkv", "model.layers.*.linear_attn.in_proj_qkv", 0},
    {"blk.*.attn_gate", "model.layers.*.linear_attn.in_proj_z", 0},
    {"blk.*.ssm_conv1d", "model.layers.*.linear_attn.conv1d", 0},
    {"blk.*.ssm_dt", "model.layers.*.linear_attn.dt_bias", GGUF_NAMED},
    {"blk.*.ssm_a", "model.layers.*.linear_attn.A_log", GGUF_RATE},
    {"blk.*.ssm_norm", "model.layers.*.linear_attn.norm", 0},
    {"blk.*.ssm_out", "model.layers.*.linear_attn.out_proj", 0},
    {0},
};

static const GgufName apart[] = {
    {"blk.*.ssm_beta", "model.layers.*.linear_attn.in_proj_b", 0},
    {"blk.*.ssm_alpha", "model.layers.*.linear_attn.in_proj_a", 0},
    {0},
};

static const GgufName together[] = {
    {"blk.*.ssm_ba", "model.layers.*.linear_attn.in_proj_ba", 0},
    {0},
};

static const GgufName shared[] = {
    {"blk.*.ffn_gate_shexp", "model.layers.*.mlp.shared_expert.gate_proj", 0},
    {"blk.*.ffn_up_shexp", "model.layers.*.mlp.shared_expert.up_proj", 0},
    {"blk.*.ffn_down_shexp", "model.layers.*.mlp.shared_expert.down_proj", 0},
    {"blk.*.ffn_gate_inp_shexp", "model.layers.*.mlp.shared_expert_gate", GGUF_FLAT},
    {0},
};

static double value_dim(const GgufSizes *s) { return s->ssm_heads > 0 ? (double)(s->ssm_inner / s->ssm_heads) : 0; }

static const GgufField fields[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {"full_attention_interval", .key = ".full_attention_interval", .absent = 4},
    {"linear_conv_kernel_dim", .key = ".ssm.conv_kernel"},
    {"linear_key_head_dim", .key = ".ssm.state_size"},
    {"linear_num_key_heads", .key = ".ssm.group_count"},
    {"linear_num_value_heads", .key = ".ssm.time_step_rank"},
    {"linear_value_head_dim", .key = ".ssm.inner_size", .compute = value_dim},
    {0},
};

/* A mixture may have no dense network. */
static const GgufField width[] = {
    {"intermediate_size", .key = ".feed_forward_length", .optional = true},
    {0},
};

static const GgufField tiled[] = {
    {"linear_value_heads_tiled", GGUF_FIELD_BOOL, .absent = 1},
    {0},
};

static const GgufField mixture[] = {
    {"num_experts", .key = ".expert_count"},
    {"shared_expert_intermediate_size", .key = ".expert_shared_feed_forward_length"},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .absent = 1},
    {0},
};

const GgufModel qwen3_5_gguf = {.architecture = "qwen35",
    .class_name = "Qwen3_5ForCausalLM",
    .names = {gguf_ends, gguf_glu, gguf_head_norms, names, apart},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, fields, tiled},
    .tokenizer = {.pre = "qwen2"}};

const GgufModel qwen3_5_moe_gguf = {.architecture = "qwen35moe",
    .class_name = "Qwen3_5MoeForCausalLM",
    .names = {gguf_ends, gguf_head_norms, gguf_experts, names, apart, shared},
    .fields = {gguf_outer_sizes, width, gguf_rms, gguf_moe, mixture, fields, tiled},
    .tokenizer = {.pre = "qwen2"}};

const GgufModel qwen3_next_gguf = {.architecture = "qwen3next",
    .class_name = "Qwen3NextForCausalLM",
    .names = {gguf_ends, gguf_head_norms, gguf_experts, names, together, shared},
    .fields = {gguf_outer_sizes, width, gguf_rms, gguf_moe, mixture, fields},
    .tokenizer = {.pre = "qwen2"}};
