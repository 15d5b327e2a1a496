/* Other mixtures of experts in GGUF files. */
#include "family/gguf/models.h"

#define EXPERTS(home)                                                                                                  \
    {"blk.*.ffn_gate_exps", home ".gate_proj", 0}, {"blk.*.ffn_up_exps", home ".up_proj", 0}, {                        \
        "blk.*.ffn_down_exps", home ".down_proj", 0                                                                    \
    }
#define SHARED(home)                                                                                                   \
    {"blk.*.ffn_gate_shexp", home ".gate_proj", 0}, {"blk.*.ffn_up_shexp", home ".up_proj", 0}, {                      \
        "blk.*.ffn_down_shexp", home ".down_proj", 0                                                                   \
    }
#define WINDOWS(pattern)                                                                                               \
    {"sliding_window", .key = ".attention.sliding_window", .optional = true}, {                                        \
        "layer_types", GGUF_FIELD_FLAGS, .key = ".attention.sliding_window_pattern", .absent = (pattern),              \
                                         .text = "\"sliding_attention\"", .otherwise = "\"full_attention\""            \
    }
#define GROUPS                                                                                                         \
    {"n_group", .key = ".expert_group_count", .optional = true}, {                                                     \
        "topk_group", .key = ".expert_group_used_count", .optional = true                                              \
    }

static const GgufField usual_mixture[] = {
    {"num_experts", .key = ".expert_count"},
    {"n_group", .key = ".expert_group_count", .optional = true},
    {"topk_group", .key = ".expert_group_used_count", .optional = true},
    {"shared", GGUF_FIELD_IGNORED, .key = ".expert_shared_feed_forward_length"},
    {0},
};

/* ---- Hunyuan A13B ---- */

static const GgufName hunyuan_names[] = {
    {"blk.*.attn_q_norm", "model.layers.*.self_attn.query_layernorm", 0},
    {"blk.*.attn_k_norm", "model.layers.*.self_attn.key_layernorm", 0},
    {"blk.*.ffn_gate_inp", "model.layers.*.mlp.gate.wg", 0},
    EXPERTS("model.layers.*.mlp.switch_mlp"),
    SHARED("model.layers.*.mlp.shared_mlp"),
    {0},
};

static const GgufField hunyuan_fields[] = {
    {"use_qk_norm", GGUF_FIELD_HAS, .key = "blk.0.attn_q_norm.weight"},
    {"use_mixed_mlp_moe", GGUF_FIELD_HAS, .key = "blk.0.ffn_up_shexp.weight"},
    {"num_experts", .key = ".expert_count"},
    {"moe_topk", .key = ".expert_used_count"},
    {"moe_intermediate_size", .key = ".expert_feed_forward_length"},
    {"num_shared_expert", .key = ".expert_shared_count", .optional = true},
    {"shared", GGUF_FIELD_EQUAL, .key = ".expert_shared_feed_forward_length", .or_key = ".feed_forward_length"},
    {0},
};

const GgufModel hunyuan_moe_gguf = {.architecture = "hunyuan-moe",
    .class_name = "HunYuanMoEV1ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, hunyuan_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, gguf_own_head_dim, gguf_attention_bias, hunyuan_fields},
    .tokenizer = {.pre = "hunyuan"}};

/* ---- ERNIE 4.5 ---- */

static const GgufName ernie_names[] = {
    {"blk.*.exp_probs_b", "model.layers.*.mlp.moe_statics.e_score_correction_bias", GGUF_NAMED},
    {0},
};

/* The metadata's width of the shared experts is not used: that is their number times an expert's width. */
static const GgufField ernie_fields[] = {
    {"use_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {"moe_num_experts", .key = ".expert_count"},
    {"moe_k", .key = ".expert_used_count"},
    {"moe_intermediate_size", .key = ".expert_feed_forward_length"},
    {"moe_num_shared_experts", .key = ".expert_shared_count", .optional = true},
    {"moe_layer_start_index", .key = ".leading_dense_block_count", .optional = true},
    {"moe_layer_interval", .key = ".interleave_moe_layer_step", .absent = 1},
    {"shared", GGUF_FIELD_IGNORED, .key = ".expert_shared_feed_forward_length"},
    {0},
};

const GgufModel ernie4_5_moe_gguf = {.architecture = "ernie4_5-moe",
    .class_name = "Ernie4_5_MoeForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu, gguf_experts, gguf_shared, ernie_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, gguf_own_head_dim, ernie_fields}};

/* ---- MiniMax-M2 ---- */

static const GgufName minimax_names[] = {
    {"blk.*.ffn_gate_inp", "model.layers.*.block_sparse_moe.gate", 0},
    EXPERTS("model.layers.*.block_sparse_moe.switch_mlp"),
    {"blk.*.exp_probs_b", "model.layers.*.block_sparse_moe.e_score_correction_bias", GGUF_NAMED},
    {0},
};

static const GgufField minimax_fields[] = {
    {"num_local_experts", .key = ".expert_count"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {"width", GGUF_FIELD_EQUAL, .key = ".expert_feed_forward_length", .or_key = ".feed_forward_length"},
    {"rotary_dim", .key = ".rope.dimension_count", .optional = true},
    {"use_qk_norm", GGUF_FIELD_HAS, .key = "blk.0.attn_q_norm.weight"},
    {"scoring_func", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {0},
};

const GgufModel minimax_gguf = {.architecture = "minimax-m2",
    .class_name = "MiniMaxM2ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_head_norms, minimax_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, gguf_own_head_dim, minimax_fields},
    .tokenizer = {.pre = "minimax-m2"}};

/* ---- MiniMax-M3 ---- */

static const GgufName minimax_m3_names[] = {
    {"output_norm", "model.norm", GGUF_PLUS_ONE},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", GGUF_PLUS_ONE},
    {"blk.*.ffn_norm", "model.layers.*.post_attention_layernorm", GGUF_PLUS_ONE},
    {"blk.*.attn_q_norm", "model.layers.*.self_attn.q_norm", GGUF_PLUS_ONE},
    {"blk.*.attn_k_norm", "model.layers.*.self_attn.k_norm", GGUF_PLUS_ONE},
    {"blk.*.indexer.q_proj", "model.layers.*.self_attn.index_q_proj", 0},
    {"blk.*.indexer.k_proj", "model.layers.*.self_attn.index_k_proj", 0},
    {"blk.*.indexer.q_norm", "model.layers.*.self_attn.index_q_norm", GGUF_PLUS_ONE},
    {"blk.*.indexer.k_norm", "model.layers.*.self_attn.index_k_norm", GGUF_PLUS_ONE},
    SHARED("model.layers.*.block_sparse_moe.shared_experts"),
    {0},
};

/* The file has the number of shared experts, each as wide as the others. That SwiGLU is cut off at 7 is llama.cpp's
 * constant. */
static const GgufField minimax_m3_fields[] = {
    {"intermediate_size", .key = ".expert_feed_forward_length"},
    {"dense_intermediate_size", .key = ".feed_forward_length"},
    {"shared_intermediate_size", GGUF_FIELD_ROWS, .key = "blk.*.ffn_up_shexp.weight"},
    {"num_local_experts", .key = ".expert_count"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {"scoring_func", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {"moe_layer_freq", GGUF_FIELD_FLAGS, .key = "blk.*.ffn_gate_inp.weight", .text = "1", .otherwise = "0"},
    {"rotary_dim", .key = ".rope.dimension_count"},
    {"use_qk_norm", GGUF_FIELD_HAS, .key = "blk.0.attn_q_norm.weight"},
    {"sparse_attention_freq", GGUF_FIELD_FLAGS, .key = "blk.*.indexer.q_proj.weight", .text = "1", .otherwise = "0"},
    {"index_n_heads", .key = ".attention.indexer.head_count"},
    {"index_head_dim", .key = ".attention.indexer.key_length"},
    {"index_topk_blocks", .key = ".attention.indexer.top_k"},
    {"index_block_size", .key = ".attention.indexer.block_size"},
    {"index_local_blocks", GGUF_FIELD_COUNT, .key = ".attention.indexer.local_blocks"},
    {"dense", GGUF_FIELD_IGNORED, .key = ".leading_dense_block_count"},
    {"shared", GGUF_FIELD_IGNORED, .key = ".expert_shared_count"},
    {"norm", GGUF_FIELD_IGNORED, .key = ".expert_weights_norm"}, /* always true */
    {0},
};

const GgufModel minimax_m3_gguf = {.architecture = "minimax-m3",
    .class_name = "MiniMaxM3SparseForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, minimax_names, minimax_m3_names},
    .fields = {gguf_outer_sizes, gguf_rms, gguf_silu, gguf_own_head_dim, minimax_m3_fields},
    .tokenizer = {.pre = "minimax-m2"}};

/* ---- Hy3 ---- */

static const GgufName hy_v3_names[] = {
    {"blk.*.exp_probs_b", "model.layers.*.mlp.e_score_correction_bias", GGUF_NAMED},
    {0},
};

static const GgufField hy_v3_fields[] = {
    {"num_experts", .key = ".expert_count"},
    {"mlp_layer_types", GGUF_FIELD_FLAGS, .key = "blk.*.ffn_gate_inp.weight", .text = "\"sparse\"",
        .otherwise = "\"dense\""},
    {"width", GGUF_FIELD_EQUAL, .key = ".expert_shared_feed_forward_length", .or_key = ".expert_feed_forward_length"},
    {"moe_router_use_sigmoid", GGUF_FIELD_BOOL, .absent = 1},
    {"route_norm", GGUF_FIELD_BOOL, .key = ".expert_weights_norm", .absent = 0},
    {"router_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {"scores", GGUF_FIELD_IGNORED, .key = ".expert_gating_func"},
    {"shared", GGUF_FIELD_IGNORED, .key = ".expert_shared_count"},
    {0},
};

const GgufModel hy_v3_gguf = {.architecture = "hy_v3",
    .class_name = "HYV3ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu, gguf_head_norms, gguf_experts, gguf_shared, hy_v3_names},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, gguf_own_head_dim, hy_v3_fields}};

/* ---- K-EXAONE ---- */

static const GgufField exaone_fields[] = {
    WINDOWS(4),
    {"is_moe_layer", GGUF_FIELD_FLAGS, .key = "blk.*.ffn_gate_inp.weight", .text = "true", .otherwise = "false"},
    {"num_shared_experts", .key = ".expert_shared_count", .optional = true},
    {"scoring_func", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .key = ".expert_weights_norm", .absent = 0},
    {"routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {"dense", GGUF_FIELD_IGNORED, .key = ".leading_dense_block_count"},
    {0},
};

const GgufModel exaone_moe_gguf = {.architecture = "exaone-moe",
    .class_name = "ExaoneMoeForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu, gguf_head_norms, gguf_experts, gguf_shared, gguf_correction},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, usual_mixture, gguf_own_head_dim, exaone_fields},
    .tokenizer = {.pre = "exaone-moe"}};

/* ---- AFMoE ---- */

static const GgufName afmoe_names[] = {
    {"output_norm", "model.norm", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", 0},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", 0},
    {"blk.*.ffn_norm", "model.layers.*.pre_mlp_layernorm", 0},
    {"blk.*.post_ffw_norm", "model.layers.*.post_mlp_layernorm", 0},
    {"blk.*.attn_gate", "model.layers.*.self_attn.gate_proj", 0},
    {"blk.*.ffn_gate_inp", "model.layers.*.mlp.router.gate", 0},
    EXPERTS("model.layers.*.mlp.experts"),
    {"blk.*.exp_probs_b", "model.layers.*.mlp.expert_bias", GGUF_NAMED},
    {0},
};

static const GgufField afmoe_fields[] = {
    WINDOWS(4),
    {"num_shared_experts", GGUF_FIELD_COUNT, .key = ".expert_shared_count"},
    {"num_dense_layers", GGUF_FIELD_COUNT, .key = ".leading_dense_block_count"},
    {"score_func", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"route_norm", GGUF_FIELD_BOOL, .key = ".expert_weights_norm", .absent = 0},
    {"route_scale", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {"mup_enabled", GGUF_FIELD_BOOL, .absent = 1},
    {0},
};

const GgufModel afmoe_gguf = {.architecture = "afmoe",
    .own_head = true,
    .class_name = "AfmoeForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, gguf_head_norms, gguf_shared, afmoe_names},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, usual_mixture, gguf_own_head_dim, afmoe_fields}};

/* ---- Ling and Ring ---- */

static const GgufName bailing_names[] = {
    {"token_embd", "model.word_embeddings", 0},
    {"blk.*.exp_probs_b", "model.layers.*.mlp.gate.expert_bias", GGUF_NAMED},
    {0},
};

static const GgufName bailing2_names[] = {
    {"blk.*.attn_qkv", "model.layers.*.attention.query_key_value", 0},
    {"blk.*.attn_output", "model.layers.*.attention.dense", 0},
    {"blk.*.attn_q_norm", "model.layers.*.attention.query_layernorm", 0},
    {"blk.*.attn_k_norm", "model.layers.*.attention.key_layernorm", 0},
    {0},
};

static const GgufField bailing_fields[] = {
    {"num_experts", .key = ".expert_count"},
    {"num_shared_experts", .key = ".expert_shared_count", .optional = true},
    {"first_k_dense_replace", .key = ".leading_dense_block_count", .optional = true},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .key = ".expert_weights_norm", .absent = 0},
    {"routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {0},
};

static const GgufField bailing1_fields[] = {
    {"score_function", GGUF_FIELD_TEXT, .text = "softmax", .key = ".expert_gating_func", .absent = 1},
    {0},
};

static const GgufField bailing2_fields[] = {
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    GROUPS,
    {"moe_shared_expert_intermediate_size", .key = ".expert_shared_feed_forward_length", .optional = true},
    {"score_function", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"moe_router_enable_expert_bias", GGUF_FIELD_HAS, .key = "blk.*.exp_probs_b.bias"},
    {"use_qk_norm", GGUF_FIELD_HAS, .key = "blk.0.attn_q_norm.weight"},
    {"use_qkv_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_qkv.bias"},
    {"use_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_output.bias"},
    {0},
};

static const GgufModel bailing2_gguf = {.architecture = "bailingmoe2",
    .class_name = "BailingMoeV2ForCausalLM",
    .names = {bailing_names, bailing2_names, gguf_ends, gguf_norms, gguf_glu, gguf_experts, gguf_shared},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, gguf_own_head_dim, bailing_fields, bailing2_fields},
    .tokenizer = {.pre = "bailingmoe2"}};

const GgufModel bailing_moe_gguf = {.architecture = "bailingmoe",
    .class_name = "BailingMoeForCausalLM",
    .names = {bailing_names, gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu, gguf_experts, gguf_shared},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, gguf_own_head_dim, bailing_fields, bailing1_fields},
    .tokenizer = {.pre = "bailingmoe"},
    .other = &bailing2_gguf};

/* ---- Phi-3.5-MoE ---- */

static const GgufName phimoe_names[] = {
    {"blk.*.ffn_gate_inp", "model.layers.*.block_sparse_moe.gate", 0},
    EXPERTS("model.layers.*.block_sparse_moe.switch_mlp"),
    {0},
};

static const GgufField phimoe_fields[] = {
    {"num_local_experts", .key = ".expert_count"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {"sliding_window", .key = ".attention.sliding_window", .optional = true},
    {"attention_bias", GGUF_FIELD_BOOL, .absent = 1},
    {"lm_head_bias", GGUF_FIELD_BOOL, .absent = 1},
    {0},
};

const GgufModel phimoe_gguf = {.architecture = "phimoe",
    .own_head = true,
    .class_name = "PhiMoEForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, phimoe_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, phimoe_fields}};

/* ---- MiMo-V2-Flash ---- */

static const GgufName mimo_names[] = {
    {"blk.*.attn_sinks", "model.layers.*.self_attn.attention_sink_bias", GGUF_NAMED},
    {0},
};

static const GgufField mimo_slides = {"hybrid_layer_pattern", GGUF_FIELD_FLAGS,
    .key = ".attention.sliding_window_pattern", .text = "1", .otherwise = "0"};

static const GgufField mimo_fields[] = {
    {"hidden_size", .key = ".embedding_length"},
    {"intermediate_size", .key = ".feed_forward_length"},
    {"num_hidden_layers", .key = ".block_count", .compute = gguf_layer_count},
    {"max_position_embeddings", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"tie_word_embeddings", GGUF_FIELD_LACKS, .key = "output.weight"},
    {"layernorm_epsilon", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_rms_epsilon"},
    {"num_attention_heads", .key = ".attention.head_count"},
    {"swa_num_attention_heads", .key = ".attention.head_count"},
    {"num_key_value_heads", GGUF_FIELD_WHERE, .key = ".attention.head_count_kv", .flags = &mimo_slides,
        .unflagged = true},
    {"swa_num_key_value_heads", GGUF_FIELD_WHERE, .key = ".attention.head_count_kv", .flags = &mimo_slides},
    {"head_dim", .key = ".attention.key_length"},
    {"swa_head_dim", .key = ".attention.key_length"},
    {"v_head_dim", .key = ".attention.value_length"},
    {"swa_v_head_dim", .key = ".attention.value_length"},
    {"attention_value_scale", GGUF_FIELD_NUMBER, .key = ".attention.value_scale", .optional = true},
    {"sliding_window_size", .key = ".attention.sliding_window"},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {"swa_rope_theta", GGUF_FIELD_NUMBER, .key = ".rope.freq_base_swa", .or_key = ".rope.freq_base"},
    {"hybrid_layer_pattern", GGUF_FIELD_FLAGS, .key = ".attention.sliding_window_pattern", .text = "1",
        .otherwise = "0"},
    {"moe_layer_freq", GGUF_FIELD_FLAGS, .key = "blk.*.ffn_gate_inp.weight", .text = "1", .otherwise = "0"},
    {"add_swa_attention_sink_bias", GGUF_FIELD_HAS, .key = "blk.*.attn_sinks.weight"},
    {"add_full_attention_sink_bias", GGUF_FIELD_BOOL, .absent = 0},
    {"n_routed_experts", .key = ".expert_count"},
    GROUPS,
    {"scoring_func", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .absent = 1},
    {"routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {0},
};

const GgufModel mimo_v2_flash_gguf = {.architecture = "mimo2",
    .class_name = "MiMoV2FlashForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu, gguf_experts, gguf_correction, mimo_names},
    .fields = {gguf_moe, mimo_fields},
    .tokenizer = {.pre = "qwen2"}};

/* ---- Llama 4 ---- */

static const GgufName llama4_names[] = {
    {"blk.*.ffn_gate", "model.layers.*.feed_forward.gate_proj", 0},
    {"blk.*.ffn_up", "model.layers.*.feed_forward.up_proj", 0},
    {"blk.*.ffn_down", "model.layers.*.feed_forward.down_proj", 0},
    {"blk.*.ffn_gate_inp", "model.layers.*.feed_forward.router", 0},
    EXPERTS("model.layers.*.feed_forward.experts"),
    SHARED("model.layers.*.feed_forward.shared_expert"),
    {0},
};

/* As llama.cpp has it, the number of experts tells Scout from Maverick, whose q and k are not normalised. */
static double has_head_norms(const GgufSizes *s) {
    enum { EXPERTS_OF_MAVERICK = 128 };
    return s->experts == EXPERTS_OF_MAVERICK ? 0 : 1;
}

/* The chunks and the growth of queries are llama.cpp's constants. */
static const GgufField llama4_fields[] = {
    {"intermediate_size", .key = ".expert_feed_forward_length"},
    {"intermediate_size_mlp", .key = ".feed_forward_length"},
    {"num_local_experts", .key = ".expert_count"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {"interleave_moe_layer_step", .key = ".interleave_moe_layer_step"},
    {"dense", GGUF_FIELD_IGNORED, .key = ".leading_dense_block_count"},
    {"use_qk_norm", GGUF_FIELD_BOOL, .compute = has_head_norms},
    {"no_rope_layer_interval", .key = ".attention.sliding_window_pattern", .absent = 4},
    {"attention_chunk_size", .absent = 8192},
    {"attn_temperature_tuning", GGUF_FIELD_BOOL, .absent = 1},
    {"floor_scale", .absent = 8192},
    {"attn_scale", GGUF_FIELD_NUMBER, .absent = 0.1},
    {0},
};

const GgufModel llama4_gguf = {.architecture = "llama4",
    .with_key = ".expert_count",
    .class_name = "Llama4ForCausalLM",
    .names = {llama4_names, gguf_ends, gguf_norms, gguf_qkv},
    .fields = {gguf_outer_sizes, llama4_fields, gguf_rms, gguf_silu, gguf_own_head_dim, gguf_attention_bias},
    .tokenizer = {.pre = "llama4"}};

/* ---- DBRX ---- */

static const GgufName dbrx_names[] = {
    {"token_embd", "transformer.wte", 0},
    {"output_norm", "transformer.norm_f", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_norm", "transformer.blocks.*.norm_attn_norm.norm_1", 0},
    {"blk.*.attn_output_norm", "transformer.blocks.*.norm_attn_norm.norm_2", 0},
    {"blk.*.attn_qkv", "transformer.blocks.*.norm_attn_norm.attn.Wqkv", 0},
    {"blk.*.attn_output", "transformer.blocks.*.norm_attn_norm.attn.out_proj", 0},
    {"blk.*.ffn_gate_inp", "transformer.blocks.*.ffn.router.layer", 0},
    EXPERTS("transformer.blocks.*.ffn.switch_mlp"),
    {0},
};

static const GgufField dbrx_fields[] = {
    {"d_model", .key = ".embedding_length"},
    {"n_layers", .key = ".block_count", .compute = gguf_layer_count},
    {"n_heads", .key = ".attention.head_count"},
    {"max_seq_len", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"tie_word_embeddings", GGUF_FIELD_LACKS, .key = "output.weight"},
    {"attn_config.kv_n_heads", .key = ".attention.head_count_kv"},
    {"attn_config.clip_qkv", GGUF_FIELD_NUMBER, .key = ".attention.clamp_kqv"},
    {"attn_config.rope_theta", GGUF_FIELD_NUMBER, .key = ".rope.freq_base", .absent = 10000},
    {"ffn_config.ffn_hidden_size", .key = ".feed_forward_length"},
    {"ffn_config.moe_num_experts", .key = ".expert_count"},
    {"ffn_config.moe_top_k", .key = ".expert_used_count"},
    {0},
};

const GgufModel dbrx_gguf = {.architecture = "dbrx",
    .rope_in_fields = true,
    .class_name = "DbrxForCausalLM",
    .names = {dbrx_names},
    .fields = {dbrx_fields},
    .tokenizer = {.pre = "dbrx"}};

/* ---- DeepSeekMoE ---- */

static const GgufField deepseek_fields[] = {
    {"n_routed_experts", .key = ".expert_count"},
    {"n_shared_experts", .key = ".expert_shared_count", .optional = true},
    {"first_k_dense_replace", .key = ".leading_dense_block_count", .optional = true},
    {"moe_layer_freq", .absent = 1},
    {"scoring_func", GGUF_FIELD_TEXT, .text = "softmax"},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .absent = 0},
    {"scale", GGUF_FIELD_IGNORED, .key = ".expert_weights_scale"}, /* always 1 */
    {0},
};

const GgufModel deepseek_gguf = {.architecture = "deepseek",
    .class_name = "DeepseekForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu, gguf_experts, gguf_shared},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, deepseek_fields}};

/* ---- dots.llm1 ---- */

static const GgufName dots1_names[] = {
    {"blk.*.ffn_gate_inp", "model.layers.*.mlp.gate", 0},
    {"blk.*.ffn_gate_exps", "model.layers.*.mlp.experts.gate_proj", 0},
    {"blk.*.ffn_up_exps", "model.layers.*.mlp.experts.up_proj", 0},
    {"blk.*.ffn_down_exps", "model.layers.*.mlp.experts.down_proj", 0},
    {"blk.*.exp_probs_b", "model.layers.*.mlp.gate.e_score_correction_bias", GGUF_NAMED},
    {0},
};

static const GgufField dots1_fields[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"n_routed_experts", .key = ".expert_count"},
    {"n_shared_experts", .key = ".expert_shared_count", .optional = true},
    {"first_k_dense_replace", .key = ".leading_dense_block_count", .optional = true},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .key = ".expert_weights_norm", .absent = 0},
    {"routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {0},
};

const GgufModel dots1_gguf = {.architecture = "dots1",
    .class_name = "Dots1ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu, gguf_head_norms, gguf_shared, dots1_names},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, dots1_fields}};

/* ---- gpt-oss ---- */

static const GgufName gpt_oss_names[] = {
    {"output_norm", "model.norm", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", 0},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", 0},
    {"blk.*.attn_sinks", "model.layers.*.self_attn.sinks", GGUF_NAMED},
    {"blk.*.ffn_gate_inp", "model.layers.*.mlp.router", 0},
    {"blk.*.ffn_gate_exps", "model.layers.*.mlp.experts.gate_proj", 0},
    {"blk.*.ffn_up_exps", "model.layers.*.mlp.experts.up_proj", 0},
    {"blk.*.ffn_down_exps", "model.layers.*.mlp.experts.down_proj", 0},
    {0},
};

static const GgufField gpt_oss_fields[] = {
    {"intermediate_size", .key = ".expert_feed_forward_length", .or_key = ".feed_forward_length"},
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"num_local_experts", .key = ".expert_count"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {"sliding_window", .key = ".attention.sliding_window"},
    {0},
};

const GgufModel gpt_oss_gguf = {.architecture = "gpt-oss",
    .class_name = "GptOssForCausalLM",
    .yarn_bounds_exact = true,
    .names = {gguf_ends, gguf_qkv, gpt_oss_names},
    .fields = {gguf_outer_sizes, gpt_oss_fields, gguf_rms}};

/* ---- Mellum 2 ---- */

static const GgufField mellum_fields[] = {
    WINDOWS(4),
    {"swa_rope_theta", GGUF_FIELD_NUMBER, .key = ".rope.freq_base_swa", .or_key = ".rope.freq_base"},
    {"num_experts", .key = ".expert_count"},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .absent = 1},
    {0},
};

const GgufModel mellum_gguf = {.architecture = "mellum",
    .class_name = "MellumForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_head_norms, gguf_experts},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, gguf_own_head_dim, gguf_attention_bias, mellum_fields},
    .tokenizer = {.pre = "mellum2"}};
