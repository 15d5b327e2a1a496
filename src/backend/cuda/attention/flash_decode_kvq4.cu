/* Attention of decode rows that see KV_Q4 pages (kvq.cuh), in one kernel. A block takes the quantised pages of a span,
 * a warp one of them in two pieces of 64 tokens; or a full-precision page, a warp a piece of it (flash_decode.cuh).
 * Quantised pages are folded in order in a chain of their own, in rotated space; full-precision pages in another; pages
 * into spans, spans into the row. At the end the rotation is undone and the two chains are added. */
#include "backend/cuda/attention/kvq.cuh"
#include "backend/cuda/attention/flash_decode.cuh"

enum { KVQ_PIECE = 64, KVQ_PIECES = PAGE_TOKENS / KVQ_PIECE, BYTES_STRIDE_MORE = 16 };

template <int HD> struct KvqShared {
    RowHeads<HD, KVQ_GROUP_MAX> heads;
    int8_t numbers[KVQ_GROUP_MAX][HD + BYTES_STRIDE_MORE]; /* rotated queries */
    __half rotated[KVQ_GROUP_MAX][RowHeads<HD, KVQ_GROUP_MAX>::QUERY_STRIDE];
    float units[KVQ_GROUP_MAX], half_sums[KVQ_GROUP_MAX];
    /* Data of the warps' quantised pages: */
    __half means[WARPS][HD];
    uint2 k_scales[WARPS][PAGE_TOKENS / 4], v_scales[WARPS][PAGE_TOKENS / 4];
    float2 sums[WARPS][KVQ_GROUP_MAX];
    int last;
};

/* The ring of a warp with a quantised page: a slot holds the keys or values of 64 tokens. */
template <int HD> constexpr int KVQ_SLOTS = (12 << 10) / SLOT_BYTES<HD>;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* Sums of integers begin as the bits of 1.5 · 2^23, so that they end as a float that is so much larger. */
static constexpr int SUM_BASE = 0x4b400000;
__device__ __forceinline__ float sum_of(int c) { return __int_as_float(c) - 12582912.0f; }

/* x ← R x, or Rᵀ x, dims lane + 32j in v[j]. */
template <int HD> __device__ __forceinline__ void lanes_rotate(const Rotation &r, bool back, float v[HD / 32]) {
    const int lane = threadIdx.x % 32;
    const float scale = 1.0f / sqrtf((float)HD);
#pragma unroll
    for (int j = 0; j < HD / 32; j++) v[j] = __uint_as_float(__float_as_uint(v[j]) ^ (r.signs[back][j] >> lane) << 31);
#pragma unroll
    for (int stride = 1; stride < 32; stride *= 2)
#pragma unroll
        for (int j = 0; j < HD / 32; j++) {
            const float other = __shfl_xor_sync(~0u, v[j], stride);
            v[j] = lane & stride ? other - v[j] : v[j] + other;
        }
#pragma unroll
    for (int stride = 1; stride < HD / 32; stride *= 2)
#pragma unroll
        for (int j = 0; j < HD / 32; j++)
            if (!(j & stride)) {
                const float one = v[j], other = v[j + stride];
                v[j] = one + other;
                v[j + stride] = one - other;
            }
#pragma unroll
    for (int j = 0; j < HD / 32; j++)
        v[j] = scale * __uint_as_float(__float_as_uint(v[j]) ^ (r.signs[!back][j] >> lane) << 31);
}

template <int HD> struct KvqRing {
    const uint8_t *slots, *keys, *values; /* codes */
    uint32_t address;
    int next, out;
    __device__ __forceinline__ void bring() {
        if (next < 2 * KVQ_PIECES) {
            const int lane = threadIdx.x % 32, piece = next / 2;
            const uint32_t to = address + next % KVQ_SLOTS<HD> * SLOT_BYTES<HD> + lane * 16;
            const uint8_t *from = lane * 16 + (next % 2 ? values + piece * 512 : keys + piece * (HD / 16) * 512);
            const int step = next % 2 ? KVQ_PIECES * 512 : 512;
#pragma unroll
            for (int i = 0; i < HD / 16; i++) copy_sixteen(to + i * 512, from + i * step, true);
            next++;
        }
        copies_commit();
    }
    /* k[row of 16 tokens][two tiles of dims] or v[row of 16 dims][two tiles of tokens] */
    __device__ __forceinline__ void take(uint4 w[HD / 16]) {
        copies_wait<KVQ_SLOTS<HD> - 1>();
        const uint4 *at = (const uint4 *)(slots + out % KVQ_SLOTS<HD> * SLOT_BYTES<HD>)+(int)threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < HD / 16; i++) w[i] = at[i * 32];
        out++;
        __syncwarp();
        bring();
    }
};

/* The products of the page's mean with the queries of columns 2t and 2t + 1. */
template <int HD> __device__ __forceinline__ void page_mean(const __half *mean, const __half *query, float of[2]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float s[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < HD / 32; i++) {
        uint4 k = make_uint4(0, 0, 0, 0), q = k;
        if (g == 0) k = *(const uint4 *)(mean + 32 * i + 8 * t);
        if (query) q = *(const uint4 *)(query + 32 * i + 8 * t);
        const uint32_t low[4] = {k.x, 0, k.y, 0}, high[4] = {k.z, 0, k.w, 0};
        multiply(s, low, q.x, q.y);
        multiply(s, high, q.z, q.w);
    }
    of[0] = __shfl_sync(~0u, s[0], t);
    of[1] = __shfl_sync(~0u, s[1], t);
}

/* Words of row g, columns 2t and 2t + 1, to those of column g, rows t and t + 4. */
__device__ __forceinline__ void words_turn(const uint32_t w[2], uint32_t &low, uint32_t &high) {
    const int lane = threadIdx.x % 32, from = (lane / 8 + lane / 4 % 2 * 4) * 4 + lane % 4;
    const uint32_t lower = transposed(__shfl_sync(~0u, __byte_perm(w[0], w[1], 0x5410), from)),
                   upper = transposed(__shfl_sync(~0u, __byte_perm(w[0], w[1], 0x7632), from));
    low = __byte_perm(lower, upper, 0x5410);
    high = __byte_perm(lower, upper, 0x7632);
}

template <int HD>
__device__ __forceinline__ void kvq_page_fold(
    KvqRing<HD> &ring, const KvqCodebooks &books, KvqShared<HD> &s, float cap, int group, float *part, float2 *sums) {
    constexpr int WIDE = HD / 64; /* pairs of tiles in a row of keys */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t q[HD / 16];
    float unit[2], half_sum[2], mean[2], most[2] = {NONE, NONE}, sum[2] = {0, 0}, o[HD / 16][4];
#pragma unroll
    for (int i = 0; i < HD / 16; i++) {
        q[i] = g < group ? *(const uint32_t *)&s.numbers[g][16 * i + 4 * t] : 0;
        o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        unit[n] = 2 * t + n < group ? s.units[2 * t + n] : 0;
        half_sum[n] = 2 * t + n < group ? s.half_sums[2 * t + n] * unit[n] : 0;
    }
    copies_wait<KVQ_SLOTS<HD> - 1>(); /* scales and means are in the first group of copies */
    page_mean<HD>(s.means[warp], g < group ? s.rotated[g] : nullptr, mean);
#pragma unroll 1
    for (int piece = 0; piece < KVQ_PIECES; piece++) {
        float scores[4][4];
        uint4 w[HD / 16];
        ring.take(w);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            int products[4] = {SUM_BASE, SUM_BASE, SUM_BASE, SUM_BASE};
#pragma unroll
            for (int i = 0; i < HD / 32; i++) {
                const uint4 &of = w[m * WIDE + i / 2];
                uint32_t a[4];
                looked_up(books.words[KVQ4], i % 2 ? of.z : of.x, a[0], a[1]);
                looked_up(books.words[KVQ4], i % 2 ? of.w : of.y, a[2], a[3]);
                multiply_bytes(products, a, q[2 * i], q[2 * i + 1]);
            }
            const uint2 scales = s.k_scales[warp][(piece * 2 + m / 2) * 8 + g];
            const float2 pair = __half22float2(as_half2(m % 2 ? scales.y : scales.x));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float of =
                    fmaf(i / 2 ? pair.y : pair.x, fmaf(sum_of(products[i]), unit[i % 2], half_sum[i % 2]), mean[i % 2]);
                scores[m][i] = cap > 0 ? score_capped(of, cap) : of;
            }
        }
        float v_scale[8], largest[2] = {NONE, NONE}, heaviest[2] = {NONE, NONE};
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const uint2 scales = s.v_scales[warp][(piece * 2 + m / 2) * 8 + g];
            const float2 pair = __half22float2(as_half2(m % 2 ? scales.y : scales.x));
            v_scale[2 * m] = pair.x, v_scale[2 * m + 1] = pair.y;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float logarithm = logarithm_of_two(v_scale[i]);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float of = scores[i / 2][i % 2 * 2 + n];
                largest[n] = fmaxf(largest[n], of);
                heaviest[n] = fmaxf(heaviest[n], of + logarithm);
            }
        }
        largest_lanes(largest, heaviest);
        float keep[2], take[2];
        uint32_t words[2][2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float to_bytes = 127.0f * power_of_two(largest[n] - heaviest[n]);
            float all = 0;
#pragma unroll
            for (int w = 0; w < 2; w++) {
                uint32_t x[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float p = power_of_two(scores[2 * w + i / 2][i % 2 * 2 + n] - largest[n]);
                    all += p;
                    x[i] = __float_as_uint(fmaf(p, v_scale[4 * w + i] * to_bytes, 12582912.0f));
                }
                words[w][n] = __byte_perm(__byte_perm(x[0], x[1], 0x0040), __byte_perm(x[2], x[3], 0x0040), 0x5410);
            }
            fold_factors(most[n], largest[n], keep[n], take[n]);
            sum[n] = folded(sum[n], keep[n], all, take[n]);
        }
        uint32_t b[4];
#pragma unroll
        for (int w = 0; w < 2; w++) words_turn(words[w], b[2 * w], b[2 * w + 1]);
        int ones[4] = {0, 0, 0, 0};
        const uint32_t all[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
        multiply_bytes(ones, all, b[0], b[1]);
        multiply_bytes(ones, all, b[2], b[3]);
        float more[2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            take[n] *= weight_unit(largest[n], heaviest[n]);
            more[n] = 0.5f * (float)ones[n] * take[n];
        }
        ring.take(w);
#pragma unroll
        for (int d = 0; d < HD / 16; d++) {
            int products[4] = {SUM_BASE, SUM_BASE, SUM_BASE, SUM_BASE};
            uint32_t a[4];
            looked_up(books.words[KVQ4], w[d].x, a[0], a[1]);
            looked_up(books.words[KVQ4], w[d].y, a[2], a[3]);
            multiply_bytes(products, a, b[0], b[1]);
            looked_up(books.words[KVQ4], w[d].z, a[0], a[1]);
            looked_up(books.words[KVQ4], w[d].w, a[2], a[3]);
            multiply_bytes(products, a, b[2], b[3]);
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[d][i] = fmaf(sum_of(products[i]), take[i % 2], fmaf(o[d][i], keep[i % 2], more[i % 2]));
        }
    }
    copies_wait<0>();
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int x = 4; x < 32; x *= 2) sum[n] += __shfl_xor_sync(~0u, sum[n], x);
        const int head = 2 * t + n;
        if (head >= group) continue;
        if (g == 0) sums[head] = make_float2(most[n], sum[n]);
#pragma unroll
        for (int d = 0; d < HD / 16; d++) {
            part[head * HD + 16 * d + g] = o[d][n];
            part[head * HD + 16 * d + g + 8] = o[d][2 + n];
        }
    }
}

/* The pages of a row: quantised ones, and full-precision ones before and behind them, which are numbered consecutively.
 */
struct RowPages {
    int codes, ends, end; /* [codes, ends) are quantised */
    __device__ __forceinline__ int full() const { return codes + end - ends; }
    __device__ __forceinline__ int full_page(int n) const { return n < codes ? n : ends + n - codes; }
    __device__ __forceinline__ int full_number(int page) const { return page < codes ? page : codes + page - ends; }
};

/* Computes a piece of a full-precision page, whose keys and values lie in the ring: its partial result, stored there,
 * and its sums. */
template <int HD>
__device__ __forceinline__ void piece_fold(
    float *ring, int token, int place, const Query<HD> &query, float cap, int group, float2 *sums) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const bool on[2] = {token + g < place, token + g + 8 < place};
    float scores[4], most[2], sum[2], o[HD / 64][4][4] = {};
    uint32_t weights[2];
    uint4 k[HD / 16];
    Values v[HD / 64];
    copies_wait<0>();
    slot_keys<HD>(k, (const uint8_t *)ring);
    slot_values<HD>(v, (const uint8_t *)ring + SLOT_BYTES<HD>);
    __syncwarp();
    piece_scores<HD>(k, query, scores);
    piece_exponentials(scores, on, cap, weights, most, sum);
#pragma unroll
    for (int d = 0; d < HD / 64; d++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t numbers[4];
            values_numbers(v[d], e, numbers);
            multiply(o[d][e], numbers, weights[0], weights[1]);
        }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        if (2 * t + n >= group) continue;
        if (g == 0) sums[2 * t + n] = make_float2(most[n], sum[n]);
        part_put<HD>(ring + (2 * t + n) * HD, o, n);
    }
}
#endif

/* Blocks: one per span, then one per full-precision page, of which a warp has a piece. */
template <int HD>
__global__ void __launch_bounds__(BLOCK, 2)
    flash_decode_kvq4_kernel(const __grid_constant__ Attend a, const __grid_constant__ AttendQuant c, int most_spans) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    constexpr int PAIRS = 8 * HD / 2 / BLOCK;
    constexpr int SLOTS = KVQ_SLOTS<HD>, RING_FLOATS = SLOTS * SLOT_BYTES<HD> / 4;
    extern __shared__ __align__(128) float rings[]; /* one ring per warp, later its partial result [head][dim] */
    __shared__ __align__(16) KvqShared<HD> s;
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int group = a.heads / a.kv_heads, kv_head = blockIdx.y, row = a.first_row + blockIdx.z;
    const int place = __ldcg(a.step.places + row), span = blockIdx.x, number = span - most_spans;
    const KvqRow seen = kvq_row(a, c, row);
    const RowPages pages = {seen.sink / PAGE_TOKENS, seen.end / PAGE_TOKENS, (place + PAGE_TOKENS - 1) / PAGE_TOKENS};
    const int first_span = pages.codes / SPAN_PAGES, end_span = (pages.ends + SPAN_PAGES - 1) / SPAN_PAGES;
    const bool full = number >= 0;
    if (!seen.end || seen.k_form != KVQ4 || seen.v_form != KVQ4 ||
        (full ? number >= pages.full() : span < first_span || span >= end_span)) {
        wait_for_previous();
        return;
    }
    const int32_t *table = a.tables + (int64_t)__ldcg(a.step.chunks + row) * a.table_stride;
    float *ring = rings + warp * RING_FLOATS;
    const uint32_t ring_address = shared_address(ring);
    /* The existing ones of the block's eight parts. */
    const int own_page = full ? pages.full_page(number) : span * SPAN_PAGES + warp;
    const int from = full ? 0 : max(pages.codes - span * SPAN_PAGES, 0);
    const int to = full ? (min(place - own_page * PAGE_TOKENS, (int)PAGE_TOKENS) + PIECE - 1) / PIECE
                        : min(pages.ends - span * SPAN_PAGES, (int)SPAN_PAGES);
    const bool there = warp >= from && warp < to;
    const int token = own_page * PAGE_TOKENS + warp * PIECE; /* in a full-precision page */

    KvqRing<HD> codes = {(const uint8_t *)ring, nullptr, nullptr, ring_address, 0, 0};
    const auto full_bring = [&]() {
        const __half *from = half_head(a, table, token, kv_head) + warp * PIECE * HD;
        slot_bring<HD>(ring_address, from, place - token, false);
        slot_bring<HD>(ring_address + SLOT_BYTES<HD>, from + PAGE_TOKENS * HD, place - token, true);
        copies_commit();
    };
    if (!full && there) {
        const uint8_t *keys = kvq_keys(c, seen, own_page, kv_head, a.kv_heads),
                      *values = kvq_values(c, seen, own_page, kv_head, a.kv_heads);
        const KvqShape ks = kvq_shape(HD, HD, KVQ4, 0), vs = kvq_shape(HD, HD, KVQ4, 1);
        codes.keys = keys + ks.codes;
        codes.values = values + vs.codes;
        if (lane < HD / 8) copy_sixteen(shared_address(s.means[warp]) + lane * 16, keys + lane * 16, true);
        copy_sixteen(shared_address(lane < 16 ? s.k_scales[warp] : s.v_scales[warp]) + lane % 16 * 16,
            (lane < 16 ? keys + ks.scales : values + vs.scales) + lane % 16 * 16, true);
#pragma unroll 1
        for (int i = 0; i < SLOTS - 1; i++) codes.bring();
    } else if (there && !a.prepared) {
        full_bring();
    }
    __half *own_key = (__half *)half_head(a, table, place, kv_head) + place % PAGE_TOKENS * HD;
    float *energy = energies_at(a, table, place) + kv_head * PAGE_TOKENS + place % PAGE_TOKENS;
    const bool appends = a.k && !a.prepared && span == first_span;
    heads_begin(a, row, kv_head, group, RopeReady(a, row), s.heads);
    __syncthreads();
    wait_for_previous();
    if (full && there && a.prepared) full_bring();
    /* The last slot is free until heads are done. */
    float *spare = ring + (SLOTS - 1) * SLOT_BYTES<HD> / 4;
    heads_take(a, own_key, row, kv_head, group, appends, s.heads, spare, [&](int h, float *x) {
        if (full) return;
        float most = 0;
        int sum = 0;
        lanes_rotate<HD>(c.k_rotation, false, x);
#pragma unroll
        for (int j = 0; j < HD / 32; j++) most = fmaxf(most, fabsf(x[j]));
        most = warp_max(most);
        const float by = most > 0 ? 127.0f / most : 0;
#pragma unroll
        for (int j = 0; j < HD / 32; j++) {
            const int number = __float2int_rn(x[j] * by);
            sum += number;
            s.numbers[h][lane + 32 * j] = (int8_t)number;
            s.rotated[h][lane + 32 * j] = __float2half_rn(x[j]);
        }
        sum = __reduce_add_sync(~0u, sum);
        if (lane == 0) s.units[h] = most / 127.0f, s.half_sums[h] = 0.5f * (float)sum;
    });
    const float cap = a.softcap * LOG2E;
    if (there) {
        if (full) {
            Query<HD> query;
            heads_query(s.heads, 0, group, query);
            piece_fold<HD>(ring, token, place, query, cap, group, s.sums[warp]);
        } else {
            codes.bring();
            kvq_page_fold<HD>(codes, c.books, s, cap, group, ring, s.sums[warp]);
        }
    }
    if (appends) heads_energy(s.heads, group, energy);
    heads_own(s.heads, group, cap);
    __syncthreads();

    /* The block's parts in order go to memory; the last block to arrive has all. */
    const int stride = left_floats<HD>(group);
    const int64_t rows = (int64_t)blockIdx.z * a.kv_heads + kv_head;
    float *all = a.partials + rows * gridDim.x * stride, *mine = all + span * stride;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int at = 2 * (i * BLOCK + threadIdx.x), head = at / HD;
        if (head >= group) continue;
        Chain chain = {NONE, 0, make_float2(0, 0)};
        take_eight(
            chain, from, to, [&](int w) { return s.sums[w][head]; },
            [&](int w) { return *(const float2 *)(rings + w * RING_FLOATS + at); });
        __stcg((float2 *)(mine + at), chain.o);
        if (at % HD == 0) __stcg((float2 *)(mine + group * HD) + head, make_float2(chain.most, chain.sum));
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned *counter = a.arrivals + rows;
        s.last = atomicAdd(counter, 1u) == (unsigned)(end_span - first_span + pages.full()) - 1;
        if (s.last) *counter = 0;
    }
    __syncthreads();
    if (!s.last) return;
    __threadfence();
    Chain chain[2][PAIRS]; /* quantised, full precision */
#pragma unroll
    for (int i = 0; i < PAIRS; i++) chain[0][i] = chain[1][i] = {NONE, 0, make_float2(0, 0)};
    const int batch = WARPS * RING_FLOATS / stride;
    for (int first = first_span; first < end_span; first += batch) {
        const int count = min(batch, end_span - first);
        __syncthreads();
        parts_bring(rings, all + first * stride, count * stride);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int at = 2 * (i * BLOCK + threadIdx.x), head = at / HD;
            if (head >= group) continue;
#pragma unroll 1
            for (int w = 0; w < count; w += 8) {
                const auto from = [&](int n) { return rings + min(w + n, count - 1) * stride; };
                take_eight(
                    chain[0][i], 0, count - w, [&](int n) { return ((const float2 *)(from(n) + group * HD))[head]; },
                    [&](int n) { return *(const float2 *)(from(n) + at); });
            }
        }
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int at = 2 * (i * BLOCK + threadIdx.x), head = at / HD;
        if (head >= group) continue;
        const auto sums = [&](int w) { return __ldcg((const float2 *)(all + w * stride + group * HD) + head); };
        const auto part = [&](int w) { return __ldcg((const float2 *)(all + w * stride + at)); };
        /* Full-precision pages are folded into their spans, too; they may lie before and behind a span's quantised
         * pages. */
#pragma unroll 1
        for (int page = 0; page < pages.end; page = (page / SPAN_PAGES + 1) * SPAN_PAGES) {
            if (page >= pages.codes && page < pages.ends) page = pages.ends;
            const int base = page / SPAN_PAGES * SPAN_PAGES;
            if (page >= pages.end) break;
            Chain own = {NONE, 0, make_float2(0, 0)};
            const auto slot = [&](int n) {
                return most_spans + min(max(pages.full_number(base + n), 0), pages.full() - 1);
            };
#pragma unroll
            for (int n = 0; n < SPAN_PAGES; n++) {
                const int p = base + n;
                if (p < pages.codes || (p >= pages.ends && p < pages.end)) own.take(sums(slot(n)), part(slot(n)));
            }
            chain[1][i].take(make_float2(own.most, own.sum), own.o);
        }
    }
    /* The result of the quantised pages is rotated back. */
    float(*back)[HD] = (float(*)[HD])rings;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int at = 2 * (i * BLOCK + threadIdx.x), head = at / HD;
        if (head >= group) continue;
        *(float2 *)&back[head][at % HD] = chain[0][i].o;
    }
    __syncthreads();
    for (int h = warp; h < group; h += WARPS) {
        float x[HD / 32];
#pragma unroll
        for (int j = 0; j < HD / 32; j++) x[j] = back[h][lane + 32 * j];
        lanes_rotate<HD>(c.v_rotation, true, x);
#pragma unroll
        for (int j = 0; j < HD / 32; j++) back[h][lane + 32 * j] = x[j];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int at = 2 * (i * BLOCK + threadIdx.x), head = at / HD;
        if (head >= group) continue;
        Chain &all = chain[1][i];
        all.take(make_float2(s.heads.own[head], 1), __half22float2(*(const __half2 *)(s.heads.value + at % HD)));
        if (a.sinks) all.take(make_float2(__ldg(a.sinks + kv_head * group + head) * LOG2E, 1), make_float2(0, 0));
        all.take(make_float2(chain[0][i].most, chain[0][i].sum), *(const float2 *)&back[head][at % HD]);
        *(float2 *)(a.out + ((int64_t)row * a.heads + kv_head * group) * HD + at) =
            make_float2(all.o.x / all.sum, all.o.y / all.sum);
    }
#endif
}

static int kvq_spans(const Attend &a) { return (a.slices * SLICE / PAGE_TOKENS + SPAN_PAGES - 1) / SPAN_PAGES; }
static int kvq_blocks(const Attend &a, const AttendQuant &c) {
    return kvq_spans(a) + (c.full_slices * SLICE + PAGE_TOKENS - 1) / PAGE_TOKENS + 1;
}

extern "C" int flash_decode_kvq4_fits(const Attend *a, const AttendQuant *c) {
    return flash_decode_fits(a) && kvq_is_fast(a) && !c->bias && !c->k_rotation.matrix;
}
extern "C" size_t flash_decode_kvq4_floats(const Attend *a, const AttendQuant *c) {
    return (size_t)kvq_blocks(*a, *c) * (size_t)a->kv_heads * (size_t)(a->heads / a->kv_heads * (a->head_dim + 2) + 3);
}
template <int HD> static cudaError_t flash_decode_kvq4_of(cudaStream_t stream, const Attend &a, const AttendQuant &c) {
    const int bytes = KVQ_SLOTS<HD> * SLOT_BYTES<HD> * WARPS;
    const cudaError_t error =
        cudaFuncSetAttribute(flash_decode_kvq4_kernel<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error) return error;
    return launch(stream, flash_decode_kvq4_kernel<HD>, dim3(kvq_blocks(a, c), a.kv_heads, a.rows), BLOCK,
        (size_t)bytes, a, c, kvq_spans(a));
}
extern "C" cudaError_t flash_decode_kvq4(cudaStream_t stream, const Attend *a, const AttendQuant *c) {
    return a->head_dim == 64 ? flash_decode_kvq4_of<64>(stream, *a, *c) : flash_decode_kvq4_of<128>(stream, *a, *c);
}
