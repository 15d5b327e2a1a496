/* OLMo and OLMoE in GGUF files. */
#include "family/gguf/models.h"

static const GgufName olmo2_names[] = {
    {"output_norm", "model.norm", 0},
    {"blk.*.attn_q_norm", "model.layers.*.self_attn.q_norm", 0},
    {"blk.*.attn_k_norm", "model.layers.*.self_attn.k_norm", 0},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", 0},
    {"blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm", 0},
    {0},
};

static const GgufField olmo_fields[] = {
    {"layer_norm_eps", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon", .absent = 1e-5},
    {"clip_qkv", GGUF_FIELD_NUMBER, .key = ".attention.clamp_kqv", .optional = true},
    {0},
};

static const GgufField olmo3_windows[] = {
    {"sliding_window", .key = ".attention.sliding_window"},
    {"sliding_window_pattern", .absent = 4},
    {0},
};

const GgufModel olmo_gguf = {.architecture = "olmo",
    .class_name = "OlmoForCausalLM",
    .names = {gguf_ends, gguf_qkv_paired, gguf_glu},
    .fields = {gguf_sizes, gguf_silu, olmo_fields},
    .tokenizer = {.pre = "olmo"}};

const GgufModel olmo2_gguf = {.architecture = "olmo2",
    .class_name = "Olmo2ForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, olmo2_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu}};

/* An OLMo 2 with a window. */
const GgufModel olmo3_gguf = {.architecture = "olmo2",
    .with_key = ".attention.sliding_window",
    .class_name = "Olmo3ForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, olmo2_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, olmo3_windows}};

/* ---- OLMoE ---- */

static const GgufField olmoe_fields[] = {
    {"num_experts", .key = ".expert_count"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .absent = 0},
    {0},
};

const GgufModel olmoe_gguf = {.architecture = "olmoe",
    .class_name = "OlmoeForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_head_norms, gguf_experts},
    .fields = {gguf_sizes, gguf_rms, olmoe_fields}};
