/* model/: what a model is and how it runs: the Spec, its parts (mixers/ and ffn/ hold one file per kind), weights bound
 * to backends, the one decoder. Nothing here knows a family's name or a token's text.
 *
 * What a model is: globals and one row per layer. A family file fills it once from config.json through a Loader
 * (loader/loader.h); from then on it is constant, and whoever runs it brings what a run needs: weights bound to
 * backends (bound.h), a cache, a step. Plain data: everything it points to lives in the model's arena or in the mapped
 * files, in host memory. */
#pragma once
#include "backend/backend.h"

/* A part of a layer computes f(in(h)) and adds it: h += scale · out(f(in(h))). Which of the two norms exist is the
 * placement: in alone is pre-norm, out alone post-norm, both sandwich, none plain. */

typedef enum MixerKind { MIXER_ATTENTION, MIXER_MLA } MixerKind;
typedef enum FfnKind { FFN_GLU, FFN_MLP, FFN_MOE } FfnKind;

typedef struct AttentionMixer {
    Attention op;      /* all that is known at load: of op.kv the layout's widths; q, k, v and out belong to a step */
    Weight q, k, v, o; /* q, k, v may be views of one fused matrix */
    Weight gate;       /* of the results; no rows: they have none */
    float value_scale; /* multiplies the values; where it is not 1, o has no bias and no norm follows */
} AttentionMixer;

typedef struct MlaMixer {        /* Latent of backend.h */
    Attention op;                /* all that is known at load */
    Weight q_a, q, k, latent, o; /* q reads what q_a gives, normalised; q_a without rows: it reads the input */
    const Norm *q_norm, *latent_norm;
    Weight *embed, *w_uv; /* [heads] */
} MlaMixer;

typedef struct GluFfn { /* down · (act(gate · x) ∘ (up · x)) */
    Weight gate, up, down;
    Activation activation;
} GluFfn;

typedef struct MlpFfn { /* down · act(up · x) */
    Weight up, down;
    Activation activation;
} MlpFfn;

typedef struct MoeFfn { /* Σ weight · glu of the experts that a router picks (Routing, Experts of backend.h) */
    Weight router;      /* [experts, hidden] */
    Weight shared_gate; /* [1 or 2, hidden]; no rows: the shared expert's weight is 1 */
    const float *correction_bias; /* [experts], or NULL */
    int experts, used, shared;
    RouteScore score;
    int groups, topk_group;
    bool group_best, norm_topk_prob;
    float jitter_eps, epsilon, scale;
    Weight *gate, *up, *down; /* [experts + shared]; without addresses where a source brings them: */
    ExpertProvider *source;   /* NULL: they are in memory */
    int source_layer;
    Activation activation;
} MoeFfn;

typedef struct Layer {
    MixerKind mixer;
    FfnKind ffn;
    const Norm *mixer_in, *mixer_out, *ffn_in, *ffn_out; /* NULL: none */
    bool parallel;        /* the FFN reads what the mixer reads: in(h) is computed once, ffn_in is NULL */
    float residual_scale; /* of both parts */
    union {
        AttentionMixer attention;
        MlaMixer latent;
    };
    union {
        GluFfn glu;
        MlpFfn mlp;
        MoeFfn moe;
    };
} Layer;

enum { TALLY_MAX = 80 };

/* Weights of one kind, for people. */
typedef struct Tally {
    Quant quant;
    int bits, group;
    DType dtype;
    uint64_t parameters, bytes;
} Tally;

typedef struct Spec {
    const char *family; /* model_type as the file says */
    int hidden, vocab, layer_count;
    int positions; /* max_position_embeddings */
    Weight embedding;
    float embedding_scale;
    Layer *layers;
    const Norm *final_norm;
    Weight head;
    bool tied;
    float logit_scale, logit_softcap; /* logits = cap·tanh(scale·x/cap); cap 0: scale·x */
    bool precise;                     /* 8-bit activations change clear choices of this family: its layers have 16 */
    int tally_count;
    Tally tally[TALLY_MAX]; /* of all matrices */
} Spec;
