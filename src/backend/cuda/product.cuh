/* Products in two forms with the same bits: few rows (a block's warps share out the columns of one tile row; the
 * weights are one stream) and many (a warp has a tile row to itself). */
#pragma once
#include "backend/cuda/tile.cuh"

/* What a kernel of products gets. Units: tile rows of all weights in turn; GLU: of the gate, with up's beside it. */
struct ProductWork {
    int rows, cols, groups, count, mode, activation, units;
    float scale;
    const float *x; /* few: rows that the kernel itself prepares; NULL: `inputs` has them */
    RowNorm norm;   /* width 0: none */
    const __half *inputs;
    const float *input_factors; /* [rows] */
    Tiles weight[PRODUCTS_MAX];
    float *out[PRODUCTS_MAX];
};

/* A row as f16, normed; times a power of two where its largest value is far from 1, so that nothing overflows and
 * little is lost below. store(column, values): four columns, zeros beyond the width; what was stored may be stored
 * again. Gives what undoes the power. Every thread of the block has a part. */
template <int N, class Store>
__device__ __forceinline__ float input_prepare(
    const float *x, int64_t width, const RowNorm &norm, float *shared, const Store &store) {
    const Row<N> row(x, width);
    const bool normed = norm.width != 0;
    Scaling s = {0, 1};
    if (normed) s = row_scaling(norm, shared, row);
    const auto value = [&](float v, int64_t at) { return normed && at < width ? scaled(norm, s, v, at) : v; };
    float up = 1, most = 0;
    const auto convert = [&](int64_t at, float4 v) {
        v.x = value(v.x, at) * up;
        v.y = value(v.y, at + 1) * up;
        v.z = value(v.z, at + 2) * up;
        v.w = value(v.w, at + 3) * up;
        most = fmaxf(most, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
        store(at, make_uint2(as_word(__floats2half2_rn(v.x, v.y)), as_word(__floats2half2_rn(v.z, v.w))));
    };
    row.each(convert);
    most = block_max(most, shared);
    constexpr float LEAST = 0.015625f, MOST = 32768;
    if ((most >= LEAST && most < MOST) || !(most > 0) || !isfinite(most)) return 1;
    int exponent;
    frexpf(most, &exponent);
    const int shift = max(-120, min(120, 15 - exponent));
    up = ldexpf(1, shift);
    row.each(convert);
    return ldexpf(1, -shift);
}

/* Sum of a row of weights and a row of inputs, both of which were scaled, plus the layer's bias. */
__device__ __forceinline__ float product_sum(float sum, float input_factor, float factor, bool biased, float bias) {
    const float v = sum * (input_factor * factor);
    return biased ? v + bias : v;
}
__device__ __forceinline__ float product_of(const Tiles &w, int row, float sum, float input_factor) {
    return product_sum(
        sum, input_factor, __ldg(w.factors + row / TILE_ROWS), w.bias != nullptr, w.bias ? __ldg(w.bias + row) : 0);
}

/* Bytes of a row of inputs as few rows keep it: the sixteen more put neighbouring rows into other banks. */
__host__ __device__ __forceinline__ int few_stride(int groups) { return groups * 128 + 16; }

cudaError_t product_few(
    cudaStream_t stream, int kind, const ProductWork &work, int blocks_max, int shared_max, bool *fits);
cudaError_t product_many(cudaStream_t stream, int kind, const ProductWork &work);
cudaError_t product_stream(
    cudaStream_t stream, int kind, const ProductWork &work, int multiprocessors, int shared_max, bool *fits);
