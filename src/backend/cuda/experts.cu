/* The router of a mixture of experts, and the sum over a row's experts. */
#include <climits>

#include "backend/backend.h"
#include "backend/cuda/common.cuh"

/* In the order of the floats; NaNs are somewhere. */
__device__ static uint32_t ordered(float v) {
    const uint32_t bits = __float_as_uint(v + 0.0f); /* one zero */
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

/* The largest that was not taken yet, of equals the first; a warp's search. -1: all are taken. */
__device__ static int best_left(const float *score, int count, const uint8_t *taken) {
    uint32_t most = 0;
    int best = INT_MAX;
    for (int i = threadIdx.x; i < count; i += 32) {
        const uint32_t key = ordered(score[i]);
        if (!taken[i] && (best == INT_MAX || key > most)) {
            best = i;
            most = key;
        }
    }
    const uint32_t greatest = __reduce_max_sync(~0u, best == INT_MAX ? 0 : most);
    best = __reduce_min_sync(~0u, most == greatest ? best : INT_MAX);
    return best == INT_MAX ? -1 : best;
}

__device__ static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ static void softmax(const float *x, int count, float *out) {
    float most = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < count; i += 32) most = fmaxf(most, x[i]);
    most = warp_max(most);
    for (int i = threadIdx.x; i < count; i += 32) sum += expf(x[i] - most);
    sum = warp_sum(sum);
    for (int i = threadIdx.x; i < count; i += 32) out[i] = expf(x[i] - most) / sum;
    __syncwarp();
}

/* Experts of the groups that are not among the best get the score 0. */
__device__ static void keep_groups(const Router &r, float *choice, uint8_t *taken) {
    __shared__ float worth[EXPERT_GROUPS_MAX];
    __shared__ uint8_t kept[EXPERT_GROUPS_MAX];
    const int size = r.experts / r.groups;
    for (int g = 0; g < r.groups; g++) {
        const int first = best_left(choice + g * size, size, taken + g * size);
        __syncwarp();
        if (threadIdx.x == 0) taken[g * size + first] = 1;
        __syncwarp();
        const int second = best_left(choice + g * size, size, taken + g * size);
        __syncwarp();
        if (threadIdx.x == 0) {
            worth[g] = choice[g * size + first] + (second < 0 || r.group_best ? 0 : choice[g * size + second]);
            taken[g * size + first] = kept[g] = 0;
        }
        __syncwarp();
    }
    for (int i = 0; i < r.groups_used; i++) {
        const int best = best_left(worth, r.groups, kept);
        __syncwarp();
        if (threadIdx.x == 0) kept[best] = 1;
        __syncwarp();
    }
    for (int i = threadIdx.x; i < r.experts; i += 32)
        if (!kept[i / size]) choice[i] = 0;
    __syncwarp();
}

/* ROUTE_SPARSEMIXER: each choice weighs what it is among those that come near it. */
__device__ static void mix_sparsely(const Router &r, const float *x, uint8_t *taken, int32_t *index, float *weight) {
    for (int i = 0; i < r.used; i++) {
        const int best = best_left(x, r.experts, taken);
        const float top = x[best];
        float sum = 0;
        for (int e = threadIdx.x; e < r.experts; e += 32)
            if (!taken[e] && !((top - x[e]) / fmaxf(fabsf(x[e]), top) > r.band)) sum += expf(x[e] - top);
        sum = warp_sum(sum);
        __syncwarp();
        if (threadIdx.x == 0) {
            index[i] = best;
            weight[i] = 1 / sum;
            taken[best] = 1;
        }
        __syncwarp();
    }
}

/* A warp per row. */
__global__ void __launch_bounds__(32) route_kernel(const __grid_constant__ Router r) {
    __shared__ float score[EXPERTS_MAX], choice[EXPERTS_MAX], weight[EXPERTS_USED_MAX];
    __shared__ uint8_t taken[EXPERTS_MAX];
    let_next_begin();
    wait_for_previous();
    const int lane = threadIdx.x, slots = r.used + r.shared;
    int32_t *index = r.index + (int64_t)blockIdx.x * slots;
    float *out = r.weight + (int64_t)blockIdx.x * slots;
    for (int i = lane; i < r.experts; i += 32) {
        score[i] = load(r.logits + (int64_t)blockIdx.x * r.experts + i);
        if (r.score == ROUTE_SIGMOID) score[i] = sigmoid(score[i]);
        taken[i] = 0;
    }
    __syncwarp();
    if (r.score == ROUTE_SOFTMAX) softmax(score, r.experts, score);
    for (int i = lane; i < r.experts; i += 32) choice[i] = score[i] + (r.bias ? __ldg(r.bias + i) : 0);
    __syncwarp();
    if (r.groups) keep_groups(r, choice, taken);
    if (r.score == ROUTE_SPARSEMIXER) mix_sparsely(r, score, taken, index, weight);
    for (int i = 0; i < r.used && r.score != ROUTE_SPARSEMIXER; i++) {
        const int best = best_left(choice, r.experts, taken);
        __syncwarp();
        if (lane == 0) {
            index[i] = best;
            weight[i] = score[best];
            taken[best] = 1;
        }
        __syncwarp();
    }
    if (r.score == ROUTE_TOP_SOFTMAX) softmax(weight, r.used, weight);
    float sum = r.epsilon;
    for (int i = 0; i < r.used; i++) sum += weight[i];
    float others = 1, shared = 1;
    if (r.shared_pair) {
        const float one = load(r.shared_logits + 2 * (int64_t)blockIdx.x),
                    two = load(r.shared_logits + 2 * (int64_t)blockIdx.x + 1), most = fmaxf(one, two);
        const float all = expf(one - most) + expf(two - most);
        others = expf(one - most) / all;
        shared = expf(two - most) / all;
    } else if (r.shared_logits) {
        shared = sigmoid(load(r.shared_logits + blockIdx.x));
    }
    for (int i = lane; i < r.used; i += 32) out[i] = weight[i] * ((r.normalise ? 1 / sum : 1) * r.scale) * others;
    if (lane == 0 && r.shared) {
        index[r.used] = r.experts;
        out[r.used] = shared;
    }
}
extern "C" cudaError_t rows_route(cudaStream_t stream, const Router *router) {
    return launch(stream, route_kernel, dim3(router->rows), 32, 0, *router);
}

__global__ void combine_kernel(
    int used, int64_t width, const float *y, const int32_t *place, const float *weight, float *out) {
    let_next_begin();
    wait_for_previous();
    const int64_t row = blockIdx.y;
    for (int64_t i = blockIdx.x * BLOCK + threadIdx.x; i < width; i += gridDim.x * BLOCK) {
        float sum = 0;
        for (int k = 0; k < used; k++)
            sum += load(weight + row * used + k) * load(y + (place ? __ldcg(place + row * used + k) : row * used + k) * width + i);
        out[row * width + i] = sum;
    }
}
extern "C" cudaError_t rows_combine(cudaStream_t stream, int rows, int used, int64_t width, const float *y,
    const int32_t *place, const float *weight, float *out) {
    const dim3 grid((unsigned)((width + BLOCK - 1) / BLOCK), rows);
    return launch(stream, combine_kernel, grid, BLOCK, 0, used, width, y, place, weight, out);
}
