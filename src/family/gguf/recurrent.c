/* Models with Mamba, Mamba-2 and short convolutions in GGUF files. Which layers are which is in arrays of the metadata:
 * a layer with attention has a number of key heads above 0. The converter leaves most elements as they are: A is −e^x
 * of A_log, norms of groups are matrices, Falcon-H1's weights contain its multipliers. */
#include "family/gguf/models.h"

/* ---- names ---- */

/* The projections and the state of Mamba-1 and Mamba-2 under `home`. */
#define MAMBA(home)                                                                                                    \
    {"blk.*.ssm_in", home ".in_proj", 0}, {"blk.*.ssm_conv1d", home ".conv1d", 0},                                     \
        {"blk.*.ssm_a", home ".A_log", GGUF_RATE}, {"blk.*.ssm_d", home ".D", GGUF_NAMED}, {                           \
        "blk.*.ssm_out", home ".out_proj", 0                                                                           \
    }
#define MAMBA2(home)                                                                                                   \
    MAMBA(home), {"blk.*.ssm_dt", home ".dt_bias", GGUF_NAMED}, { "blk.*.ssm_norm", home ".norm", 0 }
#define ATTENTION(home, out)                                                                                           \
    {"blk.*.attn_q", home ".q_proj", 0}, {"blk.*.attn_k", home ".k_proj", 0}, {"blk.*.attn_v", home ".v_proj", 0}, {   \
        "blk.*.attn_output", home "." out, 0                                                                           \
    }
/* What delta attention and latent attention of Kimi-Linear and Ling 3.0 have in common. */
#define DELTA(home)                                                                                                    \
    {"blk.*.ssm_conv1d_q", home ".q_conv1d", 0}, {"blk.*.ssm_conv1d_k", home ".k_conv1d", 0},                          \
        {"blk.*.ssm_conv1d_v", home ".v_conv1d", 0}, {"blk.*.ssm_beta", home ".b_proj", 0},                            \
        {"blk.*.ssm_a", home ".A_log", GGUF_RATE}, {"blk.*.ssm_dt", home ".dt_bias", GGUF_NAMED},                      \
        {"blk.*.ssm_norm", home ".o_norm", 0}, {"blk.*.attn_kv_a_mqa", home ".kv_a_proj_with_mqa", 0},                 \
        {"blk.*.attn_kv_a_norm", home ".kv_a_layernorm", 0}, {"blk.*.attn_k_b", home ".embed_q", 0}, {                 \
        "blk.*.attn_v_b", home ".unembed_out", 0                                                                       \
    }
#define GLU(home, gate, up, down)                                                                                      \
    {"blk.*.ffn_gate", home "." gate, 0}, {"blk.*.ffn_up", home "." up, 0}, { "blk.*.ffn_down", home "." down, 0 }
#define EXPERTS(home)                                                                                                  \
    {"blk.*.ffn_gate_exps", home ".switch_mlp.gate_proj", 0}, {"blk.*.ffn_up_exps", home ".switch_mlp.up_proj", 0}, {  \
        "blk.*.ffn_down_exps", home ".switch_mlp.down_proj", 0                                                         \
    }

static const GgufName backbone[] = {
    {"token_embd", "backbone.embeddings", 0},
    {"output_norm", "backbone.norm_f", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_norm", "backbone.layers.*.norm", 0},
    {0},
};

static const GgufName mamba_names[] = {
    MAMBA("backbone.layers.*.mixer"),
    {"blk.*.ssm_x", "backbone.layers.*.mixer.x_proj", 0},
    {"blk.*.ssm_dt", "backbone.layers.*.mixer.dt_proj", 0},
    {0},
};

static const GgufName mamba2_names[] = {MAMBA2("backbone.layers.*.mixer"), {0}};

/* The converter pairs the halves of heads, though nothing is rotated. */
static const GgufName nemotron_names[] = {
    {"blk.*.attn_q", "backbone.layers.*.mixer.q_proj", GGUF_HEADS_PAIRED},
    {"blk.*.attn_k", "backbone.layers.*.mixer.k_proj", GGUF_KV_HEADS_PAIRED},
    {"blk.*.attn_v", "backbone.layers.*.mixer.v_proj", 0},
    {"blk.*.attn_output", "backbone.layers.*.mixer.o_proj", 0},
    {0},
};

static const GgufName nemotron_mlp[] = {
    {"blk.*.ffn_up", "backbone.layers.*.mixer.up_proj", 0},
    {"blk.*.ffn_down", "backbone.layers.*.mixer.down_proj", 0},
    {0},
};

static const GgufName nemotron_experts[] = {
    {"blk.*.ffn_gate_inp", "backbone.layers.*.mixer.gate", 0},
    {"blk.*.exp_probs_b", "backbone.layers.*.mixer.gate.e_score_correction_bias", GGUF_NAMED},
    {"blk.*.ffn_up_exps", "backbone.layers.*.mixer.switch_mlp.fc1", 0},
    {"blk.*.ffn_down_exps", "backbone.layers.*.mixer.switch_mlp.fc2", 0},
    {"blk.*.ffn_up_shexp", "backbone.layers.*.mixer.shared_experts.up_proj", 0},
    {"blk.*.ffn_down_shexp", "backbone.layers.*.mixer.shared_experts.down_proj", 0},
    {"blk.*.ffn_latent_down", "backbone.layers.*.mixer.fc1_latent_proj", 0},
    {"blk.*.ffn_latent_up", "backbone.layers.*.mixer.fc2_latent_proj", 0},
    {0},
};

static const GgufName jamba_names[] = {
    {"token_embd", "model.embed_tokens", 0},
    {"output_norm", "model.final_layernorm", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", 0},
    {"blk.*.ffn_norm", "model.layers.*.pre_ff_layernorm", 0},
    ATTENTION("model.layers.*.self_attn", "o_proj"),
    MAMBA("model.layers.*.mamba"),
    {"blk.*.ssm_x", "model.layers.*.mamba.x_proj", 0},
    {"blk.*.ssm_dt", "model.layers.*.mamba.dt_proj", 0},
    {"blk.*.ssm_dt_norm", "model.layers.*.mamba.dt_layernorm", 0},
    {"blk.*.ssm_b_norm", "model.layers.*.mamba.b_layernorm", 0},
    {"blk.*.ssm_c_norm", "model.layers.*.mamba.c_layernorm", 0},
    GLU("model.layers.*.feed_forward", "gate_proj", "up_proj", "down_proj"),
    {"blk.*.ffn_gate_inp", "model.layers.*.feed_forward.router", 0},
    EXPERTS("model.layers.*.feed_forward"),
    {0},
};

/* The norm before the feed-forward network has no ".weight" in its name. */
static const GgufName falcon_names[] = {
    {"token_embd", "model.embed_tokens", 0},
    {"output_norm", "model.final_layernorm", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", 0},
    {"blk.*.ffn_norm", "model.layers.*.pre_ff_layernorm.weight", GGUF_NAMED},
    ATTENTION("model.layers.*.self_attn", "o_proj"),
    MAMBA2("model.layers.*.mamba"),
    GLU("model.layers.*.feed_forward", "gate_proj", "up_proj", "down_proj"),
    {0},
};

static const GgufName granite_names[] = {
    MAMBA2("model.layers.*.mamba"),
    {"blk.*.ffn_gate_inp", "model.layers.*.block_sparse_moe.router.layer", 0},
    EXPERTS("model.layers.*.block_sparse_moe"),
    {"blk.*.ffn_gate_shexp", "model.layers.*.shared_mlp.gate_proj", 0},
    {"blk.*.ffn_up_shexp", "model.layers.*.shared_mlp.up_proj", 0},
    {"blk.*.ffn_down_shexp", "model.layers.*.shared_mlp.output_linear", 0},
    {0},
};

static const GgufName bamba_names[] = {
    {"token_embd", "model.embed_tokens", 0},
    {"output_norm", "model.final_layernorm", 0},
    {"output", "lm_head", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", 0},
    {"blk.*.ffn_norm", "model.layers.*.pre_ff_layernorm", 0},
    {"blk.*.attn_output", "model.layers.*.self_attn.o_proj", 0},
    MAMBA2("model.layers.*.mamba"),
    GLU("model.layers.*.feed_forward", "gate_proj", "up_proj", "down_proj"),
    {0},
};

static const GgufName lfm2_names[] = {
    {"token_embd", "model.embed_tokens", 0},
    {"token_embd_norm", "model.embedding_norm", 0},
    {"blk.*.attn_norm", "model.layers.*.operator_norm", 0},
    {"blk.*.ffn_norm", "model.layers.*.ffn_norm", 0},
    {"blk.*.shortconv.in_proj", "model.layers.*.conv.in_proj", 0},
    {"blk.*.shortconv.conv", "model.layers.*.conv.conv", 0},
    {"blk.*.shortconv.out_proj", "model.layers.*.conv.out_proj", 0},
    ATTENTION("model.layers.*.self_attn", "out_proj"),
    {"blk.*.attn_q_norm", "model.layers.*.self_attn.q_layernorm", 0},
    {"blk.*.attn_k_norm", "model.layers.*.self_attn.k_layernorm", 0},
    {0},
};

static const GgufName lfm2_glu[] = {GLU("model.layers.*.feed_forward", "w1", "w3", "w2"), {0}};

static const GgufName lfm2_experts[] = {
    GLU("model.layers.*.feed_forward", "gate_proj", "up_proj", "down_proj"),
    {"blk.*.ffn_gate_inp", "model.layers.*.feed_forward.gate", 0},
    EXPERTS("model.layers.*.feed_forward"),
    {"blk.*.exp_probs_b", "model.layers.*.feed_forward.expert_bias", GGUF_NAMED},
    {0},
};

/* Both kinds of attention have q and o. */
static const GgufName kimi_names[] = {
    ATTENTION("model.layers.*.self_attn", "o_proj"),
    DELTA("model.layers.*.self_attn"),
    {"blk.*.ssm_f_a", "model.layers.*.self_attn.f_a_proj", 0},
    {"blk.*.ssm_f_b", "model.layers.*.self_attn.f_b_proj", 0},
    {"blk.*.ssm_g_a", "model.layers.*.self_attn.g_a_proj", 0},
    {"blk.*.ssm_g_b", "model.layers.*.self_attn.g_b_proj", 0},
    {"blk.*.attn_kv_b", "model.layers.*.self_attn.kv_b_proj", 0},
    {"blk.*.exp_probs_b", "model.layers.*.mlp.e_score_correction_bias", GGUF_NAMED},
    {0},
};

/* A is e^x of A_log. */
static const GgufName ling_names[] = {
    {"token_embd", "model.word_embeddings", 0},
    ATTENTION("model.layers.*.attention", "dense"),
    DELTA("model.layers.*.attention"),
    {"blk.*.ssm_f_a", "model.layers.*.attention.f_proj", 0},
    {"blk.*.ssm_g_a", "model.layers.*.attention.g_proj", 0},
    {"blk.*.attn_gate", "model.layers.*.attention.g_proj", 0},
    {"blk.*.attn_q_a", "model.layers.*.attention.q_a_proj", 0},
    {"blk.*.attn_q_a_norm", "model.layers.*.attention.q_a_layernorm", 0},
    {"blk.*.attn_q_b", "model.layers.*.attention.q_b_proj", 0},
    {"blk.*.exp_probs_b", "model.layers.*.mlp.gate.expert_bias", GGUF_NAMED},
    {0},
};

/* ---- fields ---- */

static double head_width(const GgufSizes *s) { return s->ssm_heads > 0 ? (double)(s->ssm_inner / s->ssm_heads) : 0; }
static double expansion(const GgufSizes *s) { return s->hidden > 0 ? (double)(s->ssm_inner / s->hidden) : 0; }

static const GgufField attention_free[] = {
    {"hidden_size", .key = ".embedding_length"},
    {"num_hidden_layers", .key = ".block_count", .compute = gguf_layer_count},
    {"max_position_embeddings", .key = ".context_length", .optional = true},
    {"vocab_size", .compute = gguf_vocab_size},
    {"tie_word_embeddings", GGUF_FIELD_LACKS, .key = "output.weight"},
    {"layer_norm_epsilon", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_rms_epsilon"},
    {"conv_kernel", .key = ".ssm.conv_kernel"},
    {"state_size", .key = ".ssm.state_size"},
    {"use_bias", GGUF_FIELD_HAS, .key = "blk.*.ssm_in.bias"},
    {"use_conv_bias", GGUF_FIELD_HAS, .key = "blk.*.ssm_conv1d.bias"},
    {0},
};

static const GgufField mamba_fields[] = {
    {"intermediate_size", .key = ".ssm.inner_size"},
    {"time_step_rank", .key = ".ssm.time_step_rank"},
    {0},
};

static const GgufField mamba_norms[] = {
    {"use_bcdt_rms", GGUF_FIELD_BOOL, .key = ".ssm.dt_b_c_rms"},
    {0},
};

static const GgufField mamba2_fields[] = {
    {"num_heads", .key = ".ssm.time_step_rank"},
    {"head_dim", .key = ".ssm.inner_size", .compute = head_width},
    {"n_groups", .key = ".ssm.group_count"},
    {0},
};

static const GgufLayerKind nemotron_kinds[] = {
    {"M", "blk.*.ssm_in.weight", NULL},
    {"*", "blk.*.attn_q.weight", ".attention.head_count_kv"},
    {"-", "blk.*.ffn_up.weight", ".feed_forward_length"},
    {"E", "blk.*.ffn_gate_inp.weight", ".feed_forward_length"},
    {0},
};

static const GgufField nemotron_fields[] = {
    {"hidden_size", .key = ".embedding_length"},
    {"num_hidden_layers", .key = ".block_count", .compute = gguf_layer_count},
    {"num_attention_heads", .key = ".attention.head_count"},
    {"num_key_value_heads", .key = ".attention.head_count_kv"},
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"max_position_embeddings", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"tie_word_embeddings", GGUF_FIELD_LACKS, .key = "output.weight"},
    {"layer_norm_epsilon", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_rms_epsilon"},
    {"hybrid_override_pattern", GGUF_FIELD_LETTERS, .kinds = nemotron_kinds},
    {"mamba_num_heads", .key = ".ssm.time_step_rank"},
    {"mamba_head_dim", .key = ".ssm.inner_size", .compute = head_width},
    {"ssm_state_size", .key = ".ssm.state_size"},
    {"n_groups", .key = ".ssm.group_count"},
    {"conv_kernel", .key = ".ssm.conv_kernel"},
    {"mamba_proj_bias", GGUF_FIELD_HAS, .key = "blk.*.ssm_in.bias"},
    {"use_conv_bias", GGUF_FIELD_HAS, .key = "blk.*.ssm_conv1d.bias"},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.*.attn_q.bias"},
    {"mlp_bias", GGUF_FIELD_HAS, .key = "blk.*.ffn_up.bias"},
    {"mlp_hidden_act", GGUF_FIELD_TEXT, .text = "relu2"},
    {0},
};

static const GgufField nemotron_width[] = {
    {"intermediate_size", .key = ".feed_forward_length"},
    {0},
};

static const GgufField nemotron_mixture[] = {
    {"n_routed_experts", .key = ".expert_count"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {"moe_intermediate_size", .key = ".expert_feed_forward_length"},
    {"n_shared_experts", .key = ".expert_shared_count", .optional = true},
    {"moe_shared_expert_intermediate_size", .key = ".expert_shared_feed_forward_length", .optional = true},
    {"moe_latent_size", .key = ".moe_latent_size", .optional = true},
    {"n_group", .key = ".expert_group_count", .absent = 1},
    {"topk_group", .key = ".expert_group_used_count", .absent = 1},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .key = ".expert_weights_norm", .absent = 0},
    {"routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {0},
};

static const GgufLayerKind attention_or_mamba[] = {
    {"mamba", "blk.*.ssm_in.weight", NULL},
    {"attention", "blk.*.attn_q.weight", ".attention.head_count_kv"},
    {0},
};

/* Nothing but the tensors tells which layers have experts. */
static const GgufField jamba_fields[] = {
    {"layers_block_type", GGUF_FIELD_LAYERS, .kinds = attention_or_mamba},
    {"mamba_d_conv", .key = ".ssm.conv_kernel"},
    {"mamba_d_state", .key = ".ssm.state_size"},
    {"mamba_dt_rank", .key = ".ssm.time_step_rank"},
    {"mamba_expand", .key = ".ssm.inner_size", .compute = expansion},
    {"mamba_proj_bias", GGUF_FIELD_HAS, .key = "blk.*.ssm_in.bias"},
    {"mamba_conv_bias", GGUF_FIELD_HAS, .key = "blk.*.ssm_conv1d.bias"},
    {"num_experts", .key = ".expert_count", .absent = 1},
    {"num_experts_per_tok", .key = ".expert_used_count", .optional = true},
    {"expert_layer_period", GGUF_FIELD_EVERY, .key = "blk.*.ffn_gate_inp.weight"},
    {"expert_layer_offset", GGUF_FIELD_FIRST, .key = "blk.*.ffn_gate_inp.weight"},
    {0},
};

static const GgufField falcon_fields[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"mamba_d_ssm", .key = ".ssm.inner_size"},
    {"mamba_n_heads", .key = ".ssm.time_step_rank"},
    {"mamba_d_head", .key = ".ssm.inner_size", .compute = head_width},
    {"mamba_d_state", .key = ".ssm.state_size"},
    {"mamba_n_groups", .key = ".ssm.group_count"},
    {"mamba_d_conv", .key = ".ssm.conv_kernel"},
    {"mamba_conv_bias", GGUF_FIELD_HAS, .key = "blk.*.ssm_conv1d.bias"},
    {"mamba_proj_bias", GGUF_FIELD_HAS, .key = "blk.*.ssm_in.bias"},
    {"projectors_bias", GGUF_FIELD_HAS, .key = "blk.*.ssm_out.bias"},
    {"mamba_rms_norm", GGUF_FIELD_HAS, .key = "blk.*.ssm_norm.weight"},
    {"mamba_norm_before_gate", GGUF_FIELD_BOOL, .absent = 0},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.*.attn_q.bias"},
    {"mlp_bias", GGUF_FIELD_HAS, .key = "blk.*.ffn_up.bias"},
    {0},
};

static const GgufField bamba_fields[] = {
    {"layer_types", GGUF_FIELD_LAYERS, .kinds = attention_or_mamba},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.*.attn_q.bias"},
    {"mlp_bias", GGUF_FIELD_HAS, .key = "blk.*.ffn_up.bias"},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {"rotates", GGUF_FIELD_IGNORED, .key = ".rope.scaling.finetuned"},
    {"mamba_n_heads", .key = ".ssm.time_step_rank"},
    {"mamba_d_head", .key = ".ssm.inner_size", .compute = head_width},
    {"mamba_d_state", .key = ".ssm.state_size"},
    {"mamba_n_groups", .key = ".ssm.group_count"},
    {"mamba_d_conv", .key = ".ssm.conv_kernel"},
    {"mamba_proj_bias", GGUF_FIELD_HAS, .key = "blk.*.ssm_in.bias"},
    {"mamba_conv_bias", GGUF_FIELD_HAS, .key = "blk.*.ssm_conv1d.bias"},
    {0},
};

static const GgufField granite_fields[] = {
    {"layer_types", GGUF_FIELD_LAYERS, .kinds = attention_or_mamba},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.*.attn_q.bias"},
    {"position_embedding_type", GGUF_FIELD_CHOICE, .key = ".rope.scaling.finetuned", .text = "rope",
        .otherwise = "nope", .absent = 1},
    {"num_local_experts", .key = ".expert_count", .optional = true},
    {"num_experts_per_tok", .key = ".expert_used_count", .optional = true},
    {"shared_intermediate_size", .key = ".expert_shared_feed_forward_length", .optional = true},
    {"mamba_n_heads", .key = ".ssm.time_step_rank"},
    {"mamba_d_head", .key = ".ssm.inner_size", .compute = head_width},
    {"mamba_d_state", .key = ".ssm.state_size"},
    {"mamba_n_groups", .key = ".ssm.group_count"},
    {"mamba_d_conv", .key = ".ssm.conv_kernel"},
    {"mamba_proj_bias", GGUF_FIELD_HAS, .key = "blk.*.ssm_in.bias"},
    {"mamba_conv_bias", GGUF_FIELD_HAS, .key = "blk.*.ssm_conv1d.bias"},
    {0},
};

static const GgufLayerKind lfm2_kinds[] = {
    {"conv", "blk.*.shortconv.in_proj.weight", NULL},
    {"full_attention", "blk.*.attn_q.weight", ".attention.head_count_kv"},
    {0},
};

static const GgufField lfm2_fields[] = {
    {"hidden_size", .key = ".embedding_length"},
    {"num_hidden_layers", .key = ".block_count", .compute = gguf_layer_count},
    {"num_attention_heads", .key = ".attention.head_count"},
    {"num_key_value_heads", .key = ".attention.head_count_kv"},
    {"max_position_embeddings", .key = ".context_length"},
    {"vocab_size", .compute = gguf_vocab_size},
    {"norm_eps", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_rms_epsilon"},
    {"layer_types", GGUF_FIELD_LAYERS, .kinds = lfm2_kinds},
    {"conv_L_cache", .key = ".shortconv.l_cache"},
    {"conv_bias", GGUF_FIELD_HAS, .key = "blk.*.shortconv.in_proj.bias"},
    {0},
};

static const GgufField lfm2_width[] = {
    {"block_ff_dim", .key = ".feed_forward_length"},
    {"block_auto_adjust_ff_dim", GGUF_FIELD_BOOL, .absent = 0}, /* the width is the adjusted one */
    {0},
};

static const GgufField lfm2_mixture[] = {
    {"intermediate_size", .key = ".feed_forward_length"},
    {"num_experts", .key = ".expert_count"},
    {"num_dense_layers", .key = ".leading_dense_block_count", .optional = true},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .absent = 1},
    {"use_expert_bias", GGUF_FIELD_HAS, .key = "blk.*.exp_probs_b.bias"},
    {"scoring_func", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {0},
};

static const GgufLayerKind kimi_kinds[] = {
    {"linear_attention", "blk.*.ssm_f_a.weight", NULL},
    {"full_attention", "blk.*.attn_kv_a_mqa.weight", ".attention.head_count_kv"},
    {0},
};

static double plain_dims(const GgufSizes *s) { return (double)s->plain_dims; }

static const GgufField kimi_fields[] = {
    {"layer_types", GGUF_FIELD_LAYERS, .kinds = kimi_kinds},
    {"linear_attn_config.num_heads", .key = ".attention.head_count"},
    {"linear_attn_config.head_dim", .key = ".kda.head_dim"},
    {"linear_attn_config.short_conv_kernel_size", .key = ".ssm.conv_kernel"},
    {"kv_lora_rank", .key = ".attention.kv_lora_rank"},
    {"qk_rope_head_dim", .key = ".rope.dimension_count"},
    {"qk_nope_head_dim", .key = ".attention.key_length_mla", .compute = plain_dims},
    {"v_head_dim", .key = ".attention.value_length_mla"},
    {"mla_use_nope", GGUF_FIELD_BOOL, .absent = 1},
    {"num_experts", .key = ".expert_count"},
    {"num_experts_per_token", .key = ".expert_used_count"},
    {"moe_intermediate_size", .key = ".expert_feed_forward_length"},
    {"num_shared_experts", .key = ".expert_shared_count", .optional = true},
    {"first_k_dense_replace", .key = ".leading_dense_block_count", .optional = true},
    {"num_expert_group", .key = ".expert_group_count", .optional = true},
    {"topk_group", .key = ".expert_group_used_count", .optional = true},
    {"moe_router_activation_func", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"moe_renormalize", GGUF_FIELD_BOOL, .absent = 1},
    {"routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {0},
};

static const GgufField ling_fields[] = {
    {"layer_types", GGUF_FIELD_LAYERS, .kinds = kimi_kinds},
    {"head_dim", .key = ".kda.head_dim"},
    {"short_conv_kernel_size", .key = ".ssm.conv_kernel"},
    {"kda_safe_gate", GGUF_FIELD_BOOL, .key = ".kda.safe_gate", .absent = 1},
    {"kda_lower_bound", GGUF_FIELD_NEGATIVE, .key = ".kda.gate_lower_bound"},
    {"q_lora_rank", .key = ".attention.q_lora_rank", .optional = true},
    {"kv_lora_rank", .key = ".attention.kv_lora_rank"},
    {"qk_rope_head_dim", .key = ".rope.dimension_count"},
    {"qk_nope_head_dim", .key = ".attention.key_length_mla", .compute = plain_dims},
    {"v_head_dim", .key = ".attention.value_length_mla"},
    {"num_experts", .key = ".expert_count"},
    {"num_shared_experts", .key = ".expert_shared_count", .optional = true},
    {"moe_shared_expert_intermediate_size", .key = ".expert_shared_feed_forward_length", .optional = true},
    {"first_k_dense_replace", .key = ".leading_dense_block_count", .optional = true},
    {"n_group", .key = ".expert_group_count", .optional = true},
    {"topk_group", .key = ".expert_group_used_count", .optional = true},
    {"score_function", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .key = ".expert_weights_norm", .absent = 1},
    {"routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {0},
};

/* ---- models ---- */

const GgufModel mamba_gguf = {.architecture = "mamba",
    .class_name = "MambaForCausalLM",
    .no_rope = true,
    .names = {backbone, mamba_names},
    .fields = {attention_free, mamba_fields, mamba_norms, gguf_silu},
    .tokenizer = {.pre = "mpt"}};

const GgufModel falcon_mamba_gguf = {.architecture = "mamba",
    .with_key = ".ssm.dt_b_c_rms",
    .class_name = "FalconMambaForCausalLM",
    .no_rope = true,
    .names = {backbone, mamba_names},
    .fields = {attention_free, mamba_fields, gguf_silu}};

const GgufModel mamba2_gguf = {.architecture = "mamba2",
    .class_name = "Mamba2ForCausalLM",
    .no_rope = true,
    .names = {backbone, mamba2_names},
    .fields = {attention_free, mamba2_fields, gguf_silu},
    .tokenizer = {.pre = "mpt"}};

static const GgufModel nemotron_h_moe_gguf = {.architecture = "nemotron_h_moe",
    .class_name = "NemotronHForCausalLM",
    .no_rope = true,
    .names = {backbone, mamba2_names, nemotron_names, nemotron_experts},
    .fields = {nemotron_fields, nemotron_mixture}};

const GgufModel nemotron_h_gguf = {.architecture = "nemotron_h",
    .class_name = "NemotronHForCausalLM",
    .no_rope = true,
    .names = {backbone, mamba2_names, nemotron_names, nemotron_mlp},
    .fields = {nemotron_fields, nemotron_width},
    .other = &nemotron_h_moe_gguf};

const GgufModel jamba_gguf = {.architecture = "jamba",
    .class_name = "JambaForCausalLM",
    .no_rope = true,
    .names = {jamba_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, jamba_fields}};

const GgufModel kimi_linear_gguf = {.architecture = "kimi-linear",
    .latent = true,
    .no_rope = true,
    .class_name = "KimiLinearForCausalLM",
    .names = {kimi_names, gguf_ends, gguf_norms, gguf_glu, gguf_experts, gguf_shared},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, kimi_fields},
    .tokenizer = {.pre = "kimi-k2"}};

const GgufModel bailing_hybrid_gguf = {.architecture = "bailingmoe3",
    .latent = true,
    .class_name = "BailingMoeV3ForCausalLM",
    .names = {ling_names, gguf_ends, gguf_norms, gguf_glu, gguf_experts, gguf_shared},
    .fields = {gguf_sizes, gguf_rms, gguf_moe, ling_fields},
    .tokenizer = {.pre = "bailingmoe2"}};

const GgufModel falcon_h1_gguf = {.architecture = "falcon-h1",
    .class_name = "FalconH1ForCausalLM",
    .own_head = true,
    .names = {falcon_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, falcon_fields}};

/* Granite's have factors, Bamba's do not. */
const GgufModel bamba_gguf = {.architecture = "granitehybrid",
    .class_name = "BambaForCausalLM",
    .names = {bamba_names, gguf_qkv_paired},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, bamba_fields}};

const GgufModel granitemoehybrid_gguf = {.architecture = "granitehybrid",
    .with_key = ".attention.scale",
    .class_name = "GraniteMoeHybridForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu, granite_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, gguf_granite, granite_fields}};

const GgufModel lfm2_gguf = {.architecture = "lfm2",
    .class_name = "Lfm2ForCausalLM",
    .names = {lfm2_names, lfm2_glu},
    .fields = {lfm2_fields, lfm2_width}};

const GgufModel lfm2_moe_gguf = {.architecture = "lfm2moe",
    .class_name = "Lfm2MoeForCausalLM",
    .names = {lfm2_names, lfm2_experts},
    .fields = {lfm2_fields, gguf_moe, lfm2_mixture}};

/* ---- MiniMax-Text-01 ---- */

static const GgufName minimax_text_01_names[] = {
    {"blk.*.attn_qkv", "model.layers.*.self_attn.qkv_proj", 0},
    {"blk.*.attn_norm_2", "model.layers.*.self_attn.norm", 0},
    {"blk.*.attn_gate", "model.layers.*.self_attn.output_gate", 0},
    {"blk.*.ffn_gate_inp", "model.layers.*.block_sparse_moe.gate", 0},
    {"blk.*.ffn_gate_exps", "model.layers.*.block_sparse_moe.switch_mlp.gate_proj", 0},
    {"blk.*.ffn_up_exps", "model.layers.*.block_sparse_moe.switch_mlp.up_proj", 0},
    {"blk.*.ffn_down_exps", "model.layers.*.block_sparse_moe.switch_mlp.down_proj", 0},
    {0},
};

/* The converter demands factors alpha that are all the same and factors beta of 1. */
static const GgufField minimax_text_01_fields[] = {
    {"num_local_experts", .key = ".expert_count"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {"rotary_dim", .key = ".rope.dimension_count"},
    {"attn_type_list", GGUF_FIELD_FLAGS, .key = "blk.*.attn_gate.weight", .text = "0", .otherwise = "1"},
    {"layernorm_full_attention_alpha", GGUF_FIELD_NUMBER, .key = ".residual_scale"},
    {"layernorm_linear_attention_alpha", GGUF_FIELD_NUMBER, .key = ".residual_scale"},
    {"layernorm_mlp_alpha", GGUF_FIELD_NUMBER, .key = ".residual_scale"},
    {"kinds", GGUF_FIELD_IGNORED, .key = ".attention.recurrent_layers"},
    {"kinds", GGUF_FIELD_IGNORED, .key = ".full_attention_interval"},
    {0},
};

const GgufModel minimax_text_01_gguf = {.architecture = "minimax-01",
    .class_name = "MiniMaxText01ForCausalLM",
    .names = {gguf_ends, gguf_norms, gguf_qkv, minimax_text_01_names},
    .fields = {gguf_sizes, gguf_rms, gguf_silu, gguf_own_head_dim, minimax_text_01_fields}};
