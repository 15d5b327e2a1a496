/* Folds the parts of a row that sees quantised pages: pages in one chain, full-precision slices in another; rotates the
 * first back and adds the two (kvq.cuh). */
#include "backend/cuda/attention/kvq.cuh"

enum { FOLDED_FLOATS = 16384, FOLDED_PARTS_MAX = 256 };
__host__ __device__ static int folded_at_once(int d) { return min(FOLDED_FLOATS / d / 32 * 32, (int)FOLDED_PARTS_MAX); }

struct Chain {
    float most, sum, o; /* o: of the thread's dim */
};

/* Parts from..from + count − 1 of a row's head into a chain. */
static __device__ void fold_parts(const KvqPartials &parts, int64_t at, int heads, int d, int count, float *values,
    FoldFactors *factors, Chain &chain) {
    const int batch_max = folded_at_once(d), warp = threadIdx.x / 32, lane = threadIdx.x % 32, fours = d / 4;
    for (int first = 0; first < count; first += batch_max) {
        const int batch = min(batch_max, count - first);
        const int64_t from = at + (int64_t)first * heads;
        if (warp == 0) {
            for (int s = 0; s < batch; s += 32) {
                const float2 part =
                    s + lane < batch ? __ldcg(parts.sums + from + (int64_t)(s + lane) * heads) : make_float2(NONE, 0);
                const FoldFactors own = fold_factors_of(chain.most, part, lane);
                if (s + lane < batch) factors[s + lane] = own;
            }
        } else {
#pragma unroll 8
            for (int i = threadIdx.x - 32; i < batch * fours; i += BLOCK - 32)
                ((float4 *)values)[i] =
                    __ldcg((const float4 *)(parts.o + (from + (int64_t)(i / fours) * heads) * d) + i % fours);
        }
        __syncthreads();
        if (threadIdx.x < d)
#pragma unroll 8
            for (int s = 0; s < batch; s++) fold(factors[s], values[s * d + threadIdx.x], chain.sum, chain.o);
        __syncthreads();
    }
}

/* A block per head and row. */
__global__ void __launch_bounds__(BLOCK)
    kvq_fold_kernel(const __grid_constant__ Attend a, const __grid_constant__ AttendQuant c, int fast) {
    extern __shared__ __align__(16) float values[];
    __shared__ FoldFactors factors[FOLDED_PARTS_MAX];
    __shared__ float rotated[2][KVQ_DIM_MAX], most_of[2];
    let_next_begin();
    const int head = blockIdx.x, row = a.first_row + blockIdx.y, d = a.value_dim;
    const KvqRow seen = kvq_row(a, c, row);
    const int end = seen_by(a, row).end;
    const bool tiled = fast && __ldcg(a.step.chunk_rows + row) >= TILE_CHUNK_LEAST;
    wait_for_previous();
    if (!seen.end) return;
    const KvqPartials parts = kvq_partials(a, c);
    const int64_t at = (int64_t)blockIdx.y * parts.parts * a.heads + head;
    Chain codes = {NONE, 0, 0};
    if (tiled) {
        const float *from = c.folded + ((int64_t)row * a.heads + head) * (d + 2);
        codes.most = load(from + d), codes.sum = load(from + d + 1);
        if (threadIdx.x < d) codes.o = load(from + threadIdx.x);
    } else {
        fold_parts(parts, at + (int64_t)c.full_slices * a.heads, a.heads, d, (seen.end - seen.sink) / PAGE_TOKENS,
            values, factors, codes);
    }
    const float sink = a.sinks ? __ldg(a.sinks + head) * LOG2E : NONE;
    Chain full = {sink, a.sinks ? 1.0f : 0.0f, 0};
    fold_parts(parts, at, a.heads, d,
        seen.sink / ATTENTION_SLICE + (end - seen.end + ATTENTION_SLICE - 1) / ATTENTION_SLICE, values, factors, full);
    if (threadIdx.x < d) rotated[0][threadIdx.x] = codes.o;
    if (threadIdx.x == 0) most_of[0] = codes.most, most_of[1] = full.most; /* warp 0 alone follows them */
    __syncthreads();
    if (threadIdx.x < 32) warp_rotate(c.v_rotation, true, rotated[0], rotated[1]);
    __syncthreads();
    const float most = fmaxf(most_of[0], most_of[1]), of_quant = power_of_two(most_of[0] - most),
                of_full = power_of_two(most_of[1] - most);
    const float sum = fmaf(codes.sum, of_quant, full.sum * of_full);
    if (threadIdx.x < d)
        a.out[((int64_t)row * a.heads + head) * d + threadIdx.x] =
            fmaf(rotated[0][threadIdx.x], of_quant, full.o * of_full) / sum;
}

cudaError_t kvq_fold(cudaStream_t stream, const Attend &a, const AttendQuant &c) {
    const int fast = kvq_is_fast(&a), d = a.value_dim;
    const size_t shared = (size_t)folded_at_once(d) * (size_t)d * sizeof(float);
    const cudaError_t error =
        cudaFuncSetAttribute(kvq_fold_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    return error ? error : launch(stream, kvq_fold_kernel, dim3(a.heads, a.rows), BLOCK, shared, a, c, fast);
}
