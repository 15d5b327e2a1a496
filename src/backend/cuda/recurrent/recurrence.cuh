/* Shared by the kernels of recurrences with a matrix state: the tail, the work of a row, the order of sums. */
#pragma once
#include "backend/cuda/recurrent/recurrent.cuh"

/* A product of a state with a row is a sum over the warps in order; a warp has neighbouring elements of the key. */
constexpr int HEAD_WARPS = 8;

__device__ static inline int key_head_of(const Recurrence &op, int head) {
    return op.tiled ? head % op.key_heads : head / (op.value_heads / op.key_heads);
}

__device__ static inline int decay_width(const Recurrence &op) { return op.channel_decay ? op.key_dim : 1; }
__device__ static inline float *row_decays(const Recurrence &op, float *row, int head) {
    return row + head * decay_width(op);
}
__device__ static inline float *row_key(const Recurrence &op, float *row, int key_head) {
    return row + op.value_heads * decay_width(op) + key_head * op.key_dim;
}
__device__ static inline float *row_update(const Recurrence &op, float *row, int head) {
    return row + op.value_heads * decay_width(op) + (int64_t)op.key_heads * op.key_dim + (int64_t)head * op.value_dim;
}

/* Work of a row: products with the keys of its page, q·k then k·k [key_heads][2 or 1][PAGE]; then log decays of
 * channels [value_heads][key_dim]. */
__device__ static inline int product_kinds(const Recurrence &op) { return op.kind == RECURRENCE_DELTA ? 2 : 1; }
__device__ static inline int64_t work_width(const Recurrence &op) {
    return (int64_t)op.key_heads * PAGE * product_kinds(op) +
        (op.channel_decay ? (int64_t)op.value_heads * op.key_dim : 0);
}
__device__ static inline float *products_of(const Recurrence &op, int64_t row, int key_head) {
    return op.work + row * work_width(op) + (int64_t)key_head * PAGE * product_kinds(op);
}
__device__ static inline float *channel_decays(const Recurrence &op, int64_t row, int head) {
    return op.work + row * work_width(op) + (int64_t)op.key_heads * PAGE * product_kinds(op) + head * op.key_dim;
}

__device__ static inline float dt_bias_of(const Recurrence &op, int64_t index) {
    return op.dt_bias ? __ldg(op.dt_bias + index) : 0;
}
/* a, bias: the elements of op.a and op.dt_bias. */
__device__ static inline float time_step_of(const Recurrence &op, float a, float bias) {
    return op.a ? fminf(fmaxf(softplus(fmaf(op.dt_scale, a, bias)), op.dt_min), op.dt_max) : 1;
}
__device__ static inline float time_step(const Recurrence &op, int64_t row, int64_t index, int64_t count) {
    return time_step_of(op, op.a ? load(op.a + row * count + index) : 0, dt_bias_of(op, index));
}

/* Whether anchors can be read and written in pieces of 16 bytes. */
static inline bool recurrence_aligned(const RecurrenceArgs &a) {
    return a.op.value_dim % 4 == 0 && a.pages.stride % 4 == 0 &&
        ((uintptr_t)(a.pages.pages + a.pages.anchor_at) & 15) == 0;
}

/* recurrence_decode.cu: steps whose chunks are single rows. recurrence_prefill.cu: other steps. Whether they take the
 * operation; the kernel behind that of the rows' products with the keys of their pages. */
bool recurrence_decode_fits(const RecurrenceArgs &args);
cudaError_t recurrence_decode(cudaStream_t stream, const RecurrenceArgs &args);
bool recurrence_prefill_fits(const RecurrenceArgs &args);
cudaError_t recurrence_prefill(cudaStream_t stream, const RecurrenceArgs &args);
