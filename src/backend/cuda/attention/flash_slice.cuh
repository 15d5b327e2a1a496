/* Attention on tensor cores over f16 pages of heads that are 64, 128 or 256 wide.
 *
 * Keys and values are cut by position into slices of 64 tokens. In a slice, for each query: the largest score; p =
 * 2^(score − largest) as f16; Σ p; o = Σ p·v, a chain of multiplications by blocks of 16 tokens. Slices are then folded
 * together in order. All slice kernels compute exactly this, whether a warp takes one slice of one row or all slices of
 * many rows, so a row has the same bits in each.
 *
 * Tokens are the rows of A = K and queries the columns of B = Qᵀ; then dims the rows of A = Vᵀ and queries the columns
 * of B = Pᵀ. In a tile of rows, column c is head c mod group of row c / group. */
#pragma once
#include "backend/cuda/attention/attention.cuh"
#include "backend/cuda/gemm/tile.cuh"

constexpr int SLICE = ATTENTION_SLICE, BLOCKS = SLICE / 16; /* blocks of 16 tokens */
static constexpr float NONE = -1e30f; /* the largest of no scores; finite, so that differences are finite */
static constexpr float LOG2E = 1.44269504f;

__device__ __forceinline__ uint32_t transposed(uint32_t v) {
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}
__device__ __forceinline__ uint32_t packed(float a, float b) { return as_word(__floats2half2_rn(a, b)); }

/* Queries as B: of each 32 dims four words; word 2j + h of lane (g, t) is dims 8t + 4j + 2h and one more of column g.
 */
template <int HD> struct Query { uint32_t w[HD / 8]; };
/* Column g's query, times scale · log2 e. q NULL: zeros. SHARED: in shared memory */
template <int HD, bool SHARED = false>
__device__ __forceinline__ void query_load(Query<HD> &query, const float *q, float scale, int t) {
#pragma unroll
    for (int i = 0; i < HD / 32; i++)
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            float4 v = make_float4(0, 0, 0, 0);
            const float4 *from = (const float4 *)(q + 32 * i + 8 * t + 2 * j);
            if (q) v = SHARED ? *from : __ldcg(from);
            query.w[4 * i + j] = packed(v.x * scale, v.y * scale);
            query.w[4 * i + j + 1] = packed(v.z * scale, v.w * scale);
        }
}

/* Keys of 16 tokens as A: key(token g or g + 8, i) gives 8 dims from 32i + 8t on. */
template <int HD, class Key> __device__ __forceinline__ void keys_load(uint4 k[HD / 16], const Key &key) {
#pragma unroll
    for (int i = 0; i < HD / 32; i++) {
        k[2 * i] = key(0, i);
        k[2 * i + 1] = key(8, i);
    }
}
/* scores: (token g; column 2t, 2t + 1), (g + 8; the same) */
template <int HD>
__device__ __forceinline__ void scores_of(const uint4 k[HD / 16], const Query<HD> &query, float s[4]) {
    s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
    for (int i = 0; i < HD / 32; i++) {
        const uint32_t low[4] = {k[2 * i].x, k[2 * i + 1].x, k[2 * i].y, k[2 * i + 1].y};
        const uint32_t high[4] = {k[2 * i].z, k[2 * i + 1].z, k[2 * i].w, k[2 * i + 1].w};
        multiply(s, low, query.w[4 * i], query.w[4 * i + 1]);
        multiply(s, high, query.w[4 * i + 2], query.w[4 * i + 3]);
    }
}

/* The visible tokens of two columns, and the conversion of scores to exponents. */
struct Sight {
    int first[2], end[2];
};

__device__ __forceinline__ float capped_here(float s, float softcap) {
    return softcap * LOG2E * tanhf(s / (softcap * LOG2E));
}
/* Not inlined: few models have a softcap, and skipped code costs the other models time. */
static __device__ __noinline__ float capped(float s, float softcap) { return capped_here(s, softcap); }

/* 2^x; 0 below 2^-126. */
__device__ __forceinline__ float power_of_two(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* A slice's scores to f16 exponentials as B: of block b words {tokens 2t, 2t + 1; tokens 2t + 8, 2t + 9} of column g.
 * most and sum: of columns 2t and 2t + 1. token: of lane's first row. */
__device__ __forceinline__ void exponentials(float s[BLOCKS][4], const Sight &sight, int token, float softcap,
    uint32_t p[BLOCKS][2], float most[2], float sum[2]) {
    if (softcap > 0)
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int k = 0; k < 4; k++) s[b][k] = capped(s[b][k], softcap);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        most[c] = NONE;
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int at = token + 16 * b + 8 * h;
                float &v = s[b][2 * h + c];
                v = at >= sight.first[c] && at < sight.end[c] ? v : NONE;
                most[c] = fmaxf(most[c], v);
            }
#pragma unroll
        for (int k = 4; k < 32; k *= 2) most[c] = fmaxf(most[c], __shfl_xor_sync(~0u, most[c], k));
        sum[c] = 0;
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float &v = s[b][2 * h + c];
                v = v == NONE ? 0 : power_of_two(v - most[c]);
                sum[c] += v;
            }
#pragma unroll
        for (int k = 4; k < 32; k *= 2) sum[c] += __shfl_xor_sync(~0u, sum[c], k);
    }
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        p[b][0] = transposed(packed(s[b][0], s[b][1]));
        p[b][1] = transposed(packed(s[b][2], s[b][3]));
    }
}

/* Values of 16 tokens and 64 dims as A of four blocks of dims: value(token) gives 8 dims from 8g on. Row g of block d
 * is dim 8g + 2d, row g + 8 the next. */
struct Values {
    uint4 v[4]; /* tokens 2t, 2t + 1, 2t + 8, 2t + 9 */
};
__device__ __forceinline__ uint32_t word_of(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ __forceinline__ void values_numbers(const Values &v, int d, uint32_t a[4]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t one = word_of(v.v[2 * h], d), other = word_of(v.v[2 * h + 1], d);
        a[2 * h] = __byte_perm(one, other, 0x5410);
        a[2 * h + 1] = __byte_perm(one, other, 0x7632);
    }
}

/* Factors for folding one slice into the result so far. */
__device__ __forceinline__ void fold_factors(float &most, float slice_most, float &keep, float &take) {
    const float next = fmaxf(most, slice_most);
    keep = power_of_two(most - next);
    take = power_of_two(slice_most - next);
    most = next;
}
/* If keep is 1, as it is after the largest score, the old value is unchanged. */
__device__ __forceinline__ float folded(float old, float keep, float slice, float take) {
    return fmaf(slice, take, old * keep);
}

/* The same for many slices: the factors of each depend on the scores alone, so 32 lanes compute it for 32 slices
 * in order, most being the largest before them and afterwards. part: a slice's largest and sum. */
struct __align__(16) FoldFactors {
    float keep, take, sum;
};
__device__ __forceinline__ FoldFactors fold_factors_of(float &most, float2 part, int lane) {
    float next = part.x;
#pragma unroll
    for (int k = 1; k < 32; k *= 2) {
        const float before = __shfl_up_sync(~0u, next, k);
        if (lane >= k) next = fmaxf(next, before);
    }
    next = fmaxf(next, most);
    const float before = __shfl_up_sync(~0u, next, 1), previous = lane ? before : most;
    most = __shfl_sync(~0u, next, 31);
    return {power_of_two(previous - next), power_of_two(part.x - next), part.y};
}
__device__ __forceinline__ void fold(const FoldFactors &f, float value, float &sum, float &o) {
    sum = folded(sum, f.keep, f.sum, f.take);
    o = folded(o, f.keep, value, f.take);
}

__device__ __forceinline__ const __half *half_head(const Attend &a, const int32_t *table, int token, int kv_head) {
    return (const __half *)head_at(a, table, token, kv_head);
}
