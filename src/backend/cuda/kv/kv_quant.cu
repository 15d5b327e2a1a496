/* Quantisation and calibration of pages: a block takes the keys or values of a head of a page, or a head of one. */
#include "backend/cuda/kv/kv_quant.cuh"

extern "C" size_t kvq_head_bytes(int d, int group, int form, int values) {
    return (size_t)(kvq_shape(d, group, form, values).bytes + 63) / 64 * 64;
}

__device__ __forceinline__ float page_number(const uint8_t *p, int64_t i, int dtype) {
    if (dtype == F32) return __ldcg((const float *)p + i);
    const unsigned short bits = __ldcg((const unsigned short *)p + i);
    return dtype == F16 ? __half2float(__ushort_as_half(bits)) : __uint_as_float((uint32_t)bits << 16);
}

__device__ __forceinline__ const uint8_t *keys_of(const KvqLayer &l, const uint8_t *page, int head) {
    return page + (int64_t)head * PAGE_TOKENS * (l.head_dim + l.value_dim) * dtype_size(l.dtype);
}

/* The bias of element i of a key, whose RoPE pair is `pair`. */
__device__ __forceinline__ float bias_at(const KvqLayer &l, const float *bias, int pair, bool second, float2 turn) {
    const float a = __ldg(bias + pair_first(l.rope, pair)) * l.rope.scale,
                b = __ldg(bias + pair_second(l.rope, pair)) * l.rope.scale;
    return second ? a * turn.y + b * turn.x : a * turn.x - b * turn.y;
}
/* The RoPE pair of element i; −1: none. */
__device__ __forceinline__ int pair_of(const RopeParams &rope, int i, bool *second) {
    if (i >= rope.dims) return -1;
    *second = rope.interleaved ? i % 2 : i >= rope.dims / 2;
    return rope.interleaved ? i / 2 : i % (rope.dims / 2);
}
__device__ __forceinline__ bool taken_out(uint64_t pairs, int pair) {
    return pair >= 0 && pair < 64 && (pairs >> pair & 1);
}

/* ---- calibration ---- */

__device__ __forceinline__ double block_total(double v, double *shared) {
    shared[threadIdx.x] = v;
    __syncthreads();
    for (int i = BLOCK / 2; i; i /= 2) {
        if (threadIdx.x < i) shared[threadIdx.x] += shared[threadIdx.x + i];
        __syncthreads();
    }
    const double sum = shared[0];
    __syncthreads();
    return sum;
}

__global__ void __launch_bounds__(BLOCK) calibrate_kernel(const KvqJob *jobs, double *out) {
    __shared__ double shared[BLOCK];
    const KvqJob &job = jobs[blockIdx.x];
    const KvqLayer &l = job.layer;
    const int head = blockIdx.y;
    wait_for_previous();
    if (head >= l.kv_heads) return;
    const uint8_t *keys = keys_of(l, job.from, head);
    double whole = 0, centred = 0;
    for (int i = threadIdx.x; i < l.head_dim; i += BLOCK) {
        bool second = false;
        const int pair = l.bias && l.rope.dims ? pair_of(l.rope, i, &second) : -1;
        const bool on = taken_out(~(uint64_t)0, pair);
        float2 start = on ? pair_rotation(l.rope, pair, job.position) : make_float2(0, 0);
        double sum = 0, square = 0;
        for (int t = 0; t < PAGE_TOKENS; t++) {
            float v = page_number(keys, (int64_t)t * l.head_dim + i, l.dtype);
            if (on)
                v -= bias_at(
                    l, l.bias + head * l.head_dim, pair, second, rotated_twice(start, pair_rotation(l.rope, pair, t)));
            sum += v;
            square += (double)v * v;
        }
        whole += square;
        centred += square - sum * sum / PAGE_TOKENS;
    }
    const float *energies = (const float *)keys_of(l, job.from, l.kv_heads);
    const double energy = threadIdx.x < PAGE_TOKENS ? load(energies + head * PAGE_TOKENS + threadIdx.x) : 0;
    const double sums[3] = {block_total(centred, shared), block_total(whole, shared), block_total(energy, shared)};
    if (threadIdx.x < 3) out[((int64_t)blockIdx.x * gridDim.y + head) * 3 + threadIdx.x] = sums[threadIdx.x];
}
extern "C" cudaError_t kvq_calibrate(cudaStream_t stream, const KvqJob *jobs, int count, int heads, double *out) {
    return launch(stream, calibrate_kernel, dim3(count, heads), BLOCK, 0, jobs, out);
}

/* ---- quantisation ---- */

/* The code of a number, as compare() and divide() of kv_quant.c define it. */
__device__ __forceinline__ int kvq_code(const KvqEdges &edges, int form, int half, float z, float factor) {
    const float size = fabsf(z * factor);
    int below = 0;
    if (form == KVQ8)
        below = size < (float)(half - 1) ? (int)size : half - 1;
    else
        for (int e = 0; e < half - 1; e++) below += size > edges.edge[form][e];
    return z > 0 ? half + below : half - 1 - below;
}

/* The mean of a page's keys, rotated, as stored in the page. */
static __device__ void mean_of(
    const KvqJob &job, int head, uint64_t pairs, const Rotation &rotation, uint8_t *to, float *mean, float *spare) {
    const KvqLayer &l = job.layer;
    const uint8_t *keys = keys_of(l, job.from, head);
    for (int i = threadIdx.x; i < l.head_dim; i += BLOCK) {
        bool second = false;
        const int pair = pairs ? pair_of(l.rope, i, &second) : -1;
        const bool on = taken_out(pairs, pair);
        const float2 start = on ? pair_rotation(l.rope, pair, job.position) : make_float2(0, 0);
        float sum = 0;
#pragma unroll 16
        for (int t = 0; t < PAGE_TOKENS; t++) sum += page_number(keys, (int64_t)t * l.head_dim + i, l.dtype);
        if (on)
            for (int t = 0; t < PAGE_TOKENS; t++)
                sum -= bias_at(
                    l, l.bias + head * l.head_dim, pair, second, rotated_twice(start, pair_rotation(l.rope, pair, t)));
        mean[i] = sum / PAGE_TOKENS;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        warp_rotate(rotation, false, mean, spare);
        for (int i = threadIdx.x; i < l.head_dim; i += 32) {
            const __half half = __float2half_rn(mean[i]);
            ((__half *)to)[i] = half;
            mean[i] = __half2float(half);
        }
    }
    __syncthreads();
}

/* A warp quantises a group of a vector and stores its scale in `scale`. */
static __device__ void kvq_group(const KvqCodebooks &books, const KvqEdges &edges, int form, int dims, const float *z,
    uint8_t *codes, __half *scale) {
    const int lane = threadIdx.x % 32, half = form == KVQ8 ? 128 : 1 << (form + 1);
    float square = 0, most = 0, dot = 0;
    for (int i = lane; i < dims; i += 32) {
        square += z[i] * z[i];
        most = fmaxf(most, fabsf(z[i]));
    }
    square = warp_sum(square);
    most = warp_max(most);
    const float size = form == KVQ8 ? most : sqrtf(square);
    const float factor = size > 0 ? (form == KVQ8 ? (float)half : sqrtf((float)dims)) / size : 0;
    for (int i = lane; i < dims; i += 32) {
        const int code = kvq_code(edges, form, half, z[i], factor);
        const int level = form == KVQ8 ? code - 128 : book_level(books, form, code);
        codes[i] = (uint8_t)code;
        dot += z[i] * ((float)level + 0.5f);
    }
    const float s = square / warp_sum(dot);
    if (lane == 0) *scale = __float2half_rn(s >= 0 && s <= 65504.0f ? s : 0);
}

__global__ void __launch_bounds__(BLOCK) encode_kernel(const KvqJob *jobs, const Rotation *rotations,
    const __grid_constant__ KvqCodebooks books, const __grid_constant__ KvqEdges edges) {
    extern __shared__ __align__(16) uint8_t memory[];
    const KvqJob &job = jobs[blockIdx.x];
    const KvqLayer &l = job.layer;
    const int head = blockIdx.y, values = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    wait_for_previous();
    if (head >= l.kv_heads) return;
    const int d = values ? l.value_dim : l.head_dim;
    const KvqShape s = kvq_shape(d, values ? l.v_group : l.k_group, values ? job.v_form : job.k_form, values);
    const Rotation &rotation = rotations[values ? job.rotation_v : job.rotation_k];
    uint8_t *to = (values ? job.v_to : job.k_to) + (size_t)head * ((s.bytes + 63) / 64 * 64);
    float *mean = (float *)memory, *x = mean + KVQ_DIM_MAX + warp * 2 * KVQ_DIM_MAX, *spare = x + KVQ_DIM_MAX;
    uint8_t *codes = (uint8_t *)(mean + KVQ_DIM_MAX + WARPS * 2 * KVQ_DIM_MAX); /* [128][d] */
    const uint64_t pairs = !values && l.bias && l.rope.dims ? job.pairs[head] : 0;
    if (!values) mean_of(job, head, pairs, rotation, to, mean, spare);
    const uint8_t *from =
        keys_of(l, job.from, head) + (values ? (int64_t)PAGE_TOKENS * l.head_dim * dtype_size(l.dtype) : 0);
    __half *scales = (__half *)(to + s.scales);
    for (int t = warp; t < PAGE_TOKENS; t += WARPS) {
        for (int i = lane; i < d; i += 32) {
            bool second = false;
            const int pair = pairs ? pair_of(l.rope, i, &second) : -1;
            float v = page_number(from, (int64_t)t * d + i, l.dtype);
            if (taken_out(pairs, pair))
                v -= bias_at(l, l.bias + head * d, pair, second,
                    rotated_twice(pair_rotation(l.rope, pair, job.position), pair_rotation(l.rope, pair, t)));
            x[i] = v;
        }
        warp_rotate(rotation, false, x, spare);
        for (int i = lane; !values && i < d; i += 32) x[i] -= mean[i];
        __syncwarp();
        for (int g = 0; g < s.groups; g++)
            kvq_group(books, edges, s.form, s.group, x + g * s.group, codes + t * d + g * s.group,
                scales + g * PAGE_TOKENS + token_place(t));
        __syncwarp();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < s.tile_rows * s.tiles * 32; i += BLOCK) {
        const int row = i / (s.tiles * 32), tile = i / 32 % s.tiles, g = lane / 4, t = lane % 4;
        uint8_t part[16];
#pragma unroll
        for (int n = 0; n < 16; n++) {
            const int r = row * 16 + g + n / 4 % 2 * 8, c = tile * 32 + n / 8 * 16 + 4 * t + n % 4;
            /* Column c of 32 is token c / 4 + 8 · (c mod 4) of them. */
            const int token = values ? c / 32 * 32 + c % 32 / 4 + c % 4 * 8 : r, dim = values ? r : c;
            part[n] = dim < d ? codes[token * d + dim] : 0;
        }
        lane_pack(s, to + s.codes + row * s.row_bytes, tile, lane, part);
    }
}

extern "C" cudaError_t kvq_encode(cudaStream_t stream, const KvqJob *jobs, int count, int heads, int dims,
    const Rotation *rotations, const KvqCodebooks *books, const KvqEdges *edges) {
    const size_t shared = (1 + 2 * WARPS) * KVQ_DIM_MAX * sizeof(float) + (size_t)PAGE_TOKENS * dims;
    const cudaError_t error =
        cudaFuncSetAttribute(encode_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error) return error;
    return launch(stream, encode_kernel, dim3(count, heads, 2), BLOCK, shared, jobs, rotations, *books, *edges);
}
