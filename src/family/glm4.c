/* GLM-4 (0414), GLM-4 9B (glm), GLM-4.1V (glm4v), GLM-4.6V and GLM-OCR: gate and up in one matrix, half of each head
 * rotates in pairs of neighbours; GLM-4 has sandwich norms. References: mlx_lm/models/glm4.py; transformers/models/glm
 * (in mlx_lm/models/glm.py whole heads rotate). */
#include "family/gguf_models.h"
#include "family/dense.h"
#include "family/vision.h"

extern const Family glm4v_moe_family; /* glm4_moe.c */

static void load_glm(Loader *ld, Spec *spec) {
    static const Dense row = {
        .rotary_factor = 0.5, .interleaved = true, .qkv_bias = {"attention_bias", false}, .ffn = DENSE_FUSED_GLU};
    dense_load(ld, spec, &row);
}

static const NormNames sandwich = {
    load_rms, "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"};

static void load_glm4(Loader *ld, Spec *spec) {
    static const Dense row = {.norms = &sandwich,
        .rotary_factor = 0.5,
        .interleaved = true,
        .qkv_bias = {"attention_bias", true},
        .ffn = DENSE_FUSED_GLU};
    dense_load(ld, spec, &row);
}

/* GLM-4.1V and GLM-OCR, whose attention has no biases and rotates whole heads. */
static void load_images(Loader *ld, Spec *spec, const Dense *row) {
    const LoadPlace root = load_place(ld);
    load_text_part(ld);
    dense_load(ld, spec, row);
    load_skip(ld, "language_model.layers.%d.", spec->layer_count); /* predicts a further token */
    load_return(ld, &root);
    vision_load_glm(ld, spec);
}

static void load_glm4v(Loader *ld, Spec *spec) {
    static const Dense row = {.norms = &sandwich,
        .rotary_factor = 0.5,
        .interleaved = true,
        .mrope = true,
        .qkv_bias = {NULL, true},
        .ffn = DENSE_FUSED_GLU,
        .ignored = {"attention_bias"}};
    load_images(ld, spec, &row);
}

/* GLM-4.6V: its text model is that of GLM-4.1V, or of GLM-4.5V, whose experts text_config counts. */
static void load_glm46v(Loader *ld, Spec *spec) {
    const Json *text = json_get(load_place(ld).fields, "text_config");
    (json_get(text, "n_routed_experts") ? glm4v_moe_family.load : load_glm4v)(ld, spec);
}

static void load_glm_ocr(Loader *ld, Spec *spec) {
    static const Dense row = {.norms = &sandwich,
        .rotary_factor = 1,
        .interleaved = true,
        .mrope = true,
        .qkv_bias = {"attention_bias", false},
        .ffn = DENSE_FUSED_GLU,
        .ignored = {"num_nextn_predict_layers"}};
    load_images(ld, spec, &row);
}

static const GgufName names[] = {
    {"blk.*.ffn_up", "model.layers.*.mlp.gate_up_proj", 0},
    {0},
};

static const GgufName names4[] = {
    {"blk.*.post_attention_norm", "model.layers.*.post_self_attn_layernorm", 0},
    {"blk.*.post_ffw_norm", "model.layers.*.post_mlp_layernorm", 0},
    {0},
};

static const GgufField fields[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"partial_rotary_factor", GGUF_FIELD_NUMBER, .key = ".rope.dimension_count", .compute = gguf_rotary_factor},
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {0},
};

const Family glm_family = {.load = load_glm, .gguf = &glm_gguf};
const Family glm4v_family = {.load = load_glm4v};
const Family glm46v_family = {.load = load_glm46v};
const Family glm_ocr_family = {.load = load_glm_ocr};

const Family glm4_family = {
    .load = load_glm4,
    .gguf = &(const GgufModel){.architecture = "glm4",
        .class_name = "Glm4ForCausalLM",
        .names = {gguf_ends, gguf_norms, gguf_qkv, names, names4},
        .fields = {gguf_sizes, gguf_rms, gguf_silu, fields}},
};
