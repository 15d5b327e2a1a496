/* Other dense models in GGUF files. */
#include "family/gguf/models.h"

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
    .fields = {gguf_sizes, gguf_rms, gguf_silu, gguf_own_head_dim, gguf_attention_bias, hunyuan_fields},
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
    .fields = {gguf_sizes, gguf_rms, gguf_own_head_dim, gguf_attention_bias, apertus_fields},
    .tokenizer = {.pre = "tekken"}};

/* A layer of GPT-NeoX, BLOOM and Falcon but for its second norm. */
#define FUSED_LAYER(home, attention)                                                                                   \
    {"blk.*.attn_norm", home ".input_layernorm", 0},                                                                   \
        {"blk.*.attn_qkv", home "." attention ".query_key_value", GGUF_HEADS_APART},                                   \
        {"blk.*.attn_output", home "." attention ".dense", 0}, {"blk.*.ffn_up", home ".mlp.dense_h_to_4h", 0}, {       \
        "blk.*.ffn_down", home ".mlp.dense_4h_to_h", 0                                                                 \
    }

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
    {"n_layer", .key = ".block_count", .compute = gguf_layer_count},
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
    {"blk.*.ffn_norm", "model.h.*.post_attention_layernorm", 0},
    FUSED_LAYER("model.h.*", "attention"),
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

/* ---- BLOOM ---- */

static const GgufName bloom_names[] = {
    {"token_embd", "transformer.word_embeddings", 0},
    {"token_embd_norm", "transformer.word_embeddings_layernorm", 0},
    {"output_norm", "transformer.ln_f", 0},
    {"output", "lm_head", 0},
    {"blk.*.ffn_norm", "transformer.h.*.post_attention_layernorm", 0},
    FUSED_LAYER("transformer.h.*", "self_attention"),
    {0},
};

static const GgufField bloom_fields[] = {
    {"hidden_size", .key = ".embedding_length"},
    {"n_layer", .key = ".block_count", .compute = gguf_layer_count},
    {"n_head", .key = ".attention.head_count"},
    {"n_inner", .key = ".feed_forward_length"},
    {"seq_length", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"layer_norm_epsilon", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon"},
    {"tie_word_embeddings", GGUF_FIELD_LACKS, .key = "output.weight"},
    {"num_key_value_heads", .key = ".attention.head_count_kv", .or_key = ".attention.head_count"},
    {0},
};

const GgufModel bloom_gguf = {.architecture = "bloom",
    .no_rope = true,
    .class_name = "BloomForCausalLM",
    .names = {bloom_names},
    .fields = {bloom_fields},
    .tokenizer = {.pre = "bloom"}};

/* ---- MPT ---- */

static const GgufName mpt_names[] = {
    {"token_embd", "transformer.wte", 0},
    {"output_norm", "transformer.norm_f", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_norm", "transformer.blocks.*.norm_1", 0},
    {"blk.*.ffn_norm", "transformer.blocks.*.norm_2", 0},
    {"blk.*.attn_qkv", "transformer.blocks.*.attn.Wqkv", 0},
    {"blk.*.attn_output", "transformer.blocks.*.attn.out_proj", 0},
    {"blk.*.ffn_up", "transformer.blocks.*.ffn.up_proj", 0},
    {"blk.*.ffn_down", "transformer.blocks.*.ffn.down_proj", 0},
    {0},
};

/* The network is four times as wide as the model in all files; without ALiBi its largest bias is 0. */
static const GgufField mpt_fields[] = {
    {"d_model", .key = ".embedding_length"},
    {"n_layers", .key = ".block_count", .compute = gguf_layer_count},
    {"n_heads", .key = ".attention.head_count"},
    {"max_seq_len", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"layer_norm_epsilon", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon"},
    {"tie_word_embeddings", GGUF_FIELD_LACKS, .key = "output.weight"},
    {"attn_config.alibi", GGUF_FIELD_BOOL, .absent = 1},
    {"attn_config.alibi_bias_max", GGUF_FIELD_NUMBER, .key = ".attention.max_alibi_bias"},
    {"attn_config.clip_qkv", GGUF_FIELD_NUMBER, .key = ".attention.clamp_kqv", .optional = true},
    {"width", GGUF_FIELD_IGNORED, .key = ".feed_forward_length"},
    {"keys", GGUF_FIELD_EQUAL, .key = ".attention.head_count_kv", .or_key = ".attention.head_count"},
    {0},
};

const GgufModel mpt_gguf = {.architecture = "mpt",
    .no_rope = true,
    .class_name = "MPTForCausalLM",
    .names = {mpt_names},
    .fields = {mpt_fields},
    .tokenizer = {.pre = "mpt"}};

/* ---- Falcon ---- */

/* The 40B has a norm of its own before attention; the other one is called as the 7B's only one. */
static const GgufName falcon_names[] = {
    {"token_embd", "transformer.word_embeddings", 0},
    {"output_norm", "transformer.ln_f", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_norm_2", "transformer.h.*.ln_attn", 0},
    FUSED_LAYER("transformer.h.*", "self_attention"),
    {0},
};

/* In the newer architecture's form, which the older one's models with one head of keys have as well. */
static const GgufField falcon_fields[] = {
    {"hidden_size", .key = ".embedding_length"},
    {"ffn_hidden_size", .key = ".feed_forward_length"},
    {"num_hidden_layers", .key = ".block_count", .compute = gguf_layer_count},
    {"num_attention_heads", .key = ".attention.head_count"},
    {"num_kv_heads", .key = ".attention.head_count_kv", .absent = 1},
    {"max_position_embeddings", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"layer_norm_epsilon", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon"},
    {"new_decoder_architecture", GGUF_FIELD_BOOL, .absent = 1},
    {"bias", GGUF_FIELD_HAS, .key = "blk.0.attn_qkv.bias"},
    {"tie_word_embeddings", GGUF_FIELD_LACKS, .key = "output.weight"},
    {"layout", GGUF_FIELD_IGNORED, .key = ".tensor_data_layout"},
    {0},
};

const GgufModel falcon_gguf = {.architecture = "falcon",
    .class_name = "FalconForCausalLM",
    .names = {falcon_names},
    .fields = {falcon_fields},
    .tokenizer = {.pre = "falcon"}};

/* ---- Seed-OSS, Nemotron ---- */

static const GgufName seed_names[] = {
    {"output_norm", "model.norm", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", 0},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", 0},
    {0},
};

static const GgufName nemotron_names[] = {
    {"output_norm", "model.norm", GGUF_PLUS_ONE},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", GGUF_PLUS_ONE},
    {"blk.*.ffn_norm", "model.layers.*.post_attention_layernorm", GGUF_PLUS_ONE},
    {"blk.*.ffn_up", "model.layers.*.mlp.up_proj", 0},
    {0},
};

static const GgufField nemotron_fields[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "relu2"},
    {"norm_eps", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon"},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {"mlp_bias", GGUF_FIELD_HAS, .key = "blk.0.ffn_up.bias"},
    {0},
};

const GgufModel seed_oss_gguf = {.architecture = "seed_oss",
    .class_name = "SeedOssForCausalLM",
    .names = {gguf_ends, gguf_qkv, gguf_glu, seed_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, gguf_own_head_dim, gguf_attention_bias}};

const GgufModel nemotron_gguf = {.architecture = "nemotron",
    .class_name = "NemotronForCausalLM",
    .names = {gguf_ends, gguf_qkv, nemotron_names},
    .fields = {gguf_sizes, gguf_own_head_dim, gguf_attention_bias, nemotron_fields}};

/* ---- Jais 2 ---- */

static const GgufName jais2_names[] = {
    {"blk.*.ffn_up", "model.layers.*.mlp.up_proj", 0},
    {0},
};

static const GgufField jais2_fields[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "relu2"},
    {"layer_norm_eps", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon"},
    {"mlp_bias", GGUF_FIELD_HAS, .key = "blk.0.ffn_up.bias"},
    {0},
};

const GgufModel jais2_gguf = {.architecture = "jais2",
    .class_name = "Jais2ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, jais2_names},
    .fields = {gguf_sizes, gguf_own_head_dim, gguf_attention_bias, jais2_fields},
    .tokenizer = {.pre = "jais-2"}};

/* ---- Arcee ---- */

static const GgufName arcee_names[] = {{"blk.*.ffn_up", "model.layers.*.mlp.up_proj", 0}, {0}};

static const GgufField arcee_fields[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "relu2"},
    {"mlp_bias", GGUF_FIELD_HAS, .key = "blk.0.ffn_up.bias"},
    {0},
};

const GgufModel arcee_gguf = {.architecture = "arcee",
    .class_name = "ArceeForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, arcee_names},
    .fields = {gguf_sizes, gguf_rms, gguf_own_head_dim, gguf_attention_bias, arcee_fields},
    .tokenizer = {.pre = "llama-bpe"}};

/* ---- ERNIE 4.5 ---- */

static const GgufField ernie4_5_fields[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"use_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {0},
};

const GgufModel ernie4_5_gguf = {.architecture = "ernie4_5",
    .class_name = "Ernie4_5ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, ernie4_5_fields}};

/* ---- StableLM 2 ---- */

static const GgufField stablelm_fields[] = {
    {"layer_norm_eps", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon"},
    {"use_parallel_residual", GGUF_FIELD_BOOL, .key = ".use_parallel_residual", .absent = 0},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {"use_qkv_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {0},
};

/* The 12B's norms of q and k are one tensor in GGUF files, which is refused. */
const GgufModel stablelm_gguf = {.architecture = "stablelm",
    .class_name = "StableLmForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu},
    .fields = {gguf_sizes, gguf_silu, stablelm_fields}};

/* ---- StarCoder 2 ---- */

static const GgufName starcoder2_names[] = {
    {"blk.*.ffn_up", "model.layers.*.mlp.c_fc", 0},
    {"blk.*.ffn_down", "model.layers.*.mlp.c_proj", 0},
    {"token_embd", "model.embed_tokens", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_output", "model.layers.*.self_attn.o_proj", 0},
    {0},
};

static const GgufField starcoder2_fields[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "gelu_pytorch_tanh"},
    {"norm_epsilon", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon"},
    {"use_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {0},
};

const GgufModel starcoder2_gguf = {.architecture = "starcoder2",
    .class_name = "Starcoder2ForCausalLM",
    .names = {gguf_norms, gguf_qkv, starcoder2_names},
    .fields = {gguf_sizes, starcoder2_fields},
    .tokenizer = {.pre = "starcoder"}};
