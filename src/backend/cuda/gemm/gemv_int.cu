/* Products of up to eight decode rows (gemm_int.cuh) on compute capability 9.0 and later; one aligned row goes to
 * gemv_int_row.cuh. As in gemv_ring.cu, weights pass through a ring of slots; one warp issues copies, which begin
 * before the previous kernel has ended; eight warps multiply, each its slice, for which it prepares the inputs itself;
 * one warp adds the slices and finishes. Short slots are multiplied in pairs.
 *
 * The eight columns of a multiplication are the planes of four rows: the high and low bytes of a row are neighbours, so
 * that a lane has both sums of its row. More rows take a second multiplication. */
#include "backend/cuda/gemm/gemv_int.cuh"
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* A warp's share of rows: its slice's columns. */
template <int SUBS> struct Preparing {
    const ProductWork &p;
    const int run, rounds, warp, lane;
    uint8_t *planes;
    float *numbers;
    float *squares; /* [row][warp][lane] sums of squares for the norm */
    float4 *stage;  /* stage of the warp */
    volatile int *came;

    __device__ __forceinline__ int group(int round) const { return (round * SLICES + warp) * run + lane / 4; }
    __device__ __forceinline__ bool on(int round) const { return lane / 4 < run && group(round) < p.groups; }
    /* Loads the lane's 16 columns of a round from a row or norm weights of any shape; 0 beyond them. */
    __device__ __forceinline__ void own(const float *row, int round, float v[16]) const {
        const int first = group(round) * TILE_COLS + lane % 4 * 16;
#pragma unroll
        for (int i = 0; i < 16; i++) v[i] = on(round) && first + i < p.cols ? load(row + first + i) : 0;
    }
    /* The same for aligned rows of whole groups: norm weights; inputs */
    __device__ __forceinline__ void own_weights(const float *row, int round, float v[16]) const {
        const float4 *from = (const float4 *)(row + group(round) * TILE_COLS + lane % 4 * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) put_four(v + 4 * i, on(round) ? __ldg(from + i) : make_float4(0, 0, 0, 0));
    }
    /* Copies `rounds` rounds into the warp's part of shared memory, where fours lie without bank conflicts for writing
     * or reading; arrived() returns when they have arrived. */
    __device__ __forceinline__ void bring(const float *row, int round, int rounds) const {
        __syncwarp();
        for (int k = 0; k < rounds; k++) {
            const int first = ((round + k) * SLICES + warp) * run * TILE_COLS,
                      count = min(run * TILE_COLS, p.cols - first);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int four = 32 * i + lane;
                const bool there = 4 * four < count;
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                                 shared_address(stage + k * STAGE_FOURS + (four ^ (four >> 3 & 3)))),
                             "l"(row + (there ? first + 4 * four : 0)), "r"(there ? 16 : 0)
                             : "memory");
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    __device__ __forceinline__ void arrived() const {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
        *came = 1;
    }
    __device__ __forceinline__ void brought(int k, float v[16]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) put_four(v + 4 * i, stage[k * STAGE_FOURS + 4 * lane + (i ^ (lane >> 1 & 3))]);
    }
    static __device__ __forceinline__ void put_four(float v[4], const float4 &four) {
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    }
    __device__ __forceinline__ void put(const IntegerPart &part, int row, int round) const {
        if (!on(round)) return;
        const int at = row * p.groups + group(round), t = lane % 4;
        *(uint4 *)(planes + at * 128 + t * 16) = part.high;
        *(uint4 *)(planes + at * 128 + 64 + t * 16) = part.low;
        if constexpr (SUBS == 1) {
            if (t == 0)
                *(float2 *)(numbers + at * 2) =
                    make_float2(integer_unit(part.step), integer_offset(part.step, part.sum[0] + part.sum[1]));
        } else {
            if (t == 0)
                *(float4 *)(numbers + at * 4) = make_float4(integer_unit(part.step),
                    integer_offset(part.step, part.sum[0]), integer_offset(part.step, part.sum[1]), 0);
        }
    }
    /* v: the lane's columns. weights: those of the norm, if there is one. */
    __device__ __forceinline__ void weigh(
        float v[16], const float weights[16], int row, int round, float &square) const {
        if (!p.norm.width) return;
        square += integer_square(v);
        if (round + 1 == rounds) squares[(row * WARPS + warp) * 32 + lane] = square;
#pragma unroll
        for (int k = 0; k < 16; k++) v[k] *= weights[k];
    }
    /* As many rounds of a row as have room are in flight together; if a row has only one round, that of the next row as
     * well. */
    __device__ __forceinline__ void whole() const {
        const bool normed = p.norm.width != 0;
        float weights[16];
        if (normed) own_weights(p.norm.weight, 0, weights);
        const int together = stage_rounds(rounds);
        wait_for_previous();
        bring(p.x, 0, together);
#pragma unroll 1
        for (int row = 0; row < p.rows; row++) {
            const float *x = p.x + (int64_t)row * p.cols;
            float square = 0;
#pragma unroll 1
            for (int first = 0; first < rounds; first += STAGE_ROUNDS) {
                const int many = min(together, rounds - first);
                if (first > 0 || (row > 0 && rounds > 1)) bring(x, first, many);
                arrived();
                const auto some = [&](int k, auto count) {
                    constexpr int COUNT = decltype(count)::value;
                    float v[COUNT][16];
                    IntegerPart part[COUNT];
#pragma unroll
                    for (int i = 0; i < COUNT; i++) brought(k + i, v[i]);
                    if (COUNT == 1 && rounds == 1 && row + 1 < p.rows) bring(x + p.cols, 0, 1);
#pragma unroll
                    for (int i = 0; i < COUNT; i++) {
                        const int round = first + k + i;
                        if (normed && (round > 0 || (row > 0 && rounds > 1)))
                            own_weights(p.norm.weight, round, weights);
                        weigh(v[i], weights, row, round, square);
                    }
#pragma unroll
                    for (int i = 0; i < COUNT; i++) part[i] = integer_part(v[i]);
#pragma unroll
                    for (int i = 0; i < COUNT; i++) put(part[i], row, first + k + i);
                };
                int k = 0;
#pragma unroll 1
                for (; k + 1 < many; k += 2) some(k, Count<2>()); /* exchanges of one overlap with the other */
                if (k < many) some(k, Count<1>());
            }
        }
    }
    static __device__ __noinline__ void odd(const Preparing self) {
        wait_for_previous();
        const ProductWork &p = self.p;
#pragma unroll 1
        for (int row = 0; row < p.rows; row++) {
            float square = 0;
#pragma unroll 1
            for (int round = 0; round < self.rounds; round++) {
                float v[16], weights[16];
                self.own(p.x + (int64_t)row * p.cols, round, v);
                *self.came = 1;
                if (p.norm.width) self.own(p.norm.weight, round, weights);
                self.weigh(v, weights, row, round, square);
                self.put(integer_part(v), row, round);
            }
        }
    }
    __device__ __forceinline__ void all() const {
        const bool aligned = p.cols % TILE_COLS == 0 && (((uintptr_t)p.x | (uintptr_t)p.norm.weight) & 15) == 0;
        if (aligned)
            whole();
        else
            odd(*this);
        __syncwarp();
    }
};

/* Operands of a unit's epilogue besides the sums. A lane has a row of the tile, and every second row of inputs. */
template <int ROWS> struct UnitEnding {
    int row, width; /* row: beyond the width if there is none */
    float factor, other, bias, other_bias, old[ROWS / 2];
    float *out;

    __device__ __forceinline__ void expect(const ProductWork &p, bool glu, int unit, float2 both) {
        int tile_row;
        const int index = weight_of(p, unit, tile_row);
        const Tiles &w = p.weight[index];
        factor = both.x;
        other = both.y;
        width = w.rows;
        row = tile_row * TILE_ROWS + threadIdx.x % TILE_ROWS;
        /* adding −0 changes no value */
        bias = w.bias && row < width ? __ldg(w.bias + row) : -0.0f;
        other_bias = glu && p.weight[1].bias && row < width ? __ldg(p.weight[1].bias + row) : -0.0f;
        out = p.out[index] + row;
    }
    /* Called after the previous kernels have written it. */
    __device__ __forceinline__ void take(int rows, bool adds) {
#pragma unroll
        for (int k = 0; k < ROWS / 2; k++) {
            const int t = 2 * k + (int)threadIdx.x % 32 / TILE_ROWS;
            old[k] = adds && row < width && t < rows ? load(out + (int64_t)t * width) : 0;
        }
    }
};

/* Finishes units one after another. Operands of the next unit are in flight, and the factors of the next 32 units, one
 * per lane. */
template <int ROWS>
__device__ __forceinline__ void units_finish(
    const ProductWork &p, const float *areas, int area, const float *squares, const GemvBarriers &b) {
    const int lane = threadIdx.x % 32, half = lane / TILE_ROWS, rows = p.rows;
    const bool glu = p.mode == PRODUCT_GLU, adds = p.mode == PRODUCT_ADD, divided = p.rank.theirs != nullptr;
    constexpr int PART = ROWS * TILE_ROWS;
    Turn buffer;
    const auto unit_at = [&](int number) { return (int)(blockIdx.x + number * gridDim.x); };
    const auto factors_ahead = [&](int first) {
        const int unit = unit_at(first + lane);
        return unit < p.units ? unit_factors(p, glu, unit) : make_float2(0, 0);
    };
    float2 near = factors_ahead(0), far = factors_ahead(32);
    UnitEnding<ROWS> next = {};
    const auto expect = [&](int number) {
        const float2 both = make_float2(__shfl_sync(~0u, near.x, number % 32), __shfl_sync(~0u, near.y, number % 32));
        next.row = next.width = 0;
        if (unit_at(number) < p.units) next.expect(p, glu, unit_at(number), both);
    };
    expect(0);
    wait_for_previous();
    next.take(rows, adds);
    const uint32_t mark = divided ? rank_mark(p.rank) : 0;
    const int64_t slot = divided ? rank_slot(p.rank) : 0;
    float input_factor = 1; /* factor of row number `lane` */
    if (p.norm.width) {
        barrier_wait(b.prepared, 0);
#pragma unroll 1
        for (int t = 0; t < rows; t++) {
            const float sum = squares_added(squares + t * WARPS * 32);
            input_factor = t == lane ? sum : input_factor;
        }
        input_factor = 1.0f / sqrtf(input_factor / (float)p.norm.width + p.norm.eps);
    }
#pragma unroll 1
    for (int number = 0; unit_at(number) < p.units; number++) {
        const UnitEnding<ROWS> ending = next;
        if ((number + 1) % 32 == 0) {
            near = far;
            far = factors_ahead(number + 1 + 32);
        }
        if (unit_at(number + 1) < p.units) {
            expect(number + 1);
            next.take(rows, adds);
        }
        const float *from = areas + buffer.at * (glu ? 2 : 1) * PART;
        barrier_wait(b.summed + 8 * buffer.at, buffer.phase);
        /* In a sum over two GPUs all terms are sent before the first is waited for. */
#pragma unroll 1
        for (int pass = divided ? 0 : 1; pass < 2; pass++)
#pragma unroll 1
            for (int k = 0; 2 * k < rows; k++) {
                const int t = 2 * k + half;
                const float factor = __shfl_sync(~0u, input_factor, t);
                float v = slices_added(from, area, t) * (factor * ending.factor) + ending.bias;
                if (glu)
                    v = gated_usually(p.activation, v,
                        slices_added(from + PART, area, t) * (factor * ending.other) + ending.other_bias);
                if (t >= rows || ending.row >= ending.width) continue;
                const int64_t at = (int64_t)t * ending.width;
                if (divided) {
                    if (pass == 0) {
                        word_put((uint64_t *)(p.rank.theirs + slot) + at + ending.row, v, mark);
                        continue;
                    }
                    v = rank_add(p.rank, v, rank_word(p.rank, slot, mark, at + ending.row));
                }
                float old = ending.old[0];
#pragma unroll
                for (int i = 1; i < ROWS / 2; i++) old = k == i ? ending.old[i] : old;
                ending.out[at] = adds ? old + p.scale * v : v;
                if (p.copy) p.copy[at + ending.row] = v;
            }
        __syncwarp();
        if (lane == 0) barrier_arrive(b.taken + 8 * buffer.at);
        buffer.next(SUM_BUFFERS);
    }
}
#endif

template <int KIND, int SUBS, int ROWS>
__global__ void __launch_bounds__(32 * ALL_WARPS, 2)
    gemv_int_kernel(const __grid_constant__ ProductWork p, const __grid_constant__ Ring ring) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    constexpr int CHAINS = chains_of(ROWS);
    extern __shared__ __align__(128) uint8_t memory[]; /* slots, planes, areas, squares, numbers */
    __shared__ uint64_t words[GEMV_WORDS];
    if (!ring.late) let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const GemvBarriers b(words);
    b.make(ring.slots);
    const bool glu = p.mode == PRODUCT_GLU;
    uint8_t *const planes = memory + ring.slots * ring.slot_bytes;
    float *const areas = (float *)(planes + p.rows * p.groups * 128);
    const int area = area_floats(p.groups, glu ? 2 : 1, ROWS);
    float *const squares = areas + MULTIPLIERS * area;
    uint8_t *const numbers = (uint8_t *)(squares + (p.norm.width ? p.rows * WARPS * 32 : 0));
    if (warp == ORDERING) {
        gemv_order(p, ring, memory, b);
        return;
    }
    if (warp == FINISHING) {
        units_finish<ROWS>(p, areas, area, squares, b);
        return;
    }
    const int run = slice_run(p.groups), rounds = slice_rounds(p.groups);
    const Preparing<SUBS> preparing = {
        p, run, rounds, warp, lane, planes, (float *)numbers, squares, (float4 *)(areas + warp * area), b.came};
    preparing.all();
    if (p.norm.width && lane == 0) barrier_arrive(b.prepared);
    if (ring.late) let_next_begin();

    const int scales = Kind<KIND>::CODE_BYTES + g * 8;
    const uint8_t *x[CHAINS], *number[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; c++) {
        x[c] = planes + min(c * CHAIN_ROWS + g / 2, p.rows - 1) * p.groups * 128 + g % 2 * 64 + t * 16;
        number[c] = numbers + min(c * CHAIN_ROWS + t, p.rows - 1) * p.groups * Numbers<SUBS>::BYTES;
    }
    Turn turn, buffer;
    const int parts = glu ? 2 : 1;
    /* The place of the lane's sums in [row of inputs][16] of a part */
    const auto place_of = [&](int part) {
        return areas + warp * area + (buffer.at * parts + part) * ROWS * TILE_ROWS + t * TILE_ROWS + g;
    };
    const auto put = [&](float *to, const float sum[CHAINS][2]) {
#pragma unroll
        for (int c = 0; c < CHAINS; c++) {
            if (c * CHAIN_ROWS + t >= p.rows) continue;
            to[c * CHAIN_ROWS * TILE_ROWS] = sum[c][0];
            to[c * CHAIN_ROWS * TILE_ROWS + 8] = sum[c][1];
        }
    };
    const auto room = [&] { barrier_wait(b.taken + 8 * buffer.at, buffer.phase ^ 1); };
    const auto arrive_summed = [&] {
        __syncwarp();
        if (lane == 0) barrier_arrive(b.summed + 8 * buffer.at);
        buffer.next(SUM_BUFFERS);
    };
    const auto inputs_at = [&](int group, const uint8_t *inputs[CHAINS], const uint8_t *factor[CHAINS]) {
#pragma unroll
        for (int c = 0; c < CHAINS; c++) {
            inputs[c] = x[c] + group * 128;
            factor[c] = number[c] + group * Numbers<SUBS>::BYTES;
        }
    };
    const uint8_t *const own =
        memory + warp * ring.share * tile_bytes<KIND, SUBS>(); /* the warp's share of the first slot */
    if constexpr (CHAINS == 1) {
        if (ring.twos) { /* a unit's gate and up, or two units */
            const int first = warp * run, count = min(run, p.groups - first);
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
                float sum[2][CHAINS][2] = {};
                const uint8_t *tile[2] = {own + here * ring.slot_bytes, own + other * ring.slot_bytes};
                const uint8_t *inputs[CHAINS], *factor[CHAINS];
                inputs_at(first, inputs, factor);
                integer_run<KIND, SUBS, CHAINS, 2>(sum, tile, scales, inputs, factor, deal_of<2>(count));
                __syncwarp();
                if (lane == 0) {
                    barrier_arrive(b.empty + 8 * here);
                    if (both) barrier_arrive(b.empty + 8 * other);
                }
                room();
                put(place_of(0), sum[0]);
                if (!glu) arrive_summed();
                if (!both) break;
                if (!glu) {
                    room();
                    unit += gridDim.x;
                }
                put(place_of(glu ? 1 : 0), sum[1]);
                arrive_summed();
            }
            return;
        }
    }
    for (int unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
        room();
#pragma unroll 1
        for (int part = 0; part < parts; part++) {
            float sum[1][CHAINS][2] = {};
#pragma unroll 1
            for (int round = 0; round < rounds; round++)
#pragma unroll 1
                for (int piece = 0; piece < ring.pieces; piece++) {
                    const int first = (round * SLICES + warp) * run + piece * ring.share;
                    const int count = min(min(ring.share, run - piece * ring.share), p.groups - first);
                    const uint8_t *tile[1] = {own + turn.at * ring.slot_bytes}, *inputs[CHAINS], *factor[CHAINS];
                    inputs_at(first, inputs, factor);
                    barrier_wait(b.full + 8 * turn.at, turn.phase);
                    integer_run<KIND, SUBS, CHAINS, 1>(sum, tile, scales, inputs, factor, deal_of<1>(count));
                    __syncwarp();
                    if (lane == 0) barrier_arrive(b.empty + 8 * turn.at);
                    turn.next(ring.slots);
                }
            put(place_of(part), sum[0]);
        }
        arrive_summed();
    }
#endif
}

bool gemv_int_fits(const ProductWork &w, int shared_max) {
    return w.rows <= GEMV_ROWS_MAX && ring_of(w, parts_of(w), besides_of(w) + FIXED, shared_max, true).slots >= 2;
}

struct GemvIntLaunch {
    cudaStream_t stream;
    const ProductWork *work;
    const GemvShape *shape;
    int shared_max;
    template <int KIND, int SUBS> cudaError_t of_rows() const {
        const auto go = [&](auto kernel) { return gemv_launch(stream, kernel, *work, *shape, shared_max); };
        if (chains_of(work->rows) == 1) return go(gemv_int_kernel<KIND, SUBS, CHAIN_ROWS>);
        return go(gemv_int_kernel<KIND, SUBS, 2 * CHAIN_ROWS>);
    }
    template <int KIND> cudaError_t operator()() const {
        if constexpr (integer_kind(KIND)) {
            return work->weight[0].subs == 1 ? of_rows<KIND, 1>() : of_rows<KIND, 2>();
        }
        return cudaErrorInvalidValue;
    }
};
cudaError_t product_gemv_int(
    cudaStream_t stream, int kind, const ProductWork &work, int multiprocessors, int shared_max, bool *fits) {
    const GemvShape shape = integer_kind(kind) ? gemv_shape(work, multiprocessors, shared_max) : GemvShape{};
    *fits = shape.blocks > 0;
    if (!*fits) return cudaSuccess;
    if (is_single(work)) return product_gemv_int_row(stream, work, shape, shared_max);
    return with_kind(kind, GemvIntLaunch{stream, &work, &shape, shared_max});
}
