/* GLM-4.1V (glm4v), GLM-4.6V and GLM-OCR: GLM-4 with positions in three dimensions and a vision tower. References:
 * transformers/models/glm4v, glm46v, glm_ocr. */
#include "family/dense.h"
#include "family/vision.h"

extern const NormNames glm4_norms;    /* glm4.c */
extern const Family glm4v_moe_family; /* glm4_moe.c */

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
    static const Dense row = {.norms = &glm4_norms,
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
    static const Dense row = {.norms = &glm4_norms,
        .rotary_factor = 1,
        .interleaved = true,
        .mrope = true,
        .qkv_bias = {"attention_bias", false},
        .ffn = DENSE_FUSED_GLU,
        .ignored = {"num_nextn_predict_layers"}};
    load_images(ld, spec, &row);
}

const Family glm4v_family = {.load = load_glm4v};
const Family glm46v_family = {.load = load_glm46v};
const Family glm_ocr_family = {.load = load_glm_ocr};
