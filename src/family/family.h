/* family/: one file per family of models: how config.json becomes a Spec, and GGUF rows. Nothing here computes.
 *
 * A family is `const Family NAME_family` in a file of its own and a row of registry.c. This header has what families
 * share: the numbers that nearly all configs have, and the usual components under their usual names in MLX's and GGUF's
 * formats. Errors stick to the Loader (model/loader/loader.h), so none of these functions reports one. */
#pragma once
#include "family/gguf.h"
#include "model/component.h"
#include "model/loader/loader.h"

typedef struct Family {
    FamilyLoad *load;
    const GgufModel *gguf; /* NULL: no GGUF file holds it */
} Family;

typedef struct Dims {
    int hidden, heads, kv_heads, head_dim, intermediate_size;
    float eps;
} Dims;

/* How a family loads norms: load_rms and the like. */
typedef const Norm *LoadNorm(Loader *ld, const char *name, int64_t width, float eps);

/* The value of each size that the config lacks; 0: the config must have it. */
typedef struct Sizes {
    int hidden, layers, heads, vocab;
    int intermediate_size; /* SIZE_OWN: the family sets it */
    int kv_heads;          /* 0: as many as heads */
    int head_dim;          /* 0: hidden / heads */
    int positions;         /* 0: 32768 */
    double eps;
    const char *eps_field; /* NULL: rms_norm_eps */
} Sizes;
enum { SIZE_OWN = -1 };

/* hidden_size, num_attention_heads, num_key_value_heads, head_dim, intermediate_size, and the epsilon of norms; into
 * the spec as well: hidden, num_hidden_layers, vocab_size, max_position_embeddings. spec NULL: a tower's, which has its
 * own.
 */
Dims family_sizes(Loader *ld, Spec *spec, const Sizes *absent);
/* The same where a llama's config has them. */
Dims family_dims(Loader *ld, Spec *spec);
/* Checks numbers that a family read itself; a head_dim of 0 becomes hidden / heads. */
void family_check(Loader *ld, Dims *dims);
/* model.embed_tokens, model.norm, and lm_head, which is tied if tie_word_embeddings says so, or if that is absent and
 * the file has no lm_head. */
void family_ends(Loader *ld, Spec *spec, const Dims *dims);
/* The same under other names. */
void family_ends_named(Loader *ld, Spec *spec, const Dims *dims, const char *embedding, const char *norm);
/* The same with this kind of norm; tied: lm_head is the embedding. */
void family_ends_as(
    Loader *ld, Spec *spec, const Dims *dims, const char *embedding, const char *norm, LoadNorm *load_norm, bool tied);
/* lm_head, or the embedding again. */
void family_head(Loader *ld, Spec *spec, const Dims *dims, bool tied);

/* ---- layers ---- */

/* From here on tensor names of layer i are complete: "model.layers.i." + name. Returns the layer, without components.
 */
Layer *family_layer(Loader *ld, Spec *spec, int i);

/* self_attn.q_proj, k_proj and v_proj, and self_attn.OUT, with the parameters that every attention has. */
AttentionComponent family_attention(
    Loader *ld, const Dims *dims, const char *out, const Rope *rope, bool bias, bool out_bias);
/* The same without weights. */
AttentionComponent family_attention_op(const Dims *dims, const Rope *rope);
/* q, k and v as rows of one matrix NAME, one after the other; o is OUT. */
AttentionComponent family_fused_attention(
    Loader *ld, const Dims *dims, const char *name, const char *out, const Rope *rope, bool bias, bool out_bias);
/* Attention.slopes with 2^(−8 (h + 1) / n) for the first n heads, n being a power of two, as ALiBi's authors have them.
 */
const float *family_alibi(Loader *ld, int heads);
/* SwiGLU whose both factors have a limit; 0: none. */
Activation family_limited_silu(double limit);
/* HOME.gate_proj, up_proj and down_proj. */
GluComponent family_glu(
    Loader *ld, const char *home, int hidden, int intermediate_size, Activation activation, bool bias);
/* Divides the bias: the result is multiplied by a factor that belongs to the input, which the bias has no part in. */
void family_divide_bias(Loader *ld, Weight *weight, float factor);
/* Gate and up as rows of one matrix BOTH, one after the other; DOWN. */
GluComponent family_fused_glu(Loader *ld, const char *both, const char *down, int hidden, int intermediate_size,
    Activation activation, bool bias);
/* A network without a gate: UP and DOWN. */
Component family_mlp(
    Loader *ld, const char *up, const char *down, int hidden, int intermediate_size, Activation activation, bool bias);

/* Names of the norms around attention and around the feed-forward network; NULL: no such norm. */
typedef struct NormNames {
    LoadNorm *load; /* also for q_norm and k_norm */
    const char *attention_input, *attention_output, *ffn_input, *ffn_output;
} NormNames;
extern const NormNames norms_usual; /* load_rms: input_layernorm, post_attention_layernorm */

typedef struct Moe Moe;

/* The layer that most families have: attention, then a gated feed-forward network or an MoE block. */
typedef struct Block {
    const Dims *dims;
    const NormNames *norms; /* NULL: norms_usual */
    /* Attention, under self_attn. */
    const Component *attention; /* copied: kind and parameters, loaded by the family; NULL: family_attention() */
    const Rope *rope;           /* NULL: no rotary embedding */
    int window;                 /* 0: full attention */
    bool bias, out_bias;
    const char *q_norm, *k_norm; /* names; NULL: none */
    bool norm_full;              /* these norms run over all heads together */
    /* Feed-forward network. */
    const Component *ffn; /* copied, as attention; NULL: from the fields below */
    const Moe *moe;       /* NULL: mlp.gate_proj, up_proj and down_proj */
    Activation activation;
    bool mlp_bias;
    float residual_scale; /* scale of both components' results; 0: 1 */
} Block;

/* Fills layer i. Returns it, so that the family can add what is special: components[0] is the attention, components[1]
 * the feed-forward network. */
Layer *family_block(Loader *ld, Spec *spec, int i, const Block *block);
/* Fills a layer whose tensors are those in scope. */
void family_block_here(Loader *ld, Spec *spec, Layer *layer, const Block *block);

/* Tensors of a multi-token prediction head beside its layer; final_norm NULL: the model's own. */
typedef struct MtpNames {
    const char *projection, *token_norm, *state_norm, *final_norm;
    bool state_first; /* the projection's first columns are those of the state */
} MtpNames;

/* The head of these names, with the tensors in scope; its layer remains to be filled. NULL: none is asked for, or there
 * is none. */
Spec *family_mtp(Loader *ld, Spec *spec, const MtpNames *names, LoadNorm *load_norm, float eps);
/* The multi-token prediction head of DeepSeek-V3 and GLM, the layer behind the last: enorm, hnorm and eh_proj before
 * its block, which remains to be filled with its tensors in scope, shared_head.norm behind it. Embedding and head are
 * the model's, of which the file has copies. NULL: none is asked for, or there is none. References:
 * sglang/srt/models/deepseek_nextn.py, vllm/model_executor/models/glm4_moe_mtp.py. */
Spec *family_nextn(Loader *ld, Spec *spec, float eps);

/* Adds a component that the family has loaded; its norms, cache entry and scale are the default ones. */
Component *family_add(Spec *spec, Layer *layer, const Component *loaded);

/* Per-layer inputs (LayerInputs): model.embed_tokens_per_layer with `rows` rows, per_layer_model_projection and
 * per_layer_projection_norm; and the component of layer i that adds them, behind the feed-forward network. */
void family_layer_inputs(Loader *ld, Spec *spec, int width, int rows, float eps);
void family_layer_input(Loader *ld, Spec *spec, Layer *layer, int i, float eps);

/* ---- hyper-connections ---- */

/* Their logits around a component, with the tensors that the format makes of "fn", "scale" and "base"; spec->hyper has
 * streams and form already. */
HyperMix family_hyper(Loader *ld, const Spec *spec, float eps, const char *format);
/* The same of the sum behind the last layer. */
HyperMix family_hyper_head(Loader *ld, const Spec *spec, float eps, const char *format);
/* The mean of the streams in its place. */
HyperMix family_hyper_mean(Loader *ld, const Spec *spec);
/* Adds a component that reads norm(the sum of the streams) and, if there is one, another parallel to it; what they
 * give goes into all streams. COMPONENT_HYPER_COLLAPSE is in the layer already. */
Component *family_between(Spec *spec, Layer *layer, const HyperMix *hyper, const Component *loaded, const Norm *norm,
    const Component *beside);

/* ---- MoE blocks ---- */

/* Names of an MoE block under HOME: ROUTER; the experts stacked as STACK.{gate,up,down}_proj (STACK "": without it), or
 * one by one as experts.N.GATE, UP and DOWN; the shared expert SHARED.{gate,up,down}_proj and its SHARED_GATE; the
 * correction BIAS.
 */
typedef struct MoeNames {
    const char *home, *router, *stack, *gate, *up, *down, *shared, *bias, *shared_gate;
    /* Gate and up of each expert one below the other, as transformers saves them, if there are those tensors under
     * HOME; NULL: experts.gate_up_proj and experts.down_proj. */
    const char *fused, *fused_down;
    bool fused_transposed; /* those are transposed */
} MoeNames;
extern const MoeNames moe_usual;    /* mlp.gate, mlp.switch_mlp, gate_proj …, mlp.shared_experts */
extern const MoeNames moe_deepseek; /* the same, and mlp.gate.e_score_correction_bias */

/* A family's MoE block, read once from the config. */
struct Moe {
    MoeNames names;
    MoeComponent moe; /* experts, used, and how they are chosen; no weights */
    int hidden, intermediate_size;
    int shared; /* intermediate size of the shared expert; 0: none; without a name of it: the family loads it */
    int shared_gate_rows; /* 1 or 2 (MoeComponent.shared_gate); 0: it has no gate */
    bool shared_gate_bias;
    bool bias, router_bias; /* all experts have biases; the router has one */
};

/* The usual ones: experts with silu, used with the softmax over all as it is. */
Moe family_moe_open(Loader *ld, const MoeNames *names, int hidden, int intermediate_size, int experts, int top_k);
/* The same with moe_intermediate_size, EXPERTS and num_experts_per_tok of the config. */
Moe family_moe_fields(Loader *ld, const MoeNames *names, int hidden, const char *experts);
/* The intermediate size of `count` shared experts taken together. */
int family_moe_shared(Loader *ld, int each, int count);
/* Routing as DeepSeek-V3's configs describe it: sigmoids, a correction bias, groups (n_group, topk_group,
 * norm_topk_prob, routed_scaling_factor). */
void family_moe_sigmoid(Loader *ld, Moe *moe);
/* The weights of the layer in scope. */
MoeComponent family_moe(Loader *ld, const Moe *moe);

/* Which layers have a sliding window, which includes the token itself: query i sees key j if i − j < width, as the
 * models were trained and as transformers masks (masking_utils.py), also where mlx-lm's class knows no window. */
typedef struct Windows {
    const Json *types; /* layer_types, which alone decides where the file has it; NULL: the fields below do */
    int width;         /* 0: no layer has a window */
    int first;         /* the first layer that has one */
    Slice pattern;     /* a letter for each layer, repeated: L has a window, others have none; empty: no such text */
    int full_every;    /* period: every full_every'th layer has none; 0: all have one */
} Windows;

/* sliding_window behind use_sliding_window, from layer max_window_layers on: Qwen2, Qwen3. */
Windows family_windows_switched(Loader *ld, const Spec *spec);
/* The window of layer i; 0: it sees everything. */
int family_window(Loader *ld, const Windows *windows, int i);
/* Element i of a list that load_list has counted. */
const Json *family_item(const Json *list, int i);
/* Element i, which must be 0 or 1, of such a list; field: its name, for messages. No list is an error. */
bool family_flag(Loader *ld, const char *field, const Json *list, int i);
/* Element i of a list of numbers of at least 0, which may be longer; null, and no list: absent. */
double family_number(Loader *ld, const char *field, const Json *list, int i, double absent);
/* Whether element i of such a list is the text `kind`; an error if it is neither that nor `other`. */
bool family_kind(Loader *ld, const char *field, const Json *list, int i, const char *kind, const char *other);
/* Whether a list has the text. */
bool family_has_text(const Json *list, const char *text);
/* Whether a text of numbers between commas has the number. */
bool family_text_has(Slice text, long number);
/* Whether a list has the number; list NULL: it has none. */
bool family_listed(const Json *list, int number);

/* For a family that is a llama with changes. */
FamilyLoad llama_load;
/* For wrappers of several text models. */
FamilyLoad mistral_load, ministral3_load, mistral4_load;
/* OLMo under its publisher's own names. */
FamilyLoad hf_olmo_load;
