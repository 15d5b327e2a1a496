/* GGUF rows that stand beside their families' files: dense_gguf.c, moe_gguf.c, mla_gguf.c, gemma_gguf.c. */
#pragma once
#include "family/family.h"

extern const GgufModel apertus_gguf, dbrx_gguf, glm_gguf, gpt2_gguf, gpt_bigcode_gguf, gpt_neox_gguf,
    hunyuan_dense_gguf, internlm2_gguf, minicpm_gguf, minicpm3_gguf, ministral3_gguf, qwen_gguf, qwen2_vl_gguf,
    qwen3_vl_gguf;
extern const GgufModel afmoe_gguf, bailing_moe_gguf, ernie4_5_moe_gguf, exaone_moe_gguf, hunyuan_moe_gguf, llama4_gguf,
    mimo_v2_flash_gguf, minimax_gguf, phimoe_gguf, qwen3_vl_moe_gguf;
extern const GgufModel deepseek_v2_gguf, deepseek_v3_gguf, deepseek_v32_gguf, glm_moe_dsa_gguf, glm4_moe_lite_gguf,
    mistral4_gguf;
extern const GgufModel gemma3n_gguf, gemma4_gguf;
