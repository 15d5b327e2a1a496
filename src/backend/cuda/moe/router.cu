/* The router of an MoE block, and the weighted sum over the experts of a row. */
#include "backend/cuda/moe/router.cuh"

/* Hash routing: the experts of the row's token, whose weights are as choose() has them. By all BLOCK threads. */
static __device__ __noinline__ void choose_from_table(const Router &r, Choice &c, int64_t row) {
    int token = __ldcg(r.tokens + row);
    if (token < TOKEN_GIVEN) token = __ldcg(r.sampled + (TOKEN_OUTPUT_0 - token));
    const float2 s = r.score == ROUTE_SOFTMAX ? softmax_of(c.score, r.experts) : make_float2(0, 1);
    for (int i = threadIdx.x; i < r.top_k; i += BLOCK) {
        const int expert = (int)__ldg(r.table + (int64_t)max(token, 0) * r.top_k + i);
        float score = c.score[expert];
        if (r.score == ROUTE_SOFTMAX) score = expf(score - s.x) / s.y;
        if (r.score == ROUTE_SIGMOID) score = sigmoid(score);
        if (r.score == ROUTE_SQRT_SOFTPLUS) score = sqrt_softplus(score);
        c.index[i] = expert;
        c.weight[i] = score;
    }
    if (threadIdx.x == 0 && r.shared) c.index[r.top_k] = r.experts;
    block_sync();
    Router scored = r; /* the weights are scores already */
    scored.score = ROUTE_SIGMOID;
    if (threadIdx.x < 32) choose_weights(scored, c);
    block_sync();
}

/* A block per row. */
__global__ void __launch_bounds__(BLOCK) route_kernel(const __grid_constant__ Router r) {
    __shared__ Choice choice;
    let_next_begin();
    wait_for_previous();
    const int64_t row = blockIdx.x;
    for (int i = threadIdx.x; i < r.experts; i += BLOCK) choice.score[i] = load(r.logits + row * r.experts + i);
    const int shared = 1 + r.shared_pair;
    if (r.shared_logits && threadIdx.x < shared)
        choice.shared[threadIdx.x] = load(r.shared_logits + shared * row + threadIdx.x);
    block_sync();
    if (r.table)
        choose_from_table(r, choice, row);
    else
        choose(r, choice);
    const int slots = r.top_k + r.shared;
    for (int i = threadIdx.x; i < slots; i += BLOCK) {
        r.index[row * slots + i] = choice.index[i];
        r.weight[row * slots + i] = choice.weight[i];
    }
}
extern "C" cudaError_t rows_route(cudaStream_t stream, const Router *router) {
    return launch(stream, route_kernel, dim3(router->rows), BLOCK, 0, *router);
}

__global__ void combine_kernel(
    int top_k, int64_t width, const float *y, const int32_t *place, const float *weight, float *out) {
    let_next_begin();
    wait_for_previous();
    const int64_t row = blockIdx.y;
    for (int64_t i = blockIdx.x * BLOCK + threadIdx.x; i < width; i += gridDim.x * BLOCK) {
        float sum = 0;
        for (int k = 0; k < top_k; k++)
            sum += (weight ? load(weight + row * top_k + k) : 1) *
                load(y + (place ? __ldcg(place + row * top_k + k) : row * top_k + k) * width + i);
        out[row * width + i] = sum;
    }
}
extern "C" cudaError_t rows_combine(cudaStream_t stream, int rows, int top_k, int64_t width, const float *y,
    const int32_t *place, const float *weight, float *out) {
    const dim3 grid((unsigned)((width + BLOCK - 1) / BLOCK), rows);
    return launch(stream, combine_kernel, grid, BLOCK, 0, top_k, width, y, place, weight, out);
}

__global__ void weigh_kernel(
    int top_k, int64_t width, const float *x, const int32_t *place, const float *weight, float *y) {
    let_next_begin();
    wait_for_previous();
    const int64_t pair = blockIdx.y, to = place ? __ldcg(place + pair) : pair;
    const float factor = weight ? load(weight + pair) : 1, *from = x + pair / top_k * width;
    for (int64_t i = blockIdx.x * BLOCK + threadIdx.x; i < width; i += gridDim.x * BLOCK)
        y[to * width + i] = factor * load(from + i);
}
extern "C" cudaError_t rows_weigh(cudaStream_t stream, int pairs, int top_k, int64_t width, const float *x,
    const int32_t *place, const float *weight, float *y) {
    const dim3 grid((unsigned)((width + BLOCK - 1) / BLOCK), pairs);
    return launch(stream, weigh_kernel, grid, BLOCK, 0, top_k, width, x, place, weight, y);
}
