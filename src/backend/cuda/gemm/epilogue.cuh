/* Shared by the gemv kernels: the weight that a unit belongs to, its inputs, and the epilogue. */
#pragma once
#include "backend/cuda/runtime/tensor_parallel.cuh"
#include "backend/cuda/gemm/gemm.cuh"

/* The weight that a unit belongs to, and the unit's tile row in it. */
__device__ __forceinline__ int weight_of(const ProductWork &p, int unit, int &tile_row) {
    int i = 0;
    for (; p.mode != PRODUCT_GLU && i + 1 < p.count; i++) {
        const int here = (p.weight[i].rows + TILE_ROWS - 1) / TILE_ROWS;
        if (unit < here) break;
        unit -= here;
    }
    tile_row = unit;
    return i;
}

/* The epilogue of a unit. By one warp. */
template <bool GLU> struct Ending {
    static constexpr int ROWS = GEMV_ROWS_MAX;
    int row, width;
    bool on, biased;
    float factor, other, bias, other_bias;
    float *out, old[ROWS / 2];

    /* Operands besides the sums: first the tile row's factors of the weights, then data that other kernels may have
     * written. */
    static __device__ __forceinline__ float2 factors_of(const ProductWork &p, int unit) {
        int tile_row;
        const int index = weight_of(p, unit, tile_row);
        return make_float2(__ldg(p.weight[index].factors + tile_row), GLU ? __ldg(p.weight[1].factors + tile_row) : 0);
    }
    __device__ __forceinline__ void expect(const ProductWork &p, int unit, float2 both) {
        int tile_row;
        const int index = weight_of(p, unit, tile_row), lane = threadIdx.x % 32;
        const Tiles &w = p.weight[index];
        factor = both.x;
        other = both.y;
        width = w.rows;
        biased = w.bias != nullptr;
        row = tile_row * TILE_ROWS + lane % TILE_ROWS;
        on = row < w.rows;
        bias = w.bias && on ? __ldg(w.bias + row) : 0;
        other_bias = GLU && p.weight[1].bias && on ? __ldg(p.weight[1].bias + row) : 0;
        out = p.out[index] + row;
    }
    __device__ __forceinline__ void take(const ProductWork &p) {
#pragma unroll
        for (int k = 0; k < ROWS / 2; k++) {
            const int t = 2 * k + (int)threadIdx.x % 32 / TILE_ROWS;
            old[k] = p.mode == PRODUCT_ADD && on && t < p.rows ? load(out + (int64_t)t * width) : 0;
        }
    }
    /* slice_sum(part, slice, r, token) returns one of the sums. */
    template <class Sum>
    __device__ __forceinline__ void finish(
        const ProductWork &p, const Sum &slice_sum, const float *factors, bool divided, uint32_t mark, int64_t slot) {
        const int lane = threadIdx.x % 32, r = lane % TILE_ROWS;
        float values[ROWS / 2] = {};
#pragma unroll
        for (int k = 0; k < ROWS / 2; k++) {
            const int t = 2 * k + lane / TILE_ROWS;
            if (t >= p.rows || !on) continue;
            float sum[GLU ? 2 : 1];
#pragma unroll
            for (int part = 0; part < (GLU ? 2 : 1); part++) {
                float each[SLICES];
#pragma unroll
                for (int s = 0; s < SLICES; s++) each[s] = *slice_sum(part, s, r, t);
                sum[part] = each[0];
#pragma unroll
                for (int s = 1; s < SLICES; s++) sum[part] += each[s];
            }
            const float v = product_sum(sum[0], factors[t], factor, biased, bias);
            if constexpr (GLU) {
                const float up = product_sum(sum[1], factors[t], other, p.weight[1].bias != nullptr, other_bias);
                const float result = gated_usually(p.activation, v, up);
                out[(int64_t)t * width] = result;
                if (p.hands)
                    p.hands[(int64_t)t * ((width + TILE_COLS - 1) / TILE_COLS * TILE_COLS) + row] =
                        __float2half_rn(result);
            } else {
                values[k] = v;
                if (divided) word_put((uint64_t *)(p.rank.theirs + slot) + (int64_t)t * width + row, v, mark);
            }
        }
        if constexpr (!GLU) {
#pragma unroll
            for (int k = 0; k < ROWS / 2; k++) {
                const int t = 2 * k + lane / TILE_ROWS;
                if (t >= p.rows || !on) continue;
                const int64_t at = (int64_t)t * width;
                float v = values[k];
                if (divided) v = rank_add(p.rank, v, rank_word(p.rank, slot, mark, at + row));
                out[at] = p.mode == PRODUCT_ADD ? old[k] + p.scale * v : v;
                if (p.copy) p.copy[at + row] = v;
            }
        }
    }
};

/* Finishes a unit: the ordered sum over its slices and the epilogue. ready() returns when the slices' sums and the
 * factors are complete; other operands are loaded before. */
template <bool GLU, class Sum, class Ready>
__device__ __forceinline__ void finish(
    const ProductWork &p, int unit, const Sum &slice_sum, const float *factors, const Ready &ready) {
    Ending<GLU> ending;
    ending.expect(p, unit, ending.factors_of(p, unit));
    ending.take(p);
    const bool divided = !GLU && p.rank.theirs;
    const uint32_t mark = divided ? rank_mark(p.rank) : 0;
    const int64_t slot = divided ? rank_slot(p.rank) : 0;
    ready();
    ending.finish(p, slice_sum, factors, divided, mark, slot);
}

/* Sums [part][slice][16][8]. */
struct SumsInTiles {
    const float *sums;
    __device__ __forceinline__ const float *operator()(int part, int slice, int row, int token) const {
        return sums + ((part * SLICES + slice) * TILE_ROWS + row) * GEMV_ROWS_MAX + token;
    }
};

/* Takes rows that are f16 already; false: f16 loses too much of one of them. Rows in range are rounded as prepared rows
 * are. */
__device__ __forceinline__ bool take_handed(const ProductWork &p, uint8_t *inputs, float *factors, Reductions &shared) {
    const Columns c(p.groups);
    const int stride = gemv_stride(p.groups), eights = c.run * 8, lane = threadIdx.x % 32;
    wait_for_previous();
    for (int row = 0; row < p.rows; row++) {
        __half2 most = __half2(__half(0.0f), __half(0.0f));
#pragma unroll
        for (int i = 0; i < 8; i++) { /* four rounds of two: eight columns of at most 512 */
            const int first = (i / 2 * SLICES + (int)threadIdx.x / 32) * c.run * TILE_COLS, at = lane + i % 2 * 32;
            if (i / 2 >= c.rounds || at >= eights || first + 8 * at >= c.padded()) continue;
            const uint4 v = __ldcg((const uint4 *)(p.handed + (int64_t)row * c.padded() + first + 8 * at));
            *(uint4 *)(inputs + row * stride + 2 * (first + 8 * at)) = v;
            most = __hmax2(most,
                __hmax2(__hmax2(__habs2(as_half2(v.x)), __habs2(as_half2(v.y))),
                    __hmax2(__habs2(as_half2(v.z)), __habs2(as_half2(v.w)))));
        }
        const float greatest = slices_most(fmaxf(__low2float(most), __high2float(most)), shared.most[row % 2]);
        constexpr float LEAST = 0.015625f, MOST = 32768;
        if (!(greatest > LEAST && greatest < MOST)) {
            block_sync(); /* all threads have read the reduction */
            return false;
        }
        if (threadIdx.x == 0) factors[row] = 1;
    }
    __syncwarp();
    return true;
}

/* Puts the rows into shared memory: each warp its own slice, prepared by itself, or the block all of them by copying.
 */
__device__ __forceinline__ void take_inputs(const ProductWork &p, uint8_t *inputs, float *factors, Reductions &shared) {
    const int stride = gemv_stride(p.groups);
    if (!p.x) {
        const int pieces = p.groups * 8;
        wait_for_previous();
        for (int i = threadIdx.x; i < p.rows * pieces; i += BLOCK) {
            const int row = i / pieces, at = i % pieces;
            *(uint4 *)(inputs + row * stride + at * 16) = __ldcg((const uint4 *)p.inputs + (int64_t)row * pieces + at);
        }
        if (threadIdx.x < p.rows) factors[threadIdx.x] = load(p.input_factors + threadIdx.x);
        block_sync();
        return;
    }
    if (p.handed && take_handed(p, inputs, factors, shared)) return;
    inputs_prepare(
        p.x, p.rows, p.cols, Columns(p.groups), p.norm, shared, [] { wait_for_previous(); },
        [=](int row, int at, uint2 v) { *(uint2 *)(inputs + row * stride + 2 * at) = v; },
        [&](int row, float factor) {
            if (threadIdx.x == 0) factors[row] = factor;
        });
    __syncwarp();
}
