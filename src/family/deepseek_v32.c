/* DeepSeek-V3.2, GLM-5: a DeepSeek-V3 whose attention reads the index_topk keys that an indexer chooses, its own or in
 * GLM-5 that of an earlier layer. Where a context has no more tokens, all are read. References:
 * mlx_lm/models/deepseek_v32.py, glm_moe_dsa.py; transformers/models/deepseek_v32, glm_moe_dsa. */
#include "family/gguf/models.h"
#include "family/mla.h"

static void load_sparse(Loader *ld, Spec *spec, bool interleaved) {
    MlaFamily s = mla_load_fields(ld, spec, 128);
    s.moe.names = moe_deepseek;
    family_moe_sigmoid(ld, &s.moe);
    load_expect_text(ld, "scoring_func", "sigmoid");
    mla_expect_indexed(ld, spec);
    mla_load_index(ld, spec, &s, 64, load_bool_or(ld, "indexer_rope_interleave", interleaved));
    load_ignore(ld, "rope_interleave", "index_skip_topk_offset", "index_share_for_mtp_iteration", NULL);
    mla_load_blocks(ld, spec, &s);
}

static void load_deepseek_v32(Loader *ld, Spec *spec) { load_sparse(ld, spec, false); }
static void load_glm_moe_dsa(Loader *ld, Spec *spec) { load_sparse(ld, spec, true); }

const Family deepseek_v32_family = {.load = load_deepseek_v32, .gguf = &deepseek_v32_gguf};
const Family glm_moe_dsa_family = {.load = load_glm_moe_dsa, .gguf = &glm_moe_dsa_gguf};
