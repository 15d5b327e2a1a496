/* family/gguf/: what GGUF files call the tensors and fields of each family; llama.cpp's converter and src/models are
 * the source. Rows only (family/gguf.h); the families' own files refer to them. */
#pragma once
#include "family/gguf.h"

/* The usual names and fields of GGUF files; each ends with an empty row. */
extern const GgufName gguf_ends[];       /* embedding and head; what follows attention and the feed-forward part */
extern const GgufName gguf_norms[];      /* before both of them, and the last */
extern const GgufName gguf_qkv[];        /* q, k, v */
extern const GgufName gguf_qkv_paired[]; /* the same, q and k with their halves interleaved */
extern const GgufName gguf_glu[];        /* gate and up */
extern const GgufName gguf_head_norms[]; /* norms of q and k, per head or over all heads */
extern const GgufName gguf_experts[];    /* router and experts, as moe_usual calls them */
extern const GgufName gguf_shared[];     /* shared_experts */
extern const GgufName gguf_correction[]; /* mlp.gate.e_score_correction_bias */
extern const GgufField gguf_sizes[];
extern const GgufField gguf_outer_sizes[]; /* the same less intermediate_size */
extern const GgufField gguf_rms[];
extern const GgufField gguf_silu[];           /* hidden_act */
extern const GgufField gguf_llama[];          /* and what else a llama's config.json says */
extern const GgufField gguf_moe[];            /* num_experts_per_tok, moe_intermediate_size */
extern const GgufField gguf_own_head_dim[];   /* head_dim, which config.json always says */
extern const GgufField gguf_attention_bias[]; /* attention_bias */
extern const GgufField gguf_granite[];        /* factors of embeddings, attention, residuals and logits */
/* GgufField.compute of head_dim where config.json always says it, of partial_rotary_factor, vocab_size and
 * num_hidden_layers. */
double gguf_head_dim(const GgufSizes *sizes);
double gguf_rotary_factor(const GgufSizes *sizes);
double gguf_vocab_size(const GgufSizes *sizes);
double gguf_layer_count(const GgufSizes *sizes);

/* cohere.c */
extern const GgufModel bloom_gguf, cohere_gguf, cohere2_gguf, cohere2_moe_gguf;
/* deepseek_v4.c */
extern const GgufModel deepseek_v4_gguf;
/* dense.c */
extern const GgufModel apertus_gguf, arcee_gguf, ernie4_5_gguf, falcon_gguf, gpt2_gguf, gpt_bigcode_gguf, gpt_neox_gguf,
    hunyuan_dense_gguf, jais2_gguf, mpt_gguf, nemotron_gguf, seed_oss_gguf, stablelm_gguf, starcoder2_gguf;
/* encoder.c */
extern const GgufModel bert_gguf, nomic_bert_gguf;
/* exaone.c */
extern const GgufModel exaone_gguf, exaone4_gguf;
/* gemma.c */
extern const GgufModel gemma_gguf, gemma2_gguf, gemma3_gguf, gemma3n_gguf, gemma4_gguf, gemma4_assistant_gguf;
/* glm.c */
extern const GgufModel glm_gguf, glm4_gguf, glm4_moe_gguf;
/* llama.c */
extern const GgufModel baichuan_gguf, granite_gguf, granitemoe_gguf, granitemoeshared_gguf, internlm2_gguf, llama_gguf,
    minicpm_gguf, minicpm3_gguf, ministral3_gguf, mistral_gguf, mixtral_gguf, nanbeige_gguf, smollm3_gguf;
/* mla.c */
extern const GgufModel deepseek_v2_gguf, deepseek_v3_gguf, deepseek_v32_gguf, glm4_moe_lite_gguf, glm_moe_dsa_gguf,
    mistral4_gguf, youtu_llm_gguf;
/* layers.c */
extern const GgufModel granite_swa_gguf, granitemoe_swa_gguf, laguna_gguf, muse_glimmer_gguf, nemotron_nas_gguf,
    openelm_gguf, spark2_5_gguf, step3p5_gguf;
/* moe.c */
extern const GgufModel afmoe_gguf, bailing_moe_gguf, dbrx_gguf, deepseek_gguf, dots1_gguf, ernie4_5_moe_gguf,
    exaone_moe_gguf, gpt_oss_gguf, hy_v3_gguf, hunyuan_moe_gguf, llama4_gguf, mellum_gguf, mimo_v2_flash_gguf,
    minimax_gguf, minimax_m3_gguf, phimoe_gguf;
/* olmo.c */
extern const GgufModel olmo_gguf, olmo2_gguf, olmo3_gguf, olmoe_gguf;
/* phi.c */
extern const GgufModel phi_gguf, phi3_gguf;
/* qwen.c */
extern const GgufModel qwen_gguf, qwen2_gguf, qwen2_moe_gguf, qwen2_vl_gguf, qwen3_gguf, qwen3_moe_gguf, qwen3_vl_gguf,
    qwen3_vl_moe_gguf;
/* qwen3_next.c */
extern const GgufModel qwen3_5_gguf, qwen3_5_moe_gguf, qwen3_next_gguf;
/* recurrent.c */
extern const GgufModel bailing_hybrid_gguf, bamba_gguf, falcon_h1_gguf, falcon_mamba_gguf, granitemoehybrid_gguf,
    jamba_gguf, kimi_linear_gguf, lfm2_gguf, lfm2_moe_gguf, mamba_gguf, mamba2_gguf, minimax_text_01_gguf,
    nemotron_h_gguf;
