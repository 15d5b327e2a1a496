/* Samples tokens from logits. The arithmetic is that of engine/sampler.c, bit for bit. */
#include <cfloat>

#include "backend/cuda/runtime/common.cuh"
#include "backend/cuda/runtime/sampling.h"

/* ---- blocks' maxima and sums ----
 * A warp has a block of 64 logits, a lane two of them, 32 apart, as the sampler adds them. */
constexpr int LOGITS = 64, SUM_BLOCKS = 8; /* blocks per warp */
static constexpr float EXP_MIN = -87;

__device__ __forceinline__ float logits_exp(float v) {
    const float x = v > EXP_MIN ? v : EXP_MIN; /* also for NaN */
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

__global__ void __launch_bounds__(BLOCK)
    maxima_kernel(const float *logits, int vocab, int blocks, float *out, float *copy) {
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
    float *to = (copy ? copy : out) + (2 * row + 1) * blocks; /* the sums are not used here */
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

/* ---- sampling ---- */

constexpr int GROUP = 64, GROUPS_MAX = SAMPLE_VOCAB_MAX / (GROUP * LOGITS);

/* The first of `count` weights at which the sum of those from the first on is above the target, or the last with a
 * weight > 0; *target becomes the rest of the target before that one. */
template <class T> __device__ int sample_weight(const T *weights, int count, double *target) {
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

/* Candidates: some of a row's tokens, by ascending id. With more than CANDIDATES_MAX the host samples. */
constexpr int CANDIDATES_MAX = 1024, DIGITS = 256;
static_assert(DIGITS == BLOCK, "a thread for each");
struct SampleArea {
    double groups[GROUPS_MAX];
    float weights[GROUP], floats[WARPS];
    int at, lowest, warps[WARPS + 1];
    double target;
    unsigned long long sum, histogram[DIGITS], scan[2][DIGITS];
    int ids[CANDIDATES_MAX];
    float values[CANDIDATES_MAX];
    unsigned long long parts[CANDIDATES_MAX]; /* weights */
};

/* Σ e^((x − most) · scale) of all, with those of groups. */
__device__ double total_of(const float *sums, int blocks, SampleArea &s) {
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
        s.target = total;
    }
    block_sync();
    const double total = s.target;
    block_sync();
    return total;
}

/* From all tokens: a group of blocks, a block of it, a token of that. */
__device__ int sample_any(const float *row, int vocab, const float *sums, int blocks, float most, float scale,
    double uniform, SampleArea &s) {
    const double total = total_of(sums, blocks, s);
    if (threadIdx.x == 0) {
        s.target = uniform * total;
        s.at = GROUP * sample_weight(s.groups, (blocks + GROUP - 1) / GROUP, &s.target);
    }
    block_sync();
    const int first_block = s.at, block_count = min(blocks - first_block, GROUP);
    if (threadIdx.x < block_count) s.weights[threadIdx.x] = load(sums + first_block + threadIdx.x);
    block_sync();
    if (threadIdx.x == 0) s.at = LOGITS * (first_block + sample_weight(s.weights, block_count, &s.target));
    block_sync();
    const int first = s.at, count = min(vocab - first, LOGITS);
    if (threadIdx.x < count) s.weights[threadIdx.x] = logits_exp((load(row + first + threadIdx.x) - most) * scale);
    block_sync();
    if (threadIdx.x == 0) s.at = first + sample_weight(s.weights, count, &s.target);
    block_sync();
    return s.at;
}

/* ---- candidates ---- */

/* Greater for greater floats, both zeros alike; never 0. */
__device__ __forceinline__ uint32_t order(float value) {
    const uint32_t bits = __float_as_uint(value + 0.0f);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}
__device__ __forceinline__ float value_of_order(uint32_t key) {
    return __uint_as_float(key >> 31 ? key & ~(1u << 31) : ~key);
}

/* Logits ≥ threshold in a warp's share of the blocks: counted, or stored from `at` on. */
__device__ int collect_part(
    const float *row, int vocab, const float *maxima, int blocks, float threshold, bool put, int at, SampleArea &s) {
    const int lane = threadIdx.x % 32, each = (blocks + WARPS - 1) / WARPS, first = threadIdx.x / 32 * each;
    const int end = min(blocks, first + each);
    const uint32_t before = (1u << lane) - 1;
    int count = 0;
    for (int some = first; some < end; some += 32) {
        uint32_t wanted = __ballot_sync(~0u, some + lane < end && load(maxima + some + lane) >= threshold);
        for (; wanted; wanted &= wanted - 1) {
            const int id = (some + __ffs(wanted) - 1) * LOGITS + lane;
            const float x = id < vocab ? load(row + id) : -INFINITY,
                        y = id + 32 < vocab ? load(row + id + 32) : -INFINITY;
            const uint32_t low = __ballot_sync(~0u, x >= threshold), high = __ballot_sync(~0u, y >= threshold);
            const int x_at = at + count + __popc(low & before), y_at = at + count + __popc(low) + __popc(high & before);
            if (put && low >> lane & 1) s.ids[x_at] = id, s.values[x_at] = x;
            if (put && high >> lane & 1) s.ids[y_at] = id + 32, s.values[y_at] = y;
            count += __popc(low) + __popc(high);
        }
    }
    return count;
}

/* Collects all logits of a row ≥ threshold, which is finite. Returns their number; at most CANDIDATES_MAX are stored.
 */
__device__ int collect(const float *row, int vocab, const float *maxima, int blocks, float threshold, SampleArea &s) {
    const int warp = threadIdx.x / 32;
    const int own = collect_part(row, vocab, maxima, blocks, threshold, false, 0, s);
    if (threadIdx.x % 32 == 0) s.warps[warp] = own;
    block_sync();
    int at = 0, count = 0;
    for (int i = 0; i < WARPS; i++) {
        if (i == warp) at = count;
        count += s.warps[i];
    }
    if (count <= CANDIDATES_MAX) collect_part(row, vocab, maxima, blocks, threshold, true, at, s);
    block_sync();
    return count;
}

/* The sampler's find_cut(): the key at which the weight of the values, taken from the largest down, reaches target, and
 * the rest of the target for values of this key. of_blocks: values are a row's maxima; weights NULL: each weighs 1. */
__device__ uint32_t find_cut(const float *values, bool of_blocks, const unsigned long long *weights, int count,
    unsigned long long target, unsigned long long *rest, SampleArea &s) {
    const int digit = DIGITS - 1 - threadIdx.x; /* the thread's, from the largest down */
    uint32_t cut = 0, known = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        s.histogram[threadIdx.x] = 0;
        if (threadIdx.x == 0) s.lowest = DIGITS - 1, s.at = -1;
        block_sync();
        for (int i = threadIdx.x; i < count; i += BLOCK) {
            const uint32_t key = order(of_blocks ? load(values + i) : values[i]);
            if ((key & known) != cut) continue;
            atomicAdd(&s.histogram[key >> shift & 255], weights ? weights[i] : 1ull);
            atomicMin(&s.lowest, (int)(key >> shift & 255));
        }
        block_sync();
        int from = 0;
        s.scan[0][threadIdx.x] = s.histogram[digit];
        for (int reach = 1; reach < DIGITS; reach *= 2, from ^= 1) {
            block_sync();
            s.scan[from ^ 1][threadIdx.x] =
                s.scan[from][threadIdx.x] + (threadIdx.x >= reach ? s.scan[from][threadIdx.x - reach] : 0);
        }
        block_sync();
        const unsigned long long own = s.histogram[digit], with = s.scan[from][threadIdx.x];
        if ((own > 0 && with >= target) || digit == s.lowest) atomicMax(&s.at, digit);
        block_sync();
        if (digit == s.at) s.sum = with - own;
        block_sync();
        target -= s.sum;
        cut |= (uint32_t)s.at << shift;
        known |= 255u << shift;
        block_sync();
    }
    *rest = target;
    return cut;
}

/* Keeps those for which keep(i) holds, in the same order; only the first warp calls keep(). */
template <class F> __device__ int keep_some(int count, const F &keep, SampleArea &s) {
    if (threadIdx.x < 32) {
        const int lane = threadIdx.x;
        int kept = 0;
        for (int first = 0; first < count; first += 32) {
            const int i = first + lane;
            const bool mine = keep(i, i < count);
            const uint32_t some = __ballot_sync(~0u, mine);
            const int to = kept + __popc(some & ((1u << lane) - 1));
            const int id = mine ? s.ids[i] : 0;
            const float value = mine ? s.values[i] : 0;
            __syncwarp();
            if (mine) s.ids[to] = id, s.values[to] = value;
            __syncwarp();
            kept += __popc(some);
        }
        if (lane == 0) s.at = kept;
    }
    block_sync();
    const int kept = s.at;
    block_sync();
    return kept;
}

/* Keeps the largest until their weight reaches target; at least one. Equal values have equal weights. */
__device__ int keep_top(int count, bool weighed, unsigned long long target, SampleArea &s) {
    unsigned long long rest;
    const uint32_t cut = find_cut(s.values, false, weighed ? s.parts : NULL, count, target, &rest, s);
    int ties = 0; /* so far */
    return keep_some(
        count,
        [&](int i, bool there) {
            const uint32_t key = there ? order(s.values[i]) : 0;
            const bool tie = there && key == cut;
            const uint32_t all = __ballot_sync(~0u, tie);
            const unsigned long long before = ties + __popc(all & ((1u << threadIdx.x) - 1));
            ties += __popc(all);
            if (!tie) return there && key > cut;
            const unsigned long long weight = weighed ? s.parts[i] : 1;
            return before == 0 || before * weight < rest;
        },
        s);
}

/* Computes the weights of the candidates; returns their sum. */
__device__ unsigned long long weigh(int count, float most, float scale, SampleArea &s) {
    if (threadIdx.x == 0) s.sum = 0;
    block_sync();
    unsigned long long own = 0;
    for (int i = threadIdx.x; i < count; i += BLOCK) {
        s.parts[i] = (unsigned long long)(logits_exp((s.values[i] - most) * scale) * 0x1p40f);
        own += s.parts[i];
    }
    atomicAdd(&s.sum, own);
    block_sync();
    const unsigned long long sum = s.sum;
    block_sync();
    return sum;
}

struct SampleRow {
    const float *row, *maxima, *sums;
    int vocab, blocks, top_k;
    float most, scale, top_p, min_p_log;
    double uniform;
};

/* Collects the candidates and returns their number; −1: too many. */
__device__ int collect_top(const SampleRow &d, SampleArea &s) {
    float threshold = -FLT_MAX;
    unsigned long long rest;
    if (d.top_k < d.blocks)
        threshold = fmaxf(value_of_order(find_cut(d.maxima, true, NULL, d.blocks, d.top_k, &rest, s)), threshold);
    int count = collect(d.row, d.vocab, d.maxima, d.blocks, threshold, s);
    if (count > CANDIDATES_MAX) return -1;
    if (count > d.top_k) count = keep_top(count, false, d.top_k, s);
    if (!(d.top_p < 1)) return count;
    const unsigned long long total = weigh(count, d.most, 1, s);
    return keep_top(count, true, (unsigned long long)((double)d.top_p * (double)total), s);
}

__device__ int collect_nucleus(const SampleRow &d, SampleArea &s) {
    const unsigned long long target =
        (unsigned long long)((double)d.top_p * total_of(d.sums, d.blocks, s) * (double)0x1p40f);
    for (float reach = 4;; reach *= 2) {
        const bool all = reach > -EXP_MIN || d.most - reach < -FLT_MAX;
        const int count = collect(d.row, d.vocab, d.maxima, d.blocks, all ? -FLT_MAX : d.most - reach, s);
        if (count > CANDIDATES_MAX) return -1;
        if (weigh(count, d.most, 1, s) >= target || all) return keep_top(count, true, target, s);
    }
}

/* By one thread: a candidate by its weight. */
__device__ int sample_candidate(int count, unsigned long long target, const SampleArea &s) {
    int last = s.ids[0];
    for (int i = 0; i < count; i++) {
        if (s.parts[i] == 0) continue;
        last = s.ids[i];
        if (target < s.parts[i]) break;
        target -= s.parts[i];
    }
    return last;
}

__device__ int sample_some(const SampleRow &d, SampleArea &s) {
    const float likely = d.most + d.min_p_log;
    int count;
    if (d.top_k)
        count = collect_top(d, s);
    else if (d.top_p < 1)
        count = collect_nucleus(d, s);
    else
        count = collect(d.row, d.vocab, d.maxima, d.blocks, fminf(likely, d.most), s);
    if (count < 0 || count > CANDIDATES_MAX) return -1;
    if (d.min_p_log > -INFINITY)
        count = keep_some(
            count, [&](int i, bool there) { return there && (s.values[i] >= likely || s.values[i] >= d.most); }, s);
    const unsigned long long total = weigh(count, d.most, d.scale, s);
    if (threadIdx.x == 0) s.at = sample_candidate(count, (unsigned long long)(d.uniform * (double)total), s);
    block_sync();
    return s.at;
}

/* ---- the end of a step ---- */

/* True in the last block to end of those that share a row; it sees the writes of all of them. The result is the same
 * for all threads. */
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
    return vocab <= SAMPLE_VOCAB_MAX && !isnan(load(row)) && !isnan(load(row + vocab / 2)) &&
        !isnan(load(row + vocab - 1));
}

/* By one thread. */
__device__ void tell(const SampledTokens &sampled, int row, int id) {
    sampled.device[row] = id;
    sampled.host[(__ldcg(sampled.turn) + 1) & 1][row] = id; /* *turn has been incremented for this step already */
}

/* The largest logit's token: the greatest pair of a logit and how far its token is from the end. */
__global__ void __launch_bounds__(BLOCK) largest_kernel(const float *logits, int vocab, SampledTokens sampled) {
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
        atomicMax((unsigned long long *)sampled.best + r, best);
    }
    if (!ends_last(sampled.ended + r, &last) || threadIdx.x != 0) return;
    best = atomicExch((unsigned long long *)sampled.best + r, 0);
    const bool finite = best >> 32 > order(-INFINITY) && best >> 32 < order(INFINITY);
    tell(sampled, r, finite && are_numbers(row, vocab) ? (int)~(uint32_t)best : -1);
}

/* Sums of blocks; the block that ends last of a row also samples its token. */
__global__ void __launch_bounds__(BLOCK)
    sample_kernel(const float *logits, int vocab, int blocks, float *work, SampleRows rows, SampledTokens sampled) {
    __shared__ SampleArea s;
    let_next_begin();
    wait_for_previous();
    const int r = blockIdx.y, k = __ldcg(rows.top_k + r);
    float *maxima = work + (int64_t)r * 2 * blocks, *sums = maxima + blocks;
    SampleRow d = {logits + (int64_t)r * vocab, maxima, sums, vocab, blocks, k > 0 && k < vocab ? k : 0, 0,
        load(rows.scales + r), load(rows.top_p + r), load(rows.min_p_log + r),
        __hiloint2double(__ldcg(rows.uniform_high + r), __ldcg(rows.uniform_low + r))};
    const bool some = d.top_k || d.top_p < 1 || d.min_p_log > -INFINITY;
    d.most = sum_blocks(d.row, vocab, blocks, some ? 1 : d.scale, maxima, sums, s.floats);
    if (!ends_last(sampled.ended + r, &s.at)) return;
    int id = -1;
    const bool can = isfinite(d.most) && are_numbers(d.row, vocab);
    if (can && d.scale == 0) {
        const int first = LOGITS * first_equal(maxima, blocks, d.most, &s.at);
        id = first + first_equal(d.row + first, min(vocab - first, LOGITS), d.most, &s.at);
    } else if (can) {
        id = some ? sample_some(d, s) : sample_any(d.row, vocab, sums, blocks, d.most, d.scale, d.uniform, s);
    }
    if (threadIdx.x == 0) tell(sampled, r, id);
}

extern "C" cudaError_t rows_sample(cudaStream_t stream, int rows, int vocab, const float *logits, int largest,
    float *work, const SampleRows *sample_params, const SampledTokens *sampled) {
    const int blocks = (vocab + LOGITS - 1) / LOGITS;
    const dim3 grid = sums_grid(rows, blocks);
    if (largest) return launch(stream, largest_kernel, grid, BLOCK, 0, logits, vocab, *sampled);
    const cudaError_t error = launch(stream, maxima_kernel, grid, BLOCK, 0, logits, vocab, blocks, work, (float *)0);
    if (error) return error;
    return launch(stream, sample_kernel, grid, BLOCK, 0, logits, vocab, blocks, work, *sample_params, *sampled);
}
