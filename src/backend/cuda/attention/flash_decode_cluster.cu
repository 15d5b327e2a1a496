/* Attention of steps with one row for each sequence, in one kernel: norms and RoPE of q and k, appending k and v,
 * slices and their folding (flash_slice.cuh). A cluster of blocks takes a row and a kv head; its blocks take pages in
 * turn. Keys and values of earlier steps are loaded before the previous kernel has ended. The bits are those of the
 * other slice kernels: a warp computes the scores of 16 tokens and its share of the dims in the same order. */
#include "backend/cuda/runtime/cluster.cuh"
#include "backend/cuda/attention/heads.cuh"
#include "backend/cuda/attention/flash_slice.cuh"

enum { PAGE_SLICES = PAGE_TOKENS / SLICE, SLICE_WARPS = WARPS / PAGE_SLICES, CLUSTER_MAX = 8 };
enum { GROUP_MAX = 8, PARTS_BYTES_MAX = 160 << 10 };

/* A warp's data of a page: keys of 16 tokens, values of 64 tokens and HD / 4 dims. */
template <int HD> struct Fragment {
    static constexpr int WORDS = HD / 4 / 8 / 2; /* words per lane for a token's dims: 1, 2 or 4 */
    uint4 keys[HD / 16];
    uint32_t values[BLOCKS][4][WORDS]; /* tokens 2t, 2t + 1, 2t + 8, 2t + 9 */
};

template <int WORDS> __device__ __forceinline__ void words_load(uint32_t w[WORDS], const __half *p) {
    if constexpr (WORDS == 1) {
        w[0] = __ldcg((const unsigned *)p);
    } else if constexpr (WORDS == 2) {
        const uint2 v = __ldcg((const uint2 *)p);
        w[0] = v.x, w[1] = v.y;
    } else {
        const uint4 v = __ldcg((const uint4 *)p);
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    }
}

/* last: the first token not in the cache yet. Dims of a warp of a slice: HD/4 · its number, then WORDS · 2 · g. */
template <int HD>
__device__ __forceinline__ void fragment_load(Fragment<HD> &f, const __half *page, int first, int last) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int own = warp * 16, slice = warp / SLICE_WARPS * SLICE, dims = warp % SLICE_WARPS * (HD / 4);
#pragma unroll
    for (int i = 0; i < HD / 32; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            f.keys[2 * i + h] = make_uint4(0, 0, 0, 0);
            if (first + own + g + 8 * h < last)
                f.keys[2 * i + h] = __ldcg((const uint4 *)(page + (own + g + 8 * h) * HD + 32 * i + 8 * t));
        }
    const __half *values = page + PAGE_TOKENS * HD + dims + Fragment<HD>::WORDS * 2 * g;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int in = slice + b * 16 + 2 * t + i % 2 + i / 2 * 8;
#pragma unroll
            for (int w = 0; w < Fragment<HD>::WORDS; w++) f.values[b][i][w] = 0;
            if (first + in < last) words_load<Fragment<HD>::WORDS>(f.values[b][i], values + in * HD);
        }
}

/* The row's own key and value, which lie in shared memory as halves. */
template <int HD>
__device__ __forceinline__ void fragment_put(Fragment<HD> &f, const __half *key, const __half *value, int token) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int own = warp * 16, slice = warp / SLICE_WARPS * SLICE, dims = warp % SLICE_WARPS * (HD / 4);
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (own + g + 8 * h == token)
#pragma unroll
            for (int i = 0; i < HD / 32; i++) f.keys[2 * i + h] = *(const uint4 *)(key + 32 * i + 8 * t);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (slice + b * 16 + 2 * t + i % 2 + i / 2 * 8 == token)
#pragma unroll
                for (int w = 0; w < Fragment<HD>::WORDS; w++)
                    f.values[b][i][w] = *(const uint32_t *)(value + dims + Fragment<HD>::WORDS * 2 * g + 2 * w);
}

template <int HD> struct RowShared {
    float heads[GROUP_MAX + 1][HD]; /* queries, key */
    __half key[HD], value[HD];
    float2 rotations[HD / 2];
    float scores[WARPS][16][8]; /* [slice of the page · 4 + block][token][column] */
    float energies[GROUP_MAX];
};

/* A warp's sums over a slice for a head, DIMS dims of it: a part. The blocks of the cluster fold parts in turn; each
 * receives its part of all slices: [part][slice] of this. */
template <int HD> struct __align__(16) Part {
    float o[HD / SLICE_WARPS];
    union {
        float2 most_sum;
        FoldFactors factors; /* in its place */
    };
};

template <int HD>
__global__ void __launch_bounds__(BLOCK, HD > 128 ? 1 : 2)
    row_kernel(const __grid_constant__ Attend a, int cluster, int slices) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    constexpr int WORDS = Fragment<HD>::WORDS, DIMS = HD / SLICE_WARPS;
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ __align__(16) RowShared<HD> s;
    let_next_begin();
    cluster_arrive();
    Part<HD> *parts = (Part<HD> *)memory;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int group = a.heads / a.kv_heads, rank = (int)cluster_rank();
    const int kv_head = blockIdx.y, row = blockIdx.z, place = __ldcg(a.step.places + row);
    const Seen seen = {window_begin(a, place), place + 1};
    const int first_page = seen.first / PAGE_TOKENS, end_page = place / PAGE_TOKENS + 1;
    const int32_t *table = a.tables + (int64_t)__ldcg(a.step.chunks + row) * a.table_stride;
    Fragment<HD> f;
    int page = first_page + rank;
    if (page < end_page)
        fragment_load<HD>(f, half_head(a, table, page * PAGE_TOKENS, kv_head), page * PAGE_TOKENS, place);
    if (threadIdx.x < a.rope.dims / 2) {
        float sn, cs;
        sincosf(angle_of(a.rope, a.step, row, threadIdx.x), &sn, &cs);
        s.rotations[threadIdx.x] = make_float2(cs, sn);
    }
    const bool last = (end_page - 1 - first_page) % cluster == rank; /* has the page of the row's own token */
    __half *own_key = (__half *)half_head(a, table, place, kv_head) + place % PAGE_TOKENS * HD,
           *own_value = own_key + PAGE_TOKENS * HD;
    __syncthreads();
    wait_for_previous();

#pragma unroll 1
    for (int h = warp; h < group + last; h += WARPS) {
        const bool key = h == group;
        const float *v = a.v + ((int64_t)row * a.kv_heads + kv_head) * HD;
        float *head = s.heads[h], value[HD / 32], square = 0;
        const Scaling whole = whole_scaling(a, row, key);
#pragma unroll
        for (int j = 0; j < HD / 32; j++) value[j] = key ? load(v + lane + 32 * j) : 0;
        head_take<HD>(a,
            key ? a.k + ((int64_t)row * a.kv_heads + kv_head) * HD
                : a.q + ((int64_t)row * a.heads + kv_head * group + h) * HD,
            key ? a.k_norm : a.q_norm, a.norm_full && (key ? a.k_norm : a.q_norm).width ? &whole : nullptr,
            (key ? kv_head : kv_head * group + h) * HD, s.rotations, head);
        if (!last) continue;
#pragma unroll
        for (int j = 0; j < HD / 32; j++) {
            const int i = lane + 32 * j;
            const float one = head[i] * a.scale;
            square += one * one;
            if (!key) continue;
            s.key[i] = own_key[i] = __float2half_rn(head[i]);
            s.value[i] = own_value[i] = __float2half_rn(value[j]);
        }
        square = warp_sum(square);
        if (lane == 0 && !key) s.energies[h] = square;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float energy = s.energies[0];
        for (int h = 1; h < group; h++) energy += s.energies[h];
        energies_at(a, table, place)[kv_head * PAGE_TOKENS + place % PAGE_TOKENS] = energy / (float)group;
    }
    Query<HD> query;
    query_load<HD, true>(query, g < group ? s.heads[g] : nullptr, a.scale * LOG2E, t);
    const Sight sight = {{seen.first, seen.first}, {seen.end, seen.end}};
    const int slice = warp / SLICE_WARPS, warp_part = warp % SLICE_WARPS;
    cluster_wait(); /* all have begun */
    for (; page < end_page; page += cluster) {
        if (page == end_page - 1) fragment_put<HD>(f, s.key, s.value, place % PAGE_TOKENS);
        float own[4];
        scores_of<HD>(f.keys, query, own);
        float *to = &s.scores[warp][g][2 * t];
        *(float2 *)to = make_float2(own[0], own[1]);
        *(float2 *)(to + 8 * 8) = make_float2(own[2], own[3]);
        __syncthreads();
        float scores[BLOCKS][4], most[2], sum[2];
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            const float *from = &s.scores[slice * BLOCKS + b][g][2 * t];
            const float2 low = *(const float2 *)from, high = *(const float2 *)(from + 8 * 8);
            scores[b][0] = low.x, scores[b][1] = low.y, scores[b][2] = high.x, scores[b][3] = high.y;
        }
        uint32_t p[BLOCKS][2];
        exponentials(scores, sight, page * PAGE_TOKENS + slice * SLICE + g, a.softcap, p, most, sum);
        float o[WORDS][4] = {};
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int e = 0; e < WORDS; e++) {
                uint32_t numbers[4];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const uint32_t one = f.values[b][2 * h][e], other = f.values[b][2 * h + 1][e];
                    numbers[2 * h] = __byte_perm(one, other, 0x5410);
                    numbers[2 * h + 1] = __byte_perm(one, other, 0x7632);
                }
                multiply(o[e], numbers, p[b][0], p[b][1]);
            }
        const int next = page + cluster;
        if (next < end_page)
            fragment_load<HD>(f, half_head(a, table, next * PAGE_TOKENS, kv_head), next * PAGE_TOKENS, place);
        const int index = (page - first_page) * PAGE_SLICES + slice;
#pragma unroll
        for (int c = 0; c < 2; c++)
            if (2 * t + c < group) {
                const int part = (2 * t + c) * SLICE_WARPS + warp_part;
                const Part<HD> *there = parts + part / cluster * slices + index;
                const uint32_t at = cluster_address(there, part % cluster);
#pragma unroll
                for (int e = 0; e < WORDS; e++)
                    cluster_store(at + (WORDS * 2 * g + 2 * e) * 4, make_float2(o[e][c], o[e][c + 2]));
                if (g == 0) cluster_store(at + DIMS * 4, make_float2(most[c], sum[c]));
            }
        __syncthreads();
    }
    cluster_arrive();
    cluster_wait();
    const int first_slice = seen.first / SLICE - first_page * PAGE_SLICES,
              end_slice = place / SLICE + 1 - first_page * PAGE_SLICES;
    const int own = (group * SLICE_WARPS - rank + cluster - 1) / cluster; /* parts that this block folds */
    for (int i = warp; i < own; i += WARPS) {
        Part<HD> *of = parts + i * slices;
        const int head = kv_head * group + (rank + i * cluster) / SLICE_WARPS;
        float most = a.sinks ? __ldg(a.sinks + head) * LOG2E : NONE;
        for (int at = first_slice; at < end_slice; at += 32) {
            const bool on = at + lane < end_slice;
            const FoldFactors f = fold_factors_of(most, on ? of[at + lane].most_sum : make_float2(NONE, 0), lane);
            if (on) of[at + lane].factors = f;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < own * DIMS; i += BLOCK) {
        const int part = rank + i / DIMS * cluster, head = kv_head * group + part / SLICE_WARPS, dim = i % DIMS;
        const Part<HD> *from = parts + i / DIMS * slices;
        float sum = a.sinks ? 1 : 0, o = 0;
#pragma unroll 4
        for (int at = first_slice; at < end_slice; at++) fold(from[at].factors, from[at].o[dim], sum, o);
        a.out[((int64_t)row * a.heads + head) * HD + part % SLICE_WARPS * DIMS + dim] = o / sum;
    }
#endif
}

static int pages_of(const Attend &a) { return (a.slices + PAGE_SLICES - 1) / PAGE_SLICES; }

template <int HD> static size_t parts_bytes(const Attend &a, int cluster) {
    const int parts = (a.heads / a.kv_heads * SLICE_WARPS + cluster - 1) / cluster;
    return (size_t)parts * (size_t)pages_of(a) * PAGE_SLICES * sizeof(Part<HD>);
}

/* Few rows: as many blocks as there are pages, if they go through few each; else other kernels have more
 * blocks. Many: a block goes through several pages, if its parts still let two blocks onto a multiprocessor.
 */
enum { BLOCKS_ENOUGH = 256, ROUNDS_OF_FEW = 2, PARTS_BYTES_USUAL = 96 << 10 };
template <int HD> static int cluster_of(const Attend &a) {
    int cluster = 1;
    while (cluster < CLUSTER_MAX && cluster < pages_of(a) &&
        (a.step.rows * a.kv_heads * cluster < BLOCKS_ENOUGH || parts_bytes<HD>(a, cluster) > PARTS_BYTES_USUAL))
        cluster *= 2;
    return cluster;
}

/* Bytes for parts beside a block's other shared memory; newer devices may have less of it than Hopper. */
template <int HD> static size_t parts_bytes_max(const Attend &a) {
    const int left = a.shared_bytes - (int)sizeof(RowShared<HD>);
    return left < PARTS_BYTES_MAX ? (left > 0 ? (size_t)left : 0) : (size_t)PARTS_BYTES_MAX;
}

template <int HD> static cudaError_t rows(cudaStream_t stream, const Attend &a) {
    const cudaError_t error =
        cudaFuncSetAttribute(row_kernel<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)parts_bytes_max<HD>(a));
    if (error) return error;
    const int cluster = cluster_of<HD>(a);
    return launch_clusters(stream, row_kernel<HD>, dim3(cluster, a.kv_heads, a.step.rows), BLOCK,
        parts_bytes<HD>(a, cluster), cluster, a, cluster, pages_of(a) * PAGE_SLICES);
}

template <int HD> static bool rows_fit(const Attend &a) {
    const int cluster = cluster_of<HD>(a);
    const bool enough = a.step.rows * a.kv_heads * cluster >= BLOCKS_ENOUGH;
    const size_t most = parts_bytes_max<HD>(a);
    return parts_bytes<HD>(a, CLUSTER_MAX) <= most && parts_bytes<HD>(a, cluster) <= most &&
        (enough || pages_of(a) <= cluster * ROUNDS_OF_FEW);
}
static bool row_fits(const Attend &a) {
    return a.head_dim == 64 ? rows_fit<64>(a) : a.head_dim == 128 ? rows_fit<128>(a) : rows_fit<256>(a);
}
static bool is_single(const Attend *a) {
    return a->single_rows && a->k && attention_has_tiles(*a) && a->heads / a->kv_heads <= GROUP_MAX;
}
/* For fewer rows clusters of blocks are faster, if they can hold all visible pages of a row. */
extern "C" int flash_decode_rows_fit(const Attend *a) {
    return is_single(a) && attention_fills_device(*a) && (a->step.rows * a->kv_heads >= BLOCKS_ENOUGH || !row_fits(*a));
}
extern "C" int flash_decode_cluster_fits(const Attend *a) { return is_single(a) && row_fits(*a); }

extern "C" cudaError_t flash_decode_cluster(cudaStream_t stream, const Attend *a) {
    return a->head_dim == 64 ? rows<64>(stream, *a)
        : a->head_dim == 128 ? rows<128>(stream, *a)
                             : rows<256>(stream, *a);
}
