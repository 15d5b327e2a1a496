/* Phi in GGUF files. */
#include "family/gguf/models.h"

/* ---- Phi-1 to Phi-2 ---- */

static const GgufName phi_names[] = {
    {"token_embd", "model.embed_tokens", 0},
    {"output_norm", "model.final_layernorm", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", 0},
    {"blk.*.attn_output", "model.layers.*.self_attn.dense", 0},
    {"blk.*.ffn_up", "model.layers.*.mlp.fc1", 0},
    {"blk.*.ffn_down", "model.layers.*.mlp.fc2", 0},
    {0},
};

static const GgufField phi_fields[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "gelu_new"},
    {"layer_norm_eps", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon"},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {0},
};

/* Files of early converters, in which q, k and v are one matrix, are refused. */
const GgufModel phi_gguf = {.architecture = "phi2",
    .class_name = "PhiForCausalLM",
    .names = {gguf_qkv, phi_names},
    .fields = {gguf_sizes, phi_fields},
    .tokenizer = {.pre = "phi-2"}};

/* ---- Phi-3 ---- */

static const GgufName phi3_names[] = {
    {"blk.*.attn_qkv", "model.layers.*.self_attn.qkv_proj", 0},
    {"blk.*.ffn_up", "model.layers.*.mlp.gate_up_proj", 0},
    {0},
};

/* Files of models that rotate whole heads have no such field. */
static double phi3_rotary_factor(const GgufSizes *sizes) {
    const double factor = gguf_rotary_factor(sizes);
    return factor == 1 ? 0 : factor;
}

static const GgufField phi3_fields[] = {
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_qkv.bias"},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = phi3_rotary_factor},
    {"sliding_window", .key = ".attention.sliding_window", .optional = true},
    {0},
};

const GgufModel phi3_gguf = {.architecture = "phi3",
    .class_name = "Phi3ForCausalLM",
    .names = {gguf_ends, gguf_norms, phi3_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, phi3_fields},
    .tokenizer = {.control_strips_right = true}};
