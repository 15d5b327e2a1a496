/* Families that are a DeepSeek-V2 or V3 with few changes. */
#include "family/mla.h"

/* GLM-4.7-Flash: a DeepSeek-V3 whose norms have one eps. Reference: mlx_lm/models/glm4_moe_lite.py. */
static void load_glm4_moe_lite(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec);
    s.latent_eps = s.d.eps;
    s.moe.names = moe_deepseek;
    family_moe_sigmoid(ld, &s.moe);
    load_expect_text(ld, "scoring_func", "sigmoid");
    load_ignore(ld, "partial_rotary_factor", "rope_interleave", NULL);
    mla_load_blocks(ld, spec, &s);
}

/* Youtu-LLM: dense throughout. Reference: mlx_lm/models/youtu_llm.py. */
static void load_youtu_llm(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec);
    s.latent_eps = s.d.eps;
    load_expect_bool(ld, "mlp_bias", false);
    load_expect_bool(ld, "rope_traditional", true);
    load_ignore(ld, "rope_interleave", NULL);
    mla_load_blocks(ld, spec, &s);
}

/* Mistral 4 (Mistral Small 4): DeepSeek's layers, the softmax over all experts without a bias, and queries that grow
 * with the position. References: mlx_lm/models/mistral4.py; transformers/models/mistral4. */
void mistral4_load(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec);
    const QueryScaling scaling = load_query_scaling(ld);
    MoeComponent *moe = &s.moe.moe;
    family_moe_sigmoid(ld, &s.moe);
    moe->score = ROUTE_SOFTMAX;
    load_ignore(ld, "rope_interleave", NULL);
    mla_load_blocks(ld, spec, &s);
    for (int i = 0; i < spec->layer_count; i++) spec->layers[i].components[0].mla.query_scaling = scaling;
}

const Family glm4_moe_lite_family = {.load = load_glm4_moe_lite};
const Family youtu_llm_family = {.load = load_youtu_llm};
const Family mistral4_family = {.load = mistral4_load};
