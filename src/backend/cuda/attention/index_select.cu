/* The sparse indexer (IndexSelect of backend.h): a score for each visible key, then the best blocks of each row. Scores
 * are sums in f32 in one order, so a row's choice does not depend on the rows beside it. */
#include "backend/cuda/attention/attention.cuh"

/* A thread has HEADS / PARTS heads of a key, PIECE dims at a time. */
enum { SCORE_KEYS = PAGE_TOKENS, PARTS = BLOCK / SCORE_KEYS, HEADS = 64, PIECE = 32 };

__device__ __forceinline__ float key_element(const uint8_t *key, int i, int dtype) {
    if (dtype == F32) return __ldcg((const float *)key + i);
    const unsigned short bits = __ldcg((const unsigned short *)key + i);
    return dtype == F16 ? __half2float(__ushort_as_half(bits)) : __uint_as_float((uint32_t)bits << 16);
}
/* Elements first … first + PIECE − 1 of a key; zeros beyond its width. */
__device__ __forceinline__ void key_take(const uint8_t *key, int first, int width, int dtype, float k[PIECE]) {
    if (dtype == F16 && width % PIECE == 0) {
#pragma unroll
        for (int i = 0; i < PIECE / 8; i++) {
            const uint4 v = __ldcg((const uint4 *)(key + 2 * first) + i);
            const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 f = __half22float2(*(const __half2 *)&words[j]);
                k[8 * i + 2 * j] = f.x;
                k[8 * i + 2 * j + 1] = f.y;
            }
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < PIECE; i++) k[i] = first + i < width ? key_element(key, first + i, dtype) : 0;
}

/* Beside each other: the scores of keys [groups][tokens], those of blocks [groups][tokens]. */
__device__ __forceinline__ float *scores_at(const IndexChoice &p, int row, int group, bool blocks) {
    const int groups = p.weights ? 1 : p.attend.heads;
    return p.attend.partials + (((int64_t)(row - p.attend.first_row) * 2 + blocks) * groups + group) * p.tokens;
}

/* The last key that a row sees; −1: none. */
__device__ __forceinline__ int last_key(const IndexChoice &p, int row) {
    return (__ldcg(p.attend.step.places + row) + 1) / p.rate - 1;
}

/* A block has SCORE_KEYS of a row's keys, a thread one key and every second head. */
__global__ void __launch_bounds__(BLOCK) index_scores_kernel(const __grid_constant__ IndexChoice p) {
    __shared__ __align__(16) float queries[HEADS][PIECE];
    __shared__ float others[SCORE_KEYS];
    let_next_begin();
    wait_for_previous();
    const Attend &a = p.attend;
    const int row = a.first_row + blockIdx.y, width = a.head_dim, last = last_key(p, row);
    const int first = blockIdx.x * SCORE_KEYS, own = threadIdx.x % SCORE_KEYS, part = threadIdx.x / SCORE_KEYS;
    if (first > last) return;
    const int32_t *table = a.tables + (int64_t)__ldcg(a.step.chunks + row) * a.table_stride;
    const bool on = first + own <= last;
    const int number = on ? first + own : first;
    const uint8_t *key = head_at(a, table, number * p.rate, 0) +
        (int64_t)(number % (PAGE_TOKENS / p.rate)) * width * dtype_size(a.dtype);
    float all = 0;
    for (int head = 0; head < a.heads; head += HEADS) {
        const int count = min((int)HEADS, a.heads - head);
        float sums[HEADS / PARTS] = {};
        for (int at = 0; at < width; at += PIECE) {
            float k[PIECE];
            key_take(key, at, width, a.dtype, k);
            __syncthreads();
            for (int i = threadIdx.x; i < HEADS * PIECE; i += BLOCK) {
                const int h = i / PIECE, dim = at + i % PIECE;
                queries[h][i % PIECE] =
                    h < count && dim < width ? load(a.q + ((int64_t)row * a.heads + head + h) * width + dim) : 0;
            }
            __syncthreads();
#pragma unroll
            for (int h = 0; h < HEADS / PARTS; h++) {
                if (PARTS * h >= count) break;
#pragma unroll
                for (int i = 0; i < PIECE; i += 4) {
                    const float4 q = *(const float4 *)&queries[PARTS * h + part][i];
                    sums[h] = fmaf(q.x, k[i], sums[h]);
                    sums[h] = fmaf(q.y, k[i + 1], sums[h]);
                    sums[h] = fmaf(q.z, k[i + 2], sums[h]);
                    sums[h] = fmaf(q.w, k[i + 3], sums[h]);
                }
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS / PARTS; h++) {
            const int which = head + PARTS * h + part;
            if (which >= a.heads) continue;
            if (p.weights)
                all = fmaf(load(p.weights + (int64_t)row * a.heads + which), fmaxf(sums[h], 0), all);
            else if (on)
                scores_at(p, row, which, false)[first + own] = sums[h];
        }
    }
    if (!p.weights) return;
    if (part) others[own] = all;
    __syncthreads();
    if (!part && on) scores_at(p, row, 0, false)[first + own] = all + others[own];
}

/* Floats in their order as integers. */
__device__ __forceinline__ uint32_t ordered(float v) {
    const uint32_t bits = __float_as_uint(v + 0.0f); /* −0 as 0 */
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* A block has a row and a group: the least score that is chosen, a byte after the other, then the chosen blocks in
 * order. */
enum { CHOOSERS = 1024, BYTE_VALUES = 256 };
__global__ void __launch_bounds__(CHOOSERS) index_choose_kernel(const __grid_constant__ IndexChoice p) {
    __shared__ int counts[BYTE_VALUES], warps[2][CHOOSERS / 32];
    __shared__ uint32_t least;
    __shared__ int left; /* blocks to be chosen among those that have the bytes so far */
    let_next_begin();
    wait_for_previous();
    const Attend &a = p.attend;
    const int group = blockIdx.x, row = a.first_row + blockIdx.y, last = last_key(p, row);
    const int groups = gridDim.x, blocks = last / p.block + 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int most = p.top_k + p.tail, place = __ldcg(a.step.places + row), kept = min(max(blocks, 0), p.top_k);
    int32_t *const chosen = p.chosen + ((int64_t)row * groups + group) * most;
    for (int i = kept + threadIdx.x; i < most; i += CHOOSERS)
        chosen[i] = p.tail && i == kept && (place + 1) % p.rate ? (place + 1) / p.rate : -1;
    if (blocks <= p.top_k) {
        for (int i = threadIdx.x; i < blocks; i += CHOOSERS) chosen[i] = i;
        return;
    }
    const float *keys = scores_at(p, row, group, false);
    uint32_t *const scores = (uint32_t *)scores_at(p, row, group, true);
    for (int b = threadIdx.x; b < blocks; b += CHOOSERS) {
        float best = -INFINITY;
        for (int t = b * p.block; t < min((b + 1) * p.block, last + 1); t++) best = fmaxf(best, load(keys + t));
        scores[b] = ordered(b >= blocks - p.local ? INFINITY : best);
    }
    if (threadIdx.x == 0) left = p.top_k, least = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < BYTE_VALUES) counts[threadIdx.x] = 0;
        __syncthreads();
        const uint32_t prefix = least;
        for (int b = threadIdx.x; b < blocks; b += CHOOSERS)
            if (shift == 24 || scores[b] >> (shift + 8) == prefix >> (shift + 8))
                atomicAdd(&counts[scores[b] >> shift & 255], 1);
        __syncthreads();
        if (threadIdx.x == 0) {
            int value = BYTE_VALUES - 1, wanted = left;
            for (; value > 0 && counts[value] < wanted; value--) wanted -= counts[value];
            least = prefix | (uint32_t)value << shift;
            left = wanted;
        }
        __syncthreads();
    }
    /* Those above the least, and the first `left` of those that equal it. */
    int before = 0, equals = 0;
    for (int first = 0; first < blocks; first += CHOOSERS) {
        const int b = first + threadIdx.x;
        const uint32_t own = b < blocks ? scores[b] : 0;
        const bool equal = b < blocks && own == least;
        const unsigned equal_mask = __ballot_sync(~0u, equal);
        if (lane == 0) warps[0][warp] = __popc(equal_mask);
        __syncthreads();
        int rank = equals + __popc(equal_mask & ((1u << lane) - 1));
        for (int w = 0; w < CHOOSERS / 32; w++) {
            rank += w < warp ? warps[0][w] : 0;
            equals += warps[0][w];
        }
        const bool taken = (b < blocks && own > least) || (equal && rank < left);
        const unsigned mask = __ballot_sync(~0u, taken);
        if (lane == 0) warps[1][warp] = __popc(mask);
        __syncthreads();
        int at = before + __popc(mask & ((1u << lane) - 1));
        for (int w = 0; w < CHOOSERS / 32; w++) {
            at += w < warp ? warps[1][w] : 0;
            before += warps[1][w];
        }
        if (taken) chosen[at] = b;
        __syncthreads();
    }
}

static int groups_of(const IndexChoice &p) { return p.weights ? 1 : p.attend.heads; }
extern "C" size_t index_choice_floats(const IndexChoice *p) { return (size_t)groups_of(*p) * p->tokens * 2; }
extern "C" cudaError_t index_choose(cudaStream_t stream, const IndexChoice *p) {
    const Attend &a = p->attend;
    const cudaError_t error = launch(stream, index_scores_kernel, dim3(p->tokens / SCORE_KEYS, a.rows), BLOCK, 0, *p);
    if (error) return error;
    return launch(stream, index_choose_kernel, dim3(groups_of(*p), a.rows), CHOOSERS, 0, *p);
}
