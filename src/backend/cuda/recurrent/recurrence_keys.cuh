/* Heads of q and k of recurrences, and their products with the keys of the page. */
#pragma once
#include "backend/cuda/attention/heads.cuh"
#include "backend/cuda/recurrent/recurrence.cuh"

constexpr int PRODUCT_WARPS = 8, ROUNDS = PAGE / PRODUCT_WARPS;
constexpr int KEY_EACH = 4; /* elements in a lane of a head of the usual width, at most 128 */

/* A warp's head of q or k is in x: normalises, rotates and scales it there. square: this lane's part of the sum of
 * squares. stored: where a key is kept in the tail; NULL: nowhere. */
__device__ static void head_finish(
    const RecurrenceArgs &a, int row, int is_k, float square, float *x, float *head, float *stored) {
    const Recurrence &op = a.op;
    const int lane = threadIdx.x % 32;
    const RowNorm &norm = is_k ? a.k_norm : a.q_norm;
    if (norm.width) {
        const float scale = 1.0f / sqrtf(warp_sum(square) / (float)op.key_dim + norm.eps);
        for (int i = lane; i < op.key_dim; i += 32) x[i] *= norm.weight ? scale * __ldg(norm.weight + i) : scale;
    }
    __syncwarp();
    for (int i = lane; i < a.rope.dims / 2; i += 32) {
        float sine, cosine;
        sincosf(angle_of(a.rope, a.step, row, i), &sine, &cosine);
        const int first = a.rope.interleaved ? 2 * i : i, second = a.rope.interleaved ? 2 * i + 1 : i + a.rope.dims / 2;
        const float one = x[first] * a.rope.scale, other = x[second] * a.rope.scale;
        x[first] = one * cosine - other * sine;
        x[second] = one * sine + other * cosine;
    }
    __syncwarp();
    for (int i = lane; i < op.key_dim; i += 32) {
        const float v = x[i] * (is_k ? op.k_scale : op.q_scale);
        x[i] = v;
        if (head) head[i] = v;
        if (stored) stored[i] = v;
    }
}

/* The sums over a warp of eight numbers, each with the order of warp_sum(): a lane keeps half of its numbers in each of
 * the first steps, and ends with number lane / 4. */
__device__ static float warp_sums(float (&v)[8]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 16, count = 4; step >= 4; step /= 2, count /= 2)
#pragma unroll
        for (int i = 0; i < count; i++) {
            const bool upper = lane & step;
            const float own = upper ? v[i + count] : v[i], other = upper ? v[i] : v[i + count];
            v[i] = own + __shfl_xor_sync(~0u, other, step);
        }
    const float sum = v[0] + __shfl_xor_sync(~0u, v[0], 2);
    return sum + __shfl_xor_sync(~0u, sum, 1);
}

/* A warp's products of a row with some keys of its page: a lane has that with key `key` of q, or of k. E: elements of
 * a head in a lane. */
struct KeyProduct {
    float sum;
    int key;
    bool of_k, on; /* on: one of the lanes that have it */
};
/* number: the warp's among PRODUCT_WARPS, of which it has every eighth key. */
template <int E>
__device__ static KeyProduct key_products(
    const float (&keys)[ROUNDS][E], const float (&q)[E], const float (&k)[E], int number) {
    static_assert(2 * ROUNDS == 8, "products of a row's q and k in a warp");
    const int lane = threadIdx.x % 32;
    float with[2 * ROUNDS]; /* q, k in turn */
#pragma unroll
    for (int n = 0; n < ROUNDS; n++) {
        with[2 * n] = with[2 * n + 1] = 0;
#pragma unroll
        for (int i = 0; i < E; i++) {
            with[2 * n] = fmaf(keys[n][i], q[i], with[2 * n]);
            with[2 * n + 1] = fmaf(keys[n][i], k[i], with[2 * n + 1]);
        }
    }
    const float sum = warp_sums(with);
    return {sum, number + lane / 8 * PRODUCT_WARPS, lane / 4 % 2 == 1, lane % 4 == 0};
}

/* Those with the keys up to the row's own, number t of its page. */
template <int E>
__device__ static void store_products(
    const Recurrence &op, const float (&keys)[ROUNDS][E], const float (&q)[E], const float (&k)[E], int t, float *out) {
    const KeyProduct p = key_products(keys, q, k, (int)threadIdx.x / 32);
    if (p.on && p.key <= t && p.of_k < product_kinds(op)) out[p.of_k * PAGE + p.key] = p.sum;
}
