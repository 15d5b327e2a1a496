/* Cohere in GGUF files. */
#include "family/gguf/models.h"

static const GgufName cohere_names[] = {
    {"output_norm", "model.norm", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", 0},
    {0},
};

static const GgufField cohere_fields[] = {
    {"layer_norm_eps", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon"},
    {"logit_scale", GGUF_FIELD_NUMBER, .key = ".logit_scale"},
    {0},
};

static const GgufField cohere_head_norms[] = {
    {"use_qk_norm", GGUF_FIELD_HAS, .key = "blk.0.attn_q_norm.weight"},
    {0},
};

static const GgufField cohere2_fields[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"sliding_window", .key = ".attention.sliding_window"},
    {"sliding_window_pattern", .absent = 4},
    {0},
};

const GgufModel cohere_gguf = {.architecture = "command-r",
    .class_name = "CohereForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, gguf_head_norms, cohere_names},
    .fields = {gguf_sizes, gguf_silu, cohere_fields, cohere_head_norms},
    .tokenizer = {.pre = "command-r"}};

const GgufModel cohere2_gguf = {.architecture = "cohere2",
    .class_name = "Cohere2ForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, cohere_names},
    .fields = {gguf_sizes, gguf_silu, cohere_fields, cohere2_fields},
    .tokenizer = {.pre = "command-r"}};
