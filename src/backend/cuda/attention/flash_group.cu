/* Attention over f16 pages of MLA latents, and of heads that are wider than 256 or of an unusual width.
 *
 * Tokens are the rows of A = K and columns the columns of B = Qᵀ; then dims the rows of A = Vᵀ and columns those of
 * B = Pᵀ. A column is a query head of a row; all columns of a block have one kv head and share its loads. With MLA the
 * latents are keys as well as values: they are loaded once.
 *
 * Keys and values are cut by position into slices of 64 tokens, which a block takes in turn: the largest score so far,
 * p = 2^(score − largest) as f16, Σ p, o = Σ p·v. Decode rows are cut into spans of slices besides, at most
 * FLASH_GROUP_SPANS by the row's own length, which group_merge_kernel adds in order. So a row's bits depend on its
 * visible keys alone. */
#include "backend/cuda/attention/flash_group.cuh"
#include "backend/cuda/attention/heads.cuh"

enum { GROUP_TILES = GROUP_DIM_MAX / 16 / WARPS, GROUP_COLUMNS_MAX = 32 };
enum { OWN_KEY_MAX = 128 }; /* widest key of a row that the kernel prepares */
enum { SCORE_STRIDE = SLICE + 4, EXPONENTIAL_STRIDE = SLICE + 8, PAD = 8 }; /* for different banks */

/* The columns of a block: `heads` query heads of each of `rows` rows. */
struct GroupShape {
    int heads, rows;
    int parts;  /* blocks of columns that a kv head has in a row */
    int spans;  /* decode rows: spans that there is room for; 0: the block has all slices of its rows */
    int stages; /* slices that there is room for */
};

struct GroupLayout { /* offsets in shared memory, in bytes */
    int key_stride, value_stride, query_stride, stage, queries, scores, exponentials, all;
    __host__ __device__ GroupLayout(const Attend &a, int columns, int stages)
        : key_stride(2 * (a.head_dim + PAD)), value_stride(2 * (a.value_dim + PAD)),
          query_stride(2 * (a.head_dim + (a.q_latent ? a.value_dim : 0) + PAD)),
          stage(SLICE * (key_stride + value_stride)), queries(stages * stage), scores(queries + columns * query_stride),
          exponentials(scores + 2 * columns * SCORE_STRIDE * 4), all(exponentials + columns * EXPONENTIAL_STRIDE * 2) {}
};

__device__ __forceinline__ void matrices_four(uint32_t v[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(from));
}
__device__ __forceinline__ void matrices_four_turned(uint32_t v[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(from));
}
__device__ __forceinline__ void matrices_two(uint32_t v[2], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(from));
}
template <int N> __device__ __forceinline__ void slices_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* A head's query as f16. */
__device__ __forceinline__ void query_put(__half *to, const float *q, int width, float scale) {
    constexpr int TOGETHER = 4; /* loads under way */
    for (int first = 4 * (threadIdx.x % 32); first < width; first += 128 * TOGETHER) {
        float4 v[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            if (first + 128 * j < width) v[j] = __ldcg((const float4 *)(q + first + 128 * j));
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
            if (first + 128 * j < width)
                *(uint2 *)(to + first + 128 * j) =
                    make_uint2(packed(v[j].x * scale, v[j].y * scale), packed(v[j].z * scale, v[j].w * scale));
    }
}

/* Copies rows of a slice; row(i): where it is; NULL: zeros. */
template <class From>
__device__ __forceinline__ void rows_bring(uint32_t to, int stride, int width, const void *any, const From &row) {
#pragma unroll 2
    for (int i = threadIdx.x / 32; i < SLICE; i += WARPS) {
        const __half *from = row(i);
        for (int piece = threadIdx.x % 32; piece < width / 8; piece += 32)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + i * stride + piece * 16),
                         "l"(from ? from + piece * 8 : any), "r"(from ? 16 : 0)
                         : "memory");
    }
}

/* ---- a slice ---- */

/* What a thread has of its block's columns: the largest scores and sums of its warp's, results of its dims. */
template <int NT> struct Columns {
    static constexpr int COUNT = NT * 8;
    float most[NT], sum[NT], o[GROUP_TILES][NT][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            most[n] = NONE;
            sum[n] = 0;
#pragma unroll
            for (int i = 0; i < GROUP_TILES; i++) o[i][n][0] = o[i][n][1] = o[i][n][2] = o[i][n][3] = 0;
        }
    }
};

/* Scores of a slice to shared memory: a warp has 16 tokens and half of the dims. */
template <int NT>
__device__ __forceinline__ void slice_scores(const Attend &a, const GroupLayout &at, uint8_t *memory, int stage) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int latents = a.q_latent ? a.value_dim / 16 : 0, steps = latents + a.head_dim / 16;
    const int half = warp / 4, block = warp % 4, from = half * (steps / 2), to = half ? steps : steps / 2;
    const int token = block * 16 + lane % 16, dim = lane / 16 * 16;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(memory), keys = base + stage * at.stage;
    const uint32_t key = keys + token * at.key_stride + dim - latents * 32,
                   latent = keys + SLICE * at.key_stride + token * at.value_stride + dim,
                   query = base + at.queries + lane % 8 * at.query_stride + lane / 8 % 2 * 16;
    float s[NT][4] = {};
#pragma unroll 4
    for (int k = from; k < to; k++) {
        uint32_t x[4];
        matrices_four(x, (k < latents ? latent : key) + k * 32);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint32_t y[2];
            matrices_two(y, query + n * 8 * at.query_stride + k * 32);
            multiply(s[n], x, y[0], y[1]);
        }
    }
    float *score = (float *)(memory + at.scores) + half * Columns<NT>::COUNT * SCORE_STRIDE + block * 16 + g;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) score[(n * 8 + 2 * t + i % 2) * SCORE_STRIDE + i / 2 * 8] = s[n][i];
}

/* Their exponentials: a warp has NT columns, a lane two tokens. sees(column, i): whether it reads token i of the slice.
 * keep: [column] factors of the results so far. */
template <int NT, class Sees>
__device__ __forceinline__ void slice_exponentials(
    const Attend &a, const GroupLayout &at, uint8_t *memory, Columns<NT> &c, float *keep, const Sees &sees) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const int column = warp * NT + n;
        const float *score = (const float *)(memory + at.scores) + column * SCORE_STRIDE + lane;
        float s[2];
        bool on[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            on[i] = sees(column, lane + 32 * i);
            s[i] = score[32 * i] + score[Columns<NT>::COUNT * SCORE_STRIDE + 32 * i];
            if (a.softcap > 0) s[i] = capped(s[i], a.softcap);
            s[i] = on[i] ? s[i] : NONE;
        }
        const float largest = fmaxf(c.most[n], warp_max(fmaxf(s[0], s[1]))), kept = power_of_two(c.most[n] - largest);
        __half *p = (__half *)(memory + at.exponentials) + column * EXPONENTIAL_STRIDE + lane;
        float added = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const __half v = __float2half_rn(on[i] ? power_of_two(s[i] - largest) : 0);
            p[32 * i] = v;
            added += __half2float(v);
        }
        c.sum[n] = fmaf(c.sum[n], kept, warp_sum(added));
        c.most[n] = largest;
        if (lane == 0) keep[column] = kept;
    }
}

/* Adds the slice to the results: a warp has every eighth block of 16 dims. */
template <int NT>
__device__ __forceinline__ void slice_results(
    const Attend &a, const GroupLayout &at, const uint8_t *memory, int stage, Columns<NT> &c, const float *keep) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
    const int token = lane % 8 + lane / 16 * 8, dim = lane / 8 % 2 * 16;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(memory),
                   value = base + stage * at.stage + SLICE * at.key_stride + token * at.value_stride + dim,
                   p = base + at.exponentials + lane % 8 * (EXPONENTIAL_STRIDE * 2) + lane / 8 % 2 * 16;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const float2 kept = *(const float2 *)(keep + n * 8 + 2 * t);
#pragma unroll
        for (int i = 0; i < GROUP_TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) c.o[i][n][j] *= j % 2 ? kept.y : kept.x;
    }
#pragma unroll
    for (int k = 0; k < BLOCKS; k++) {
        uint32_t weights[NT][2];
#pragma unroll
        for (int n = 0; n < NT; n++) matrices_two(weights[n], p + n * 8 * (EXPONENTIAL_STRIDE * 2) + k * 32);
#pragma unroll
        for (int i = 0; i < GROUP_TILES; i++) {
            const int tile = warp + WARPS * i;
            if (tile * 16 >= a.value_dim) break;
            uint32_t x[4];
            matrices_four_turned(x, value + k * 16 * at.value_stride + tile * 32);
#pragma unroll
            for (int n = 0; n < NT; n++) multiply(c.o[i][n], x, weights[n][0], weights[n][1]);
        }
    }
}

/* Stores a column's results, c of 2t + c of eight, from `to` on. */
template <int NT>
__device__ __forceinline__ void results_put(const Attend &a, const Columns<NT> &own, int n, int c, float *to) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < GROUP_TILES; i++) {
        const int tile = warp + WARPS * i;
        if (tile * 16 >= a.value_dim) break;
        to[tile * 16 + g] = own.o[i][n][c];
        to[tile * 16 + g + 8] = own.o[i][n][2 + c];
    }
}
/* Those of a span of the call's row `row`; heads from `first` on. sums: of the warp's columns */
template <int NT>
__device__ __forceinline__ void span_put(
    const Attend &a, const Columns<NT> &c, int row, int spans, int first, int heads) {
    const SpanParts parts(a, row, spans);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, span = blockIdx.x;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const int head = warp * NT + n;
        if (lane == 0 && head < heads) parts.sums[span * a.heads + first + head] = make_float2(c.most[n], c.sum[n]);
    }
    float *to = parts.results + ((int64_t)span * a.heads + first) * a.value_dim;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int head = n * 8 + 2 * (lane % 4) + i;
            if (head < heads) results_put(a, c, n, i, to + (int64_t)head * a.value_dim);
        }
}

/* ---- rows that have been prepared ---- */

template <int NT>
__global__ void __launch_bounds__(BLOCK, NT > 2 ? 1 : 2)
    group_kernel(const __grid_constant__ Attend a, const __grid_constant__ GroupShape shape) {
    constexpr int COLUMNS = NT * 8;
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ int begins[COLUMNS], ends[COLUMNS], places[COLUMNS], positions[2][SLICE];
    __shared__ __align__(8) float keep[COLUMNS];
    __shared__ float2 factors[COLUMNS]; /* factors of results, and divisors */
    let_next_begin();
    wait_for_previous();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
    const int group = a.heads / a.kv_heads, kv_head = blockIdx.y / shape.parts;
    const int first_head = blockIdx.y % shape.parts * shape.heads, first_row = a.first_row + blockIdx.z * shape.rows;
    const int rows = min(shape.rows, a.first_row + a.rows - first_row);
    const GroupLayout at(a, COLUMNS, shape.stages);
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(memory);
    /* A column's row and query head; the head is −1 where there is none. */
    const auto row_of = [&](int column) { return column / shape.heads; };
    const auto head_of = [&](int column) {
        const int head = first_head + column % shape.heads;
        return row_of(column) < rows && head < group ? kv_head * group + head : -1;
    };
    if (shape.spans) { /* the row may have fewer spans */
        const Seen seen = keys_of(a, first_row);
        const int span = group_span(seen.end);
        if ((int)blockIdx.x < seen.first / span || (int)blockIdx.x * span >= seen.end) return;
    }
    for (int column = warp; column < COLUMNS; column += WARPS) {
        __half *to = (__half *)(memory + at.queries + column * at.query_stride);
        const int head = head_of(column);
        const int64_t index = (int64_t)(first_row + row_of(column)) * a.heads + head;
        if (head < 0) {
            for (int i = lane; i < at.query_stride / 2; i += 32) to[i] = __float2half_rn(0);
            continue;
        }
        if (a.q_latent) {
            query_put(to, a.q_latent + index * a.value_dim, a.value_dim, a.scale * LOG2E);
            to += a.value_dim;
        }
        query_put(to, a.q + index * a.head_dim, a.head_dim, a.scale * LOG2E);
    }
    const bool chosen = keys_chosen(a);

    /* A pass has the rows of one chunk. */
    for (int pass = 0, next_pass; pass < rows; pass = next_pass) {
        const int chunk = __ldcg(a.step.chunks + first_row + pass);
        int begin = INT_MAX, end = 0;
        for (next_pass = pass; next_pass < rows; next_pass++) {
            if (__ldcg(a.step.chunks + first_row + next_pass) != chunk) break;
            const Seen seen = keys_of(a, first_row + next_pass);
            begin = min(begin, seen.first);
            end = max(end, seen.end);
        }
        if (shape.spans) {
            const int span = group_span(end);
            begin = max(begin, (int)blockIdx.x * span);
            end = min(end, (int)(blockIdx.x + 1) * span);
        }
        __syncthreads();
        if (threadIdx.x < COLUMNS) {
            const int row = row_of(threadIdx.x);
            const bool on = head_of(threadIdx.x) >= 0 && row >= pass && row < next_pass;
            const Seen seen = on ? keys_of(a, first_row + row) : Seen{0, 0};
            places[threadIdx.x] = on ? __ldcg(a.step.places + first_row + row) : 0;
            begins[threadIdx.x] = max(seen.first, begin);
            ends[threadIdx.x] = min(seen.end, end);
        }
        if (begin >= end) continue;
        const int32_t *table = a.tables + (int64_t)chunk * a.table_stride;
        const auto bring = [&](int slice, int stage) {
            const int first = slice * SLICE;
            const uint32_t to = base + stage * at.stage;
            const __half *keys = (const __half *)head_at(a, table, chosen ? 0 : first, kv_head);
            if (chosen) {
                if (threadIdx.x < SLICE) {
                    const int key = first + threadIdx.x;
                    positions[stage][threadIdx.x] =
                        key >= begin && key < end ? key_position(a, first_row, kv_head, key) : -1;
                }
                __syncthreads();
            }
            const auto row = [&](int i, int width, int before) -> const __half * {
                if (chosen) {
                    const int position = positions[stage][i];
                    return position < 0 ? nullptr
                                        : (const __half *)head_at(a, table, position, kv_head) + before +
                            position % PAGE_TOKENS * width;
                }
                return first + i >= begin && first + i < end ? keys + before + (first % PAGE_TOKENS + i) * width
                                                             : nullptr;
            };
            rows_bring(to, at.key_stride, a.head_dim, a.pages, [&](int i) { return row(i, a.head_dim, 0); });
            rows_bring(to + SLICE * at.key_stride, at.value_stride, a.value_dim, a.pages,
                [&](int i) { return row(i, a.value_dim, PAGE_TOKENS * a.head_dim); });
            asm volatile("cp.async.commit_group;" ::: "memory");
        };
        const int last = (end - 1) / SLICE;
        Columns<NT> c;
        c.clear();
        for (int slice = begin / SLICE, next = slice, stage = 0; slice <= last;) {
            const bool more = next <= last && next - slice < shape.stages;
            if (more) bring(next, shape.stages > 1 ? next % 2 : 0), next++;
            if (next - slice < shape.stages && next <= last) continue; /* the first slices */
            if (next - slice > 1)
                slices_wait<1>();
            else
                slices_wait<0>();
            __syncthreads();
            stage = shape.stages > 1 ? slice % 2 : 0;
            slice_scores<NT>(a, at, memory, stage);
            __syncthreads();
            slice_exponentials(a, at, memory, c, keep, [&](int column, int i) {
                const int key = slice * SLICE + i, position = chosen ? positions[stage][i] : key;
                const bool on = key >= begins[column] && key < ends[column] && position >= 0;
                return on && key_in_pattern(a, places[column], head_of(column), position);
            });
            __syncthreads();
            slice_results(a, at, memory, stage, c, keep);
            __syncthreads();
            slice++;
        }
        if (shape.spans) {
            span_put(a, c, first_row - a.first_row, shape.spans, kv_head * group + first_head,
                min(shape.heads, group - first_head));
            continue;
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const int column = warp * NT + n, head = head_of(column);
            if (lane || head < 0) continue;
            const float2 sink = group_sink(a, head, c.most[n]);
            factors[column] = make_float2(sink.x, fmaf(c.sum[n], sink.x, sink.y));
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int column = n * 8 + 2 * t + i, head = head_of(column), row = row_of(column);
                if (head < 0 || row < pass || row >= next_pass) continue;
                const float2 own = factors[column];
#pragma unroll
                for (int k = 0; k < GROUP_TILES; k++) {
                    c.o[k][n][i] = c.o[k][n][i] * own.x / own.y;
                    c.o[k][n][2 + i] = c.o[k][n][2 + i] * own.x / own.y;
                }
                results_put(a, c, n, i, a.out + ((int64_t)(first_row + row) * a.heads + head) * a.value_dim);
            }
    }
}

/* ---- single decode rows of latents ---- */

/* A row's own key and latent, as they are appended. */
struct OwnRow {
    float2 rotations[OWN_KEY_MAX / 2];
    float sums[WARPS];
    __align__(16) __half key[OWN_KEY_MAX];
    __align__(16) __half value[GROUP_DIM_MAX];
};

/* Two elements of a head that are rotated together. */
__device__ __forceinline__ float2 pair_load(const Attend &a, const float *x, int i) {
    const int half = a.rope.dims / 2;
    return a.rope.interleaved ? make_float2(load(x + 2 * i), load(x + 2 * i + 1))
                              : make_float2(load(x + i), load(x + i + half));
}
/* A lane's first pair, on its way. */
__device__ __forceinline__ float2 pair_order(const Attend &a, const float *x) {
    const int lane = threadIdx.x % 32;
    return lane < a.rope.dims / 2 ? pair_load(a, x, lane) : make_float2(0, 0);
}
/* A warp's head of q or k as head_prepare() rotates it, times scale, as f16. */
__device__ __forceinline__ void head_rotate(
    const Attend &a, const float *x, float2 pair, const float2 *rotations, float scale, __half *to) {
    const int half = a.rope.dims / 2;
    for (int i = threadIdx.x % 32; i < half; i += 32) {
        const int one = a.rope.interleaved ? 2 * i : i, other = a.rope.interleaved ? 2 * i + 1 : i + half;
        if (i >= 32) pair = pair_load(a, x, i);
        const float u = pair.x * a.rope.scale, v = pair.y * a.rope.scale;
        const float2 turn = rotations[i];
        to[one] = __float2half_rn((u * turn.x - v * turn.y) * scale);
        to[other] = __float2half_rn((u * turn.y + v * turn.x) * scale);
    }
    for (int i = 2 * half + threadIdx.x % 32; i < a.head_dim; i += 32) to[i] = __float2half_rn(load(x + i) * scale);
}
/* Copies the own row to where its key and value belong. */
__device__ __forceinline__ void own_put(const Attend &a, const OwnRow &own, uint8_t *key, uint8_t *value) {
    for (int i = threadIdx.x; i < (a.head_dim + a.value_dim) / 8; i += BLOCK) {
        const int at = i - a.head_dim / 8;
        *(uint4 *)(at < 0 ? key + i * 16 : value + at * 16) =
            *(const uint4 *)(at < 0 ? own.key + i * 8 : own.value + at * 8);
    }
}

/* As group_kernel for rows of their own sequences, which it also prepares: it normalises the latent, rotates key and
 * queries, and appends. Latents of earlier steps are loaded before the previous kernel has ended. */
template <int NT>
__global__ void __launch_bounds__(BLOCK, NT > 2 ? 1 : 2)
    latents_kernel(const __grid_constant__ Attend a, const __grid_constant__ GroupShape shape) {
    constexpr int COLUMNS = NT * 8;
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ __align__(8) float keep[COLUMNS];
    __shared__ OwnRow own;
    const int warp = threadIdx.x / 32, row = a.first_row + blockIdx.z;
    const int first_head = blockIdx.y * shape.heads, heads = min(shape.heads, a.heads - first_head);
    const int place = __ldcg(a.step.places + row), chunk = __ldcg(a.step.chunks + row), span = group_span(place + 1);
    const int begin = max(window_begin(a, place), (int)blockIdx.x * span),
              end = min(place + 1, (int)(blockIdx.x + 1) * span);
    if (begin >= end) {
        wait_for_previous();
        return;
    }
    const GroupLayout at(a, COLUMNS, shape.stages);
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(memory);
    const int32_t *table = a.tables + (int64_t)chunk * a.table_stride;
    const bool here = place < end;
    const auto bring = [&](int slice, int stage) {
        const int first = slice * SLICE;
        const uint32_t to = base + stage * at.stage;
        const __half *keys = (const __half *)head_at(a, table, first, 0);
        const auto row_at = [&](int i, int width) {
            return first + i >= begin && first + i < min(end, place) ? keys + (first % PAGE_TOKENS + i) * width
                                                                     : nullptr;
        };
        rows_bring(to, at.key_stride, a.head_dim, a.pages, [&](int i) { return row_at(i, a.head_dim); });
        keys += PAGE_TOKENS * a.head_dim;
        rows_bring(to + SLICE * at.key_stride, at.value_stride, a.value_dim, a.pages,
            [&](int i) { return row_at(i, a.value_dim); });
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    const int last = (end - 1) / SLICE;
    Columns<NT> c;
    c.clear();
    float4 weight = make_float4(1, 1, 1, 1);
    /* The first round multiplies whatever is there, while the previous kernel computes: it brings the code. */
    bool first_round = true;
    for (int slice = begin / SLICE, next = slice, stage = 0; slice <= last;) {
        if (next <= last && next - slice < shape.stages) bring(next, shape.stages > 1 ? next % 2 : 0), next++;
        if (first_round) {
            if (here && a.v_norm.weight && 4 * threadIdx.x < a.value_dim)
                weight = __ldg((const float4 *)a.v_norm.weight + threadIdx.x);
            for (int i = threadIdx.x; i < a.rope.dims / 2; i += BLOCK) {
                float sine, cosine;
                sincosf(angle_of(a.rope, a.step, row, i), &sine, &cosine);
                own.rotations[i] = make_float2(cosine, sine);
            }
        } else {
            if (next - slice < shape.stages && next <= last) continue; /* the first slices */
            if (next - slice > 1)
                slices_wait<1>();
            else
                slices_wait<0>();
            stage = shape.stages > 1 ? slice % 2 : 0;
        }
        __syncthreads();
        if (!first_round && here && slice == place / SLICE) {
            uint8_t *keys = memory + stage * at.stage;
            own_put(a, own, keys + place % SLICE * at.key_stride,
                keys + SLICE * at.key_stride + place % SLICE * at.value_stride);
            __syncthreads();
        }
        slice_scores<NT>(a, at, memory, stage);
        __syncthreads();
        slice_exponentials(a, at, memory, c, keep, [&](int, int i) {
            const int position = slice * SLICE + i;
            return !first_round && position >= begin && position < end;
        });
        __syncthreads();
        slice_results(a, at, memory, stage, c, keep);
        __syncthreads();
        slice += !first_round;
        if (!first_round) continue;
        first_round = false;
        c.clear();
        wait_for_previous();
        let_next_begin();
        const Row<1> latent(a.v + (int64_t)row * a.value_dim, a.value_dim);
        const float *const key = a.k + (int64_t)row * a.head_dim;
        const float2 key_pair = here && warp == WARPS - 1 ? pair_order(a, key) : make_float2(0, 0);
        for (int column = warp; column < COLUMNS; column += WARPS) {
            __half *to = (__half *)(memory + at.queries + column * at.query_stride);
            const int64_t index = (int64_t)row * a.heads + first_head + min(column, heads - 1);
            const float *const query = a.q + index * a.q_stride;
            const float2 pair = pair_order(a, query);
            query_put(to, a.q_latent + index * a.value_dim, a.value_dim, a.scale * LOG2E);
            head_rotate(a, query, pair, own.rotations, a.scale * LOG2E, to + a.value_dim);
        }
        if (!here) continue;
        if (warp == WARPS - 1) head_rotate(a, key, key_pair, own.rotations, 1, own.key);
        const Scaling s = a.v_norm.width ? row_scaling(a.v_norm, own.sums, latent) : Scaling{0, 1};
        latent.each([&](int64_t i, float4 v) {
            *(uint2 *)(own.value + i) = make_uint2(packed(v.x * s.factor * weight.x, v.y * s.factor * weight.y),
                packed(v.z * s.factor * weight.z, v.w * s.factor * weight.w));
        });
        __syncthreads();
        if (blockIdx.y) continue;
        const int within = place % PAGE_TOKENS;
        uint8_t *keys = head_at(a, table, place, 0);
        own_put(a, own, keys + 2 * within * a.head_dim, keys + 2 * (PAGE_TOKENS * a.head_dim + within * a.value_dim));
        if (threadIdx.x == 0) energies_at(a, table, place)[within] = 0;
    }
    span_put(a, c, blockIdx.z, shape.spans, first_head, heads);
}

/* A block per decode row and head. The next kernel begins when the results are there, so that kernels of the next step
 * can load what this step has appended. */
enum { MERGE_BLOCK = GROUP_DIM_MAX / 4 };
__global__ void __launch_bounds__(MERGE_BLOCK) group_merge_kernel(const __grid_constant__ Attend a, int spans) {
    wait_for_previous();
    let_next_begin();
    const int head = blockIdx.x, row = a.first_row + blockIdx.y, at = 4 * threadIdx.x;
    const Seen seen = keys_of(a, row);
    if (seen.first >= seen.end) return; /* another kernel computes the row */
    const float4 v = spans_merge(a, seen, blockIdx.y, head, spans, at);
    if (at < a.value_dim) *(float4 *)(a.out + ((int64_t)row * a.heads + head) * a.value_dim + at) = v;
}

/* Spans of a row, at most. */
static int most_spans(const Attend &a) { return a.slices < FLASH_GROUP_SPANS ? a.slices : FLASH_GROUP_SPANS; }
extern "C" int flash_group_spans(const Attend *a) { return most_spans(*a); }
extern "C" size_t flash_group_floats(const Attend *a) { return (size_t)(most_spans(*a) * span_floats(*a)); }

extern "C" int flash_group_prepares(const Attend *a) {
    return a->q_latent && a->k && !a->keys.block && !a->v_norm.kind && ((uintptr_t)a->v_norm.weight & 15) == 0 &&
        a->kv_heads == 1 && a->head_dim <= OWN_KEY_MAX && a->rope.dims <= OWN_KEY_MAX;
}

enum { FIXED = 8 << 10 }; /* upper bound of a block's other shared memory */
extern "C" int flash_group_fits(const Attend *a) {
    return a->dtype == F16 && a->head_dim % 16 == 0 && a->value_dim % 16 == 0 && (a->head_dim >= 32 || a->q_latent) &&
        a->head_dim <= GROUP_DIM_MAX && a->value_dim <= GROUP_DIM_MAX &&
        GroupLayout(*a, GROUP_COLUMNS_MAX, 1).all + FIXED <= a->shared_bytes;
}

template <int NT> static cudaError_t group_launch(cudaStream_t stream, const Attend &a, GroupShape shape) {
    const auto kernel = a.prepared ? group_kernel<NT> : latents_kernel<NT>;
    const int two = GroupLayout(a, NT * 8, 2).all;
    shape.stages = NT > 2 && two + FIXED <= a.shared_bytes ? 2 : 1;
    const int bytes = GroupLayout(a, NT * 8, shape.stages).all;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, a.shared_bytes - FIXED);
    const dim3 grid(shape.spans ? shape.spans : 1, a.kv_heads * shape.parts, (a.rows + shape.rows - 1) / shape.rows);
    return error ? error : launch(stream, kernel, grid, BLOCK, (size_t)bytes, a, shape);
}
static cudaError_t group_run(cudaStream_t stream, const Attend &a, int tiles, const GroupShape &shape) {
    switch (tiles) {
    case 1: return group_launch<1>(stream, a, shape);
    case 2: return group_launch<2>(stream, a, shape);
    case 3: return group_launch<3>(stream, a, shape);
    default: return group_launch<4>(stream, a, shape);
    }
}

/* Few blocks have few columns each, so that there are more of them; a column's bits do not depend on that. */
enum { SMALL_GRID = 256 };
extern "C" cudaError_t flash_group_decode(cudaStream_t stream, const Attend *a) {
    const int group = a->heads / a->kv_heads, all = (group + 7) / 8, spans = most_spans(*a);
    const bool few = (int64_t)a->rows * spans * a->kv_heads * all <= SMALL_GRID;
    const int most = few ? 1 : GROUP_COLUMNS_MAX / 8, parts = (all + most - 1) / most,
              tiles = (all + parts - 1) / parts;
    const cudaError_t error = group_run(stream, *a, tiles, {tiles * 8, 1, parts, spans, 1});
    if (error) return error;
    if (a->unmerged) return cudaSuccess;
    return launch(stream, group_merge_kernel, dim3(a->heads, a->rows), MERGE_BLOCK, 0, *a, spans);
}
extern "C" cudaError_t flash_group_prefill(cudaStream_t stream, const Attend *a) {
    const int group = a->heads / a->kv_heads, all = (group + 7) / 8, most = GROUP_COLUMNS_MAX / 8;
    if (group > GROUP_COLUMNS_MAX / 2 || a->keys.block) {
        const int parts = (all + most - 1) / most, tiles = (all + parts - 1) / parts;
        return group_run(stream, *a, tiles, {tiles * 8, 1, parts, 0, 1});
    }
    return group_run(stream, *a, most, {group, GROUP_COLUMNS_MAX / group, 1, 0, 1});
}
