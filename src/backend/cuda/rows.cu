/* Operations on rows: norms, sums, activations, what goes in and out of a step. */
#include "backend/cuda/tile.cuh"

bool launch_early;
__thread bool launch_apart;
extern "C" void kernels_begin_early(int yes) { launch_early = yes; }

static dim3 blocks_for(int64_t count, int each) {
    const int64_t blocks = (count + each - 1) / each;
    return dim3((unsigned)(blocks < 65536 ? blocks : 65536));
}

/* Kernels look at the step's numbers before those before them have ended: this one must have. */
__global__ void __launch_bounds__(1024) bring_kernel(const int4 *even, const int4 *odd, int4 *out, int32_t *turn) {
    const int4 *from = __ldcg(turn) & 1 ? odd : even;
    const int count = __ldcv((const int *)from) / 4;
    for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = __ldcv(from + i);
    __syncthreads();
    if (threadIdx.x == 0) *turn += 1;
}
extern "C" cudaError_t step_bring(cudaStream_t stream, int32_t *const host[2], int32_t *device, int32_t *turn) {
    launch_apart = true;
    const cudaError_t error = launch(
        stream, bring_kernel, dim3(1), 1024, 0, (const int4 *)host[0], (const int4 *)host[1], (int4 *)device, turn);
    launch_apart = true;
    return error;
}

__global__ void norm_kernel(const float *x, RowNorm norm, float *out) {
    __shared__ float shared[WARPS];
    let_next_begin();
    wait_for_previous();
    const Row<0> row(x + blockIdx.x * norm.width, norm.width);
    const Scaling s = row_scaling(norm, shared, row);
    for (int64_t i = threadIdx.x; i < norm.width; i += BLOCK)
        out[blockIdx.x * norm.width + i] = scaled(norm, s, load(row.data + i), i);
}
extern "C" cudaError_t rows_norm(cudaStream_t stream, int rows, const float *x, const RowNorm *norm, float *out) {
    return launch(stream, norm_kernel, dim3(rows), BLOCK, 0, x, *norm, out);
}

__global__ void add_kernel(int64_t width, float *residual, const float *y, float scale, RowNorm norm) {
    __shared__ float shared[WARPS];
    let_next_begin();
    wait_for_previous();
    const Row<0> row(y + blockIdx.x * width, width);
    float *to = residual + blockIdx.x * width;
    if (norm.width == 0) {
        for (int64_t i = threadIdx.x; i < width; i += BLOCK) to[i] = load(to + i) + scale * load(row.data + i);
        return;
    }
    const Scaling s = row_scaling(norm, shared, row);
    for (int64_t i = threadIdx.x; i < width; i += BLOCK)
        to[i] = load(to + i) + scale * scaled(norm, s, load(row.data + i), i);
}
extern "C" cudaError_t rows_add(
    cudaStream_t stream, int rows, int64_t width, float *residual, const float *y, float scale, const RowNorm *norm) {
    return launch(stream, add_kernel, dim3(rows), BLOCK, 0, width, residual, y, scale, norm ? *norm : RowNorm{});
}

__global__ void activate_kernel(int64_t count, const float *x, int activation, float *out) {
    let_next_begin();
    wait_for_previous();
    for (int64_t i = blockIdx.x * (int64_t)BLOCK + threadIdx.x; i < count; i += (int64_t)gridDim.x * BLOCK)
        out[i] = activated(activation, load(x + i));
}
extern "C" cudaError_t rows_activate(cudaStream_t stream, int64_t count, const float *x, int activation, float *out) {
    return launch(stream, activate_kernel, blocks_for(count, BLOCK), BLOCK, 0, count, x, activation, out);
}

__global__ void gate_kernel(int64_t count, float *gate, const float *up, int activation) {
    let_next_begin();
    wait_for_previous();
    for (int64_t i = blockIdx.x * (int64_t)BLOCK + threadIdx.x; i < count; i += (int64_t)gridDim.x * BLOCK)
        gate[i] = gated(activation, load(gate + i), load(up + i));
}
extern "C" cudaError_t rows_gate(cudaStream_t stream, int64_t count, float *gate, const float *up, int activation) {
    return launch(stream, gate_kernel, blocks_for(count, BLOCK), BLOCK, 0, count, gate, up, activation);
}

__global__ void sigmoid_kernel(int64_t count, float *x, const float *gate) {
    let_next_begin();
    wait_for_previous();
    for (int64_t i = blockIdx.x * (int64_t)BLOCK + threadIdx.x; i < count; i += (int64_t)gridDim.x * BLOCK)
        x[i] = load(x + i) / (1.0f + expf(-load(gate + i)));
}
extern "C" cudaError_t rows_sigmoid(cudaStream_t stream, int64_t count, float *x, const float *gate) {
    return launch(stream, sigmoid_kernel, blocks_for(count, BLOCK), BLOCK, 0, count, x, gate);
}

__global__ void copy_kernel(const float *from, int64_t from_width, float *to, int64_t to_width, int64_t count) {
    let_next_begin();
    wait_for_previous();
    for (int64_t i = threadIdx.x; i < count; i += BLOCK)
        to[blockIdx.x * to_width + i] = load(from + blockIdx.x * from_width + i);
}
extern "C" cudaError_t rows_copy(
    cudaStream_t stream, int rows, const float *from, int64_t from_width, float *to, int64_t to_width, int64_t count) {
    return launch(stream, copy_kernel, dim3(rows), BLOCK, 0, from, from_width, to, to_width, count);
}

__global__ void logits_kernel(int64_t count, float *x, float scale, float cap) {
    let_next_begin();
    wait_for_previous();
    for (int64_t i = blockIdx.x * (int64_t)BLOCK + threadIdx.x; i < count; i += (int64_t)gridDim.x * BLOCK) {
        const float v = scale * load(x + i);
        x[i] = cap > 0 ? cap * tanhf(v / cap) : v;
    }
}
extern "C" cudaError_t rows_logits(cudaStream_t stream, int64_t count, float *x, float scale, float cap) {
    return launch(stream, logits_kernel, blocks_for(count, BLOCK), BLOCK, 0, count, x, scale, cap);
}

/* ---- what drawing from logits begins with ----
 * The arithmetic is engine/sampler.c's: a warp has a block of 64 logits, a lane two of them, 32 apart, as that adds
 * them. */
constexpr int LOGITS = 64, SUM_BLOCKS = 8; /* of a warp */
static constexpr float EXP_MIN = -87;

__device__ __forceinline__ float logits_exp(float v) {
    const float x = v > EXP_MIN ? v : EXP_MIN; /* of what is not a number, too */
    const int n = (int)(x * 1.44269504f - 0.5f);
    const float r = (x - (float)n * 0.693359375f) + (float)n * 2.12194440e-4f;
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1;
    p = p * r + 1;
    return 2 * p * __int_as_float((n + 126) << 23);
}

/* A lane's two logits of each of the warp's blocks; −∞ beyond the last. */
__device__ __forceinline__ void logits_take(const float *row, int vocab, int first, float2 v[SUM_BLOCKS]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < SUM_BLOCKS; i++) {
        const int at = (first + i) * LOGITS + lane;
        v[i].x = at < vocab ? load(row + at) : -INFINITY;
        v[i].y = at + 32 < vocab ? load(row + at + 32) : -INFINITY;
    }
}

__global__ void __launch_bounds__(BLOCK) maxima_kernel(const float *logits, int vocab, int blocks, float *out, float *copy) {
    let_next_begin();
    wait_for_previous();
    const int first = (blockIdx.x * WARPS + threadIdx.x / 32) * SUM_BLOCKS;
    float2 v[SUM_BLOCKS];
    logits_take(logits + (int64_t)blockIdx.y * vocab, vocab, first, v);
#pragma unroll
    for (int i = 0; i < SUM_BLOCKS; i++) {
        const float most = warp_max(fmaxf(fmaxf(v[i].x, -INFINITY), v[i].y));
        if (threadIdx.x % 32 != 0 || first + i >= blocks) continue;
        const int64_t to = (int64_t)blockIdx.y * 2 * blocks + first + i;
        out[to] = most;
        if (copy) copy[to] = most;
    }
}

__global__ void __launch_bounds__(BLOCK)
    logit_sums_kernel(const float *logits, int vocab, int blocks, const float *scales, float *out, float *copy) {
    __shared__ float shared[WARPS];
    let_next_begin();
    wait_for_previous();
    const int lane = threadIdx.x % 32, first = (blockIdx.x * WARPS + threadIdx.x / 32) * SUM_BLOCKS;
    const float *row = logits + (int64_t)blockIdx.y * vocab, scale = load(scales + blockIdx.y);
    const float *maxima = out + (int64_t)blockIdx.y * 2 * blocks;
    float *to = copy ? copy : out; /* nobody here needs the sums */
    to += ((int64_t)blockIdx.y * 2 + 1) * blocks;
    float2 v[SUM_BLOCKS];
    logits_take(row, vocab, first, v);
    float most = -INFINITY;
    for (int i = threadIdx.x; i < blocks; i += BLOCK) most = fmaxf(most, load(maxima + i));
    most = block_max(most, shared);
#pragma unroll
    for (int i = 0; i < SUM_BLOCKS; i++) {
        float sum = warp_sum(logits_exp((v[i].x - most) * scale) + logits_exp((v[i].y - most) * scale));
        if (first + i >= blocks) break;
        if ((first + i + 1) * LOGITS > vocab) { /* the short one: in order */
            sum = 0;
            for (int k = (first + i) * LOGITS; k < vocab; k++) sum += logits_exp((load(row + k) - most) * scale);
        }
        if (lane == 0) to[first + i] = sum;
    }
}
extern "C" cudaError_t rows_sum_logits(
    cudaStream_t stream, int rows, int vocab, const float *logits, const float *scales, float *sums, float *copy) {
    const int blocks = (vocab + LOGITS - 1) / LOGITS, each = WARPS * SUM_BLOCKS;
    const dim3 grid((blocks + each - 1) / each, rows);
    const cudaError_t error = launch(stream, maxima_kernel, grid, BLOCK, 0, logits, vocab, blocks, sums, copy);
    if (error) return error;
    return launch(stream, logit_sums_kernel, grid, BLOCK, 0, logits, vocab, blocks, scales, sums, copy);
}

__global__ void gather_kernel(const int32_t *index, const float *x, int64_t width, float *out) {
    let_next_begin();
    wait_for_previous();
    const float *from = x + __ldcg(index + blockIdx.y) * width;
    for (int64_t i = blockIdx.x * BLOCK + threadIdx.x; i < width; i += gridDim.x * BLOCK)
        out[blockIdx.y * width + i] = load(from + i);
}
extern "C" cudaError_t rows_gather(
    cudaStream_t stream, int count, const int32_t *index, const float *x, int64_t width, float *out) {
    const unsigned across = (unsigned)((width + 4 * BLOCK - 1) / (4 * BLOCK));
    return launch(stream, gather_kernel, dim3(across, count), BLOCK, 0, index, x, width, out);
}

template <int KIND> __global__ void embed_kernel(const int32_t *tokens, Tiles table, float scale, float *out) {
    let_next_begin();
    wait_for_previous();
    const int token = __ldcg(tokens + blockIdx.y);
    if (token < 0) return;
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < table.cols; i += gridDim.x * BLOCK)
        out[(int64_t)blockIdx.y * table.cols + i] = scale * tile_element<KIND>(table, token, i);
}
struct Embedding {
    cudaStream_t stream;
    int rows;
    const int32_t *tokens;
    const Tiles *table;
    float scale, *out;
    template <int KIND> cudaError_t operator()() const {
        return launch(stream, embed_kernel<KIND>, dim3((table->cols + BLOCK - 1) / BLOCK, rows), BLOCK, 0, tokens,
            *table, scale, out);
    }
};
extern "C" cudaError_t rows_embed(
    cudaStream_t stream, int rows, const int32_t *tokens, const Tiles *table, float scale, float *out) {
    return with_kind(table->kind, Embedding{stream, rows, tokens, table, scale, out});
}
