/* A mixture of experts of generated rows in three kernels: norm, router and choice; gate and up; down, the weighted sum
 * and the residual. The second begins with weights as soon as the choice is there, the third while the second computes.
 * Products are integer.cuh's, but for the router's, which are exact but for their sums' rounding. Pairs of a row and one
 * of its experts are the rows of products; up to eight pairs of one expert make a chunk, which reads its matrix once. */
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/cluster.cuh"
#include "backend/cuda/integer.cuh"
#include "backend/cuda/product.cuh"
#include "backend/cuda/route.cuh"

/* A row's inputs: of each group the planes of high and low bytes, in each 16 of lane t after the other, and then the
 * offset of either half, the unit, and the offset of the group. */
enum { LOW_AT = 64, TERMS_AT = 128, RECORD = 144 };
__host__ __device__ __forceinline__ int64_t inputs_bytes(int groups) { return (int64_t)groups * RECORD; }
extern "C" size_t mixture_input_bytes(int64_t cols) { return inputs_bytes((int)((cols + TILE_COLS - 1) / TILE_COLS)); }

__device__ __forceinline__ float4 terms_of(float step, int first, int second) {
    return make_float4(integer_offset(step, first), integer_offset(step, second), integer_unit(step),
        integer_offset(step, first + second));
}

/* ---- the router ---- */

enum { ROUTER_BLOCK = 512, ROUTER_WARPS = ROUTER_BLOCK / 32, ROUTER_BLOCKS = 8 };

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* Over a block of the router's; shared: a float of each warp, free again after the next barrier. */
__device__ __forceinline__ float router_sum(float v, float *shared) {
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = shared[0];
#pragma unroll
    for (int i = 1; i < ROUTER_WARPS; i++) sum += shared[i];
    return sum;
}

/* The row, normed, as f32 in shared memory with zeros up to the end of its last group. */
template <class Ready>
__device__ __forceinline__ void router_row(const MixtureRouter &p, float *xs, float *reduced, const Ready &ready) {
    const int64_t width = p.width;
    const int padded = p.weight.groups * TILE_COLS;
    const RowNorm &norm = p.norm;
    const float *weights = norm.width ? norm.weight : nullptr;
    const bool aligned = ((uintptr_t)weights & 15) == 0;
    const auto weight_four = [&](int at) {
        if (!weights) return make_float4(1, 1, 1, 1);
        if (aligned && at + 4 <= width) return __ldg((const float4 *)(weights + at));
        return make_float4(at < width ? weights[at] : 0, at + 1 < width ? weights[at + 1] : 0,
            at + 2 < width ? weights[at + 2] : 0, at + 3 < width ? weights[at + 3] : 0);
    };
    const float4 first = weight_four(4 * threadIdx.x);
    ready();
    const Row<0> row(p.x + blockIdx.y * width, width);
    Scaling s = {0, 1};
    float sum = 0;
    for (int at = 4 * threadIdx.x; at < padded; at += 4 * ROUTER_BLOCK) {
        const float4 v = row.four(at);
        *(float4 *)(xs + at) = v;
        sum += norm.kind ? (v.x + v.y) + (v.z + v.w) : four_square(v);
    }
    if (norm.width && norm.kind) {
        s.mean = router_sum(sum, reduced) / (float)width;
        __syncthreads();
        sum = 0;
        for (int at = 4 * threadIdx.x; at < padded; at += 4 * ROUTER_BLOCK) {
            const float4 v = *(const float4 *)(xs + at);
            const float a = v.x - s.mean, b = v.y - s.mean, c = v.z - s.mean, d = v.w - s.mean;
            sum += four_square(
                make_float4(at < width ? a : 0, at + 1 < width ? b : 0, at + 2 < width ? c : 0, at + 3 < width ? d : 0));
        }
    }
    if (norm.width) s.factor = 1.0f / sqrtf(router_sum(sum, reduced) / (float)width + norm.eps);
    for (int at = 4 * threadIdx.x; at < padded; at += 4 * ROUTER_BLOCK) {
        float4 v = *(const float4 *)(xs + at);
        const float4 w = at < 4 * ROUTER_BLOCK ? first : weight_four(at);
        const auto one = [&](float x, float weight, int column) {
            if (column >= width) return 0.0f;
            x = (norm.kind ? (x - s.mean) * s.factor : x * s.factor) * weight;
            return norm.kind && norm.bias ? x + __ldg(norm.bias + column) : x;
        };
        if (norm.width)
            v = make_float4(one(v.x, w.x, at), one(v.y, w.y, at + 1), one(v.z, w.z, at + 2), one(v.w, w.w, at + 3));
        *(float4 *)(xs + at) = v;
    }
}

/* Eight groups from `first` on as inputs of products; a warp. */
__device__ __forceinline__ void router_leave(const MixtureRouter &p, const float *xs, int first) {
    const int lane = threadIdx.x % 32, group = first + lane / 4, t = lane % 4;
    const bool on = group < p.weight.groups;
    float y[16];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 v = on ? *(const float4 *)(xs + group * TILE_COLS + 16 * t + 4 * i) : make_float4(0, 0, 0, 0);
        y[4 * i] = v.x, y[4 * i + 1] = v.y, y[4 * i + 2] = v.z, y[4 * i + 3] = v.w;
    }
    const IntegerPart part = integer_part(y);
    if (!on) return;
    uint8_t *to = p.inputs + blockIdx.y * inputs_bytes(p.weight.groups) + group * RECORD;
    *(uint4 *)(to + t * 16) = part.high;
    *(uint4 *)(to + LOW_AT + t * 16) = part.low;
    if (t == 0) *(float4 *)(to + TERMS_AT) = terms_of(part.step, part.sum[0], part.sum[1]);
}

/* A lane's part of rows g and g + 8 of a tile times its 16 columns. */
template <int KIND> __device__ __forceinline__ void router_multiply(float acc[2], const Piece<KIND> &piece, const float *x) {
    float codes[2] = {0, 0}, sum = 0;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const float4 v = *(const float4 *)(x + 4 * s);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 c;
            if constexpr (KIND == TILE_F16)
                c = __half22float2(as_half2(piece.w[4 * s + i]));
            else
                c = __half22float2(piece_pair<KIND>(piece, s, i));
            codes[i % 2] = fmaf(c.x, i < 2 ? v.x : v.z, codes[i % 2]);
            codes[i % 2] = fmaf(c.y, i < 2 ? v.y : v.w, codes[i % 2]);
        }
        sum += (v.x + v.y) + (v.z + v.w);
    }
    if constexpr (KIND == TILE_F16) {
        acc[0] += codes[0];
        acc[1] += codes[1];
    } else {
        const float2 low = __half22float2(as_half2(piece.scales.x)), high = __half22float2(as_half2(piece.scales.y));
        acc[0] = fmaf(low.x, codes[0], fmaf(low.y, sum, acc[0]));
        acc[1] = fmaf(high.x, codes[1], fmaf(high.y, sum, acc[1]));
    }
}
#endif

/* A cluster per row. Blocks have tile rows in turn, `parts` of them the same ones, and their warps groups of columns in
 * turn. The first block adds their sums up and chooses. */
template <int KIND>
__global__ void __launch_bounds__(ROUTER_BLOCK) choose_kernel(const __grid_constant__ MixtureRouter p, int parts) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) float xs[]; /* the row; then what blocks have summed: [part][tile row][16] */
    __shared__ float sums[ROUTER_WARPS][TILE_ROWS], reduced[ROUTER_WARPS];
    __shared__ Choice choice;
    constexpr int AHEAD = 2;
    let_next_begin();
    cluster_arrive();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int rank = (int)cluster_rank(), blocks = gridDim.x / parts, part = rank / blocks, groups = p.weight.groups;
    const int own = (p.weight.rows + TILE_ROWS - 1) / TILE_ROWS, all = own + (p.shared.rows > 0);
    const int begin = part * ROUTER_WARPS + warp, step = parts * ROUTER_WARPS;
    float *found = xs + groups * TILE_COLS;
    Piece<KIND> piece[AHEAD];
    const auto take = [&](int tile_row, int group) {
        if (tile_row >= all) return;
        const Tiles &w = tile_row < own ? p.weight : p.shared;
        const int row = tile_row < own ? tile_row : 0;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (group + i * step < groups)
                piece_load(piece[i], w.data + ((int64_t)row * groups + group + i * step) * w.bytes, lane,
                    scale_offset<KIND>(lane, w.subs));
    };
    take(rank % blocks, begin);
    /* What ends a sum: a row of the router's or of the shared expert's. */
    float factor = 0, bias = 0;
    const auto finish_take = [&](int i) {
        const bool shared = i >= own * TILE_ROWS;
        const Tiles &w = shared ? p.shared : p.weight;
        const int row = shared ? i - own * TILE_ROWS : i;
        factor = row < w.rows ? __ldg(w.factors + row / TILE_ROWS) : 0;
        bias = w.bias && row < w.rows ? __ldg(w.bias + row) : 0;
    };
    const bool finishes = rank == 0 && threadIdx.x < BLOCK;
    if (finishes && threadIdx.x < all * TILE_ROWS) finish_take(threadIdx.x);
    router_row(p, xs, reduced, [] { wait_for_previous(); });
    cluster_wait(); /* all have begun */
    __syncthreads();
    for (int tile_row = rank % blocks; tile_row < all; tile_row += blocks) {
        float acc[2] = {0, 0};
        for (int group = begin; group < groups; group += AHEAD * step) {
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (group + i * step < groups)
                    router_multiply<KIND>(acc, piece[i], xs + (group + i * step) * TILE_COLS + 16 * t);
            if (group + AHEAD * step < groups)
                take(tile_row, group + AHEAD * step);
            else
                take(tile_row + blocks, begin);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            acc[i] += __shfl_xor_sync(~0u, acc[i], 1);
            acc[i] += __shfl_xor_sync(~0u, acc[i], 2);
            if (t == 0) sums[warp][g + 8 * i] = acc[i];
        }
        __syncthreads();
        if (threadIdx.x < TILE_ROWS) {
            float sum = sums[0][threadIdx.x];
#pragma unroll
            for (int i = 1; i < ROUTER_WARPS; i++) sum += sums[i][threadIdx.x];
            cluster_store(cluster_address(found + (part * all + tile_row) * TILE_ROWS + threadIdx.x, 0), sum);
        }
        if (tile_row + blocks < all) __syncthreads();
    }
    cluster_arrive();
    cluster_wait();
    if (threadIdx.x >= BLOCK) {
        for (int first = 8 * (rank + (int)gridDim.x * (warp - WARPS)); first < groups; first += 8 * (int)gridDim.x * WARPS)
            router_leave(p, xs, first);
        return;
    }
    if (!finishes) return;
    for (int i = threadIdx.x; i < all * TILE_ROWS; i += BLOCK) {
        if (i >= BLOCK) finish_take(i);
        const bool shared = i >= own * TILE_ROWS;
        const Tiles &w = shared ? p.shared : p.weight;
        const int row = shared ? i - own * TILE_ROWS : i;
        if (row >= w.rows) continue;
        float sum = found[i];
        for (int k = 1; k < parts; k++) sum += found[k * all * TILE_ROWS + i];
        (shared ? choice.shared : choice.score)[row] = product_sum(sum, 1, factor, w.bias != nullptr, bias);
    }
    choose(p.route, choice);
    const int slots = p.route.used + p.route.shared;
    if (threadIdx.x < slots) {
        p.route.index[(int64_t)blockIdx.y * slots + threadIdx.x] = choice.index[threadIdx.x];
        p.route.weight[(int64_t)blockIdx.y * slots + threadIdx.x] = choice.weight[threadIdx.x];
    }
#endif
}

struct Choose {
    cudaStream_t stream;
    const MixtureRouter *router;
    template <int KIND> cudaError_t operator()() const {
        const MixtureRouter &p = *router;
        const int tile_rows = (p.weight.rows + TILE_ROWS - 1) / TILE_ROWS + (p.shared.rows > 0);
        int blocks = 1;
        while (blocks < tile_rows && blocks < ROUTER_BLOCKS) blocks *= 2;
        const int parts = ROUTER_BLOCKS / blocks;
        const size_t bytes = ((size_t)p.weight.groups * TILE_COLS + parts * tile_rows * TILE_ROWS) * sizeof(float);
        const cudaError_t error =
            cudaFuncSetAttribute(choose_kernel<KIND>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        if (error) return error;
        return launch_clusters(
            stream, choose_kernel<KIND>, dim3(ROUTER_BLOCKS, p.rows), ROUTER_BLOCK, bytes, ROUTER_BLOCKS, p, parts);
    }
};
extern "C" cudaError_t mixture_choose(cudaStream_t stream, const MixtureRouter *router) {
    return with_kind(router->weight.kind, Choose{stream, router});
}

/* ---- products ---- */

enum { MULTIPLIERS = WARPS, ORDERING = WARPS, PRODUCT_BLOCK = 32 * (WARPS + 1), SLOTS_MAX = 16 };
enum { UNIT_ROWS = 4 /* tile rows: a group of the next product's columns */, SUM_STRIDE = 72 };

struct Slots {
    int count, bytes;
};
/* Tiles that a slot has room for: a round of a tile row. */
__host__ __device__ __forceinline__ int slot_tiles(int groups) {
    const int all = SLICES * slice_run(groups);
    return all < groups ? all : groups;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* Brings what is read of banks later near; none of it changes. */
__device__ __forceinline__ void banks_touch(const Tiles *bank, int experts) {
    for (int i = threadIdx.x; i * 128 < experts * (int)sizeof(Tiles); i += PRODUCT_BLOCK) {
        [[maybe_unused]] uint32_t unused;
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(unused) : "l"((const uint8_t *)bank + i * 128));
    }
}

__device__ __forceinline__ void slots_make(const Slots &slots, uint32_t full, uint32_t empty) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < slots.count; i++) {
            barrier_make(full + 8 * i, 1);
            barrier_make(empty + 8 * i, MULTIPLIERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}

/* Rounds of one or two tile rows, side by side, into slots. One thread. */
__device__ __forceinline__ void rows_order(const Tiles &one, const Tiles &two, int first, int second, const Slots &slots,
    Turn &turn, uint32_t memory, uint32_t full, uint32_t empty, uint64_t policy) {
    const int all = SLICES * slice_run(one.groups);
    const uint8_t *from[2] = {one.data + (int64_t)first * one.groups * one.bytes,
        second < 0 ? nullptr : two.data + (int64_t)second * one.groups * one.bytes};
#pragma unroll 1
    for (int at = 0; at < one.groups; at += all) {
        const uint32_t bytes = min(all, one.groups - at) * one.bytes;
#pragma unroll 1
        for (int i = 0; i < 2; i++) {
            const uint8_t *tiles = i ? from[1] : from[0];
            if (!tiles) continue;
            barrier_wait(empty + 8 * turn.at, turn.phase ^ 1);
            barrier_expect(full + 8 * turn.at, bytes);
            copy_bulk(memory + turn.at * slots.bytes, tiles + (int64_t)at * one.bytes, bytes, full + 8 * turn.at, policy);
            turn.next(slots.count);
        }
    }
}

/* Where a lane finds inputs: x[n] of the member and plane that its column of B is, terms[n] of the member whose sums it
 * gets. */
template <int PARTS> struct Inputs {
    const uint8_t *x[PARTS], *terms[PARTS];
};

/* COUNT neighbouring tiles of two tile rows times the inputs of 4 · PARTS members; APART: the second row's are others, so
 * many bytes further on. */
template <int KIND, int SUBS, int PARTS, bool APART, int COUNT>
__device__ __forceinline__ void tiles_add(float acc[2][PARTS][2], const uint8_t *one, const uint8_t *two, int bytes,
    const Inputs<PARTS> &inputs, int at, int apart) {
    constexpr int ROWS = 2, OWN = APART ? 2 : 1;
    const int lane = threadIdx.x % 32, t = lane % 4;
    Piece<KIND> piece[COUNT][ROWS];
    uint2 scales[COUNT][ROWS][SUBS];
    uint4 b[COUNT][OWN][PARTS];
    float4 term[COUNT][OWN][PARTS];
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const uint8_t *tile = (r ? two : one) + u * bytes;
            const int from = Kind<KIND>::CODE_BYTES + lane / 4 * 8;
            piece_take(piece[u][r], tile, lane, from);
            scales[u][r][0] = piece[u][r].scales;
            if constexpr (SUBS == 2) scales[u][r][1] = *(const uint2 *)(tile + from + 64);
        }
#pragma unroll
        for (int r = 0; r < OWN; r++)
#pragma unroll
            for (int n = 0; n < PARTS; n++) {
                const int offset = at + u * RECORD + r * apart;
                b[u][r][n] = *(const uint4 *)(inputs.x[n] + offset);
                if constexpr (SUBS == 2) {
                    term[u][r][n] = *(const float4 *)(inputs.terms[n] + offset);
                } else {
                    const float2 v = *(const float2 *)(inputs.terms[n] + offset + 8);
                    term[u][r][n].z = v.x, term[u][r][n].w = v.y;
                }
            }
    }
    int c[COUNT][ROWS][PARTS][SUBS][4] = {};
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int u = 0; u < COUNT; u++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                uint32_t a[4];
                integer_codes<KIND>(piece[u][r], 2 * h, a);
                integer_codes<KIND>(piece[u][r], 2 * h + 1, a + 2);
#pragma unroll
                for (int n = 0; n < PARTS; n++)
#pragma unroll
                    for (int sub = 0; sub < SUBS; sub++) {
                        const bool on = SUBS == 1 || t / 2 == sub;
                        const uint4 &v = b[u][APART ? r : 0][n];
                        integer_multiply(c[u][r][n][sub], a, on ? (h ? v.z : v.x) : 0, on ? (h ? v.w : v.y) : 0);
                    }
            }
#pragma unroll
    for (int u = 0; u < COUNT; u++)
#pragma unroll
        for (int sub = 0; sub < SUBS; sub++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float2 low = integer_pair<KIND>(scales[u][r][sub].x), high = integer_pair<KIND>(scales[u][r][sub].y);
#pragma unroll
                for (int n = 0; n < PARTS; n++) {
                    const float4 &v = term[u][APART ? r : 0][n];
                    const float offset = SUBS == 1 ? v.w : sub ? v.y : v.x;
                    const int *s = c[u][r][n][sub];
                    acc[r][n][0] = integer_term(acc[r][n][0], low, v.z, offset, s[0], s[1]);
                    acc[r][n][1] = integer_term(acc[r][n][1], high, v.z, offset, s[2], s[3]);
                }
            }
}
template <int KIND, int SUBS, int PARTS, bool APART>
__device__ __forceinline__ void run_add(float acc[2][PARTS][2], const uint8_t *one, const uint8_t *two, int bytes, int count,
    const Inputs<PARTS> &inputs, int at, int apart) {
    constexpr int MOST = PARTS * SUBS * Kind<KIND>::WORDS > 4 ? 1 : 2;
    int i = 0;
#pragma unroll 1
    for (; i + MOST <= count; i += MOST)
        tiles_add<KIND, SUBS, PARTS, APART, MOST>(
            acc, one + i * bytes, two + i * bytes, bytes, inputs, at + i * RECORD, apart);
    if constexpr (MOST > 1)
        if (i < count)
            tiles_add<KIND, SUBS, PARTS, APART, 1>(
                acc, one + i * bytes, two + i * bytes, bytes, inputs, at + i * RECORD, apart);
}

/* Rounds of two tile rows, or one and nothing sensible, times the inputs: this warp's slice. */
template <int KIND, int PARTS, bool APART>
__device__ __forceinline__ void rows_add(float acc[2][PARTS][2], const Tiles &w, bool both, const Slots &slots, Turn &turn,
    const uint8_t *memory, uint32_t full, uint32_t empty, const Inputs<PARTS> &inputs, int apart) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, run = slice_run(w.groups), all = SLICES * run;
#pragma unroll 1
    for (int first = 0; first < w.groups; first += all) {
        const int at = first + warp * run, count = min(run, w.groups - at), offset = warp * run * w.bytes;
        const int here = turn.at;
        barrier_wait(full + 8 * here, turn.phase);
        turn.next(slots.count);
        const int other = both ? turn.at : here;
        if (both) {
            barrier_wait(full + 8 * other, turn.phase);
            turn.next(slots.count);
        }
        const uint8_t *one = memory + here * slots.bytes + offset, *two = memory + other * slots.bytes + offset;
        if (w.subs == 1)
            run_add<KIND, 1, PARTS, APART>(acc, one, two, w.bytes, count, inputs, at * RECORD, apart);
        else
            run_add<KIND, 2, PARTS, APART>(acc, one, two, w.bytes, count, inputs, at * RECORD, apart);
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(empty + 8 * here);
            if (both) barrier_arrive(empty + 8 * other);
        }
    }
}

/* Of some rows of inputs this warp's slices, from(i) to `to`, rows `stride` apart. */
template <class From>
__device__ __forceinline__ void inputs_take(uint8_t *to, int stride, int rows, int groups, const From &from) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, run = slice_run(groups), all = SLICES * run;
    constexpr int PIECES = RECORD / 16;
    for (int first = warp * run; first < groups; first += all) {
        const int pieces = min(run, groups - first) * PIECES;
#pragma unroll 4
        for (int i = lane; i < rows * pieces; i += 32) {
            const int row = i / pieces, at = first * RECORD + i % pieces * 16;
            *(uint4 *)(to + row * stride + at) = __ldcg((const uint4 *)(from(row) + at));
        }
    }
    __syncwarp();
}

/* Sums of a row of a unit over the slices, in order. */
__device__ __forceinline__ float2 slices_add(const float *from, int stride) {
    float2 sum = *(const float2 *)from;
#pragma unroll
    for (int s = 1; s < SLICES; s++) {
        const float2 v = *(const float2 *)(from + s * stride);
        sum.x += v.x, sum.y += v.y;
    }
    return sum;
}

/* A group's 64 columns, two neighbours of each lane, as inputs of the next product. The numbers are integer_part()'s. */
__device__ __forceinline__ void pair_leave(uint8_t *to, float one, float two) {
    const int lane = threadIdx.x % 32;
    const float m = __uint_as_float(__reduce_max_sync(~0u, max(__float_as_uint(one) & 0x7fffffff, __float_as_uint(two) & 0x7fffffff)));
    const bool some = m >= 0x1p-80f;
    const float up = some ? __fdividef(32512.0f, m) : 0;
    const float step = m < 0x1p126f ? (some ? m * (1 / 32512.0f) : 0) : __uint_as_float(0x7fffffff);
    const uint32_t q[2] = {__float_as_uint(fmaf(one, up, 12582912.0f)), __float_as_uint(fmaf(two, up, 12582912.0f))};
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) sum += (int)q[i] - 0x4b400000;
    const int first = __reduce_add_sync(~0u, lane < 16 ? sum : 0), second = __reduce_add_sync(~0u, lane < 16 ? 0 : sum);
    /* Bytes 0 and 2 of a word are an even lane's, 1 and 3 the next one's. */
    const int up_bits = lane % 2 * 8;
    uint32_t high = (__byte_perm(q[0] + 128, q[1] + 128, 0x4541) & 0x00ff00ff) << up_bits,
             low = (__byte_perm(q[0], q[1], 0x0400) & 0x00ff00ff) << up_bits;
    high |= __shfl_xor_sync(~0u, high, 1);
    low |= __shfl_xor_sync(~0u, low, 1);
    *(uint32_t *)(to + (lane % 2 ? LOW_AT : 0) + lane / 2 * 4) = lane % 2 ? low : high;
    if (lane == 0) *(float4 *)(to + TERMS_AT) = terms_of(step, first, second);
}
#endif

/* A block takes neighbouring units, each four tile rows of one chunk's matrix, or of its gate and up in turn; its eight
 * warps are the slices of the sum, one more orders copies. MOST: members of a chunk, at most. */
template <int KIND, bool GLU, int MOST>
__global__ void __launch_bounds__(PRODUCT_BLOCK, 2)
    product_kernel(const __grid_constant__ MixtureProduct p, const __grid_constant__ Slots slots) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    constexpr int GATED = GLU ? 2 : 1, PARTS = (MOST + 3) / 4, SUM_ROWS = SLICES * MOST, SUMS = SUM_ROWS * SUM_STRIDE;
    extern __shared__ __align__(128) uint8_t memory[]; /* slots, inputs, sums */
    __shared__ uint64_t barriers[2 * SLOTS_MAX];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t full = shared_address(barriers), empty = full + 8 * SLOTS_MAX;
    slots_make(slots, full, empty);
    for (int part = 0; part < GATED; part++) banks_touch(p.bank[part], p.experts);
    wait_for_previous();
    let_next_begin(); /* only now: mixture_sum() reads the choice before this kernel has ended */
    const int blocks = ((p.most.rows + TILE_ROWS - 1) / TILE_ROWS + UNIT_ROWS - 1) / UNIT_ROWS; /* units of a chunk */
    const int units = (p.chunks ? __ldcg(p.chunks) : p.pairs) * blocks, each = (units + (int)gridDim.x - 1) / (int)gridDim.x;
    const int begin = blockIdx.x * each, end = min(units, begin + each);
    const auto expert_of = [&](int chunk) {
        return __ldcg(p.chunks ? p.chunks + CHUNKS_AT + CHUNK_INTS * chunk : p.index + chunk);
    };
    Turn turn;
    if (warp == ORDERING) {
        if (lane) return;
        const uint64_t policy = policy_first();
        Tiles w[GATED];
        for (int unit = begin, now = -1; unit < end; unit++) {
            if (unit / blocks != now) {
                now = unit / blocks;
                const int expert = expert_of(now);
#pragma unroll
                for (int part = 0; part < GATED; part++) w[part] = p.bank[part][expert];
            }
            const int first = unit % blocks * UNIT_ROWS;
            const int rows = min((int)UNIT_ROWS, (w[0].rows + TILE_ROWS - 1) / TILE_ROWS - first);
#pragma unroll 1
            for (int i = 0; i < rows; i += GLU ? 1 : 2)
                rows_order(w[0], w[GATED - 1], first + i, GLU ? first + i : i + 1 < rows ? first + i + 1 : -1, slots, turn,
                    shared_address(memory), full, empty, policy);
        }
        return;
    }
    const int stride = (int)inputs_bytes(p.most.groups);
    uint8_t *inputs = memory + slots.count * slots.bytes;
    float *sums = (float *)(inputs + MOST * stride);
    Tiles w[GATED];
    int count = 1, pair = 0;
    Inputs<PARTS> own;
    for (int unit = begin, now = -1; unit < end; unit++) {
        if (unit / blocks != now) {
            now = unit / blocks;
            const int expert = expert_of(now);
            pair = now;
            if (MOST > 1 && p.chunks) {
                const int32_t *from = p.chunks + CHUNKS_AT + CHUNK_INTS * now;
                count = __ldcg(from + 2);
                if (lane < count) pair = __ldcg(p.chunks + CHUNKS_AT + CHUNK_INTS * p.pairs + __ldcg(from + 1) + lane);
            }
#pragma unroll
            for (int part = 0; part < GATED; part++) w[part] = p.bank[part][expert];
            int row[MOST];
#pragma unroll
            for (int i = 0; i < MOST; i++) row[i] = __shfl_sync(~0u, pair, i) / p.each;
            inputs_take(inputs, stride, count, w[0].groups, [&](int i) {
                int r = row[0];
#pragma unroll
                for (int k = 1; k < MOST; k++) r = i == k ? row[k] : r;
                return p.x + (int64_t)r * stride;
            });
#pragma unroll
            for (int n = 0; n < PARTS; n++) {
                own.x[n] = inputs + min(4 * n + g / 2, count - 1) * stride + g % 2 * LOW_AT + t * 16;
                own.terms[n] = inputs + min(4 * n + t, count - 1) * stride + TERMS_AT;
            }
        }
        const int first = unit % blocks * UNIT_ROWS, mine = first * TILE_ROWS + 2 * lane;
        const int rows = min((int)UNIT_ROWS, (w[0].rows + TILE_ROWS - 1) / TILE_ROWS - first);
        if (rows <= 0) continue;
        /* What finishes a member, which a warp does. */
        float factor[GATED] = {};
        float2 bias[GATED] = {};
        if (warp < count)
#pragma unroll
            for (int part = 0; part < GATED; part++) {
                if (lane / 8 < rows) factor[part] = __ldg(w[part].factors + first + lane / 8);
                if (w[part].bias && mine < w[0].rows) bias[part].x = __ldg(w[part].bias + mine);
                if (w[part].bias && mine + 1 < w[0].rows) bias[part].y = __ldg(w[part].bias + mine + 1);
            }
#pragma unroll 1
        for (int i = 0; i < rows; i += GLU ? 1 : 2) {
            float acc[2][PARTS][2] = {};
            rows_add<KIND, PARTS, false>(acc, w[0], GLU || i + 1 < rows, slots, turn, memory, full, empty, own, 0);
            float *to = sums + warp * MOST * SUM_STRIDE + i * TILE_ROWS + g;
#pragma unroll
            for (int r = 0; r < 2; r++, to += GLU ? SUMS : TILE_ROWS)
#pragma unroll
                for (int n = 0; n < PARTS; n++)
                    if (4 * n + t < count) {
                        to[(4 * n + t) * SUM_STRIDE] = acc[r][n][0];
                        to[(4 * n + t) * SUM_STRIDE + 8] = acc[r][n][1];
                    }
        }
        block_sync();
        if (warp < count) {
            const int to = __shfl_sync(~0u, pair, warp);
            float2 v[GATED];
#pragma unroll
            for (int part = 0; part < GATED; part++) {
                v[part] = slices_add(sums + part * SUMS + warp * SUM_STRIDE + 2 * lane, MOST * SUM_STRIDE);
                const bool biased = w[part].bias != nullptr;
                v[part].x = product_sum(v[part].x, 1, factor[part], biased, bias[part].x);
                v[part].y = product_sum(v[part].y, 1, factor[part], biased, bias[part].y);
            }
            const bool one = mine < w[0].rows, two = mine + 1 < w[0].rows;
            if constexpr (GLU) {
                const int64_t at = (int64_t)to * blocks + first / UNIT_ROWS;
                pair_leave(p.inputs + at * RECORD, one ? gated_usually(p.activation, v[0].x, v[1].x) : 0,
                    two ? gated_usually(p.activation, v[0].y, v[1].y) : 0);
            } else {
                float *out = p.out + (int64_t)to * p.most.rows + mine;
                if (one) out[0] = v[0].x;
                if (two) out[1] = v[0].y;
            }
        }
        if (unit + 1 < end) block_sync(); /* the sums' place is free */
    }
#endif
}

/* ---- one row's sum ---- */

/* What follows a sum: a row of an expert's matrix. */
struct Finish {
    int64_t row;
    int tile_row, at;
    float weight, factor, bias;
    bool biased;
    __device__ __forceinline__ void take(const MixtureSum &p, int i) {
        const Tiles &w = p.bank[__ldcg(p.index + row * p.used + i)];
        weight = load(p.weight + row * p.used + i);
        factor = __ldg(w.factors + tile_row);
        biased = w.bias != nullptr;
        bias = biased && at < w.rows ? __ldg(w.bias + at) : 0;
    }
};

/* A block has a tile row of all matrices that a row uses. */
template <int KIND>
__global__ void __launch_bounds__(PRODUCT_BLOCK, 2)
    sum_kernel(const __grid_constant__ MixtureSum p, const __grid_constant__ Slots slots) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t memory[]; /* slots, inputs, sums of each expert's slices, their results */
    __shared__ uint64_t barriers[2 * SLOTS_MAX];
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t full = shared_address(barriers), empty = full + 8 * SLOTS_MAX;
    const int tile_row = blockIdx.x;
    const int64_t row = blockIdx.y;
    /* The choice was there before the kernel before began to compute. */
    Tiles own = {};
    if (lane < p.used) own = p.bank[__ldcg(p.index + row * p.used + lane)];
    slots_make(slots, full, empty);
    const auto tiles_of = [&](int i) {
        Tiles w = p.most;
        w.data = (const uint8_t *)__shfl_sync(~0u, (unsigned long long)own.data, i);
        w.groups = __shfl_sync(~0u, own.groups, i);
        return w;
    };
    /* Two neighbours of the same width are multiplied side by side. */
    const auto both = [&](int i) {
        const int next = __shfl_sync(~0u, own.groups, min(i + 1, p.used - 1));
        return i + 1 < p.used && next == __shfl_sync(~0u, own.groups, i);
    };
    Turn turn;
    if (warp == ORDERING) {
        const uint64_t policy = policy_first();
#pragma unroll 1
        for (int i = 0; i < p.used;) {
            const bool two = both(i);
            const Tiles w = tiles_of(i), other = tiles_of(two ? i + 1 : i);
            if (lane == 0)
                rows_order(w, other, tile_row, two ? tile_row : -1, slots, turn, shared_address(memory), full, empty, policy);
            i += 1 + two;
        }
        __syncwarp();
        wait_for_previous();
        return;
    }
    const int stride = (int)inputs_bytes(p.most.groups);
    uint8_t *inputs = memory + slots.count * slots.bytes;
    float *sums = (float *)(inputs + p.used * stride), *results = sums + p.used * SLICES * TILE_ROWS;
    /* What ends the sum: nothing of it changes any more. */
    const int r = threadIdx.x % TILE_ROWS, first = threadIdx.x / TILE_ROWS, at = tile_row * TILE_ROWS + r;
    const int64_t to = row * p.most.rows + at;
    Finish finish = {row, tile_row, at};
    if (first < p.used) finish.take(p, first);
    const float old = p.residual && first == 0 && at < p.most.rows ? load(p.residual + to) : 0;
    wait_for_previous();
    {
        constexpr int BATCH = 5; /* loads under way together */
        const int pieces = p.used * stride / 16;
        const uint4 *from = (const uint4 *)(p.x + row * p.used * stride);
        for (int at = threadIdx.x; at < pieces; at += BATCH * BLOCK) {
            uint4 v[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                if (at + i * BLOCK < pieces) v[i] = __ldcg(from + at + i * BLOCK);
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                if (at + i * BLOCK < pieces) ((uint4 *)inputs)[at + i * BLOCK] = v[i];
        }
    }
    block_sync();
#pragma unroll 1
    for (int i = 0; i < p.used;) {
        const bool two = both(i);
        const Tiles w = tiles_of(i);
        float acc[2][1][2] = {};
        const Inputs<1> own_inputs = {
            {inputs + i * stride + g % 2 * LOW_AT + t * 16}, {inputs + i * stride + TERMS_AT}};
        rows_add<KIND, 1, true>(acc, w, two, slots, turn, memory, full, empty, own_inputs, two ? stride : 0);
#pragma unroll
        for (int r = 0; r < 2; r++, i++) {
            if (r && !two) break;
            if (t == 0) {
                sums[(i * SLICES + warp) * TILE_ROWS + g] = acc[r][0][0];
                sums[(i * SLICES + warp) * TILE_ROWS + g + 8] = acc[r][0][1];
            }
        }
    }
    block_sync();
    for (int i = first; i < p.used; i += BLOCK / TILE_ROWS) {
        const float *from = sums + i * SLICES * TILE_ROWS + r;
        float sum = from[0];
#pragma unroll
        for (int s = 1; s < SLICES; s++) sum += from[s * TILE_ROWS];
        if (i != first) finish.take(p, i);
        results[i * TILE_ROWS + r] = finish.weight * product_sum(sum, 1, finish.factor, finish.biased, finish.bias);
    }
    block_sync();
    if (threadIdx.x >= TILE_ROWS || at >= p.most.rows) return;
    float sum = 0;
    for (int i = 0; i < p.used; i++) sum += results[i * TILE_ROWS + r];
    if (p.residual)
        p.residual[to] = old + p.scale * sum;
    else
        p.out[to] = sum;
#endif
}

__global__ void __launch_bounds__(BLOCK)
    mixture_combine_kernel(int used, int64_t width, const float *y, const float *weight, float *out, float *residual, float scale) {
    let_next_begin();
    wait_for_previous();
    const int64_t row = blockIdx.y;
    for (int64_t i = blockIdx.x * BLOCK + threadIdx.x; i < width; i += gridDim.x * BLOCK) {
        float sum = 0;
        for (int k = 0; k < used; k++) sum += load(weight + row * used + k) * load(y + (row * used + k) * width + i);
        const int64_t to = row * width + i;
        if (residual)
            residual[to] = load(residual + to) + scale * sum;
        else
            out[to] = sum;
    }
}
extern "C" cudaError_t mixture_combine(cudaStream_t stream, int rows, int used, int64_t width, const float *y,
    const float *weight, float *out, float *residual, float scale) {
    const dim3 grid((unsigned)((width + BLOCK - 1) / BLOCK), rows);
    return launch(stream, mixture_combine_kernel, grid, BLOCK, 0, used, width, y, weight, out, residual, scale);
}

/* ---- launching ---- */

/* Room for slots beside what else a block keeps; few: of half a multiprocessor, so that the next kernel's blocks, or
 * another one of these, find room beside it. False: not even two. */
static bool slots_of(const Tiles &most, int pieces, int besides, int shared_bytes, bool half, Slots *slots) {
    enum { FIXED = 1 << 10 };
    slots->bytes = slot_tiles(most.groups) * most.bytes;
    const int left = (half ? shared_bytes / 2 - FIXED : shared_bytes) - FIXED - besides;
    slots->count = left > 0 ? left / slots->bytes : 0;
    if (slots->count > pieces) slots->count = pieces;
    if (slots->count > SLOTS_MAX) slots->count = SLOTS_MAX;
    return slots->count >= (pieces < 2 ? pieces : 2);
}
static int pieces_of(const Tiles &most, int rows) { return rows * slice_rounds(most.groups); }

static int product_besides(const Tiles &most, int members, bool gated) {
    return members * ((int)inputs_bytes(most.groups) + (gated ? 2 : 1) * SLICES * SUM_STRIDE * (int)sizeof(float));
}

template <class Kernel> static cudaError_t allow(Kernel kernel, size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

struct ProductLaunch {
    cudaStream_t stream;
    const MixtureProduct *product;
    template <int KIND, bool GLU, int MOST> cudaError_t go() const {
        const MixtureProduct &p = *product;
        const int rows = UNIT_ROWS * (GLU ? 2 : 1), besides = product_besides(p.most, MOST, GLU);
        Slots slots;
        bool half = slots_of(p.most, pieces_of(p.most, rows), besides, p.shared_bytes, true, &slots);
        if (!half && !slots_of(p.most, pieces_of(p.most, rows), besides, p.shared_bytes, false, &slots))
            return cudaErrorInvalidValue; /* mixture_fits() knows */
        const size_t bytes = (size_t)slots.count * slots.bytes + besides;
        const auto kernel = product_kernel<KIND, GLU, MOST>;
        const cudaError_t error = allow(kernel, bytes);
        if (error) return error;
        const int blocks = ((p.most.rows + TILE_ROWS - 1) / TILE_ROWS + UNIT_ROWS - 1) / UNIT_ROWS;
        /* Pairs alone: a unit each, which is what a row's pairs are on most devices anyway. */
        const int units = p.pairs * blocks, most = p.chunks ? (half ? 2 : 1) * p.multiprocessors : units;
        return launch(stream, kernel, dim3(units < most ? units : most), PRODUCT_BLOCK, bytes, p, slots);
    }
    template <int KIND> cudaError_t operator()() const {
        if constexpr (integer_kind(KIND)) {
            if (!product->bank[1]) return go<KIND, false, FEW_ROWS_MAX>();
            return product->chunks ? go<KIND, true, FEW_ROWS_MAX>() : go<KIND, true, 1>();
        } else {
            return cudaErrorInvalidValue;
        }
    }
};
extern "C" cudaError_t mixture_product(cudaStream_t stream, const MixtureProduct *product) {
    return with_kind(product->most.kind, ProductLaunch{stream, product});
}

extern "C" int mixture_round(int groups) { return slot_tiles(groups); }

/* Members are as many as there may be: it must not matter how many rows there are. */
extern "C" int mixture_fits(const Tiles *most, int gated, int shared_bytes) {
    Slots slots;
    return integer_fits(*most) &&
        slots_of(*most, 2, product_besides(*most, FEW_ROWS_MAX, gated), shared_bytes, false, &slots);
}

static int sum_besides(const Tiles &most, int used) {
    return used * ((int)inputs_bytes(most.groups) + (SLICES + 1) * TILE_ROWS * (int)sizeof(float));
}
struct SumLaunch {
    cudaStream_t stream;
    const MixtureSum *sum;
    template <int KIND> cudaError_t operator()() const {
        if constexpr (integer_kind(KIND)) {
            const MixtureSum &p = *sum;
            const int pieces = pieces_of(p.most, p.used), besides = sum_besides(p.most, p.used);
            Slots slots;
            if (!slots_of(p.most, pieces, besides, p.shared_bytes, true, &slots) &&
                !slots_of(p.most, pieces, besides, p.shared_bytes, false, &slots))
                return cudaErrorInvalidValue;
            const size_t bytes = (size_t)slots.count * slots.bytes + besides;
            const cudaError_t error = allow(sum_kernel<KIND>, bytes);
            if (error) return error;
            return launch(stream, sum_kernel<KIND>, dim3((p.most.rows + TILE_ROWS - 1) / TILE_ROWS, p.rows), PRODUCT_BLOCK, bytes,
                p, slots);
        } else {
            return cudaErrorInvalidValue;
        }
    }
};
extern "C" int mixture_sum_fits(const MixtureSum *sum) {
    Slots slots;
    return sum->used <= 32 &&
        slots_of(sum->most, 2, sum_besides(sum->most, sum->used), sum->shared_bytes, false, &slots);
}
extern "C" cudaError_t mixture_sum(cudaStream_t stream, const MixtureSum *sum) {
    return with_kind(sum->most.kind, SumLaunch{stream, sum});
}
