/* Products of up to eight rows: all that is streamed is weights, loaded straight into registers, a few tiles ahead. A
 * block takes one unit after another; its eight warps are the eight slices of the sum. */
#include "backend/cuda/product.cuh"

/* Where a warp is in its share of the tiles. */
struct Cursor {
    int unit, part, round, in_run; /* part: GLU's gate and up */
    const uint8_t *base;           /* the tile row */
};

/* Which weight a unit belongs to, and which of its tile rows it is. */
__device__ __forceinline__ int weight_of(const ProductWork &p, int unit, int &tile_row) {
    int i = 0;
    for (; p.mode != PRODUCT_GLU && i + 1 < p.count; i++) {
        const int here = (p.weight[i].rows + TILE_ROWS - 1) / TILE_ROWS;
        if (unit < here) break;
        unit -= here;
    }
    tile_row = unit;
    return i;
}

__device__ __forceinline__ void cursor_place(const ProductWork &p, Cursor &c) {
    if (c.unit >= p.units) return;
    int row;
    const Tiles &w = p.weight[weight_of(p, c.unit, row) + c.part];
    c.base = w.data + (int64_t)row * p.groups * w.bytes;
}
template <bool GLU> __device__ __forceinline__ void cursor_next(const ProductWork &p, Cursor &c, int run, int rounds) {
    if (++c.in_run < run) return;
    c.in_run = 0;
    if (++c.round < rounds) return;
    c.round = 0;
    if (GLU && c.part == 0) {
        c.part = 1;
    } else {
        c.part = 0;
        c.unit += gridDim.x;
    }
    cursor_place(p, c);
}

/* Of a unit whose slices' sums lie in `sums` [part][warp][16][8]: the ordered sum and what follows it. One warp. */
template <bool GLU>
__device__ __forceinline__ void finish(const ProductWork &p, int unit, const float *sums, const float *factors) {
    int tile_row;
    const int index = weight_of(p, unit, tile_row);
    const Tiles &w = p.weight[index];
    for (int i = threadIdx.x % 32; i < TILE_ROWS * p.rows; i += 32) {
        const int r = i % TILE_ROWS, t = i / TILE_ROWS, row = tile_row * TILE_ROWS + r;
        if (row >= w.rows) continue;
        float sum[GLU ? 2 : 1];
#pragma unroll
        for (int part = 0; part < (GLU ? 2 : 1); part++) {
            const float *from = sums + (part * SLICES * TILE_ROWS + r) * FEW_ROWS_MAX + t;
            sum[part] = from[0];
#pragma unroll
            for (int s = 1; s < SLICES; s++) sum[part] += from[s * TILE_ROWS * FEW_ROWS_MAX];
        }
        float v = product_of(w, row, sum[0], factors[t]);
        float *to = p.out[index] + (int64_t)t * w.rows + row;
        if constexpr (GLU) {
            *to = activated(p.activation, v) * product_of(p.weight[1], row, sum[1], factors[t]);
        } else if (p.mode == PRODUCT_ADD) {
            *to = load(to) + p.scale * v;
        } else {
            *to = v;
        }
    }
}

/* The rows into shared memory. */
__device__ __forceinline__ void take_inputs(const ProductWork &p, uint8_t *inputs, float *factors, float *shared) {
    const int stride = few_stride(p.groups);
    if (!p.x) {
        const int pieces = p.groups * 8;
        for (int i = threadIdx.x; i < p.rows * pieces; i += BLOCK) {
            const int row = i / pieces, at = i % pieces;
            *(uint4 *)(inputs + row * stride + at * 16) = __ldcg((const uint4 *)p.inputs + (int64_t)row * pieces + at);
        }
        if (threadIdx.x < p.rows) factors[threadIdx.x] = load(p.input_factors + threadIdx.x);
        return;
    }
    for (int row = 0; row < p.rows; row++) {
        uint8_t *to = inputs + row * stride;
        const float *from = p.x + (int64_t)row * p.cols;
        const auto store = [&](int64_t at, uint2 v) { *(uint2 *)(to + 2 * at) = v; };
        const float factor = p.cols <= 16 * BLOCK ? input_prepare<4>(from, p.cols, p.norm, shared, store)
                                                  : input_prepare<0>(from, p.cols, p.norm, shared, store);
        for (int at = (p.cols + 3) / 4 * 4 + 4 * threadIdx.x; at < p.groups * 64; at += 4 * BLOCK)
            store(at, make_uint2(0, 0));
        if (threadIdx.x == 0) factors[row] = factor;
    }
}

template <int KIND, bool GLU>
__global__ void __launch_bounds__(BLOCK, 2) few_kernel(const __grid_constant__ ProductWork p) {
    constexpr int WORDS = Kind<KIND>::WORDS + 2, AHEAD = WORDS > 12 ? 2 : WORDS > 8 ? 4 : WORDS > 6 ? 6 : 8;
    constexpr int SUMS = (GLU ? 2 : 1) * SLICES * TILE_ROWS * FEW_ROWS_MAX;
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ float sums[2][SUMS];
    __shared__ float shared[WARPS], factors[FEW_ROWS_MAX];
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int run = slice_run(p.groups), rounds = slice_rounds(p.groups);
    const int scales = scale_offset<KIND>(lane, p.weight[0].subs), bytes = p.weight[0].bytes;
    const auto group_of = [&](const Cursor &c) { return (c.round * SLICES + warp) * run + c.in_run; };

    Piece<KIND> piece[AHEAD];
    Cursor fetch = {(int)blockIdx.x, 0, 0, 0, nullptr};
    cursor_place(p, fetch);
    Cursor use = fetch;
    const auto prefetch = [&](Piece<KIND> &into) {
        const int group = group_of(fetch);
        if (fetch.unit < p.units && group < p.groups)
            piece_load(into, fetch.base + (int64_t)group * bytes, lane, scales);
        cursor_next<GLU>(p, fetch, run, rounds);
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) prefetch(piece[i]);

    wait_for_previous();
    take_inputs(p, memory, factors, shared);
    __syncthreads();

    const uint8_t *inputs = memory + min(g, p.rows - 1) * few_stride(p.groups) + t * 32;
    float c[4] = {}, gate[4] = {};
    int done = 0;
    while (use.unit < p.units) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (use.unit >= p.units) break;
            const int group = group_of(use);
            if (group < p.groups) {
                const uint4 low = *(const uint4 *)(inputs + group * 128),
                            high = *(const uint4 *)(inputs + group * 128 + 16);
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
            prefetch(piece[i]);
            const int unit = use.unit, part = use.part;
            cursor_next<GLU>(p, use, run, rounds);
            if (use.unit == unit && use.part == part) continue;
            if (use.unit == unit) {
#pragma unroll
                for (int k = 0; k < 4; k++) gate[k] = c[k], c[k] = 0;
                continue;
            }
            float *to = sums[done % 2] + (warp * TILE_ROWS + g) * FEW_ROWS_MAX + 2 * t;
            if constexpr (GLU) {
                *(float2 *)to = make_float2(gate[0], gate[1]);
                *(float2 *)(to + 8 * FEW_ROWS_MAX) = make_float2(gate[2], gate[3]);
                to += SLICES * TILE_ROWS * FEW_ROWS_MAX;
            }
            *(float2 *)to = make_float2(c[0], c[1]);
            *(float2 *)(to + 8 * FEW_ROWS_MAX) = make_float2(c[2], c[3]);
#pragma unroll
            for (int k = 0; k < 4; k++) c[k] = 0;
            __syncthreads();
            if (warp == done % WARPS) finish<GLU>(p, unit, sums[done % 2], factors);
            done++;
        }
    }
}

enum { RESERVED = 1 << 10 }; /* of shared memory, by the system for each block */

struct Few {
    cudaStream_t stream;
    const ProductWork *work;
    int blocks_max, shared_max;
    bool *fits;
    template <int KIND, bool GLU> cudaError_t go() const {
        const size_t shared = (size_t)work->rows * few_stride(work->groups);
        cudaFuncAttributes attributes;
        cudaError_t error = cudaFuncGetAttributes(&attributes, few_kernel<KIND, GLU>);
        if (error) return error;
        *fits = shared + attributes.sharedSizeBytes <= (size_t)shared_max;
        if (!*fits) return cudaSuccess;
        error = cudaFuncSetAttribute(few_kernel<KIND, GLU>, cudaFuncAttributeMaxDynamicSharedMemorySize,
            shared_max - (int)attributes.sharedSizeBytes);
        if (error) return error;
        /* Two blocks of 128 registers a thread on each multiprocessor, if their inputs find room there. */
        const int each = 2 * (shared + attributes.sharedSizeBytes + RESERVED) <= (size_t)shared_max + RESERVED ? 2 : 1;
        const int blocks = work->units < each * blocks_max ? work->units : each * blocks_max;
        return launch(stream, few_kernel<KIND, GLU>, dim3(blocks), BLOCK, shared, *work);
    }
    template <int KIND> cudaError_t operator()() const {
        return work->mode == PRODUCT_GLU ? go<KIND, true>() : go<KIND, false>();
    }
};
cudaError_t product_few(
    cudaStream_t stream, int kind, const ProductWork &work, int blocks_max, int shared_max, bool *fits) {
    return with_kind(kind, Few{stream, &work, blocks_max, shared_max, fits});
}
