/* The one kernel function of fused_moe_row.cuh: its stages and their launches. */
#include "backend/cuda/gemm/gemv_int_row.cuh"
#include "backend/cuda/moe/fused_moe.cuh"

enum RowStage { STAGE_EXPERTS, STAGE_SUM, STAGE_ONE };
struct MoeRow {
    RowStage stage;
    Slots slots; /* but for ONE */
    union {
        MoeProduct experts;
        MoeSum sum;
        struct {
            ProductWork work;
            Ring ring;
        } one;
    };
};

enum { ROW_WORDS = (int)GEMV_WORDS > (int)EXPERT_WORDS ? (int)GEMV_WORDS : (int)EXPERT_WORDS };

/* ptxas places the last code here next to the function's beginning, where instructions are available earliest: the
 * experts' products. */
template <int KIND, int SUBS>
__global__ void __launch_bounds__(32 * ALL_WARPS, 2) moe_row_kernel(const __grid_constant__ MoeRow p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    __shared__ uint64_t words[ROW_WORDS];
    if (p.stage == STAGE_ONE)
        gemv_int_row<KIND, SUBS>(p.one.work, p.one.ring, words);
    else if (p.stage == STAGE_SUM)
        experts_sum<KIND, SUBS>(p.sum, p.slots, words);
    else
        experts_product<KIND, SUBS, true, 1>(p.experts, p.slots, words);
#endif
}

struct MoeRowLaunch {
    cudaStream_t stream;
    const MoeRow *row;
    int subs;
    dim3 grid;
    int block;
    size_t bytes;
    int shared_max;
    template <int KIND> cudaError_t operator()() const {
        if constexpr (integer_kind(KIND)) {
            const auto go = [&](auto kernel) {
                const cudaError_t error = gemv_allow(kernel, shared_max);
                return error ? error : launch(stream, kernel, grid, block, bytes, *row);
            };
            return subs == 1 ? go(moe_row_kernel<KIND, 1>) : go(moe_row_kernel<KIND, 2>);
        }
        return cudaErrorInvalidValue;
    }
};
cudaError_t moe_row_product(
    cudaStream_t stream, const MoeProduct &product, const Slots &slots, dim3 grid, size_t bytes) {
    MoeRow row = {STAGE_EXPERTS, slots, {}};
    row.experts = product;
    return with_kind(product.most.kind,
        MoeRowLaunch{stream, &row, product.most.subs, grid, PRODUCT_BLOCK, bytes, product.shared_bytes});
}
cudaError_t moe_row_sum(cudaStream_t stream, const MoeSum &sum, const Slots &slots, dim3 grid, size_t bytes) {
    MoeRow row = {STAGE_SUM, slots, {}};
    row.sum = sum;
    return with_kind(
        sum.most.kind, MoeRowLaunch{stream, &row, sum.most.subs, grid, PRODUCT_BLOCK, bytes, sum.shared_bytes});
}
cudaError_t moe_row_one(cudaStream_t stream, const ProductWork &work, const GemvShape &shape, int shared_max) {
    MoeRow row = {STAGE_ONE, {}, {}};
    row.one.work = work;
    row.one.ring = shape.ring;
    return with_kind(work.weight[0].kind,
        MoeRowLaunch{stream, &row, work.weight[0].subs, dim3(shape.blocks), 32 * ALL_WARPS, shape.bytes, shared_max});
}
