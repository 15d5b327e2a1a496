/* Drawing tokens from logits. The arithmetic is engine/sampler.c's, bit for bit. */
#include "backend/cuda/common.cuh"
#include "backend/cuda/draw.h"

/* ---- blocks' maxima and sums ----
 * A warp has a block of 64 logits, a lane two of them, 32 apart, as the sampler adds them. */
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

/* The sums of this block's part of a row's blocks, to `to`. Gives the row's largest logit. */
__device__ float sum_blocks(
    const float *row, int vocab, int blocks, float scale, const float *maxima, float *to, float *shared) {
    const int lane = threadIdx.x % 32, first = (blockIdx.x * WARPS + threadIdx.x / 32) * SUM_BLOCKS;
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
    return most;
}
__global__ void __launch_bounds__(BLOCK)
    logit_sums_kernel(const float *logits, int vocab, int blocks, const float *scales, float *out, float *copy) {
    __shared__ float shared[WARPS];
    let_next_begin();
    wait_for_previous();
    const int64_t row = blockIdx.y;
    float *to = (copy ? copy : out) + (2 * row + 1) * blocks; /* nobody here needs the sums */
    sum_blocks(logits + row * vocab, vocab, blocks, load(scales + row), out + 2 * row * blocks, to, shared);
}
static dim3 sums_grid(int rows, int blocks) {
    constexpr int each = WARPS * SUM_BLOCKS;
    return dim3((blocks + each - 1) / each, rows);
}
extern "C" cudaError_t rows_sum_logits(
    cudaStream_t stream, int rows, int vocab, const float *logits, const float *scales, float *sums, float *copy) {
    const int blocks = (vocab + LOGITS - 1) / LOGITS;
    const dim3 grid = sums_grid(rows, blocks);
    const cudaError_t error = launch(stream, maxima_kernel, grid, BLOCK, 0, logits, vocab, blocks, sums, copy);
    if (error) return error;
    return launch(stream, logit_sums_kernel, grid, BLOCK, 0, logits, vocab, blocks, scales, sums, copy);
}

/* ---- drawing ---- */

constexpr int GROUP = 64, GROUPS_MAX = DRAW_VOCAB_MAX / (GROUP * LOGITS);

/* The first of `count` weights at which the sum of those from the first on is above the target, or the last that weighs
 * anything; *target becomes what is left of it in front of that one. */
template <class T> __device__ int draw_weight(const T *weights, int count, double *target) {
    int chosen = 0;
    for (int i = 0; i < count; i++) {
        if (!(weights[i] > 0)) continue;
        chosen = i;
        if (*target < (double)weights[i]) break;
        *target -= (double)weights[i];
    }
    return chosen;
}

/* The first index of a row's blocks, or of a block's logits, where there is `value`; all threads get it. */
__device__ int first_equal(const float *x, int count, float value, int *shared) {
    if (threadIdx.x == 0) *shared = count;
    block_sync();
    for (int i = threadIdx.x; i < count; i += BLOCK)
        if (load(x + i) == value) {
            atomicMin(shared, i);
            break;
        }
    block_sync();
    const int first = *shared;
    block_sync();
    return first;
}

struct DrawArea {
    double groups[GROUPS_MAX];
    float weights[GROUP], floats[WARPS];
    int at;
    double target;
};

/* From all tokens: a group of blocks, a block of it, a token of that. */
__device__ int draw_any(
    const float *row, int vocab, const float *sums, int blocks, float most, float scale, double uniform, DrawArea &s) {
    const int groups = (blocks + GROUP - 1) / GROUP;
    for (int g = threadIdx.x; g < groups; g += BLOCK) {
        double sum = 0;
        const int end = min(blocks, (g + 1) * GROUP);
#pragma unroll 16
        for (int b = g * GROUP; b < end; b++) sum += (double)load(sums + b);
        s.groups[g] = sum;
    }
    block_sync();
    if (threadIdx.x == 0) {
        double total = 0;
        for (int g = 0; g < groups; g++) total += s.groups[g];
        s.target = uniform * total;
        s.at = GROUP * draw_weight(s.groups, groups, &s.target);
    }
    block_sync();
    const int first_block = s.at, block_count = min(blocks - first_block, GROUP);
    if (threadIdx.x < block_count) s.weights[threadIdx.x] = load(sums + first_block + threadIdx.x);
    block_sync();
    if (threadIdx.x == 0) s.at = LOGITS * (first_block + draw_weight(s.weights, block_count, &s.target));
    block_sync();
    const int first = s.at, count = min(vocab - first, LOGITS);
    if (threadIdx.x < count) s.weights[threadIdx.x] = logits_exp((load(row + first + threadIdx.x) - most) * scale);
    block_sync();
    if (threadIdx.x == 0) s.at = first + draw_weight(s.weights, count, &s.target);
    block_sync();
    return s.at;
}

/* Of the blocks that share a row, whether this one ends last: it sees what all have written. All threads get it. */
__device__ bool ends_last(int32_t *ended, int *shared) {
    __threadfence();
    block_sync();
    if (threadIdx.x == 0) *shared = atomicAdd(ended, 1);
    block_sync();
    const bool last = *shared == gridDim.x - 1;
    block_sync();
    if (last && threadIdx.x == 0) *ended = 0;
    __threadfence();
    return last;
}

__device__ bool are_numbers(const float *row, int vocab) {
    return vocab <= DRAW_VOCAB_MAX && !isnan(load(row)) && !isnan(load(row + vocab / 2)) &&
        !isnan(load(row + vocab - 1));
}

/* By one thread. */
__device__ void tell(const DrawnTokens &drawn, int row, int id) {
    drawn.device[row] = id;
    drawn.host[(__ldcg(drawn.turn) + 1) & 1][row] = id; /* the step has counted on already */
}

/* Greater for greater floats, both zeros alike; never 0. */
__device__ __forceinline__ uint32_t order(float value) {
    const uint32_t bits = __float_as_uint(value + 0.0f);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

/* The largest logit's token: the greatest pair of a logit and how far its token is from the end. */
__global__ void __launch_bounds__(BLOCK) largest_kernel(const float *logits, int vocab, DrawnTokens drawn) {
    __shared__ unsigned long long shared[WARPS];
    __shared__ int last;
    let_next_begin();
    wait_for_previous();
    const int r = blockIdx.y, lane = threadIdx.x % 32;
    const int first = (blockIdx.x * WARPS + threadIdx.x / 32) * SUM_BLOCKS;
    const float *row = logits + (int64_t)r * vocab;
    float2 v[SUM_BLOCKS];
    logits_take(row, vocab, first, v);
    float most = -INFINITY;
    int id = 0;
#pragma unroll
    for (int i = 0; i < SUM_BLOCKS; i++) {
        const int at = (first + i) * LOGITS + lane;
        if (v[i].x > most) most = v[i].x, id = at;
        if (v[i].y > most) most = v[i].y, id = at + 32;
    }
    unsigned long long best = (unsigned long long)order(most) << 32 | ~(uint32_t)id;
#pragma unroll
    for (int i = 16; i; i >>= 1) best = max(best, __shfl_xor_sync(~0u, best, i));
    if (lane == 0) shared[threadIdx.x / 32] = best;
    block_sync();
    if (threadIdx.x == 0) {
        for (int i = 1; i < WARPS; i++) best = max(best, shared[i]);
        atomicMax((unsigned long long *)drawn.best + r, best);
    }
    if (!ends_last(drawn.ended + r, &last) || threadIdx.x != 0) return;
    best = atomicExch((unsigned long long *)drawn.best + r, 0);
    const bool finite = best >> 32 > order(-INFINITY) && best >> 32 < order(INFINITY);
    tell(drawn, r, finite && are_numbers(row, vocab) ? (int)~(uint32_t)best : -1);
}

/* Sums of blocks, and where the last of a row's are, its token. */
__global__ void __launch_bounds__(BLOCK)
    draw_kernel(const float *logits, int vocab, int blocks, float *work, DrawRows rows, DrawnTokens drawn) {
    __shared__ DrawArea s;
    let_next_begin();
    wait_for_previous();
    const int r = blockIdx.y;
    const float *row = logits + (int64_t)r * vocab, scale = load(rows.scales + r);
    float *maxima = work + (int64_t)r * 2 * blocks, *sums = maxima + blocks;
    const float most = sum_blocks(row, vocab, blocks, scale, maxima, sums, s.floats);
    if (!ends_last(drawn.ended + r, &s.at)) return;
    int id = -1;
    const bool can = isfinite(most) && are_numbers(row, vocab);
    if (can && scale == 0) {
        const int first = LOGITS * first_equal(maxima, blocks, most, &s.at);
        id = first + first_equal(row + first, min(vocab - first, LOGITS), most, &s.at);
    } else if (can) {
        const double uniform = __hiloint2double(__ldcg(rows.uniform_high + r), __ldcg(rows.uniform_low + r));
        id = draw_any(row, vocab, sums, blocks, most, scale, uniform, s);
    }
    if (threadIdx.x == 0) tell(drawn, r, id);
}

extern "C" cudaError_t rows_draw(cudaStream_t stream, int rows, int vocab, const float *logits, int largest,
    float *work, const DrawRows *draws, const DrawnTokens *drawn) {
    const int blocks = (vocab + LOGITS - 1) / LOGITS;
    const dim3 grid = sums_grid(rows, blocks);
    if (largest) return launch(stream, largest_kernel, grid, BLOCK, 0, logits, vocab, *drawn);
    const cudaError_t error = launch(stream, maxima_kernel, grid, BLOCK, 0, logits, vocab, blocks, work, (float *)0);
    if (error) return error;
    return launch(stream, draw_kernel, grid, BLOCK, 0, logits, vocab, blocks, work, *draws, *drawn);
}
