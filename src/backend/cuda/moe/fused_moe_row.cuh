/* In models with MoE blocks, all products of a single decode row are one kernel function, except attention and routers:
 * kernels that alternate find less of their code in the instruction caches (docs/design/gpu-kernels.md). */
#pragma once
#include "backend/cuda/gemm/gemv_int.cuh"
#include "backend/cuda/moe/moe.h"

/* Slots for weights in flight, `bytes` each. */
struct Slots {
    int count, bytes;
};

cudaError_t moe_row_product(
    cudaStream_t stream, const MoeProduct &product, const Slots &slots, dim3 grid, size_t bytes);
cudaError_t moe_row_sum(cudaStream_t stream, const MoeSum &sum, const Slots &slots, dim3 grid, size_t bytes);
/* Like the function of gemv_int_row.cu. */
cudaError_t moe_row_one(cudaStream_t stream, const ProductWork &work, const GemvShape &shape, int shared_max);
