/* Models in GGUF files whose layers have sizes of their own. */
#include "family/gguf/models.h"

#include <stdio.h>

/* ---- Llama-Nemotron ---- */

/* The network's width is 2/3 of the factor times the hidden size, rounded up to a multiple of 256: the factor is of a
 * half less than that. */
static void nemotron_layer(char *text, size_t size, const GgufSizes *sizes, const GgufLayerSizes *layer) {
    char attention[64], ffn[64];
    if (layer->kv_heads > 0)
        snprintf(
            attention, sizeof attention, "\"n_heads_in_group\": %lld", (long long)(layer->heads / layer->kv_heads));
    else
        snprintf(attention, sizeof attention, layer->heads ? "\"replace_with_linear\": true" : "\"no_op\": true");
    if (layer->inner)
        snprintf(ffn, sizeof ffn, "\"ffn_mult\": %.9g", 1.5 * ((double)layer->inner - 0.5) / (double)sizes->hidden);
    else
        snprintf(ffn, sizeof ffn, "\"no_op\": true");
    snprintf(text, size, "{\"attention\": {%s}, \"ffn\": {%s}}", attention, ffn);
}

static double heads_of(const GgufSizes *sizes) { return (double)sizes->heads; }

static const GgufField nemotron_fields[] = {
    {"hidden_size", .key = ".embedding_length"},
    {"num_hidden_layers", .key = ".block_count", .compute = gguf_layer_count},
    {"num_attention_heads", .key = ".attention.head_count", .compute = heads_of},
    {"max_position_embeddings", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"tie_word_embeddings", GGUF_FIELD_LACKS, .key = "output.weight"},
    {"block_configs", GGUF_FIELD_EACH, .key = ".attention.head_count_kv", .layer = nemotron_layer},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.*.attn_q.bias"},
    {"mlp_bias", GGUF_FIELD_HAS, .key = "blk.*.ffn_up.bias"},
    {0},
};

const GgufModel nemotron_nas_gguf = {.architecture = "deci",
    .class_name = "DeciLMForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu},
    .fields = {nemotron_fields, gguf_rms, gguf_silu}};

/* ---- OpenELM ---- */

static const GgufName openelm_names[] = {
    {"token_embd", "transformer.token_embeddings", 0},
    {"output_norm", "transformer.norm", 0},
    {"blk.*.attn_norm", "transformer.layers.*.attn_norm", 0},
    {"blk.*.attn_qkv", "transformer.layers.*.attn.qkv_proj", 0},
    {"blk.*.attn_q_norm", "transformer.layers.*.attn.q_norm", 0},
    {"blk.*.attn_k_norm", "transformer.layers.*.attn.k_norm", 0},
    {"blk.*.attn_output", "transformer.layers.*.attn.out_proj", 0},
    {"blk.*.ffn_norm", "transformer.layers.*.ffn_norm", 0},
    {"blk.*.ffn_gate", "transformer.layers.*.ffn.gate_proj", 0},
    {"blk.*.ffn_up", "transformer.layers.*.ffn.up_proj", 0},
    {"blk.*.ffn_down", "transformer.layers.*.ffn.down_proj", 0},
    {0},
};

static void openelm_factor(char *text, size_t size, const GgufSizes *sizes, const GgufLayerSizes *layer) {
    snprintf(text, size, "%.17g", (double)layer->inner / (double)sizes->hidden);
}

static const GgufField openelm_fields[] = {
    {"model_dim", .key = ".embedding_length"},
    {"num_transformer_layers", .key = ".block_count", .compute = gguf_layer_count},
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"num_query_heads", GGUF_FIELD_LIST, .key = ".attention.head_count"},
    {"num_kv_heads", GGUF_FIELD_LIST, .key = ".attention.head_count_kv"},
    {"ffn_dim_divisor", .absent = 1},
    {"ffn_multipliers", GGUF_FIELD_EACH, .key = ".feed_forward_length", .layer = openelm_factor},
    {"max_context_length", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"share_input_output_layers", GGUF_FIELD_BOOL, .absent = 1},
    {"normalize_qk_projections", GGUF_FIELD_HAS, .key = "blk.*.attn_q_norm.weight"},
    {"rope_freq_constant", GGUF_FIELD_NUMBER, .key = ".rope.freq_base", .absent = 10000},
    {0},
};

const GgufModel openelm_gguf = {.architecture = "openelm",
    .rope_in_fields = true,
    .class_name = "OpenELMForCausalLM",
    .names = {openelm_names},
    .fields = {openelm_fields, gguf_rms}};

/* ---- Step 3.5 Flash ---- */

static const GgufName step_names[] = {
    {"blk.*.attn_gate", "model.layers.*.self_attn.g_proj", 0},
    {"blk.*.ffn_gate_inp", "model.layers.*.mlp.gate.gate", 0},
    {"blk.*.exp_probs_b", "model.layers.*.mlp.gate.router_bias", GGUF_NAMED},
    {"blk.*.ffn_gate_exps", "model.layers.*.mlp.switch_mlp.gate_proj", 0},
    {"blk.*.ffn_up_exps", "model.layers.*.mlp.switch_mlp.up_proj", 0},
    {"blk.*.ffn_down_exps", "model.layers.*.mlp.switch_mlp.down_proj", 0},
    {"blk.*.ffn_gate_shexp", "model.layers.*.mlp.share_expert.gate_proj", 0},
    {"blk.*.ffn_up_shexp", "model.layers.*.mlp.share_expert.up_proj", 0},
    {"blk.*.ffn_down_shexp", "model.layers.*.mlp.share_expert.down_proj", 0},
    {0},
};

#define SLIDES                                                                                                         \
    .key = ".attention.sliding_window_pattern", .text = "\"sliding_attention\"", .otherwise = "\"full_attention\""

static const GgufField step_slides = {"layer_types", GGUF_FIELD_FLAGS, SLIDES};

static void step_theta(char *text, size_t size, const GgufSizes *sizes, const GgufLayerSizes *layer) {
    snprintf(text, size, "%.9g", layer->flagged ? sizes->swa_rope_base : sizes->rope_base);
}

/* That layers without a window turn half of a head, and that they alone have a scaled rotary embedding, are llama.cpp's
 * constants. */
static const GgufField step_fields[] = {
    {"hidden_size", .key = ".embedding_length"},
    {"intermediate_size", .key = ".feed_forward_length"},
    {"num_hidden_layers", .key = ".block_count", .compute = gguf_layer_count},
    {"num_attention_heads", GGUF_FIELD_WHERE, .key = ".attention.head_count", .flags = &step_slides, .unflagged = true},
    {"num_attention_groups", GGUF_FIELD_WHERE, .key = ".attention.head_count_kv", .flags = &step_slides,
        .unflagged = true},
    {"attention_other_setting.num_attention_heads", GGUF_FIELD_WHERE, .key = ".attention.head_count",
        .flags = &step_slides},
    {"attention_other_setting.num_attention_groups", GGUF_FIELD_WHERE, .key = ".attention.head_count_kv",
        .flags = &step_slides},
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"max_position_embeddings", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"tie_word_embeddings", GGUF_FIELD_LACKS, .key = "output.weight"},
    {"sliding_window", .key = ".attention.sliding_window"},
    {"layer_types", GGUF_FIELD_FLAGS, SLIDES},
    {"partial_rotary_factors", GGUF_FIELD_FLAGS, .key = ".attention.sliding_window_pattern", .text = "1.0",
        .otherwise = "0.5"},
    {"rope_theta", GGUF_FIELD_EACH, .key = ".rope.freq_base_swa", .flags = &step_slides, .layer = step_theta},
    {"yarn_only_types", GGUF_FIELD_JSON, .text = "[\"full_attention\"]"},
    {"use_head_wise_attn_gate", GGUF_FIELD_HAS, .key = "blk.*.attn_gate.weight"},
    {"moe_num_experts", .key = ".expert_count"},
    {"moe_top_k", .key = ".expert_used_count"},
    {"moe_intermediate_size", .key = ".expert_feed_forward_length"},
    {"share_expert_dim", .key = ".expert_shared_feed_forward_length"},
    {"moe_layers_enum", GGUF_FIELD_WITH, .key = "blk.*.ffn_gate_inp.weight"},
    {"moe_router_activation", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"moe_router_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {"norm_expert_weight", GGUF_FIELD_BOOL, .key = ".expert_weights_norm", .absent = 0},
    {"swiglu_limits", GGUF_FIELD_NUMBERS, .key = ".swiglu_clamp_exp"},
    {"swiglu_limits_shared", GGUF_FIELD_NUMBERS, .key = ".swiglu_clamp_shexp"},
    {"dense", GGUF_FIELD_IGNORED, .key = ".leading_dense_block_count"},
    {"every", GGUF_FIELD_IGNORED, .key = ".moe_every_n_layers"},
    {0},
};

const GgufModel step3p5_gguf = {.architecture = "step35",
    .class_name = "Step3p5ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu, gguf_head_norms, step_names},
    .fields = {step_fields, gguf_rms}};

/* ---- Laguna ---- */

static const GgufName laguna_names[] = {
    {"blk.*.attn_gate", "model.layers.*.self_attn.g_proj", 0},
    {0},
};

static double is_gated_whole(const GgufSizes *sizes) { return sizes->gate_rows > sizes->heads; }

static const GgufField laguna_fields[] = {
    {"hidden_size", .key = ".embedding_length"},
    {"intermediate_size", .key = ".feed_forward_length"},
    {"num_hidden_layers", .key = ".block_count", .compute = gguf_layer_count},
    {"num_attention_heads", .key = ".attention.head_count", .compute = heads_of},
    {"num_attention_heads_per_layer", GGUF_FIELD_LIST, .key = ".attention.head_count"},
    {"num_key_value_heads", .key = ".attention.head_count_kv"},
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"max_position_embeddings", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"tie_word_embeddings", GGUF_FIELD_LACKS, .key = "output.weight"},
    {"gating", GGUF_FIELD_CHOICE, .compute = is_gated_whole, .text = "per-element", .otherwise = "per-head"},
    {"mlp_layer_types", GGUF_FIELD_FLAGS, .key = "blk.*.ffn_gate_inp.weight", .text = "\"sparse\"",
        .otherwise = "\"dense\""},
    {"num_experts", .key = ".expert_count"},
    {"shared_expert_intermediate_size", .key = ".expert_shared_feed_forward_length"},
    {"moe_router_score_func", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"moe_routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale"},
    {"norm", GGUF_FIELD_IGNORED, .key = ".expert_weights_norm"}, /* always true */
    {"dense", GGUF_FIELD_IGNORED, .key = ".leading_dense_block_count"},
    {"shared", GGUF_FIELD_IGNORED, .key = ".expert_shared_count"},
    {0},
};

/* Without flags, the first of four layers has no window. */
static const GgufField laguna_windows[] = {
    {"sliding_window", .key = ".attention.sliding_window"},
    {"layer_types", GGUF_FIELD_FLAGS, .absent = -4, SLIDES},
    {0},
};

static const GgufField laguna_rotation[] = {
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {0},
};

#define LAGUNA_NAMES                                                                                                   \
    {                                                                                                                  \
        gguf_ends, gguf_norms, gguf_qkv, gguf_glu, gguf_head_norms, gguf_experts, gguf_shared, gguf_correction,        \
            laguna_names                                                                                               \
    }

/* XS.2 */
static const GgufModel laguna_windows_gguf = {.architecture = "laguna",
    .with_key = ".attention.sliding_window",
    .rope_of_kinds = true,
    .class_name = "LagunaForCausalLM",
    .names = LAGUNA_NAMES,
    .fields = {laguna_fields, laguna_windows, gguf_rms, gguf_moe}};

/* M.1 */
const GgufModel laguna_gguf = {.architecture = "laguna",
    .class_name = "LagunaForCausalLM",
    .names = LAGUNA_NAMES,
    .fields = {laguna_fields, laguna_rotation, gguf_rms, gguf_moe},
    .other = &laguna_windows_gguf};

/* ---- Muse Glimmer ---- */

static const GgufName muse_names[] = {
    {"output_norm", "model.norm", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", GGUF_PLUS_ONE},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", GGUF_PLUS_ONE},
    {"blk.*.ffn_norm", "model.layers.*.pre_feedforward_layernorm", GGUF_PLUS_ONE},
    {"blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm", GGUF_PLUS_ONE},
    {"blk.*.attn_gate", "model.layers.*.self_attn.gate_proj", 0},
    {0},
};

static const GgufField muse_slides = {"layer_types", GGUF_FIELD_FLAGS, .absent = 4, SLIDES};

static void muse_theta(char *text, size_t size, const GgufSizes *sizes, const GgufLayerSizes *layer) {
    snprintf(text, size, "%.9g", layer->flagged ? sizes->rope_base : 0);
}

/* The weights of the norm of q, which the converter makes, hold its scale. */
static const GgufField muse_fields[] = {
    {"hidden_activation", GGUF_FIELD_TEXT, .text = "silu"},
    {"qk_scale_factor", .absent = 1},
    {"output_multiplier", GGUF_FIELD_NUMBER, .key = ".logit_scale"},
    {"final_logit_softcapping", GGUF_FIELD_NUMBER, .key = ".final_logit_softcapping"},
    {"sliding_window", .key = ".attention.sliding_window"},
    {"layer_types", GGUF_FIELD_FLAGS, .absent = 4, SLIDES},
    {"layer_rope_theta", GGUF_FIELD_EACH, .flags = &muse_slides, .layer = muse_theta},
    {0},
};

const GgufModel muse_glimmer_gguf = {.architecture = "muse-glimmer",
    .class_name = "MuseGlimmerForConditionalGeneration",
    .names = {gguf_ends, gguf_qkv_paired, gguf_glu, gguf_head_norms, muse_names},
    .fields = {gguf_sizes, gguf_rms, gguf_own_head_dim, muse_fields}};

/* ---- Spark 2.5 ---- */

static const GgufName spark_names[] = {
    {"token_embd", "model.embed_tokens", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_qkv", "model.layers.*.self_attn.q_k_v_proj", 0},
    {"blk.*.attn_gate", "model.layers.*.self_attn.g_proj", 0},
    {"blk.*.attn_output", "model.layers.*.self_attn.out_proj", 0},
    {"blk.*.ffn_down", "model.layers.*.mlp.down_proj", 0},
    {0},
};

static const GgufField spark_fields[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "gelu"},
    {"gate_attn_act_mode", GGUF_FIELD_TEXT, .text = "sigmoid"},
    {"headwise_attn_output_gate", GGUF_FIELD_BOOL, .absent = 1},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_qkv.bias"},
    {"mlp_bias", GGUF_FIELD_HAS, .key = "blk.0.ffn_up.bias"},
    {"sliding_window", .key = ".attention.sliding_window"},
    {"layer_types", GGUF_FIELD_FLAGS, SLIDES},
    {0},
};

const GgufModel spark2_5_gguf = {.architecture = "spark2_5",
    .rope_of_kinds = true,
    .class_name = "Spark2_5ForCausalLM",
    .names = {spark_names, gguf_norms, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_own_head_dim, spark_fields},
    .tokenizer = {.pre = "spark2_5"}};

/* ---- Granite SWA ---- */

static const GgufName granite_swa_names[] = {
    {"blk.*.attn_sinks", "model.layers.*.self_attn.sinks", GGUF_NAMED},
    {0},
};

static const GgufField granite_rotates = {"rotates", GGUF_FIELD_FLAGS, .key = ".attention.rope_pattern"};

static void granite_theta(char *text, size_t size, const GgufSizes *sizes, const GgufLayerSizes *layer) {
    snprintf(text, size, "%.9g", layer->flagged ? sizes->rope_base : 0);
}

static const GgufField granite_swa_fields[] = {
    {"sliding_window", .key = ".attention.sliding_window"},
    {"layer_types", GGUF_FIELD_FLAGS, SLIDES},
    {"layer_rope_theta", GGUF_FIELD_EACH, .key = ".attention.rope_pattern", .flags = &granite_rotates,
        .layer = granite_theta},
    {0},
};

const GgufModel granite_swa_gguf = {.architecture = "granite_swa",
    .class_name = "GraniteSWAForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu, granite_swa_names},
    .fields = {gguf_sizes, gguf_rms, gguf_llama, gguf_granite, granite_swa_fields}};

static const GgufName granitemoe_swa_names[] = {
    {"blk.*.ffn_gate_inp", "model.layers.*.block_sparse_moe.router", 0},
    {"blk.*.ffn_gate_exps", "model.layers.*.block_sparse_moe.experts.switch_glu.gate_proj", 0},
    {"blk.*.ffn_up_exps", "model.layers.*.block_sparse_moe.experts.switch_glu.up_proj", 0},
    {"blk.*.ffn_gate_up_exps", "model.layers.*.block_sparse_moe.experts.switch_glu.#_proj", GGUF_GATE_UP},
    {"blk.*.ffn_down_exps", "model.layers.*.block_sparse_moe.experts.switch_glu.down_proj", 0},
    {"blk.*.ffn_up_shexp", "model.layers.*.shared_mlp.input_linear", 0},
    {"blk.*.ffn_down_shexp", "model.layers.*.shared_mlp.output_linear", 0},
    {0},
};

static const GgufField granitemoe_swa_fields[] = {
    {"num_local_experts", .key = ".expert_count"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {"shared_intermediate_size", .key = ".expert_shared_feed_forward_length", .optional = true},
    {0},
};

const GgufModel granitemoe_swa_gguf = {.architecture = "granite_swa",
    .with_key = ".expert_count",
    .class_name = "GraniteMoeSWAForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, granite_swa_names, granitemoe_swa_names},
    .fields = {
        gguf_sizes, gguf_rms, gguf_silu, gguf_attention_bias, gguf_granite, granite_swa_fields, granitemoe_swa_fields}};
