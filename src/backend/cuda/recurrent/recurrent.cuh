/* What the kernels of recurrent layers share: pages, chunks, time steps. */
#pragma once
#include "backend/cuda/recurrent/recurrent.h"
#include "backend/cuda/runtime/common.cuh"

constexpr int PAGE = RECURRENT_PAGE_TOKENS;

/* A chunk of the step and its pages. */
struct Chunk {
    int row, rows, position; /* its first row, and the position of that */
    int32_t before, last;
};

/* All threads of a block call it. */
__device__ static inline Chunk chunk_of(const StepRows &step, const StatePages &pages, int number) {
    __shared__ int first;
    for (int i = threadIdx.x; i < step.rows; i += blockDim.x)
        if (__ldcg(step.chunks + i) == number && __ldcg(step.chunk_offsets + i) == 0) first = i;
    __syncthreads();
    const int32_t *table = pages.tables + (int64_t)number * pages.table_stride;
    return Chunk{first, __ldcg(step.chunk_rows + first), __ldcg(step.places + first), __ldcg(table), __ldcg(table + 1)};
}

/* The chunk of one row. */
__device__ static inline Chunk chunk_of_row(const StepRows &step, const StatePages &pages, int row) {
    const int first = row - __ldcg(step.chunk_offsets + row);
    const int32_t *table = pages.tables + (int64_t)__ldcg(step.chunks + row) * pages.table_stride;
    return Chunk{first, __ldcg(step.chunk_rows + row), __ldcg(step.places + first), __ldcg(table), __ldcg(table + 1)};
}

/* The page of a position of the chunk, or of the one before it; −1: it is not stored. */
__device__ static inline int32_t page_of(const Chunk &c, int position) {
    const int page = position / PAGE;
    if (page == (c.position + c.rows - 1) / PAGE) return c.last;
    return c.position > 0 && page == (c.position - 1) / PAGE ? c.before : -1;
}

__device__ static inline float *anchor_of(const StatePages &p, int32_t page) {
    return p.pages + page * p.stride + p.anchor_at;
}
__device__ static inline float *tail_row(const StatePages &p, int32_t page, int row) {
    return p.pages + page * p.stride + p.anchor + row * p.row + p.row_at;
}

__device__ static inline float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }
__device__ static inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
