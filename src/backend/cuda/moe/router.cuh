/* The choice of a row's experts from its logits, by one block. */
#pragma once
#include <climits>

#include "backend/backend.h"
#include "backend/cuda/moe/moe.h"
#include "backend/cuda/runtime/common.cuh"

/* Maps floats to integers of the same order; the place of NaNs is unspecified. */
__device__ static uint32_t ordered(float v) {
    const uint32_t bits = __float_as_uint(v + 0.0f); /* one zero */
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

/* The routing of a row, in shared memory. */
struct Choice {
    int32_t index[EXPERTS_USED_MAX + 1]; /* chosen experts */
    float weight[EXPERTS_USED_MAX + 1];
    alignas(16) float score[EXPERTS_MAX]; /* logits at first */
    float shared[2];                      /* logits of the shared expert, if there are any */
    union {
        float value[EXPERTS_MAX];  /* scores that the choice compares */
        uint32_t key[EXPERTS_MAX]; /* the same in the order of whole numbers */
    };
    union {
        uint8_t taken[EXPERTS_MAX];
        uint16_t near[EXPERTS_MAX]; /* experts that rank_near() compares, in any order */
    };
    int near_count;
    float worth[EXPERT_GROUPS_MAX];
    uint8_t kept[EXPERT_GROUPS_MAX];
};

/* The largest score not taken yet, of equals the first; searched by a warp. -1: all are taken. */
__device__ static int best_left(const float *score, int count, const uint8_t *taken) {
    uint32_t most = 0;
    int best = INT_MAX;
    for (int i = threadIdx.x % 32; i < count; i += 32) {
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
/* Not inlined, as hardly any model has it. */
static __device__ __noinline__ float sqrt_softplus(float x) {
    return sqrtf(fmaxf(x, 0) + log1pf(expf(-fabsf(x)))); /* ln(1 + e^x) without overflow */
}

/* The largest of some numbers and Σ e^(x − largest); by a warp. */
__device__ __forceinline__ float2 softmax_of(const float *x, int count) {
    const int lane = threadIdx.x % 32;
    float most = -INFINITY, sum = 0;
#pragma unroll 1
    for (int i = lane; i < count; i += 32) most = fmaxf(most, x[i]);
    most = warp_max(most);
#pragma unroll 1
    for (int i = lane; i < count; i += 32) sum += expf(x[i] - most);
    return make_float2(most, warp_sum(sum));
}

/* Experts of the groups that are not among the best get the value −∞. A warp. */
__device__ static void keep_groups(const Router &r, Choice &c) {
    const int size = r.experts / r.groups, lane = threadIdx.x % 32;
    for (int g = 0; g < r.groups; g++) {
        float *value = c.value + g * size;
        uint8_t *taken = c.taken + g * size;
        const int first = best_left(value, size, taken);
        __syncwarp();
        if (lane == 0) taken[first] = 1;
        __syncwarp();
        const int second = best_left(value, size, taken);
        __syncwarp();
        if (lane == 0) {
            c.worth[g] = value[first] + (second < 0 || r.group_best ? 0 : value[second]);
            taken[first] = c.kept[g] = 0;
        }
        __syncwarp();
    }
    for (int i = 0; i < r.topk_group; i++) {
        const int best = best_left(c.worth, r.groups, c.kept);
        __syncwarp();
        if (lane == 0) c.kept[best] = 1;
        __syncwarp();
    }
    for (int i = lane; i < r.experts; i += 32)
        if (!c.kept[i / size]) c.value[i] = -INFINITY;
    __syncwarp();
}

/* ROUTE_SPARSEMIXER: the weight of a choice is its softmax among the logits near it. A warp. */
__device__ static void mix_sparsely(const Router &r, Choice &c) {
    const float *x = c.score;
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < r.top_k; i++) {
        const int best = best_left(x, r.experts, c.taken);
        const float top = x[best];
        float sum = 0;
        for (int e = lane; e < r.experts; e += 32)
            if (!c.taken[e] && !((top - x[e]) / fmaxf(fabsf(x[e]), top) > r.jitter_eps)) sum += expf(x[e] - top);
        sum = warp_sum(sum);
        __syncwarp();
        if (lane == 0) {
            c.index[i] = best;
            c.weight[i] = 1 / sum;
            c.taken[best] = 1;
        }
        __syncwarp();
    }
}

/* One after the other; a warp. */
__device__ static void take_best(const Router &r, Choice &c) {
    for (int i = 0; i < r.top_k; i++) {
        const int best = best_left(c.value, r.experts, c.taken);
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            c.index[i] = best;
            c.weight[i] = c.score[best];
            c.taken[best] = 1;
        }
        __syncwarp();
    }
}

enum { RANKED_MAX = 128 }; /* experts that are all compared with each other */

/* Each expert's rank is how many come before it. All threads; the values have become keys. */
__device__ __forceinline__ void rank_all(const Router &r, Choice &c) {
    const int shift =
        5 - max(0, 29 - __clz(r.experts - 1)); /* 2 to this many threads count for an expert: 32 for eight */
    const int parts = 1 << shift, expert = threadIdx.x >> shift;
    const uint32_t own = expert < r.experts ? c.key[expert] : 0;
    int rank = 0;
#pragma unroll 8
    for (int i = threadIdx.x & (parts - 1); i < r.experts; i += parts) {
        const uint32_t key = c.key[i];
        rank += key > own || (key == own && i < expert);
    }
#pragma unroll 1
    for (int i = 1; i < parts; i *= 2) rank += __shfl_xor_sync(~0u, rank, i);
    if ((threadIdx.x & (parts - 1)) == 0 && expert < r.experts && rank < r.top_k) {
        c.index[rank] = expert;
        c.weight[rank] = c.score[expert];
    }
}

/* The same of more experts. The largest values of 32 sets of experts give a bound that those among the best are not
 * below; only these are ranked. All threads. */
__device__ __forceinline__ void rank_near(const Router &r, Choice &c) {
    static_assert(EXPERTS_USED_MAX <= 32, "as many sets as lanes");
    uint32_t most = 0, least = 0;
    if (threadIdx.x == 0) c.near_count = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < r.experts; i += BLOCK) c.key[i] = ordered(c.value[i]);
    block_sync();
#pragma unroll 4
    for (int i = threadIdx.x % 32; i < r.experts; i += 32) most = max(most, c.key[i]);
#pragma unroll 1
    for (int i = 0; i < r.top_k; i++) { /* equal ones leave together, and the bound is lower */
        least = __reduce_max_sync(~0u, most);
        if (most == least) most = 0;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < r.experts; i += BLOCK)
        if (c.key[i] >= least) c.near[atomicAdd(&c.near_count, 1)] = (uint16_t)i;
    block_sync();
    const int count = c.near_count;
#pragma unroll 1
    for (int n = threadIdx.x; n < count; n += BLOCK) {
        const int expert = c.near[n];
        const uint32_t own = c.key[expert];
        int rank = 0;
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            const int other = c.near[i];
            const uint32_t key = c.key[other];
            rank += key > own || (key == own && other < expert);
        }
        if (rank >= r.top_k) continue;
        c.index[rank] = expert;
        c.weight[rank] = c.score[expert];
    }
}

/* All threads. Not inlined, so that the code that nearly all models need is short. */
static __device__ __noinline__ void search_best(const Router &r, Choice &c) {
    if (!r.groups && r.score != ROUTE_SPARSEMIXER) {
        rank_near(r, c);
        return;
    }
    if (threadIdx.x >= 32) return; /* one expert after the other, by a warp */
    if (r.groups) keep_groups(r, c);
    if (r.score == ROUTE_SPARSEMIXER)
        mix_sparsely(r, c);
    else
        take_best(r, c);
}

/* Chooses the experts by logits; thread i mod BLOCK has written logit i. By all BLOCK threads, to which the result is
 * then visible. */
__device__ __forceinline__ void choose_index(const Router &r, Choice &c) {
    const bool search = r.groups || r.score == ROUTE_SPARSEMIXER || r.experts > RANKED_MAX;
    const bool softmax = r.score == ROUTE_SOFTMAX && (r.bias || r.groups); /* otherwise logits have the same order */
    float2 s = make_float2(0, 1);
    if (softmax) {
        block_sync();
        s = softmax_of(c.score, r.experts);
        block_sync();
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < r.experts; i += BLOCK) {
        float score = c.score[i];
        if (r.score == ROUTE_SIGMOID) score = sigmoid(score);
        if (r.score == ROUTE_SQRT_SOFTPLUS) score = sqrt_softplus(score);
        if (softmax) score = expf(score - s.x) / s.y;
        c.score[i] = score;
        c.taken[i] = 0;
        const float value = score + (r.bias ? __ldg(r.bias + i) : 0);
        if (search)
            c.value[i] = value;
        else
            c.key[i] = ordered(value);
    }
    if (threadIdx.x == 0 && r.shared) c.index[r.top_k] = r.experts;
    block_sync();
    if (!search)
        rank_all(r, c);
    else
        search_best(r, c);
    block_sync();
}

/* Computes the weights of the chosen experts; by a warp. */
__device__ __forceinline__ void choose_weights(const Router &r, Choice &c) {
    const int lane = threadIdx.x % 32;
    float *weight = c.weight;
    if (r.score == ROUTE_TOP_SOFTMAX || (r.score == ROUTE_SOFTMAX && !r.bias && !r.groups)) {
        const bool top = r.score == ROUTE_TOP_SOFTMAX;
        const float2 s = softmax_of(top ? weight : c.score, top ? r.top_k : r.experts);
        __syncwarp();
        if (lane < r.top_k) weight[lane] = expf(weight[lane] - s.x) / s.y;
        __syncwarp();
    }
    if (r.score == ROUTE_TOP_SIGMOID) {
        if (lane < r.top_k) weight[lane] = sigmoid(weight[lane]);
        __syncwarp();
    }
    float sum = r.epsilon;
#pragma unroll 4
    for (int i = 0; i < r.top_k; i++) sum += weight[i];
    float others = 1, shared = 1;
    if (r.shared_pair) {
        const float one = c.shared[0], two = c.shared[1], most = fmaxf(one, two);
        const float all = expf(one - most) + expf(two - most);
        others = expf(one - most) / all;
        shared = expf(two - most) / all;
    } else if (r.shared_logits) {
        shared = sigmoid(c.shared[0]);
    }
    __syncwarp();
    if (lane < r.top_k) weight[lane] = weight[lane] * ((r.norm_topk_prob ? 1 / sum : 1) * r.scale) * others;
    if (r.expert_scale && lane < r.top_k) weight[lane] *= __ldg(r.expert_scale + c.index[lane]);
    if (lane == 0 && r.shared) weight[r.top_k] = shared;
}

/* Chooses experts and weights; the result is then visible to all BLOCK threads. */
__device__ __forceinline__ void choose(const Router &r, Choice &c) {
    choose_index(r, c);
    if (threadIdx.x < 32) choose_weights(r, c);
    block_sync();
}
