/* backend/cuda/recurrent/: operations of recurrent layers (backend/recurrent.h). This header: what host code calls, as
 * runtime/runtime.h says.
 *
 * A row's bits depend on its position and its sequence alone: every sum is taken in one order, with each product and
 * sum rounded as written (no contraction by the compiler where paths differ). */
#pragma once
#include "backend/cuda/kv/kv.h"
#include "backend/cuda/runtime/runtime.h"
#include "backend/recurrent.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The pages of an operation, in floats. */
typedef struct StatePages {
    float *pages;              /* with the layer's offset */
    int64_t stride;            /* from one page to the next */
    int64_t anchor, row;       /* all of an anchor, and all of a row of the tail */
    int64_t anchor_at, row_at; /* the operation's part of them */
    const int32_t *tables; /* [chunks][table_stride] page of the position before the chunk, page of its last row; −1:
                              none */
    int table_stride;
} StatePages;

typedef struct ConvArgs {
    StepRows step;
    StatePages pages;
    Conv op;
    int chunks;
} ConvArgs;
cudaError_t recurrent_conv(cudaStream_t stream, const ConvArgs *args);

typedef struct RecurrenceArgs {
    StepRows step;
    StatePages pages;
    Recurrence op;
    RowNorm q_norm, k_norm; /* width 0: none */
    RopeParams rope;        /* dims 0: none */
    int chunks;
    int multiprocessors;
    int shared_bytes; /* shared memory that a block may use */
} RecurrenceArgs;
cudaError_t recurrent_recurrence(cudaStream_t stream, const RecurrenceArgs *args);

typedef struct MambaArgs {
    StepRows step;
    StatePages pages;
    Mamba op;
    int chunks;
} MambaArgs;
cudaError_t recurrent_mamba(cudaStream_t stream, const MambaArgs *args);

typedef struct RgLruArgs {
    StepRows step;
    StatePages pages;
    RgLru op;
    int chunks;
} RgLruArgs;
cudaError_t recurrent_rg_lru(cudaStream_t stream, const RgLruArgs *args);

/* RecurrentBlock for steps of few rows, each of a sequence of its own. */
typedef struct RecurrentBlockArgs {
    ConvArgs conv;
    RecurrenceArgs recurrence;
    GatedNorm norm;
} RecurrentBlockArgs;
int recurrent_block_fits(const RecurrentBlockArgs *args); /* whether recurrent_block() takes them */
cudaError_t recurrent_block(cudaStream_t stream, const RecurrentBlockArgs *args);

cudaError_t recurrent_gated_norm(cudaStream_t stream, const GatedNorm *op);

#ifdef __cplusplus
}
#endif
