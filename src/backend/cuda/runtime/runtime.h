/* backend/cuda/runtime/: the backend itself, its steps and graphs, memory and weights; kernels over rows; sampling;
 * sums over two GPUs. This header: what the kernels of all folders share, and the kernels of this one that host code
 * calls.
 *
 * As in the headers of the other folders: a function enqueues work on a stream and returns CUDA's error code for that.
 * Pointers are device memory unless named otherwise, borrowed until the work has ended. The operations are specified in
 * cpu/ref. Thread: that of the backend. */
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Tiles Tiles; /* gemm/gemm.h */

/* ---- the numbers of a step ---- */

/* The rows of a step, in device memory. */
typedef struct StepRows {
    const int32_t *positions;                  /* [position_dims][rows] RoPE positions */
    const int32_t *places;                     /* [rows] position in the cache */
    const int32_t *chunks;                     /* [rows] number of the chunk, which is that of its page table */
    const int32_t *span_begins, *span_ends;    /* [rows] bidirectional span of the row; begin ≥ end: none */
    const int32_t *chunk_rows, *chunk_offsets; /* [rows] rows of the chunk; rows of it before this one */
    int rows, position_dims;
} StepRows;

/* Copies host[*turn % 2], which is pinned host memory, to `device` and increments *turn. The first integer is the
 * count, a multiple of four. device: at least STEP_INTS_LEAST integers. */
enum { STEP_INTS_LEAST = 1 << 14 };
cudaError_t step_bring(cudaStream_t stream, int32_t *const host[2], int32_t *device, int32_t *turn);

/* ---- rows ---- */

typedef struct RowNorm {
    int kind; /* NormKind */
    int64_t width;
    float eps;
    const float *weight, *bias;
} RowNorm;

/* out = norm(x); out may be x. */
cudaError_t rows_norm(cudaStream_t stream, int rows, const float *x, const RowNorm *norm, float *out);
/* residual += scale · norm(y); norm NULL: none. */
cudaError_t rows_add(
    cudaStream_t stream, int rows, int64_t width, float *residual, const float *y, float scale, const RowNorm *norm);
/* residual += scale · norm(x_norm(x) + y_norm(y)) with the bits of rows_norm() and rows_add(); x_norm of width 0: none.
 */
cudaError_t rows_add_pair(cudaStream_t stream, int rows, float *residual, const float *x, const float *y, float scale,
    const RowNorm *x_norm, const RowNorm *y_norm, const RowNorm *norm);
int rows_add_pair_fits(const float *residual, const float *x, const float *y, const RowNorm *x_norm,
    const RowNorm *y_norm, const RowNorm *norm); /* whether it takes them */
cudaError_t rows_activate(cudaStream_t stream, int64_t count, const float *x, const Activation *activation, float *out);
/* Rows from prefill_from on have the SiLU of Hopper's products of prefill rows. */
cudaError_t rows_multiply(cudaStream_t stream, const Multiply *op, int prefill_from);
/* positions: [rows] of the first dimension. */
cudaError_t rows_scale_queries(
    cudaStream_t stream, int rows, int64_t width, const QueryScaling *scaling, const int32_t *positions, float *x);
cudaError_t rows_mix_streams(cudaStream_t stream, const StreamMix *op);
cudaError_t rows_match_rms(cudaStream_t stream, const MatchRms *op);
cudaError_t rows_sparsify(cudaStream_t stream, const Sparsify *op);
cudaError_t rows_gate_heads(cudaStream_t stream, const HeadGate *op);
/* x = x · sigmoid(gate). */
cudaError_t rows_sigmoid(cudaStream_t stream, int64_t count, float *x, const float *gate);
/* Copies `count` floats of each row; the rows begin from_width and to_width floats apart. */
cudaError_t rows_copy(
    cudaStream_t stream, int rows, const float *from, int64_t from_width, float *to, int64_t to_width, int64_t count);
cudaError_t rows_logits(cudaStream_t stream, int64_t count, float *x, float scale, float cap);
cudaError_t rows_gather(
    cudaStream_t stream, int count, const int32_t *index, const float *x, int64_t width, float *out);
/* Token −1: the row of `out` stays as it is. Token −2 − i: sampled[i]. placeholder: Embed. */
cudaError_t rows_embed(cudaStream_t stream, int rows, const int32_t *tokens, const int32_t *sampled, const Tiles *table,
    float scale, bool placeholder, float *out);

/* ---- sums over two GPUs (tensor_parallel.cu) ---- */

enum {
    RANK_WORD_ROWS = 8,   /* rows of a sum, at most, that travel as words with a mark in each */
    RANK_SUMS_MAX = 1024, /* sums of a step, at most */
};
/* Where two GPUs exchange the terms of a sum. */
typedef struct RankPlace {
    uint8_t *mine;         /* memory here that the other GPU writes */
    uint8_t *theirs;       /* memory there that this GPU writes; NULL: there is no other GPU */
    int64_t slot_bytes;    /* bytes of one of the slots in either */
    const int32_t *ticket; /* number of the step, the same on both GPUs */
    int number;            /* number of the sum in the step */
    int index;             /* rank of this GPU: 0 or 1 */
    int *lost, *lost_host; /* set to 1, for good, when the other GPU does not answer: on the device, and pinned */
} RankPlace;

typedef struct RankExchange {
    float *terms;    /* the terms of this GPU; replaced by the sum where residual is NULL */
    float *residual; /* += scale · sum; NULL: none */
    float scale;
    int64_t count; /* floats */
    RankPlace place;
    int64_t marks_offset, data_offset; /* in a slot */
} RankExchange;
/* Bytes of a slot in RankPlace.mine; fills in the offsets of `places`. */
int64_t ranks_slot_bytes(int rows_max, int64_t width, RankExchange *places);
cudaError_t ranks_sum(cudaStream_t stream, int rows, const RankExchange *exchange);

/* ---- the device ---- */

/* Reads zeroed memory, for a measurement; up to 16 bytes at its end are left out. */
cudaError_t limits_read(cudaStream_t stream, void *memory, size_t bytes, int multiprocessors);

/* Once per device, before other kernels. yes: kernels may begin before their predecessor has ended. */
void kernels_begin_early(int yes);
/* The next kernel on the stream begins when all before it have ended. */
void kernels_begin_apart(cudaStream_t stream);

#ifdef __cplusplus
}
#endif
