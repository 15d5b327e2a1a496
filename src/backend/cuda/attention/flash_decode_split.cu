/* Attention of short chunks (1 to 3 rows of a sequence): one kernel computes slices, a warp each; another folds them
 * (flash_slice.cuh). */
#include "backend/cuda/attention/flash_slice.cuh"

/* [rows][heads][slices] of o [HD], then as many pairs {most, sum} */
struct Parts {
    float *o;
    float2 *sums;
};
template <int HD> __device__ __forceinline__ Parts parts_of(const Attend &a) {
    return {a.partials, (float2 *)(a.partials + (int64_t)a.rows * a.heads * a.slices * HD)};
}

__device__ __forceinline__ void prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

template <int HD, int NT> __global__ void __launch_bounds__(128) slice_kernel(const __grid_constant__ Attend a) {
    let_next_begin();
    /* Before the wait only data of earlier steps is read: the step's numbers, and pages, prefetched into the L2. */
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, group = a.heads / a.kv_heads;
    const int kv_head = blockIdx.y, row = a.first_row + blockIdx.z, slice = blockIdx.x * 4 + threadIdx.x / 32;
    const Seen seen = seen_by(a, row);
    const int token = slice * SLICE;
    if (__ldcg(a.step.chunk_rows + row) >= TILE_CHUNK_LEAST /* tiles have it */ || token + SLICE <= seen.first ||
        token >= seen.end) {
        wait_for_previous();
        return;
    }
    const int32_t *table = a.tables + (int64_t)__ldcg(a.step.chunks + row) * a.table_stride;
    const __half *keys = half_head(a, table, token, kv_head) + token % PAGE_TOKENS * HD;
    const __half *values = keys + PAGE_TOKENS * HD;
#pragma unroll
    for (int i = 0; i < SLICE * HD / 64; i += 32) {
        prefetch(keys + (i + lane) * 64);
        prefetch(values + (i + lane) * 64);
    }
    wait_for_previous();
    const float *q = a.q + ((int64_t)row * a.heads + kv_head * group) * HD;
    const Sight sight = {{seen.first, seen.first}, {seen.end, seen.end}};

    float s[NT][BLOCKS][4];
    {
        Query<HD> query[NT];
#pragma unroll
        for (int n = 0; n < NT; n++)
            query_load<HD>(query[n], n * 8 + g < group ? q + (n * 8 + g) * HD : nullptr, a.scale * LOG2E, t);
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            uint4 k[HD / 16];
            keys_load<HD>(k,
                [&](int h, int i) { return __ldcg((const uint4 *)(keys + (b * 16 + g + h) * HD + 32 * i + 8 * t)); });
#pragma unroll
            for (int n = 0; n < NT; n++) scores_of<HD>(k, query[n], s[n][b]);
        }
    }
    uint32_t p[NT][BLOCKS][2];
    const Parts parts = parts_of<HD>(a);
    const int64_t at = ((int64_t)blockIdx.z * a.heads + kv_head * group) * a.slices + slice;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float most[2], sum[2];
        exponentials(s[n], sight, token + g, a.softcap, p[n], most, sum);
        if (g == 0)
            for (int c = 0; c < 2; c++)
                if (n * 8 + 2 * t + c < group)
                    parts.sums[at + (n * 8 + 2 * t + c) * (int64_t)a.slices] = make_float2(most[c], sum[c]);
    }
    /* Beyond the visible tokens pages may hold anything, also NaN; there p is 0, and the values must be 0, too.
     */
    const int last = min(seen.end, token + SLICE) - 1;
#pragma unroll
    for (int d = 0; d < HD / 64; d++) {
        float o[NT][4][4] = {};
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            Values v;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int in = b * 16 + 2 * t + i % 2 + i / 2 * 8;
                v.v[i] = make_uint4(0, 0, 0, 0);
                if (token + in <= last) v.v[i] = __ldcg((const uint4 *)(values + in * HD + 64 * d + 8 * g));
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                uint32_t numbers[4];
                values_numbers(v, e, numbers);
#pragma unroll
                for (int n = 0; n < NT; n++) multiply(o[n][e], numbers, p[n][b][0], p[n][b][1]);
            }
        }
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                if (n * 8 + 2 * t + c >= group) continue;
                float4 *to = (float4 *)(parts.o + (at + (n * 8 + 2 * t + c) * (int64_t)a.slices) * HD + 64 * d + 8 * g);
                to[0] = make_float4(o[n][0][c], o[n][0][c + 2], o[n][1][c], o[n][1][c + 2]);
                to[1] = make_float4(o[n][2][c], o[n][2][c + 2], o[n][3][c], o[n][3][c + 2]);
            }
    }
}

/* A block per row, head and 32 dims: a warp computes the factors of a batch of slices while the others load the sums of
 * these slices; then a lane has a dim. */
enum { FOLD_DIMS = 32, FOLD_BATCH = 256, FOLD_WARPS = 4 };
template <int HD> __global__ void __launch_bounds__(32 * FOLD_WARPS) fold_kernel(const __grid_constant__ Attend a) {
    __shared__ __align__(16) float values[FOLD_BATCH][FOLD_DIMS];
    __shared__ FoldFactors factors[FOLD_BATCH];
    let_next_begin();
    const int head = blockIdx.x, row = a.first_row + blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool mine = __ldcg(a.step.chunk_rows + row) < TILE_CHUNK_LEAST;
    const Seen seen = seen_by(a, row);
    wait_for_previous();
    if (!mine) return;
    const int first = seen.first / SLICE, end = (seen.end - 1) / SLICE + 1;
    const Parts parts = parts_of<HD>(a);
    const int64_t at = ((int64_t)blockIdx.y * a.heads + head) * a.slices;
    const float *from = parts.o + blockIdx.z * FOLD_DIMS;
    float most = a.sinks ? __ldg(a.sinks + head) * LOG2E : NONE, sum = a.sinks ? 1 : 0, o = 0;
    for (int batch = first; batch < end; batch += FOLD_BATCH) {
        const int count = min((int)FOLD_BATCH, end - batch);
        if (warp == 0) {
            for (int s = 0; s < count; s += 32) {
                const float2 part =
                    s + lane < count ? __ldcg(parts.sums + at + batch + s + lane) : make_float2(NONE, 0);
                const FoldFactors own = fold_factors_of(most, part, lane);
                if (s + lane < count) factors[s + lane] = own;
            }
        } else {
            constexpr int FOURS = FOLD_DIMS / 4;
#pragma unroll 8
            for (int i = threadIdx.x - 32; i < count * FOURS; i += 32 * (FOLD_WARPS - 1))
                *(float4 *)&values[i / FOURS][i % FOURS * 4] =
                    __ldcg((const float4 *)(from + (at + batch + i / FOURS) * HD) + i % FOURS);
        }
        __syncthreads();
        if (warp == 0)
#pragma unroll 8
            for (int s = 0; s < count; s++) fold(factors[s], values[s][lane], sum, o);
        __syncthreads();
    }
    if (warp == 0) a.out[((int64_t)row * a.heads + head) * HD + blockIdx.z * FOLD_DIMS + lane] = o / sum;
}

template <int HD, int NT> static cudaError_t scan_slices(cudaStream_t stream, const Attend &a) {
    const cudaError_t error =
        launch(stream, slice_kernel<HD, NT>, dim3((a.slices + 3) / 4, a.kv_heads, a.rows), 128, 0, a);
    return error ? error
                 : launch(stream, fold_kernel<HD>, dim3(a.heads, a.rows, HD / FOLD_DIMS), 32 * FOLD_WARPS, 0, a);
}

template <int HD> static cudaError_t scan(cudaStream_t stream, const Attend &a) {
    const int group = a.heads / a.kv_heads;
    if (group <= 8) return scan_slices<HD, 1>(stream, a);
    if (group <= 16) return scan_slices<HD, 2>(stream, a);
    return scan_slices<HD, 4>(stream, a);
}

cudaError_t attention_scan_tiles(cudaStream_t stream, const Attend &a) {
    return a.head_dim == 64 ? scan<64>(stream, a) : a.head_dim == 128 ? scan<128>(stream, a) : scan<256>(stream, a);
}
