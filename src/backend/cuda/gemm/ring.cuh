/* The ring of slots in shared memory through which the weights of gemv kernels pass; one lane issues the copies. */
#pragma once
#include "backend/cuda/runtime/bulk.cuh"
#include "backend/cuda/gemm/epilogue.cuh"
#include "backend/cuda/gemm/gemm.cuh"

enum { SLOTS_MAX = 8, SLOT_BYTES = 37 << 10, BYTES_IN_FLIGHT = 2 * SLOT_BYTES };

/* A slot has `share` groups of each slice, one slice after another. */
struct Ring {
    int slots, share, slot_bytes, pieces; /* pieces: slots of a run */
    int window, early;                    /* most slots in flight; the same until the inputs are there */
    int twos;                             /* gemv_int.cu: two slots are multiplied together */
    int late;                             /* gemv_int.cu: the next kernel begins once inputs are prepared */
    int least;                            /* gemv_int.cu: bytes of shared memory that a block asks for at least */
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* Prefetches a norm's weights into the L2; each block fetches one or a few lines. By one warp. */
__device__ __forceinline__ void norm_prefetch(const RowNorm &norm) {
    constexpr int LINE = 32;
    for (int i = (blockIdx.x + threadIdx.x % 32 * gridDim.x) * LINE; norm.weight && i < norm.width;
         i += gridDim.x * 32 * LINE)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(norm.weight + i));
}

/* came: set when the block's inputs are complete; until then fewer weights are in flight, as the inputs would wait
 * behind them. NULL: there is no such flag. */
__device__ __forceinline__ void ring_order(
    const ProductWork &p, const Ring &ring, uint32_t slots, uint32_t full, uint32_t empty, const volatile int *came) {
    const int run = slice_run(p.groups), rounds = slice_rounds(p.groups), bytes = p.weight[0].bytes;
    const int parts = p.mode == PRODUCT_GLU ? 2 : 1;
    Turn turn, landed;
    int flying = 0, window = came ? ring.early : ring.window;
    const uint64_t policy = policy_first();
    for (int unit = blockIdx.x; unit < p.units; unit += gridDim.x)
        for (int part = 0; part < parts; part++) {
            int row;
            const Tiles &w = p.weight[weight_of(p, unit, row) + part];
            const uint8_t *tiles = w.data + (int64_t)row * p.groups * bytes;
            for (int round = 0; round < rounds; round++)
                for (int piece = 0; piece < ring.pieces; piece++) {
                    /* More copies would only lengthen the queue of all loads. */
                    if (window < ring.window && *came) window = ring.window;
                    if (flying == window) {
                        barrier_wait(full + landed.at * 8, landed.phase);
                        landed.next(ring.slots);
                    } else {
                        flying++;
                    }
                    barrier_wait(empty + turn.at * 8, turn.phase ^ 1);
                    const uint32_t to = slots + turn.at * ring.slot_bytes, barrier = full + turn.at * 8;
                    const int first = round * SLICES * run;
                    if (ring.pieces == 1) {
                        const int count = min(SLICES * run, p.groups - first);
                        barrier_expect(barrier, count * bytes);
                        copy_bulk(to, tiles + (int64_t)first * bytes, count * bytes, barrier, policy);
                    } else {
                        int total = 0;
#pragma unroll 1
                        for (int s = 0; s < SLICES; s++) {
                            const int at = first + s * run + piece * ring.share;
                            total += max(0, min(min(ring.share, run - piece * ring.share), p.groups - at));
                        }
                        barrier_expect(barrier, total * bytes);
#pragma unroll 1
                        for (int s = 0; s < SLICES; s++) {
                            const int at = first + s * run + piece * ring.share;
                            const int count = min(min(ring.share, run - piece * ring.share), p.groups - at);
                            if (count > 0)
                                copy_bulk(to + s * ring.share * bytes, tiles + (int64_t)at * bytes, count * bytes,
                                    barrier, policy);
                        }
                    }
                    turn.next(ring.slots);
                }
        }
}
#endif

/* Above this many bytes of weights a kernel lasts so long that more slots gain more than an early start of the next
 * kernel. For decode rows also if the product is gated or has more columns than rows, as a layer's larger products do.
 */
enum {
    LARGE_BYTES = 15 << 20,
    EARLY_SLOTS = 1,
    SLOTS_DOWN = 4 /* in flight, for products with more columns */,
    LONG_SHARE = 4
};

/* parts: matrices of a unit; besides: bytes of shared memory that a block needs for other things. slots 0: it does not
 * fit. */
static inline Ring ring_of(const ProductWork &w, int parts, int besides, int shared_max, bool eager = false) {
    const int run = slice_run(w.groups), bytes = w.weight[0].bytes;
    Ring ring = {};
    ring.share = run;
    while (ring.share > 1 && SLICES * ring.share * bytes > SLOT_BYTES) ring.share = (ring.share + 1) / 2;
    ring.pieces = (run + ring.share - 1) / ring.share;
    ring.slot_bytes = SLICES * ring.share * bytes;
    /* Half of a multiprocessor's memory if two slots fit there: then the next kernel finds room as well. */
    const int half = shared_max / 2 - 1024;
    const bool large = (int64_t)w.units * parts * w.groups * bytes >= LARGE_BYTES;
    const bool down = eager && parts == 1 && w.groups * TILE_COLS > w.weight[0].rows;
    eager = eager && (parts > 1 || down);
    int slots = (half - besides) / ring.slot_bytes;
    if (slots < 2 || large || eager) slots = (shared_max - besides) / ring.slot_bytes;
    ring.slots = slots < SLOTS_MAX ? slots : SLOTS_MAX;
    const int usual = BYTES_IN_FLIGHT / ring.slot_bytes, most = down && usual < SLOTS_DOWN ? SLOTS_DOWN : usual;
    ring.window = most < ring.slots ? most : ring.slots;
    /* Both slots of a gated unit, if they have more than LONG_SHARE groups of a slice. */
    const int early = eager && parts > 1 && ring.share > LONG_SHARE ? parts : EARLY_SLOTS;
    ring.early = early < ring.window ? early : ring.window;
    return ring;
}
