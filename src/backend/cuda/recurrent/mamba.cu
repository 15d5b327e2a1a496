/* Mamba-1: a warp per channel, whose lanes hold the elements of its state. */
#include "backend/cuda/recurrent/recurrent.cuh"

constexpr int MAMBA_WARPS = 8, STATE_EACH = RECURRENT_DIM_MAX / 32;

/* Element `at` of the state behind the slice of rows from `first` on. */
__device__ static float *slice_at(const MambaArgs &a, int32_t page, int first, int64_t at) {
    const int64_t slice = a.op.channels * a.op.state / MAMBA_SLICE_TOKENS;
    return tail_row(a.pages, page, first + (int)(at / slice)) + 2 * a.op.channels + a.op.state + at % slice;
}

__global__ void __launch_bounds__(MAMBA_WARPS * 32) mamba_kernel(const __grid_constant__ MambaArgs a) {
    let_next_begin();
    wait_for_previous();
    const Chunk c = chunk_of(a.step, a.pages, blockIdx.y);
    const Mamba &op = a.op;
    const int lane = threadIdx.x % 32, state = op.state;
    const int64_t channel = (int64_t)blockIdx.x * MAMBA_WARPS + threadIdx.x / 32;
    if (channel >= op.channels) return;
    float h[STATE_EACH], rate[STATE_EACH];
#pragma unroll
    for (int i = 0; i < STATE_EACH; i++) {
        h[i] = 0;
        rate[i] = lane + 32 * i < state ? __ldg(op.rate + channel * state + lane + 32 * i) : 0;
    }
    const auto advance = [&](float dt, float dt_x, const float *b) {
#pragma unroll
        for (int i = 0; i < STATE_EACH; i++)
            if (lane + 32 * i < state)
                h[i] = fmaf(expf(__fmul_rn(rate[i], dt)), h[i], __fmul_rn(dt_x, load(b + lane + 32 * i)));
    };
    if (c.position > 0) {
        const int rows = (c.position - 1) % PAGE + 1, whole = rows / MAMBA_SLICE_TOKENS * MAMBA_SLICE_TOKENS;
#pragma unroll
        for (int i = 0; i < STATE_EACH; i++) {
            const int64_t at = channel * state + lane + 32 * i;
            if (lane + 32 * i >= state) continue;
            h[i] =
                load(whole ? slice_at(a, c.before, whole - MAMBA_SLICE_TOKENS, at) : anchor_of(a.pages, c.before) + at);
        }
        for (int r = whole; r < rows; r++) {
            const float *row = tail_row(a.pages, c.before, r);
            advance(load(row + channel), load(row + op.channels + channel), row + 2 * op.channels);
        }
    }
    for (int t = 0; t < c.rows; t++) {
        const int64_t row = c.row + t;
        const int place = (c.position + t) % PAGE;
        const int32_t page = page_of(c, c.position + t);
        const float x = load(op.x + row * op.channels + channel),
                    dt = softplus(load(op.dt + row * op.channels + channel));
        const float dt_x = __fmul_rn(dt, x);
#pragma unroll
        for (int i = 0; i < STATE_EACH; i++)
            if (page >= 0 && place == 0 && lane + 32 * i < state)
                anchor_of(a.pages, page)[channel * state + lane + 32 * i] = h[i];
        advance(dt, dt_x, op.b + row * state);
        float y = 0;
#pragma unroll
        for (int i = 0; i < STATE_EACH; i++)
            if (lane + 32 * i < state) y = fmaf(h[i], load(op.c + row * state + lane + 32 * i), y);
        y = warp_sum(y);
        if (lane == 0) op.out[row * op.channels + channel] = fmaf(__ldg(op.skip + channel), x, y);
        if (page < 0) continue;
        float *to = tail_row(a.pages, page, place);
        if (lane == 0) {
            to[channel] = dt;
            to[op.channels + channel] = dt_x;
        }
#pragma unroll
        for (int i = 0; i < STATE_EACH; i++) {
            if (lane + 32 * i >= state) continue;
            if (channel == 0) to[2 * op.channels + lane + 32 * i] = load(op.b + row * state + lane + 32 * i);
            if ((place + 1) % MAMBA_SLICE_TOKENS == 0)
                *slice_at(a, page, place + 1 - MAMBA_SLICE_TOKENS, channel * state + lane + 32 * i) = h[i];
        }
    }
}

extern "C" cudaError_t recurrent_mamba(cudaStream_t stream, const MambaArgs *args) {
    const dim3 grid((unsigned)((args->op.channels + MAMBA_WARPS - 1) / MAMBA_WARPS), (unsigned)args->chunks);
    return launch(stream, mamba_kernel, grid, MAMBA_WARPS * 32, 0, *args);
}
