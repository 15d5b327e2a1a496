/* Attention of long runs on Hopper (sm_90a alone): what attention_tiles.cu computes, in the same order, with wgmma. A
 * block has a tile of rows of a kv head; each of its consumers, a warpgroup, 64 columns (rows of a query head), which
 * are the rows of its matrices; producers bring keys and values through a ring in shared memory. While one consumer
 * computes exponentials, the other multiplies.
 *
 * A step of mma.sync multiplies, of 32 dims, the first or the last four of each eight (scores_of()). The same dims come
 * to be neighbours here when keys and queries are put into shared memory: in pieces of four. */
#include "backend/cuda/slices.cuh"
#include "backend/cuda/wgmma.cuh"

enum { GROUP_THREADS = 128, GROUP_COLUMNS = 64 };

/* What is brought at once: keys of UNIT tokens, then their values. Parts of a slice's sums have PIECE dims, of which
 * the registers hold two where heads are wide. */
template <int HD> struct WideTile {
    static constexpr int UNIT = HD > 128 ? SLICE : 2 * SLICE, PIECE = HD > 128 ? 32 : HD, STAGES = 2;
    static constexpr int SIDE_BYTES = UNIT * HD * 2, QUERY_BYTES = GROUP_COLUMNS * HD * 2;
    static constexpr int bytes(int consumers) { return consumers * QUERY_BYTES + 2 * STAGES * SIDE_BYTES; }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* Where four dims of a row go, the dims being 4·piece …, in tiles of 64 columns and `rows` rows. */
__device__ __forceinline__ uint32_t dims_offset(int rows, int row, int piece) {
    const int chunk = piece / 8 % 2 * 4 + piece % 2 * 2 + piece % 8 / 4;
    return piece / 16 * rows * 128 + row * 128 + (chunk ^ (row & 7)) * 16 + piece / 2 % 2 * 8;
}
/* And eight dims of values, in order. */
__device__ __forceinline__ uint32_t values_offset(int rows, int row, int piece) {
    return piece / 8 * rows * 128 + row * 128 + (piece % 8 ^ (row & 7)) * 16;
}

template <int BYTES> __device__ __forceinline__ void copy_piece(uint32_t to, const void *from, bool there) {
    const int bytes = there ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* The tile'th of all tiles of long runs, counted from the last row. A run is cut from its first row. */
struct RowTile {
    int first, count; /* count 0: there are not so many */
};
__device__ __forceinline__ RowTile tile_find(const Attend &a, int tile, int rows) {
    const int lane = threadIdx.x % 32;
    for (int end = a.step.rows; end > 0;) {
        const int row = end - 1 - lane, length = row >= 0 ? __ldcg(a.step.run_rows + row) : 0;
        const unsigned runs = __ballot_sync(~0u, length >= TILE_RUN_LEAST);
        if (!runs) {
            end -= 32;
            continue;
        }
        const int last = __ffs((int)runs) - 1, run_rows = __shfl_sync(~0u, length, last);
        const int first = end - last - run_rows, tiles = (run_rows + rows - 1) / rows;
        if (tile < tiles) {
            const int within = (tiles - 1 - tile) * rows;
            return {first + within, min(rows, run_rows - within)};
        }
        tile -= tiles;
        end = first;
    }
    return {0, 0};
}

/* A ring's places, each of which has two barriers. */
struct Ring {
    uint32_t full, empty;
};

template <int HD>
__device__ __forceinline__ void units_bring(
    const Attend &a, const int32_t *table, int kv_head, int first, int end, uint32_t ring, Ring keys, Ring values) {
    using T = WideTile<HD>;
    constexpr int UNIT = T::UNIT, FOURS = HD / 4, EIGHTS = HD / 8;
    const int thread = threadIdx.x % GROUP_THREADS;
    uint32_t pending = 0; /* the barrier of what was ordered last */
    const auto ordered = [&](uint32_t barrier) {
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (pending) {
            asm volatile("cp.async.wait_group 1;\nfence.proxy.async.shared::cta;" ::: "memory");
            barrier_arrive(pending);
        }
        pending = barrier;
    };
    Turn turn;
    for (int token = first; token < end; token += UNIT) {
        const __half *page = half_head(a, table, token, kv_head);
        const __half *from = page + token % PAGE_TOKENS * HD;
        uint32_t to = ring + turn.at * 2 * T::SIDE_BYTES;
        barrier_wait(keys.empty + turn.at * 8, turn.phase ^ 1);
#pragma unroll 8
        for (int i = thread; i < UNIT * FOURS; i += GROUP_THREADS) {
            const bool there = token + i / FOURS < end;
            copy_piece<8>(to + dims_offset(UNIT, i / FOURS, i % FOURS), from + (there ? i * 4 : 0), there);
        }
        ordered(keys.full + turn.at * 8);
        from += PAGE_TOKENS * HD;
        to += T::SIDE_BYTES;
        barrier_wait(values.empty + turn.at * 8, turn.phase ^ 1);
#pragma unroll 8
        for (int i = thread; i < UNIT * EIGHTS; i += GROUP_THREADS) {
            const bool there = token + i / EIGHTS < end;
            copy_piece<16>(to + values_offset(UNIT, i / EIGHTS, i % EIGHTS), from + (there ? i * 8 : 0), there);
        }
        ordered(values.full + turn.at * 8);
        turn.next(T::STAGES);
    }
    asm volatile("cp.async.wait_group 0;\nfence.proxy.async.shared::cta;" ::: "memory");
    if (pending) barrier_arrive(pending);
}

/* What a consumer's thread has of two rows of its matrices, columns of the tile: their sights and what is folded. */
struct Rows {
    Sight sight;
    float most[2], sum[2];
};
struct Factors {
    float keep[2], take[2];
};

/* Scores s (tokens 8j + 2t, 8j + 2t + 1 of row g: 4j, 4j + 1, of row g + 8: 4j + 2, 4j + 3) to exponentials in the order
 * of exponentials(). token: of s[0]. masks: not all of the slice is seen by all rows. */
template <bool CAPS>
__device__ __forceinline__ Factors rows_exponentials(
    float (&s)[SLICE / 2], Rows &rows, int token, bool masks, float softcap) {
    Factors f;
    if (CAPS)
#pragma unroll
        for (int i = 0; i < SLICE / 2; i++) s[i] = capped_here(s[i], softcap);
    if (masks)
#pragma unroll
        for (int i = 0; i < SLICE / 2; i++) {
            const int at = token + i / 4 * 8 + i % 2;
            s[i] = at >= rows.sight.first[i / 2 % 2] && at < rows.sight.end[i / 2 % 2] ? s[i] : NONE;
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = NONE;
#pragma unroll
        for (int i = 0; i < SLICE / 2; i++)
            if (i / 2 % 2 == r) most = fmaxf(most, s[i]);
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const float base = most == NONE ? 0 : most; /* so that nothing seen is nothing */
        float even = 0, odd = 0;
#pragma unroll
        for (int j = 0; j < SLICE / 8; j++) {
            float &one = s[4 * j + 2 * r], &other = s[4 * j + 2 * r + 1];
            one = power_of_two(one - base);
            other = power_of_two(other - base);
            even += one;
            odd += other;
        }
        float sum = even + odd;
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        fold_factors(rows.most[r], most, f.keep[r], f.take[r]);
        rows.sum[r] = folded(rows.sum[r], f.keep[r], sum, f.take[r]);
    }
    return f;
}
__device__ __forceinline__ void rows_pack(const float (&s)[SLICE / 2], uint32_t (&p)[BLOCKS][4]) {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int i = 0; i < 4; i++) p[b][i] = packed(s[8 * b + 2 * i], s[8 * b + 2 * i + 1]);
}

template <int N> __device__ __forceinline__ void parts_fold(float *o, const float (&part)[N], const Factors &f) {
    if (!__all_sync(~0u, f.keep[0] == 1 && f.keep[1] == 1))
#pragma unroll
        for (int i = 0; i < N; i++) o[i] *= f.keep[i / 2 % 2];
#pragma unroll
    for (int i = 0; i < N; i++) o[i] = fmaf(part[i], f.take[i / 2 % 2], o[i]); /* as folded() */
}
#endif

template <int HD, int CONSUMERS, bool CAPS>
__global__ void __launch_bounds__(GROUP_THREADS *(CONSUMERS + 1), 1)
    wide_tile_kernel(const __grid_constant__ Attend a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using T = WideTile<HD>;
    constexpr int UNIT = T::UNIT, PIECE = T::PIECE, STAGES = T::STAGES;
    extern __shared__ __align__(1024) uint8_t memory[]; /* queries of each consumer, ring of keys and values */
    __shared__ uint64_t barriers[4 * STAGES];
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int group = a.heads / a.kv_heads, kv_head = blockIdx.x % a.kv_heads;
    const RowTile tile = tile_find(a, blockIdx.x / a.kv_heads, CONSUMERS * GROUP_COLUMNS / group);
    const uint32_t queries = shared_address(memory), ring = queries + CONSUMERS * T::QUERY_BYTES;
    const Ring keys = {shared_address(barriers), shared_address(barriers + STAGES)},
               values = {shared_address(barriers + 2 * STAGES), shared_address(barriers + 3 * STAGES)};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_make(keys.full + 8 * i, GROUP_THREADS);
            barrier_make(values.full + 8 * i, GROUP_THREADS);
            barrier_make(keys.empty + 8 * i, CONSUMERS * 4);
            barrier_make(values.empty + 8 * i, CONSUMERS * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (!tile.count) {
        wait_for_previous();
        return;
    }
    /* What the tile sees: neither end decreases from row to row. */
    const Seen head_row = seen_by(a, tile.first), tail_row = seen_by(a, tile.first + tile.count - 1);
    const int first = head_row.first / UNIT * UNIT, end = tail_row.end;
    if (warp >= CONSUMERS * 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        wait_for_previous();
        const int32_t *table = a.tables + (int64_t)__ldcg(a.step.runs + tile.first) * a.table_stride;
        units_bring<HD>(a, table, kv_head, first, end, ring, keys, values);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_for_previous();
    const int consumer = __shfl_sync(~0u, warp / 4, 0), columns = tile.count * group;
    const uint32_t query_low = tile_low(queries + consumer * T::QUERY_BYTES);
#pragma unroll 8
    for (int i = threadIdx.x % GROUP_THREADS; i < GROUP_COLUMNS * HD / 4; i += GROUP_THREADS) {
        const int row = i / (HD / 4), piece = i % (HD / 4), column = consumer * GROUP_COLUMNS + row;
        float4 v = make_float4(0, 0, 0, 0);
        if (column < columns) {
            const int64_t head = (int64_t)(tile.first + column / group) * a.heads + kv_head * group + column % group;
            v = __ldcg((const float4 *)(a.q + head * HD) + piece);
        }
        const float scale = a.scale * LOG2E;
        *(uint2 *)(memory + consumer * T::QUERY_BYTES + dims_offset(GROUP_COLUMNS, row, piece)) =
            make_uint2(packed(v.x * scale, v.y * scale), packed(v.z * scale, v.w * scale));
    }
    asm volatile("fence.proxy.async.shared::cta;\nbar.sync %0, %1;" ::"r"(1 + consumer), "n"((int)GROUP_THREADS) : "memory");

    const int own = consumer * GROUP_COLUMNS + warp % 4 * 16 + g; /* column of row g; of row g + 8: 8 more */
    Rows rows;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int column = own + 8 * r, head = kv_head * group + column % group;
        const Seen seen = column < columns ? seen_by(a, tile.first + column / group) : Seen{0, 0};
        rows.sight.first[r] = seen.first;
        rows.sight.end[r] = seen.end;
        rows.most[r] = a.sinks ? __ldg(a.sinks + head) * LOG2E : NONE;
        rows.sum[r] = a.sinks ? 1 : 0;
    }
    constexpr int PARTS = HD > 128 ? 2 : 1;
    float o[HD / 2], s[UNIT / 2], part[PARTS][PIECE / 2];
#pragma unroll
    for (int i = 0; i < PARTS * PIECE / 2; i++) part[i / (PIECE / 2)][i % (PIECE / 2)] = 0;
#pragma unroll
    for (int i = 0; i < UNIT / 2; i++) s[i] = 0;
#pragma unroll
    for (int i = 0; i < HD / 2; i++) o[i] = 0;
    const auto leave = [&](uint32_t barrier) {
        __syncwarp();
        if (lane == 0) barrier_arrive(barrier);
    };
    const auto scores = [&](const Turn &turn, bool there) {
        const uint32_t from = ring + turn.at * 2 * T::SIDE_BYTES;
        if (there) barrier_wait(keys.full + turn.at * 8, turn.phase);
        const uint32_t low = tile_low(from);
        products_fence();
        rows_multiply(s, moved(query_low, 0), moved(low, 0));
#pragma unroll
        for (int i = 1; i < HD / 16; i++)
            rows_add(s, moved(query_low, i / 4 * GROUP_COLUMNS * 128 + i % 4 * 32),
                moved(low, i / 4 * UNIT * 128 + i % 4 * 32));
        products_commit();
    };
    /* Of a slice of the unit, dims from `dim` on. */
    const auto sums = [&](float(&part)[PIECE / 2], const uint32_t(&p)[BLOCKS][4], const Turn &turn, int slice, int dim) {
        const uint32_t from = ring + (turn.at * 2 + 1) * T::SIDE_BYTES + dim / 64 * UNIT * 128 + dim % 64 * 2 +
            slice * SLICE * 128;
        const uint32_t low = tile_low(from, UNIT * 128);
        products_fence();
        columns_multiply(part, p[0], moved(low, 0));
#pragma unroll
        for (int b = 1; b < BLOCKS; b++) columns_add(part, p[b], moved(low, b * 16 * 128));
        products_commit();
    };
    Turn turn;
    scores(turn, true);
    /* When a unit is done, the scores of the next are under way. Behind the last one they are of whatever is there, and
     * nobody reads them: a copy of all this without them would cost registers. */
    for (int token = first; token < end; token += UNIT) {
        const Turn at = turn;
        turn.next(STAGES);
        products_wait<0>();
        products_touch(s);
        leave(keys.empty + at.at * 8);
        const bool masks = token < tail_row.first || token + UNIT > head_row.end;
        uint32_t p[BLOCKS][4];
        float(&head)[SLICE / 2] = *(float(*)[SLICE / 2]) s;
        const Factors f = rows_exponentials<CAPS>(head, rows, token + 2 * t, masks, a.softcap);
        rows_pack(head, p);
        barrier_wait(values.full + at.at * 8, at.phase);
        if constexpr (HD <= 128) {
            sums(part[0], p, at, 0, 0);
            float(&tail)[SLICE / 2] = *(float(*)[SLICE / 2])(s + SLICE / 2);
            const Factors later = rows_exponentials<CAPS>(tail, rows, token + SLICE + 2 * t, masks, a.softcap);
            products_wait<0>();
            products_touch(part[0]);
            products_touch(tail); /* p's registers are free only now */
            rows_pack(tail, p);
            parts_fold(o, part[0], f);
            sums(part[0], p, at, 1, 0);
            scores(turn, token + UNIT < end);
            products_wait<1>();
            products_touch(part[0]);
            leave(values.empty + at.at * 8);
            parts_fold(o, part[0], later);
        } else {
            constexpr int PIECES = HD / PIECE;
            sums(part[0], p, at, 0, 0);
            sums(part[1], p, at, 0, PIECE);
#pragma unroll
            for (int i = 0; i < PIECES - 2; i++) {
                products_wait<1>();
                products_touch(part[i % 2]);
                parts_fold(o + i * (PIECE / 2), part[i % 2], f);
                sums(part[i % 2], p, at, 0, (i + 2) * PIECE);
            }
            scores(turn, token + UNIT < end);
            products_wait<2>();
            products_touch(part[0]);
            parts_fold(o + (PIECES - 2) * (PIECE / 2), part[0], f);
            products_wait<1>();
            products_touch(part[1]);
            leave(values.empty + at.at * 8);
            parts_fold(o + (PIECES - 1) * (PIECE / 2), part[1], f);
        }
    }
    products_wait<0>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int column = own + 8 * r;
        if (column >= columns) continue;
        float *out = a.out +
            ((int64_t)(tile.first + column / group) * a.heads + kv_head * group + column % group) * HD + 2 * t;
#pragma unroll
        for (int j = 0; j < HD / 8; j++)
            *(float2 *)(out + 8 * j) = make_float2(o[4 * j + 2 * r] / rows.sum[r], o[4 * j + 2 * r + 1] / rows.sum[r]);
    }
#endif
}

template <int HD, int CONSUMERS, bool CAPS> static cudaError_t wide_tiles(cudaStream_t stream, const Attend &a) {
    const auto kernel = wide_tile_kernel<HD, CONSUMERS, CAPS>;
    constexpr int BYTES = WideTile<HD>::bytes(CONSUMERS);
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (error) return error;
    const int rows = CONSUMERS * GROUP_COLUMNS / (a.heads / a.kv_heads), tiles = a.step.rows / rows + a.long_runs;
    return launch(stream, kernel, dim3(tiles * a.kv_heads), GROUP_THREADS * (CONSUMERS + 1), (size_t)BYTES, a);
}

template <int HD> static cudaError_t wide_tiles(cudaStream_t stream, const Attend &a) {
    return a.softcap > 0 ? wide_tiles<HD, 2, true>(stream, a) : wide_tiles<HD, 2, false>(stream, a);
}

cudaError_t attention_run_wide(cudaStream_t stream, const Attend &a) {
    return a.head_dim == 64 ? wide_tiles<64>(stream, a)
        : a.head_dim == 128 ? wide_tiles<128>(stream, a)
                            : wide_tiles<256>(stream, a);
}
