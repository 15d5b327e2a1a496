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

/* A row as f16, normed, times the power of two that takes its largest value near the top of f16. store(column, values):
 * four columns, zeros beyond the width. Gives what undoes the power. Every thread of the block has a part. */
template <int N, class Store>
__device__ __forceinline__ float input_prepare(
    const float *x, int64_t width, const RowNorm &norm, float *shared, const Store &store) {
    const Row<N> row(x, width);
    const bool normed = norm.width != 0;
    Scaling s = {0, 1};
    if (normed) s = row_scaling(norm, shared, row);
    const auto value = [&](float v, int64_t at) { return normed && at < width ? scaled(norm, s, v, at) : v; };
    float most = 0;
    row.each([&](int64_t at, float4 v) {
        most = fmaxf(most,
            fmaxf(fmaxf(fabsf(value(v.x, at)), fabsf(value(v.y, at + 1))),
                fmaxf(fabsf(value(v.z, at + 2)), fabsf(value(v.w, at + 3)))));
    });
    most = block_max(most, shared);
    int exponent = 15;
    if (most > 0 && isfinite(most)) frexpf(most, &exponent);
    const int shift = max(-120, min(120, 15 - exponent));
    const float up = ldexpf(1, shift);
    row.each([&](int64_t at, float4 v) {
        const __half2 low = __floats2half2_rn(value(v.x, at) * up, value(v.y, at + 1) * up);
        const __half2 high = __floats2half2_rn(value(v.z, at + 2) * up, value(v.w, at + 3) * up);
        store(at, make_uint2(as_word(low), as_word(high)));
    });
    return ldexpf(1, -shift);
}

/* Sum of a row of weights and a row of inputs, both of which were scaled, plus the layer's bias. */
__device__ __forceinline__ float product_of(const Tiles &w, int row, float sum, float input_factor) {
    const float v = sum * (input_factor * __ldg(w.factors + row / TILE_ROWS));
    return w.bias ? v + __ldg(w.bias + row) : v;
}

/* Bytes of a row of inputs as few rows keep it: the sixteen more put neighbouring rows into other banks. */
__host__ __device__ __forceinline__ int few_stride(int groups) { return groups * 128 + 16; }

cudaError_t product_few(
    cudaStream_t stream, int kind, const ProductWork &work, int blocks_max, int shared_max, bool *fits);
cudaError_t product_many(cudaStream_t stream, int kind, const ProductWork &work);
