/* Quantised pages of long chunks: a tile of rows walks all of them. A block expands the codes of a page into levels
 * once, in shared memory; each of its warps takes some columns (kvq.cuh). */
#include "backend/cuda/attention/kvq.cuh"

enum { TILE_WARPS = 8, TILE_STRIDE = 36 };

template <int HD> struct PageShared {
    uint4 keys[PAGE_TOKENS / 16][HD / 32][32]; /* [16 tokens][32 dims][lane] */
    uint4 values[HD / 16][PAGE_TOKENS / 32][32];
    uint2 k_scales[PAGE_TOKENS / 4], v_scales[PAGE_TOKENS / 4];
};
template <int HD> struct TileShared {
    PageShared<HD> page[2];
    uint32_t weights[TILE_WARPS][8][TILE_STRIDE];
};

/* A warp's part of a page on its way: keys of 16 tokens, values of HD / 8 dims. */
template <int HD, bool FOUR> struct KvqPage {
    static constexpr int PAIRS = HD / 64;
    KvqCodes<FOUR> keys[PAIRS], values[PAIRS];
    uint32_t scales;
};
/* Values' pairs of tiles are assigned to the warps in order. */
template <int HD, bool FOUR>
__device__ __forceinline__ void page_bring(
    KvqPage<HD, FOUR> &p, const KvqShape &ks, const KvqShape &vs, const uint8_t *keys, const uint8_t *values) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < HD / 64; i++) {
        kvq_load<FOUR>(p.keys[i], ks.form, keys + ks.codes + warp * ks.row_bytes, i, lane);
        const int pair = warp * (HD / 64) + i;
        kvq_load<FOUR>(p.values[i], vs.form, values + vs.codes + pair / 2 * vs.row_bytes, pair % 2, lane);
    }
    if (threadIdx.x < 128)
        p.scales =
            __ldcg((const unsigned *)(threadIdx.x < 64 ? keys + ks.scales : values + vs.scales) + threadIdx.x % 64);
}
template <int HD, bool FOUR>
__device__ __forceinline__ void page_put(
    const KvqPage<HD, FOUR> &p, const KvqCodebooks &books, const KvqShape &ks, const KvqShape &vs, PageShared<HD> &to) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < HD / 64; i++) {
        const int pair = warp * (HD / 64) + i;
#pragma unroll
        for (int tile = 0; tile < 2; tile++) {
            uint32_t n[4];
            kvq_numbers<FOUR>(p.keys[i], books, ks.form, tile, n);
            to.keys[warp][2 * i + tile][lane] = make_uint4(n[0], n[1], n[2], n[3]);
            kvq_numbers<FOUR>(p.values[i], books, vs.form, tile, n);
            to.values[pair / 2][pair % 2 * 2 + tile][lane] = make_uint4(n[0], n[1], n[2], n[3]);
        }
    }
    if (threadIdx.x < 128) ((uint32_t *)(threadIdx.x < 64 ? to.k_scales : to.v_scales))[threadIdx.x % 64] = p.scales;
}

/* A warp's columns. */
template <int HD, int NT> struct Columns {
    KvqQueryPart<HD> q[NT];
    const KvqQuery<HD> *own[NT][3];
    int end[NT][2]; /* end of the visible pages of columns 2t and 2t + 1 */
    float means[NT][4];
    float most[NT][2], sum[NT][2], o[NT][HD / 16][4];
};

template <int HD, int NT>
__device__ __forceinline__ void page_fold(const Attend &a, const AttendQuant &c, uint64_t pairs,
    const PageShared<HD> &page, uint32_t (*weights)[TILE_STRIDE], int number, int first, Columns<HD, NT> &x) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const int from = (number - first) % 8 * 4 + t;
        const bool upper = (number - first) % 16 >= 8;
        const float mean[2] = {__shfl_sync(~0u, upper ? x.means[n][2] : x.means[n][0], from),
            __shfl_sync(~0u, upper ? x.means[n][3] : x.means[n][1], from)};
        float s[PAGE_TOKENS / WARP_TOKENS][4][2], most[2] = {NONE, NONE}, heaviest[2] = {NONE, NONE};
#pragma unroll
        for (int w = 0; w < PAGE_TOKENS / WARP_TOKENS; w++) {
            int products[2][4] = {};
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int i = 0; i < HD / 32; i++) {
                    const uint4 v = page.keys[2 * w + m][i][lane];
                    const uint32_t numbers[4] = {v.x, v.y, v.z, v.w};
                    multiply_bytes(products[m], numbers, x.q[n].w[2 * i], x.q[n].w[2 * i + 1]);
                }
            float k_scale[4], v_scale[4];
            scales_of(page.k_scales[w * 8 + g], k_scale);
            scales_of(page.v_scales[w * 8 + g], v_scale);
            score_tokens<HD>(products, k_scale, x.q[n], mean, s[w]);
            if (pairs) {
                const float2 *const rotations[2] = {
                    x.own[n][0] ? x.own[n][0]->rotations : nullptr, x.own[n][1] ? x.own[n][1]->rotations : nullptr};
                score_bias(c, pairs, rotations, number * PAGE_TOKENS, w * WARP_TOKENS + g, s[w]);
            }
            if (a.softcap > 0)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int k = 0; k < 2; k++) s[w][i][k] = capped(s[w][i][k], a.softcap);
            largest_tokens(s[w], v_scale, most, heaviest);
        }
        largest_lanes(most, heaviest);
        float sum[2] = {0, 0};
#pragma unroll
        for (int w = 0; w < PAGE_TOKENS / WARP_TOKENS; w++) {
            uint32_t word[2];
            float part[2], v_scale[4];
            scales_of(page.v_scales[w * 8 + g], v_scale);
            weigh_tokens(s[w], v_scale, most, heaviest, word, part);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                weights[2 * t + k][w * 8 + g] = word[k];
                sum[k] = w ? sum[k] + part[k] : part[k];
            }
        }
        __syncwarp();
        uint32_t b[8];
        int ones[4] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) b[i] = weights[g][4 * i + t];
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t all[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
            multiply_bytes(ones, all, b[2 * i], b[2 * i + 1]);
        }
        float unit[2], keep[2], take[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const bool on = number * PAGE_TOKENS < x.end[n][k];
            unit[k] = weight_unit(most[k], heaviest[k]);
            fold_factors(x.most[n][k], on ? most[k] : NONE, keep[k], take[k]);
            if (!on) take[k] = 0;
            x.sum[n][k] = folded(x.sum[n][k], keep[k], sum[k], take[k]);
        }
#pragma unroll
        for (int m = 0; m < HD / 16; m++) {
            int o[4] = {};
#pragma unroll
            for (int i = 0; i < PAGE_TOKENS / 32; i++) {
                const uint4 v = page.values[m][i][lane];
                const uint32_t numbers[4] = {v.x, v.y, v.z, v.w};
                multiply_bytes(o, numbers, b[2 * i], b[2 * i + 1]);
            }
#pragma unroll
            for (int k = 0; k < 4; k++)
                x.o[n][m][k] = folded(x.o[n][m][k], keep[k % 2], weighed(o[k], ones[k % 2], unit[k % 2]), take[k % 2]);
        }
    }
}

template <int HD, int NT, bool FOUR>
__global__ void __launch_bounds__(32 * TILE_WARPS)
    kvq_prefill_kernel(const __grid_constant__ Attend a, const __grid_constant__ AttendQuant c) {
    constexpr int COLUMNS = TILE_WARPS * NT * 8;
    extern __shared__ __align__(16) uint8_t memory[];
    TileShared<HD> &shared = *(TileShared<HD> *)memory;
    let_next_begin();
    wait_for_previous();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
              group = a.heads / a.kv_heads;
    const int rows = COLUMNS / group, kv_head = blockIdx.y, first_row = blockIdx.x;
    const int chunk_rows = __ldcg(a.step.chunk_rows + first_row), within = __ldcg(a.step.chunk_offsets + first_row);
    if (chunk_rows < TILE_CHUNK_LEAST || within % rows) return;
    const int count = min(rows, chunk_rows - within);
    const KvqRow seen = kvq_row(a, c, first_row + count - 1); /* the last sees the most */
    if (!seen.end) return;
    const int first = seen.sink / PAGE_TOKENS, last = seen.end / PAGE_TOKENS;
    const uint64_t pairs = kvq_pairs(c, seen, kv_head);
    const KvqShape ks = kvq_shape(HD, HD, FOUR ? KVQ4 : seen.k_form, 0),
                   vs = kvq_shape(HD, HD, FOUR ? KVQ4 : seen.v_form, 1);

    Columns<HD, NT> x;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const int base = (warp * NT + n) * 8;
        const int columns[3] = {base + 2 * t, base + 2 * t + 1, base + g};
#pragma unroll
        for (int k = 0; k < 3; k++) {
            const int row = first_row + columns[k] / group;
            const bool on = columns[k] / group < count;
            x.own[n][k] = on
                ? (const KvqQuery<HD> *)c.queries + (int64_t)row * a.heads + kv_head * group + columns[k] % group
                : nullptr;
            if (k < 2) {
                x.end[n][k] = on ? __ldcg(c.ends + row) : 0;
                x.most[n][k] = NONE, x.sum[n][k] = 0;
                if (!x.end[n][k]) x.own[n][k] = nullptr; /* its query has not been rotated */
            } else if (on && !__ldcg(c.ends + row)) {
                x.own[n][k] = nullptr;
            }
        }
        query_part<HD>(x.q[n], x.own[n]);
#pragma unroll
        for (int m = 0; m < HD / 16; m++) x.o[n][m][0] = x.o[n][m][1] = x.o[n][m][2] = x.o[n][m][3] = 0;
    }
    KvqPage<HD, FOUR> codes;
    const auto bring = [&](int page) {
        if (page < last)
            page_bring<HD, FOUR>(codes, ks, vs, kvq_keys(c, seen, page, kv_head, a.kv_heads),
                kvq_values(c, seen, page, kv_head, a.kv_heads));
    };
    bring(first);
    page_put<HD, FOUR>(codes, c.books, ks, vs, shared.page[0]);
    __syncthreads();
    for (int page = first; page < last; page++) {
        bring(page + 1);
        if ((page - first) % 16 == 0)
#pragma unroll
            for (int n = 0; n < NT; n++)
                mean_products<HD>(
                    x.own[n][2],
                    [&](int i) {
                        return page + i < last ? (const __half *)kvq_keys(c, seen, page + i, kv_head, a.kv_heads)
                                               : nullptr;
                    },
                    x.means[n]);
        page_fold<HD, NT>(a, c, pairs, shared.page[(page - first) % 2], shared.weights[warp], page, first, x);
        if (page + 1 < last) page_put<HD, FOUR>(codes, c.books, ks, vs, shared.page[(page + 1 - first) % 2]);
        __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int column = (warp * NT + n) * 8 + 2 * t + k;
            if (column / group >= count) continue;
            float *to = c.folded +
                ((int64_t)(first_row + column / group) * a.heads + kv_head * group + column % group) * (HD + 2);
            if (g == 0) to[HD] = x.most[n][k], to[HD + 1] = x.sum[n][k];
#pragma unroll
            for (int m = 0; m < HD / 16; m++) to[16 * m + g] = x.o[n][m][k], to[16 * m + 8 + g] = x.o[n][m][k + 2];
        }
}

template <int HD, int NT> static cudaError_t tiles(cudaStream_t stream, const Attend &a, const AttendQuant &c) {
    const auto kernel = c.four ? kvq_prefill_kernel<HD, NT, true> : kvq_prefill_kernel<HD, NT, false>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(TileShared<HD>));
    return error ? error
                 : launch(stream, kernel, dim3(a.step.rows, a.kv_heads), 32 * TILE_WARPS, sizeof(TileShared<HD>), a, c);
}

extern "C" cudaError_t kvq_chunks(cudaStream_t stream, const Attend *a, const AttendQuant *c) {
    return a->head_dim == 64 ? tiles<64, 1>(stream, *a, *c) : tiles<128, 1>(stream, *a, *c);
}
