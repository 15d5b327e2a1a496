/* Attention of single rows that see quantised pages: queries are rotated, each block computes a part of a row, the
 * parts are folded (kvq.cuh). */
#include "backend/cuda/attention/kvq.cuh"

extern "C" int kvq_is_fast(const Attend *a) {
    return !a->slopes && attention_has_tiles(*a) && (a->head_dim == 64 || a->head_dim == 128) &&
        a->heads / a->kv_heads <= KVQ_GROUP_MAX;
}
extern "C" size_t kvq_query_bytes(const Attend *a) {
    if (!kvq_is_fast(a)) return (size_t)a->head_dim * sizeof(float) + BIAS_PAIRS * sizeof(float2);
    return a->head_dim == 64 ? sizeof(KvqQuery<64>) : sizeof(KvqQuery<128>);
}
extern "C" size_t kvq_partial_floats(const Attend *a, const AttendQuant *c) {
    return (size_t)kvq_partial_count(*c) * (size_t)(a->value_dim + 2);
}

/* ---- queries ---- */

/* A warp has a head of a row. HD 0: any, as f32. */
template <int HD>
__global__ void __launch_bounds__(BLOCK)
    queries_kernel(const __grid_constant__ Attend a, const __grid_constant__ AttendQuant c) {
    __shared__ float shared[WARPS][2][KVQ_DIM_MAX];
    let_next_begin();
    const int row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y * WARPS + warp;
    const int end = __ldcg(c.ends + row), d = a.head_dim;
    wait_for_previous();
    if (!end || head >= a.heads) return;
    const int kv_head = head / (a.heads / a.kv_heads);
    const KvqRow seen = kvq_row(a, c, row);
    const float *q = a.q + ((int64_t)row * a.heads + head) * d;
    const size_t bytes = HD ? sizeof(KvqQuery < HD ? HD : 64 >) : d * sizeof(float) + BIAS_PAIRS * sizeof(float2);
    uint8_t *to = c.queries + ((int64_t)row * a.heads + head) * bytes;
    float *x = shared[warp][0];
    for (int i = lane; i < d; i += 32) x[i] = load(q + i) * (a.scale * LOG2E);
    __syncwarp();
    float2 *rotations = HD ? ((KvqQuery < HD ? HD : 64 > *)to)->rotations : (float2 *)(to + d * sizeof(float));
    uint64_t pairs = kvq_pairs(c, seen, kv_head);
    for (int n = 0; pairs; n++, pairs &= pairs - 1) {
        const int pair = __ffsll((long long)pairs) - 1;
        const float one = x[pair_first(c.rope, pair)], other = x[pair_second(c.rope, pair)];
        const float *bias = c.bias + (int64_t)kv_head * d;
        const float b = __ldg(bias + pair_first(c.rope, pair)), s = __ldg(bias + pair_second(c.rope, pair));
        if (lane == 0)
            rotations[n] = make_float2(c.rope.scale * (one * b + other * s), c.rope.scale * (other * b - one * s));
    }
    warp_rotate(c.k_rotation, false, x, shared[warp][1]);
    if constexpr (HD == 0) {
        for (int i = lane; i < d; i += 32) ((float *)to)[i] = x[i];
    } else {
        KvqQuery<HD> &out = *(KvqQuery<HD> *)to;
        float most = 0;
        int sum = 0;
#pragma unroll
        for (int i = lane; i < HD; i += 32) most = fmaxf(most, fabsf(x[i]));
        most = warp_max(most);
        const float by = most > 0 ? 127.0f / most : 0;
#pragma unroll
        for (int i = lane; i < HD; i += 32) {
            const int number = __float2int_rn(x[i] * by);
            sum += number;
            out.number[i] = (int8_t)number;
            out.half[i] = __float2half_rn(x[i]);
        }
#pragma unroll
        for (int k = 16; k; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
        if (lane == 0) out.unit = most / 127.0f, out.half_sum = 0.5f * (float)sum;
    }
}

extern "C" cudaError_t kvq_queries(cudaStream_t stream, const Attend *a, const AttendQuant *c) {
    const auto kernel = !kvq_is_fast(a) ? queries_kernel<0>
        : a->head_dim == 64             ? queries_kernel<64>
                                        : queries_kernel<128>;
    return launch(stream, kernel, dim3(a->step.rows, (a->heads + WARPS - 1) / WARPS), BLOCK, 0, *a, *c);
}

/* ---- parts of a row ---- */

enum { ROW_WARPS = 4, PLACES_STRIDE = 36 /* words of a column's weights: lanes find 32 banks */ };

struct RowShared {
    float2 largest[ROW_WARPS][8]; /* the warp's largest score; largest with its value's scale */
    float sums[ROW_WARPS][8];
    uint32_t weights[8][PLACES_STRIDE];
};

/* A warp's data of a page: keys of 32 tokens, values of HD / 4 dims. */
template <int HD, bool FOUR> struct KvqPagePart {
    static constexpr int PAIRS = HD / 64;
    KvqCodes<FOUR> keys[2][PAIRS], values[PAIRS][2];
    uint2 k_scales, v_scales;
};

template <int HD, bool FOUR>
__device__ __forceinline__ void keys_take(KvqPagePart<HD, FOUR> &p, const KvqShape &s, const uint8_t *keys) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    p.k_scales = __ldcg((const uint2 *)(keys + s.scales) + warp * 8 + lane / 4);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int i = 0; i < HD / 64; i++)
            kvq_load<FOUR>(p.keys[m][i], s.form, keys + s.codes + (2 * warp + m) * s.row_bytes, i, lane);
}
template <int HD, bool FOUR>
__device__ __forceinline__ void values_take(KvqPagePart<HD, FOUR> &p, const KvqShape &s, const uint8_t *values) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    p.v_scales = __ldcg((const uint2 *)(values + s.scales) + warp * 8 + lane / 4);
#pragma unroll
    for (int m = 0; m < HD / 64; m++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            kvq_load<FOUR>(p.values[m][i], s.form, values + s.codes + (HD / 64 * warp + m) * s.row_bytes, i, lane);
}

/* Pages first … last − 1 of a row and kv head, by four warps. */
template <int HD, bool FOUR>
static __device__ __forceinline__ void pages_of_row(const Attend &a, const AttendQuant &c, const KvqRow &seen,
    RowShared &shared, int row, int kv_head, int first, int last) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
              group = a.heads / a.kv_heads;
    const KvqShape ks = kvq_shape(HD, HD, FOUR ? KVQ4 : seen.k_form, 0),
                   vs = kvq_shape(HD, HD, FOUR ? KVQ4 : seen.v_form, 1);
    KvqPagePart<HD, FOUR> p;
    keys_take<HD, FOUR>(p, ks, kvq_keys(c, seen, first, kv_head, a.kv_heads));
    values_take<HD, FOUR>(p, vs, kvq_values(c, seen, first, kv_head, a.kv_heads));
    const uint64_t pairs = kvq_pairs(c, seen, kv_head);
    wait_for_previous();
    const KvqQuery<HD> *queries = (const KvqQuery<HD> *)c.queries + (int64_t)row * a.heads + kv_head * group;
    const KvqQuery<HD> *const own[3] = {2 * t < group ? queries + 2 * t : nullptr,
        2 * t + 1 < group ? queries + 2 * t + 1 : nullptr, g < group ? queries + g : nullptr};
    KvqQueryPart<HD> q;
    query_part<HD>(q, own);
    float means[4];
    mean_products<HD>(
        own[2],
        [&](int i) {
            return first + i < last ? (const __half *)kvq_keys(c, seen, first + i, kv_head, a.kv_heads) : nullptr;
        },
        means);
    const KvqPartials parts = kvq_partials(a, c);
    for (int page = first; page < last; page++) {
        const int from = (page - first) % 8 * 4 + t;
        const bool upper = page - first >= 8;
        const float mean[2] = {
            __shfl_sync(~0u, upper ? means[2] : means[0], from), __shfl_sync(~0u, upper ? means[3] : means[1], from)};
        int products[2][4] = {};
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int i = 0; i < HD / 32; i++) {
                uint32_t numbers[4];
                kvq_numbers<FOUR>(p.keys[m][i / 2], c.books, ks.form, i % 2, numbers);
                multiply_bytes(products[m], numbers, q.w[2 * i], q.w[2 * i + 1]);
            }
        float k_scale[4], v_scale[4], s[4][2];
        scales_of(p.k_scales, k_scale);
        scales_of(p.v_scales, v_scale);
        if (page + 1 < last) keys_take<HD, FOUR>(p, ks, kvq_keys(c, seen, page + 1, kv_head, a.kv_heads));
        score_tokens<HD>(products, k_scale, q, mean, s);
        if (pairs) {
            const float2 *const rotations[2] = {
                own[0] ? own[0]->rotations : nullptr, own[1] ? own[1]->rotations : nullptr};
            score_bias(c, pairs, rotations, page * PAGE_TOKENS, warp * WARP_TOKENS + g, s);
        }
        if (a.softcap > 0)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int n = 0; n < 2; n++) s[i][n] = capped(s[i][n], a.softcap);
        float most[2] = {NONE, NONE}, heaviest[2] = {NONE, NONE}, sum[2];
        largest_tokens(s, v_scale, most, heaviest);
        largest_lanes(most, heaviest);
        if (g == 0)
#pragma unroll
            for (int n = 0; n < 2; n++) shared.largest[warp][2 * t + n] = make_float2(most[n], heaviest[n]);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int w = 0; w < ROW_WARPS; w++) {
                const float2 of = shared.largest[w][2 * t + n];
                most[n] = fmaxf(most[n], of.x);
                heaviest[n] = fmaxf(heaviest[n], of.y);
            }
        uint32_t word[2];
        weigh_tokens(s, v_scale, most, heaviest, word, sum);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            shared.weights[2 * t + n][warp * 8 + g] = word[n];
            if (g == 0) shared.sums[warp][2 * t + n] = sum[n];
        }
        __syncthreads();
        uint32_t b[8];
        int ones[4] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) b[i] = shared.weights[g][4 * i + t];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t all[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
            multiply_bytes(ones, all, b[2 * i], b[2 * i + 1]);
        }
        const int64_t part =
            ((int64_t)(row - a.first_row) * parts.parts + c.full_slices + page - seen.sink / PAGE_TOKENS) * a.heads +
            kv_head * group + 2 * t;
        const float unit[2] = {weight_unit(most[0], heaviest[0]), weight_unit(most[1], heaviest[1])};
#pragma unroll
        for (int m = 0; m < HD / 64; m++) {
            int o[4] = {};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t numbers[4];
                kvq_numbers<FOUR>(p.values[m][i / 2], c.books, vs.form, i % 2, numbers);
                multiply_bytes(o, numbers, b[2 * i], b[2 * i + 1]);
            }
#pragma unroll
            for (int n = 0; n < 2; n++) {
                if (2 * t + n >= group) continue;
                float *to = parts.o + (part + n) * HD + warp * (HD / 4) + 16 * m + g;
                to[0] = weighed(o[n], ones[n], unit[n]);
                to[8] = weighed(o[2 + n], ones[n], unit[n]);
            }
        }
        if (page + 1 < last) values_take<HD, FOUR>(p, vs, kvq_values(c, seen, page + 1, kv_head, a.kv_heads));
        if (warp == 0 && g == 0)
#pragma unroll
            for (int n = 0; n < 2; n++)
                if (2 * t + n < group) {
                    float all = shared.sums[0][2 * t + n];
                    for (int w = 1; w < ROW_WARPS; w++) all += shared.sums[w][2 * t + n];
                    parts.sums[part + n] = make_float2(most[n], all);
                }
    }
}

/* A full-precision slice of a row, by a warp, as in slice_kernel. */
template <int HD>
static __device__ __forceinline__ void full_part(
    const Attend &a, const AttendQuant &c, const KvqRow &coded, int row, int kv_head, int part) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, group = a.heads / a.kv_heads;
    const Seen seen = seen_by(a, row);
    const int token = full_token(coded, part);
    if (part >= c.full_slices || token >= seen.end) return;
    const int32_t *table = a.tables + (int64_t)__ldcg(a.step.chunks + row) * a.table_stride;
    const __half *keys = half_head(a, table, token, kv_head) + token % PAGE_TOKENS * HD,
                 *values = keys + PAGE_TOKENS * HD;
    const float *q = a.q + ((int64_t)row * a.heads + kv_head * group) * HD;
    const Sight sight = {{0, 0}, {seen.end, seen.end}};
    float s[BLOCKS][4], most[2], sum[2];
    uint32_t p[BLOCKS][2];
    Query<HD> query;
    query_load<HD>(query, g < group ? q + g * HD : nullptr, a.scale * LOG2E, t);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        uint4 k[HD / 16];
        keys_load<HD>(
            k, [&](int h, int i) { return __ldcg((const uint4 *)(keys + (b * 16 + g + h) * HD + 32 * i + 8 * t)); });
        scores_of<HD>(k, query, s[b]);
    }
    exponentials(s, sight, token + g, a.softcap, p, most, sum);
    const KvqPartials parts = kvq_partials(a, c);
    const int64_t at = ((int64_t)(row - a.first_row) * parts.parts + part) * a.heads + kv_head * group + 2 * t;
    if (g == 0)
        for (int n = 0; n < 2; n++)
            if (2 * t + n < group) parts.sums[at + n] = make_float2(most[n], sum[n]);
    const int last = min(seen.end, token + SLICE) - 1;
#pragma unroll
    for (int d = 0; d < HD / 64; d++) {
        float o[4][4] = {};
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
                multiply(o[e], numbers, p[b][0], p[b][1]);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++) {
            if (2 * t + n >= group) continue;
            float4 *to = (float4 *)(parts.o + (at + n) * HD + 64 * d + 8 * g);
            to[0] = make_float4(o[0][n], o[0][n + 2], o[1][n], o[1][n + 2]);
            to[1] = make_float4(o[2][n], o[2][n + 2], o[3][n], o[3][n + 2]);
        }
    }
}

/* A block has some quantised pages of a row and kv head, or four full-precision slices. */
template <int HD, bool FOUR>
__global__ void __launch_bounds__(32 * ROW_WARPS)
    parts_kernel(const __grid_constant__ Attend a, const __grid_constant__ AttendQuant c, int spans, int span) {
    __shared__ RowShared shared;
    let_next_begin();
    const int row = a.first_row + blockIdx.z, kv_head = blockIdx.y;
    const KvqRow seen = kvq_row(a, c, row);
    if ((int)blockIdx.x < spans) {
        const int first = seen.sink / PAGE_TOKENS + blockIdx.x * span, last = min(first + span, seen.end / PAGE_TOKENS);
        if (first < last && __ldcg(a.step.chunk_rows + row) < TILE_CHUNK_LEAST)
            pages_of_row<HD, FOUR>(a, c, seen, shared, row, kv_head, first, last);
        else
            wait_for_previous();
    } else {
        wait_for_previous();
        if (seen.end) full_part<HD>(a, c, seen, row, kv_head, (blockIdx.x - spans) * ROW_WARPS + threadIdx.x / 32);
    }
}

enum { SPAN_PAGES_MAX = 16, BLOCKS_WANTED = 132 * 8 };
template <int HD> static cudaError_t parts(cudaStream_t stream, const Attend &a, const AttendQuant &c) {
    int span = 1;
    while (span < SPAN_PAGES_MAX && (int64_t)(c.pages / span) * a.kv_heads * a.rows > BLOCKS_WANTED) span *= 2;
    const int spans = (c.pages + span - 1) / span;
    const dim3 grid(spans + (c.full_slices + ROW_WARPS - 1) / ROW_WARPS, a.kv_heads, a.rows);
    return launch(
        stream, c.four ? parts_kernel<HD, true> : parts_kernel<HD, false>, grid, 32 * ROW_WARPS, 0, a, c, spans, span);
}

extern "C" cudaError_t kvq_rows(cudaStream_t stream, const Attend *a, const AttendQuant *c) {
    const cudaError_t error = !kvq_is_fast(a) ? kvq_generic(stream, *a, *c)
        : a->head_dim == 64                   ? parts<64>(stream, *a, *c)
                                              : parts<128>(stream, *a, *c);
    return error ? error : kvq_fold(stream, *a, *c);
}
