/* Attention of prefill rows on Hopper (sm_90a), over f16 pages of heads that are 64, 128 or 256 wide, and of heads
 * between these widths, which are padded with zeros as they are loaded.
 *
 * The position of a token decides the order of the sums, so a row's bits do not depend on the cut of its prompt. Units
 * are 128 tokens (64 for wide heads), spans SPAN tokens. In a span, for each query, unit by unit: where the largest
 * score is more than SLACK above the reference (the largest of the first unit), it becomes the reference and the sums
 * so far are scaled down; p = 2^(score − reference) as f16; o += Σ p·v, a chain of multiplications by blocks of 16
 * tokens; Σ p in eight chains (the even and odd tokens of four lanes). Spans are folded together in order. A unit or
 * span of which a row sees nothing is skipped.
 *
 * A block takes a tile of rows of a kv head; each of its consumers, a warpgroup, 64 columns: rows of a query head,
 * which are the rows of its matrices. A producer warp loads keys and values into a ring in shared memory by bulk
 * copies. A consumer overlaps the scores of the next unit and the sums of this one with the exponentials of the next;
 * two consumers alternate, so that one multiplies while the other computes exponentials. */
#include <cuda.h>

#include "backend/cuda/attention/flash_slice.cuh"
#include "backend/cuda/gemm/wgmma.cuh"

enum { GROUP_THREADS = 128, GROUP_COLUMNS = 64, CONSUMERS = 2, SPAN = 4096 };
enum { BLOCK_COLUMNS = CONSUMERS * GROUP_COLUMNS, BLOCK_THREADS = (CONSUMERS + 1) * GROUP_THREADS, ALIGNMENT = 1024 };
static constexpr float SLACK = 8; /* p ≤ 256 */
static constexpr size_t PARTS_MAX = 128 << 20;

/* HD: width of a head in the kernel; PADDED: heads are Attend.head_dim wide, which is less. */
template <int HD> struct PrefillTile {
    static constexpr int UNIT = HD > 128 ? 64 : 128;
    static constexpr bool HELD = HD <= 128; /* queries are in registers, else in shared memory */
    static constexpr int STAGES = HELD ? 3 : 2;
    static constexpr int SIDE_BYTES = UNIT * HD * 2, QUERY_BYTES = HELD ? 0 : GROUP_COLUMNS * HD * 2;
    static constexpr int BYTES = ALIGNMENT + CONSUMERS * QUERY_BYTES + 2 * STAGES * SIDE_BYTES;
};

/* Spans of a row and head to be folded: o [HD] of each, then {reference, sum} of all. */
struct SpanParts {
    float *o;
    float2 *sums;
};
template <int HD> __device__ __forceinline__ SpanParts span_parts(const Attend &a, int spans) {
    return {a.partials, (float2 *)(a.partials + (int64_t)a.step.rows * a.heads * spans * HD)};
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* Where four dims of a query go, the dims being 4·piece …: tiles of 64 dims. */
__device__ __forceinline__ uint32_t query_offset(int row, int piece) {
    return piece / 16 * GROUP_COLUMNS * 128 + row * 128 + (piece % 16 / 2 ^ (row & 7)) * 16 + piece % 2 * 8;
}

/* Tile number `tile` of all tiles of prefill chunks, counted from the last row. A chunk is cut from its first row. */
struct RowTile {
    int first, count; /* count 0: there is no such tile */
};
__device__ __forceinline__ RowTile tile_find(const Attend &a, int tile, int rows) {
    const int lane = threadIdx.x % 32;
    for (int end = a.step.rows; end > a.decode_rows;) {
        const int row = end - 1 - lane;
        const bool mine = row >= a.decode_rows && __ldcg(a.step.places + row) >= 0; /* else another kernel's */
        const int length = mine ? __ldcg(a.step.chunk_rows + row) : 0;
        const unsigned chunks = __ballot_sync(~0u, mine);
        if (!chunks) {
            end -= 32;
            continue;
        }
        const int last = __ffs((int)chunks) - 1, chunk_rows = __shfl_sync(~0u, length, last);
        const int first = end - last - chunk_rows, tiles = (chunk_rows + rows - 1) / rows;
        if (tile < tiles) {
            const int within = (tiles - 1 - tile) * rows;
            return {first + within, min(rows, chunk_rows - within)};
        }
        tile -= tiles;
        end = first;
    }
    return {0, 0};
}

__device__ __forceinline__ void copy_tile(
    uint32_t to, const CUtensorMap *map, int dim, int row, int page, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
                 "%4}], [%5];" ::"r"(to),
                 "l"(map), "r"(dim), "r"(row), "r"(page), "r"(barrier)
                 : "memory");
}

/* A ring's places, each of which has two barriers. */
struct Ring {
    uint32_t full, empty;
};

/* One warp. Beyond the last token a page may hold NaN; there p is 0, and the values must be 0, too. */
template <int HD>
__device__ __forceinline__ void units_bring(const Attend &a, const CUtensorMap *map, const int32_t *table, int kv_head,
    int first, int end, int seen_end, uint8_t *ring, Ring keys, Ring values, uint32_t landed) {
    using T = PrefillTile<HD>;
    constexpr int UNIT = T::UNIT, STAGES = T::STAGES;
    const int lane = threadIdx.x % 32;
    Turn turn;
    for (int token = first; token < end; token += UNIT) {
        const int page = __ldcg(table + token / PAGE_TOKENS);
        const int row = kv_head * 2 * PAGE_TOKENS + token % PAGE_TOKENS;
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const Ring &r = side ? values : keys;
            uint8_t *to = ring + (turn.at * 2 + side) * T::SIDE_BYTES;
            const uint32_t full = r.full + turn.at * 8;
            const bool cut = side && seen_end - token < UNIT;
            barrier_wait(r.empty + turn.at * 8, turn.phase ^ 1);
            if (lane == 0) {
                barrier_expect(cut ? landed : full, T::SIDE_BYTES);
#pragma unroll
                for (int i = 0; i < HD / 64; i++)
                    copy_tile(shared_address(to) + i * UNIT * 128, map, i * 64, row + side * PAGE_TOKENS, page,
                        cut ? landed : full);
            }
            __syncwarp();
            if (!cut) continue;
            barrier_wait(landed, 0); /* once: it is the last unit */
            for (int at = (seen_end - token) * 128 + lane * 16; at < UNIT * 128; at += 32 * 16)
                for (int i = 0; i < HD / 64; i++) *(uint4 *)(to + i * UNIT * 128 + at) = make_uint4(0, 0, 0, 0);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (lane == 0) barrier_arrive(full);
        }
        turn.next(STAGES);
    }
}

/* Returns 0 after waiting for a barrier; the compiler does not know the value. */
__device__ __forceinline__ float zero_after(uint32_t barrier, uint32_t phase) {
    uint32_t zero;
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 0, 1, p;}"
                 : "=r"(zero)
                 : "r"(barrier), "r"(phase)
                 : "memory");
    return __uint_as_float(zero);
}

/* A consumer thread's state of two rows of its matrices, columns of the tile. Its sums cover its own tokens. */
struct Columns {
    Sight sight;
    float reference[2], sum[2];
};

/* Scores s (tokens 8j + 2t, 8j + 2t + 1 of row g: 4j, 4j + 1, of row g + 8: 4j + 2, 4j + 3) to exponentials; keep:
 * factor for the earlier sums of the span. token: that of s[0]. masks: some rows do not see all of the unit. */
template <int UNIT, bool CAPS>
__device__ __forceinline__ void unit_exponentials(
    float (&s)[UNIT / 2], Columns &c, float (&keep)[2], int token, bool masks, float softcap) {
    if (CAPS)
#pragma unroll
        for (int i = 0; i < UNIT / 2; i++) s[i] = capped_here(s[i], softcap);
    if (masks)
#pragma unroll
        for (int i = 0; i < UNIT / 2; i++) {
            const int at = token + i / 4 * 8 + i % 2;
            s[i] = at >= c.sight.first[i / 2 % 2] && at < c.sight.end[i / 2 % 2] ? s[i] : NONE;
        }
    float most[2][4], base[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int i = 0; i < 4; i++) most[r][i] = s[4 * i + 2 * r];
#pragma unroll
        for (int i = 0; i < UNIT / 8; i++)
            most[r][i % 4] = fmaxf(fmaxf(most[r][i % 4], s[4 * i + 2 * r]), s[4 * i + 2 * r + 1]);
        most[r][0] = fmaxf(fmaxf(most[r][0], most[r][1]), fmaxf(most[r][2], most[r][3]));
    }
#pragma unroll
    for (int k = 1; k < 4; k *= 2)
#pragma unroll
        for (int r = 0; r < 2; r++) most[r][0] = fmaxf(most[r][0], __shfl_xor_sync(~0u, most[r][0], k));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float next = most[r][0] > c.reference[r] + SLACK ? most[r][0] : c.reference[r];
        keep[r] = power_of_two(c.reference[r] - next);
        c.reference[r] = next;
        base[r] = next == NONE ? 0 : next; /* so that a row without visible keys gets zeros */
    }
#pragma unroll
    for (int i = 0; i < UNIT / 8; i++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float &v = s[4 * i + 2 * r + k];
                v = power_of_two(v - base[r]);
            }
}
template <int UNIT>
__device__ __forceinline__ void unit_sum(const float (&s)[UNIT / 2], Columns &c, const float (&keep)[2], float zero) {
    float sum[2][2] = {{zero, zero}, {zero, zero}};
#pragma unroll
    for (int i = 0; i < UNIT / 8; i++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int k = 0; k < 2; k++) sum[r][k] += s[4 * i + 2 * r + k];
#pragma unroll
    for (int r = 0; r < 2; r++) c.sum[r] = c.sum[r] * keep[r] + (sum[r][0] + sum[r][1]);
}
#endif

template <int HD, bool PADDED, bool CAPS>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    flash_prefill_kernel(const __grid_constant__ Attend a, const __grid_constant__ CUtensorMap map, int together) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using T = PrefillTile<HD>;
    constexpr int UNIT = T::UNIT, STAGES = T::STAGES;
    const int width = PADDED ? a.head_dim : HD; /* a multiple of 8 */
    extern __shared__ uint8_t unaligned[];
    __shared__ uint64_t barriers[4 * STAGES + 1];
    let_next_begin();
    uint8_t *memory = unaligned + (-shared_address(unaligned) & (ALIGNMENT - 1)); /* queries, ring */
    uint8_t *ring = memory + CONSUMERS * T::QUERY_BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    /* Blocks of some kv heads run one after the other, then those of the next ones. */
    const int group = a.heads / a.kv_heads, blocks = (int)gridDim.x / a.kv_heads * together,
              kv_head = (int)blockIdx.x / blocks * together + (int)blockIdx.x % together;
    const RowTile tile = tile_find(a, (int)blockIdx.x % blocks / together, BLOCK_COLUMNS / group);
    const Ring keys = {shared_address(barriers), shared_address(barriers + STAGES)},
               values = {shared_address(barriers + 2 * STAGES), shared_address(barriers + 3 * STAGES)};
    const uint32_t landed = shared_address(barriers + 4 * STAGES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_make(keys.full + 8 * i, 1);
            barrier_make(values.full + 8 * i, 1);
            barrier_make(keys.empty + 8 * i, CONSUMERS * 4);
            barrier_make(values.empty + 8 * i, CONSUMERS * 4);
        }
        barrier_make(landed, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    /* Visible range of the tile: neither end decreases from row to row. With several spans in the grid the block has
     * one. */
    Seen head_row = {0, 0}, tail_row = {0, 0};
    int first = 0, end = 0;
    if (tile.count) {
        head_row = seen_by(a, tile.first);
        tail_row = seen_by(a, tile.first + tile.count - 1);
        first = head_row.first / UNIT * UNIT;
        end = tail_row.end;
        if (gridDim.y > 1) {
            first = max(first, (int)blockIdx.y * SPAN);
            end = min(end, (int)(blockIdx.y + 1) * SPAN);
        }
    }
    if (first >= end) {
        wait_for_previous();
        return;
    }
    if (warp >= CONSUMERS * 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        wait_for_previous();
        const int32_t *table = a.tables + (int64_t)__ldcg(a.step.chunks + tile.first) * a.table_stride;
        if (warp == CONSUMERS * 4)
            units_bring<HD>(a, &map, table, kv_head, first, end, tail_row.end, ring, keys, values, landed);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    wait_for_previous();
    const int consumer = __shfl_sync(~0u, warp / 4, 0), columns = tile.count * group;
    uint8_t *queries = memory + consumer * T::QUERY_BYTES;
    const float scale = a.scale * LOG2E;
    uint32_t query[T::HELD ? HD / 16 : 1][4]; /* of 16 dims: 2t, 2t + 1 of rows g and g + 8, 2t + 8, 2t + 9 of them */
    if constexpr (T::HELD) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int column = consumer * GROUP_COLUMNS + warp % 4 * 16 + g + 8 * r;
            const int64_t head = (int64_t)(tile.first + column / group) * a.heads + kv_head * group + column % group;
#pragma unroll
            for (int i = 0; i < HD / 8; i++) {
                float2 v = make_float2(0, 0);
                if (column < columns && 8 * i < width) v = __ldcg((const float2 *)(a.q + head * width + 8 * i + 2 * t));
                query[i / 2][i % 2 * 2 + r] = packed(v.x * scale, v.y * scale);
            }
        }
    } else {
#pragma unroll 8
        for (int i = threadIdx.x % GROUP_THREADS; i < GROUP_COLUMNS * HD / 4; i += GROUP_THREADS) {
            const int row = i / (HD / 4), piece = i % (HD / 4), column = consumer * GROUP_COLUMNS + row;
            float4 v = make_float4(0, 0, 0, 0);
            if (column < columns && 4 * piece < width) {
                const int64_t head =
                    (int64_t)(tile.first + column / group) * a.heads + kv_head * group + column % group;
                v = __ldcg((const float4 *)(a.q + head * width) + piece);
            }
            *(uint2 *)(queries + query_offset(row, piece)) =
                make_uint2(packed(v.x * scale, v.y * scale), packed(v.z * scale, v.w * scale));
        }
        asm volatile("fence.proxy.async.shared::cta;\nbar.sync %0, %1;" ::"r"(1 + consumer), "n"((int)GROUP_THREADS)
                     : "memory");
    }

    Columns own;
    float total_most[2], total_sum[2];
    int64_t heads[2]; /* index among the heads of all rows; −1: no such column */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int column = consumer * GROUP_COLUMNS + warp % 4 * 16 + g + 8 * r;
        const int row = tile.first + column / group, head = kv_head * group + column % group;
        const Seen seen = column < columns ? seen_by(a, row) : Seen{0, 0};
        own.sight.first[r] = seen.first;
        own.sight.end[r] = seen.end;
        own.reference[r] = NONE;
        own.sum[r] = 0;
        heads[r] = column < columns ? (int64_t)row * a.heads + head : -1;
        total_most[r] = a.sinks ? __ldg(a.sinks + head) * LOG2E : NONE;
        total_sum[r] = a.sinks ? 1 : 0;
    }
    float o[HD / 2], s[UNIT / 2], keep[2];
    uint32_t p[UNIT / 16][4];
#pragma unroll
    for (int i = 0; i < UNIT / 2; i++) s[i] = 0;
#pragma unroll
    for (int i = 0; i < HD / 2; i++) o[i] = 0;

    const uint32_t query_low = tile_low(shared_address(queries)), ring_at = shared_address(ring);
    const auto leave = [&](uint32_t barrier) {
        __syncwarp();
        if (lane == 0) barrier_arrive(barrier);
    };
    const auto scores = [&](const Turn &turn) {
        const uint32_t low = tile_low(ring_at + turn.at * 2 * T::SIDE_BYTES);
        products_fence();
        if constexpr (T::HELD) {
            rows_multiply(s, query[0], moved(low, 0));
#pragma unroll
            for (int i = 1; i < HD / 16; i++) rows_add(s, query[i], moved(low, i / 4 * UNIT * 128 + i % 4 * 32));
        } else {
            rows_multiply(s, moved(query_low, 0), moved(low, 0));
#pragma unroll
            for (int i = 1; i < HD / 16; i++)
                rows_add(s, moved(query_low, i / 4 * GROUP_COLUMNS * 128 + i % 4 * 32),
                    moved(low, i / 4 * UNIT * 128 + i % 4 * 32));
        }
        products_commit();
    };
    const auto sums = [&](const Turn &turn) {
        const uint32_t low = tile_low(ring_at + (turn.at * 2 + 1) * T::SIDE_BYTES, UNIT * 128);
        products_fence();
#pragma unroll
        for (int b = 0; b < UNIT / 16; b++) columns_add(o, p[b], moved(low, b * 16 * 128));
        products_commit();
    };
    const auto exponentials = [&](int token) {
        const bool masks = token < tail_row.first || token + UNIT > head_row.end;
        unit_exponentials<UNIT, CAPS>(s, own, keep, token + 2 * t, masks, a.softcap);
    };
    const auto pack = [&]() {
#pragma unroll
        for (int b = 0; b < UNIT / 16; b++)
#pragma unroll
            for (int i = 0; i < 4; i++) p[b][i] = packed(s[8 * b + 2 * i], s[8 * b + 2 * i + 1]);
    };
    /* Ends a span. For all but the last one `out` keeps the folded result so far. */
    const auto fold_span = [&](bool begins, bool ends) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float keep_total, take;
            own.sum[r] += __shfl_xor_sync(~0u, own.sum[r], 1);
            own.sum[r] += __shfl_xor_sync(~0u, own.sum[r], 2);
            fold_factors(total_most[r], own.reference[r], keep_total, take);
            total_sum[r] = folded(total_sum[r], keep_total, own.sum[r], take);
            own.reference[r] = NONE;
            own.sum[r] = 0;
            if (heads[r] < 0) continue;
            float *to = a.out + heads[r] * width + 2 * t;
            const float factor = ends ? 1 / total_sum[r] : 1;
#pragma unroll
            for (int j = 0; j < HD / 8; j++) {
                if (8 * j >= width) break;
                float2 v = make_float2(0, 0);
                if (!begins) v = *(float2 *)(to + 8 * j);
                v.x = folded(v.x, keep_total, o[4 * j + 2 * r], take) * factor;
                v.y = folded(v.y, keep_total, o[4 * j + 2 * r + 1], take) * factor;
                *(float2 *)(to + 8 * j) = v;
            }
        }
#pragma unroll
        for (int i = 0; i < HD / 2; i++) o[i] = 0;
    };

    /* Barriers 3 and 4 are the consumers' turns. */
    const int turn_mine = 3 + consumer, turn_theirs = 4 - consumer;
    const auto take_turn = [&]() { asm volatile("bar.sync %0, 256;" ::"r"(turn_mine) : "memory"); };
    const auto give_turn = [&]() { asm volatile("bar.arrive %0, 256;" ::"r"(turn_theirs) : "memory"); };
    if (consumer == 1) give_turn();
    const uint32_t no_bits = (uint32_t)a.step.position_dims >> 8; /* 0, which the compiler does not know */
    Turn turn, behind;
    for (int span = first; span < end;) {
        const int span_end = min(end, (span / SPAN + 1) * SPAN);
        barrier_wait(keys.full + turn.at * 8, turn.phase);
        take_turn();
        scores(turn);
        give_turn();
        products_wait<0>();
        products_touch(s);
        leave(keys.empty + turn.at * 8);
        exponentials(span);
        unit_sum<UNIT>(s, own, keep, 0);
        pack();
        turn.next(STAGES);
        if (span + UNIT < span_end) barrier_wait(keys.full + turn.at * 8, turn.phase);
        for (int token = span + UNIT; token < span_end; token += UNIT) {
            take_turn();
            scores(turn);
            barrier_wait(values.full + behind.at * 8, behind.phase);
            sums(behind);
            give_turn();
            products_wait<1>();
            products_touch(s);
            leave(keys.empty + turn.at * 8);
            exponentials(token);
            turn.next(STAGES);
            /* The overlap with the products has to be forced: ptxas moves the wait for them up to the last branch and
             * other code behind it, and moves sums among the exponentials, for each of which they would wait. So a
             * branch follows the exponentials (the wait for the next keys, which could come later); sums begin with a
             * value read behind it; and another branch depends on them (a wait that is already satisfied). */
            const bool more = token + UNIT < span_end;
            const uint32_t next = more ? keys.full + turn.at * 8 : values.full + behind.at * 8,
                           next_phase = more ? turn.phase : behind.phase;
            barrier_wait(next, next_phase);
            unit_sum<UNIT>(s, own, keep, zero_after(next, next_phase));
            const uint32_t nothing = (__float_as_uint(own.sum[0]) | __float_as_uint(own.sum[1])) & no_bits;
            barrier_wait(next, next_phase ^ nothing);
            products_wait<0>();
            products_touch(o);
            products_touch(s);
            leave(values.empty + behind.at * 8);
            behind.next(STAGES);
            pack();
            if (!__all_sync(~0u, keep[0] == 1 && keep[1] == 1))
#pragma unroll
                for (int i = 0; i < HD / 2; i++) o[i] *= keep[i / 2 % 2];
        }
        take_turn();
        barrier_wait(values.full + behind.at * 8, behind.phase);
        sums(behind);
        if (consumer == 0 || span_end < end) give_turn();
        products_wait<0>();
        products_touch(o);
        leave(values.empty + behind.at * 8);
        behind.next(STAGES);
        if (gridDim.y == 1) fold_span(span == first, span_end == end);
        span = span_end;
    }
    if (gridDim.y == 1) return;
    const SpanParts parts = span_parts<HD>(a, gridDim.y);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        own.sum[r] += __shfl_xor_sync(~0u, own.sum[r], 1);
        own.sum[r] += __shfl_xor_sync(~0u, own.sum[r], 2);
        if (heads[r] < 0) continue;
        const int64_t at = heads[r] * gridDim.y + blockIdx.y;
        if (t == 0) parts.sums[at] = make_float2(own.reference[r], own.sum[r]);
#pragma unroll
        for (int j = 0; j < HD / 8; j++)
            *(float2 *)(parts.o + at * HD + 8 * j + 2 * t) = make_float2(o[4 * j + 2 * r], o[4 * j + 2 * r + 1]);
    }
#endif
}

/* A block per row and head, a thread per dim: the fold that the kernel does with its spans in order. */
template <int HD, bool PADDED>
__global__ void __launch_bounds__(HD) flash_prefill_fold_kernel(const __grid_constant__ Attend a, int spans) {
    let_next_begin();
    const int row = a.decode_rows + (int)blockIdx.x, head = blockIdx.y;
    const Seen seen = seen_by(a, row);
    const bool mine = __ldcg(a.step.places + row) >= 0;
    wait_for_previous();
    if (!mine) return;
    const int64_t at = (int64_t)row * a.heads + head;
    const SpanParts parts = span_parts<HD>(a, spans);
    float most = a.sinks ? __ldg(a.sinks + head) * LOG2E : NONE, sum = a.sinks ? 1 : 0, o = 0;
    for (int span = seen.first / SPAN; span * SPAN < seen.end; span++) {
        const float2 part = __ldcg(parts.sums + at * spans + span);
        float keep, take;
        fold_factors(most, part.x, keep, take);
        sum = folded(sum, keep, part.y, take);
        o = folded(o, keep, load(parts.o + (at * spans + span) * HD + threadIdx.x), take);
    }
    const int width = PADDED ? a.head_dim : HD;
    if (!PADDED || (int)threadIdx.x < width) a.out[at * width + threadIdx.x] = o * (1 / sum);
}

static int tiles_of(const Attend &a) {
    return (a.step.rows - a.decode_rows) / (BLOCK_COLUMNS / (a.heads / a.kv_heads)) + a.chunks;
}
static int padded_dim(const Attend &a) { return a.head_dim <= 64 ? 64 : a.head_dim <= 128 ? 128 : 256; }
static size_t part_bytes(const Attend &a, int spans) {
    return (size_t)a.step.rows * (size_t)a.heads * (size_t)spans * (size_t)(padded_dim(a) + 2) * sizeof(float);
}
/* Few tiles with long visible ranges: a block has one span of a tile only. */
static int spans_of(const Attend &a) {
    constexpr int BLOCKS_FEW = 64;
    const int spans = (a.slices * SLICE + SPAN - 1) / SPAN;
    return tiles_of(a) * a.kv_heads <= BLOCKS_FEW && part_bytes(a, spans) <= PARTS_MAX ? spans : 1;
}
extern "C" int flash_prefill_wgmma_fits(const Attend *a) {
    return a->dtype == F16 && !a->q_latent && a->head_dim == a->value_dim && a->head_dim % 8 == 0 &&
        a->head_dim >= 64 && a->head_dim <= 256 && a->heads / a->kv_heads <= FLASH_PREFILL_GROUP_MAX;
}
extern "C" size_t flash_prefill_wgmma_bytes(const Attend *a) {
    const int spans = spans_of(*a);
    return spans > 1 ? part_bytes(*a, spans) : 0;
}

/* The driver's function, found without linking against the driver. */
typedef decltype(&cuTensorMapEncodeTiled) EncodeTiled;
static EncodeTiled encode_tiled() {
    static EncodeTiled found = [] {
        void *function = nullptr;
        cudaDriverEntryPointQueryResult result;
        const cudaError_t error =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
        return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? (EncodeTiled)function : nullptr;
    }();
    return found;
}

/* Keys and values of the layer as {page, kv head and side and token, dim}; a copy has a unit's 64 dims, zeros beyond
 * the last one. */
template <int HD> static cudaError_t map_pages(const Attend &a, CUtensorMap *map) {
    const cuuint64_t dims[3] = {(cuuint64_t)a.head_dim, (cuuint64_t)(2 * PAGE_TOKENS * a.kv_heads), 1u << 20},
                     strides[2] = {a.head_dim * sizeof(__half), (cuuint64_t)a.page_stride};
    const cuuint32_t box[3] = {64, PrefillTile<HD>::UNIT, 1}, steps[3] = {1, 1, 1};
    const EncodeTiled encode = encode_tiled();
    if (!encode) return cudaErrorNotSupported;
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, a.pages, dims, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
        ? cudaSuccess
        : cudaErrorInvalidValue;
}

/* Number of kv heads processed together, so that their visible pages stay in the L2 from tile to tile. */
static int heads_together(const Attend &a) {
    constexpr int64_t ROOM = 8 << 20;
    const int64_t bytes = (int64_t)a.slices * SLICE * a.head_dim * 2 * (int64_t)sizeof(__half);
    int together = a.kv_heads;
    while (together > 1 && together * bytes > ROOM) {
        together--;
        while (a.kv_heads % together) together--;
    }
    return together;
}

template <int HD, bool PADDED> static cudaError_t prefill_rows(cudaStream_t stream, const Attend &a) {
    const auto kernel =
        a.softcap > 0 ? flash_prefill_kernel<HD, PADDED, true> : flash_prefill_kernel<HD, PADDED, false>;
    constexpr int BYTES = PrefillTile<HD>::BYTES;
    CUtensorMap map;
    cudaError_t error = map_pages<HD>(a, &map);
    if (!error) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    const int spans = spans_of(a);
    if (!error)
        error = launch(stream, kernel, dim3(tiles_of(a) * a.kv_heads, spans), BLOCK_THREADS, (size_t)BYTES, a, map,
            heads_together(a));
    if (error || spans == 1) return error;
    return launch(
        stream, flash_prefill_fold_kernel<HD, PADDED>, dim3(a.step.rows - a.decode_rows, a.heads), HD, 0, a, spans);
}

extern "C" cudaError_t flash_prefill_wgmma(cudaStream_t stream, const Attend *a) {
    if (a->head_dim != padded_dim(*a))
        return a->head_dim < 128 ? prefill_rows<128, true>(stream, *a) : prefill_rows<256, true>(stream, *a);
    return a->head_dim == 64 ? prefill_rows<64, false>(stream, *a)
        : a->head_dim == 128 ? prefill_rows<128, false>(stream, *a)
                             : prefill_rows<256, false>(stream, *a);
}
