/* Products of up to eight rows: weights are loaded straight into registers, a few tiles ahead. A block takes one unit
 * after another; its eight warps are the eight slices of the sum. */
#include "backend/cuda/gemm/epilogue.cuh"
#include "backend/cuda/gemm/gemm.cuh"

/* A warp's share of the tiles goes in chunks of up to AHEAD neighbours. The current chunk and its size. */
struct Cursor {
    int unit, part, round, within; /* part: GLU's gate and up; within: groups of the run before the chunk */
    int first, count;
    const uint8_t *row, *at; /* the tile row, the chunk */
};

template <int AHEAD> __device__ __forceinline__ void cursor_place(const ProductWork &p, Cursor &c, int run, int bytes) {
    const int warp = threadIdx.x / 32;
    c.first = (c.round * SLICES + warp) * run + c.within;
    c.count = c.unit < p.units ? min(min(run - c.within, AHEAD), p.groups - c.first) : 0;
    c.at = c.row + (int64_t)c.first * bytes;
}
template <bool GLU> __device__ __forceinline__ void cursor_row(const ProductWork &p, Cursor &c, int bytes) {
    if (c.unit >= p.units) return;
    int row;
    const Tiles &w = p.weight[weight_of(p, c.unit, row) + c.part];
    c.row = w.data + (int64_t)row * p.groups * bytes;
}
template <int AHEAD, bool GLU>
__device__ __forceinline__ void cursor_next(const ProductWork &p, Cursor &c, int run, int rounds, int bytes) {
    c.within += AHEAD;
    if (c.within >= run) {
        c.within = 0;
        if (++c.round == rounds) {
            c.round = 0;
            c.part ^= GLU;
            if (c.part == 0) c.unit += gridDim.x;
            cursor_row<GLU>(p, c, bytes);
        }
    }
    cursor_place<AHEAD>(p, c, run, bytes);
}

template <int KIND, bool GLU>
__global__ void __launch_bounds__(BLOCK, 2) gemv_mma_kernel(const __grid_constant__ ProductWork p) {
    constexpr int WORDS = Kind<KIND>::WORDS + 2, AHEAD = WORDS > 12 ? 2 : WORDS > 8 ? 4 : WORDS > 6 ? 6 : 8;
    constexpr int SUMS = (GLU ? 2 : 1) * SLICES * TILE_ROWS * GEMV_ROWS_MAX;
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ float sums[2][SUMS];
    __shared__ float factors[GEMV_ROWS_MAX];
    __shared__ Reductions shared;
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int run = slice_run(p.groups), rounds = slice_rounds(p.groups);
    const int scales = scale_offset<KIND>(lane, p.weight[0].subs), bytes = p.weight[0].bytes;

    Piece<KIND> piece[AHEAD];
    Cursor use = {(int)blockIdx.x};
    cursor_row<GLU>(p, use, bytes);
    cursor_place<AHEAD>(p, use, run, bytes);
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (i < use.count) piece_load(piece[i], use.at + i * bytes, lane, scales);

    take_inputs(p, memory, factors, shared);
    __syncthreads();

    const uint8_t *inputs = memory + min(g, p.rows - 1) * gemv_stride(p.groups) + t * 32;
    float c[4] = {}, gate[4] = {};
    int done = 0;
    while (use.unit < p.units) {
        Cursor fetch = use;
        cursor_next<AHEAD, GLU>(p, fetch, run, rounds, bytes);
        const uint8_t *x = inputs + use.first * 128;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (i < use.count) {
                const uint4 low = *(const uint4 *)(x + i * 128), high = *(const uint4 *)(x + i * 128 + 16);
                uint32_t a[4];
                piece_numbers(piece[i], 0, a);
                multiply(c, a, low.x, low.y);
                piece_numbers(piece[i], 1, a);
                multiply(c, a, low.z, low.w);
                piece_numbers(piece[i], 2, a);
                multiply(c, a, high.x, high.y);
                piece_numbers(piece[i], 3, a);
                multiply(c, a, high.z, high.w);
            }
            if (i < fetch.count) piece_load(piece[i], fetch.at + i * bytes, lane, scales);
        }
        const int unit = use.unit, part = use.part;
        use = fetch;
        if (use.unit == unit && use.part == part) continue;
        if (use.unit == unit) {
#pragma unroll
            for (int k = 0; k < 4; k++) gate[k] = c[k], c[k] = 0;
            continue;
        }
        float *to = sums[done % 2] + (warp * TILE_ROWS + g) * GEMV_ROWS_MAX + 2 * t;
        if constexpr (GLU) {
            *(float2 *)to = make_float2(gate[0], gate[1]);
            *(float2 *)(to + 8 * GEMV_ROWS_MAX) = make_float2(gate[2], gate[3]);
            to += SLICES * TILE_ROWS * GEMV_ROWS_MAX;
        }
        *(float2 *)to = make_float2(c[0], c[1]);
        *(float2 *)(to + 8 * GEMV_ROWS_MAX) = make_float2(c[2], c[3]);
#pragma unroll
        for (int k = 0; k < 4; k++) c[k] = 0;
        __syncthreads();
        if (warp == done % WARPS) finish<GLU>(p, unit, SumsInTiles{sums[done % 2]}, factors, [] {});
        done++;
    }
}

enum { RESERVED = 1 << 10 }; /* bytes of shared memory that the system takes for each block */

struct GemvMmaLaunch {
    cudaStream_t stream;
    const ProductWork *work;
    int blocks_max, shared_max;
    bool *fits;
    template <int KIND, bool GLU> cudaError_t go() const {
        const size_t shared = (size_t)work->rows * gemv_stride(work->groups);
        cudaFuncAttributes attributes;
        cudaError_t error = cudaFuncGetAttributes(&attributes, gemv_mma_kernel<KIND, GLU>);
        if (error) return error;
        *fits = shared + attributes.sharedSizeBytes <= (size_t)shared_max;
        if (!*fits) return cudaSuccess;
        error = cudaFuncSetAttribute(gemv_mma_kernel<KIND, GLU>, cudaFuncAttributeMaxDynamicSharedMemorySize,
            shared_max - (int)attributes.sharedSizeBytes);
        if (error) return error;
        /* Two blocks of 128 registers a thread on each multiprocessor, if their inputs find room there. */
        const int each = 2 * (shared + attributes.sharedSizeBytes + RESERVED) <= (size_t)shared_max + RESERVED ? 2 : 1;
        const int blocks = work->units < each * blocks_max ? work->units : each * blocks_max;
        return launch(stream, gemv_mma_kernel<KIND, GLU>, dim3(blocks), BLOCK, shared, *work);
    }
    template <int KIND> cudaError_t operator()() const {
        return work->mode == PRODUCT_GLU ? go<KIND, true>() : go<KIND, false>();
    }
};
cudaError_t product_gemv_mma(
    cudaStream_t stream, int kind, const ProductWork &work, int blocks_max, int shared_max, bool *fits) {
    return with_kind(kind, GemvMmaLaunch{stream, &work, blocks_max, shared_max, fits});
}
