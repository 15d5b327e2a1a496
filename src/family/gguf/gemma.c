/* Gemma in GGUF files. Source of names and keys: llama.cpp's converter, conversion/gemma.py, and src/models. */
#include "family/gguf/models.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Gemma 3n and 4 ---- */

/* Per-layer inputs, sandwich norms, norms of q and k. */
static const GgufName inputs[] = {
    {"output_norm", "model.norm", 0},
    {"per_layer_token_embd", "model.embed_tokens_per_layer", 0},
    {"per_layer_model_proj", "model.per_layer_model_projection", 0},
    {"per_layer_proj_norm", "model.per_layer_projection_norm", 0},
    {"blk.*.inp_gate", "model.layers.*.per_layer_input_gate", 0},
    {"blk.*.proj", "model.layers.*.per_layer_projection", 0},
    {"blk.*.post_norm", "model.layers.*.post_per_layer_input_norm", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", 0},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", 0},
    {"blk.*.ffn_norm", "model.layers.*.pre_feedforward_layernorm", 0},
    {"blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm", 0},
    {0},
};

static const GgufField gemma_sizes[] = {
    {"hidden_size", .key = ".embedding_length"},
    {"num_hidden_layers", .key = ".block_count", .compute = gguf_layer_count},
    {"num_attention_heads", .key = ".attention.head_count"},
    {"max_position_embeddings", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"tie_word_embeddings", GGUF_FIELD_LACKS, .key = "output.weight"},
    {"hidden_activation", GGUF_FIELD_TEXT, .text = "gelu_pytorch_tanh"},
    {"hidden_size_per_layer_input", GGUF_FIELD_COUNT, .key = ".embedding_length_per_layer_input"},
    {"vocab_size_per_layer_input", GGUF_FIELD_ROWS, .key = "per_layer_token_embd.weight"},
    {"num_kv_shared_layers", GGUF_FIELD_COUNT, .key = ".attention.shared_kv_layers"},
    {"final_logit_softcapping", GGUF_FIELD_NUMBER, .key = ".final_logit_softcapping", .absent = 30},
    {"sliding_window", .key = ".attention.sliding_window"},
    {0},
};

/* ---- Gemma 3n ---- */

static const GgufName names3n[] = {
    {"altup_proj", "model.altup_projections.#", GGUF_STACKED},
    {"altup_unembd_proj", "model.altup_unembed_projections.#", GGUF_STACKED},
    {"blk.*.altup_correct_coef", "model.layers.*.altup.correction_coefs", 0},
    {"blk.*.altup_correct_scale", "model.layers.*.altup.correct_output_scale", GGUF_NAMED},
    {"blk.*.altup_predict_coef", "model.layers.*.altup.prediction_coefs", 0},
    {"blk.*.altup_router", "model.layers.*.altup.modality_router", 0},
    {"blk.*.altup_router_norm", "model.layers.*.altup.router_norm", 0},
    {"blk.*.laurel_l", "model.layers.*.laurel.linear_left", 0},
    {"blk.*.laurel_r", "model.layers.*.laurel.linear_right", 0},
    {"blk.*.laurel_post_norm", "model.layers.*.laurel.post_laurel_norm", 0},
    {0},
};

/* The metadata have the normal distribution's quantile of the part, in f32. */
static double sparsity(double quantile) {
    char text[32];
    snprintf(text, sizeof text, "%.5g", 0.5 * erfc(-quantile / sqrt(2)));
    return strtod(text, NULL);
}

static const GgufField fields3n[] = {
    {"num_key_value_heads", .key = ".attention.head_count_kv", .or_key = ".attention.head_count"},
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"intermediate_size", GGUF_FIELD_LIST, .key = ".feed_forward_length"},
    {"layer_types", GGUF_FIELD_FLAGS, .key = ".attention.sliding_window_pattern", .absent = 5,
        .text = "\"sliding_attention\"", .otherwise = "\"full_attention\""},
    {"rope_local_base_freq", GGUF_FIELD_NUMBER, .key = ".rope.freq_base_swa", .absent = 10000},
    {"altup_num_inputs", .key = ".altup.num_inputs"},
    {"altup_active_idx", GGUF_FIELD_COUNT, .key = ".altup.active_idx"},
    {"altup_correct_scale", GGUF_FIELD_BOOL, .absent = 1},
    {"laurel_rank", GGUF_FIELD_ROWS, .key = "blk.0.laurel_l.weight"},
    {"activation_sparsity_pattern", GGUF_FIELD_NUMBERS, .key = ".activation_sparsity_scale", .each = sparsity},
    {0},
};

const GgufModel gemma3n_gguf = {.architecture = "gemma3n",
    .class_name = "Gemma3nForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, gguf_head_norms, inputs, names3n},
    .fields = {gemma_sizes, gguf_rms, fields3n},
    .tokenizer = {.late_export = true, .no_space_prefix = true}};

/* ---- Gemma 4 ---- */

static const GgufName names4[] = {
    {"blk.*.layer_output_scale", "model.layers.*.layer_scalar", GGUF_NAMED},
    {"blk.*.pre_ffw_norm_2", "model.layers.*.pre_feedforward_layernorm_2", 0},
    {"blk.*.post_ffw_norm_1", "model.layers.*.post_feedforward_layernorm_1", 0},
    {"blk.*.post_ffw_norm_2", "model.layers.*.post_feedforward_layernorm_2", 0},
    {"blk.*.ffn_gate_inp", "model.layers.*.router.proj", 0},
    {"blk.*.ffn_gate_inp.scale", "model.layers.*.router.scale", GGUF_NAMED},
    {"blk.*.ffn_down_exps.scale", "model.layers.*.router.per_expert_scale", GGUF_NAMED},
    {"blk.*.ffn_gate_up_exps", "model.layers.*.experts.switch_glu.#_proj", GGUF_GATE_UP},
    {"blk.*.ffn_gate_exps", "model.layers.*.experts.switch_glu.gate_proj", 0},
    {"blk.*.ffn_up_exps", "model.layers.*.experts.switch_glu.up_proj", 0},
    {"blk.*.ffn_down_exps", "model.layers.*.experts.switch_glu.down_proj", 0},
    {0},
};

static const GgufField slides = {"layer_types", GGUF_FIELD_FLAGS, .key = ".attention.sliding_window_pattern",
    .absent = 6, .text = "\"sliding_attention\"", .otherwise = "\"full_attention\""};

static double plain_frequencies(const GgufSizes *s) { return s->plain_frequencies; }

static const GgufField fields4[] = {
    {"num_key_value_heads", GGUF_FIELD_WHERE, .key = ".attention.head_count_kv", .flags = &slides},
    {"num_global_key_value_heads", GGUF_FIELD_WHERE, .key = ".attention.head_count_kv", .flags = &slides,
        .unflagged = true},
    {"head_dim", .key = ".attention.key_length_swa"},
    {"global_head_dim", .key = ".attention.key_length"},
    {"values", GGUF_FIELD_EQUAL, .key = ".attention.value_length_swa", .or_key = ".attention.key_length_swa"},
    {"rotated", GGUF_FIELD_EQUAL, .key = ".rope.dimension_count_swa", .or_key = ".attention.key_length_swa"},
    {"rotated", GGUF_FIELD_EQUAL, .key = ".rope.dimension_count", .or_key = ".attention.key_length"},
    {"attention_k_eq_v", GGUF_FIELD_PARTS, .key = "blk.*.attn_k.weight", .or_key = "blk.*.attn_v.weight"},
    {"intermediate_size", GGUF_FIELD_AT_0, .key = ".feed_forward_length"},
    {"use_double_wide_mlp", GGUF_FIELD_VARIES, .key = ".feed_forward_length"},
    {"layer_types", GGUF_FIELD_FLAGS, .key = ".attention.sliding_window_pattern", .absent = 6,
        .text = "\"sliding_attention\"", .otherwise = "\"full_attention\""},
    {"enable_moe_block", GGUF_FIELD_HAS, .key = "blk.*.ffn_gate_inp.weight"},
    {"num_experts", .key = ".expert_count", .optional = true},
    {"top_k_experts", .key = ".expert_used_count", .optional = true},
    {"moe_intermediate_size", .key = ".expert_feed_forward_length", .optional = true},
    {"rope_parameters.full_attention.rope_type", GGUF_FIELD_TEXT, .text = "proportional"},
    {"rope_parameters.full_attention.partial_rotary_factor", GGUF_FIELD_NUMBER, .compute = plain_frequencies},
    {"rope_parameters.full_attention.rope_theta", GGUF_FIELD_NUMBER, .key = ".rope.freq_base", .absent = 1000000},
    {"rope_parameters.sliding_attention.rope_type", GGUF_FIELD_TEXT, .text = "default"},
    {"rope_parameters.sliding_attention.rope_theta", GGUF_FIELD_NUMBER, .key = ".rope.freq_base_swa", .absent = 10000},
    {0},
};

const GgufModel gemma4_gguf = {.architecture = "gemma4",
    .rope_in_fields = true,
    .class_name = "Gemma4ForConditionalGeneration",
    .names = {gguf_ends, gguf_qkv, gguf_glu, gguf_head_norms, inputs, names4},
    .fields = {gemma_sizes, gguf_rms, fields4},
    .tokenizer = {.late_export = true, .no_space_prefix = true}};

/* ---- Gemma 4's assistants ---- */

static const GgufName assistant_names[] = {
    {"nextn.pre_projection", "pre_projection", 0},
    {"nextn.post_projection", "post_projection", 0},
    {"masked_embd_centroids", "", GGUF_UNUSED},
    {"masked_embd_ordering", "", GGUF_UNUSED},
    {0},
};

static const GgufField assistant_fields[] = {
    {"backbone_hidden_size", .key = ".embedding_length_out"},
    {0},
};

/* All blocks are counted as ones that predict further tokens. */
const GgufModel gemma4_assistant_gguf = {.architecture = "gemma4-assistant",
    .rope_in_fields = true,
    .class_name = "Gemma4AssistantForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, gguf_head_norms, inputs, names4, assistant_names},
    .fields = {gemma_sizes, gguf_rms, fields4, assistant_fields},
    .tokenizer = {.late_export = true, .no_space_prefix = true}};

/* ---- Gemma and Gemma 2 ---- */

static const GgufName gemma_names[] = {
    {"output_norm", "model.norm", GGUF_PLUS_ONE},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", GGUF_PLUS_ONE},
    {"blk.*.ffn_norm", "model.layers.*.post_attention_layernorm", GGUF_PLUS_ONE},
    {0},
};

static const GgufName gemma2_names[] = {
    {"output_norm", "model.norm", GGUF_PLUS_ONE},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", GGUF_PLUS_ONE},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", GGUF_PLUS_ONE},
    {"blk.*.ffn_norm", "model.layers.*.pre_feedforward_layernorm", GGUF_PLUS_ONE},
    {"blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm", GGUF_PLUS_ONE},
    {0},
};

static const GgufField gemma_activation[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "gelu_pytorch_tanh"},
    {0},
};

static const GgufField gemma_heads[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {0},
};

/* The query scale is the head's size, but in the largest model, which goes by hidden size per head. */
static double gemma2_query_scalar(const GgufSizes *sizes) {
    enum { LAYERS_OF_27B = 46 };
    return (double)(sizes->layers == LAYERS_OF_27B ? sizes->hidden / sizes->heads : sizes->head_dim);
}

static const GgufField gemma2_fields[] = {
    {"hidden_activation", GGUF_FIELD_TEXT, .text = "gelu_pytorch_tanh"},
    {"query_pre_attn_scalar", .compute = gemma2_query_scalar},
    {"attn_logit_softcapping", GGUF_FIELD_NUMBER, .key = ".attn_logit_softcapping", .absent = 50},
    {"final_logit_softcapping", GGUF_FIELD_NUMBER, .key = ".final_logit_softcapping", .absent = 30},
    {"sliding_window", .key = ".attention.sliding_window", .absent = 4096},
    {0},
};

const GgufModel gemma_gguf = {.architecture = "gemma",
    .class_name = "GemmaForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, gemma_names},
    .fields = {gguf_sizes, gguf_rms, gemma_activation, gemma_heads},
    .tokenizer = {.late_export = true, .no_space_prefix = true}};

const GgufModel gemma2_gguf = {.architecture = "gemma2",
    .class_name = "Gemma2ForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, gemma2_names},
    .fields = {gguf_sizes, gguf_rms, gemma_heads, gemma2_fields},
    .tokenizer = {.late_export = true, .no_space_prefix = true}};

/* ---- Gemma 3 ---- */

static const GgufName gemma3_names[] = {
    {"output_norm", "model.norm", GGUF_PLUS_ONE},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", GGUF_PLUS_ONE},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", GGUF_PLUS_ONE},
    {"blk.*.ffn_norm", "model.layers.*.pre_feedforward_layernorm", GGUF_PLUS_ONE},
    {"blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm", GGUF_PLUS_ONE},
    {"blk.*.attn_q_norm", "model.layers.*.self_attn.q_norm", GGUF_PLUS_ONE},
    {"blk.*.attn_k_norm", "model.layers.*.self_attn.k_norm", GGUF_PLUS_ONE},
    {0},
};

/* The metadata lacks the query scale: the head's size, but in the largest model, which goes by hidden size per head. */
static double gemma3_query_scalar(const GgufSizes *sizes) {
    enum { LAYERS_OF_27B = 62 };
    return (double)(sizes->layers == LAYERS_OF_27B ? sizes->hidden / sizes->heads : sizes->head_dim);
}

static const GgufField gemma3_fields[] = {
    {"hidden_activation", GGUF_FIELD_TEXT, .text = "gelu_pytorch_tanh"},
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"query_pre_attn_scalar", .compute = gemma3_query_scalar},
    {"rope_local_base_freq", GGUF_FIELD_NUMBER, .key = ".rope.freq_base_swa", .absent = 10000},
    {"sliding_window", .key = ".attention.sliding_window"},
    {"sliding_window_pattern", .key = ".attention.sliding_window_pattern", .absent = 6},
    {0},
};

const GgufModel gemma3_gguf = {.architecture = "gemma3",
    .class_name = "Gemma3ForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, gemma3_names},
    .fields = {gguf_sizes, gguf_rms, gemma3_fields},
    .tokenizer = {.late_export = true, .no_space_prefix = true}};
