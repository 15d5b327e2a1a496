/* GLM-4.5 and 4.6: partly rotated heads with biases, norms on q and k in some, DeepSeek-V3's MoE blocks after
 * the first layers. The layer behind the last is a multi-token prediction head.
 * Reference: mlx_lm/models/glm4_moe.py. */
#include "family/vision.h"

static void load_text(Loader *ld, Spec *spec, double rotary_factor, double theta, bool mrope) {
    const Dims d = family_dims(ld, spec);
    const bool bias = load_bool_or(ld, "attention_bias", false), norms = load_bool_or(ld, "use_qk_norm", false);
    const int dense = load_count_or(ld, "first_k_dense_replace", 0);
    Moe moe = family_moe_open(ld, &moe_deepseek, d.hidden, load_int(ld, "moe_intermediate_size"),
        load_int(ld, "n_routed_experts"), load_int(ld, "num_experts_per_tok"));
    family_moe_sigmoid(ld, &moe);
    moe.shared = family_moe_shared(ld, moe.intermediate_size, load_count_or(ld, "n_shared_experts", 0));
    const Rope *rope = load_rope(ld,
        &(RopeOptions){.head_dim = d.head_dim,
            .dims = load_rotary_dims(ld, d.head_dim, rotary_factor),
            .theta = theta,
            .mrope = mrope});
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_text(ld, "scoring_func", "sigmoid");
    load_ignore(ld, "num_nextn_predict_layers", NULL);
    load_skip(ld, "model.layers.%d.", spec->layer_count);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    const char *q_norm = norms ? "q_norm" : NULL, *k_norm = norms ? "k_norm" : NULL;
    Block block = {.dims = &d, .rope = rope, .bias = bias, .q_norm = q_norm, .k_norm = k_norm};
    for (int i = 0; i < spec->layer_count; i++) {
        block.moe = i >= dense ? &moe : NULL;
        family_block(ld, spec, i, &block);
    }
    Spec *mtp = family_nextn(ld, spec, d.eps);
    block.moe = &moe;
    if (mtp) family_block_here(ld, mtp, mtp->layers, &block);
}

static void load(Loader *ld, Spec *spec) { load_text(ld, spec, 0.5, 10000, false); }

/* Solar Open: the same with whole heads that rotate. Its transformers class has experts in every layer, which a file
 * without first_k_dense_replace means here too. References: transformers/models/solar_open;
 * mlx_lm/models/solar_open.py. */
static void load_solar_open(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"intermediate_size", "moe_intermediate_size"}, {0}};
    if (!load_has_field(ld, "intermediate_size")) load_field_names(ld, fields);
    load_text(ld, spec, 1, 1e6, false);
}

static void load_images(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    load_text_part(ld);
    load_text(ld, spec, 0.5, 10000, true);
    load_skip(ld, "language_model.layers.%d.", spec->layer_count);
    load_return(ld, &root);
    vision_load_glm(ld, spec);
}

static const GgufName names[] = {
    {"output_norm", "model.norm", 0},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", 0},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", 0},
    {"blk.*.exp_probs_b", "model.layers.*.mlp.gate.e_score_correction_bias", GGUF_NAMED},
    {0},
};

static const GgufField fields[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {"use_qk_norm", GGUF_FIELD_HAS, .key = "blk.0.attn_q_norm.weight"},
    {"n_routed_experts", .key = ".expert_count"},
    {"n_shared_experts", .key = ".expert_shared_count", .optional = true},
    {"first_k_dense_replace", .key = ".leading_dense_block_count", .optional = true},
    {"scoring_func", GGUF_FIELD_TEXT, .text = "sigmoid", .key = ".expert_gating_func", .absent = 2},
    {"norm_topk_prob", GGUF_FIELD_BOOL, .key = ".expert_weights_norm", .absent = 0},
    {"routed_scaling_factor", GGUF_FIELD_NUMBER, .key = ".expert_weights_scale", .absent = 1},
    {0},
};

const Family glm4v_moe_family = {.load = load_images};

const Family solar_open_family = {.load = load_solar_open};

const Family glm4_moe_family = {
    .load = load,
    .gguf = &(const GgufModel){.architecture = "glm4moe",
        .class_name = "Glm4MoeForCausalLM",
        .names = {gguf_ends, gguf_qkv, gguf_glu, gguf_head_norms, gguf_experts, gguf_shared, names},
        .fields = {gguf_sizes, gguf_rms, gguf_moe, fields}},
};
