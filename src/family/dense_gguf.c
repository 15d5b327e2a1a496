/* Dense models in GGUF files whose rows are not in their families' files. Source of names and keys: llama.cpp's
 * converter and src/models. */
#include "family/gguf_models.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static double layer_count(const GgufSizes *s) { return (double)s->layers; }

static const GgufField head_dim[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {0},
};

static const GgufField attention_bias[] = {
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {0},
};

/* ---- llamas under other architectures ---- */

const GgufModel internlm2_gguf = {.architecture = "internlm2",
    .class_name = "LlamaForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_llama}};

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

/* ---- Hunyuan ---- */

static const GgufName hunyuan_names[] = {
    {"blk.*.attn_q_norm", "model.layers.*.self_attn.query_layernorm", 0},
    {"blk.*.attn_k_norm", "model.layers.*.self_attn.key_layernorm", 0},
    {0},
};

static const GgufField hunyuan_fields[] = {
    {"use_qk_norm", GGUF_FIELD_HAS, .key = "blk.0.attn_q_norm.weight"},
    {0},
};

/* The base of the rotary embedding is already the scaled one. */
const GgufModel hunyuan_dense_gguf = {.architecture = "hunyuan-dense",
    .class_name = "HunYuanDenseV1ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu, hunyuan_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, head_dim, attention_bias, hunyuan_fields},
    .tokenizer = {.pre = "hunyuan-dense"}};

/* ---- Apertus ---- */

static const GgufName apertus_names[] = {
    {"output_norm", "model.norm", 0},
    {"blk.*.attn_norm", "model.layers.*.attention_layernorm", 0},
    {"blk.*.ffn_norm", "model.layers.*.feedforward_layernorm", 0},
    {"blk.*.ffn_up", "model.layers.*.mlp.up_proj", 0},
    {"xielu.alpha_n", "model.layers.*.mlp.act_fn.alpha_n", GGUF_METADATA},
    {"xielu.alpha_p", "model.layers.*.mlp.act_fn.alpha_p", GGUF_METADATA},
    {"xielu.beta", "model.layers.*.mlp.act_fn.beta", GGUF_METADATA},
    {"xielu.eps", "model.layers.*.mlp.act_fn.eps", GGUF_METADATA},
    {0},
};

static const GgufField apertus_fields[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "xielu"},
    {"qk_norm", GGUF_FIELD_HAS, .key = "blk.0.attn_q_norm.weight"},
    {"post_norm", GGUF_FIELD_BOOL, .absent = 0},
    {"mlp_bias", GGUF_FIELD_HAS, .key = "blk.0.ffn_up.bias"},
    {0},
};

const GgufModel apertus_gguf = {.architecture = "apertus",
    .class_name = "ApertusForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_head_norms, apertus_names},
    .fields = {gguf_sizes, gguf_rms, head_dim, attention_bias, apertus_fields},
    .tokenizer = {.pre = "tekken"}};

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
    .fields = {gguf_sizes, gguf_rms, gguf_silu, head_dim, glm_fields},
    .tokenizer = {.pre = "chatglm-bpe"}};

/* ---- GPT ---- */

#define GPT(home)                                                                                                      \
    {"token_embd", home "wte", 0}, {"position_embd", home "wpe", 0}, {"output_norm", home "ln_f", 0},                  \
        {"output", "lm_head", 0}, {"blk.*.attn_norm", home "h.*.ln_1", 0}, {"blk.*.ffn_norm", home "h.*.ln_2", 0},     \
        {"blk.*.attn_qkv", home "h.*.attn.c_attn", 0}, {"blk.*.attn_output", home "h.*.attn.c_proj", 0},               \
        {"blk.*.ffn_up", home "h.*.mlp.c_fc", 0}, {                                                                    \
        "blk.*.ffn_down", home "h.*.mlp.c_proj", 0                                                                     \
    }

static const GgufName gpt2_names[] = {GPT("model."), {0}};
static const GgufName gpt_bigcode_names[] = {GPT("transformer."), {0}};

static const GgufField gpt_fields[] = {
    {"n_embd", .key = ".embedding_length"},
    {"n_layer", .key = ".block_count", .compute = layer_count},
    {"n_head", .key = ".attention.head_count"},
    {"n_inner", .key = ".feed_forward_length"},
    {"n_positions", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"layer_norm_epsilon", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon"},
    {"activation_function", GGUF_FIELD_TEXT, .text = "gelu_pytorch_tanh"},
    {"tie_word_embeddings", GGUF_FIELD_LACKS, .key = "output.weight"},
    {"num_key_value_heads", .key = ".attention.head_count_kv", .or_key = ".attention.head_count"},
    {0},
};

static const GgufField gpt_bigcode_fields[] = {
    {"multi_query", GGUF_FIELD_BOOL, .absent = 1},
    {0},
};

const GgufModel gpt2_gguf = {.architecture = "gpt2",
    .no_rope = true,
    .class_name = "GPT2LMHeadModel",
    .names = {gpt2_names},
    .fields = {gpt_fields},
    .tokenizer = {.pre = "gpt-2"}};

const GgufModel gpt_bigcode_gguf = {.architecture = "starcoder",
    .no_rope = true,
    .class_name = "GPTBigCodeForCausalLM",
    .names = {gpt_bigcode_names},
    .fields = {gpt_fields, gpt_bigcode_fields},
    .tokenizer = {.pre = "starcoder"}};

static const GgufName gpt_neox_names[] = {
    {"token_embd", "model.embed_in", 0},
    {"output_norm", "model.final_layer_norm", 0},
    {"output", "model.embed_out", 0},
    {"blk.*.attn_norm", "model.h.*.input_layernorm", 0},
    {"blk.*.ffn_norm", "model.h.*.post_attention_layernorm", 0},
    {"blk.*.attn_qkv", "model.h.*.attention.query_key_value", GGUF_HEADS_APART},
    {"blk.*.attn_output", "model.h.*.attention.dense", 0},
    {"blk.*.ffn_up", "model.h.*.mlp.dense_h_to_4h", 0},
    {"blk.*.ffn_down", "model.h.*.mlp.dense_4h_to_h", 0},
    {0},
};

static const GgufField gpt_neox_fields[] = {
    {"layer_norm_eps", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon"},
    {"rotary_pct", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {"rotary_emb_base", GGUF_FIELD_NUMBER, .key = ".rope.freq_base", .absent = 10000},
    {"use_parallel_residual", GGUF_FIELD_BOOL, .key = ".use_parallel_residual", .absent = 1},
    {"hidden_act", GGUF_FIELD_TEXT, .text = "gelu_pytorch_tanh"},
    {0},
};

const GgufModel gpt_neox_gguf = {.architecture = "gptneox",
    .rope_in_fields = true,
    .own_head = true,
    .class_name = "GPTNeoXForCausalLM",
    .names = {gpt_neox_names},
    .fields = {gguf_sizes, gpt_neox_fields},
    .tokenizer = {.pre = "olmo"}};

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
    .fields = {gguf_sizes, gguf_rms, gguf_silu, head_dim, attention_bias, deepstack},
    .tokenizer = {.pre = "qwen2"}};
