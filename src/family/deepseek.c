/* DeepSeek-V2 and V3 (R1, Kimi-K2): MLA, MoE blocks after the first layers. V2 uses the softmax
 * over all experts, V3 sigmoids with a bias for the choice. Reference: mlx_lm/models/deepseek_v2.py, deepseek_v3.py. */
#include "family/family.h"

#include <math.h>

/* What both have. */
typedef struct DeepSeek {
    Dims d;
    HeadSizes sizes;
    int q_rank, rope_dim, dense, every; /* q_rank 0: queries come from the input */
    bool bias;
    float scale, latent_eps; /* latent_eps: of the norms of the latent and of low-rank queries */
    const Rope *rope;
    bool mixed; /* there are experts at all */
    Moe moe;
} DeepSeek;

static Dims load_dims(Loader *ld, Spec *spec) {
    const Dims d = {.hidden = load_int(ld, "hidden_size"),
        .intermediate_size = load_int(ld, "intermediate_size"),
        .eps = load_positive_or(ld, "rms_norm_eps", 1e-6)};
    spec->hidden = d.hidden;
    spec->layer_count = load_int(ld, "num_hidden_layers");
    spec->vocab = load_int(ld, "vocab_size");
    spec->positions = load_int_or(ld, "max_position_embeddings", 2048);
    return d;
}

static DeepSeek load_fields(Loader *ld, Spec *spec) {
    DeepSeek s = {.d = load_dims(ld, spec),
        .q_rank = load_count_or(ld, "q_lora_rank", 0),
        .rope_dim = load_int_or(ld, "qk_rope_head_dim", 64),
        .dense = load_count_or(ld, "first_k_dense_replace", 0),
        .every = load_int_or(ld, "moe_layer_freq", 1),
        .bias = load_bool_or(ld, "attention_bias", false),
        .latent_eps = 1e-6f};
    s.sizes = (HeadSizes){.heads = load_int(ld, "num_attention_heads"),
        .nope_dim = load_int_or(ld, "qk_nope_head_dim", 128),
        .width = load_int_or(ld, "v_head_dim", 128),
        .latent = load_int_or(ld, "kv_lora_rank", 512)};
    load_require(
        ld, s.sizes.heads <= EXPERTS_MAX, "num_attention_heads is %d, at most %d can be", s.sizes.heads, EXPERTS_MAX);
    s.rope = load_rope(ld, &(RopeOptions){.head_dim = s.rope_dim, .theta = 10000, .interleaved = true});
    s.scale = load_yarn_attention(ld) / sqrtf((float)(s.sizes.nope_dim + s.rope_dim));
    const int experts = load_count_or(ld, "n_routed_experts", 0), shared = load_count_or(ld, "n_shared_experts", 0);
    s.mixed = experts > 0;
    if (s.mixed)
        s.moe = family_moe_open(ld, &moe_usual, s.d.hidden, load_int(ld, "moe_intermediate_size"), experts,
            load_int_or(ld, "num_experts_per_tok", 1));
    s.moe.shared = family_moe_shared(ld, s.moe.intermediate_size, shared);
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "num_key_value_heads", "aux_loss_alpha", "seq_aux", "ep_size", "num_nextn_predict_layers",
        "head_dim", "qk_head_dim", "router_aux_loss_coef", "output_router_logits", NULL);
    load_skip(ld, "model.layers.%d.", spec->layer_count);
    family_ends(ld, spec, &s.d);
    load_layers(ld, spec);
    return s;
}

static MlaComponent load_attention(Loader *ld, const DeepSeek *s) {
    const HeadSizes *n = &s->sizes;
    const int64_t q = (int64_t)n->heads * (n->nope_dim + s->rope_dim);
    const KvLayout layout = {.kv_heads = 1, .head_dim = s->rope_dim, .value_dim = n->latent, .latent = true};
    const Weight kv = load_linear(ld, "self_attn.kv_a_proj_with_mqa", n->latent + s->rope_dim, s->d.hidden, s->bias);
    MlaComponent mla = {.op = {.heads = n->heads, .kv.layout = layout, .scale = s->scale, .rope = s->rope},
        .latent = load_part(&kv, 0, n->latent),
        .k = load_part(&kv, n->latent, s->rope_dim),
        .o = load_linear(ld, "self_attn.o_proj", s->d.hidden, (int64_t)n->heads * n->width, s->bias),
        .latent_norm = load_rms(ld, "self_attn.kv_a_layernorm", n->latent, s->latent_eps)};
    if (s->q_rank) {
        mla.q_a = load_linear(ld, "self_attn.q_a_proj", s->q_rank, s->d.hidden, s->bias);
        mla.q_norm = load_rms(ld, "self_attn.q_a_layernorm", s->q_rank, s->latent_eps);
        mla.q = load_linear(ld, "self_attn.q_b_proj", q, s->q_rank, false);
    } else {
        mla.q = load_linear(ld, "self_attn.q_proj", q, s->d.hidden, false);
    }
    load_mla_heads(ld, "self_attn", n, &mla.w_uk, &mla.w_uv);
    return mla;
}

static void load_blocks(Loader *ld, Spec *spec, const DeepSeek *s) {
    for (int i = 0; i < spec->layer_count; i++) {
        const bool experts = s->mixed && i >= s->dense && i % s->every == 0;
        family_layer(ld, spec, i);
        const Component attention = {.kind = COMPONENT_MLA, .mla = load_attention(ld, s)};
        family_block(ld, spec, i, &(Block){.dims = &s->d, .attention = &attention, .moe = experts ? &s->moe : NULL});
    }
    Spec *mtp = family_nextn(ld, spec, s->d.eps);
    if (!mtp) return;
    const Component attention = {.kind = COMPONENT_MLA, .mla = load_attention(ld, s)};
    family_block_here(
        ld, mtp, mtp->layers, &(Block){.dims = &s->d, .attention = &attention, .moe = s->mixed ? &s->moe : NULL});
}

static void load_v2(Loader *ld, Spec *spec) {
    DeepSeek s = load_fields(ld, spec);
    MoeComponent *moe = &s.moe.moe;
    moe->scale = load_positive_or(ld, "routed_scaling_factor", 1);
    if (load_text_is(ld, "topk_method", "group_limited_greedy")) {
        moe->groups = load_int(ld, "n_group");
        moe->topk_group = load_int(ld, "topk_group");
        moe->group_best = true;
    }
    load_expect_text(ld, "scoring_func", "softmax");
    load_expect_bool(ld, "norm_topk_prob", false);
    load_ignore(ld, "n_group", "topk_group", NULL);
    load_blocks(ld, spec, &s);
}

static void load_v3(Loader *ld, Spec *spec) {
    DeepSeek s = load_fields(ld, spec);
    s.moe.names = moe_deepseek;
    family_moe_sigmoid(ld, &s.moe);
    load_expect_text(ld, "scoring_func", "sigmoid");
    load_blocks(ld, spec, &s);
}

/* GLM-4.7-Flash: a DeepSeek-V3 whose norms have one eps. Reference: mlx_lm/models/glm4_moe_lite.py. */
static void load_glm4_moe_lite(Loader *ld, Spec *spec) {
    DeepSeek s = load_fields(ld, spec);
    s.latent_eps = s.d.eps;
    s.moe.names = moe_deepseek;
    family_moe_sigmoid(ld, &s.moe);
    load_expect_text(ld, "scoring_func", "sigmoid");
    load_ignore(ld, "partial_rotary_factor", "rope_interleave", NULL);
    load_blocks(ld, spec, &s);
}

/* Youtu-LLM: dense throughout. Reference: mlx_lm/models/youtu_llm.py. */
static void load_youtu_llm(Loader *ld, Spec *spec) {
    DeepSeek s = load_fields(ld, spec);
    s.latent_eps = s.d.eps;
    load_expect_bool(ld, "mlp_bias", false);
    load_expect_bool(ld, "rope_traditional", true);
    load_ignore(ld, "rope_interleave", NULL);
    load_blocks(ld, spec, &s);
}

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
    {"n_routed_experts", .key = ".expert_count"},
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

const Family deepseek_v2_family = {
    .load = load_v2,
    .gguf = &(const GgufModel){.architecture = "deepseek2",
        .latent = true,
        .class_name = "DeepseekV2ForCausalLM",
        .names = {gguf_ends, gguf_norms, gguf_glu, gguf_experts, gguf_shared, names},
        .fields = {gguf_sizes, gguf_rms, gguf_moe, fields, fields_v2}},
};

const Family glm4_moe_lite_family = {.load = load_glm4_moe_lite};
const Family youtu_llm_family = {.load = load_youtu_llm};

const Family deepseek_v3_family = {
    .load = load_v3,
    .gguf = &(const GgufModel){.architecture = "deepseek2",
        .with_key = ".expert_gating_func",
        .with_value = 2,
        .latent = true,
        .class_name = "DeepseekV3ForCausalLM",
        .names = {gguf_ends, gguf_norms, gguf_glu, gguf_experts, gguf_shared, names},
        .fields = {gguf_sizes, gguf_rms, gguf_moe, fields, fields_v3}},
};
