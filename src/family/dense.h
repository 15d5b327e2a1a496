/* Decoders that are a llama with other names, norms, biases or rotary embeddings: what differs, as data. */
#pragma once
#include "family/family.h"

/* A choice that a field of the config makes; no field: always `absent`. */
typedef struct DenseChoice {
    const char *field;
    bool absent;
} DenseChoice;

typedef enum DenseFfn { DENSE_GLU, DENSE_FUSED_GLU, DENSE_MLP } DenseFfn;

/* Zero where a family is as llama. */
typedef struct Dense {
    const LoadName *fields; /* names of config fields, llama's names first (load_field_names) */
    const LoadName *names;  /* names of modules, the same (load_module_names) */
    const char *eps_field;  /* NULL: rms_norm_eps */
    int inner_divisor;      /* intermediate_size counts so many networks; 0: one */
    double eps;             /* default; 0: the file must have it */
    int head_dim;           /* default; 0: hidden / heads */
    const NormNames *norms; /* also of the last norm */
    double theta;           /* default; 0: 10000 */
    double rotary_factor;   /* default of partial_rotary_factor; 0: whole heads rotate, and there is no such field */
    bool interleaved, alpha;
    bool mrope;                  /* positions may have three dimensions */
    const char *q_norm, *k_norm; /* NULL: none */
    DenseChoice qk_norm;         /* whether there are those */
    bool norm_full, norm_last;
    DenseChoice qkv_bias, out_bias, mlp_bias;
    bool fused_qkv; /* self_attn.qkv_proj: q, k and v one after the other */
    DenseFfn ffn;   /* DENSE_FUSED_GLU: mlp.gate_up_proj; DENSE_MLP: mlp.up_proj and down_proj */
    Activation activation;
    const char *activation_field; /* NULL: hidden_act */
    const char *activation_text;  /* NULL: "silu" */
    bool parallel;                /* both parts read the same normalised residual */
    bool window_everywhere;       /* sliding_window holds in all layers, unless layer_types says otherwise */
    int window;                   /* default of sliding_window, which null takes away; 0: none */
    int full_every;               /* every so manieth layer has no window, unless layer_types says otherwise */
    bool full_unrotated;          /* layers without a window have no rotary embedding, if there are others */
    bool window_unscaled;         /* rope_scaling does not apply to layers with a window */
    bool tied;                    /* tie_word_embeddings without the field; otherwise whether the file lacks lm_head */
    const char *ignored[24];      /* fields that change nothing */
} Dense;

/* Returns the sizes, for families that add something. */
Dims dense_load(Loader *ld, Spec *spec, const Dense *dense);
