/* What differs between the kinds of a layer's two parts: one table of functions per kind, filled by that kind's own
 * file (mixers/X.c, ffn/X.c). Everybody else asks the table and never looks inside a part. */
#pragma once
#include "base/buffer.h"
#include "cache/cache_spec.h"
#include "model/block.h"

/* Visits what a part holds besides numbers, to bind it or to count it. Each may be NULL. What is visited may be
 * changed: the part is the visitor's own copy. */
typedef struct Visitor {
    void (*weight)(void *context, Weight *weight);
    void (*norm)(void *context, const Norm **norm); /* not called for NULL, nor are the others */
    void (*rope)(void *context, const Rope **rope);
    void (*vector)(void *context, const float **vector, int64_t count, Split split);
    /* Weights of one kind, which lie elsewhere and are not the visitor's own: to change them it makes a copy. NULL: its
     * `weight` sees each. */
    void (*bank)(void *context, Weight **weights, int count, Split split);
    void *context;
} Visitor;

/* What one more token costs at a depth: bytes of weights and values of the cache read; multiplications and additions of
 * the products with weights. */
typedef struct ComponentCost {
    uint64_t weight_bytes, cache_values, operations;
} ComponentCost;

typedef struct ComponentOps {
    int64_t (*width)(const Layer *); /* floats of work per row */
    void (*visit)(Layer *, const Visitor *);
    ComponentCost (*cost)(const Layer *, int depth);
    CacheSpec (*cache_spec)(const Layer *); /* NULL: nothing; an FFN never does */
    void (*describe)(const Layer *, Buffer *out);
    void (*forward)(const Layer *, const Block *);
    /* Of an FFN that brings its weights from elsewhere: begins to, and everything but `residual` stays as it is until
     * forward(); or says what rows that are still to change will likely want. NULL: it has nothing to begin with. */
    void (*begin)(const Layer *, const Block *);
    void (*prefetch)(const Layer *, const Block *);
} ComponentOps;

extern const ComponentOps attention_component, mla_component, glu_component, mlp_component, moe_component;

const ComponentOps *mixer_ops(const Layer *layer);
const ComponentOps *ffn_ops(const Layer *layer);

/* Both parts and the norms around them. */
void layer_visit(Layer *layer, const Visitor *visitor);
ComponentCost layer_cost(const Layer *layer, int depth);
CacheSpec layer_cache(const Layer *layer);
int64_t layer_width(const Layer *layer); /* floats of work per row, of the larger part */
void layer_describe(const Layer *layer, Buffer *out);

/* For the parts. */
void visit_weight(const Visitor *visitor, Weight *weight);
void visit_split(const Visitor *visitor, Weight *weight, Split split); /* the same, and how it may be divided */
void visit_norm(const Visitor *visitor, const Norm **norm);
void visit_rope(const Visitor *visitor, const Rope **rope);
void visit_vector(const Visitor *visitor, const float **vector, int64_t count, Split split);
void visit_bank(const Visitor *visitor, Weight **weights, int count, Split split);
/* Of products with all of these weights. */
ComponentCost component_cost_of_weights(const Weight *const *weights, int count);
const char *activation_name(Activation activation);
