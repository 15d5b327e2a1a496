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

/* Shared experts are averaged with the others, as the converter demands; dense layers, which lie first, always rotate.
 */
static const GgufField cohere2_moe_fields[] = {
    {"intermediate_size", .key = ".expert_feed_forward_length"},
    {"prefix_dense_intermediate_size", .key = ".feed_forward_length"},
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"sliding_window", .key = ".attention.sliding_window"},
    {"layer_types", GGUF_FIELD_FLAGS, .key = ".attention.sliding_window_pattern", .absent = 4,
        .text = "\"sliding_attention\"", .otherwise = "\"full_attention\""},
    {"num_experts", .key = ".expert_count"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {"num_shared_experts", .key = ".expert_shared_count", .optional = true},
    {"expert_selection_fn", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .key = ".expert_weights_norm", .absent = 0},
    {"mlp_layer_types", GGUF_FIELD_FLAGS, .key = "blk.*.ffn_gate_inp.weight", .text = "\"sparse\"",
        .otherwise = "\"dense\""},
    {"dense", GGUF_FIELD_IGNORED, .key = ".leading_dense_block_count"},
    {"shared", GGUF_FIELD_IGNORED, .key = ".expert_shared_feed_forward_length"},
    {0},
};

const GgufModel cohere2_moe_gguf = {.architecture = "cohere2moe",
    .class_name = "Cohere2MoeForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, gguf_experts, gguf_shared, cohere_names},
    .fields = {gguf_outer_sizes, gguf_silu, cohere_fields, cohere2_moe_fields},
    .tokenizer = {.pre = "cohere2moe"}};
