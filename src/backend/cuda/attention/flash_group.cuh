/* Spans of decode rows in flash_group.cu: their partial results, and how they are added. */
#pragma once
#include "backend/cuda/attention/flash_slice.cuh"

enum { GROUP_DIM_MAX = 512 };

/* Tokens of a span of a row that sees positions up to `end`. */
__host__ __device__ __forceinline__ int group_span(int end) {
    int tokens = SLICE;
    while ((end + tokens - 1) / tokens > FLASH_GROUP_SPANS) tokens *= 2;
    return tokens;
}

/* Partial results of a decode row's spans: [span][head][dim]; largest score and sum [span][head]. */
__host__ __device__ __forceinline__ int64_t span_floats(const Attend &a) {
    return (int64_t)a.heads * (a.value_dim + 4); /* sums take half of the 4, results begin at 16 bytes */
}
struct SpanParts {
    float *results;
    float2 *sums;
    __device__ __forceinline__ SpanParts(const Attend &a, int row, int spans)
        : results(a.partials + row * spans * span_floats(a)),
          sums((float2 *)(results + (int64_t)spans * a.heads * a.value_dim)) {}
};

/* Factor of a sum whose largest score was `most`, and what the sink adds to it. */
__device__ __forceinline__ float2 group_sink(const Attend &a, int head, float most) {
    if (!a.sinks) return make_float2(1, 0);
    const float sink = __ldg(a.sinks + head) * LOG2E, largest = fmaxf(most, sink);
    return make_float2(power_of_two(most - largest), power_of_two(sink - largest));
}

/* Four dims from `at` of a head of the row, the `part`th of the call: its spans in order. A warp, of which a lane has a
 * span's sum; `at` may lie behind the last dim. spans: those that there is room for. */
__device__ __forceinline__ float4 spans_merge(
    const Attend &a, const Seen &seen, int part, int head, int spans, int at) {
    constexpr int TOGETHER = 8; /* loads under way */
    const int span = group_span(seen.end), first = seen.first / span, end = (seen.end - 1) / span + 1;
    const int lane = threadIdx.x % 32;
    const SpanParts parts(a, part, spans);
    const bool on = lane >= first && lane < end, here = at < a.value_dim;
    const float2 own = on ? __ldcg(parts.sums + lane * a.heads + head) : make_float2(NONE, 0);
    const float *from = parts.results + (int64_t)head * a.value_dim + at;
    const int64_t stride = (int64_t)a.heads * a.value_dim;
    float4 v[TOGETHER], o = make_float4(0, 0, 0, 0);
    const auto take = [&](int s) {
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            v[j] = here && s + j < end ? __ldcg((const float4 *)(from + (s + j) * stride)) : make_float4(0, 0, 0, 0);
    };
    take(first);
    const float most = warp_max(own.x), weight = on ? power_of_two(own.x - most) : 0;
    const float2 sink = group_sink(a, head, most);
    const float sum = fmaf(warp_sum(weight * own.y), sink.x, sink.y);
    for (int s = first; s < end; s += TOGETHER) {
        if (s > first) take(s);
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const float w = __shfl_sync(~0u, weight, min(s + j, 31));
            if (s + j >= end) break;
            o.x = fmaf(w, v[j].x, o.x);
            o.y = fmaf(w, v[j].y, o.y);
            o.z = fmaf(w, v[j].z, o.z);
            o.w = fmaf(w, v[j].w, o.w);
        }
    }
    return make_float4(o.x * sink.x / sum, o.y * sink.x / sum, o.z * sink.x / sum, o.w * sink.x / sum);
}
