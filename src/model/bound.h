/* A Spec's weights bound to the backends that will compute with them: for each layer a copy of its row whose weights,
 * norms and ropes are the backend's. The Spec stays as it is, so several of these can use it. Threads: opened and
 * closed anywhere, used by one thread at a time. */
#pragma once
#include "base/arena.h"
#include "model/component.h"

enum { BACKENDS_MAX = 2 };

typedef struct Bound {
    const Spec *spec;
    int backend_count;
    Backend *backends[BACKENDS_MAX];
    uint8_t *place;         /* [layer_count] which of them has the layer; it never decreases */
    Layer *layers;          /* [layer_count] */
    Weight embedding;       /* on the first layer's backend */
    const Norm *final_norm; /* this and the head: on the last layer's */
    Weight head;
    bool coarse_head;       /* 8-bit activations for the head of a precise family: nobody asked for more */
    int layer_tile_rows;    /* each layer of the first backend is walked over so many rows of a step after the other; 0:
                         over    all at once */
    bool two_batch_overlap; /* the halves of a step's sequences behind each other, so that one is computed while experts
                      of the other come; the same bits. Only where layer_count layers are one backend's */
    bool prefetches;        /* there is memory for telling sources what the next layer will likely want; */
    bool prefetching;       /* they are told */
    int64_t width;          /* floats per row that the largest part of a layer needs */
    /* [rows_max, hidden] between two backends: host memory, and the second's where it arrives; NULL: there is only one
     */
    void *staging;
    float *arrival;

    Arena arena;
    struct Binding *bindings; /* to undo */
    size_t binding_count, binding_capacity;
} Bound;

/* Layers from `split` on (0: none) are the second backend's. The backends and the Spec outlive this. */
NODISCARD bool bound_open(
    Bound *bound, const Spec *spec, Backend *const *backends, int backend_count, int split, Error *error);
void bound_close(Bound *bound); /* safe on a zeroed one */
Backend *bound_backend(const Bound *bound, int layer);
