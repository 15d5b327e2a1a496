/* Products of up to eight rows on compute capability 9.0 and later: the sums of gemv_mma.cu, with weights passing
 * through a ring of slots in shared memory. One warp issues bulk copies, which begin before the previous kernel has
 * ended; eight warps multiply, each its slice; one adds the slices and finishes, so that no warp waits for that. A
 * block takes few registers of a multiprocessor, so blocks of the next kernel fit beside it and issue their first
 * copies. */
#include "backend/cuda/gemm/epilogue.cuh"
#include "backend/cuda/gemm/ring.cuh"

enum { MULTIPLIERS = WARPS, ORDERING = WARPS, FINISHING, ALL_WARPS, SUM_BUFFERS = 2 };
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* Multiplies COUNT neighbouring tiles; each is loaded while the previous ones are multiplied. */
template <int KIND, int COUNT>
__device__ __forceinline__ void tiles_multiply(
    float c[4], const uint8_t *tile, int bytes, const uint8_t *x, int lane, int scales) {
    constexpr int MOST = Kind<KIND>::WORDS > 8 ? 1 : Kind<KIND>::WORDS > 4 ? 2 : 3, AHEAD = COUNT < MOST ? COUNT : MOST;
    Piece<KIND> numbers[AHEAD];
    uint4 low[AHEAD], high[AHEAD];
    const auto take = [&](int i) {
        piece_take(numbers[i % AHEAD], tile + i * bytes, lane, scales);
        low[i % AHEAD] = *(const uint4 *)(x + i * 128);
        high[i % AHEAD] = *(const uint4 *)(x + i * 128 + 16);
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) take(i);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        uint32_t a[4][4];
#pragma unroll
        for (int s = 0; s < 4; s++) piece_numbers(numbers[i % AHEAD], s, a[s]);
        const uint4 one = low[i % AHEAD], other = high[i % AHEAD];
        if (i + AHEAD < COUNT) take(i + AHEAD);
        multiply(c, a[0], one.x, one.y);
        multiply(c, a[1], one.z, one.w);
        multiply(c, a[2], other.x, other.y);
        multiply(c, a[3], other.z, other.w);
    }
}
#endif

/* BYTES: bytes of a tile, for the most common size of the kind; 0: determined by the weights at run time. */
template <int KIND, bool GLU, int BYTES>
__global__ void __launch_bounds__(32 * ALL_WARPS, 2)
    gemv_ring_kernel(const __grid_constant__ ProductWork p, const __grid_constant__ Ring ring) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    constexpr int SUMS = (GLU ? 2 : 1) * SLICES * TILE_ROWS * GEMV_ROWS_MAX;
    extern __shared__ __align__(128) uint8_t memory[]; /* slots, inputs */
    __shared__ float sums[SUM_BUFFERS][SUMS];
    __shared__ float factors[GEMV_ROWS_MAX];
    __shared__ Reductions shared;
    __shared__ uint64_t barriers[2 * SLOTS_MAX + 2 * SUM_BUFFERS];
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t full = shared_address(barriers), empty = full + 8 * SLOTS_MAX, summed = empty + 8 * SLOTS_MAX,
                   taken = summed + 8 * SUM_BUFFERS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < ring.slots; i++) {
            barrier_make(full + 8 * i, 1);
            barrier_make(empty + 8 * i, MULTIPLIERS);
        }
        for (int i = 0; i < SUM_BUFFERS; i++) {
            barrier_make(summed + 8 * i, MULTIPLIERS);
            barrier_make(taken + 8 * i, 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp == ORDERING) {
        if (lane == 0) ring_order(p, ring, shared_address(memory), full, empty, nullptr);
        __syncwarp();
        wait_for_previous();
        return;
    }
    Turn buffer;
    if (warp == FINISHING) {
        wait_for_previous();
        for (int unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
            finish<GLU>(p, unit, SumsInTiles{sums[buffer.at]}, factors,
                [&] { barrier_wait(summed + 8 * buffer.at, buffer.phase); });
            __syncwarp();
            if (lane == 0) barrier_arrive(taken + 8 * buffer.at);
            buffer.next(SUM_BUFFERS);
        }
        return;
    }
    uint8_t *inputs = memory + ring.slots * ring.slot_bytes;
    take_inputs(p, inputs, factors, shared);

    const Columns columns(p.groups);
    const int run = columns.run, rounds = columns.rounds, bytes = BYTES ? BYTES : p.weight[0].bytes;
    const int scales = scale_offset<KIND>(lane, BYTES ? 1 : p.weight[0].subs);
    const uint8_t *mine = inputs + min(g, p.rows - 1) * gemv_stride(p.groups) + t * 32;
    Turn turn;
    for (int unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
        float c[4] = {}, gate[4] = {};
#pragma unroll 1
        for (int part = 0; part < (GLU ? 2 : 1); part++) {
            for (int round = 0; round < rounds; round++)
                for (int piece = 0; piece < ring.pieces; piece++) {
                    barrier_wait(full + 8 * turn.at, turn.phase);
                    const int first = (round * SLICES + warp) * run + piece * ring.share;
                    const int count = min(min(ring.share, run - piece * ring.share), p.groups - first);
                    const uint8_t *tile = memory + turn.at * ring.slot_bytes + warp * ring.share * bytes,
                                  *x = mine + first * 128;
                    switch (BYTES ? count : 0) {
                    case 8: tiles_multiply<KIND, 8>(c, tile, bytes, x, lane, scales); break;
                    case 7: tiles_multiply<KIND, 7>(c, tile, bytes, x, lane, scales); break;
                    case 6: tiles_multiply<KIND, 6>(c, tile, bytes, x, lane, scales); break;
                    case 3: tiles_multiply<KIND, 3>(c, tile, bytes, x, lane, scales); break;
                    default:
#pragma unroll 1
                        for (int i = 0; i < count; i++)
                            tiles_multiply<KIND, 1>(c, tile + i * bytes, bytes, x + i * 128, lane, scales);
                    }
                    __syncwarp();
                    if (lane == 0) barrier_arrive(empty + 8 * turn.at);
                    turn.next(ring.slots);
                }
            if (GLU && part == 0)
#pragma unroll
                for (int k = 0; k < 4; k++) gate[k] = c[k], c[k] = 0;
        }
        barrier_wait(taken + 8 * buffer.at, buffer.phase ^ 1);
        float *to = sums[buffer.at] + (warp * TILE_ROWS + g) * GEMV_ROWS_MAX + 2 * t;
        if constexpr (GLU) {
            *(float2 *)to = make_float2(gate[0], gate[1]);
            *(float2 *)(to + 8 * GEMV_ROWS_MAX) = make_float2(gate[2], gate[3]);
            to += SLICES * TILE_ROWS * GEMV_ROWS_MAX;
        }
        *(float2 *)to = make_float2(c[0], c[1]);
        *(float2 *)(to + 8 * GEMV_ROWS_MAX) = make_float2(c[2], c[3]);
        __syncwarp();
        if (lane == 0) barrier_arrive(summed + 8 * buffer.at);
        buffer.next(SUM_BUFFERS);
    }
#endif
}

struct Stream {
    cudaStream_t stream;
    const ProductWork *work;
    int multiprocessors, shared_max;
    bool *fits;
    template <int KIND, bool GLU, int BYTES> cudaError_t go() const {
        const ProductWork &w = *work;
        const auto kernel = gemv_ring_kernel<KIND, GLU, BYTES>;
        cudaFuncAttributes attributes;
        cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
        if (error) return error;
        const int inputs = w.rows * gemv_stride(w.groups), fixed = (int)attributes.sharedSizeBytes;
        const Ring ring = ring_of(w, w.mode == PRODUCT_GLU ? 2 : 1, inputs + fixed, shared_max);
        *fits = ring.slots >= 2;
        if (!*fits) return cudaSuccess;
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_max - fixed);
        if (error) return error;
        const int blocks = w.units < multiprocessors ? w.units : multiprocessors;
        return launch(
            stream, kernel, dim3(blocks), 32 * ALL_WARPS, (size_t)ring.slots * ring.slot_bytes + inputs, w, ring);
    }
    template <int KIND> cudaError_t operator()() const {
        constexpr int USUAL = KIND == TILE_F16 ? Kind<KIND>::CODE_BYTES : Kind<KIND>::CODE_BYTES + 64;
        if constexpr (KIND != TILE_FP4 && KIND != TILE_FP8)
            if (work->weight[0].bytes == USUAL)
                return work->mode == PRODUCT_GLU ? go<KIND, true, USUAL>() : go<KIND, false, USUAL>();
        return work->mode == PRODUCT_GLU ? go<KIND, true, 0>() : go<KIND, false, 0>();
    }
};
cudaError_t product_gemv_ring(
    cudaStream_t stream, int kind, const ProductWork &work, int multiprocessors, int shared_max, bool *fits) {
    return with_kind(kind, Stream{stream, &work, multiprocessors, shared_max, fits});
}
