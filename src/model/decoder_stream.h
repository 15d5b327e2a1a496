/* The schedule of a step whose experts are read from storage on demand (weights/expert_cache.h). Rows do not depend on
 * each other, so every schedule gives the same bits. Threads: the one that runs steps. */
#pragma once
#include "model/autotuner.h"
#include "model/bound.h"
#include "model/step_rows.h"
#include "weights/expert_cache.h"

enum {
    MICRO_BATCH_CHUNKS_MAX = 64, /* most chunks of a step that is computed as two micro-batches */
};

typedef struct StreamSchedule {
    /* The first backend computes a layer for so many rows at a time: activations stay small, and experts that the first
     * tile read serve all others. At most LAYER_TILE_ROWS_MAX; 0: for all rows at once. */
    int tile_rows;
    bool can_prefetch;          /* steps have memory for prefetching */
    const ExpertCache *experts; /* NULL: there is nothing to choose, steps are computed in order */
    /* Chosen for the current step. */
    bool prefetch;          /* request what the next layer will likely read */
    bool two_batch_overlap; /* compute one half of the sequences while the other half's experts are read */
    Autotuner *tuner;       /* measures the choice; NULL: there was none */
    int64_t start_ns;
    /* For steps of several sequences, and of one. */
    Autotuner overlaps, prefetches;
} StreamSchedule;

/* Chooses for this step; stream_end() measures how long it took to compute. */
void stream_begin(StreamSchedule *schedule, const Step *step);
void stream_end(StreamSchedule *schedule);
/* The longest bidirectional span that a step may have: one tile; INT_MAX: any. */
int stream_span_rows_max(const StreamSchedule *schedule);
