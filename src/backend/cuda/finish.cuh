/* What both forms of few rows share: which weight a unit is of, its inputs, its end. */
#pragma once
#include "backend/cuda/product.cuh"

/* Which weight a unit belongs to, and which of its tile rows it is. */
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

/* Of a unit whose slices' sums lie in `sums` [part][warp][16][8]: the ordered sum and what follows it. One warp.
 * ready() returns once the sums are there; what else is needed is loaded before. */
template <bool GLU, class Ready>
__device__ __forceinline__ void finish(
    const ProductWork &p, int unit, const float *sums, const float *factors, const Ready &ready) {
    int tile_row;
    const int index = weight_of(p, unit, tile_row);
    const Tiles &w = p.weight[index];
    const int lane = threadIdx.x % 32, r = lane % TILE_ROWS, row = tile_row * TILE_ROWS + r;
    const bool on = row < w.rows;
    const float factor = __ldg(w.factors + tile_row), other = GLU ? __ldg(p.weight[1].factors + tile_row) : 0;
    const float bias = w.bias && on ? __ldg(w.bias + row) : 0;
    const float other_bias = GLU && p.weight[1].bias && on ? __ldg(p.weight[1].bias + row) : 0;
    float *out = p.out[index] + row;
    float old[FEW_ROWS_MAX / 2];
#pragma unroll
    for (int k = 0; k < FEW_ROWS_MAX / 2; k++) {
        const int t = 2 * k + lane / TILE_ROWS;
        old[k] = p.mode == PRODUCT_ADD && on && t < p.rows ? load(out + (int64_t)t * w.rows) : 0;
    }
    ready();
#pragma unroll
    for (int k = 0; k < FEW_ROWS_MAX / 2; k++) {
        const int t = 2 * k + lane / TILE_ROWS;
        if (t >= p.rows || !on) continue;
        float sum[GLU ? 2 : 1];
#pragma unroll
        for (int part = 0; part < (GLU ? 2 : 1); part++) {
            const float *from = sums + (part * SLICES * TILE_ROWS + r) * FEW_ROWS_MAX + t;
            sum[part] = from[0];
#pragma unroll
            for (int s = 1; s < SLICES; s++) sum[part] += from[s * TILE_ROWS * FEW_ROWS_MAX];
        }
        const float v = product_sum(sum[0], factors[t], factor, w.bias != nullptr, bias);
        float *to = out + (int64_t)t * w.rows;
        if constexpr (GLU)
            *to = gated(p.activation, v,
                product_sum(sum[1], factors[t], other, p.weight[1].bias != nullptr, other_bias));
        else
            *to = p.mode == PRODUCT_ADD ? old[k] + p.scale * v : v;
    }
}

/* The rows into shared memory. */
__device__ __forceinline__ void take_inputs(const ProductWork &p, uint8_t *inputs, float *factors, float *shared) {
    const int stride = few_stride(p.groups);
    if (!p.x) {
        const int pieces = p.groups * 8;
        for (int i = threadIdx.x; i < p.rows * pieces; i += BLOCK) {
            const int row = i / pieces, at = i % pieces;
            *(uint4 *)(inputs + row * stride + at * 16) = __ldcg((const uint4 *)p.inputs + (int64_t)row * pieces + at);
        }
        if (threadIdx.x < p.rows) factors[threadIdx.x] = load(p.input_factors + threadIdx.x);
        return;
    }
    for (int row = 0; row < p.rows; row++) {
        uint8_t *to = inputs + row * stride;
        const float *from = p.x + (int64_t)row * p.cols;
        const auto store = [&](int64_t at, uint2 v) { *(uint2 *)(to + 2 * at) = v; };
        const float factor = p.cols <= 16 * BLOCK ? input_prepare<4>(from, p.cols, p.norm, shared, store)
                                                  : input_prepare<0>(from, p.cols, p.norm, shared, store);
        for (int at = (p.cols + 3) / 4 * 4 + 4 * threadIdx.x; at < p.groups * 64; at += 4 * BLOCK)
            store(at, make_uint2(0, 0));
        if (threadIdx.x == 0) factors[row] = factor;
    }
}
