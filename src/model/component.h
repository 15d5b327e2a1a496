/* One table of functions per kind of component, filled by that kind's file (components/X.c). Code outside those files
 * asks the table and does not look inside a component. */
#pragma once
#include "base/buffer.h"
#include "cache/cache_spec.h"
#include "model/spec.h"

/* Visits what a component refers to, to bind it or to count it. Functions may be NULL, and are not called for absent
 * norms, ropes and vectors. They may change what they visit: the component is the visitor's own copy. */
typedef struct Visitor {
    void (*weight)(void *context, Weight *weight);
    void (*norm)(void *context, const Norm **norm);
    void (*rope)(void *context, const Rope **rope);
    void (*vector)(void *context, const float **vector, int64_t count, Split split);
    /* An array of weights, which is borrowed: to change it, replace *weights by a copy. NULL: weight() gets each. */
    void (*bank)(void *context, Weight **weights, int count, Split split);
    void *context;
} Visitor;

/* Cost of one more token at a depth. */
typedef struct ComponentCost {
    uint64_t weight_bytes; /* read */
    uint64_t cache_values; /* read */
    uint64_t operations;   /* multiplications and additions of products with weights */
} ComponentCost;

/* What a call of an attention component computes: all of it; or the keys and values of its rows alone; or the rest,
 * once the keys and values that its rows see are in the cache. Backends with set_rows. */
typedef enum AttentionPart { ATTENTION_ALL, ATTENTION_KEYS, ATTENTION_QUERIES } AttentionPart;

/* A forward pass of one component over rows of a step. Pointers are borrowed; floats are the backend's memory. */
typedef struct ComponentCall {
    Backend *backend;
    const KvLayer *entry; /* the component's cache entry; NULL: it has none */
    const KvLayer *state; /* its Component.state_entry; NULL: it has none */
    int32_t *chosen;      /* [rows, groups, top_k] of the model's indexers; NULL: it has none */
    int rows;
    int decode_rows;  /* rows [0, decode_rows) are decode rows, as Step.decode_rows */
    const float *x;   /* [rows, hidden] */
    const Norm *norm; /* applied to x first; NULL: none */
    float *normed;    /* x, if parallel components read it with this one; NULL: none do */
    float *work;      /* [rows · the component's width] */
    float *residual;  /* [rows, hidden] += scale · output_norm(result) */
    float *aside;     /* [rows, hidden] what a component with READS_ASIDE reads; NULL: the model has none */
    int hidden;
    const float *layer_inputs; /* [rows, layer_inputs_stride] LayerInputs of the rows; NULL: there are none */
    int64_t layer_inputs_stride;
    const AltUp *altup;            /* its streams is 0 without AltUp */
    const HyperConnections *hyper; /* its streams is 0 without them; `streams` is then [rows, streams, hidden] */
    float *streams;                /* row r of stream i: streams + i · stream_stride + r · hidden; NULL: none */
    int64_t stream_stride;
    float *mix_logits; /* [rows, hyper_logits()] of the streams, from one collapse to the next expand; NULL: none */
    const Norm *output_norm;
    float scale;
    int micro_batch;       /* for expert providers */
    bool begun;            /* begin() was called with the same call */
    AttentionPart part;    /* attention alone */
    const Step *adapted;   /* the step, if some of its rows have an adapter; NULL: none has */
    int first;             /* the first row of `rows` in the step */
    const int32_t *tokens; /* [rows] Step.tokens */
    float *low_rank;       /* work for updates of adapters, behind `work`; undefined without `adapted` */
} ComponentCall;

typedef struct ComponentOps {
    int64_t (*width)(const Component *); /* floats of work per row */
    void (*visit)(Component *, const Visitor *);
    ComponentCost (*cost)(const Component *, int depth);
    CacheSpec (*cache_spec)(const Component *); /* cache entry that it fills, without the layer; NULL: none */
    CacheSpec (*state_spec)(const Component *); /* the same of Component.state_entry */
    bool recurrent; /* calls the operations for recurrent layers, which some backends lack */
    void (*describe)(const Component *, Buffer *out);
    void (*forward)(const Component *, const ComponentCall *);
    /* Both NULL: the component reads nothing on demand. begin: requests what forward() will read; the call's memory
     * but `residual` stays untouched until then. prefetch: requests what rows that are still to change will likely
     * read. */
    void (*begin)(const Component *, const ComponentCall *);
    void (*prefetch)(const Component *, const ComponentCall *);
} ComponentOps;

extern const ComponentOps attention_ops, mla_ops, indexer_ops, glu_ops, mlp_ops, moe_ops, recurrent_ops, short_conv_ops,
    mamba_ops, rg_lru_ops, layer_input_ops, shared_attention_ops, scale_ops, linear_ops, laurel_ops, altup_predict_ops,
    altup_correct_ops, compressor_ops, compressed_attention_ops, hyper_collapse_ops, hyper_expand_ops, norm_gate_ops;

const ComponentOps *component_ops(ComponentKind kind);
/* Visits the component's norms, then what its kind has. */
void component_visit(Component *component, const Visitor *visitor);

/* Appends a component with scale 1 and, if its kind keeps something of a sequence, a cache entry of its own. */
Component *layer_add(Spec *spec, Layer *layer, ComponentKind kind);
/* Gives a component its state_entry, before any later component gets an entry. */
void layer_add_state(Spec *spec, Component *component);
/* Whether it keeps a recurrent state. */
bool component_recurrent(const Component *component);
/* The layer's MoE block, borrowed; NULL: none. */
MoeComponent *layer_moe(Layer *layer);
/* Numbers per row that it chooses. */
int indexer_width(const IndexerComponent *indexer);
/* Over all components of a layer. */
void layer_visit(Layer *layer, const Visitor *visitor);
ComponentCost layer_cost(const Layer *layer, int depth);
int64_t layer_width(const Layer *layer);             /* floats of work per row, of the widest component */
int64_t component_width(const Component *component); /* the same of one, with what updates of adapters take */
void layer_describe(const Layer *layer, Buffer *out);

/* ---- for components/ ---- */

void visit_weight(const Visitor *visitor, Weight *weight);
void visit_split(const Visitor *visitor, Weight *weight, Split split); /* and sets how tensor parallelism divides it */
void visit_norm(const Visitor *visitor, const Norm **norm);
void visit_rope(const Visitor *visitor, const Rope **rope);
void visit_vector(const Visitor *visitor, const float **vector, int64_t count, Split split);
void visit_bank(const Visitor *visitor, Weight **weights, int count, Split split);
/* The operations of the backend, with the updates of adapters (products.c). */
void component_matmul(const ComponentCall *call, const Matmul *op);
void component_matmul_add(const ComponentCall *call, const MatmulAdd *op);
void component_glu(const ComponentCall *call, const Glu *op);
/* Appends a product to *op unless the weight has no rows. Computes what *op has where it is full or `weight` is NULL.
 */
void component_project(const ComponentCall *call, Matmul *op, const Weight *weight, float *out);
/* Products whose inputs and results are kept within bounds. `normed` has room for [rows, cols]: the call's x behind its
 * norm. */
void component_norm_input(const ComponentCall *call, float *normed);
/* out = W · x; clipped: room for [rows, cols]. */
void component_clipped(
    const ComponentCall *call, const Weight *weight, const Clip *clip, const float *x, float *clipped, float *out);
/* Adds W · x to the residual; x is overwritten; work: room for [rows, hidden]. */
void component_clipped_add(const ComponentCall *call, const Weight *weight, const Clip *clip, float *x, float *work);
/* The cost of one product with each of these weights. */
ComponentCost component_cost_of_weights(const Weight *const *weights, int count);
const char *activation_name(Activation activation);
