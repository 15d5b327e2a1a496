/* Attention of rows that see quantised pages, for heads of any width and pages of any type, in f32. Each warp takes a
 * part of a head of a row (kvq.cuh). */
#include "backend/cuda/attention/kvq.cuh"

enum { PLAIN_WARPS = 4, PLAIN_DIMS = KVQ_DIM_MAX / 32 };

__device__ __forceinline__ float number_at(const uint8_t *p, int64_t i, int dtype) {
    if (dtype == F32) return __ldcg((const float *)p + i);
    const unsigned short bits = __ldcg((const unsigned short *)p + i);
    return dtype == F16 ? __half2float(__ushort_as_half(bits)) : __uint_as_float((uint32_t)bits << 16);
}

/* Scores to p, in `scores`; the largest and the sum of p. on(j): whether token j of the part is seen. */
__device__ __forceinline__ float2 plain_exponentials(float *scores, int tokens) {
    const int lane = threadIdx.x % 32;
    float most = NONE, sum = 0;
    for (int j = lane; j < tokens; j += 32) most = fmaxf(most, scores[j]);
    most = warp_max(most);
    for (int j = lane; j < tokens; j += 32) {
        scores[j] = power_of_two(scores[j] - most);
        sum += scores[j];
    }
    __syncwarp();
    return make_float2(most, warp_sum(sum));
}

static __device__ float2 generic_full(
    const Attend &a, const KvqRow &seen, int row, int head, int token, int tokens, float *q, float *scores, float *o) {
    const int lane = threadIdx.x % 32, kv_head = head / (a.heads / a.kv_heads), place = __ldcg(a.step.places + row);
    const int32_t *table = a.tables + (int64_t)__ldcg(a.step.chunks + row) * a.table_stride;
    const uint8_t *keys = head_at(a, table, token, kv_head),
                  *values = keys + (int64_t)PAGE_TOKENS * a.head_dim * dtype_size(a.dtype);
    const int64_t at = token % PAGE_TOKENS;
    for (int j = lane; j < tokens; j += 32) {
        float s = 0;
        for (int i = 0; i < a.head_dim; i++) s = fmaf(q[i], number_at(keys, (at + j) * a.head_dim + i, a.dtype), s);
        s *= a.scale * LOG2E;
        if (a.slopes) s += slope_bias(a, head, token + j, place) * LOG2E;
        scores[j] = a.softcap > 0 ? capped(s, a.softcap) : s;
    }
    __syncwarp();
    const float2 sums = plain_exponentials(scores, tokens);
    for (int j = 0; j < tokens; j++)
#pragma unroll
        for (int n = 0; n < PLAIN_DIMS; n++)
            if (lane + 32 * n < a.value_dim)
                o[n] = fmaf(scores[j], number_at(values, (at + j) * a.value_dim + lane + 32 * n, a.dtype), o[n]);
    return sums;
}

static __device__ float2 plain_page(const Attend &a, const AttendQuant &c, const KvqRow &seen, int row, int head,
    int page, const float *q, const float2 *rotations, float *scores, float *o) {
    const int lane = threadIdx.x % 32, d = a.head_dim, kv_head = head / (a.heads / a.kv_heads),
              place = __ldcg(a.step.places + row);
    const uint8_t *keys = kvq_keys(c, seen, page, kv_head, a.kv_heads),
                  *values = kvq_values(c, seen, page, kv_head, a.kv_heads);
    const KvqShape ks = kvq_shape(d, c.k_group, seen.k_form, 0), vs = kvq_shape(a.value_dim, c.v_group, seen.v_form, 1);
    for (int j = lane; j < PAGE_TOKENS; j += 32) {
        float s = 0;
        for (int g = 0; g < ks.groups; g++) {
            float sum = 0;
            for (int i = g * ks.group; i < (g + 1) * ks.group; i++)
                sum = fmaf(q[i], (float)kvq_level(c.books, ks, keys, j, i) + 0.5f, sum);
            s = fmaf(sum, number_at(keys + ks.scales, g * PAGE_TOKENS + token_place(j), F16), s);
        }
        for (int i = 0; i < d; i++) s = fmaf(q[i], number_at(keys, i, F16), s);
        uint64_t pairs = kvq_pairs(c, seen, kv_head);
        for (int n = 0; pairs; n++, pairs &= pairs - 1) {
            const int pair = __ffsll((long long)pairs) - 1;
            const float2 by = __ldcg(rotations + n),
                         turn = rotated_twice(
                             pair_rotation(c.rope, pair, page * PAGE_TOKENS), pair_rotation(c.rope, pair, j));
            s = fmaf(by.x, turn.x, fmaf(by.y, turn.y, s));
        }
        if (a.slopes) s += slope_bias(a, head, page * PAGE_TOKENS + j, place) * LOG2E;
        scores[j] = a.softcap > 0 ? capped(s, a.softcap) : s;
    }
    __syncwarp();
    const float2 sums = plain_exponentials(scores, PAGE_TOKENS);
    for (int j = 0; j < PAGE_TOKENS; j++)
#pragma unroll
        for (int n = 0; n < PLAIN_DIMS; n++) {
            const int dim = lane + 32 * n;
            if (dim >= a.value_dim) continue;
            const float scale = number_at(values + vs.scales, dim / vs.group * PAGE_TOKENS + token_place(j), F16);
            o[n] = fmaf(scores[j] * scale, (float)kvq_level(c.books, vs, values, dim, token_place(j)) + 0.5f, o[n]);
        }
    return sums;
}

__global__ void __launch_bounds__(32 * PLAIN_WARPS)
    plain_kernel(const __grid_constant__ Attend a, const __grid_constant__ AttendQuant c) {
    __shared__ float queries[PLAIN_WARPS][KVQ_DIM_MAX], scores[PLAIN_WARPS][PAGE_TOKENS];
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = blockIdx.x;
    const int head = blockIdx.y * PLAIN_WARPS + warp, row = a.first_row + blockIdx.z, d = a.head_dim;
    const KvqRow seen = kvq_row(a, c, row);
    const int end = seen_by(a, row).end;
    wait_for_previous();
    if (!seen.end || head >= a.heads) return;
    const int page = seen.sink / PAGE_TOKENS + part - c.full_slices, token = full_token(seen, part);
    if (part < c.full_slices ? token >= end : page >= seen.end / PAGE_TOKENS) return;
    const int64_t index = (int64_t)row * a.heads + head;
    const uint8_t *own = c.queries + index * (d * sizeof(float) + BIAS_PAIRS * sizeof(float2));
    const float *q = part < c.full_slices ? a.q + index * d : (const float *)own;
    for (int i = lane; i < d; i += 32) queries[warp][i] = load(q + i);
    __syncwarp();
    float o[PLAIN_DIMS] = {};
    const float2 sums = part < c.full_slices
        ? generic_full(
              a, seen, row, head, token, min(end - token, (int)ATTENTION_SLICE), queries[warp], scores[warp], o)
        : plain_page(
              a, c, seen, row, head, page, queries[warp], (const float2 *)(own + d * sizeof(float)), scores[warp], o);
    const KvqPartials parts = kvq_partials(a, c);
    const int64_t at = ((int64_t)blockIdx.z * parts.parts + part) * a.heads + head;
    if (lane == 0) parts.sums[at] = sums;
#pragma unroll
    for (int n = 0; n < PLAIN_DIMS; n++)
        if (lane + 32 * n < a.value_dim) parts.o[at * a.value_dim + lane + 32 * n] = o[n];
}

cudaError_t kvq_generic(cudaStream_t stream, const Attend &a, const AttendQuant &c) {
    const dim3 grid(kvq_partial_count(c), (a.heads + PLAIN_WARPS - 1) / PLAIN_WARPS, a.rows);
    return launch(stream, plain_kernel, grid, 32 * PLAIN_WARPS, 0, a, c);
}
