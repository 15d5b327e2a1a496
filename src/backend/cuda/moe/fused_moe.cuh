/* Device code of the fused MoE block (fused_moe.cu): results of the router, products of the chosen experts, their sum.
 */
#pragma once
#include "backend/cuda/runtime/bulk.cuh"
#include "backend/cuda/gemm/gemv_int.cuh"
#include "backend/cuda/moe/fused_moe_row.cuh"
#include "backend/cuda/gemm/gemm.cuh"
#include "backend/cuda/moe/router.cuh"

/* A row's inputs: of each group the planes of high and low bytes, in each 16 of lane t after the other, and then the
 * offset of either half, the unit, and the offset of the group. */
enum { LOW_AT = 64, TERMS_AT = 128, RECORD = 144 };
__host__ __device__ __forceinline__ int64_t inputs_bytes(int groups) { return (int64_t)groups * RECORD; }

__device__ __forceinline__ float4 terms_of(float step, int first, int second) {
    return make_float4(integer_offset(step, first), integer_offset(step, second), integer_unit(step),
        integer_offset(step, first + second));
}

/* ---- the router ---- */

/* The router's result for a row: for each run of groups of columns the sums of its tile rows, then the sums of squares.
 */
constexpr int ROUTER_RUN = WARPS;
struct RouterShape {
    int own, all, chunks, stride; /* tile rows, with the shared expert's; floats of a run's result */
    __host__ __device__ __forceinline__ explicit RouterShape(const MoeRouter &p)
        : own((p.weight.rows + TILE_ROWS - 1) / TILE_ROWS), all(own + (p.shared.rows > 0)),
          chunks((p.weight.groups + ROUTER_RUN - 1) / ROUTER_RUN), stride(all * TILE_ROWS + 4) {}
};

/* A row's logits from the router's partial sums; applies the norm's factor to the thread's logits. BLOCK threads;
 * thread i mod BLOCK has written logit i. */
__device__ __forceinline__ float router_found(const MoeRouter &p, int64_t row, Choice &c) {
    constexpr int BATCH = 4; /* loads under way together */
    const RouterShape shape(p);
    const bool weighed = integer_norm(p.norm);
    float factor = 1;
#pragma unroll 1
    for (int i = threadIdx.x; i < shape.all * TILE_ROWS; i += BLOCK) {
        const float *found = p.found + row * shape.chunks * shape.stride;
        float sum = 0, squares = 0;
#pragma unroll 1
        for (int run = 0; run < shape.chunks; run += BATCH, found += BATCH * shape.stride) {
            float v[BATCH], square[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; k++) {
                const bool on = run + k < shape.chunks;
                v[k] = on ? load(found + k * shape.stride + i) : 0;
                square[k] = on && weighed ? load(found + k * shape.stride + shape.all * TILE_ROWS) : 0;
            }
#pragma unroll
            for (int k = 0; k < BATCH; k++) sum += v[k], squares += square[k];
        }
        if (weighed) factor = 1.0f / sqrtf(squares / (float)p.width + p.norm.eps);
        const bool shared = i >= shape.own * TILE_ROWS;
        const Tiles &w = shared ? p.shared : p.weight;
        const int at = shared ? i - shape.own * TILE_ROWS : i;
        if (at < w.rows)
            (shared ? c.shared : c.score)[at] =
                product_sum(sum, factor, 1, w.bias != nullptr, w.bias ? __ldg(w.bias + at) : 0);
    }
    return factor;
}

/* Bytes of a choice in shared memory that stay valid; the rest may be overwritten. */
constexpr int CHOICE_KEPT = (int)offsetof(Choice, score), CHOICE_BYTES = (int)(sizeof(Choice) + 15) / 16 * 16;

/* ---- products ---- */

enum { PRODUCT_BLOCK = 32 * (WARPS + 1), EXPERT_SLOTS_MAX = 16, EXPERT_WORDS = 2 * EXPERT_SLOTS_MAX /* barriers */ };
enum { UNIT_ROWS = 4 /* tile rows: a group of the next product's columns */, SUM_STRIDE = 72 };

/* Units of a matrix. */
__host__ __device__ __forceinline__ int units_of(int rows) {
    return (rows + UNIT_ROWS * TILE_ROWS - 1) / (UNIT_ROWS * TILE_ROWS);
}

/* Tiles that a slot has room for: a round of a tile row. */
__host__ __device__ __forceinline__ int slot_tiles(int groups) {
    const int all = SLICES * slice_run(groups);
    return all < groups ? all : groups;
}

/* Sums of an expert's slices; one float more puts neighbours into other banks. */
constexpr int SUM_FLOATS = SLICES * TILE_ROWS + 1;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* Prefetches the constant data of banks that is read later. */
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

/* Pieces into slots, in order; source(i, bytes): the address of piece i. By a warp: issuing one copy takes long, so
 * several lanes issue at once, at first one per slot, then two. */
template <class Source>
__device__ __forceinline__ void pieces_order(int pieces, int &at_once, const Slots &slots, Turn &turn, uint32_t memory,
    uint32_t full, uint32_t empty, uint64_t policy, const Source &source) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int done = 0; done < pieces; at_once = 2) {
        const int many = min(at_once, pieces - done);
        int slot = turn.at + lane;
        uint32_t phase = turn.phase;
        if (slot >= slots.count) {
            slot -= slots.count;
            phase ^= 1;
        }
        if (lane < many) {
            uint32_t bytes;
            const uint8_t *from = source(done + lane, bytes);
            barrier_wait(empty + 8 * slot, phase ^ 1);
            barrier_expect(full + 8 * slot, bytes);
            copy_bulk(memory + slot * slots.bytes, from, bytes, full + 8 * slot, policy);
        }
        __syncwarp();
        done += many;
        turn.at += many;
        if (turn.at >= slots.count) {
            turn.at -= slots.count;
            turn.phase ^= 1;
        }
    }
}

/* Addresses of a lane's inputs: x[n] of the member and plane that its column of B is, terms[n] of the member whose sums
 * it gets. */
template <int PARTS> struct Inputs { const uint8_t *x[PARTS], *terms[PARTS]; };

/* COUNT neighbouring tiles of two tile rows times the inputs of 4 · PARTS members; APART: the second row has inputs of
 * its own, at a constant distance in bytes. */
template <int KIND, int SUBS, int PARTS, bool APART, int COUNT>
__device__ __forceinline__ void tiles_add(
    float acc[2][PARTS][2], const uint8_t *one, const uint8_t *two, const Inputs<PARTS> &inputs, int at, int apart) {
    constexpr int ROWS = 2, OWN = APART ? 2 : 1, BYTES = Kind<KIND>::CODE_BYTES + SUBS * 64;
    const int lane = threadIdx.x % 32, t = lane % 4;
    Piece<KIND> piece[COUNT][ROWS];
    uint2 scales[COUNT][ROWS][SUBS];
    uint4 b[COUNT][OWN][PARTS];
    float4 term[COUNT][OWN][PARTS];
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const uint8_t *tile = (r ? two : one) + u * BYTES;
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
                const float2 low = integer_pair<KIND>(scales[u][r][sub].x),
                             high = integer_pair<KIND>(scales[u][r][sub].y);
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
__device__ __forceinline__ void run_add(float acc[2][PARTS][2], const uint8_t *one, const uint8_t *two, int count,
    const Inputs<PARTS> &inputs, int at, int apart) {
    constexpr int MOST = PARTS * SUBS * Kind<KIND>::WORDS > 4 ? 1 : 2, BYTES = Kind<KIND>::CODE_BYTES + SUBS * 64;
    int i = 0;
#pragma unroll 1
    for (; i + MOST <= count; i += MOST, one += MOST * BYTES, two += MOST * BYTES)
        tiles_add<KIND, SUBS, PARTS, APART, MOST>(acc, one, two, inputs, at + i * RECORD, apart);
    if constexpr (MOST > 1)
        if (i < count) tiles_add<KIND, SUBS, PARTS, APART, 1>(acc, one, two, inputs, at + i * RECORD, apart);
}
/* SUBS 0: determined by the weights at run time. */
template <int KIND, int SUBS, int PARTS, bool APART>
__device__ __forceinline__ void run_add(float acc[2][PARTS][2], const Tiles &w, const uint8_t *one, const uint8_t *two,
    int count, const Inputs<PARTS> &inputs, int at, int apart) {
    if (SUBS ? SUBS == 1 : w.subs == 1)
        run_add<KIND, 1, PARTS, APART>(acc, one, two, count, inputs, at, apart);
    else
        run_add<KIND, 2, PARTS, APART>(acc, one, two, count, inputs, at, apart);
}

/* Rounds of two tile rows (the second may be invalid) times the inputs: this warp's slice. */
template <int KIND, int SUBS, int PARTS, bool APART>
__device__ __forceinline__ void rows_add(float acc[2][PARTS][2], const Tiles &w, bool both, const Slots &slots,
    Turn &turn, const uint8_t *memory, uint32_t full, uint32_t empty, const Inputs<PARTS> &inputs, int apart, int run) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, all = SLICES * run;
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
        run_add<KIND, SUBS, PARTS, APART>(acc, w, one, two, count, inputs, at * RECORD, apart);
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(empty + 8 * here);
            if (both) barrier_arrive(empty + 8 * other);
        }
    }
}

/* Copies this warp's slices of some rows of inputs from from(i) to `to`, rows `stride` apart. */
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

/* A group's 64 columns, two neighbours of each lane, as inputs of the next product. The numbers are integer_part()'s.
 */
__device__ __forceinline__ void pair_leave(uint8_t *to, float one, float two) {
    const int lane = threadIdx.x % 32;
    const float m = __uint_as_float(
        __reduce_max_sync(~0u, max(__float_as_uint(one) & 0x7fffffff, __float_as_uint(two) & 0x7fffffff)));
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

/* A block takes neighbouring units, each four tile rows of one chunk's matrix, or of its gate and up in turn, unless
 * both are one matrix; its eight warps are the slices of the sum, one more orders copies. MOST: members of a chunk, at
 * most. One: each block has one unit of a row's expert and chooses the experts by itself. */
template <int KIND, int SUBS, bool GLU, int MOST>
__device__ __forceinline__ void experts_product(const MoeProduct &p, const Slots &slots, uint64_t *barriers) {
    constexpr bool ALONE = MOST == 1;
    constexpr int GATED = GLU ? 2 : 1, PARTS = (MOST + 3) / 4, SUM_ROWS = SLICES * MOST, SUMS = SUM_ROWS * SUM_STRIDE;
    const bool single = !GLU || p.bank[1] == p.bank[0]; /* one matrix */
    extern __shared__ __align__(128) uint8_t memory[];  /* slots, inputs, a choice, in which come sums */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t full = shared_address(barriers), empty = full + 8 * EXPERT_SLOTS_MAX;
    const int stride = (int)inputs_bytes(p.most.groups);
    uint8_t *inputs = memory + slots.count * slots.bytes;
    Choice &choice = *(Choice *)(inputs + MOST * stride);
    float *sums = choice.score, own_factor = 1;
    slots_make(slots, full, empty);
    for (int part = 0; part < GATED; part++) banks_touch(p.bank[part], p.experts);
    /* One: x is the unit of the expert, y which of the row's, z the row. Further y have further units of the last one.
     */
    const int blocks = units_of(p.most.rows), which = ALONE ? min((int)blockIdx.y, p.each - 1) : 0;
    wait_for_previous();
    if (!ALONE) let_next_begin();
    int begin = 0, end = 1;
    if constexpr (ALONE) {
        if (warp < MULTIPLIERS) {
            own_factor = __shfl_sync(~0u, router_found(p.router, blockIdx.z, choice), 0);
            choose_index(p.router.route, choice);
        }
        __syncthreads();
        /* Only now: moe_sum() reads what the router left before this kernel has ended, and its weights are not to
         * come before this one's. */
        let_next_begin();
    } else {
        const int units = __ldcg(p.chunks) * blocks, each = (units + (int)gridDim.x - 1) / (int)gridDim.x;
        begin = blockIdx.x * each;
        end = min(units, begin + each);
    }
    const auto chunk_of = [&](int unit) { return ALONE ? (int)blockIdx.z * p.each + which : unit / blocks; };
    const auto first_of = [&](int unit) {
        return (ALONE ? (int)(blockIdx.x + (blockIdx.y - which) * gridDim.x) : unit % blocks) * UNIT_ROWS;
    };
    const auto expert_of = [&](int chunk) {
        return ALONE ? choice.index[which] : __ldcg(p.chunks + CHUNKS_AT + CHUNK_INTS * chunk);
    };
    Turn turn;
    if (warp == ORDERING) {
        const uint64_t policy = policy_first();
        Tiles w[GATED];
        int at_once = slots.count;
        for (int unit = begin, now = -1; unit < end; unit++) {
            if ((int)chunk_of(unit) != now) {
                now = chunk_of(unit);
                const int expert = expert_of(now);
#pragma unroll
                for (int part = 0; part < GATED; part++) w[part] = p.bank[part][expert];
            }
            const int first = first_of(unit);
            const int rows = min((int)UNIT_ROWS, (w[0].rows + TILE_ROWS - 1) / TILE_ROWS - first);
            /* Pairs of tile rows side by side, round by round. */
            const int rounds = slice_rounds(w[0].groups), all = slot_tiles(w[0].groups);
            const auto source = [&](int i, uint32_t &bytes) {
                const int pair = rounds == 1 ? i / 2 : i / (2 * rounds);
                const bool one = single && 2 * pair + 1 == rows;
                i -= pair * 2 * rounds;
                const int round = one ? i : i / 2, part = one ? 0 : i % 2,
                          row = first + (single ? 2 * pair + part : pair);
                const uint8_t *data = !single && part ? w[GATED - 1].data : w[0].data;
                bytes = min(all, w[0].groups - round * all) * w[0].bytes;
                return data + ((int64_t)row * w[0].groups + round * all) * w[0].bytes;
            };
            pieces_order((single ? 1 : 2) * rows * rounds, at_once, slots, turn, shared_address(memory), full, empty,
                policy, source);
        }
        return;
    }
    Tiles w[GATED];
    int count = 1, pair = 0, run = 0;
    Inputs<PARTS> own;
    for (int unit = begin, now = -1; unit < end; unit++) {
        if ((int)chunk_of(unit) != now) {
            now = chunk_of(unit);
            const int expert = expert_of(now);
            pair = now;
            if (!ALONE) {
                const int32_t *from = p.chunks + CHUNKS_AT + CHUNK_INTS * now;
                count = __ldcg(from + 2);
                if (lane < count) pair = __ldcg(p.chunks + CHUNKS_AT + CHUNK_INTS * p.pairs + __ldcg(from + 1) + lane);
            }
#pragma unroll
            for (int part = 0; part < GATED; part++) w[part] = p.bank[part][expert];
            run = slice_run(w[0].groups);
            if (!ALONE && p.factors && warp < count)
                own_factor = load(p.factors + __shfl_sync(~0u, pair, warp) / p.each);
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
        const int first = first_of(unit), mine = first * TILE_ROWS + 2 * lane;
        const int rows = min((int)UNIT_ROWS, (w[0].rows + TILE_ROWS - 1) / TILE_ROWS - first);
        if (rows <= 0) continue;
        /* Operands of the epilogue of a member, which one warp computes. */
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
        for (int i = 0; i < rows; i += single ? 2 : 1) {
            float acc[2][PARTS][2] = {};
            rows_add<KIND, SUBS, PARTS, false>(
                acc, w[0], !single || i + 1 < rows, slots, turn, memory, full, empty, own, 0, run);
            float *to = sums + warp * MOST * SUM_STRIDE + i * TILE_ROWS + g;
#pragma unroll
            for (int r = 0; r < 2; r++, to += single ? (int)TILE_ROWS : SUMS)
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
                if (part && single) {
                    v[part] = v[0];
                    break;
                }
                v[part] = slices_add(sums + part * SUMS + warp * SUM_STRIDE + 2 * lane, MOST * SUM_STRIDE);
                const bool biased = w[part].bias != nullptr;
                v[part].x = product_sum(v[part].x, own_factor, factor[part], biased, bias[part].x);
                v[part].y = product_sum(v[part].y, own_factor, factor[part], biased, bias[part].y);
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
}

/* ---- a row's sum ---- */

/* A block has a tile row of all matrices that a row uses. A lane knows the expert of its number. */
template <int KIND, int SUBS>
__device__ __forceinline__ void experts_sum(const MoeSum &p, const Slots &slots, uint64_t *barriers) {
    extern __shared__ __align__(128) uint8_t memory[]; /* slots, a choice, in which come inputs and sums */
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t full = shared_address(barriers), empty = full + 8 * EXPERT_SLOTS_MAX;
    const int tile_row = blockIdx.x, stride = (int)inputs_bytes(p.most.groups);
    const int64_t row = blockIdx.y;
    Choice &choice = *(Choice *)(memory + slots.count * slots.bytes);
    uint8_t *inputs = (uint8_t *)choice.score;
    slots_make(slots, full, empty);
    banks_touch(p.bank, p.experts);
    /* The router's results were complete before the previous kernel began to compute. */
    if (warp < MULTIPLIERS) {
        (void)router_found(p.router, row, choice);
        choose_index(p.router.route, choice);
    }
    __syncthreads();
    Tiles own = {};
    own.groups = 1;
    if (lane < p.top_k) own = p.bank[choice.index[lane]];
    const int own_run = slice_run(own.groups);
    const auto tiles_of = [&](int i) {
        Tiles w = p.most;
        w.data = (const uint8_t *)__shfl_sync(~0u, (unsigned long long)own.data, i);
        w.groups = __shfl_sync(~0u, own.groups, i);
        return w;
    };
    /* Two neighbours of the same width are multiplied side by side. */
    const int next = __shfl_sync(~0u, own.groups, (lane + 1) % 32);
    const unsigned alike = __ballot_sync(~0u, lane + 1 < p.top_k && next == own.groups);
    const bool resident = slots.count >= p.top_k && slice_rounds(p.most.groups) == 1; /* each expert has its slot */
    Turn turn;
    if (warp == ORDERING) {
        const uint64_t policy = policy_first();
        int at_once = resident ? p.top_k : 2;
        const auto order = [&](int pieces, const auto &source) {
            pieces_order(pieces, at_once, slots, turn, shared_address(memory), full, empty, policy, source);
        };
        if (resident)
            order(p.top_k, [&](int i, uint32_t &bytes) {
                bytes = own.groups * own.bytes;
                return own.data + (int64_t)tile_row * bytes;
            });
#pragma unroll 1
        for (int i = 0; !resident && i < p.top_k;) {
            const bool two = alike >> i & 1;
            const Tiles w = tiles_of(i), other = tiles_of(two ? i + 1 : i);
            const int rounds = slice_rounds(w.groups), all = slot_tiles(w.groups);
            order((two ? 2 : 1) * rounds, [&](int k, uint32_t &bytes) {
                const int round = two ? k / 2 : k;
                bytes = min(all, w.groups - round * all) * w.bytes;
                return (two && k % 2 ? other.data : w.data) + ((int64_t)tile_row * w.groups + round * all) * w.bytes;
            });
            i += 1 + two;
        }
        wait_for_previous();
        return;
    }
    float *sums = (float *)(inputs + p.top_k * stride);
    /* Operands of the epilogue of two rows: constant data. */
    constexpr int ROWS = TILE_ROWS / WARPS;
    const int first = tile_row * TILE_ROWS + warp * ROWS;
    float factor = 0, bias[ROWS] = {};
    const bool biased = own.bias != nullptr;
    if (lane < p.top_k) factor = __ldg(own.factors + tile_row);
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (biased && first + i < own.rows) bias[i] = __ldg(own.bias + first + i);
    const int64_t to = row * p.most.rows + first + lane;
    const bool writes = lane < ROWS && first + lane < p.most.rows;
    const float old = p.residual && writes ? load(p.residual + to) : 0;
    if (warp == 0) choose_weights(p.router.route, choice);
    block_sync(); /* inputs may come */
    wait_for_previous();
    {
        constexpr int BATCH = 5; /* loads under way together */
        const int pieces = p.top_k * stride / 16;
        const uint4 *from = (const uint4 *)(p.x + row * p.top_k * stride);
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
    const auto sums_leave = [&](int i, const float acc[1][2]) {
        if (t) return;
        sums[i * SUM_FLOATS + warp * TILE_ROWS + g] = acc[0][0];
        sums[i * SUM_FLOATS + warp * TILE_ROWS + g + 8] = acc[0][1];
    };
    if (resident && alike + 1 == 1u << (p.top_k - 1)) {
        const int run = __shfl_sync(~0u, own_run, 0), count = min(run, __shfl_sync(~0u, own.groups, 0) - warp * run);
        if (lane < p.top_k) barrier_wait(full + 8 * lane, 0);
        __syncwarp();
        const uint8_t *tiles = memory + warp * run * p.most.bytes;
        Inputs<1> x = {
            {inputs + warp * run * RECORD + g % 2 * LOW_AT + t * 16}, {inputs + warp * run * RECORD + TERMS_AT}};
        int i = 0;
#pragma unroll 1
        for (; i < p.top_k; i += 2, tiles += 2 * slots.bytes, x.x[0] += 2 * stride, x.terms[0] += 2 * stride) {
            const bool two = i + 1 < p.top_k;
            float acc[2][1][2] = {};
            run_add<KIND, SUBS, 1, true>(
                acc, p.most, tiles, two ? tiles + slots.bytes : tiles, count, x, 0, two ? stride : 0);
            sums_leave(i, acc[0]);
            if (two) sums_leave(i + 1, acc[1]);
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < p.top_k;) {
            const bool two = alike >> i & 1;
            const Tiles w = tiles_of(i);
            float acc[2][1][2] = {};
            const Inputs<1> x = {{inputs + i * stride + g % 2 * LOW_AT + t * 16}, {inputs + i * stride + TERMS_AT}};
            rows_add<KIND, SUBS, 1, true>(
                acc, w, two, slots, turn, memory, full, empty, x, two ? stride : 0, __shfl_sync(~0u, own_run, i));
            sums_leave(i, acc[0]);
            if (two) sums_leave(i + 1, acc[1]);
            i += 1 + two;
        }
    }
    block_sync();
    float v[ROWS] = {}, sum[ROWS] = {};
    if (lane < p.top_k)
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const float *from = sums + lane * SUM_FLOATS + warp * ROWS + i;
            v[i] = from[0];
#pragma unroll
            for (int s = 1; s < SLICES; s++) v[i] += from[s * TILE_ROWS];
            v[i] = choice.weight[lane] * product_sum(v[i], 1, factor, biased, bias[i]);
        }
#pragma unroll 1
    for (int e = 0; e < p.top_k; e++)
#pragma unroll
        for (int i = 0; i < ROWS; i++) sum[i] += __shfl_sync(~0u, v[i], e);
    float all = sum[0];
#pragma unroll
    for (int i = 1; i < ROWS; i++) all = lane == i ? sum[i] : all;
    if (!writes) return;
    if (p.residual)
        p.residual[to] = old + p.scale * all;
    else
        p.out[to] = all;
}
#endif
