/* Products of few rows with experts that were chosen on the device. The rows of a product are pairs of a row and one of
 * its experts; up to eight pairs of an expert are a chunk, which reads its matrix once. The sums are those of all other
 * products (tile.cuh), so a pair has the same bits alone and beside others. */
#include "backend/backend.h"
#include "backend/cuda/gemm/epilogue.cuh"
#include "backend/cuda/moe/moe.h"

extern "C" size_t experts_chunk_ints(int pairs) { return CHUNKS_AT + (size_t)pairs * (CHUNK_INTS + 1); }

enum { SORTERS = 512, SORTED_MAX = DECODE_ROWS_MAX * (EXPERTS_USED_MAX + 1) };

/* The pairs of an expert that share a chunk, and their order, may differ from call to call; their results do not. */
__global__ void __launch_bounds__(SORTERS) sort_kernel(int pairs, int experts, const int32_t *index, int32_t *out) {
    __shared__ int32_t place[SORTED_MAX], count[EXPERTS_MAX + 1], begin[EXPERTS_MAX + 1], chunk[EXPERTS_MAX + 1];
    let_next_begin();
    for (int e = threadIdx.x; e < experts; e += SORTERS) count[e] = 0;
    __syncthreads();
    wait_for_previous();
    for (int i = threadIdx.x; i < pairs; i += SORTERS) place[i] = atomicAdd(&count[__ldcg(index + i)], 1);
    __syncthreads();
    if (threadIdx.x < 32) {
        int pairs_before = 0, chunks_before = 0;
        for (int first = 0; first < experts; first += 32) {
            const int e = first + threadIdx.x, own = e < experts ? count[e] : 0;
            const int own_chunks = (own + GEMV_ROWS_MAX - 1) / GEMV_ROWS_MAX;
            int both = own << 16 | own_chunks; /* sums up to this one */
#pragma unroll
            for (int i = 1; i < 32; i *= 2) {
                const int v = __shfl_up_sync(~0u, both, i);
                both += (int)threadIdx.x >= i ? v : 0;
            }
            if (e < experts) {
                begin[e] = pairs_before + (both >> 16) - own;
                chunk[e] = chunks_before + (both & 0xffff) - own_chunks;
            }
            const int all = __shfl_sync(~0u, both, 31);
            pairs_before += all >> 16;
            chunks_before += all & 0xffff;
        }
        if (threadIdx.x == 0) out[0] = chunks_before;
    }
    __syncthreads();
    int32_t *order = out + CHUNKS_AT + CHUNK_INTS * pairs;
    for (int i = threadIdx.x; i < pairs; i += SORTERS) {
        const int e = __ldcg(index + i), at = place[i];
        order[begin[e] + at] = i;
        if (at % GEMV_ROWS_MAX) continue;
        int32_t *to = out + CHUNKS_AT + CHUNK_INTS * (chunk[e] + at / GEMV_ROWS_MAX);
        to[0] = e;
        to[1] = begin[e] + at;
        to[2] = min((int)GEMV_ROWS_MAX, count[e] - at);
    }
}
extern "C" cudaError_t experts_sort(
    cudaStream_t stream, int pairs, int experts, const int32_t *index, int32_t *chunks) {
    return launch(stream, sort_kernel, dim3(1), SORTERS, 0, pairs, experts, index, chunks);
}

/* The pairs that a block is at, in shared memory. */
struct Members {
    int expert, count, pair[GEMV_ROWS_MAX];
    float factors[GEMV_ROWS_MAX];
};

__device__ __forceinline__ void members_take(const ExpertProduct &p, int chunk, Members &m) {
    if (!p.chunks) {
        m.expert = __ldcg(p.index + chunk);
        m.count = 1;
        m.pair[0] = chunk;
        return;
    }
    const int32_t *from = p.chunks + CHUNKS_AT + CHUNK_INTS * chunk;
    const int32_t *order = p.chunks + CHUNKS_AT + CHUNK_INTS * p.pairs + __ldcg(from + 1);
    m.expert = __ldcg(from);
    m.count = __ldcg(from + 2);
    for (int i = 0; i < m.count; i++) m.pair[i] = __ldcg(order + i);
}

/* Their rows as f16. All threads of the block. */
__device__ __forceinline__ void members_prepare(
    const ExpertProduct &p, const Tiles &w, uint8_t *inputs, Members &m, Reductions &shared) {
    for (int i = 0; i < m.count; i++) {
        uint8_t *to = inputs + i * gemv_stride(w.groups);
        inputs_prepare(
            p.x + (int64_t)(m.pair[i] / p.each) * p.x_width, 1, w.cols, Columns(w.groups), RowNorm{}, shared, [] {},
            [=](int, int at, uint2 v) { *(uint2 *)(to + 2 * at) = v; },
            [&](int, float factor) {
                if (threadIdx.x == 0) m.factors[i] = factor;
            });
        __syncthreads();
    }
}

template <bool GLU>
__device__ __forceinline__ void pairs_finish(
    const ExpertProduct &p, const Tiles *w, int tile_row, const float *sums, const Members &m) {
    const int lane = threadIdx.x % 32, r = lane % TILE_ROWS, row = tile_row * TILE_ROWS + r;
    if (row >= w[0].rows) return;
    for (int t = lane / TILE_ROWS; t < m.count; t += 2) {
        float v[GLU ? 2 : 1];
#pragma unroll
        for (int part = 0; part < (GLU ? 2 : 1); part++) {
            const float *from = sums + (part * SLICES * TILE_ROWS + r) * GEMV_ROWS_MAX + t;
            float sum = from[0];
#pragma unroll
            for (int s = 1; s < SLICES; s++) sum += from[s * TILE_ROWS * GEMV_ROWS_MAX];
            v[part] = product_of(w[part], row, sum, m.factors[t]);
        }
        float *to = p.out + (int64_t)m.pair[t] * p.out_width + row;
        if constexpr (GLU)
            *to = gated_usually(p.activation, v[0], v[1]);
        else
            *to = p.twice ? gated_usually(p.activation, v[0], v[0]) : v[0];
    }
}

/* The tiles of a warp's next groups in registers: of one matrix, or of gate and up beside it. */
template <int KIND, int PARTS> struct Batch {
    static constexpr int WORDS = (Kind<KIND>::WORDS + 2) * PARTS, SIZE = WORDS > 24 ? 1 : WORDS > 12 ? 2 : 4;
    Piece<KIND> piece[PARTS][SIZE];
    __device__ __forceinline__ void load(const Tiles *w, int tile_row, int group, int count, int lane, int scales) {
#pragma unroll
        for (int i = 0; i < SIZE; i++)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                if (i < count)
                    piece_load(piece[part][i],
                        w[part].data + ((int64_t)tile_row * w[0].groups + group + i) * w[0].bytes, lane, scales);
    }
    /* x: inputs of the first group */
    __device__ __forceinline__ void multiply_by(const uint8_t *x, int count, float c[PARTS][4]) const {
#pragma unroll
        for (int i = 0; i < SIZE; i++) {
            if (i >= count) break;
            const uint4 low = *(const uint4 *)(x + i * 128), high = *(const uint4 *)(x + i * 128 + 16);
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                uint32_t a[4];
                piece_numbers(piece[part][i], 0, a);
                multiply(c[part], a, low.x, low.y);
                piece_numbers(piece[part][i], 1, a);
                multiply(c[part], a, low.z, low.w);
                piece_numbers(piece[part][i], 2, a);
                multiply(c[part], a, high.x, high.y);
                piece_numbers(piece[part][i], 3, a);
                multiply(c[part], a, high.z, high.w);
            }
        }
    }
};

/* A block takes neighbouring units, tile rows of one chunk after another; its eight warps are the slices of the sum.
 * A unit's first tiles are on their way while its inputs are prepared or the unit before is finished. */
template <int KIND, bool GLU>
__global__ void __launch_bounds__(BLOCK, 2) pairs_kernel(const __grid_constant__ ExpertProduct p) {
    constexpr int PARTS = GLU ? 2 : 1, SUMS = PARTS * SLICES * TILE_ROWS * GEMV_ROWS_MAX,
                  SIZE = Batch<KIND, PARTS>::SIZE;
    extern __shared__ __align__(16) uint8_t inputs[];
    __shared__ float sums[2][SUMS];
    __shared__ Reductions shared;
    __shared__ Members members;
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    wait_for_previous();
    const int units = (p.chunks ? __ldcg(p.chunks) : p.pairs) * p.tile_rows;
    const int each = (units + (int)gridDim.x - 1) / (int)gridDim.x;
    const int begin = blockIdx.x * each, end = min(units, begin + each);
    Tiles w[PARTS] = {}; /* no rows: the pairs are left out */
    Batch<KIND, PARTS> batch;
    int now = -1, done = 0, run = 0, rounds = 0, scales = 0;
    const auto load_first = [&](int unit) {
        const int tile_row = unit % p.tile_rows, first = warp * run;
        if (tile_row * TILE_ROWS < w[0].rows)
            batch.load(w, tile_row, first, min(run, w[0].groups - first), lane, scales);
    };
    for (int unit = begin; unit < end; unit++) {
        const int tile_row = unit % p.tile_rows;
        if (unit / p.tile_rows != now) {
            now = unit / p.tile_rows;
            __syncthreads(); /* the previous members are no longer in use */
            if (threadIdx.x == 0) members_take(p, now, members);
            __syncthreads();
            if (members.expert >= p.experts) {
                w[0].rows = 0;
                continue;
            }
            w[0] = p.bank[0][members.expert];
            if constexpr (GLU) w[1] = p.bank[1][members.expert];
            run = slice_run(w[0].groups);
            rounds = slice_rounds(w[0].groups);
            scales = scale_offset<KIND>(lane, w[0].subs);
            load_first(unit);
            members_prepare(p, w[0], inputs, members, shared);
        }
        if (tile_row * TILE_ROWS >= w[0].rows) continue;
        const uint8_t *x = inputs + min(g, members.count - 1) * gemv_stride(w[0].groups) + t * 32;
        float c[PARTS][4] = {};
        for (int round = 0; round < rounds; round++) {
            const int first = (round * SLICES + warp) * run, count = min(run, w[0].groups - first);
            for (int at = 0; at < count; at += SIZE) {
                if (round > 0 || at > 0) batch.load(w, tile_row, first + at, count - at, lane, scales);
                batch.multiply_by(x + (first + at) * 128, count - at, c);
            }
        }
        if (unit + 1 < end && (unit + 1) / p.tile_rows == now) load_first(unit + 1);
        float *to = sums[done % 2] + (warp * TILE_ROWS + g) * GEMV_ROWS_MAX + 2 * t;
#pragma unroll
        for (int part = 0; part < PARTS; part++, to += SLICES * TILE_ROWS * GEMV_ROWS_MAX) {
            *(float2 *)to = make_float2(c[part][0], c[part][1]);
            *(float2 *)(to + 8 * GEMV_ROWS_MAX) = make_float2(c[part][2], c[part][3]);
        }
        __syncthreads();
        if (warp == done % WARPS) pairs_finish<GLU>(p, w, tile_row, sums[done % 2], members);
        done++;
    }
}

struct Pairs {
    cudaStream_t stream;
    const ExpertProduct *product;
    template <int KIND, bool GLU> cudaError_t go() const {
        const ExpertProduct &p = *product;
        cudaFuncAttributes attributes;
        cudaError_t error = cudaFuncGetAttributes(&attributes, pairs_kernel<KIND, GLU>);
        if (error) return error;
        const int fixed = (int)attributes.sharedSizeBytes, most = p.shared_bytes - fixed;
        const int inputs = (p.chunks ? (int)GEMV_ROWS_MAX : 1) * gemv_stride(p.groups);
        if (inputs > most) return cudaErrorInvalidValue; /* excluded by experts_fit() */
        error = cudaFuncSetAttribute(pairs_kernel<KIND, GLU>, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
        if (error) return error;
        const int units = p.pairs * p.tile_rows, blocks = units < 2 * p.multiprocessors ? units : 2 * p.multiprocessors;
        return launch(stream, pairs_kernel<KIND, GLU>, dim3(blocks), BLOCK, (size_t)inputs, p);
    }
    template <int KIND> cudaError_t operator()() const {
        return product->bank[1] ? go<KIND, true>() : go<KIND, false>();
    }
};
extern "C" cudaError_t experts_product(cudaStream_t stream, const ExpertProduct *product) {
    return with_kind(product->kind, Pairs{stream, product});
}

/* Upper bound of a block's shared memory besides inputs. */
enum { BESIDES = 20 << 10 };
extern "C" int experts_fit(int groups, int shared_bytes) {
    return (int)GEMV_ROWS_MAX * gemv_stride(groups) + BESIDES <= shared_bytes;
}
