/* Operations on rows: norms, sums, activations, embeddings and gathers, the numbers of a step. */
#include "backend/cuda/gemm/tile.cuh"
#include "backend/token.h"

bool launch_early;
__thread cudaStream_t launch_apart[LAUNCH_STREAMS];
extern "C" void kernels_begin_early(int yes) { launch_early = yes; }
extern "C" void kernels_begin_apart(cudaStream_t stream) { launch_put_apart(stream); }

static dim3 blocks_for(int64_t count, int each) {
    const int64_t blocks = (count + each - 1) / each;
    return dim3((unsigned)(blocks < 65536 ? blocks : 65536));
}

/* Later kernels read the step's numbers before their predecessors have ended, so this one must have ended. Host memory
 * has a long latency: the first part of both blocks is loaded before the index and the length of the block are known.
 */
constexpr int BRING = 1024;
__global__ void __launch_bounds__(BRING) bring_kernel(const int4 *even, const int4 *odd, int4 *out, int32_t *turn) {
    __shared__ int count;
    const int4 first[2] = {__ldcv(even + threadIdx.x), __ldcv(odd + threadIdx.x)};
    const bool is_odd = __ldcg(turn) & 1;
    const int4 mine = is_odd ? first[1] : first[0];
    if (threadIdx.x == 0) count = mine.x / 4;
    __syncthreads();
    if (threadIdx.x < count) out[threadIdx.x] = mine;
    const int4 *from = is_odd ? odd : even;
    for (int i = threadIdx.x + BRING; i < count; i += BRING) out[i] = __ldcv(from + i);
    if (threadIdx.x == 0) *turn += 1;
}
extern "C" cudaError_t step_bring(cudaStream_t stream, int32_t *const host[2], int32_t *device, int32_t *turn) {
    launch_put_apart(stream);
    const cudaError_t error = launch(
        stream, bring_kernel, dim3(1), BRING, 0, (const int4 *)host[0], (const int4 *)host[1], (int4 *)device, turn);
    launch_put_apart(stream);
    return error;
}

/* A row that registers keep, with weights of an RMS norm that are loaded before the previous kernel has ended: rows of
 * whole fours that are aligned, up to 1024 · N columns. The numbers are those of any row. */
template <int N> struct KeptWeights {
    float4 w[N];
    __device__ __forceinline__ explicit KeptWeights(const RowNorm &norm) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            const int64_t at = 4 * ((int64_t)threadIdx.x + BLOCK * j);
            w[j] = norm.weight && at < norm.width ? __ldg((const float4 *)(norm.weight + at)) : make_float4(1, 1, 1, 1);
        }
    }
    /* f(column, four normed values) */
    template <class F>
    __device__ __forceinline__ void each(const RowNorm &norm, const Scaling &s, const Row<N> &row, const F &f) const {
#pragma unroll
        for (int j = 0; j < N; j++) {
            const int64_t at = 4 * ((int64_t)threadIdx.x + BLOCK * j);
            const float4 v = row.kept[j];
            if (at >= norm.width) continue;
            f(j, at,
                make_float4(v.x * s.factor * w[j].x, v.y * s.factor * w[j].y, v.z * s.factor * w[j].z,
                    v.w * s.factor * w[j].w));
        }
    }
};
static bool is_aligned(const void *p) { return ((uintptr_t)p & 15) == 0; }
static bool keeps_row(const RowNorm &norm, int most) {
    return norm.kind == 0 && norm.width && norm.width % 4 == 0 && norm.width <= 4 * BLOCK * most &&
        is_aligned(norm.weight);
}
enum { KEPT = 3, KEPT_MOST = 8 };

template <int N> __global__ void __launch_bounds__(BLOCK) kept_norm_kernel(const float *x, RowNorm norm, float *out) {
    __shared__ float shared[WARPS];
    let_next_begin();
    const KeptWeights<N> weights(norm);
    wait_for_previous();
    const Row<N> row(x + blockIdx.x * norm.width, norm.width);
    const Scaling s = row_scaling(norm, shared, row);
    float *const to = out + blockIdx.x * norm.width;
    weights.each(norm, s, row, [&](int, int64_t at, float4 v) { *(float4 *)(to + at) = v; });
}
/* residual += scale · norm(y) */
template <int N>
__global__ void __launch_bounds__(BLOCK) kept_add_kernel(float *residual, const float *y, float scale, RowNorm norm) {
    __shared__ float shared[WARPS];
    let_next_begin();
    const KeptWeights<N> weights(norm);
    wait_for_previous();
    const Row<N> row(y + blockIdx.x * norm.width, norm.width), old(residual + blockIdx.x * norm.width, norm.width);
    const Scaling s = row_scaling(norm, shared, row);
    float *const to = residual + blockIdx.x * norm.width;
    weights.each(norm, s, row, [&](int j, int64_t at, float4 v) {
        const float4 o = old.kept[j];
        *(float4 *)(to + at) = make_float4(o.x + scale * v.x, o.y + scale * v.y, o.z + scale * v.z, o.w + scale * v.w);
    });
}
/* residual += scale · norm(x_norm(x) + y_norm(y)), with the numbers of the two kernels above */
template <int N>
__global__ void __launch_bounds__(BLOCK) kept_pair_kernel(
    float *residual, const float *x, const float *y, float scale, RowNorm x_norm, RowNorm y_norm, RowNorm norm) {
    __shared__ float shared[WARPS];
    let_next_begin();
    const KeptWeights<N> x_weights(x_norm), y_weights(y_norm), weights(norm);
    wait_for_previous();
    const int64_t first = blockIdx.x * norm.width;
    Row<N> sum(x + first, norm.width);
    const Row<N> other(y + first, norm.width), old(residual + first, norm.width);
    if (x_norm.width) {
        const Scaling s = row_scaling(x_norm, shared, sum);
        x_weights.each(x_norm, s, sum, [&](int j, int64_t, float4 v) { sum.kept[j] = v; });
    }
    const Scaling of_other = row_scaling(y_norm, shared, other);
    y_weights.each(y_norm, of_other, other, [&](int j, int64_t, float4 v) {
        float4 &to = sum.kept[j];
        to = make_float4(to.x + v.x, to.y + v.y, to.z + v.z, to.w + v.w);
    });
    const Scaling s = row_scaling(norm, shared, sum);
    float *const to = residual + first;
    weights.each(norm, s, sum, [&](int j, int64_t at, float4 v) {
        const float4 o = old.kept[j];
        *(float4 *)(to + at) = make_float4(o.x + scale * v.x, o.y + scale * v.y, o.z + scale * v.z, o.w + scale * v.w);
    });
}
__global__ void plain_add_kernel(int64_t width, float *residual, const float *y, float scale) {
    let_next_begin();
    wait_for_previous();
    const int64_t at = blockIdx.x * (int64_t)BLOCK + threadIdx.x, i = blockIdx.y * width + at;
    if (at < width) residual[i] = load(residual + i) + scale * load(y + i);
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
    const bool kept = is_aligned(x) && is_aligned(out) && keeps_row(*norm, KEPT_MOST);
    return launch(stream,
        !kept                        ? norm_kernel
            : keeps_row(*norm, KEPT) ? kept_norm_kernel<KEPT>
                                     : kept_norm_kernel<KEPT_MOST>,
        dim3(rows), BLOCK, 0, x, *norm, out);
}

__global__ void add_kernel(int64_t width, float *residual, const float *y, float scale, RowNorm norm) {
    __shared__ float shared[WARPS];
    let_next_begin();
    wait_for_previous();
    const Row<0> row(y + blockIdx.x * width, width);
    float *to = residual + blockIdx.x * width;
    const Scaling s = row_scaling(norm, shared, row);
    for (int64_t i = threadIdx.x; i < width; i += BLOCK)
        to[i] = load(to + i) + scale * scaled(norm, s, load(row.data + i), i);
}
extern "C" cudaError_t rows_add(
    cudaStream_t stream, int rows, int64_t width, float *residual, const float *y, float scale, const RowNorm *norm) {
    if (!norm || !norm->width)
        return launch(stream, plain_add_kernel, dim3((unsigned)((width + BLOCK - 1) / BLOCK), rows), BLOCK, 0, width,
            residual, y, scale);
    if (is_aligned(residual) && is_aligned(y) && norm->width == width && keeps_row(*norm, KEPT_MOST))
        return launch(stream, keeps_row(*norm, KEPT) ? kept_add_kernel<KEPT> : kept_add_kernel<KEPT_MOST>, dim3(rows),
            BLOCK, 0, residual, y, scale, *norm);
    return launch(stream, add_kernel, dim3(rows), BLOCK, 0, width, residual, y, scale, *norm);
}

extern "C" cudaError_t rows_add_pair(cudaStream_t stream, int rows, float *residual, const float *x, const float *y,
    float scale, const RowNorm *x_norm, const RowNorm *y_norm, const RowNorm *norm) {
    return launch(stream, kept_pair_kernel<KEPT>, dim3(rows), BLOCK, 0, residual, x, y, scale, *x_norm, *y_norm, *norm);
}
extern "C" int rows_add_pair_fits(const float *residual, const float *x, const float *y, const RowNorm *x_norm,
    const RowNorm *y_norm, const RowNorm *norm) {
    return is_aligned(residual) && is_aligned(x) && is_aligned(y) && keeps_row(*norm, KEPT) &&
        keeps_row(*y_norm, KEPT) && y_norm->width == norm->width &&
        (!x_norm->width || (keeps_row(*x_norm, KEPT) && x_norm->width == norm->width));
}

/* Those of activate() alone, too. */
__device__ static float activated_alone(const Activation &activation, float x) {
    if (activation.kind == ACT_CLAMP) return fminf(fmaxf(x, activation.a), activation.b);
    if (activation.kind != ACT_XIELU) return activated(activation.kind, x);
    return (x > 0 ? activation.a * x * x : activation.b * (expm1f(fminf(x, -1e-6f)) - x)) + activation.c * x;
}

__global__ void activate_kernel(int64_t count, const float *x, Activation activation, float *out) {
    let_next_begin();
    wait_for_previous();
    for (int64_t i = blockIdx.x * (int64_t)BLOCK + threadIdx.x; i < count; i += (int64_t)gridDim.x * BLOCK)
        out[i] = activated_alone(activation, load(x + i));
}
extern "C" cudaError_t rows_activate(
    cudaStream_t stream, int64_t count, const float *x, const Activation *activation, float *out) {
    return launch(stream, activate_kernel, blocks_for(count, BLOCK), BLOCK, 0, count, x, *activation, out);
}

__global__ void multiply_kernel(const __grid_constant__ Multiply op, int prefill_from) {
    let_next_begin();
    wait_for_previous();
    const int64_t row = blockIdx.x;
    const bool prefill = row >= prefill_from && op.activation.kind == ACT_SILU;
    for (int64_t i = threadIdx.x; i < op.width; i += BLOCK) {
        const float x = load(op.x + row * op.width + i), y = load(op.y + row * op.y_stride + i);
        op.out[row * op.width + i] = prefill ? silu_prefill(x, y) : gated(op.activation, x, y);
    }
}
extern "C" cudaError_t rows_multiply(cudaStream_t stream, const Multiply *op, int prefill_from) {
    return launch(stream, multiply_kernel, dim3(op->rows), BLOCK, 0, *op, prefill_from);
}

__global__ void scale_queries_kernel(int64_t width, QueryScaling scaling, const int32_t *positions, float *x) {
    let_next_begin();
    wait_for_previous();
    const int64_t row = blockIdx.y, i = blockIdx.x * (int64_t)BLOCK + threadIdx.x;
    const int steps = (__ldcg(positions + row) + scaling.offset) / scaling.length;
    const float factor = 1 + scaling.scale * logf((float)(1 + steps));
    if (i < width) x[row * width + i] = load(x + row * width + i) * factor;
}
extern "C" cudaError_t rows_scale_queries(
    cudaStream_t stream, int rows, int64_t width, const QueryScaling *scaling, const int32_t *positions, float *x) {
    return launch(stream, scale_queries_kernel, dim3((unsigned)((width + BLOCK - 1) / BLOCK), rows), BLOCK, 0, width,
        *scaling, positions, x);
}

/* ---- rowwise operations of few families ---- */

/* A thread has a column of all streams. */
__global__ void mix_streams_kernel(const __grid_constant__ StreamMix op) {
    let_next_begin();
    wait_for_previous();
    const int64_t row = blockIdx.y, at = blockIdx.x * (int64_t)BLOCK + threadIdx.x;
    const int n = op.streams;
    if (at >= op.width) return;
    float *x = op.x + row * op.width + at, own[STREAMS_MAX];
#pragma unroll
    for (int i = 0; i < STREAMS_MAX; i++) own[i] = i < n ? load(x + i * op.stride) : 0;
    const float y = op.gain ? load(op.y + row * op.width + at) : 0;
#pragma unroll
    for (int i = 0; i < STREAMS_MAX; i++) {
        if (i >= n) break;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < STREAMS_MAX; j++)
            if (op.mix && j < n) sum += load(op.mix + (row * n + i) * n + j) * own[j];
        float v = own[i] + sum;
        if (op.gain) v += (1 + load(op.gain + row * n + i)) * y;
        x[i * op.stride] = v;
    }
}
extern "C" cudaError_t rows_mix_streams(cudaStream_t stream, const StreamMix *op) {
    const dim3 grid((unsigned)((op->width + BLOCK - 1) / BLOCK), op->rows);
    return launch(stream, mix_streams_kernel, grid, BLOCK, 0, *op);
}

/* Σ (x − mean)² over a row, by a block. */
__device__ static float squares_of(const float *x, int64_t width, float mean, float *shared) {
    float sum = 0;
    for (int64_t i = threadIdx.x; i < width; i += BLOCK) {
        const float v = load(x + i) - mean;
        sum += v * v;
    }
    return block_sum(sum, shared);
}

__global__ void match_rms_kernel(const __grid_constant__ MatchRms op) {
    __shared__ float shared[WARPS];
    let_next_begin();
    wait_for_previous();
    float *x = op.x + blockIdx.x * op.width;
    const float target = squares_of(op.target + blockIdx.x * op.width, op.width, 0, shared) / (float)op.width,
                own = squares_of(x, op.width, 0, shared) / (float)op.width;
    const float factor = sqrtf(target / fmaxf(own, op.floor));
    for (int64_t i = threadIdx.x; i < op.width; i += BLOCK) x[i] = load(x + i) * factor;
}
extern "C" cudaError_t rows_match_rms(cudaStream_t stream, const MatchRms *op) {
    return launch(stream, match_rms_kernel, dim3(op->rows), BLOCK, 0, *op);
}

__global__ void sparsify_kernel(const __grid_constant__ Sparsify op) {
    __shared__ float shared[WARPS];
    let_next_begin();
    wait_for_previous();
    float *x = op.x + blockIdx.x * op.width, sum = 0;
    for (int64_t i = threadIdx.x; i < op.width; i += BLOCK) sum += load(x + i);
    const float mean = block_sum(sum, shared) / (float)op.width;
    const float least = mean + op.cutoff * sqrtf(squares_of(x, op.width, mean, shared) / (float)op.width);
    for (int64_t i = threadIdx.x; i < op.width; i += BLOCK) {
        const float v = load(x + i);
        x[i] = v > least ? v - least : 0;
    }
}
extern "C" cudaError_t rows_sparsify(cudaStream_t stream, const Sparsify *op) {
    return launch(stream, sparsify_kernel, dim3(op->rows), BLOCK, 0, *op);
}

__global__ void gate_heads_kernel(const __grid_constant__ HeadGate op) {
    let_next_begin();
    wait_for_previous();
    const int64_t at = (int64_t)blockIdx.y * op.heads + blockIdx.x;
    const float g = load(op.gate + at);
    /* ln(1 + e^g) without overflow */
    const float factor = op.softplus ? fmaxf(g, 0) + log1pf(expf(-fabsf(g))) : 1.0f / (1.0f + expf(-g));
    for (int64_t i = threadIdx.x; i < op.width; i += BLOCK)
        op.x[at * op.width + i] = load(op.x + at * op.width + i) * factor;
}
extern "C" cudaError_t rows_gate_heads(cudaStream_t stream, const HeadGate *op) {
    return launch(stream, gate_heads_kernel, dim3(op->heads, op->rows), BLOCK, 0, *op);
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

template <int KIND>
__global__ void embed_kernel(
    const int32_t *tokens, const int32_t *sampled, Tiles table, float scale, bool placeholder, float *out) {
    let_next_begin();
    wait_for_previous();
    int token = __ldcg(tokens + blockIdx.y);
    if (token == TOKEN_GIVEN && !placeholder) return;
    /* A step that was begun after a row without a token (−1) is dropped: any token is valid for it. */
    if (token < TOKEN_GIVEN) token = max(__ldcg(sampled + (TOKEN_OUTPUT_0 - token)), 0);
    if (placeholder && (token == TOKEN_GIVEN || token >= table.rows)) token = 0;
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < table.cols; i += gridDim.x * BLOCK)
        out[(int64_t)blockIdx.y * table.cols + i] = scale * tile_element<KIND>(table, token, i);
}
struct Embedding {
    cudaStream_t stream;
    int rows;
    const int32_t *tokens, *sampled;
    const Tiles *table;
    float scale;
    bool placeholder;
    float *out;
    template <int KIND> cudaError_t operator()() const {
        return launch(stream, embed_kernel<KIND>, dim3((table->cols + BLOCK - 1) / BLOCK, rows), BLOCK, 0, tokens,
            sampled, *table, scale, placeholder, out);
    }
};
extern "C" cudaError_t rows_embed(cudaStream_t stream, int rows, const int32_t *tokens, const int32_t *sampled,
    const Tiles *table, float scale, bool placeholder, float *out) {
    return with_kind(table->kind, Embedding{stream, rows, tokens, sampled, table, scale, placeholder, out});
}
