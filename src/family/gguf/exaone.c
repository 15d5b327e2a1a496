/* EXAONE in GGUF files. */
#include "family/gguf/models.h"

static const GgufName exaone_names[] = {
    {"output_norm", "transformer.ln_f", 0},
    {"token_embd", "transformer.wte", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_norm", "transformer.h.*.ln_1", 0},
    {"blk.*.ffn_norm", "transformer.h.*.ln_2", 0},
    {"blk.*.attn_q", "transformer.h.*.attn.attention.q_proj", 0},
    {"blk.*.attn_k", "transformer.h.*.attn.attention.k_proj", 0},
    {"blk.*.attn_v", "transformer.h.*.attn.attention.v_proj", 0},
    {"blk.*.attn_output", "transformer.h.*.attn.attention.out_proj", 0},
    {"blk.*.ffn_gate", "transformer.h.*.mlp.c_fc_0", 0},
    {"blk.*.ffn_up", "transformer.h.*.mlp.c_fc_1", 0},
    {"blk.*.ffn_down", "transformer.h.*.mlp.c_proj", 0},
    {0},
};

static const GgufField exaone_fields[] = {
    {"num_layers", .key = ".block_count"},
    {"activation_function", GGUF_FIELD_TEXT, .text = "silu"},
    {"layer_norm_epsilon", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_rms_epsilon"},
    {0},
};

static const GgufName exaone4_names[] = {
    {"output_norm", "model.norm", 0},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", 0},
    {"blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm", 0},
    {0},
};

static const GgufField exaone4_fields[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"sliding_window", .key = ".attention.sliding_window", .optional = true},
    {0},
};

const GgufModel exaone_gguf = {.architecture = "exaone",
    .class_name = "ExaoneForCausalLM",
    .names = {exaone_names},
    .fields = {gguf_sizes, exaone_fields},
    .tokenizer = {.pre = "exaone"}};

const GgufModel exaone4_gguf = {.architecture = "exaone4",
    .class_name = "Exaone4ForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, gguf_head_norms, exaone4_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, exaone4_fields}};
