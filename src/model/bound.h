/* A Spec's weights bound to the backends that compute with them: a copy of each layer whose weights, norms and ropes
 * are the backend's. The Spec is not changed, so several of these can use it. Threads: opened and closed on any, used
 * by one at a time. */
#pragma once
#include "base/arena.h"
#include "model/component.h"

enum { BACKENDS_MAX = 2 };

typedef struct Bound {
    const Spec *spec; /* borrowed */
    int backend_count;
    Backend *backends[BACKENDS_MAX]; /* borrowed */
    uint8_t *place;                  /* [layer_count] number of the layer's backend; it never decreases */
    Layer *layers;                   /* [layer_count] */
    Weight embedding;                /* on the first layer's backend */
    Weight position_embedding;       /* the same; rows 0: none */
    const Norm *embedding_norm;      /* the same; NULL: none */
    LayerInputs layer_inputs;        /* the same; width 0: none */
    StateInput input;                /* the same; state rows 0: none */
    Weight state_output;             /* the same; rows 0: none */
    int32_t *given_tokens;           /* [rows_max] all TOKEN_GIVEN; NULL without `input` */
    AltUp altup;                     /* expand on the first layer's backend, merge on the last one's */
    HyperConnections hyper;          /* head on the last layer's backend */
    const Norm *final_norm;          /* on the last layer's backend */
    Weight head;                     /* the same */
    bool coarse_head;                /* 8-bit activations for the head of a precise family */
    int64_t width;                   /* floats of work per row, of the widest component */
    int64_t recurrent_width;         /* the same of the widest recurrent component, which needs all rows of a step */
    int group_norms;                 /* most norms through which a group of parallel components reads; at least 1 */
    int chosen_width;                /* numbers per row that indexers choose; 0: there are none */
    bool keeps;                      /* some component reads an earlier residual (Component.reads) */
    /* [rows_max, bound_residual_width()] host memory between two backends, and the second one's residual; NULL: there
     * is one backend. */
    void *staging;
    float *arrival;

    Arena arena;
    struct Binding *bindings; /* to undo */
    size_t binding_count, binding_capacity;
} Bound;

/* Embedding, head and final norm may be absent: they have no rows, or are NULL. Binds layers from `split` on (0: none)
 * to the second backend, the others to the first. The backends and the Spec outlive this. ERROR_MEMORY, or an error of
 * the backend; *bound is then zeroed. */
NODISCARD bool bound_open(
    Bound *bound, const Spec *spec, Backend *const *backends, int backend_count, int split, Error *error);
void bound_close(Bound *bound); /* safe on a zeroed one */
/* Binds something beside the layers to the first backend, until bound_close(). */
NODISCARD bool bound_weight(Bound *bound, Weight *weight, Error *error);
NODISCARD bool bound_norm(Bound *bound, const Norm **norm, Error *error);
/* False with ERROR_UNSUPPORTED, which names `where`: the backend does not compute this activation. */
NODISCARD bool bound_activation(const Backend *backend, Activation activation, const char *where, Error *error);
/* Floats per row of the residual, the layers' inputs behind it, and the streams of AltUp or of hyper-connections. */
int64_t bound_residual_width(const Bound *bound);
int bound_streams(const Bound *bound); /* 0: the residual is one stream */
Backend *bound_backend(const Bound *bound, int layer);
