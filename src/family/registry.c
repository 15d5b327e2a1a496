/* Finds the family of a config, and with it opens a model; lists those that GGUF files can hold. */
#include "family/family.h"
#include "model/model_internal.h"

/* model_type of config.json → its Family. A new family is one row here and one file. GGUF files of a family become the
 * first of its rows. */
// clang-format off
#define FAMILIES(row)                                                   \
    row("afmoe", afmoe_family)                                          \
    row("apertus", apertus_family)                                      \
    row("arcee", arcee_family)                                          \
    row("axk1", axk1_family)                                            \
    row("axk2", axk2_family)                                            \
    row("bailing_hybrid", bailing_hybrid_family)                        \
    row("baichuan", baichuan_family)                                    \
    row("baichuan_m1", baichuan_m1_family)                              \
    row("bamba", bamba_family)                                          \
    row("bailing_moe", bailing_moe_family)                              \
    row("bailing_moe_linear", bailing_moe_linear_family)                \
    row("bert", bert_family)                                            \
    row("biogpt", biogpt_family)                                        \
    row("bitnet", bitnet_family)                                        \
    row("bloom", bloom_family)                                          \
    row("chatglm", chatglm_family)                                      \
    row("codegen", codegen_family)                                      \
    row("cohere", cohere_family)                                        \
    row("cohere2", cohere2_family)                                      \
    row("cohere2_moe", cohere2_moe_family)                              \
    row("cwm", cwm_family)                                              \
    row("dbrx", dbrx_family)                                            \
    row("deepseek_v2", deepseek_v2_family)                              \
    row("deepseek_v3", deepseek_v3_family)                              \
    row("deepseek_v32", deepseek_v32_family)                            \
    row("deepseek_v4", deepseek_v4_family)                              \
    row("deepseek", deepseek_family)                                    \
    row("dots1", dots1_family)                                          \
    row("dots3_note", dots3_note_family)                                \
    row("dots3_note_text", dots3_note_family)                           \
    row("ernie4_5", ernie4_5_family)                                    \
    row("ernie4_5_moe", ernie4_5_moe_family)                            \
    row("exaone", exaone_family)                                        \
    row("exaone4", exaone4_family)                                      \
    row("exaone_moe", exaone_moe_family)                                \
    row("falcon", falcon_family)                                        \
    row("falcon_h1", falcon_h1_family)                                  \
    row("falcon_mamba", falcon_mamba_family)                            \
    row("fastvlm", fastvlm_family)                                      \
    row("flex_olmo", flex_olmo_family)                                  \
    row("flint", flint_family)                                          \
    row("gemma", gemma_family)                                          \
    row("gemma2", gemma2_family)                                        \
    row("gemma3", gemma3_wrapper_family)                                \
    row("gemma3_text", gemma3_family)                                   \
    row("gemma3n", gemma3n_family)                                      \
    row("gemma3n_text", gemma3n_family)                                 \
    row("gemma4", gemma4_family)                                        \
    row("gemma4_assistant", gemma4_assistant_family)                    \
    row("gemma4_text", gemma4_family)                                   \
    row("gemma4_unified", gemma4_family)                                \
    row("gemma4_unified_assistant", gemma4_assistant_family)            \
    row("gemma4_unified_text", gemma4_family)                           \
    row("glm", glm_family)                                              \
    row("glm4", glm4_family)                                            \
    row("glm4_moe", glm4_moe_family)                                    \
    row("glm4_moe_lite", glm4_moe_lite_family)                          \
    row("glm5_next", glm5_next_family)                                  \
    row("glm5_next_text", glm5_next_family)                             \
    row("glm_moe_dsa", glm_moe_dsa_family)                              \
    row("gpt2", gpt2_family)                                            \
    row("gpt-sw3", gpt2_family)                                         \
    row("gpt_bigcode", gpt_bigcode_family)                              \
    row("gpt_neo", gpt_neo_family)                                      \
    row("glm46v", glm46v_family)                                        \
    row("glm4v", glm4v_family)                                          \
    row("glm4v_moe", glm4v_moe_family)                                  \
    row("glm_ocr", glm_ocr_family)                                      \
    row("gpt_neox", gpt_neox_family)                                    \
    row("gpt_oss", gpt_oss_family)                                      \
    row("gptj", gptj_family)                                            \
    row("granite", granite_family)                                      \
    row("granite_swa", granite_swa_family)                              \
    row("granitemoe", granitemoe_family)                                \
    row("granitemoe_swa", granitemoe_swa_family)                        \
    row("granitemoehybrid", granitemoehybrid_family)                    \
    row("granitemoeshared", granitemoeshared_family)                    \
    row("helium", helium_family)                                        \
    row("hf_olmo", hf_olmo_family)                                      \
    row("hunyuan", hunyuan_family)                                      \
    row("hunyuan_v1_dense", hunyuan_v1_dense_family)                    \
    row("hunyuan_v1_moe", hunyuan_v1_moe_family)                        \
    row("idefics3", idefics3_family)                                    \
    row("iquestcoder", iquestcoder_family)                              \
    row("internlm", internlm_family)                                    \
    row("internlm2", internlm2_family)                                  \
    row("internlm3", internlm3_family)                                  \
    row("hy_v3", hy_v3_family)                                          \
    row("hy_v4", hy_v4_family)                                          \
    row("hyperclovax", hyperclovax_family)                              \
    row("jamba", jamba_family)                                          \
    row("jais2", jais2_family)                                          \
    row("joyai_llm_flash", deepseek_v3_family)                          \
    row("kimi_k2", deepseek_v3_family)                                  \
    row("kimi_k25", kimi_k25_family)                                    \
    row("kimi_linear", kimi_linear_family)                              \
    row("kimi_vl", kimi_k25_family)                                     \
    row("Klear", klear_family)                                          \
    row("kolibri1", kolibri1_family)                                    \
    row("laguna", laguna_family)                                        \
    row("lfm2", lfm2_family)                                            \
    row("lfm2_moe", lfm2_moe_family)                                    \
    row("lfm3", lfm3_family)                                            \
    row("lfm2_vl", lfm2_vl_family)                                      \
    row("lille-130m", lille_family)                                     \
    row("llama", llama_family)                                          \
    row("aquila", llama_family)                                         \
    row("llama4", llama4_family)                                        \
    row("llama4_text", llama4_family)                                   \
    row("llava_qwen2", fastvlm_family)                                      \
    row("longcat_flash", longcat_flash_family)                          \
    row("mamba", mamba_family)                                          \
    row("mamba2", mamba2_family)                                        \
    row("mellum", mellum_family)                                        \
    row("mimo", mimo_family)                                            \
    row("mimo_v2_flash", mimo_v2_flash_family)                          \
    row("minicpm", minicpm_family)                                      \
    row("minicpm3", minicpm3_family)                                    \
    row("minimax", minimax_family)                                      \
    row("minimax_m1", minimax_text_01_family)                           \
    row("minimax_m2", minimax_family)                                   \
    row("minimax_m3", minimax_m3_family)                                \
    row("minimax_m3_vl", minimax_m3_family)                             \
    row("minimax_m3_vl_text", minimax_m3_family)                        \
    row("minimax_text_01", minimax_text_01_family)                      \
    row("ministral", ministral_family)                                  \
    row("ministral3", ministral3_family)                                \
    row("mistral", mistral_family)                                      \
    row("mistral3", mistral3_family)                                    \
    row("mistral4", mistral4_family)                                    \
    row("mixtral", mixtral_family)                                      \
    row("modernbert-decoder", modernbert_decoder_family)                \
    row("mpt", mpt_family)                                              \
    row("muse_glimmer", muse_glimmer_family)                            \
    row("muse_glimmer_text", muse_glimmer_family)                       \
    row("nanbeige", nanbeige_family)                                    \
    row("nanochat", nanochat_family)                                    \
    row("nemotron", nemotron_family)                                    \
    row("nemotron-nas", nemotron_nas_family)                            \
    row("nemotron_h", nemotron_h_family)                                \
    row("nomic_bert", nomic_bert_family)                                \
    row("olmo", olmo_family)                                            \
    row("olmo2", olmo2_family)                                          \
    row("olmo3", olmo3_family)                                          \
    row("olmo_hybrid", olmo_hybrid_family)                              \
    row("olmoe", olmoe_family)                                          \
    row("openelm", openelm_family)                                      \
    row("opt", opt_family)                                              \
    row("orion", orion_family)                                          \
    row("PanguEmbedded", internlm_family)                               \
    row("paligemma", paligemma_family)                                  \
    row("persimmon", persimmon_family)                                  \
    row("phi", phi_family)                                              \
    row("phi3", phi3_family)                                            \
    row("phi3small", phi3small_family)                                  \
    row("phi4_multimodal", phi4_multimodal_family)                      \
    row("phi4mm", phi4_multimodal_family)                               \
    row("phimoe", phimoe_family)                                        \
    row("pixtral", pixtral_family)                                      \
    row("plamo2", plamo2_family)                                        \
    row("plamo3", plamo3_family)                                        \
    row("qwen", qwen_family)                                            \
    row("qwen2", qwen2_family)                                          \
    row("qwen2_5_vl", qwen2_5_vl_family)                                \
    row("qwen2_moe", qwen2_moe_family)                                  \
    row("qwen2_vl", qwen2_vl_family)                                    \
    row("qwen3", qwen3_family)                                          \
    row("qwen3_5", qwen3_5_family)                                      \
    row("qwen3_5_moe", qwen3_5_moe_family)                              \
    row("qwen3_5_moe_text", qwen3_5_moe_family)                         \
    row("qwen3_5_text", qwen3_5_family)                                 \
    row("qwen3_moe", qwen3_moe_family)                                  \
    row("qwen3_next", qwen3_next_family)                                \
    row("qwen3_vl", qwen3_vl_family)                                    \
    row("qwen3_vl_moe", qwen3_vl_moe_family)                            \
    row("recurrent_gemma", recurrent_gemma_family)                      \
    row("roberta", roberta_family)                                      \
    row("seed_oss", seed_oss_family)                                    \
    row("smollm3", smollm3_family)                                      \
    row("solar_open", solar_open_family)                                \
    row("spark2_5", spark2_5_family)                                    \
    row("step3p5", step3p5_family)                                      \
    row("step3p7", step3p5_family)                                      \
    row("smolvlm", idefics3_family)                                     \
    row("stablelm", stablelm_family)                                    \
    row("stablelm_epoch", stablelm_family)                              \
    row("starcoder2", starcoder2_family)                                \
    row("talkie", talkie_family)                                        \
    row("telechat3", telechat3_family)                                  \
    row("vaultgemma", vaultgemma_family)                                \
    row("xglm", xglm_family)                                            \
    row("xlm-roberta", roberta_family)                                  \
    row("xverse", llama_family)                                         \
    row("youtu_llm", youtu_llm_family)                                  \
    row("youtu", youtu_llm_family)                                      \
    row("zamba2", zamba2_family)
// clang-format on

#define DECLARE_FAMILY(model_type, family) extern const Family family; /* twice is fine */
FAMILIES(DECLARE_FAMILY)

#define FAMILY_ROW(model_type, family) {model_type, &family},
static const struct {
    const char *model_type;
    const Family *family;
} families[] = {FAMILIES(FAMILY_ROW)};

static FamilyLoad *family_find(Slice model_type) {
    for (size_t i = 0; i < COUNT_OF(families); i++) {
        if (slice_is(model_type, families[i].model_type)) return families[i].family->load;
    }
    return NULL;
}

/* Whether an earlier row has the same family: its model_type is the one to write. */
static bool is_alias(size_t row) {
    for (size_t i = 0; i < row; i++)
        if (families[i].family == families[row].family) return true;
    return false;
}

const GgufModel *family_gguf(size_t index, const char **model_type) {
    for (size_t i = 0; i < COUNT_OF(families); i++) {
        if (is_alias(i)) continue;
        for (const GgufModel *model = families[i].family->gguf; model; model = model->other) {
            if (index-- > 0) continue;
            *model_type = families[i].model_type;
            return model;
        }
    }
    return NULL;
}

Model *model_open(const char *directory, const ModelOptions *options, Error *error) {
    return model_load(directory, options, family_find, error);
}
