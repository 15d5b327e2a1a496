/* Qwen, but Qwen3-Next and Qwen3.5 in GGUF files. */
#include "family/gguf/models.h"

/* ---- Qwen2 ---- */

const GgufModel qwen2_gguf = {.architecture = "qwen2",
    .class_name = "Qwen2ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_silu},
    .tokenizer = {.pre = "qwen2"}};

/* ---- Qwen3 ---- */

static const GgufField qwen3_fields[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {0},
};

const GgufModel qwen3_gguf = {.architecture = "qwen3",
    .class_name = "Qwen3ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu, gguf_head_norms},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, qwen3_fields},
    .tokenizer = {.pre = "qwen2"}};

/* ---- Qwen2-MoE, Qwen3-MoE ---- */

static const GgufName qwen2_moe_names[] = {
    {"blk.*.ffn_gate_shexp", "model.layers.*.mlp.shared_expert.gate_proj", 0},
    {"blk.*.ffn_up_shexp", "model.layers.*.mlp.shared_expert.up_proj", 0},
    {"blk.*.ffn_down_shexp", "model.layers.*.mlp.shared_expert.down_proj", 0},
    {"blk.*.ffn_gate_inp_shexp", "model.layers.*.mlp.shared_expert_gate", GGUF_FLAT},
    {0},
};

static const GgufField qwen2_moe_fields[] = {
    {"num_experts", .key = ".expert_count"},
    {"shared_expert_intermediate_size", .key = ".expert_shared_feed_forward_length"},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .absent = 0},
    {"qkv_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {0},
};

const GgufModel qwen2_moe_gguf = {.architecture = "qwen2moe",
    .class_name = "Qwen2MoeForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_experts, qwen2_moe_names},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, qwen2_moe_fields},
    .tokenizer = {.pre = "qwen2"}};

static const GgufField qwen3_moe_fields[] = {
    {"num_experts", .key = ".expert_count"},
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .absent = 1},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {0},
};

const GgufModel qwen3_moe_gguf = {.architecture = "qwen3moe",
    .class_name = "Qwen3MoeForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_head_norms, gguf_experts},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, qwen3_moe_fields},
    .tokenizer = {.pre = "qwen2"}};

/* ---- Qwen ---- */

static const GgufName qwen_names[] = {
    {"token_embd", "transformer.wte", 0},
    {"output_norm", "transformer.ln_f", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_norm", "transformer.h.*.ln_1", 0},
    {"blk.*.ffn_norm", "transformer.h.*.ln_2", 0},
    {"blk.*.attn_qkv", "transformer.h.*.attn.c_attn", 0},
    {"blk.*.attn_output", "transformer.h.*.attn.c_proj", 0},
    {"blk.*.ffn_gate", "transformer.h.*.mlp.w2", 0},
    {"blk.*.ffn_up", "transformer.h.*.mlp.w1", 0},
    {"blk.*.ffn_down", "transformer.h.*.mlp.c_proj", 0},
    {0},
};

static const GgufField qwen_fields[] = {
    {"layer_norm_epsilon", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_rms_epsilon"},
    {"kv_channels", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"rotary_emb_base", GGUF_FIELD_NUMBER, .key = ".rope.freq_base", .absent = 10000},
    {"no_bias", GGUF_FIELD_BOOL, .absent = 1},
    {0},
};

const GgufModel qwen_gguf = {.architecture = "qwen",
    .rope_in_fields = true,
    .class_name = "QWenLMHeadModel",
    .names = {qwen_names},
    .fields = {gguf_sizes, qwen_fields},
    .tokenizer = {.pre = "qwen2"}};

/* ---- Qwen-VL, the text model ---- */

static const GgufField deepstack[] = {
    {"deepstack", GGUF_FIELD_IGNORED, .key = ".n_deepstack_layers"},
    {0},
};

const GgufModel qwen2_vl_gguf = {.architecture = "qwen2vl",
    .class_name = "Qwen2VLForConditionalGeneration",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_silu},
    .tokenizer = {.pre = "qwen2"}};

const GgufModel qwen3_vl_gguf = {.architecture = "qwen3vl",
    .class_name = "Qwen3VLForConditionalGeneration",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu, gguf_head_norms},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, gguf_own_head_dim, gguf_attention_bias, deepstack},
    .tokenizer = {.pre = "qwen2"}};

/* ---- Qwen3-VL-MoE, the text model ---- */

static const GgufField qwen3_vl_fields[] = {
    {"num_experts", .key = ".expert_count"},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .absent = 1},
    {"deepstack", GGUF_FIELD_IGNORED, .key = ".n_deepstack_layers"},
    {0},
};

const GgufModel qwen3_vl_moe_gguf = {.architecture = "qwen3vlmoe",
    .class_name = "Qwen3VLMoeForConditionalGeneration",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_head_norms, gguf_experts},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, gguf_own_head_dim, gguf_attention_bias, qwen3_vl_fields},
    .tokenizer = {.pre = "qwen2"}};
