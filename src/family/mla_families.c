/* Families that are a DeepSeek-V2 or V3 with few changes. */
#include "family/gguf_models.h"
#include "family/mla.h"

#include <math.h>

/* GLM-4.7-Flash: a DeepSeek-V3 whose norms have one eps. Reference: mlx_lm/models/glm4_moe_lite.py. */
static void load_glm4_moe_lite(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec, 128);
    s.latent_eps = s.d.eps;
    s.moe.names = moe_deepseek;
    family_moe_sigmoid(ld, &s.moe);
    load_expect_text(ld, "scoring_func", "sigmoid");
    load_ignore(ld, "partial_rotary_factor", "rope_interleave", NULL);
    mla_load_blocks(ld, spec, &s);
}

/* Youtu-LLM: dense throughout. Reference: mlx_lm/models/youtu_llm.py. */
static void load_youtu_llm(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec, 128);
    s.latent_eps = s.d.eps;
    load_expect_bool(ld, "mlp_bias", false);
    load_expect_bool(ld, "rope_traditional", true);
    load_ignore(ld, "rope_interleave", NULL);
    mla_load_blocks(ld, spec, &s);
}

/* Mistral 4 (Mistral Small 4): DeepSeek's layers, the softmax over all experts without a bias, and queries that grow
 * with the position. References: mlx_lm/models/mistral4.py; transformers/models/mistral4. */
void mistral4_load(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec, 128);
    const QueryScaling scaling = load_query_scaling(ld);
    MoeComponent *moe = &s.moe.moe;
    family_moe_sigmoid(ld, &s.moe);
    moe->score = ROUTE_SOFTMAX;
    load_ignore(ld, "rope_interleave", NULL);
    mla_load_blocks(ld, spec, &s);
    for (int i = 0; i < spec->layer_count; i++) spec->layers[i].components[0].mla.query_scaling = scaling;
}

/* MiniCPM 3: dense throughout, with MiniCPM's factors. References: transformers/models/minicpm3;
 * mlx_lm/models/minicpm3.py, whose norms of latents have another eps. */
static void load_minicpm3(Loader *ld, Spec *spec) {
    const float depth = load_positive_or(ld, "scale_depth", 1.4), base = load_positive_or(ld, "dim_model_base", 256);
    spec->embedding_scale = load_positive_or(ld, "scale_emb", 12);
    MlaFamily s = mla_load_fields(ld, spec, load_int(ld, "hidden_size") / load_int(ld, "num_attention_heads"));
    s.rope = load_rope(ld, &(RopeOptions){.head_dim = s.rope_dim, .theta = 10000});
    s.residual_scale = depth / sqrtf((float)spec->layer_count);
    spec->logit_scale = base / (float)s.d.hidden;
    mla_load_blocks(ld, spec, &s);
}

/* DeepSeek-V3.2, GLM-5: a DeepSeek-V3 whose attention reads the index_topk keys that an indexer chooses, its own or in
 * GLM-5 that of an earlier layer. Where a context has no more tokens, all are read. References:
 * mlx_lm/models/deepseek_v32.py, glm_moe_dsa.py; transformers/models/deepseek_v32, glm_moe_dsa. */
static void load_sparse(Loader *ld, Spec *spec, bool interleaved) {
    MlaFamily s = mla_load_fields(ld, spec, 128);
    const int top_k = load_int_or(ld, "index_topk", 2048), width = load_int_or(ld, "index_head_dim", 128);
    const int heads = load_int_or(ld, "index_n_heads", 64), context = load_context(ld);
    const RopeOptions options = {.head_dim = width,
        .dims = s.rope_dim,
        .theta = 10000,
        .interleaved = load_bool_or(ld, "indexer_rope_interleave", interleaved)};
    s.moe.names = moe_deepseek;
    family_moe_sigmoid(ld, &s.moe);
    load_expect_text(ld, "scoring_func", "sigmoid");
    s.index_types = load_list(ld, "indexer_types", spec->layer_count);
    load_expect_int(ld, "index_topk_freq", 1);
    load_require(ld, s.q_rank && s.rope_dim <= width, "the indexer needs q_lora_rank, and index_head_dim %d or more",
        s.rope_dim);
    load_ignore(ld, "rope_interleave", "index_skip_topk_offset", "index_share_for_mtp_iteration", NULL);
    if (context > 0 && context <= top_k)
        load_skip(ld, ".self_attn.indexer.");
    else
        s.index = (IndexSelect){.kv.layout = {.kv_heads = 1, .head_dim = width},
            .heads = heads,
            .block = 1,
            .top_k = top_k,
            .rope = load_rope(ld, &options)};
    mla_load_blocks(ld, spec, &s);
}

static void load_deepseek_v32(Loader *ld, Spec *spec) { load_sparse(ld, spec, false); }
static void load_glm_moe_dsa(Loader *ld, Spec *spec) { load_sparse(ld, spec, true); }

const Family minicpm3_family = {.load = load_minicpm3, .gguf = &minicpm3_gguf};
const Family deepseek_v32_family = {.load = load_deepseek_v32, .gguf = &deepseek_v32_gguf};
const Family glm_moe_dsa_family = {.load = load_glm_moe_dsa, .gguf = &glm_moe_dsa_gguf};
const Family glm4_moe_lite_family = {.load = load_glm4_moe_lite, .gguf = &glm4_moe_lite_gguf};
const Family youtu_llm_family = {.load = load_youtu_llm};
const Family mistral4_family = {.load = mistral4_load, .gguf = &mistral4_gguf};
