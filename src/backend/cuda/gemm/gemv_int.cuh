/* Shared by gemv_int_row.cu and gemv_int.cu: the layout of shared memory, tiles times inputs, sums over slices, the
 * length of the ring. */
#pragma once
#include "backend/cuda/gemm/gemm_int.cuh"
#include "backend/cuda/gemm/ring.cuh"

enum { MULTIPLIERS = WARPS, ORDERING = WARPS, FINISHING, ALL_WARPS, SUM_BUFFERS = 4, CHAIN_ROWS = 4 };

enum { STAGE_FOURS = 8 * TILE_COLS / 4, STAGE_ROUNDS = 4 }; /* fours of a warp's share of a round; most rounds */
__host__ __device__ __forceinline__ int stage_rounds(int rounds) {
    return rounds < STAGE_ROUNDS ? rounds : STAGE_ROUNDS;
}
enum { FIXED = 1 << 10 }; /* upper bound of a block's other shared memory */
__host__ __device__ __forceinline__ constexpr int chains_of(int rows) { return rows > CHAIN_ROWS ? 2 : 1; }
template <int N> struct Count { static constexpr int value = N; };

/* Inputs in shared memory: planes [row][group][high, low][64]; behind the warps' areas numbers [row][group] of BYTES
 * bytes: unit and the offsets of the sub-groups. */
template <int SUBS> struct Numbers { static constexpr int BYTES = SUBS == 1 ? 8 : 16; };

/* Floats of shared memory private to a multiplying warp: first a buffer for the inputs that it prepares, then its sums
 * [buffer][part][row of inputs][16]. rows: the kernel's. */
__host__ __device__ __forceinline__ int area_floats(int groups, int parts, int rows) {
    const int stage = 4 * STAGE_FOURS * stage_rounds(slice_rounds(groups)),
              sums = SUM_BUFFERS * parts * rows * TILE_ROWS;
    return stage > sums ? stage : sums;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
template <int KIND, int SUBS> __host__ __device__ constexpr int tile_bytes() {
    return Kind<KIND>::CODE_BYTES + SUBS * 64;
}

/* Multiplies COUNT neighbouring tiles of a tile row, or of two with the same inputs, some at a time. x, numbers: the
 * lane's. */
template <int KIND, int SUBS, int CHAINS, int SIDES, int COUNT>
__device__ __forceinline__ void integer_tiles(float sums[SIDES][CHAINS][2], const uint8_t *const tile[SIDES],
    int scales, const uint8_t *const x[CHAINS], const uint8_t *const numbers[CHAINS]) {
    constexpr bool LARGE = SUBS > 1 || CHAINS > 1 || Kind<KIND>::WORDS > 4;
    constexpr int MOST = LARGE ? 2 / SIDES
        : SIDES > 1            ? 3
                               : 4,
                  BATCH = COUNT < MOST ? COUNT : MOST, BYTES = Numbers<SUBS>::BYTES, TILE = tile_bytes<KIND, SUBS>();
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int first = 0; first < COUNT; first += BATCH) {
        Piece<KIND> pieces[BATCH][SIDES];
        uint2 others[BATCH][SIDES]; /* scales of the second sub-group */
        uint4 words[BATCH][CHAINS];
        float4 number[BATCH][CHAINS]; /* unit, offsets */
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (first + i >= COUNT) break;
#pragma unroll
            for (int s = 0; s < SIDES; s++) {
                const uint8_t *from = tile[s] + (first + i) * TILE;
                piece_take(pieces[i][s], from, lane, scales);
                if constexpr (SUBS == 2) others[i][s] = *(const uint2 *)(from + scales + 64);
            }
#pragma unroll
            for (int c = 0; c < CHAINS; c++) {
                words[i][c] = *(const uint4 *)(x[c] + (first + i) * 128);
                if constexpr (SUBS == 1) {
                    const float2 v = *(const float2 *)(numbers[c] + (first + i) * BYTES);
                    number[i][c] = make_float4(v.x, v.y, 0, 0);
                } else {
                    number[i][c] = *(const float4 *)(numbers[c] + (first + i) * BYTES);
                }
            }
        }
        int n[BATCH][SIDES][CHAINS][SUBS][4];
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                if (first + i >= COUNT) break;
#pragma unroll
                for (int s = 0; s < SIDES; s++) {
                    uint32_t a[4];
                    integer_codes(pieces[i][s], 2 * half, a);
                    integer_codes(pieces[i][s], 2 * half + 1, a + 2);
#pragma unroll
                    for (int c = 0; c < CHAINS; c++)
#pragma unroll
                        for (int sub = 0; sub < SUBS; sub++) {
                            uint32_t b0 = half ? words[i][c].z : words[i][c].x,
                                     b1 = half ? words[i][c].w : words[i][c].y;
                            if (SUBS == 2 && lane % 4 / 2 != sub) b0 = b1 = 0;
                            if (half == 0)
#pragma unroll
                                for (int k = 0; k < 4; k++) n[i][s][c][sub][k] = 0;
                            integer_multiply(n[i][s][c][sub], a, b0, b1);
                        }
                }
            }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (first + i >= COUNT) break;
#pragma unroll
            for (int s = 0; s < SIDES; s++)
#pragma unroll
                for (int c = 0; c < CHAINS; c++)
#pragma unroll
                    for (int sub = 0; sub < SUBS; sub++) {
                        const uint2 scale = sub ? others[i][s] : pieces[i][s].scales;
                        const float unit = number[i][c].x, offset = sub ? number[i][c].z : number[i][c].y;
                        const int *m = n[i][s][c][sub];
                        float *sum = sums[s][c];
                        sum[0] = integer_term(sum[0], integer_pair<KIND>(scale.x), unit, offset, m[0], m[1]);
                        sum[1] = integer_term(sum[1], integer_pair<KIND>(scale.y), unit, offset, m[2], m[3]);
                    }
        }
    }
}
/* Splits up to eight tiles into batches: fours (twos with two sides), threes, single ones. */
template <int SIDES> __device__ __forceinline__ int deal_of(int count) {
    constexpr int MOST = SIDES > 1 ? 2 : 4;
    count = max(count, 0);
    const int most = count % 3 == 0 ? 0 : count / MOST, threes = (count - MOST * most) / 3;
    return most | threes << 8 | (count - MOST * most - 3 * threes) << 16;
}
/* Uses loops: fetching unrolled code takes longer than its computation. */
template <int KIND, int SUBS, int CHAINS, int SIDES>
__device__ __forceinline__ void integer_run(float sums[SIDES][CHAINS][2], const uint8_t *tile[SIDES], int scales,
    const uint8_t *x[CHAINS], const uint8_t *numbers[CHAINS], int deal) {
    const auto tiles = [&](int times, auto many) {
        constexpr int COUNT = decltype(many)::value;
#pragma unroll 1
        for (; times > 0; times--) {
            integer_tiles<KIND, SUBS, CHAINS, SIDES, COUNT>(sums, tile, scales, x, numbers);
#pragma unroll
            for (int s = 0; s < SIDES; s++) tile[s] += COUNT * tile_bytes<KIND, SUBS>();
#pragma unroll
            for (int c = 0; c < CHAINS; c++) {
                x[c] += COUNT * 128;
                numbers[c] += COUNT * Numbers<SUBS>::BYTES;
            }
        }
    };
    tiles(deal & 255, Count<(SIDES > 1 ? 2 : 4)>());
    tiles(deal >> 8 & 255, Count<3>());
    tiles(deal >> 16, Count<1>());
}

/* sums: the first warp's [row of inputs][16]; the others' are `area` floats apart. */
__device__ __forceinline__ float slices_added(const float *sums, int area, int t) {
    const float *from = sums + t * TILE_ROWS + threadIdx.x % TILE_ROWS;
    float each[SLICES];
#pragma unroll
    for (int s = 0; s < SLICES; s++) each[s] = from[s * area];
    float sum = each[0];
#pragma unroll
    for (int s = 1; s < SLICES; s++) sum += each[s];
    return sum;
}

/* Words of a block's other shared memory: barriers, and a flag that the first warp has its inputs. */
enum { GEMV_WORDS = 2 * SLOTS_MAX + 2 * SUM_BUFFERS + 2 };
struct GemvBarriers {
    uint32_t full, empty, summed, taken, prepared; /* barriers of slots, of buffers of sums, of the inputs */
    volatile int *came;

    __device__ __forceinline__ explicit GemvBarriers(uint64_t *words)
        : full(shared_address(words)), empty(full + 8 * SLOTS_MAX), summed(empty + 8 * SLOTS_MAX),
          taken(summed + 8 * SUM_BUFFERS), prepared(taken + 8 * SUM_BUFFERS),
          came((volatile int *)(words + GEMV_WORDS - 1)) {}
    __device__ __forceinline__ void make(int slots) const {
        if (threadIdx.x == 0) {
            *came = 0;
            for (int i = 0; i < slots; i++) {
                barrier_make(full + 8 * i, 1);
                barrier_make(empty + 8 * i, MULTIPLIERS);
            }
            barrier_make(prepared, MULTIPLIERS);
            for (int i = 0; i < SUM_BUFFERS; i++) {
                barrier_make(summed + 8 * i, MULTIPLIERS);
                barrier_make(taken + 8 * i, 1);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
    }
};
/* The work of the copying warp. */
__device__ __forceinline__ void gemv_order(
    const ProductWork &p, const Ring &ring, const uint8_t *memory, const GemvBarriers &b) {
    if (p.norm.width && slice_rounds(p.groups) > 1) norm_prefetch(p.norm);
    if (threadIdx.x % 32 == 0) ring_order(p, ring, shared_address(memory), b.full, b.empty, b.came);
    __syncwarp();
    wait_for_previous();
}
/* Factors of a unit's matrix, and of the second matrix of a gated unit. */
__device__ __forceinline__ float2 unit_factors(const ProductWork &p, bool glu, int unit) {
    int tile_row;
    const int index = weight_of(p, unit, tile_row);
    return make_float2(__ldg(p.weight[index].factors + tile_row), glu ? __ldg(p.weight[1].factors + tile_row) : 0);
}

/* Σ x² of a row: lanes as warp_sum() adds them, then slices in order. */
__device__ __forceinline__ float squares_added(const float *from) {
    float each[WARPS];
#pragma unroll
    for (int s = 0; s < WARPS; s++) each[s] = from[s * 32 + threadIdx.x % 32];
#pragma unroll
    for (int i = 16; i; i >>= 1)
#pragma unroll
        for (int s = 0; s < WARPS; s++) each[s] += __shfl_xor_sync(~0u, each[s], i);
    float sum = each[0];
#pragma unroll
    for (int s = 1; s < WARPS; s++) sum += each[s];
    return sum;
}

#endif

static inline int parts_of(const ProductWork &w) { return w.mode == PRODUCT_GLU ? 2 : 1; }
/* True if the input is one row in the form that gemv_int_row.cu takes. */
static inline bool is_single(const ProductWork &w) {
    return w.rows == 1 && w.cols % TILE_COLS == 0 && (((uintptr_t)w.x | (uintptr_t)w.norm.weight) & 15) == 0;
}
static inline int besides_of(const ProductWork &w) {
    const int number = w.weight[0].subs == 1 ? Numbers<1>::BYTES : Numbers<2>::BYTES;
    const int rows = is_single(w) ? 1 : CHAIN_ROWS * chains_of(w.rows);
    const int area = area_floats(w.groups, parts_of(w), rows), squares = w.norm.width ? w.rows * WARPS * 32 : 0;
    return w.rows * w.groups * (128 + number) + (MULTIPLIERS * area + squares) * (int)sizeof(float);
}
/* Up to TWOS_SHARE groups of a slice, slots are multiplied in pairs, so that a warp waits less for its loads. The
 * kernel behind large products of one input (a layer's q, k, v) begins late, as the first loads of attention would slow
 * them. */
enum { TWOS_SHARE = 4, LATE_BYTES = 4 << 20 };
/* For one row with this many units per multiprocessor an output matrix has two blocks on each: no other kernel has to
 * begin beside it, and sixteen warps multiply faster than eight. */
enum { TWICE_UNITS = 20 };
/* Blocks that begin one after another, as previous ones end, would gather on the first multiprocessors with room for
 * two, and leave others empty. Requesting more than half of the shared memory keeps them apart. Used for large q, k, v,
 * where attention has few blocks, which fit beside them (unless q, k, v take all of it); and for gated products of
 * short slots, which get no more than that, so that they are resident before the previous product has ended. */
static inline void keep_apart(const ProductWork &w, int besides, int shared_max, Ring &ring) {
    const int least = shared_max / 2 + 2048 - FIXED, slots = (least - besides) / ring.slot_bytes;
    const bool gated = ring.twos && w.mode == PRODUCT_GLU && slots >= 4 && w.room != ROOM_HALF;
    if (!(ring.late && w.room == ROOM_APART) && !gated) return;
    ring.least = least;
    if (gated && slots < ring.slots) ring.slots = slots;
    if (ring.window > ring.slots) ring.window = ring.slots;
}
/* How a kernel is launched. No slots: it does not fit. */
struct GemvShape {
    Ring ring;
    int blocks;
    size_t bytes; /* bytes of dynamic shared memory */
};
static inline GemvShape gemv_shape(const ProductWork &w, int multiprocessors, int shared_max) {
    const int besides = besides_of(w), parts = parts_of(w);
    Ring ring = ring_of(w, parts, besides + FIXED, shared_max / 2 - 2 * FIXED, true);
    const bool twice = w.rows == 1 && w.mode == PRODUCT_STORE && w.count == 1 &&
        w.units >= TWICE_UNITS * multiprocessors && ring.slots >= 2;
    if (!twice && !(w.room == ROOM_HALF && ring.slots >= 2))
        ring = ring_of(w, parts, besides + FIXED, shared_max, true);
    if (ring.slots < 2) return GemvShape{};
    ring.twos = chains_of(w.rows) == 1 && ring.share <= TWOS_SHARE && slice_rounds(w.groups) == 1 && ring.pieces == 1 &&
        ring.slots >= 4 && (parts > 1 || w.units >= 2 * multiprocessors);
    ring.late = w.mode == PRODUCT_STORE && w.count > 1 && (int64_t)w.units * w.groups * w.weight[0].bytes >= LATE_BYTES;
    keep_apart(w, besides, shared_max, ring);
    const int most = (twice ? 2 : 1) * multiprocessors, rounds = slice_rounds(w.groups);
    /* Memory that a block of one long unit cannot use is left to the next kernel. */
    if (w.units <= most && parts == 1 && rounds > 1 && ring.slots > rounds * ring.pieces)
        ring.slots = rounds * ring.pieces;
    const int bytes = ring.slots * ring.slot_bytes + besides;
    return GemvShape{ring, w.units < most ? w.units : most, (size_t)(bytes > ring.least ? bytes : ring.least)};
}
template <class Kernel> static cudaError_t gemv_allow(Kernel kernel, int shared_max) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_max - FIXED);
    return error ? error : allow_beside(kernel);
}
template <class Kernel>
static cudaError_t gemv_launch(
    cudaStream_t stream, Kernel kernel, const ProductWork &w, const GemvShape &shape, int shared_max) {
    const cudaError_t error = gemv_allow(kernel, shared_max);
    return error ? error : launch(stream, kernel, dim3(shape.blocks), 32 * ALL_WARPS, shape.bytes, w, shape.ring);
}

/* gemv_int_row.cu: is_single(), a kind of integer_kind(). */
cudaError_t product_gemv_int_row(cudaStream_t stream, const ProductWork &work, const GemvShape &shape, int shared_max);
