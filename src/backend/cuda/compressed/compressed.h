/* backend/cuda/compressed/: attention to compressed keys, and hyper-connections (backend/compressed.h). This header:
 * what host code calls, as runtime/runtime.h says.
 *
 * A row's bits depend on its position and its sequence alone: every sum is taken in one order, whose parts do not
 * depend on other rows. */
#pragma once
#include "backend/compressed.h"
#include "backend/cuda/runtime/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A cache entry of plain rows, in floats. */
typedef struct CachedRows {
    float *pages;          /* with the layer's offset */
    int64_t stride;        /* from one page to the next */
    int64_t width;         /* from one row to the next */
    const int32_t *tables; /* [chunks][table_stride] page tables */
    int table_stride;
} CachedRows;

typedef struct CompressArgs {
    StepRows step;
    CachedRows state, keys;
    Compression op;
    RowNorm norm;
    const float *frequencies; /* [dims / 2] */
    int dims;                 /* rotated elements at the end of a key */
} CompressArgs;
cudaError_t compressed_compress(cudaStream_t stream, const CompressArgs *args);

/* Rotates the ends of [rows of the step, heads] vectors by the rows' positions. */
typedef struct EndRotation {
    StepRows step;
    int heads, width, dims;
    const float *frequencies;
    float *x;
} EndRotation;
cudaError_t compressed_rotate(cudaStream_t stream, const EndRotation *rotation);

typedef struct CompressedArgs {
    StepRows step;
    CachedRows latest, keys;
    CompressedAttention op;
    RowNorm q_norm, k_norm;
    const float *frequencies;
    int dims;
} CompressedArgs;
/* Appends the keys of all rows, then attends. */
cudaError_t compressed_attend(cudaStream_t stream, const CompressedArgs *args);

cudaError_t compressed_join(cudaStream_t stream, const GroupJoin *op);
cudaError_t compressed_hyper(cudaStream_t stream, const HyperConnection *op);

#ifdef __cplusplus
}
#endif
