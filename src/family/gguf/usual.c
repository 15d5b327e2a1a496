/* The names and fields that most GGUF files have. */
#include "family/gguf/models.h"

const GgufName gguf_ends[] = {
    {"token_embd", "model.embed_tokens", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_output", "model.layers.*.self_attn.o_proj", 0},
    {"blk.*.ffn_down", "model.layers.*.mlp.down_proj", 0},
    {0},
};

const GgufName gguf_norms[] = {
    {"output_norm", "model.norm", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", 0},
    {"blk.*.ffn_norm", "model.layers.*.post_attention_layernorm", 0},
    {0},
};

const GgufName gguf_qkv[] = {
    {"blk.*.attn_q", "model.layers.*.self_attn.q_proj", 0},
    {"blk.*.attn_k", "model.layers.*.self_attn.k_proj", 0},
    {"blk.*.attn_v", "model.layers.*.self_attn.v_proj", 0},
    {0},
};

const GgufName gguf_qkv_paired[] = {
    {"blk.*.attn_q", "model.layers.*.self_attn.q_proj", GGUF_HEADS_PAIRED},
    {"blk.*.attn_k", "model.layers.*.self_attn.k_proj", GGUF_KV_HEADS_PAIRED},
    {"blk.*.attn_v", "model.layers.*.self_attn.v_proj", 0},
    {0},
};

const GgufName gguf_glu[] = {
    {"blk.*.ffn_gate", "model.layers.*.mlp.gate_proj", 0},
    {"blk.*.ffn_up", "model.layers.*.mlp.up_proj", 0},
    {0},
};

double gguf_layer_count(const GgufSizes *sizes) { return (double)sizes->layers; }
double gguf_vocab_size(const GgufSizes *sizes) { return (double)sizes->vocab; }

#define OUTER_SIZES                                                                                                    \
    {"num_hidden_layers", .key = ".block_count", .compute = gguf_layer_count},                                         \
        {"num_attention_heads", .key = ".attention.head_count"},                                                       \
        {"num_key_value_heads", .key = ".attention.head_count_kv", .or_key = ".attention.head_count"},                 \
        {"max_position_embeddings", .key = ".context_length"}, {"vocab_size", .compute = gguf_vocab_size}, {           \
        "tie_word_embeddings", GGUF_FIELD_LACKS, .key = "output.weight"                                                \
    }

const GgufField gguf_sizes[] = {
    {"hidden_size", .key = ".embedding_length"},
    {"intermediate_size", .key = ".feed_forward_length"},
    OUTER_SIZES,
    {0},
};

const GgufField gguf_outer_sizes[] = {
    {"hidden_size", .key = ".embedding_length"},
    OUTER_SIZES,
    {0},
};

const GgufField gguf_rms[] = {
    {"rms_norm_eps", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_rms_epsilon"},
    {0},
};

const GgufField gguf_silu[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "silu"},
    {0},
};

double gguf_rotary_factor(const GgufSizes *sizes) { return (double)sizes->rotary_dims / (double)sizes->head_dim; }
double gguf_head_dim(const GgufSizes *sizes) { return (double)sizes->head_dim; }

static double odd_head_dim(const GgufSizes *sizes) {
    return sizes->head_dim * sizes->heads == sizes->hidden ? 0 : (double)sizes->head_dim;
}

const GgufField gguf_llama[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "silu"},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {"mlp_bias", GGUF_FIELD_HAS, .key = "blk.0.ffn_up.bias"},
    {"head_dim", .key = ".attention.key_length", .compute = odd_head_dim},
    {0},
};

const GgufName gguf_head_norms[] = {
    {"blk.*.attn_q_norm", "model.layers.*.self_attn.q_norm", 0},
    {"blk.*.attn_k_norm", "model.layers.*.self_attn.k_norm", 0},
    {0},
};

const GgufName gguf_experts[] = {
    {"blk.*.ffn_gate_inp", "model.layers.*.mlp.gate", 0},
    {"blk.*.ffn_gate_exps", "model.layers.*.mlp.switch_mlp.gate_proj", 0},
    {"blk.*.ffn_up_exps", "model.layers.*.mlp.switch_mlp.up_proj", 0},
    {"blk.*.ffn_down_exps", "model.layers.*.mlp.switch_mlp.down_proj", 0},
    {0},
};

const GgufName gguf_shared[] = {
    {"blk.*.ffn_gate_shexp", "model.layers.*.mlp.shared_experts.gate_proj", 0},
    {"blk.*.ffn_up_shexp", "model.layers.*.mlp.shared_experts.up_proj", 0},
    {"blk.*.ffn_down_shexp", "model.layers.*.mlp.shared_experts.down_proj", 0},
    {0},
};

const GgufName gguf_correction[] = {
    {"blk.*.exp_probs_b", "model.layers.*.mlp.gate.e_score_correction_bias", GGUF_NAMED},
    {0},
};

const GgufField gguf_moe[] = {
    {"hidden_act", GGUF_FIELD_TEXT, .text = "silu"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {"moe_intermediate_size", .key = ".expert_feed_forward_length"},
    {0},
};

const GgufField gguf_own_head_dim[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {0},
};

const GgufField gguf_attention_bias[] = {
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {0},
};

const GgufField gguf_granite[] = {
    {"attention_multiplier", GGUF_FIELD_NUMBER, .key = ".attention.scale"},
    {"embedding_multiplier", GGUF_FIELD_NUMBER, .key = ".embedding_scale"},
    {"residual_multiplier", GGUF_FIELD_NUMBER, .key = ".residual_scale"},
    {"logits_scaling", GGUF_FIELD_NUMBER, .key = ".logit_scale"},
    {0},
};
