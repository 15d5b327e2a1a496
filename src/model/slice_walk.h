/* Walks the layers of a model over the rows of one step in slices: some rows of a component at a time, of attention
 * first the keys and values of all rows, then the queries. The backend may compute other steps between two slices. The
 * bits of the residual are those of a walk over whole layers. Backends with set_rows. Threads: one at a time. */
#pragma once
#include "model/bound.h"
#include "model/step_rows.h"

typedef enum SliceKind { SLICE_KEYS, SLICE_QUERIES, SLICE_ROWS, SLICE_KINDS } SliceKind;

/* Where the walk stands: at the next rows of a component. */
typedef struct SlicePlace {
    int layer, component;
    bool has_keys; /* attention: keys and values of all rows are in the cache */
    int row;
} SlicePlace;

/* Most rows of a slice. */
enum { SLICE_ROWS_MAX = LAYER_TILE_ROWS_MAX };

typedef struct SliceWalk {
    const Bound *bound;     /* borrowed; without parallel components */
    const KvLayer *entries; /* borrowed */
    Backend *backend;       /* borrowed */
    float *residual;        /* [rows, hidden] backend memory, borrowed */
    StepRows *memory;       /* borrowed */
} SliceWalk;

/* Kind of the next slice; the walk has not ended. */
SliceKind slice_kind(const SliceWalk *walk, const SlicePlace *at);
/* Computes up to `rows` rows of the step, which is the same until the layer has changed, and moves on. Returns their
 * number. The caller submits. */
int slice_forward(const SliceWalk *walk, const Step *step, int rows, SlicePlace *at);
