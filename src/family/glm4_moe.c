/* GLM-4.5 and 4.6: partly rotated heads with biases, norms on q and k in some, DeepSeek-V3's MoE blocks after
 * the first layers. The layer behind the last is a multi-token prediction head.
 * Reference: mlx_lm/models/glm4_moe.py. */
#include "family/gguf/models.h"
#include "family/vision.h"

static void load_text(Loader *ld, Spec *spec, double rotary_factor, double theta, bool mrope) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5});
    const bool bias = load_bool_or(ld, "attention_bias", false), norms = load_bool_or(ld, "use_qk_norm", false);
    const int dense = load_count_or(ld, "first_k_dense_replace", 0);
    Moe moe = family_moe_fields(ld, &moe_deepseek, d.hidden, "n_routed_experts");
    family_moe_sigmoid(ld, &moe);
    moe.shared = family_moe_shared(ld, moe.intermediate_size, load_count_or(ld, "n_shared_experts", 0));
    const Rope *rope = load_rope(ld,
        &(RopeOptions){.head_dim = d.head_dim,
            .dims = load_rotary_dims(ld, d.head_dim, rotary_factor),
            .theta = theta,
            .mrope = mrope});
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_text(ld, "scoring_func", "sigmoid");
    load_ignore(ld, "num_nextn_predict_layers", "output_router_logits", NULL);
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

const Family glm4v_moe_family = {.load = load_images};

const Family solar_open_family = {.load = load_solar_open};

const Family glm4_moe_family = {.load = load, .gguf = &glm4_moe_gguf};
