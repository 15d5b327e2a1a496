/* family/: one file per family of models: its config.json and its GGUF rows. Nothing here computes.
 *
 * What the families share: reading the numbers nearly all configs have, and the usual blocks under their usual names,
 * in MLX's and in GGUF's. This folder says what models are made of, one family a file, and how their files say it; how
 * anything is computed is the model's and the backends' business. A family is a Family, `const Family NAME_family`, in
 * its own file and a row of registry.c; what several share is here, and what one alone needs stays in its file. */
#pragma once
#include "family/gguf.h"
#include "model/loader/loader.h"

typedef struct Family {
    FamilyLoad *load;
    const GgufModel *gguf; /* NULL: no GGUF file holds it */
} Family;

typedef struct Dims {
    int hidden, heads, kv_heads, head_dim, intermediate_size;
    float eps;
} Dims;

/* hidden_size, num_attention_heads, num_key_value_heads (absent: heads), head_dim (absent: hidden / heads),
 * intermediate_size, rms_norm_eps; and into the spec: layers, vocab_size, max_position_embeddings. */
Dims family_dims(Loader *ld, Spec *spec);
/* Completes and checks numbers that a family read itself: a head_dim of 0 becomes hidden / heads. */
void family_check(Loader *ld, Dims *dims);
/* model.embed_tokens, model.norm, and lm_head: tied when tie_word_embeddings says so, without it when there is none. */
void family_ends(Loader *ld, Spec *spec, const Dims *dims);
/* lm_head, or the embedding again. */
void family_head(Loader *ld, Spec *spec, const Dims *dims, bool tied);

/* self_attn.q_proj, k_proj, v_proj and self_attn.OUT; the parameters that every attention has. Norms, window, softcap
 * are the family's to add. */
AttentionMixer family_attention(
    Loader *ld, const Dims *dims, const char *out, const Rope *rope, bool bias, bool out_bias);
/* The same without weights. */
AttentionMixer family_attention_op(const Dims *dims, const Rope *rope);
/* Norms of each head: self_attn.Q and self_attn.K. */
void family_qk_norms(Loader *ld, Layer *layer, const char *q, const char *k, const Dims *dims);
/* mlp.gate_proj, up_proj, down_proj. */
GluFfn family_glu(Loader *ld, const Dims *dims, Activation activation, bool bias);

/* The same under HOME. */
GluFfn family_glu_at(Loader *ld, const char *home, int hidden, int intermediate_size, Activation activation, bool bias);

/* Names of a mixture of experts: HOME.ROUTER; the experts HOME.STACK.{gate,up,down}_proj, or HOME.experts.N.GATE, UP
 * and DOWN one by one; HOME.SHARED.{gate,up,down}_proj of the shared one; HOME.BIAS for the choice. */
typedef struct MoeNames {
    const char *home, *router, *stack, *gate, *up, *down, *shared, *bias;
} MoeNames;
extern const MoeNames moe_usual;    /* mlp.gate, mlp.switch_mlp, gate_proj …, mlp.shared_experts */
extern const MoeNames moe_deepseek; /* the same, and mlp.gate.e_score_correction_bias */

/* A family's mixture of experts, read once from the config. */
typedef struct Moe {
    MoeNames names;
    MoeFfn ffn; /* experts, used, and how they are chosen; no weights */
    int hidden, intermediate_size;
    int shared;             /* inner width of the shared expert; 0: none */
    bool bias, router_bias; /* of all experts; of the router */
} Moe;

/* The usual ones: experts with silu, used with the softmax over all as it is. */
Moe family_moe_open(Loader *ld, const MoeNames *names, int hidden, int intermediate_size, int experts, int used);
/* The inner width of one shared expert that stands for `count` of them, each so wide. */
int family_moe_shared(Loader *ld, int each, int count);
/* What DeepSeek-V3's configs say about the choice, and those of who followed: sigmoids, a bias for the choice alone,
 * groups (n_group, topk_group, norm_topk_prob, routed_scaling_factor). */
void family_moe_sigmoid(Loader *ld, Moe *moe);
/* The feed-forward part of the layer in scope: the mixture, or for NULL the usual mlp. */
void family_moe_layer(Loader *ld, Layer *layer, const Moe *moe, const Dims *dims, bool mlp_bias);

/* Which layers attend through a sliding window, the token itself included: query i sees key j when i − j < width. So
 * the models were trained and transformers masks (masking_utils.py), also where mlx-lm's class knows no window. */
typedef struct Windows {
    const Json *types; /* layer_types, which alone decides where the file has it; NULL: the fields below do */
    int width;         /* 0: no layer has a window */
    int first;         /* the first layer that has one */
    int full_every;    /* of so many layers the last has none; 0: all have one */
} Windows;

/* sliding_window behind use_sliding_window, from layer max_window_layers on: Qwen2, Qwen3. */
Windows family_windows_switched(Loader *ld, const Spec *spec);
/* The window of layer i; 0: it sees everything. */
int family_window(Loader *ld, const Windows *windows, int i);
/* Element i of a list that load_list has counted. */
const Json *family_item(const Json *list, int i);
/* Element i, which must be 0 or 1, of such a list; field: its name, for messages. No list is an error. */
bool family_flag(Loader *ld, const char *field, const Json *list, int i);
/* Whether a list has the number; list NULL: it has none. */
bool family_listed(const Json *list, int number);

/* For a family that is a llama with changes. */
FamilyLoad llama_load;

/* The usual names and fields of GGUF files; each ends with an empty row. */
extern const GgufName gguf_ends[];       /* embedding and head; what follows attention and the feed-forward part */
extern const GgufName gguf_norms[];      /* before both of them, and the last */
extern const GgufName gguf_qkv[];        /* q, k, v */
extern const GgufName gguf_qkv_paired[]; /* the same, q and k with their halves interleaved */
extern const GgufName gguf_glu[];        /* gate and up */
extern const GgufName gguf_head_norms[]; /* of each head's q and k, or of all of them */
extern const GgufName gguf_experts[];    /* router and experts, as moe_usual calls them */
extern const GgufName gguf_shared[];     /* shared_experts */
extern const GgufField gguf_sizes[];
extern const GgufField gguf_rms[];
extern const GgufField gguf_llama[];          /* and what else a llama's config.json says */
extern const GgufField gguf_moe[];            /* num_experts_per_tok, moe_intermediate_size */
double gguf_head_dim(const GgufSizes *sizes); /* GgufField.compute of head_dim, where config.json always says it */
