/* RG-LRU: a thread per channel. A block has channels of one head, so it reads the inputs of some rows into shared
 * memory and each gate's matrix once for all of them. */
#include "backend/cuda/recurrent/recurrent.cuh"

constexpr int THREADS = 64, ROWS = 8, INPUTS = 64; /* rows at once, and inputs of them in shared memory */

__global__ void __launch_bounds__(THREADS) rg_lru_kernel(const __grid_constant__ RgLruArgs a) {
    __shared__ float inputs[ROWS][INPUTS];
    let_next_begin();
    wait_for_previous();
    const Chunk c = chunk_of(a.step, a.pages, blockIdx.z);
    const RgLru &op = a.op;
    const int64_t width = op.channels / op.heads, head = blockIdx.y * width;
    const int64_t own = (int64_t)blockIdx.x * THREADS + threadIdx.x, channel = head + own;
    const bool mine = own < width;
    float h = mine && c.position > 0 ? load(tail_row(a.pages, c.before, (c.position - 1) % PAGE) + channel) : 0;
    for (int first = 0; first < c.rows; first += ROWS) {
        const int rows = min(ROWS, c.rows - first);
        float decay[ROWS], input[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            decay[r] = mine ? __ldg(op.decay_bias + channel) : 0;
            input[r] = mine ? __ldg(op.input_bias + channel) : 0;
        }
        for (int64_t k = 0; k < width; k += INPUTS) {
            const int count = (int)min((int64_t)INPUTS, width - k);
            __syncthreads();
            for (int i = threadIdx.x; i < ROWS * count; i += THREADS)
                inputs[i / count][i % count] = i / count < rows
                    ? load(op.x + (c.row + first + i / count) * op.channels + head + k + i % count)
                    : 0;
            __syncthreads();
            for (int i = 0; mine && i < count; i++) {
                const float d = __ldg(op.decay_gate + (head + k + i) * width + own),
                            g = __ldg(op.input_gate + (head + k + i) * width + own);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    decay[r] = fmaf(inputs[r][i], d, decay[r]);
                    input[r] = fmaf(inputs[r][i], g, input[r]);
                }
            }
        }
        if (!mine) continue;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= rows) continue;
            const int64_t at = (c.row + first + r) * op.channels + channel;
            const int position = c.position + first + r;
            const float log_a = __fmul_rn(__ldg(op.rate + channel), sigmoid(decay[r]));
            const float root = position ? sqrtf(1 - expf(2 * log_a)) : 1;
            h = fmaf(expf(log_a), h, __fmul_rn(__fmul_rn(root, sigmoid(input[r])), load(op.x + at)));
            op.out[at] = h;
            const int32_t page = page_of(c, position);
            if (page >= 0) tail_row(a.pages, page, position % PAGE)[channel] = h;
        }
    }
}

extern "C" cudaError_t recurrent_rg_lru(cudaStream_t stream, const RgLruArgs *args) {
    const int64_t width = args->op.channels / args->op.heads;
    const dim3 grid((unsigned)((width + THREADS - 1) / THREADS), (unsigned)args->op.heads, (unsigned)args->chunks);
    return launch(stream, rg_lru_kernel, grid, THREADS, 0, *args);
}
