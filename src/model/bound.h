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
    const Norm *final_norm;          /* on the last layer's backend */
    Weight head;                     /* the same */
    bool coarse_head;                /* 8-bit activations for the head of a precise family */
    int64_t width;                   /* floats of work per row, of the widest component */
    void *staging;                   /* [rows_max, hidden] host memory between two backends; NULL: there is one */
    float *arrival;                  /* [rows_max, hidden] the second backend's residual; NULL: there is one */

    Arena arena;
    struct Binding *bindings; /* to undo */
    size_t binding_count, binding_capacity;
} Bound;

/* Binds layers from `split` on (0: none) to the second backend, the others to the first. The backends and the Spec
 * outlive this. ERROR_MEMORY, or an error of the backend; *bound is then zeroed. */
NODISCARD bool bound_open(
    Bound *bound, const Spec *spec, Backend *const *backends, int backend_count, int split, Error *error);
void bound_close(Bound *bound); /* safe on a zeroed one */
Backend *bound_backend(const Bound *bound, int layer);
