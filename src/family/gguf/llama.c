/* Llama, Mistral, Granite, MiniCPM and other llamas in GGUF files. */
#include "family/gguf/models.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Granite ---- */

const GgufModel granite_gguf = {.architecture = "granite",
    .class_name = "GraniteForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_llama, gguf_granite}};

/* ---- Granite 3 MoE ---- */

static const GgufName granitemoe_names[] = {
    {"blk.*.ffn_gate_inp", "model.layers.*.block_sparse_moe.router.layer", 0},
    {"blk.*.ffn_gate_exps", "model.layers.*.block_sparse_moe.switch_mlp.gate_proj", 0},
    {"blk.*.ffn_up_exps", "model.layers.*.block_sparse_moe.switch_mlp.up_proj", 0},
    {"blk.*.ffn_down_exps", "model.layers.*.block_sparse_moe.switch_mlp.down_proj", 0},
    {0},
};

static const GgufField granitemoe_fields[] = {
    {"num_local_experts", .key = ".expert_count"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {0},
};

const GgufModel granitemoe_gguf = {.architecture = "granitemoe",
    .class_name = "GraniteMoeForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, granitemoe_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, gguf_attention_bias, gguf_granite, granitemoe_fields}};

static const GgufName granitemoeshared_names[] = {
    {"blk.*.ffn_gate_shexp", "model.layers.*.shared_mlp.gate_proj", 0},
    {"blk.*.ffn_up_shexp", "model.layers.*.shared_mlp.up_proj", 0},
    {"blk.*.ffn_down_shexp", "model.layers.*.shared_mlp.output_linear", 0},
    {0},
};

static const GgufField granitemoeshared_fields[] = {
    {"shared_intermediate_size", .key = ".expert_shared_feed_forward_length"},
    {0},
};

const GgufModel granitemoeshared_gguf = {.architecture = "granitemoe",
    .with_key = ".expert_shared_feed_forward_length",
    .class_name = "GraniteMoeSharedForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, granitemoe_names, granitemoeshared_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, gguf_attention_bias, gguf_granite, granitemoe_fields,
        granitemoeshared_fields}};

/* ---- Llama, Mistral ---- */

const GgufModel llama_gguf = {.architecture = "llama",
    .class_name = "LlamaForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_llama},
    .other = &internlm2_gguf};

/* In GGUF a llama too; only the window tells, and only Mistral's model applies it to every layer. */
static const GgufField mistral_window[] = {
    {"sliding_window", .key = ".attention.sliding_window"},
    {0},
};

const GgufModel mistral_gguf = {.architecture = "llama",
    .with_key = ".attention.sliding_window",
    .class_name = "MistralForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_llama, mistral_window}};

/* ---- Baichuan ---- */

/* The import divides no rows: files of Baichuan 2, which has this vocabulary, would need it. */
const GgufModel baichuan_gguf = {.architecture = "baichuan",
    .class_name = "BaichuanForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_silu}};

/* ---- Mixtral ---- */

static const GgufName mixtral_names[] = {
    {"blk.*.ffn_gate_inp", "model.layers.*.block_sparse_moe.gate", 0},
    {"blk.*.ffn_gate_exps", "model.layers.*.block_sparse_moe.switch_mlp.gate_proj", 0},
    {"blk.*.ffn_up_exps", "model.layers.*.block_sparse_moe.switch_mlp.up_proj", 0},
    {"blk.*.ffn_down_exps", "model.layers.*.block_sparse_moe.switch_mlp.down_proj", 0},
    {0},
};

static const GgufField mixtral_fields[] = {
    {"num_local_experts", .key = ".expert_count"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {"sliding_window", .key = ".attention.sliding_window", .optional = true},
    {0},
};

const GgufModel mixtral_gguf = {.architecture = "llama",
    .with_key = ".expert_count",
    .class_name = "MixtralForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, mixtral_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, mixtral_fields}};

/* ---- SmolLM3 ---- */

static const GgufField smollm3_fields[] = {
    {"no_rope_layer_interval", .absent = 4},
    {0},
};

const GgufModel smollm3_gguf = {.architecture = "smollm3",
    .class_name = "SmolLM3ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_llama, smollm3_fields}};

/* ---- llamas under other architectures ---- */

static const GgufField xverse_fields[] = {
    {"layout", GGUF_FIELD_IGNORED, .key = ".tensor_data_layout"},
    {0},
};

static const GgufModel xverse_gguf = {.architecture = "xverse",
    .class_name = "LlamaForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_llama, xverse_fields}};

const GgufModel internlm2_gguf = {.architecture = "internlm2",
    .class_name = "LlamaForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_llama},
    .other = &xverse_gguf};

static const GgufField nanbeige_fields[] = {
    {"num_loops", .key = ".num_loops", .absent = 1},
    {"skip_loop_final_norm", GGUF_FIELD_BOOL, .key = ".skip_loop_final_norm", .absent = 0},
    {"head_dim", GGUF_FIELD_EQUAL, .key = ".attention.head_dim", .or_key = ".attention.key_length"},
    {0},
};

const GgufModel nanbeige_gguf = {.architecture = "nanbeige",
    .class_name = "NanbeigeForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_llama, nanbeige_fields}};

const GgufModel ministral3_gguf = {.architecture = "mistral3",
    .queries_scaled = true,
    .class_name = "Ministral3ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_llama},
    .tokenizer = {.pre = "tekken"}};

/* ---- MiniCPM ---- */

/* The converter multiplied a decimal number in f32: the decimal number again. */
static double decimal(double x) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", x);
    return strtod(text, NULL);
}

/* Files from before these keys have the numbers of all models there were. */
static double scale_depth(const GgufSizes *s) {
    return s->residual_scale > 0 ? decimal(s->residual_scale * sqrt((double)s->layers)) : 1.4;
}

static double dim_model_base(const GgufSizes *s) {
    return s->logit_scale > 0 ? rint((double)s->hidden / s->logit_scale) : 256;
}

static const GgufField minicpm_fields[] = {
    {"scale_emb", GGUF_FIELD_NUMBER, .key = ".embedding_scale", .absent = 12},
    {"scale_depth", GGUF_FIELD_NUMBER, .key = ".residual_scale", .compute = scale_depth},
    {"dim_model_base", .key = ".logit_scale", .compute = dim_model_base},
    {0},
};

const GgufModel minicpm_gguf = {.architecture = "minicpm",
    .class_name = "MiniCPMForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, minicpm_fields}};

static const GgufName minicpm3_names[] = {
    {"blk.*.attn_q_a", "model.layers.*.self_attn.q_a_proj", 0},
    {"blk.*.attn_q_b", "model.layers.*.self_attn.q_b_proj", 0},
    {"blk.*.attn_q_a_norm", "model.layers.*.self_attn.q_a_layernorm", 0},
    {"blk.*.attn_kv_a_mqa", "model.layers.*.self_attn.kv_a_proj_with_mqa", 0},
    {"blk.*.attn_kv_a_norm", "model.layers.*.self_attn.kv_a_layernorm", 0},
    {"blk.*.attn_kv_b", "model.layers.*.self_attn.kv_b_proj", 0},
    {0},
};

static double plain_dims(const GgufSizes *s) { return (double)s->plain_dims; }
static double model_head_dim(const GgufSizes *s) { return (double)(s->hidden / s->heads); }

/* The factors are llama.cpp's constants. */
static const GgufField minicpm3_fields[] = {
    {"q_lora_rank", .key = ".attention.q_lora_rank", .optional = true},
    {"kv_lora_rank", .key = ".attention.kv_lora_rank"},
    {"qk_rope_head_dim", .key = ".rope.dimension_count"},
    {"qk_nope_head_dim", .key = ".attention.key_length", .compute = plain_dims},
    {"v_head_dim", .compute = model_head_dim},
    {"scale_emb", GGUF_FIELD_NUMBER, .absent = 12},
    {"scale_depth", GGUF_FIELD_NUMBER, .absent = 1.4},
    {"dim_model_base", .absent = 256},
    {0},
};

const GgufModel minicpm3_gguf = {.architecture = "minicpm3",
    .latent = true,
    .class_name = "MiniCPM3ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_glu, minicpm3_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, minicpm3_fields}};
