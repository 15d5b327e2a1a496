/* Products of one decode row (gemv_int_row.cuh) in models without MoE blocks. */
#include "backend/cuda/gemm/gemv_int_row.cuh"
#include "backend/cuda/moe/fused_moe_row.cuh"

template <int KIND, int SUBS>
__global__ void __launch_bounds__(32 * ALL_WARPS, 2)
    gemv_int_row_kernel(const __grid_constant__ ProductWork p, const __grid_constant__ Ring ring) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    __shared__ uint64_t words[GEMV_WORDS];
    gemv_int_row<KIND, SUBS>(p, ring, words);
#endif
}

struct GemvIntRowLaunch {
    cudaStream_t stream;
    const ProductWork *work;
    const GemvShape *shape;
    int shared_max;
    template <int KIND> cudaError_t operator()() const {
        if constexpr (integer_kind(KIND)) {
            const auto go = [&](auto kernel) { return gemv_launch(stream, kernel, *work, *shape, shared_max); };
            return work->weight[0].subs == 1 ? go(gemv_int_row_kernel<KIND, 1>) : go(gemv_int_row_kernel<KIND, 2>);
        }
        return cudaErrorInvalidValue;
    }
};
cudaError_t product_gemv_int_row(cudaStream_t stream, const ProductWork &work, const GemvShape &shape, int shared_max) {
    if (work.has_moe) return moe_row_one(stream, work, shape, shared_max);
    return with_kind(work.weight[0].kind, GemvIntRowLaunch{stream, &work, &shape, shared_max});
}
