/* Shared by the product kernels: their parameters, how inputs are scaled and laid out as f16, the last steps of a sum.
 * A gemv splits the columns of one tile row among the warps of a block; a gemm gives each warp a tile row. Both have
 * the same bits. */
#pragma once
#include "backend/cuda/gemm/tile.cuh"

/* Parameters of the product kernels. Units: tile rows of all weights in turn; GLU: of the gate, with up's beside it. */
struct ProductWork {
    int rows, cols, groups, count, mode, units;
    Activation activation; /* GLU */
    int tile;              /* gemm: rows of a tile of inputs */
    int chains; /* number of chains of multiplications, whose sums are added in order: SLICES, or PREFILL_CHAINS */
    float scale;
    const float *x; /* gemv: rows that the kernel itself prepares; NULL: `inputs` has them */
    RowNorm norm;   /* width 0: none */
    const __half *inputs;
    const float *input_factors; /* [rows] */
    float *copy;                /* STORE of a gemv, one weight: second destination of the result; NULL: none */
    int room;                   /* gemv: as in Product */
    int has_moe;                /* gemv: as in Product */
    const __half *handed;       /* gemv: x as f16, used if it loses nothing; NULL: none */
    __half *passes;             /* GLU of prefill rows: destination of the result as the next product's inputs */
    unsigned *most;             /* passes: the largest element of each row */
    const float *pass_factors;  /* passes: inverse of the power of two that scales a row */
    const int *marks; /* NULL, or marks of a repeated product: one for any tile of inputs, then one per tile */
    __half *hands;    /* GLU of a gemv: also the result as f16, [rows][groups of columns of the next product] */
    RankPlace rank;   /* gemv kernels, one weight; theirs NULL: the product is not divided */
    Tiles weight[PRODUCTS_MAX];
    float *out[PRODUCTS_MAX];
};

/* ---- inputs ----
 * A row belongs to eight warps as it does in the product: a warp has the columns of its slice (tile.cuh), in each round
 * a run of them, of which a lane takes fours. Sums over the row are those of the warps in order, so a row has the same
 * f16 numbers in every kernel that prepares it. */

enum { RUN_FOURS = 4 }; /* fours per lane in a run of at most eight groups */

struct Columns {
    int groups, run, rounds;
    __device__ __forceinline__ explicit Columns(int groups_)
        : groups(groups_), run(slice_run(groups_)), rounds(slice_rounds(groups_)) {}
    __device__ __forceinline__ int padded() const { return groups * TILE_COLS; }
    /* Index of the first of a lane's fours. Beyond the last one of the warp the last is repeated, and `once` is false.
     */
    __device__ __forceinline__ int at(int round, int four, bool &once) const {
        const int first = (round * SLICES + (int)threadIdx.x / 32) * run * TILE_COLS;
        const int end = min(first + run * TILE_COLS, padded()),
                  column = first + 4 * ((int)threadIdx.x % 32 + 32 * four);
        once = column < end;
        return max(min(column, end - 4), 0);
    }
};

struct Reductions { /* in shared memory; the greatest twice, for rows in turn */
    float sums[2][WARPS];
    uint32_t most[2][WARPS];
};

__device__ __forceinline__ float slices_sum(float v, float *shared) {
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    block_sync();
    float sum = shared[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) sum += shared[i];
    return sum;
}
/* The largest non-negative float, compared as bits. */
__device__ __forceinline__ float slices_most(float v, uint32_t *shared) {
    uint32_t bits = __reduce_max_sync(~0u, __float_as_uint(v));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = bits;
    block_sync();
#pragma unroll
    for (int i = 0; i < WARPS; i++) bits = max(bits, shared[i]);
    return __uint_as_float(bits);
}

/* True if f16 loses little of numbers with this largest one; others are scaled by a power of two. */
__device__ __forceinline__ bool half_range(float most) {
    constexpr float LEAST = 0.015625f, MOST = 32768;
    return (most >= LEAST && most < MOST) || !(most > 0) || !isfinite(most);
}
__device__ __forceinline__ int half_shift(float most) {
    int exponent;
    frexpf(most, &exponent);
    return max(-120, min(120, 15 - exponent));
}
__device__ __forceinline__ float four_most(float most, const float4 &v) {
    return fmaxf(most, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
}
__device__ __forceinline__ float four_square(const float4 &v) {
    return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
}
__device__ __forceinline__ uint2 half_four(const float4 &v, float up) {
    return make_uint2(as_word(__floats2half2_rn(v.x * up, v.y * up)), as_word(__floats2half2_rn(v.z * up, v.w * up)));
}

/* Any row: each four is read again whenever it is needed. */
struct OddRow {
    const float *data;
    int width;
    RowNorm norm;
    Scaling scaling;
    __device__ __forceinline__ float one(int at) const { return at < width ? load(data + at) : 0; }
    __device__ __forceinline__ float4 four(int at) const {
        return make_float4(one(at), one(at + 1), one(at + 2), one(at + 3));
    }
    __device__ __forceinline__ float centred(int at) const { return at < width ? one(at) - scaling.mean : 0; }
    __device__ __forceinline__ float value(int at) const {
        if (norm.width == 0) return one(at);
        return at < width ? scaled(norm, scaling, one(at), at) : 0;
    }
};
template <class F> __device__ __forceinline__ void each_four(const Columns &c, const F &f) {
#pragma unroll 1
    for (int i = 0; i < c.rounds * RUN_FOURS; i++) {
        bool once;
        const int at = c.at(i / RUN_FOURS, i % RUN_FOURS, once);
        if (once) f(at);
    }
}
template <class Store>
static __device__ __noinline__ float odd_prepare(
    OddRow row, const Columns c, Reductions &shared, int turn, const Store store) {
    row.scaling = {0, 1};
    if (row.norm.width) {
        float sum = 0;
        if (row.norm.kind) { /* LAYER */
            each_four(c, [&](int at) {
                const float4 v = row.four(at);
                sum += (v.x + v.y) + (v.z + v.w);
            });
            row.scaling.mean = slices_sum(sum, shared.sums[0]) / (float)row.width;
            sum = 0;
        }
        each_four(c, [&](int at) {
            sum += four_square(
                make_float4(row.centred(at), row.centred(at + 1), row.centred(at + 2), row.centred(at + 3)));
        });
        row.scaling.factor = 1.0f / sqrtf(slices_sum(sum, shared.sums[1]) / (float)row.width + row.norm.eps);
    }
    float most = 0;
    const auto value = [&](int at) {
        return make_float4(row.value(at), row.value(at + 1), row.value(at + 2), row.value(at + 3));
    };
    each_four(c, [&](int at) {
        const float4 v = value(at);
        most = four_most(most, v);
        store(at, half_four(v, 1));
    });
    most = slices_most(most, shared.most[turn]);
    if (half_range(most)) return 1;
    const int shift = half_shift(most);
    const float up = ldexpf(1, shift);
    each_four(c, [&](int at) { store(at, half_four(value(at), up)); });
    return ldexpf(1, -shift);
}

/* Rows as models have them, and no more code than that takes: whole groups of columns, aligned, up to four rounds, RMS
 * norms. The numbers are odd_prepare()'s. */
__host__ __device__ __forceinline__ bool row_is_plain(const float *x, int width, const RowNorm &norm) {
    return width % TILE_COLS == 0 && width <= 256 * TILE_COLS && (((uintptr_t)x | (uintptr_t)norm.weight) & 15) == 0 &&
        (norm.width == 0 || (norm.kind == 0 && norm.weight));
}

template <int ROUNDS, bool NORMED> struct PlainRow {
    float4 v[ROUNDS * RUN_FOURS], weights[NORMED ? ROUNDS * RUN_FOURS : 1];
    /* Called before the row is complete. */
    __device__ __forceinline__ void expect(const RowNorm &norm, const Columns &c) {
        if constexpr (NORMED) {
#pragma unroll
            for (int i = 0; i < ROUNDS * RUN_FOURS; i++) {
                bool once;
                weights[i] = __ldg((const float4 *)(norm.weight + c.at(i / RUN_FOURS, i % RUN_FOURS, once)));
            }
        }
    }
    __device__ __forceinline__ void take(const float *x, const Columns &c) {
        bool once;
#pragma unroll
        for (int i = 0; i < ROUNDS * RUN_FOURS; i++)
            v[i] = __ldcg((const float4 *)(x + c.at(i / RUN_FOURS, i % RUN_FOURS, once)));
    }
    template <class Store>
    __device__ __forceinline__ float prepare(
        int width, const RowNorm &norm, const Columns &c, Reductions &shared, int turn, const Store &store) {
        bool once;
        float factor = 1;
        if constexpr (NORMED) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < ROUNDS * RUN_FOURS; i++) {
                c.at(i / RUN_FOURS, i % RUN_FOURS, once);
                const float square = four_square(v[i]);
                sum = once ? sum + square : sum;
            }
            factor = 1.0f / sqrtf(slices_sum(sum, shared.sums[1]) / (float)width + norm.eps);
        }
        float most = 0;
#pragma unroll
        for (int i = 0; i < ROUNDS * RUN_FOURS; i++) {
            if constexpr (NORMED) {
                const float4 &w = weights[i];
                v[i] = make_float4(
                    v[i].x * factor * w.x, v[i].y * factor * w.y, v[i].z * factor * w.z, v[i].w * factor * w.w);
            }
            most = four_most(most, v[i]);
            store(c.at(i / RUN_FOURS, i % RUN_FOURS, once), half_four(v[i], 1));
        }
        most = slices_most(most, shared.most[turn]);
        if (half_range(most)) return 1;
        const int shift = half_shift(most);
        const float up = ldexpf(1, shift);
#pragma unroll
        for (int i = 0; i < ROUNDS * RUN_FOURS; i++)
            store(c.at(i / RUN_FOURS, i % RUN_FOURS, once), half_four(v[i], up));
        return ldexpf(1, -shift);
    }
};

/* Rows as f16, normed; times a power of two where the largest value is far from 1, so that nothing overflows and little
 * is lost below. store(row, column, values): four columns, up to the padded width; what was stored may be stored again.
 * done(row, inverse of the power). ready() returns when the rows are complete. AHEAD: the next row is loaded while one
 * is prepared. */
template <int ROUNDS, bool NORMED, bool AHEAD = false, class Ready, class Store, class Done>
__device__ __forceinline__ void plain_rows(const float *x, int rows, int width, const Columns &c, const RowNorm &norm,
    Reductions &shared, const Ready &ready, const Store &store, const Done &done) {
    PlainRow<ROUNDS, NORMED> plain;
    plain.expect(norm, c);
    ready();
    if constexpr (AHEAD) {
        PlainRow<ROUNDS, false> next;
        next.take(x, c);
#pragma unroll 1
        for (int row = 0; row < rows; row++) {
#pragma unroll
            for (int i = 0; i < ROUNDS * RUN_FOURS; i++) plain.v[i] = next.v[i];
            if (row + 1 < rows) next.take(x + (int64_t)(row + 1) * width, c);
            done(row, plain.prepare(width, norm, c, shared, row % 2, [&](int at, uint2 v) { store(row, at, v); }));
        }
    } else {
#pragma unroll 1
        for (int row = 0; row < rows; row++) {
            plain.take(x + (int64_t)row * width, c);
            done(row, plain.prepare(width, norm, c, shared, row % 2, [&](int at, uint2 v) { store(row, at, v); }));
        }
    }
}
template <class Ready, class Store, class Done>
__device__ __forceinline__ void inputs_prepare(const float *x, int rows, int width, const Columns &c,
    const RowNorm &norm, Reductions &shared, const Ready &ready, const Store &store, const Done &done) {
    if (row_is_plain(x, width, norm)) {
        const bool normed = norm.width != 0;
        if (c.rounds == 1) {
            if (normed) return plain_rows<1, true>(x, rows, width, c, norm, shared, ready, store, done);
            return plain_rows<1, false>(x, rows, width, c, norm, shared, ready, store, done);
        }
        if (c.rounds == 2) {
            if (normed) return plain_rows<2, true>(x, rows, width, c, norm, shared, ready, store, done);
            return plain_rows<2, false>(x, rows, width, c, norm, shared, ready, store, done);
        }
        if (!normed) return plain_rows<4, false>(x, rows, width, c, norm, shared, ready, store, done);
    }
    ready();
    for (int row = 0; row < rows; row++)
        done(row,
            odd_prepare(OddRow{x + (int64_t)row * width, width, norm, {0, 1}}, c, shared, row % 2,
                [=](int at, uint2 v) { store(row, at, v); }));
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

/* With gemm_wgmma.cu, the sums of prefill rows have fewer chains than other f16 products, each over several consecutive
 * slices: registers have no room for sums that wait for the next chain beside those of wide tiles. */
enum { PREFILL_CHAINS = 2 };

/* Many rows' inputs lie in tiles of INPUT_TILE_MOST rows or less, in each [group][chunk of 8][row][8 halves],
 * where chunk 2s + h of a group has columns 16t + 4s + 2h, and one more, for t = 0 … 3: eight rows of a chunk are a
 * matrix that ldmatrix reads and wgmma multiplies by. */
enum { INPUT_TILE = 128, INPUT_TILE_MOST = 256 };
__host__ __device__ __forceinline__ int64_t input_chunk(int groups, int row, int64_t group, int chunk, int tile) {
    return (((int64_t)(row / tile) * groups + group) * 8 + chunk) * tile + row % tile;
}

/* Bytes of a row of inputs of a gemv: 16 bytes of padding put neighbouring rows into different banks. */
__host__ __device__ __forceinline__ int gemv_stride(int groups) { return groups * 128 + 16; }

cudaError_t product_gemv_mma(
    cudaStream_t stream, int kind, const ProductWork &work, int blocks_max, int shared_max, bool *fits);
cudaError_t product_gemm_mma(cudaStream_t stream, int kind, const ProductWork &work);
/* Up to 64 rows, in tiles of 32 or 64. */
cudaError_t product_gemm_small_n(
    cudaStream_t stream, int kind, const ProductWork &work, const Product &product, bool *fits);
cudaError_t product_gemm_wgmma(
    cudaStream_t stream, int kind, const ProductWork &work, const Product &product, bool *fits);
/* Whether weights of a kind have tiles of INPUT_TILE_MOST rows of inputs: codes and numbers have room in registers
 * beside the sums. */
constexpr bool wgmma_tiles_fit(int kind) { return kind != TILE_F16; }
/* Tile height for the prefill rows: INPUT_TILE or INPUT_TILE_MOST rows, whichever takes less time. */
int gemm_wgmma_tile(const Product &product, int groups);
cudaError_t product_gemv_ring(
    cudaStream_t stream, int kind, const ProductWork &work, int multiprocessors, int shared_max, bool *fits);
