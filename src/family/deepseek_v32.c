/* DeepSeek-V3.2, GLM-5: a DeepSeek-V3 whose attention reads the index_topk keys that an indexer chooses, its own or in
 * GLM-5 that of an earlier layer. Where a context has no more tokens, all are read. References:
 * mlx_lm/models/deepseek_v32.py, glm_moe_dsa.py; transformers/models/deepseek_v32, glm_moe_dsa. */
#include "family/gguf/models.h"
#include "family/mla.h"

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
    const Json *types = load_list(ld, "layer_types", spec->layer_count);
    for (int i = 0; types && i < spec->layer_count; i++)
        family_kind(ld, "layer_types", types, i, "indexed_attention", "deepseek_sparse_attention");
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

const Family deepseek_v32_family = {.load = load_deepseek_v32, .gguf = &deepseek_v32_gguf};
const Family glm_moe_dsa_family = {.load = load_glm_moe_dsa, .gguf = &glm_moe_dsa_gguf};
