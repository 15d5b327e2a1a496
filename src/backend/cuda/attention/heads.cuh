/* Norm and RoPE of a head of q or k, before attention. */
#pragma once
#include "backend/cuda/attention/attention.cuh"

static __device__ __noinline__ float dynamic_angle(const RopeParams &rope, int position, int pair) {
    const double grown =
        (double)rope.dynamic_factor * (position + 1) / rope.dynamic_positions - ((double)rope.dynamic_factor - 1);
    const double theta = rope.dynamic_theta * pow(grown, (double)rope.dims / (rope.dims - 2));
    const float each = (float)log((double)(float)theta) / (float)(rope.dims / 2);
    return (float)position * (float)exp((double)(-(float)pair * each));
}

/* first: the row's position in dimension 0; frequency: that of the pair */
static __device__ float angle_of(
    const RopeParams &rope, const StepRows &step, int row, int pair, int first, float frequency) {
    if (rope.dynamic_positions && first >= rope.dynamic_positions) return dynamic_angle(rope, first, pair);
    int axis = 0;
    if (rope.mrope_interleaved) {
        axis = pair < 3 * rope.mrope_section[pair % 3] ? pair % 3 : 0;
    } else {
        for (int end = 0; axis < step.position_dims; axis++) {
            end += rope.mrope_section[axis];
            if (pair < end) break;
        }
    }
    const int position = axis < step.position_dims ? __ldcg(step.positions + axis * step.rows + row) : first;
    return (float)position * frequency;
}
static __device__ float angle_of(const RopeParams &rope, const StepRows &step, int row, int pair) {
    return angle_of(rope, step, row, pair, __ldcg(step.positions + row), __ldg(rope.frequencies + pair));
}

/* The result of attention_norms() of a row for q (0) or k (1). */
static __device__ __forceinline__ Scaling whole_scaling(const Attend &a, int64_t row, int which) {
    if (!a.norm_full) return {0, 1};
    const float2 s = __ldcg((const float2 *)a.whole + 2 * row + which);
    return {s.x, s.y};
}

/* Applies the norm to a warp's head; whole: the norm over all heads, in which this head begins at `first`. */
static __device__ void head_norm(const RowNorm &norm, const Scaling *whole, int first, int width, float *head) {
    const int lane = threadIdx.x % 32;
    Scaling s = {0, 1};
    if (whole) {
        s = *whole;
    } else {
        float sum = 0;
        if (norm.kind) {
#pragma unroll 4
            for (int i = lane; i < width; i += 32) sum += head[i];
            s.mean = warp_sum(sum) / (float)width;
            sum = 0;
        }
#pragma unroll 8
        for (int i = lane; i < width; i += 32) {
            const float v = head[i] - s.mean;
            sum += v * v;
        }
        s.factor = 1.0f / sqrtf(warp_sum(sum) / (float)width + norm.eps);
    }
#pragma unroll 8
    for (int i = lane; i < width; i += 32) head[i] = scaled(norm, s, head[i], whole ? first + i : i);
    __syncwarp();
}

/* Normalises and rotates a warp's head of q or k, in `head`. */
static __device__ __noinline__ void head_prepare(const Attend &a, const float *x, const RowNorm &norm,
    const Scaling *whole, int first, const float2 *rotations, float *head) {
    const int lane = threadIdx.x % 32, width = a.head_dim;
#pragma unroll 8
    for (int i = lane; i < width; i += 32) head[i] = load(x + i);
    __syncwarp();
    if (norm.width && !a.norm_last) head_norm(norm, whole, first, width, head);
    const int half = a.rope.dims / 2;
#pragma unroll 4
    for (int i = lane; i < half; i += 32) {
        const int one = a.rope.interleaved ? 2 * i : i, other = a.rope.interleaved ? 2 * i + 1 : i + half;
        const float u = head[one] * a.rope.scale, v = head[other] * a.rope.scale;
        head[one] = u * rotations[i].x - v * rotations[i].y;
        head[other] = u * rotations[i].y + v * rotations[i].x;
    }
    __syncwarp();
    if (norm.width && a.norm_last) head_norm(norm, whole, first, width, head);
}

/* Heads of common shapes in registers, in the order of head_prepare(): v[j] is dim lane + 32j, on input and output.
 * Other heads pass through `head`, in shared memory. */
template <int HD>
__device__ __forceinline__ void head_rotated(const Attend &a, const float *x, const RowNorm &norm, const Scaling *whole,
    int first, const float2 *rotations, float *head, float v[HD / 32]) {
    constexpr int N = HD / 32;
    const int lane = threadIdx.x % 32;
    if (HD < 64 || a.rope.interleaved || a.rope.dims != HD || norm.kind || a.norm_last) {
        head_prepare(a, x, norm, whole, first, rotations, head);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = head[lane + 32 * j];
        return;
    }
    if (norm.width) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < N; j++) sum += v[j] * v[j];
        const Scaling s = whole ? *whole : Scaling{0, 1.0f / sqrtf(warp_sum(sum) / (float)HD + norm.eps)};
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = scaled(norm, s, v[j], (whole ? first : 0) + lane + 32 * j);
    }
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        const float one = v[j] * a.rope.scale, other = v[j + N / 2] * a.rope.scale;
        const float2 turn = rotations[lane + 32 * j];
        v[j] = one * turn.x - other * turn.y;
        v[j + N / 2] = one * turn.y + other * turn.x;
    }
}

/* The same in shared memory. */
template <int HD>
__device__ __forceinline__ void head_take(const Attend &a, const float *x, const RowNorm &norm, const Scaling *whole,
    int first, const float2 *rotations, float *head) {
    float v[HD / 32];
#pragma unroll
    for (int j = 0; j < HD / 32; j++) v[j] = load(x + threadIdx.x % 32 + 32 * j);
    head_rotated<HD>(a, x, norm, whole, first, rotations, head, v);
#pragma unroll
    for (int j = 0; j < HD / 32; j++) head[threadIdx.x % 32 + 32 * j] = v[j];
    __syncwarp();
}
