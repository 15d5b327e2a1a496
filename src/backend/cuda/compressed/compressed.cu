/* Keys of windows of positions, attention to them, and the streams of hyper-connections. */
#include "backend/cuda/compressed/compressed.h"

#include "backend/cuda/runtime/common.cuh"

/* A position of those that a key is made of: its row of the state, and the bias of its gates. */
enum { SLOTS_MAX = 2 * KV_PAGE_TOKENS };
struct Slot {
    const float *row, *bias;
};

/* The row of a position in the sequence of one of the step's rows. */
__device__ __forceinline__ float *cached_row(const CachedRows &kv, const StepRows &step, int row, int position) {
    const int32_t *table = kv.tables + (int64_t)__ldcg(step.chunks + row) * kv.table_stride;
    return kv.pages + __ldcg(table + position / KV_PAGE_TOKENS) * kv.stride + position % KV_PAGE_TOKENS * kv.width;
}

/* Rotates the pairs at the end of a vector in shared memory; by the block. */
__device__ __forceinline__ void rotate_end(
    float *x, int width, int dims, const float *frequencies, int position, bool back) {
    float *end = x + width - dims;
    for (int i = threadIdx.x; i < dims / 2; i += BLOCK) {
        float s, c;
        sincosf((float)position * __ldg(frequencies + i), &s, &c);
        if (back) s = -s;
        const float a = end[2 * i], b = end[2 * i + 1];
        end[2 * i] = a * c - b * s;
        end[2 * i + 1] = a * s + b * c;
    }
}

/* The RMS norm of a vector in shared memory; by the block. */
__device__ __forceinline__ void norm_vector(float *x, const RowNorm &norm, float *shared) {
    float sum = 0;
    for (int i = threadIdx.x; i < norm.width; i += BLOCK) sum = fmaf(x[i], x[i], sum);
    const float scale = 1.0f / sqrtf(block_sum(sum, shared) / (float)norm.width + norm.eps);
    for (int i = threadIdx.x; i < norm.width; i += BLOCK) x[i] *= scale * (norm.weight ? __ldg(norm.weight + i) : 1);
}

/* Norms a key in shared memory, rotates its end to a position and stores it; by the block. */
__device__ __forceinline__ void store_key(float *key, int width, const RowNorm &norm, int dims,
    const float *frequencies, int position, float *to, float *shared) {
    block_sync();
    if (norm.width) norm_vector(key, norm, shared);
    block_sync();
    rotate_end(key, width, dims, frequencies, position, false);
    block_sync();
    for (int e = threadIdx.x; e < width; e += BLOCK) to[e] = key[e];
}

/* ---- compression ---- */

__global__ void __launch_bounds__(BLOCK) keep_kernel(const __grid_constant__ CompressArgs a) {
    let_next_begin();
    wait_for_previous();
    const int row = blockIdx.x;
    const int64_t all = a.state.width / 2;
    float *to = cached_row(a.state, a.step, row, __ldcg(a.step.places + row));
    for (int64_t i = threadIdx.x; i < all; i += BLOCK) {
        to[i] = load(a.op.values + row * all + i);
        to[all + i] = load(a.op.gates + row * all + i);
    }
}

/* A block per row; those at the end of a window have a key. */
__global__ void __launch_bounds__(BLOCK) compress_kernel(const __grid_constant__ CompressArgs a) {
    extern __shared__ float key[]; /* [width] */
    __shared__ Slot slots[SLOTS_MAX];
    __shared__ float shared[WARPS];
    let_next_begin();
    wait_for_previous();
    const int row = blockIdx.x, place = __ldcg(a.step.places + row), rate = a.op.rate, width = a.op.width;
    if ((place + 1) % rate) return;
    const int64_t all = a.state.width / 2;
    const int first = place + 1 - rate, before = a.op.overlap && first >= rate ? rate : 0, count = before + rate;
    for (int i = threadIdx.x; i < count; i += BLOCK) {
        const int64_t part = a.op.overlap && i >= before ? width : 0;
        slots[i].row = cached_row(a.state, a.step, row, first - before + i) + part;
        slots[i].bias = a.op.position_bias + (first - before + i) % rate * all + part;
    }
    block_sync();
    for (int e = threadIdx.x; e < width; e += BLOCK) {
        float most = -INFINITY, sum = 0, value = 0;
        for (int i = 0; i < count; i++) most = fmaxf(most, load(slots[i].row + all + e) + __ldg(slots[i].bias + e));
        for (int i = 0; i < count; i++) {
            const float p = expf(load(slots[i].row + all + e) + __ldg(slots[i].bias + e) - most);
            sum += p;
            value += p * load(slots[i].row + e);
        }
        key[e] = value / sum;
    }
    store_key(key, width, a.norm, a.dims, a.frequencies, first, cached_row(a.keys, a.step, row, first), shared);
}

extern "C" cudaError_t compressed_compress(cudaStream_t stream, const CompressArgs *args) {
    const cudaError_t error = launch(stream, keep_kernel, dim3(args->op.rows), BLOCK, 0, *args);
    if (error) return error;
    return launch(stream, compress_kernel, dim3(args->op.rows), BLOCK, args->op.width * sizeof(float), *args);
}

/* ---- queries of the choice of keys ---- */

__global__ void __launch_bounds__(BLOCK) rotate_kernel(const __grid_constant__ EndRotation a) {
    let_next_begin();
    wait_for_previous();
    const int row = blockIdx.x, place = __ldcg(a.step.places + row), pairs = a.dims / 2;
    for (int i = threadIdx.x; i < a.heads * pairs; i += BLOCK) {
        float *at = a.x + ((int64_t)row * a.heads + i / pairs + 1) * a.width - a.dims + 2 * (i % pairs), s, c;
        sincosf((float)place * __ldg(a.frequencies + i % pairs), &s, &c);
        const float u = load(at), v = load(at + 1);
        at[0] = u * c - v * s;
        at[1] = u * s + v * c;
    }
}
extern "C" cudaError_t compressed_rotate(cudaStream_t stream, const EndRotation *rotation) {
    return launch(stream, rotate_kernel, dim3(rotation->step.rows), BLOCK, 0, *rotation);
}

/* ---- attention ---- */

/* Norms, rotates and appends the key of a row. */
__global__ void __launch_bounds__(BLOCK) latest_kernel(const __grid_constant__ CompressedArgs a) {
    extern __shared__ float key[]; /* [width] */
    __shared__ float shared[WARPS];
    let_next_begin();
    wait_for_previous();
    const int row = blockIdx.x, place = __ldcg(a.step.places + row), width = a.op.width;
    for (int e = threadIdx.x; e < width; e += BLOCK) key[e] = load(a.op.k + (int64_t)row * width + e);
    store_key(key, width, a.k_norm, a.dims, a.frequencies, place, cached_row(a.latest, a.step, row, place), shared);
}

/* The keys that a row reads: those of the window, then compressed ones. */
struct RowKeys {
    int first, latest, compressed; /* the window's first position; numbers of keys */
    const int32_t *chosen;         /* NULL: all compressed ones */

    __device__ __forceinline__ RowKeys(const CompressedArgs &a, int row, int place) {
        first = place >= a.op.window ? place - a.op.window + 1 : 0;
        latest = place + 1 - first;
        compressed = a.op.rate ? compressed_keys_of(a.op.rate, place) : 0;
        chosen = a.op.chosen ? a.op.chosen + (int64_t)row * a.op.top_k : nullptr;
        if (!a.op.rate || !chosen) return;
        compressed = 0;
        for (int i = threadIdx.x % 32; i - (int)threadIdx.x % 32 < a.op.top_k; i += 32)
            compressed += __popc(__ballot_sync(~0u, i < a.op.top_k && __ldcg(chosen + i) >= 0));
    }
    __device__ __forceinline__ static int compressed_keys_of(int rate, int place) { return (place + 1) / rate; }
    __device__ __forceinline__ int count() const { return latest + compressed; }
    __device__ __forceinline__ const float *key(const CompressedArgs &a, int row, int i) const {
        if (i < latest) return cached_row(a.latest, a.step, row, first + i);
        i -= latest;
        return cached_row(a.keys, a.step, row, (chosen ? __ldcg(chosen + i) : i) * a.op.rate);
    }
};

/* A block has a head of a row, a warp every eighth key, some of which are loaded together. Warps are added in order.
 * EACH: elements of a lane. */
template <int EACH> __global__ void __launch_bounds__(BLOCK) attend_kernel(const __grid_constant__ CompressedArgs a) {
    constexpr int TOGETHER = EACH > 16 ? 2 : 4;
    extern __shared__ float vectors[]; /* [1 + WARPS][width]: the query, later the result; results of warps */
    __shared__ float shared[WARPS], mosts[WARPS], sums[WARPS];
    let_next_begin();
    wait_for_previous();
    const int row = blockIdx.y, head = blockIdx.x, width = a.op.width, place = __ldcg(a.step.places + row);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int e = threadIdx.x; e < width; e += BLOCK)
        vectors[e] = load(a.op.q + ((int64_t)row * a.op.heads + head) * width + e);
    block_sync();
    norm_vector(vectors, a.q_norm, shared);
    block_sync();
    rotate_end(vectors, width, a.dims, a.frequencies, place, false);
    block_sync();
    float q[EACH], o[EACH], most = -INFINITY, sum = 0;
#pragma unroll
    for (int d = 0; d < EACH; d++) {
        q[d] = lane + 32 * d < width ? vectors[lane + 32 * d] : 0;
        o[d] = 0;
    }
    const RowKeys keys(a, row, place);
    for (int from = warp; from < keys.count(); from += WARPS * TOGETHER) {
        float k[TOGETHER][EACH], s[TOGETHER], next = most;
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const bool on = from + WARPS * j < keys.count();
            const float *key = on ? keys.key(a, row, from + WARPS * j) : nullptr;
#pragma unroll
            for (int d = 0; d < EACH; d++) k[j][d] = on && lane + 32 * d < width ? load(key + lane + 32 * d) : 0;
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            s[j] = 0;
#pragma unroll
            for (int d = 0; d < EACH; d++) s[j] = fmaf(q[d], k[j][d], s[j]);
            s[j] = from + WARPS * j < keys.count() ? a.op.scale * warp_sum(s[j]) : -INFINITY;
            next = fmaxf(next, s[j]);
        }
        const float keep = expf(most - next);
        most = next;
        sum *= keep;
#pragma unroll
        for (int d = 0; d < EACH; d++) o[d] *= keep;
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const float p = expf(s[j] - most);
            sum += p;
#pragma unroll
            for (int d = 0; d < EACH; d++) o[d] = fmaf(p, k[j][d], o[d]);
        }
    }
#pragma unroll
    for (int d = 0; d < EACH; d++)
        if (lane + 32 * d < width) vectors[(1 + warp) * width + lane + 32 * d] = o[d];
    if (lane == 0) mosts[warp] = most, sums[warp] = sum;
    block_sync();
    const float sink = __ldg(a.op.sinks + head);
    float largest = sink, weights[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, mosts[w]);
    float all = expf(sink - largest);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        weights[w] = expf(mosts[w] - largest);
        all = fmaf(weights[w], sums[w], all);
    }
    for (int e = threadIdx.x; e < width; e += BLOCK) {
        float v = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) v = fmaf(weights[w], vectors[(1 + w) * width + e], v);
        vectors[e] = v / all;
    }
    block_sync();
    rotate_end(vectors, width, a.dims, a.frequencies, place, true);
    block_sync();
    const int each = a.op.heads / a.op.groups;
    float *out = a.op.out + (((int64_t)(head / each) * a.op.rows + row) * each + head % each) * width;
    for (int e = threadIdx.x; e < width; e += BLOCK) out[e] = vectors[e];
}

extern "C" cudaError_t compressed_attend(cudaStream_t stream, const CompressedArgs *args) {
    const int width = args->op.width;
    const size_t bytes = (size_t)width * sizeof(float);
    const cudaError_t error = launch(stream, latest_kernel, dim3(args->op.rows), BLOCK, bytes, *args);
    if (error) return error;
    const auto kernel = width <= 128 ? attend_kernel<4> : width <= 512 ? attend_kernel<16> : attend_kernel<32>;
    return launch(stream, kernel, dim3(args->op.heads, args->op.rows), BLOCK, (1 + WARPS) * bytes, *args);
}

/* ---- groups ---- */

__global__ void __launch_bounds__(BLOCK) join_kernel(const __grid_constant__ GroupJoin op) {
    let_next_begin();
    wait_for_previous();
    const int64_t row = blockIdx.y, group = blockIdx.z;
    const float *from = op.x + ((op.repeated ? 0 : group * op.rows) + row) * op.width;
    float *to = op.out + (row * op.groups + group) * op.width;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < op.width; i += (int64_t)gridDim.x * BLOCK)
        to[i] = load(from + i);
}
enum { ACROSS_MAX = 16 }; /* blocks of a row */
static unsigned across(int64_t width) {
    const int64_t blocks = (width + BLOCK - 1) / BLOCK;
    return (unsigned)(blocks < ACROSS_MAX ? blocks : ACROSS_MAX);
}
extern "C" cudaError_t compressed_join(cudaStream_t stream, const GroupJoin *op) {
    return launch(stream, join_kernel, dim3(across(op->width), op->rows, op->groups), BLOCK, 0, *op);
}

/* ---- hyper-connections ---- */

/* The weights of a row, as cpu/hyper.c has them. */
struct Hyper {
    float pre[STREAMS_MAX], post[STREAMS_MAX], mix[STREAMS_MAX * STREAMS_MAX];
};
__device__ static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* The matrix of the mix, a lane having two elements of it. By a warp. */
__device__ static void hyper_mix(const HyperConnection &op, const float *logits, float *mix) {
    constexpr int EACH = STREAMS_MAX * STREAMS_MAX / 32;
    const int n = op.streams, lane = threadIdx.x % 32;
    const float scale = __ldg(op.scale + 2);
    float own[EACH];
    /* Each element becomes f(element, its row or column), in step. */
    const auto change = [&](const auto &f) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (lane + 32 * i < n * n) own[i] = f(lane + 32 * i);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (lane + 32 * i < n * n) mix[lane + 32 * i] = own[i];
        __syncwarp();
    };
    change([&](int at) { return load(logits + 2 * n + at) * scale + __ldg(op.base + 2 * n + at); });
    change([&](int at) {
        float most = -INFINITY;
        for (int j = 0; j < n; j++) most = fmaxf(most, mix[at / n * n + j]);
        return expf(mix[at] - most);
    });
    change([&](int at) {
        float sum = 0;
        for (int j = 0; j < n; j++) sum += mix[at / n * n + j];
        return mix[at] / sum + op.eps;
    });
    for (int turn = 0; turn < 2 * op.iterations - 1; turn++)
        change([&](int at) {
            float sum = op.eps;
            for (int b = 0; b < n; b++) sum += turn % 2 ? mix[at / n * n + b] : mix[b * n + at % n];
            return mix[at] / sum;
        });
}

/* logits: of a row. */
__global__ void __launch_bounds__(BLOCK)
    hyper_kernel(const __grid_constant__ HyperConnection op, int64_t logits_count) {
    __shared__ Hyper w;
    let_next_begin();
    wait_for_previous();
    const int64_t row = blockIdx.y;
    const int n = op.streams, lane = threadIdx.x;
    const float *logits = op.logits + row * logits_count;
    if (lane < n) {
        w.pre[lane] = sigmoid(load(logits + lane) * __ldg(op.scale) + __ldg(op.base + lane)) + op.eps;
        if (op.y) {
            const float gate = sigmoid(load(logits + n + lane) * __ldg(op.scale + 1) + __ldg(op.base + n + lane));
            w.post[lane] = op.magnitude > 0 ? op.magnitude * gate + op.eps : 2 * gate;
        }
    }
    if (op.y && op.magnitude > 0 && lane < n * n) w.mix[lane] = lane / n == lane % n;
    if (op.y && !(op.magnitude > 0) && lane < 32) hyper_mix(op, logits, w.mix);
    __syncthreads();
    float *x = op.x + row * n * op.width;
    for (int64_t e = (int64_t)blockIdx.x * BLOCK + threadIdx.x; e < op.width; e += (int64_t)gridDim.x * BLOCK) {
        float old[STREAMS_MAX];
#pragma unroll
        for (int i = 0; i < STREAMS_MAX; i++) old[i] = i < n ? load(x + i * op.width + e) : 0;
        if (!op.y) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < STREAMS_MAX; i++)
                if (i < n) sum += w.pre[i] * old[i];
            op.out[row * op.width + e] = sum;
            continue;
        }
        const float y = load(op.y + row * op.width + e);
        for (int j = 0; j < n; j++) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < STREAMS_MAX; i++)
                if (i < n) sum += w.mix[i * n + j] * old[i];
            x[j * op.width + e] = w.post[j] * y + sum;
        }
    }
}
extern "C" cudaError_t compressed_hyper(cudaStream_t stream, const HyperConnection *op) {
    return launch(stream, hyper_kernel, dim3(across(op->width), op->rows), BLOCK, 0, *op,
        hyper_logits(op->streams, op->iterations, op->magnitude));
}
