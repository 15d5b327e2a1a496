/* model/: what a model is and how it runs: the Spec, its components (components/ holds one file per kind), weights
 * bound to backends, the one decoder. Nothing here knows a family's name or a token's text.
 *
 * A Spec is a model as plain data: globals, and layers that are lists of components. A family file fills it once from
 * config.json through a Loader (loader/loader.h); afterwards it is constant and may be used by any number of runners
 * and threads. Everything it points to is host memory, borrowed: the model's arena or the mapped files. */
#pragma once
#include "backend/compressed.h"
#include "backend/recurrent.h"
#include "model/adapter.h"

/* ---- components ---- */

/* A new kind needs an enumerator here, a struct of parameters in Component, a row in component.c and a file in
 * components/ whose table component.h declares. */
typedef enum ComponentKind {
    COMPONENT_ATTENTION,            /* grouped-query attention */
    COMPONENT_MLA,                  /* multi-head latent attention */
    COMPONENT_INDEXER,              /* chooses the keys that attention behind it reads */
    COMPONENT_GLU,                  /* gated feed-forward network */
    COMPONENT_MLP,                  /* feed-forward network without a gate */
    COMPONENT_MOE,                  /* MoE block */
    COMPONENT_RECURRENT,            /* recurrence with a matrix state: gated delta rule, Mamba-2, lightning attention */
    COMPONENT_SHORT_CONV,           /* gated short convolution */
    COMPONENT_MAMBA,                /* Mamba-1 */
    COMPONENT_RG_LRU,               /* real-gated linear recurrent unit (Griffin) */
    COMPONENT_LAYER_INPUT,          /* per-layer input of the token (Gemma 4) */
    COMPONENT_SHARED_ATTENTION,     /* attention and a network whose weights several layers have (Zamba) */
    COMPONENT_SCALE,                /* normalises the residual in place, multiplies it */
    COMPONENT_LINEAR,               /* one matrix */
    COMPONENT_LAUREL,               /* learned low-rank residual beside another component (Gemma 3n) */
    COMPONENT_ALTUP_PREDICT,        /* begins a layer of AltUp: predicts all streams */
    COMPONENT_ALTUP_CORRECT,        /* ends it: corrects them by what the layer made of the active one */
    COMPONENT_COMPRESSOR,           /* makes compressed keys (DeepSeek-V4) */
    COMPONENT_COMPRESSED_ATTENTION, /* attention to the latest keys and to compressed ones */
    COMPONENT_HYPER_COLLAPSE,       /* hyper-connections: makes the residual of the streams */
    COMPONENT_HYPER_EXPAND,         /* makes the streams of themselves and of the residual */
    COMPONENT_NORM_GATE,            /* multiplies a normalised residual by a gate of low rank (A.X K2) */
} ComponentKind;

/* Bounds of a product's input and of its result, each kept within low … high (Gemma 4's encoders). */
typedef struct Clip {
    float in_low, in_high, out_low, out_high;
} Clip;

/* o · attention(q, k, v). A component without k and v rows attends to a cache entry that an earlier one fills. */
typedef struct AttentionComponent {
    Attention op;       /* what is known at load; of op.kv only the layout's widths; forward() sets q, k, v and out */
    Weight q, k, v, o;  /* q, k and v may be views of one fused matrix */
    Weight gate;        /* sigmoid(gate · x) multiplies the attended values; rows 0: none */
    bool head_gate;     /* gate has a row for each head, or for each element: HeadGate */
    bool gate_softplus; /* softplus instead of sigmoid; with head_gate only */
    const Norm *v_norm; /* norm of each head of v; NULL: none. With v rows 0 and k rows above 0, v is k as projected */
    float clip;         /* q, k and v are kept within ±clip; 0: they are not */
    const Clip *clips;  /* [4] of q, k, v and o, which are all there and without a gate; NULL: none */
    /* A norm of each head of q and k, before op.q_norm, with factors for each element of all heads; NULL: none. */
    const Norm *head_norm;
    const float *q_factors, *k_factors; /* [heads·head_dim], [kv_heads·head_dim] */
    QueryScaling query_scaling;         /* excludes op.q_norm */
    const Norm *sub_norm;               /* norm of the attended values, before o; NULL: none */
    float value_scale; /* multiplies the values; if it is not 1, o has no bias and no output norm follows */
    /* Convolution of the projected k and v, its two parts, before anything else; taps 0: none. Its inputs are kept in
     * Component.state_entry. Excludes clips. */
    Conv conv;
} AttentionComponent;

/* Mla of backend.h. */
typedef struct MlaComponent {
    Attention op;        /* what is known at load */
    Weight q_a, q;       /* q projects RMSNorm(q_a · x); q_a rows 0: q projects x */
    Weight k, latent, o; /* k and latent may be views of one matrix */
    Weight gate;         /* a row for each head, or for each element of the result: HeadGate; rows 0: none */
    const Norm *q_norm;  /* norm of q_a's results; NULL without q_a */
    bool joined;         /* q and gate project RMSNorm(q_a · x) with q_a · x behind it */
    const Norm *latent_norm;
    const Norm *k_norm;  /* norm of the rotary key, before its rotation; NULL: none */
    Weight *w_uk, *w_uv; /* [heads] */
    QueryScaling query_scaling;
} MlaComponent;

/* Compression of backend.h. It adds nothing to the residual. Its cache entry has the keys, its state entry the rows. */
typedef struct CompressorComponent {
    Compression op; /* what is known at load */
    Weight values, gates;
    const Norm *value_norm; /* norm of the values of each row; NULL: none */
} CompressorComponent;

/* CompressedAttention of backend.h: o · (the groups' o_low of the attended heads, one behind the other). Its cache
 * entry has the latest keys, its state entry is a compressor's cache entry. */
typedef struct CompressedAttentionComponent {
    CompressedAttention op; /* what is known at load; top_k 0: all compressed keys are read */
    Weight q_low, q, k, o;  /* q projects q_low_norm(q_low · x) */
    Weight *o_low;          /* [groups] */
    const Norm *q_low_norm;
} CompressedAttentionComponent;

/* Logits of hyper-connections: mix · norm(all streams of a row), and what scales and shifts them (HyperConnection). */
typedef struct HyperMix {
    Weight mix;
    const Norm *norm; /* [streams · hidden] */
    const float *scale, *base;
    int scales; /* hyper_scales() */
} HyperMix;

/* IndexSelect of backend.h: attention components behind it, of this layer or later ones, whose selection has the same
 * block, groups and top_k read what it chooses. It adds nothing to the residual. */
typedef struct IndexerComponent {
    IndexSelect op;              /* what is known at load */
    Weight q_a, q, k;            /* q projects RMSNorm(q_a · x); q_a rows 0: q projects x */
    Weight head_weights;         /* [heads, hidden] IndexSelect.weights; rows 0: none */
    const Norm *low_rank_norm;   /* norm of q_a's results; NULL without q_a */
    const Norm *q_norm, *k_norm; /* norms of each head; NULL: none */
    /* > 0: CompressedSelect instead; its keys are in the cache entry of a compressor, and k has no rows. */
    int compressed_rate;
    bool tail; /* with compressed_rate: CompressedSelect.tail */
} IndexerComponent;

/* down · (act(gate · x) ∘ (up · x)) */
typedef struct GluComponent {
    Weight gate, up, down;
    const Norm *sub_norm; /* norm of the product, before down; NULL: none */
    const Clip *clips;    /* [3] of gate, up and down; NULL: none. Excludes sub_norm */
    Activation activation;
    bool sparse;  /* Sparsify with `cutoff` before the activation */
    float cutoff; /* standard deviations above the mean */
} GluComponent;

/* down · act(up · x) */
typedef struct MlpComponent {
    Weight up, down;
    Activation activation;
    float slope; /* not 0: act(slope · x) / slope, which makes quick GELU of SiLU */
} MlpComponent;

/* Weighted sum of the GLUs of the experts that a router chooses (Routing and Experts of backend.h). */
typedef struct MoeComponent {
    Weight router;                /* [experts + identities, hidden] */
    Weight shared_gate;           /* [1 or 2, hidden]; rows 0: the shared expert's weight is 1 */
    const float *correction_bias; /* [experts + identities]; NULL: none */
    int experts, top_k;           /* experts: routed ones with weights; top_k: routed ones that a row uses */
    int identities;               /* further routed experts, whose result is x (LongCat); excludes a shared one */
    int shared;                   /* 1: a shared expert, number `experts` of the banks; 0: none */
    RouteScore score;
    int groups, topk_group;
    bool group_best, norm_topk_prob;
    float jitter_eps, epsilon, scale;
    bool weigh_inputs;            /* Experts.weigh_inputs */
    float router_softcap;         /* the router's logits are cap·tanh(x/cap); 0: as they are */
    Weight latent_in, latent_out; /* experts read latent_in · x, and latent_out projects their sum back; rows 0: they
                                     read x. Excludes a shared expert and a dense network */
    /* [experts + shared]; without addresses where a provider reads them. gate may be up, for act(up · x) ∘ (up · x):
     * the matrices are then bound, counted and read once. */
    Weight *gate, *up, *down;
    const Norm *router_norm;   /* norm of the router's own input, the residual; NULL: it reads what the experts read */
    const float *expert_scale; /* [experts] Routing.expert_scale */
    const float *table;        /* [table_tokens, top_k] Routing.table; NULL: none */
    int table_tokens;
    /* A feed-forward network beside the experts, which reads dense_input_norm(residual); gate rows 0: none. The block's
     * result is dense_output_norm(its result) + experts_output_norm(the experts' sum). */
    GluComponent dense;
    const Norm *dense_input_norm, *dense_output_norm, *experts_output_norm;
    ExpertProvider *source; /* reads routed experts on demand; NULL: they are in memory */
    int source_layer;       /* the provider's number of this layer */
    Activation activation;
} MoeComponent;

/* o · gated_norm(recurrence(q, k, v), gate), where q, k and v pass a convolution first. Of the operations, what is
 * known at load; forward() sets places, rows, inputs and outputs. */
typedef struct RecurrentComponent {
    Recurrence op;
    Conv conv; /* its parts are q, k and v; taps 0: no convolution */
    bool silu; /* q, k and v pass SiLU, where there is no convolution */
    GatedNorm gated_norm;
    Weight q, k, v, o; /* q, k and v may be views of one fused matrix */
    Weight gate;       /* rows 0: none */
    Weight a;          /* the time step; rows 0: it is 1 */
    Weight b;          /* β of the delta rule; rows 0: it is 1 */
    Weight a_low;      /* a projects a_low · x; rows 0: a projects x */
    Weight gate_low;   /* the same for gate */
} RecurrentComponent;

/* o · (out_gate · x ∘ conv(in_gate · x ∘ in · x)) (LFM2). The three may be views of one fused matrix. */
typedef struct ShortConvComponent {
    Conv conv; /* one part; what is known at load */
    Weight in, in_gate, out_gate, o;
} ShortConvComponent;

/* o · gated_norm(mamba(conv(in · x)), gate), where dt = dt · dt_norm(dt_low · z), b = b_norm(b · z), c = c_norm(c · z)
 * with z = conv(in · x). */
typedef struct MambaComponent {
    Mamba op;
    Conv conv; /* one part */
    GatedNorm gated_norm;
    Weight in, gate, o;                    /* in and gate may be views of one matrix */
    Weight dt_low, b, c;                   /* the same */
    Weight dt;                             /* with the bias of the time step */
    const Norm *dt_norm, *b_norm, *c_norm; /* NULL: none */
} MambaComponent;

/* o · (gelu(gate · x) ∘ rg_lru(conv(in · x))) */
typedef struct RgLruComponent {
    RgLru op;
    Conv conv; /* one part */
    Weight in, gate, o;
} RgLruComponent;

/* projection · (act(gate · x) ∘ the layer's input of the token) (LayerInputs); gate rows 0: that input */
typedef struct LayerInputComponent {
    Weight gate, projection; /* [width, hidden], [hidden, width] */
    Activation activation;
    int layer; /* whose input it is */
} LayerInputComponent;

/* z = o · attention(q, k, v) of the residual and the embedding (LayerInputs) side by side, through the input norm of
 * both; y = out · glu(ffn_norm(z)). It adds nothing to the residual h: h + y is what the next component reads, which
 * has READS_ASIDE. */
typedef struct SharedAttentionComponent {
    Attention op;                /* what is known at load */
    Weight q, k, v, o;           /* q, k and v [rows, 2 · hidden] */
    LowRank own_q, own_k, own_v; /* what the layer adds to them; a rows 0: nothing */
    const Norm *ffn_norm;
    Weight gate, up, down;
    Weight own_down; /* the same of gate and up, which read one product */
    Weight own_gate, own_up;
    Activation activation;
    Weight out;
} SharedAttentionComponent;

/* right · (left · x) under the output norm, plus x itself; x is the normalised residual (arXiv 2411.07501). Parallel to
 * another component. */
typedef struct LaurelComponent {
    Weight left, right; /* [rank, hidden], [hidden, rank] */
} LaurelComponent;

/* y ∘ sigmoid(up · silu(down · y)) in place of y, the normalised residual that components parallel to it read. It adds
 * nothing itself. */
typedef struct NormGateComponent {
    Weight down, up; /* [rank, hidden], [hidden, rank] */
} NormGateComponent;

/* Coefficients of AltUp: coefficients · tanh(router · router_norm(the active stream)). To predict they are the mix of
 * StreamMix, to correct its gain. */
typedef struct AltUpComponent {
    Weight router;       /* [streams, hidden] */
    Weight coefficients; /* [streams² or streams, streams] */
    const Norm *router_norm;
    const float *output_scale; /* [hidden] factors of the corrected active stream, as a layer input's gate reads it;
                                  NULL: none, or to predict */
} AltUpComponent;

enum { READS_ASIDE = -1 };

/* Adds to the residual h: h += residual_scale · output_norm(f(input_norm(h))). Pre-norm has only the input norm,
 * post-norm only the output norm, sandwich norms are both. COMPONENT_SCALE: h = scale_factor · input_norm(h). */
typedef struct Component {
    ComponentKind kind;
    /* Reads the residual that the component before it reads, with its own input_norm, or, if that is NULL, the same
     * normalised residual. */
    bool parallel;
    float residual_scale;
    int cache_entry;         /* entry of the model's cache; the first component that names it fills it; −1: none */
    int state_entry;         /* a second one: for AttentionComponent.conv, behind the first; −1: none */
    int reads;               /* > 0: reads the residual as it was before component `reads` of the layer, which is an
                                earlier one; READS_ASIDE: what the component before it made; 0: the residual as it is.
                                Components parallel to it read the same */
    const Norm *input_norm;  /* NULL: none; never NULL before a parallel component */
    const Norm *output_norm; /* NULL: none */
    union {
        AttentionComponent attention;
        MlaComponent mla;
        IndexerComponent indexer;
        GluComponent glu;
        MlpComponent mlp;
        MoeComponent moe;
        RecurrentComponent recurrent;
        ShortConvComponent short_conv;
        MambaComponent mamba;
        RgLruComponent rg_lru;
        SharedAttentionComponent shared_attention;
        LayerInputComponent layer_input; /* with AltUp it is added to all streams but the first */
        LaurelComponent laurel;
        Weight linear; /* COMPONENT_LINEAR: [hidden, hidden] */
        AltUpComponent altup;
        CompressorComponent compressor;
        CompressedAttentionComponent compressed;
        HyperMix hyper;
        NormGateComponent norm_gate;
        float scale_factor; /* COMPONENT_SCALE */
    };
} Component;

enum { LAYER_COMPONENTS_MAX = 12 };

/* Components in order: usually attention and a feed-forward network; a layer may have only one of them, or none. At
 * most one is an MoE block. */
typedef struct Layer {
    int component_count;
    Component components[LAYER_COMPONENTS_MAX];
} Layer;

/* ---- the model ---- */

enum { TALLY_MAX = 80 };

/* Matrices of one quantisation, for `apus info`. */
typedef struct Tally {
    Quant quant;
    int bits, group;
    DType dtype;
    uint64_t parameters, bytes;
} Tally;

/* Inputs of the layers from the token itself (Gemma 4): for layer l the elements l·width … (l + 1)·width of
 * scale · (norm(projection · h) + embedding_scale · embedding[token]), h being the embedding as the first layer reads
 * it; the norm is that of each layer's elements. Or, of width hidden and without weights, all layers have h itself. */
typedef struct LayerInputs {
    int width;         /* elements of one layer; 0: there are no inputs */
    Weight embedding;  /* [vocab or less, layer_count · width]; ids beyond it and given rows read token 0 */
    Weight projection; /* [layer_count · width, hidden] */
    const Norm *norm;  /* [width] */
    float scale, embedding_scale;
} LayerInputs;
/* Elements of a row. */
static inline int64_t layer_inputs_stride(const LayerInputs *inputs) {
    return inputs->embedding.rows ? inputs->embedding.cols : inputs->width;
}

/* What the first layer of a multi-token prediction head or an assistant reads: token · token_norm(embedding of the
 * row's token) + state · state_norm(final hidden state of the position before the token, behind the model's final
 * norm). */
typedef struct StateInput {
    Weight token, state; /* [hidden, width], width: of the embedding and of the model's states, which an assistant has
                            from another model; state rows 0: the Spec has no such input and reads the embedding */
    const Norm *token_norm, *state_norm; /* NULL: none */
} StateInput;

/* AltUp: the residual is several streams. The first begins as the embedding h, the others as expand · h scaled to h's
 * root mean square. The components of a layer change a copy of the active stream. Behind the last layer the residual
 * is the mean of the streams, of which all but the first are projected by merge and scaled to the first one's root mean
 * square. */
typedef struct AltUp {
    int streams, active;    /* streams 0: the residual is one stream */
    Weight *expand, *merge; /* [streams − 1] hidden × hidden */
} AltUp;

/* Manifold-constrained hyper-connections (mHC): the residual is several streams, which begin as the embedding. Each
 * component between COMPONENT_HYPER_COLLAPSE and COMPONENT_HYPER_EXPAND reads a sum of them. Behind the last layer the
 * residual is the sum with pre of `head`. Excludes AltUp. */
typedef struct HyperConnections {
    int streams; /* 0: the residual is one stream */
    int iterations;
    float magnitude; /* > 0: independent (iHC of Hunyuan 4), with iterations 0 */
    float eps;
    HyperMix head;
} HyperConnections;

/* Judges a text by the state h of its first token: out · tanh(dense · h), a logit (cross-encoders). */
typedef struct Classifier {
    Weight dense, out; /* [hidden, hidden], [1, hidden]; rows 0: there is none */
} Classifier;

typedef struct Spec {
    const char *family; /* model_type of config.json */
    int hidden, vocab;
    int layer_count;
    int cache_entries; /* numbered from 0 in the order of their owners */
    int positions;     /* max_position_embeddings */
    Weight embedding;
    float embedding_scale;
    Weight position_embedding;  /* [positions, hidden] added to the embeddings; rows 0: none */
    const Norm *embedding_norm; /* norm of the embeddings, before anything reads them; NULL: none */
    LayerInputs layer_inputs;
    AltUp altup;
    HyperConnections hyper;
    Layer *layers; /* [layer_count] */
    const Norm *final_norm;
    Weight head;
    bool tied;                        /* head is embedding */
    float logit_scale, logit_softcap; /* logits = cap·tanh(scale·x/cap); cap 0: scale·x */
    const struct VisionSpec *vision;  /* vision.h; NULL: the model takes no images */
    const struct AudioSpec *audio;    /* audio.h; NULL: the model takes no audio */
    StateInput input;                 /* input of a multi-token prediction head or an assistant; state rows 0: none */
    Weight state_output; /* [width, hidden] of an assistant: projects the final hidden states that a step gives, to be
                            the states of its next row; rows 0: they are given as they are */
    const struct Spec *mtp; /* the model's multi-token prediction head, with its embedding and head; NULL: none was
                               asked for. It reads the token behind a position and predicts the one after that */
    bool precise;           /* layers need 16-bit activations: with 8 bits this family's likeliest token changes even
                               where it is clearly the likeliest */
    bool encoder;           /* every token sees every other: texts are computed whole, for their states alone */
    int token_types; /* types of an encoder's tokens; 2: positions from `positions` on are those of the second type */
    Classifier classifier;
    int adapter_count;
    const Adapter *adapters; /* [adapter_count] LoRA adapters, whose updates are at the weights */
    int tally_count;
    Tally tally[TALLY_MAX]; /* one for each quantisation that occurs */
} Spec;
