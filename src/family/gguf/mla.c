/* Models with MLA in GGUF files. Source of names and keys: llama.cpp's converter and src/models. */
#include "family/gguf/models.h"

/* Older files have the matrices of the heads in one. */
static const GgufName names[] = {
    {"blk.*.attn_q", "model.layers.*.self_attn.q_proj", 0},
    {"blk.*.attn_q_a", "model.layers.*.self_attn.q_a_proj", 0},
    {"blk.*.attn_q_b", "model.layers.*.self_attn.q_b_proj", 0},
    {"blk.*.attn_q_a_norm", "model.layers.*.self_attn.q_a_layernorm", 0},
    {"blk.*.attn_kv_a_mqa", "model.layers.*.self_attn.kv_a_proj_with_mqa", 0},
    {"blk.*.attn_kv_a_norm", "model.layers.*.self_attn.kv_a_layernorm", 0},
    {"blk.*.attn_kv_b", "model.layers.*.self_attn.kv_b_proj", 0},
    {"blk.*.attn_k_b", "model.layers.*.self_attn.embed_q", 0},
    {"blk.*.attn_v_b", "model.layers.*.self_attn.unembed_out", 0},
    {"blk.*.exp_probs_b", "model.layers.*.mlp.gate.e_score_correction_bias", GGUF_NAMED},
    {0},
};

static double plain_dims(const GgufSizes *sizes) { return (double)sizes->plain_dims; }

static const GgufField fields[] = {
    {"q_lora_rank", .key = ".attention.q_lora_rank", .optional = true},
    {"kv_lora_rank", .key = ".attention.kv_lora_rank"},
    {"qk_rope_head_dim", .key = ".rope.dimension_count"},
    {"qk_nope_head_dim", .key = ".attention.key_length_mla", .compute = plain_dims},
    {"v_head_dim", .key = ".attention.value_length_mla", .or_key = ".attention.value_length"},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_kv_a_mqa.bias"},
    {"n_routed_experts", .key = ".expert_count", .optional = true},
    {"n_shared_experts", .key = ".expert_shared_count", .optional = true},
    {"first_k_dense_replace", .key = ".leading_dense_block_count", .optional = true},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .key = ".expert_weights_norm", .absent = 0},
    {"routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {"topk_group", .key = ".expert_group_used_count", .optional = true},
    {0},
};

/* Models of V2 that choose among groups are refused: what a group is worth, the file does not say. */
static const GgufField fields_v2[] = {
    {"scoring_func", GGUF_FIELD_TEXT, .text = "softmax", .key = ".expert_gating_func", .absent = 1},
    {"topk_method", GGUF_FIELD_TEXT, .text = "greedy", .key = ".expert_group_count", .absent = 1},
    {0},
};

static const GgufField fields_v3[] = {
    {"scoring_func", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"n_group", .key = ".expert_group_count", .optional = true},
    {0},
};

const GgufModel deepseek_v2_gguf = {.architecture = "deepseek2",
    .latent = true,
    .class_name = "DeepseekV2ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_glu, gguf_experts, gguf_shared, names},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, fields, fields_v2}};

const GgufModel deepseek_v3_gguf = {.architecture = "deepseek2",
    .with_key = ".expert_gating_func",
    .with_value = 2,
    .latent = true,
    .class_name = "DeepseekV3ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_glu, gguf_experts, gguf_shared, names},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, fields, fields_v3}};

/* GLM-4.7-Flash: in GGUF a DeepSeek-V3; its tokenizer tells that the norms of latents have the model's eps. */
const GgufModel glm4_moe_lite_gguf = {.architecture = "deepseek2",
    .with_key = "tokenizer.ggml.pre",
    .with_text = "glm4",
    .latent = true,
    .class_name = "Glm4MoeLiteForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_glu, gguf_experts, gguf_shared, names},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, fields, fields_v3}};

/* Youtu-LLM: in GGUF a DeepSeek-V2 without experts, which has their keys anyway; known by its tokenizer, too. */
static const GgufField fields_youtu[] = {
    {"q_lora_rank", .key = ".attention.q_lora_rank", .optional = true},
    {"kv_lora_rank", .key = ".attention.kv_lora_rank"},
    {"qk_rope_head_dim", .key = ".rope.dimension_count"},
    {"qk_nope_head_dim", .key = ".attention.key_length_mla", .compute = plain_dims},
    {"v_head_dim", .key = ".attention.value_length_mla"},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_kv_a_mqa.bias"},
    {"width", GGUF_FIELD_IGNORED, .key = ".expert_feed_forward_length"},
    {"shared", GGUF_FIELD_IGNORED, .key = ".expert_shared_count"},
    {"dense", GGUF_FIELD_IGNORED, .key = ".leading_dense_block_count"},
    {"scale", GGUF_FIELD_IGNORED, .key = ".expert_weights_scale"},
    {"norm", GGUF_FIELD_IGNORED, .key = ".expert_weights_norm"},
    {0},
};

const GgufModel youtu_llm_gguf = {.architecture = "deepseek2",
    .with_key = "tokenizer.ggml.pre",
    .with_text = "youtu",
    .latent = true,
    .class_name = "YoutuForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_glu, names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, fields_youtu}};

static const GgufName names_mistral4[] = {
    {"blk.*.ffn_gate_up_exps", "model.layers.*.mlp.switch_mlp.#_proj", GGUF_GATE_UP},
    {0},
};

static const GgufField fields_mistral4[] = {
    {"n_group", .key = ".expert_group_count", .optional = true},
    {"scores", GGUF_FIELD_IGNORED, .key = ".expert_gating_func"},
    {"length", GGUF_FIELD_EQUAL, .key = ".attention.temperature_length",
        .or_key = ".rope.scaling.original_context_length"},
    {0},
};

const GgufModel mistral4_gguf = {.architecture = "mistral4",
    .latent = true,
    .queries_scaled = true,
    .class_name = "Mistral4ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_glu, gguf_experts, gguf_shared, names, names_mistral4},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, fields, fields_mistral4},
    .tokenizer = {.pre = "tekken"}};

static const GgufName names_indexer[] = {
    {"blk.*.indexer.k_norm", "model.layers.*.self_attn.indexer.k_norm", 0},
    {"blk.*.indexer.proj", "model.layers.*.self_attn.indexer.weights_proj", 0},
    {"blk.*.indexer.attn_k", "model.layers.*.self_attn.indexer.wk", 0},
    {"blk.*.indexer.attn_q_b", "model.layers.*.self_attn.indexer.wq_b", 0},
    {0},
};

static const GgufField fields_indexer[] = {
    {"index_topk", .key = ".attention.indexer.top_k"},
    {"index_n_heads", .key = ".attention.indexer.head_count"},
    {"index_head_dim", .key = ".attention.indexer.key_length"},
    {"types", GGUF_FIELD_IGNORED, .key = ".attention.indexer.types"},
    {0},
};

const GgufModel glm_moe_dsa_gguf = {.architecture = "glm-dsa",
    .latent = true,
    .class_name = "GlmMoeDsaForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_glu, gguf_experts, gguf_shared, names, names_indexer},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, fields, fields_v3, fields_indexer},
    .tokenizer = {.pre = "glm4"}};

const GgufModel deepseek_v32_gguf = {.architecture = "deepseek32",
    .latent = true,
    .class_name = "DeepseekV32ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_glu, gguf_experts, gguf_shared, names, names_indexer},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, fields, fields_v3, fields_indexer},
    .tokenizer = {.pre = "deepseek-v3"}};
