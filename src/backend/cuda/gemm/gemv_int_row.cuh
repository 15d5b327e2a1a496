/* Products of one decode row (gemm_int.cuh) on compute capability 9.0 and later, with the warp roles of gemv_int.cu.
 * Beyond reading its weights, a layer takes the latency from input to result, so this path has as little code as
 * possible: addresses, counts and all else that does not depend on the previous kernel are in registers before it has
 * ended, and the finishing warp finishes two units at once. The bits are those of gemv_int.cu. */
#pragma once
#include "backend/cuda/gemm/gemv_int.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* Forces a value to be computed here, once. */
__device__ __forceinline__ void settled(int &v) { asm volatile("" : "+r"(v)); }
template <class... T> __device__ __forceinline__ void settle(T &...v) { (settled(v), ...); }

/* Layout of a block's shared memory: offsets in bytes. */
struct OneLayout {
    int planes, areas, area, squares, numbers;
    __device__ __forceinline__ OneLayout(const ProductWork &p, const Ring &ring)
        : planes(ring.slots * ring.slot_bytes), areas(planes + p.groups * 128),
          area(4 * area_floats(p.groups, p.mode == PRODUCT_GLU ? 2 : 1, 1)), squares(areas + MULTIPLIERS * area),
          numbers(squares + (p.norm.width ? WARPS * 32 * 4 : 0)) {}
};

/* ---- inputs ---- */

/* A warp's share of the row: its slice's columns, of which a lane has 16 of a group in each round. */
template <int SUBS> struct OnePreparing {
    uint8_t *memory;
    int put, get, twist; /* offsets in the warp's part of shared memory: of a lane's writes, of its reads */
    int plane, number;   /* plane and number of the lane's group in the first round */
    int group, run, groups;

    __device__ __forceinline__ OnePreparing(const ProductWork &p, const OneLayout &at, int run, uint8_t *memory)
        : memory(memory), run(run), groups(p.groups) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, stage = at.areas + warp * at.area;
        put = stage + 16 * (lane ^ (lane >> 3 & 3));
        get = stage + 64 * lane;
        twist = 16 * (lane >> 1 & 3);
        group = warp * run;
        plane = at.planes + (group + lane / 4) * 128 + lane % 4 * 16;
        number = at.numbers + (group + lane / 4) * Numbers<SUBS>::BYTES;
        settle(put, get, twist, plane, number, group);
    }
    __device__ __forceinline__ int step() const { return SLICES * run; } /* groups of a round */
    __device__ __forceinline__ bool on(int round) const {
        const int own = (int)threadIdx.x % 32 / 4;
        return own < run && round * step() + group + own < groups;
    }
    /* from: address of the lane's first four of the first round. Missing fours are left as they are, and their readers
     * discard the results. */
    __device__ __forceinline__ void bring(const float *from, int round, int slot) const {
        const int fours = 16 * min(run, groups - round * step() - group);
        from += round * step() * TILE_COLS;
        const uint32_t to = shared_address(memory) + put + slot * (STAGE_FOURS * 16);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (32 * i + (int)threadIdx.x % 32 < fours)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * 512), "l"(from + 128 * i)
                             : "memory");
    }
    __device__ __forceinline__ void brought(int slot, float v[16]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float4 four = *(const float4 *)(memory + get + slot * (STAGE_FOURS * 16) + (16 * i ^ twist));
            v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
        }
    }
    __device__ __forceinline__ void leave(const IntegerPart &part, int round) const {
        if (!on(round)) return;
        uint8_t *to = memory + plane + round * step() * 128;
        *(uint4 *)to = part.high;
        *(uint4 *)(to + 64) = part.low;
        if (threadIdx.x % 4) return;
        uint8_t *const numbers = memory + number + round * step() * Numbers<SUBS>::BYTES;
        if constexpr (SUBS == 1)
            *(float2 *)numbers =
                make_float2(integer_unit(part.step), integer_offset(part.step, part.sum[0] + part.sum[1]));
        else
            *(float4 *)numbers = make_float4(integer_unit(part.step), integer_offset(part.step, part.sum[0]),
                integer_offset(part.step, part.sum[1]), 0);
    }
};
__device__ __forceinline__ void copies_arrived() {
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    __syncwarp();
}
/* Loads the norm weights of the lane's 16 columns of a round; zeros if `on` is false. */
__device__ __forceinline__ void weights_take(const float *from, bool on, float v[16]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 four = on ? __ldg((const float4 *)from + i) : make_float4(0, 0, 0, 0);
        v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
    }
}

/* Prepares more than one round; as many as have room are in flight together. */
template <int SUBS>
__device__ __forceinline__ void rounds_prepare(const OnePreparing<SUBS> &own, const float *x, const float *weights,
    int rounds, float *square, volatile int *came) {
    float sum = 0;
#pragma unroll 1
    for (int first = 0; first < rounds; first += STAGE_ROUNDS) {
        const int many = min((int)STAGE_ROUNDS, rounds - first);
        __syncwarp();
#pragma unroll 1
        for (int k = 0; k < many; k++) own.bring(x, first + k, k);
        copies_arrived();
        if (threadIdx.x == 0) *came = 1;
#pragma unroll 1
        for (int k = 0; k < many; k++) {
            const int round = first + k;
            float v[16];
            own.brought(k, v);
            if (square) {
                const float all = integer_square(v);
                sum += own.on(round) ? all : 0;
                float w[16];
                weights_take(weights + round * own.step() * TILE_COLS, own.on(round), w);
#pragma unroll
                for (int c = 0; c < 16; c++) v[c] *= w[c];
            }
            own.leave(integer_part(v), round);
        }
    }
    if (square) *square = sum;
}

/* ---- ends of units ---- */

/* Operands of a unit's epilogue besides the sums, in a lane that has a row of it. */
struct OneEnding {
    float *out; /* NULL: there is no such row */
    float *copy;
    float factor, other, bias, other_bias, old;

    __device__ __forceinline__ void expect(const ProductWork &p, bool glu, int unit, float2 both) {
        int tile_row;
        const int index = weight_of(p, unit, tile_row);
        const Tiles &w = p.weight[index];
        const int row = tile_row * TILE_ROWS + threadIdx.x % TILE_ROWS;
        const bool on = row < w.rows;
        factor = both.x;
        other = both.y;
        /* adding −0 changes no value */
        bias = w.bias && on ? __ldg(w.bias + row) : -0.0f;
        other_bias = glu && p.weight[1].bias && on ? __ldg(p.weight[1].bias + row) : -0.0f;
        out = on ? p.out[index] + row : nullptr;
        copy = p.copy ? p.copy + row : nullptr;
    }
};

/* Finishes two units at a time, half of the lanes each. Operands of the next units are in flight, and the factors of
 * the next 32 units, one per lane. */
__device__ __forceinline__ void one_finish(
    const ProductWork &p, const OneLayout &at, uint8_t *memory, const GemvBarriers &b) {
    const int lane = threadIdx.x % 32, half = lane / TILE_ROWS;
    const bool glu = p.mode == PRODUCT_GLU, adds = p.mode == PRODUCT_ADD, divided = p.rank.theirs != nullptr;
    const int part = TILE_ROWS, buffer_floats = (glu ? 2 : 1) * part, area = at.area / 4;
    const auto unit_at = [&](int number) { return (int)(blockIdx.x + number * gridDim.x); };
    const auto factors_ahead = [&](int first) {
        const int unit = unit_at(first + lane);
        return unit < p.units ? unit_factors(p, glu, unit) : make_float2(0, 0);
    };
    float2 near = factors_ahead(0), far = factors_ahead(32);
    OneEnding next = {};
    const auto expect = [&](int number) {
        const float2 both = make_float2(__shfl_sync(~0u, near.x, number % 32), __shfl_sync(~0u, near.y, number % 32));
        next.out = nullptr;
        if (unit_at(number) < p.units) next.expect(p, glu, unit_at(number), both);
    };
    expect(half);
    wait_for_previous();
    next.old = adds && next.out ? load(next.out) : 0;
    const uint32_t mark = divided ? rank_mark(p.rank) : 0;
    const int64_t slot = divided ? rank_slot(p.rank) : 0;
    float input_factor = 1;
    if (p.norm.width) {
        barrier_wait(b.prepared, 0);
        input_factor =
            1.0f / sqrtf(squares_added((const float *)(memory + at.squares)) / (float)p.norm.width + p.norm.eps);
    }
    Turn buffer;
#pragma unroll 1
    for (int number = 0; unit_at(number) < p.units; number += 2) {
        const OneEnding ending = next;
        const float factor = input_factor * ending.factor, other = input_factor * ending.other;
        if ((number + 2) % 32 == 0) {
            near = far;
            far = factors_ahead(number + 2 + 32);
        }
        if (unit_at(number + 2) < p.units) {
            expect(number + 2 + half);
            next.old = adds && next.out ? load(next.out) : 0;
        }
        const bool two = unit_at(number + 1) < p.units;
        Turn second = buffer;
        second.next(SUM_BUFFERS);
        const float *from = (const float *)(memory + at.areas) + (two && half ? second.at : buffer.at) * buffer_floats;
        barrier_wait(b.summed + 8 * buffer.at, buffer.phase);
        if (two) barrier_wait(b.summed + 8 * second.at, second.phase);
        float v = slices_added(from, area, 0) * factor + ending.bias;
        if (glu) v = gated_usually(p.activation, v, slices_added(from + part, area, 0) * other + ending.other_bias);
        if (ending.out) {
            if (divided) {
                const int64_t row = ending.out - p.out[0];
                word_put((uint64_t *)(p.rank.theirs + slot) + row, v, mark);
                v = rank_add(p.rank, v, rank_word(p.rank, slot, mark, row));
            }
            *ending.out = adds ? ending.old + p.scale * v : v;
            if (ending.copy) *ending.copy = v;
        }
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(b.taken + 8 * buffer.at);
            if (two) barrier_arrive(b.taken + 8 * second.at);
        }
        buffer = second;
        if (two) buffer.next(SUM_BUFFERS);
    }
}

/* words: GEMV_WORDS of shared memory */
template <int KIND, int SUBS>
__device__ __forceinline__ void gemv_int_row(const ProductWork &p, const Ring &ring, uint64_t *words) {
    constexpr int TILE = tile_bytes<KIND, SUBS>();
    extern __shared__ __align__(128) uint8_t memory[]; /* slots, planes, areas, squares, numbers */
    if (!ring.late) let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const GemvBarriers b(words);
    b.make(ring.slots);
    const OneLayout at(p, ring);
    if (warp == ORDERING) {
        gemv_order(p, ring, memory, b);
        return;
    }
    if (warp == FINISHING) {
        one_finish(p, at, memory, b);
        return;
    }
    const bool glu = p.mode == PRODUCT_GLU;
    const int run = slice_run(p.groups), rounds = slice_rounds(p.groups), parts = glu ? 2 : 1;
    const OnePreparing<SUBS> own(p, at, run, memory);
    const int first = warp * run, scales = Kind<KIND>::CODE_BYTES + g * 8;
    int x = at.planes + first * 128 + g % 2 * 64 + t * 16, number = at.numbers + first * Numbers<SUBS>::BYTES;
    int tiles = warp * ring.share * TILE, sums = at.areas + warp * at.area + g * 4;
    int deal = ring.twos ? deal_of<2>(min(run, p.groups - first)) : deal_of<1>(min(ring.share, p.groups - first));
    settle(x, number, tiles, sums, deal);
    const float *const mine = p.x + first * TILE_COLS + 4 * lane,
                       *const weights = p.norm.weight + (first + lane / 4) * TILE_COLS + t * 16;
    float *const square = p.norm.width ? (float *)(memory + at.squares) + warp * 32 + lane : nullptr;
    if (rounds == 1) {
        const bool on = own.on(0);
        float v[16], w[16];
        if (square) weights_take(weights, on, w);
        wait_for_previous();
        own.bring(mine, 0, 0);
        copies_arrived();
        if (threadIdx.x == 0) *b.came = 1;
        own.brought(0, v);
        if (square) {
            const float all = integer_square(v);
            *square = on ? all : 0;
#pragma unroll
            for (int i = 0; i < 16; i++) v[i] *= w[i];
        }
        own.leave(integer_part(v), 0);
    } else {
        wait_for_previous();
        rounds_prepare(own, mine, weights, rounds, square, b.came);
    }
    __syncwarp();
    if (square && lane == 0) barrier_arrive(b.prepared);
    if (ring.late) let_next_begin();

    Turn turn, buffer;
    /* Stores [16] of a part; lanes with t = 0 have both sums of a row */
    const auto put = [&](int part, const float sum[1][2]) {
        float *to = (float *)(memory + sums) + (buffer.at * parts + part) * TILE_ROWS;
        if (t) return;
        to[0] = sum[0][0];
        to[8] = sum[0][1];
    };
    const auto room = [&] { barrier_wait(b.taken + 8 * buffer.at, buffer.phase ^ 1); };
    const auto arrive_summed = [&] {
        __syncwarp();
        if (lane == 0) barrier_arrive(b.summed + 8 * buffer.at);
        buffer.next(SUM_BUFFERS);
    };
    if (ring.twos) { /* a unit's gate and up, or two units */
#pragma unroll 1
        for (int unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
            const bool both = glu || unit + (int)gridDim.x < p.units;
            const int here = turn.at;
            barrier_wait(b.full + 8 * here, turn.phase);
            turn.next(ring.slots);
            const int other = both ? turn.at : here;
            if (both) {
                barrier_wait(b.full + 8 * other, turn.phase);
                turn.next(ring.slots);
            }
            float sum[2][1][2] = {};
            const uint8_t *tile[2] = {
                memory + tiles + here * ring.slot_bytes, memory + tiles + other * ring.slot_bytes};
            const uint8_t *inputs[1] = {memory + x}, *factor[1] = {memory + number};
            integer_run<KIND, SUBS, 1, 2>(sum, tile, scales, inputs, factor, deal);
            __syncwarp();
            if (lane == 0) {
                barrier_arrive(b.empty + 8 * here);
                if (both) barrier_arrive(b.empty + 8 * other);
            }
            room();
            put(0, sum[0]);
            if (!glu) arrive_summed();
            if (!both) break;
            if (!glu) {
                room();
                unit += gridDim.x;
            }
            put(glu ? 1 : 0, sum[1]);
            arrive_summed();
        }
        return;
    }
#pragma unroll 1
    for (int unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
#pragma unroll 1
        for (int part = 0; part < parts; part++) {
            float sum[1][1][2] = {};
#pragma unroll 1
            for (int round = 0; round < rounds; round++)
#pragma unroll 1
                for (int piece = 0; piece < ring.pieces; piece++) {
                    const int group = (round * SLICES + warp) * run + piece * ring.share - first;
                    int own_deal = deal;
                    if (round + piece)
                        own_deal = deal_of<1>(min(min(ring.share, run - piece * ring.share), p.groups - first - group));
                    const uint8_t *tile[1] = {memory + tiles + turn.at * ring.slot_bytes},
                                  *inputs[1] = {memory + x + group * 128},
                                  *factor[1] = {memory + number + group * Numbers<SUBS>::BYTES};
                    barrier_wait(b.full + 8 * turn.at, turn.phase);
                    integer_run<KIND, SUBS, 1, 1>(sum, tile, scales, inputs, factor, own_deal);
                    __syncwarp();
                    if (lane == 0) barrier_arrive(b.empty + 8 * turn.at);
                    turn.next(ring.slots);
                }
            if (part == 0) room();
            put(part, sum[0]);
        }
        arrive_summed();
    }
}
#endif
