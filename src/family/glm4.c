/* GLM-4 (0414) and GLM-4 9B (glm): gate and up in one matrix, half of each head rotates in pairs of neighbours; GLM-4
 * has sandwich norms. References: mlx_lm/models/glm4.py; transformers/models/glm (in mlx_lm/models/glm.py whole heads
 * rotate). */
#include "family/dense.h"
#include "family/gguf/models.h"

static void load_glm(Loader *ld, Spec *spec) {
    static const Dense row = {.head_dim = 128,
        .eps = 1.5625e-7,
        .rotary_factor = 0.5,
        .interleaved = true,
        .qkv_bias = {"attention_bias", false},
        .ffn = DENSE_FUSED_GLU};
    dense_load(ld, spec, &row);
}

const NormNames glm4_norms = {
    load_rms, "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"};

static void load_glm4(Loader *ld, Spec *spec) {
    static const Dense row = {.head_dim = 128,
        .eps = 1.5625e-7,
        .norms = &glm4_norms,
        .rotary_factor = 0.5,
        .interleaved = true,
        .qkv_bias = {"attention_bias", true},
        .ffn = DENSE_FUSED_GLU};
    dense_load(ld, spec, &row);
}

const Family glm_family = {.load = load_glm, .gguf = &glm_gguf};
const Family glm4_family = {.load = load_glm4, .gguf = &glm4_gguf};
