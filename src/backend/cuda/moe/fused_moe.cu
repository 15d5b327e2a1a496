/* The MoE block of decode rows. fused_moe_row takes three kernels: the router's product with its norm, which also
 * writes the inputs of the expert products; gate and up, whose blocks choose the experts by themselves; down, the
 * weighted sum and the residual, whose blocks also choose while the second kernel computes, and prefetch their weights.
 * fused_moe sorts the choices first. Expert products are those of gemm_int.cuh; the router's products are f16 with f32
 * sums. The rows of a product are pairs of a row and one of its experts; fused_moe groups up to eight pairs of an
 * expert into a chunk, which reads its matrix once. */
extern "C" {
#include "base/error.h"
}
#include "backend/cuda/moe/fused_moe.cuh"

extern "C" size_t moe_input_bytes(int64_t cols) { return inputs_bytes((int)((cols + TILE_COLS - 1) / TILE_COLS)); }

/* ---- the router ---- */

extern "C" size_t moe_router_floats(const MoeRouter *router) {
    const RouterShape shape(*router);
    return (size_t)shape.chunks * shape.stride;
}

/* A lane's part of rows g and g + 8 of a tile times its 16 columns. */
template <int KIND>
__device__ __forceinline__ void router_multiply(float sum[2], const Piece<KIND> &piece, const float x[16]) {
    float codes[2] = {0, 0}, all = 0;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const float *v = x + 4 * s;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 c;
            if constexpr (KIND == TILE_F16)
                c = __half22float2(as_half2(piece.w[4 * s + i]));
            else
                c = __half22float2(piece_pair<KIND>(piece, s, i));
            codes[i % 2] = fmaf(c.x, i < 2 ? v[0] : v[2], codes[i % 2]);
            codes[i % 2] = fmaf(c.y, i < 2 ? v[1] : v[3], codes[i % 2]);
        }
        all += (v[0] + v[1]) + (v[2] + v[3]);
    }
    if constexpr (KIND == TILE_F16) {
        sum[0] = codes[0];
        sum[1] = codes[1];
    } else {
        const float2 low = __half22float2(as_half2(piece.scales.x)), high = __half22float2(as_half2(piece.scales.y));
        sum[0] = fmaf(low.x, codes[0], low.y * all);
        sum[1] = fmaf(high.x, codes[1], high.y * all);
    }
}
__device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
}

/* 16 columns of any row, normed, and the sum of their squares if the norm's factor is applied later. */
static __device__ __noinline__ void router_odd(
    const MoeRouter &p, const RowNorm norm, int64_t row, int column, float *shared, float v[17]) {
    const float *x = p.x + row * p.width;
    const bool weighed = integer_norm(norm);
    Scaling s = {0, 1};
    if (norm.width && !weighed) s = row_scaling(norm, shared, Row<0>(x, p.width));
    for (int i = 0; i < 16; i++) v[i] = column + i < p.width ? load(x + column + i) : 0;
    v[16] = integer_square(v);
    for (int i = 0; i < 16; i++)
        if (norm.width && column + i < p.width)
            v[i] = weighed ? v[i] * __ldg(norm.weight + column + i) : scaled(norm, s, v[i], column + i);
}

/* A block has consecutive groups of a tile row, a warp one of them; blocks behind the tile rows make the inputs of the
 * expert products and the sums of squares. Of an RMS norm only the weights are in the inputs (gemm_int.cuh). */
template <int KIND> __global__ void __launch_bounds__(BLOCK) router_kernel(const __grid_constant__ MoeRouter p) {
    __shared__ float sums[WARPS][TILE_ROWS], reduced[WARPS];
    let_next_begin();
    const RouterShape shape(p);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int tile_row = blockIdx.x % (shape.all + 1), run = blockIdx.x / (shape.all + 1),
              group = run * ROUTER_RUN + warp;
    const int groups = p.weight.groups, column = group * TILE_COLS + 16 * t;
    const int64_t row = blockIdx.y, width = p.width;
    const bool multiplies = tile_row < shape.all, on = group < groups;
    const Tiles &w = tile_row < shape.own ? p.weight : p.shared;
    Piece<KIND> piece;
    float factor = 1;
    if (multiplies && on) {
        const int at = tile_row < shape.own ? tile_row : 0;
        piece_load(piece, w.data + ((int64_t)at * groups + group) * w.bytes, lane, scale_offset<KIND>(lane, w.subs));
        factor = __ldg(w.factors + at);
    }
    RowNorm norm = p.norm;
    if (multiplies && p.weights) norm.weight = p.weights;
    float y[16] = {}, square = 0;
    if (integer_norm(norm) && row_is_plain(p.x, p.width, norm)) {
        float4 weight[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (on) weight[i] = __ldg((const float4 *)(norm.weight + column + 4 * i));
        wait_for_previous();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (!on) continue;
            const float4 v = __ldcg((const float4 *)(p.x + row * width + column + 4 * i));
            y[4 * i] = v.x, y[4 * i + 1] = v.y, y[4 * i + 2] = v.z, y[4 * i + 3] = v.w;
        }
        square = integer_square(y);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (!on) continue;
            y[4 * i] *= weight[i].x, y[4 * i + 1] *= weight[i].y, y[4 * i + 2] *= weight[i].z,
                y[4 * i + 3] *= weight[i].w;
        }
    } else {
        wait_for_previous();
        float odd[17];
        router_odd(p, norm, row, column, reduced, odd);
#pragma unroll
        for (int i = 0; i < 16; i++) y[i] = odd[i];
        square = odd[16];
    }
    float *found = p.found + (row * shape.chunks + run) * shape.stride;
    if (multiplies) {
        float sum[2] = {};
        if (on) router_multiply<KIND>(sum, piece, y);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            sum[i] = quad_sum(sum[i]) * factor;
            if (t == 0) sums[warp][g + 8 * i] = sum[i];
        }
        block_sync();
        if (threadIdx.x >= TILE_ROWS) return;
        float all = sums[0][threadIdx.x];
#pragma unroll
        for (int i = 1; i < WARPS; i++) all += sums[i][threadIdx.x];
        found[tile_row * TILE_ROWS + threadIdx.x] = all;
        return;
    }
    square = quad_sum(square);
    if (lane == 0) sums[warp][0] = square;
    const IntegerPart part = integer_part(y);
    if (on && lane < 4) {
        uint8_t *to = p.inputs + row * inputs_bytes(groups) + group * RECORD;
        *(uint4 *)(to + t * 16) = part.high;
        *(uint4 *)(to + LOW_AT + t * 16) = part.low;
        if (t == 0) *(float4 *)(to + TERMS_AT) = terms_of(part.step, part.sum[0], part.sum[1]);
    }
    block_sync();
    if (threadIdx.x) return;
    float all = sums[0][0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) all += sums[i][0];
    found[shape.all * TILE_ROWS] = all;
}

/* Chooses the experts of many rows, one block per row. */
__global__ void __launch_bounds__(BLOCK) choose_kernel(const __grid_constant__ MoeRouter p) {
    __shared__ Choice choice;
    let_next_begin();
    wait_for_previous();
    const int64_t row = blockIdx.x;
    const float factor = router_found(p, row, choice);
    choose(p.route, choice);
    const int slots = p.route.top_k + p.route.shared;
    if (threadIdx.x < slots) {
        p.route.index[row * slots + threadIdx.x] = choice.index[threadIdx.x];
        p.route.weight[row * slots + threadIdx.x] = choice.weight[threadIdx.x];
    }
    if (threadIdx.x == 0) p.factors[row] = factor;
}

struct RouterLaunch {
    cudaStream_t stream;
    const MoeRouter *router;
    template <int KIND> cudaError_t operator()() const {
        const RouterShape shape(*router);
        const cudaError_t error = allow_beside(router_kernel<KIND>);
        if (error) return error;
        return launch(
            stream, router_kernel<KIND>, dim3((shape.all + 1) * shape.chunks, router->rows), BLOCK, 0, *router);
    }
};
extern "C" cudaError_t moe_route(cudaStream_t stream, const MoeRouter *router) {
    return with_kind(router->weight.kind, RouterLaunch{stream, router});
}
extern "C" cudaError_t moe_choose(cudaStream_t stream, const MoeRouter *router) {
    return launch(stream, choose_kernel, dim3(router->rows), BLOCK, 0, *router);
}

__global__ void __launch_bounds__(BLOCK) moe_combine_kernel(
    int top_k, int64_t width, const float *y, const float *weight, float *out, float *residual, float scale) {
    let_next_begin();
    wait_for_previous();
    const int64_t row = blockIdx.y;
    for (int64_t i = blockIdx.x * BLOCK + threadIdx.x; i < width; i += gridDim.x * BLOCK) {
        float sum = 0;
        for (int k = 0; k < top_k; k++) sum += load(weight + row * top_k + k) * load(y + (row * top_k + k) * width + i);
        const int64_t to = row * width + i;
        if (residual)
            residual[to] = load(residual + to) + scale * sum;
        else
            out[to] = sum;
    }
}
extern "C" cudaError_t moe_combine(cudaStream_t stream, int rows, int top_k, int64_t width, const float *y,
    const float *weight, float *out, float *residual, float scale) {
    const dim3 grid((unsigned)((width + BLOCK - 1) / BLOCK), rows);
    return launch(stream, moe_combine_kernel, grid, BLOCK, 0, top_k, width, y, weight, out, residual, scale);
}

/* ---- launching ---- */

/* Chunks of pairs. */
template <int KIND, bool GLU>
__global__ void __launch_bounds__(PRODUCT_BLOCK, 2)
    product_kernel(const __grid_constant__ MoeProduct p, const __grid_constant__ Slots slots) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    __shared__ uint64_t barriers[EXPERT_WORDS];
    experts_product<KIND, 0, GLU, GEMV_ROWS_MAX>(p, slots, barriers);
#endif
}

/* A block needs two slots, or as many as it has pieces: the next piece arrives while the one before it is multiplied.
 */
static int slots_least(int pieces) { return pieces < 2 ? pieces : 2; }

/* Slots that fit `room` bytes of shared memory beside the `besides` bytes that a block keeps as well. False: fewer fit
 * than a block needs; *slots is not to be used then. */
NODISCARD static bool slots_of(const Tiles &most, int pieces, int besides, int room, Slots *slots) {
    slots->bytes = slot_tiles(most.groups) * most.bytes;
    const int left = room - FIXED - besides;
    slots->count = left > 0 ? left / slots->bytes : 0;
    if (slots->count > pieces) slots->count = pieces;
    if (slots->count > EXPERT_SLOTS_MAX) slots->count = EXPERT_SLOTS_MAX;
    return slots->count >= slots_least(pieces);
}
static int pieces_of(const Tiles &most, int rows) { return rows * slice_rounds(most.groups); }

static int product_besides(const Tiles &most, int members, bool gated) {
    const int sums = CHOICE_KEPT + members * (gated ? 2 : 1) * SLICES * SUM_STRIDE * (int)sizeof(float);
    return members * (int)inputs_bytes(most.groups) + (sums > CHOICE_BYTES ? sums : CHOICE_BYTES);
}

struct ProductLaunch {
    cudaStream_t stream;
    const MoeProduct *product;
    template <int KIND, bool GLU, int MOST> cudaError_t go() const {
        const MoeProduct &p = *product;
        const int rows = UNIT_ROWS * (GLU ? 2 : 1), besides = product_besides(p.most, MOST, GLU);
        const int pieces = pieces_of(p.most, rows);
        Slots slots;
        bool half = slots_of(p.most, pieces, besides, p.shared_bytes / 2 - FIXED, &slots);
        if (!half && !slots_of(p.most, pieces, besides, p.shared_bytes, &slots))
            return cudaErrorInvalidValue; /* excluded by moe_fits() */
        const int blocks = units_of(p.most.rows), each = units_of(p.rows_each), rows_together = p.pairs / p.each;
        const int experts = p.each + (blocks - 1) / each; /* with further units of a wider shared one */
        /* Where each unit of a row has a multiprocessor, its block uses what the sum's blocks leave. Otherwise, or if
         * they do not fit beside it, it uses half of a multiprocessor, so that all units are computed at once. */
        Slots beside;
        if (half && MOST == 1 && rows_together * experts * each <= p.multiprocessors &&
            slots_of(p.most, pieces, besides, p.shared_bytes - p.leaves, &beside))
            slots = beside;
        CHECK(slots.count >= slots_least(pieces));
        const size_t bytes = (size_t)slots.count * slots.bytes + besides;
        if constexpr (MOST == 1) {
            return moe_row_product(stream, p, slots, dim3(each, experts, rows_together), bytes);
        } else {
            const cudaError_t error = gemv_allow(product_kernel<KIND, GLU>, p.shared_bytes);
            if (error) return error;
            const int units = p.pairs * blocks, most = (half ? 2 : 1) * p.multiprocessors;
            return launch(
                stream, product_kernel<KIND, GLU>, dim3(units < most ? units : most), PRODUCT_BLOCK, bytes, p, slots);
        }
    }
    template <int KIND> cudaError_t operator()() const {
        if constexpr (integer_kind(KIND)) {
            if (!product->bank[1]) return go<KIND, false, GEMV_ROWS_MAX>();
            return product->chunks ? go<KIND, true, GEMV_ROWS_MAX>() : go<KIND, true, 1>();
        } else {
            return cudaErrorInvalidValue;
        }
    }
};
extern "C" cudaError_t moe_product(cudaStream_t stream, const MoeProduct *product) {
    return with_kind(product->most.kind, ProductLaunch{stream, product});
}

extern "C" int moe_round(int groups) { return slot_tiles(groups); }

/* Uses the largest number of members, so that the answer does not depend on the number of rows. */
extern "C" int moe_fits(const Tiles *most, int gated, int shared_bytes) {
    Slots slots;
    return integer_fits(*most) &&
        slots_of(*most, 2, product_besides(*most, GEMV_ROWS_MAX, gated), shared_bytes, &slots);
}

/* Half of a multiprocessor, so that the next kernel's blocks find room beside it, if that will do. */
NODISCARD static bool sum_slots(const MoeSum &p, Slots *slots, int *besides) {
    const int pieces = pieces_of(p.most, p.top_k);
    const int rest = CHOICE_KEPT + p.top_k * ((int)inputs_bytes(p.most.groups) + SUM_FLOATS * (int)sizeof(float));
    *besides = rest > CHOICE_BYTES ? rest : CHOICE_BYTES;
    return slots_of(p.most, pieces, *besides, p.shared_bytes / 2 - FIXED, slots) ||
        slots_of(p.most, pieces, *besides, p.shared_bytes, slots);
}
extern "C" int moe_sum_bytes(const MoeSum *sum) {
    Slots slots;
    int besides;
    if (sum->top_k > 32 || !sum_slots(*sum, &slots, &besides)) return 0;
    return slots.count * slots.bytes + besides + FIXED;
}
extern "C" cudaError_t moe_sum(cudaStream_t stream, const MoeSum *sum) {
    Slots slots;
    int besides;
    if (!sum_slots(*sum, &slots, &besides)) return cudaErrorInvalidValue;
    CHECK(slots.count >= slots_least(pieces_of(sum->most, sum->top_k)));
    return moe_row_sum(stream, *sum, slots, dim3((sum->most.rows + TILE_ROWS - 1) / TILE_ROWS, sum->rows),
        (size_t)slots.count * slots.bytes + besides);
}
