/* Attention over pages of any type and width, in f32. Spans of ATTENTION_SPAN tokens are cut by absolute position and
 * merged in order, and a row reads only visible keys, so its bits do not depend on the rows beside it. A page holds,
 * for each kv head, K [token][head_dim], then V [token][value_dim]; behind all heads the energies [head][token]. */
#include "backend/cuda/attention/heads.cuh"

__device__ __forceinline__ float cached_at(const uint8_t *p, int64_t i, int dtype) {
    if (dtype == F32) return __ldcg((const float *)p + i);
    const unsigned short bits = __ldcg((const unsigned short *)p + i);
    return dtype == F16 ? __half2float(__ushort_as_half(bits)) : __uint_as_float((uint32_t)bits << 16);
}
__device__ __forceinline__ void cached_put(uint8_t *p, int64_t i, int dtype, float v) {
    if (dtype == F32)
        ((float *)p)[i] = v;
    else if (dtype == F16)
        ((__half *)p)[i] = __float2half_rn(v);
    else
        ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(v);
}
/* ---- preparing ---- */

/* Preparing overwrites heads, so norms over all of them are computed first, by a kernel of their own. */
__global__ void __launch_bounds__(BLOCK) attention_norms_kernel(const __grid_constant__ Attend a) {
    __shared__ float shared[WARPS];
    let_next_begin();
    const int64_t row = blockIdx.x, width = (int64_t)(blockIdx.y ? a.kv_heads : a.heads) * a.head_dim;
    const RowNorm &norm = blockIdx.y ? a.k_norm : a.q_norm;
    const float *x = blockIdx.y ? a.k : a.q;
    wait_for_previous();
    Scaling s = {0, 1};
    if (norm.width && x) s = row_scaling(norm, shared, Row<0>(x + row * width, width));
    if (threadIdx.x == 0) ((float2 *)a.whole)[2 * row + blockIdx.y] = make_float2(s.mean, s.factor);
}
extern "C" cudaError_t attention_norms(cudaStream_t stream, const Attend *a) {
    return launch(stream, attention_norms_kernel, dim3(a->step.rows, 2), BLOCK, 0, *a);
}

/* Brings a norm's weights, which would otherwise be waited for again and again. */
__device__ __forceinline__ void norm_touch(const RowNorm &norm, int width) {
    [[maybe_unused]] float unused;
    for (int i = threadIdx.x * 8; norm.width && norm.weight && i < width; i += BLOCK * 8)
        asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(unused) : "l"(norm.weight + i));
}

/* A block has a row's queries, key and value of a kv head; of wide heads, WARPS of these. */
__global__ void __launch_bounds__(BLOCK) attention_prepare_kernel(const __grid_constant__ Attend a) {
    __shared__ float2 rotations[PAIRS_MAX];
    __shared__ float heads[WARPS][HEAD_MAX], energies[WARPS];
    let_next_begin();
    const int row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < a.rope.dims / 2; i += BLOCK) {
        float s, c;
        sincosf(angle_of(a.rope, a.step, row, i), &s, &c);
        rotations[i] = make_float2(c, s);
    }
    if (!a.norm_full) {
        norm_touch(a.q_norm, a.head_dim);
        norm_touch(a.k_norm, a.head_dim);
    }
    const int place = __ldcg(a.step.places + row), group = a.heads / a.kv_heads, at = place % PAGE_TOKENS;
    const int32_t *table = a.tables + (int64_t)__ldcg(a.step.chunks + row) * a.table_stride;
    wait_for_previous();
    const int64_t q_width = (int64_t)a.heads * a.head_dim, k_width = (int64_t)a.kv_heads * a.head_dim;
    const Scaling q_whole = whole_scaling(a, row, 0), k_whole = whole_scaling(a, row, 1);
    __syncthreads();
    float *head = heads[warp];
    const int j = blockIdx.y;
    float energy = 0; /* sum over this warp's queries */
    const int each = WARPS * gridDim.z;
    for (int h = warp + WARPS * blockIdx.z; h < group + (a.k != nullptr); h += each) {
        if (h < group) {
            const int index = j * group + h;
            float *q = a.q + row * q_width + (int64_t)index * a.head_dim;
            head_prepare(a, q, a.q_norm, a.norm_full && a.q_norm.width ? &q_whole : nullptr, index * a.head_dim,
                rotations, head);
            float square = 0;
#pragma unroll 8
            for (int i = lane; i < a.head_dim; i += 32) {
                q[i] = head[i];
                square += head[i] * a.scale * (head[i] * a.scale);
            }
            energy += warp_sum(square);
        } else {
            head_prepare(a, a.k + row * k_width + (int64_t)j * a.head_dim, a.k_norm,
                a.norm_full && a.k_norm.width ? &k_whole : nullptr, j * a.head_dim, rotations, head);
            uint8_t *keys = head_at(a, table, place, j),
                    *values = keys + (int64_t)PAGE_TOKENS * a.head_dim * dtype_size(a.dtype);
            const float *v = a.v + ((int64_t)row * a.kv_heads + j) * a.value_dim;
#pragma unroll 8
            for (int i = lane; i < a.head_dim; i += 32)
                cached_put(keys, (int64_t)at * a.head_dim + i, a.dtype, head[i]);
#pragma unroll 8
            for (int i = lane; i < a.value_dim; i += 32)
                cached_put(values, (int64_t)at * a.value_dim + i, a.dtype, load(v + i));
        }
        __syncwarp();
    }
    if (!a.k) return;
    if (lane == 0) energies[warp] = energy;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++) energy += energies[w];
        /* Latents and wide heads are not quantised here. */
        energies_at(a, table, place)[j * PAGE_TOKENS + at] = a.q_latent || gridDim.z > 1 ? 0 : energy / (float)group;
    }
}

/* The same for f16 pages and common head shapes: a block has all of a row, a warp one head after another. HD 0: heads
 * of any multiple of 8 up to USUAL_DIM_MAX. */
enum { USUAL_HEADS_MAX = 256, USUAL_GROUP_MAX = WARPS, USUAL_DIM_MAX = 256 };
template <int HD> __global__ void __launch_bounds__(BLOCK) usual_prepare_kernel(const __grid_constant__ Attend a) {
    constexpr int MOST = HD ? HD : USUAL_DIM_MAX;
    const int width = HD ? HD : a.head_dim;
    __shared__ float2 rotations[MOST / 2];
    __shared__ float heads[WARPS][MOST], squares[USUAL_HEADS_MAX];
    let_next_begin();
    const int row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x < a.rope.dims / 2) {
        float s, c;
        sincosf(angle_of(a.rope, a.step, row, threadIdx.x), &s, &c);
        rotations[threadIdx.x] = make_float2(c, s);
    }
    const int place = __ldcg(a.step.places + row), group = a.heads / a.kv_heads, at = place % PAGE_TOKENS;
    const int32_t *table = a.tables + (int64_t)__ldcg(a.step.chunks + row) * a.table_stride;
    __syncthreads();
    wait_for_previous();
    float *head = heads[warp];
#pragma unroll 1
    for (int i = warp; i < a.heads + a.kv_heads; i += WARPS) {
        const bool key = i >= a.heads;
        const int j = i - a.heads;
        float *x =
            key ? (float *)a.k + ((int64_t)row * a.kv_heads + j) * width : a.q + ((int64_t)row * a.heads + i) * width;
        const RowNorm &norm = key ? a.k_norm : a.q_norm;
        if constexpr (HD > 0)
            head_take<HD>(a, x, norm, nullptr, 0, rotations, head);
        else
            head_prepare(a, x, norm, nullptr, 0, rotations, head);
        if (key) {
            __half *keys = (__half *)head_at(a, table, place, j) + at * width, *values = keys + PAGE_TOKENS * width;
            const float *v = a.v + ((int64_t)row * a.kv_heads + j) * width;
#pragma unroll
            for (int d = 2 * lane; d < width; d += 64) {
                const float2 value = __ldcg((const float2 *)(v + d));
                *(__half2 *)(keys + d) = __floats2half2_rn(head[d], head[d + 1]);
                *(__half2 *)(values + d) = __floats2half2_rn(value.x, value.y);
            }
        } else {
            float square = 0;
#pragma unroll
            for (int d = lane; d < width; d += 32) {
                x[d] = head[d];
                square += head[d] * a.scale * (head[d] * a.scale);
            }
            square = warp_sum(square);
            if (lane == 0) squares[i] = square;
        }
        __syncwarp();
    }
    __syncthreads();
    for (int j = threadIdx.x; j < a.kv_heads; j += BLOCK) {
        float energy = squares[j * group];
        for (int h = 1; h < group; h++) energy += squares[j * group + h];
        energies_at(a, table, place)[j * PAGE_TOKENS + at] = energy / (float)group;
    }
}

extern "C" cudaError_t attention_prepare(cudaStream_t stream, const Attend *a) {
    const bool usual = a->dtype == F16 && !a->q_latent && a->k && !a->norm_full && a->head_dim == a->value_dim &&
        a->head_dim % 8 == 0 && a->head_dim <= USUAL_DIM_MAX && a->heads <= USUAL_HEADS_MAX &&
        a->heads / a->kv_heads <= USUAL_GROUP_MAX;
    if (usual)
        return launch(stream,
            a->head_dim == 64        ? usual_prepare_kernel<64>
                : a->head_dim == 128 ? usual_prepare_kernel<128>
                : a->head_dim == 256 ? usual_prepare_kernel<256>
                                     : usual_prepare_kernel<0>,
            dim3(a->step.rows), BLOCK, 0, *a);
    const int each = a->heads / a->kv_heads + (a->k != nullptr);
    const bool wide = !a->q_latent && a->head_dim > USUAL_DIM_MAX;
    return launch(stream, attention_prepare_kernel,
        dim3(a->step.rows, a->kv_heads, wide ? (each + WARPS - 1) / WARPS : 1), BLOCK, 0, *a);
}

/* ---- scanning ---- */

/* q · key, in four chains. */
template <int DTYPE> __device__ __forceinline__ float score(const float *q, const uint8_t *key, int width) {
    float sum[4] = {0, 0, 0, 0};
    int i = 0;
    if (DTYPE != F32 && width % 8 == 0) {
        for (; i < width; i += 8) {
            const uint4 v = __ldcg((const uint4 *)(key + 2 * i));
            const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float2 f;
                if (DTYPE == F16) {
                    f = __half22float2(*(const __half2 *)&w[j]);
                } else {
                    f.x = __uint_as_float(w[j] << 16);
                    f.y = __uint_as_float(w[j] & 0xffff0000u);
                }
                sum[j] = fmaf(q[i + 2 * j + 1], f.y, fmaf(q[i + 2 * j], f.x, sum[j]));
            }
        }
    } else {
        for (; i < width; i++) sum[0] = fmaf(q[i], cached_at(key, i, DTYPE), sum[0]);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

__host__ __device__ static int query_floats(const Attend &a) { return a.head_dim + (a.q_latent ? a.value_dim : 0); }

/* A block has a row, a kv head and a span; a warp one query head after another; a lane a token in scores, and dims
 * lane, lane + 32, … of the values. */
template <int DTYPE, int DIMS> __global__ void __launch_bounds__(BLOCK) scan_kernel(const __grid_constant__ Attend a) {
    extern __shared__ float queries[]; /* [warp][head_dim, then value_dim of the MLA latent query] */
    let_next_begin();
    wait_for_previous();
    const int span = blockIdx.x, kv_head = blockIdx.y, row = a.first_row + blockIdx.z;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = a.heads / a.kv_heads;
    const Seen seen = keys_of(a, row);
    const int place = __ldcg(a.step.places + row);
    const bool chosen = keys_chosen(a);
    const int begin = max(seen.first, span * ATTENTION_SPAN), end = min(seen.end, (span + 1) * ATTENTION_SPAN);
    if (begin >= end) return; /* merge_kernel skips this span as well */
    const int32_t *table = a.tables + (int64_t)__ldcg(a.step.chunks + row) * a.table_stride;
    float *q = queries + warp * query_floats(a), *latent = q + a.head_dim;
    const int64_t key_bytes = (int64_t)a.head_dim * dtype_size(DTYPE),
                  value_bytes = (int64_t)a.value_dim * dtype_size(DTYPE);
    for (int h = warp; h < group; h += WARPS) {
        const int head = kv_head * group + h;
        for (int i = lane; i < a.head_dim; i += 32) q[i] = load(a.q + ((int64_t)row * a.heads + head) * a.head_dim + i);
        for (int i = lane; a.q_latent && i < a.value_dim; i += 32)
            latent[i] = load(a.q_latent + ((int64_t)row * a.heads + head) * a.value_dim + i);
        __syncwarp();
        float most = -INFINITY, sum = 0, o[DIMS];
#pragma unroll
        for (int d = 0; d < DIMS; d++) o[d] = 0;
        /* Chunks begin at multiples of CHUNK, however few of their keys are visible. */
        for (int chunk = begin / CHUNK * CHUNK; chunk < end; chunk += CHUNK) {
            const int key = chunk + lane;
            const int position = key >= begin && key < end ? key_position(a, row, kv_head, key) : -1;
            const bool on = position >= 0 && key_in_pattern(a, place, head, position);
            /* Keys that are not chosen lie in one page. */
            const uint8_t *keys = head_at(a, table, chosen ? max(position, 0) : chunk, kv_head);
            const uint8_t *values = keys + PAGE_TOKENS * key_bytes;
            const int at = position % PAGE_TOKENS;
            float s = -INFINITY;
            if (on) {
                s = score<DTYPE>(q, keys + at * key_bytes, a.head_dim);
                if (a.q_latent) s += score<DTYPE>(latent, values + at * value_bytes, a.value_dim);
                s *= a.scale;
                if (a.softcap > 0) s = a.softcap * tanhf(s / a.softcap);
                if (a.slopes) s += slope_bias(a, head, position, place);
            }
            const float next = fmaxf(most, warp_max(s)), fade = most == -INFINITY ? 0 : expf(most - next);
            if (next == -INFINITY) continue; /* the head reads none of these */
            const float p = on ? expf(s - next) : 0;
            most = next;
            sum = sum * fade + warp_sum(p);
#pragma unroll
            for (int d = 0; d < DIMS; d++) o[d] *= fade;
            const int from = max(begin - chunk, 0), to = min(end - chunk, (int)CHUNK);
            for (int j = from; j < to; j++) {
                const float weight = __shfl_sync(~0u, p, j);
                const int there = __shfl_sync(~0u, position, j);
                if (weight == 0) continue; /* it may not be there */
                const uint8_t *own = values + there % PAGE_TOKENS * value_bytes;
                if (chosen)
                    own =
                        head_at(a, table, there, kv_head) + PAGE_TOKENS * key_bytes + there % PAGE_TOKENS * value_bytes;
#pragma unroll
                for (int d = 0; d < DIMS; d++)
                    if (lane + 32 * d < a.value_dim) o[d] = fmaf(weight, cached_at(own, lane + 32 * d, DTYPE), o[d]);
            }
        }
        float *out = a.partials + (((int64_t)blockIdx.z * a.heads + head) * a.spans + span) * (2 + a.value_dim);
        if (lane == 0) out[0] = most, out[1] = sum;
#pragma unroll
        for (int d = 0; d < DIMS; d++)
            if (lane + 32 * d < a.value_dim) out[2 + lane + 32 * d] = o[d];
        __syncwarp();
    }
}

/* A block per row and head: its spans in order. */
__global__ void merge_kernel(const __grid_constant__ Attend a) {
    let_next_begin();
    wait_for_previous();
    const int head = blockIdx.x, row = a.first_row + blockIdx.y, stride = 2 + a.value_dim;
    const Seen seen = keys_of(a, row);
    const int first = seen.first / ATTENTION_SPAN, end = (seen.end - 1) / ATTENTION_SPAN + 1;
    const float *from = a.partials + ((int64_t)blockIdx.y * a.heads + head) * a.spans * stride;
    const float sink = a.sinks ? __ldg(a.sinks + head) : -INFINITY;
    float most = sink;
    for (int s = first; s < end; s++) most = fmaxf(most, load(from + (int64_t)s * stride));
    for (int i = threadIdx.x; i < a.value_dim; i += blockDim.x) {
        float sum = a.sinks ? expf(sink - most) : 0, o = 0;
        for (int s = first; s < end; s++) {
            const float *part = from + (int64_t)s * stride, weight = expf(load(part) - most);
            sum = fmaf(weight, load(part + 1), sum);
            o = fmaf(weight, load(part + 2 + i), o);
        }
        a.out[((int64_t)row * a.heads + head) * a.value_dim + i] = o / sum;
    }
}

template <int DTYPE> static cudaError_t scan(cudaStream_t stream, const Attend &a) {
    const dim3 grid(a.spans, a.kv_heads, a.rows);
    const size_t shared = (size_t)WARPS * query_floats(a) * sizeof(float);
    if (a.value_dim <= 64) return launch(stream, scan_kernel<DTYPE, 2>, grid, BLOCK, shared, a);
    if (a.value_dim <= 128) return launch(stream, scan_kernel<DTYPE, 4>, grid, BLOCK, shared, a);
    if (a.value_dim <= 256) return launch(stream, scan_kernel<DTYPE, 8>, grid, BLOCK, shared, a);
    return launch(stream, scan_kernel<DTYPE, HEAD_MAX / 32>, grid, BLOCK, shared, a);
}

extern "C" int attention_tiles_fit(const Attend *a) { return attention_has_tiles(*a); }
extern "C" int attention_tile_floats(const Attend *a) { return a->short_chunks ? a->slices * (a->value_dim + 2) : 0; }
extern "C" cudaError_t attention_tiles(cudaStream_t stream, const Attend *a) {
    cudaError_t done = cudaSuccess;
    if (a->short_chunks) done = attention_scan_tiles(stream, *a);
    if (!done && a->long_chunks && a->first_row == a->decode_rows) done = attention_chunk_tiles(stream, *a);
    return done;
}

extern "C" int attention_generic_floats(const Attend *a) { return a->spans * (a->value_dim + 2); }
extern "C" cudaError_t attention_generic(cudaStream_t stream, const Attend *a) {
    const cudaError_t error = a->dtype == F32 ? scan<F32>(stream, *a)
        : a->dtype == F16                     ? scan<F16>(stream, *a)
                                              : scan<BF16>(stream, *a);
    if (error) return error;
    return launch(stream, merge_kernel, dim3(a->heads, a->rows), a->value_dim <= 128 ? 128 : BLOCK, 0, *a);
}
