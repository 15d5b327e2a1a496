/* Attention of decode rows over f16 pages, for every depth.
 *
 * Keys and values are cut by position: pieces of 16 tokens, pages of 8 pieces, spans of 8 pages. In a piece, for each
 * query: the largest score; p = 2^(score − largest) as f16; Σ p; o = Σ p·v. Pieces are folded in order into their page,
 * pages into their span, spans into the row, and last the row's own token and the sink. So a row's bits depend on its
 * visible keys alone. Work is split in two ways: a cluster takes a row and a kv head, a block of it a page, a warp a
 * piece at a time; or a block takes a span, a warp a page.
 *
 * Keys and values of earlier steps are loaded before the previous kernel has ended (in clusters: for common head
 * shapes, heads_usual()); the row's own key and value are not needed until the end. A row that sees other rows of the
 * step has been prepared (attention_prepare), or, in short chunks and for common head shapes, each block computes the
 * keys of the rows of its chunk before its own as well. */
#include "backend/cuda/attention/flash_decode.cuh"

enum { CLUSTER_MAX = 16 };
/* A quarter of a multiprocessor has 512 registers per lane; three of the ten warps of the previous kernel (gemv_int.cu,
 * 96 registers each) occupy 288 of them. With this bound two warps fit beside them, and a block need not wait for
 * blocks of that kernel to end. */
enum { BESIDE_REGISTERS = (16384 / 32 - 3 * 96) / 2 };

/* Largest number of pairs of dims of `group` heads that a thread folds. */
template <int HD, int NT> constexpr int THREAD_PAIRS = NT * 8 * HD / 2 / BLOCK < 1 ? 1 : NT * 8 * HD / 2 / BLOCK;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* Folds in the row's own token, then the sink; returns the result of two dims from `at` of the kv head. */
template <int HD, int GROUP>
__device__ __forceinline__ void row_end(
    const Attend &a, const RowHeads<HD, GROUP> &s, int row, int kv_head, int group, int at, Chain chain) {
    const int head = at / HD;
    chain.take(make_float2(s.own[head], 1), __half22float2(*(const __half2 *)(s.value + at % HD)));
    if (a.sinks) chain.take(make_float2(__ldg(a.sinks + kv_head * group + head) * LOG2E, 1), make_float2(0, 0));
    *(float2 *)(a.out + ((int64_t)row * a.heads + kv_head * group) * HD + at) =
        make_float2(chain.o.x / chain.sum, chain.o.y / chain.sum);
}
#endif

/* ---- earlier rows of the chunk ---- */

enum { EARLIER_MAX = FLASH_DECODE_CHUNK_ROWS - 1 };
static_assert(EARLIER_MAX <= WARPS, "a warp has one of the earlier rows");

/* Keys and values of the rows of the chunk before the block's. */
template <int HD, bool CHUNKS> struct EarlierRows { __half keys[EARLIER_MAX][HD], values[EARLIER_MAX][HD]; };
template <int HD> struct EarlierRows<HD, false> {};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* The key and value of an earlier row of the chunk, which the warp has; the numbers are heads_take_ready()'s. Before
 * the previous kernel has ended: rotations and norm weights. */
template <int HD, bool CHUNKS> struct EarlierRow {
    float2 turn[HD / 64];
    float weight[HD / 32];

    __device__ __forceinline__ EarlierRow(const Attend &a, int row) {
        const int lane = threadIdx.x % 32, position = __ldcg(a.step.positions + row);
#pragma unroll
        for (int j = 0; j < HD / 64; j++) {
            const int pair = lane + 32 * j;
            float sn, cs;
            sincosf(angle_of(a.rope, a.step, row, pair, position, __ldg(a.rope.frequencies + pair)), &sn, &cs);
            turn[j] = make_float2(cs, sn);
        }
#pragma unroll
        for (int j = 0; j < HD / 32; j++)
            weight[j] = a.k_norm.width && a.k_norm.weight ? __ldg(a.k_norm.weight + lane + 32 * j) : 1;
    }
    __device__ __forceinline__ void take(const Attend &a, int row, int kv_head, __half *key, __half *value) const {
        constexpr int N = HD / 32;
        const int lane = threadIdx.x % 32;
        const int64_t from = ((int64_t)row * a.kv_heads + kv_head) * HD + lane;
        float v[N], w[N];
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = load(a.k + from + 32 * j);
#pragma unroll
        for (int j = 0; j < N; j++) w[j] = load(a.v + from + 32 * j);
        if (a.k_norm.width) {
            float sum = 0;
#pragma unroll
            for (int j = 0; j < N; j++) sum += v[j] * v[j];
            const float factor = 1.0f / sqrtf(warp_sum(sum) / (float)HD + a.k_norm.eps);
#pragma unroll
            for (int j = 0; j < N; j++) v[j] = v[j] * factor * weight[j];
        }
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            const float one = v[j] * a.rope.scale, other = v[j + N / 2] * a.rope.scale;
            v[j] = one * turn[j].x - other * turn[j].y;
            v[j + N / 2] = one * turn[j].y + other * turn[j].x;
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            key[lane + 32 * j] = __float2half_rn(v[j]);
            value[lane + 32 * j] = __float2half_rn(w[j]);
        }
    }
};

template <int HD> struct EarlierRow<HD, false> {
    __device__ __forceinline__ EarlierRow(const Attend &a, int row) {}
};

/* Puts the tokens from `split` of a piece on that are earlier rows into a slot of a ring; `there` tokens exist. */
template <int HD>
__device__ __forceinline__ void slot_complete(
    const uint8_t *slot, int there, int split, const __half (*earlier)[HD], bool value) {
    const int first = max(split, 0), count = min(there, (int)PIECE) - first;
    if (count <= 0) return;
    for (int i = threadIdx.x % 32; i < count * (HD / 8); i += 32) {
        const int row = first + i / (HD / 8), piece = i % (HD / 8);
        const int at = row * (HD / 8) + (value ? value_place(row, piece) : key_place(row, piece));
        *(uint4 *)(uintptr_t)(slot + at * 16) = *(const uint4 *)(earlier[row - split] + piece * 8);
    }
    __syncwarp();
}
#endif

/* ---- a cluster for a row and kv head ---- */

template <int HD, bool CHUNKS> struct SpreadShared {
    RowHeads<HD> heads;
    __align__(16) EarlierRows<HD, CHUNKS> earlier;
    float spare[WARPS][HD];
    float2 sums[2][WARPS][FLASH_DECODE_GROUP_MAX]; /* [buffer][warp][head]: the piece's largest score and sum */
    uint64_t barrier;
};
struct Spreading {
    int cluster, slots; /* slots: pages of all spans of which a row may see a part */
    unsigned share_of;  /* 2^32 by the dims that a block folds, rounded up */
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* Loads keys or values of a piece from a page; `there` tokens exist; beyond them the last one is repeated, or zeros if
 * there is none. */
template <int HD> __device__ __forceinline__ void piece_keys(const __half *from, int there, uint4 k[HD / 16]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if (there <= 0) {
        keys_load<HD>(k, [](int, int) { return make_uint4(0, 0, 0, 0); });
        return;
    }
    const __half *const rows[2] = {from + min(g, there - 1) * HD + 8 * t, from + min(g + 8, there - 1) * HD + 8 * t};
    keys_load<HD>(k, [&](int h, int i) { return __ldcg((const uint4 *)(rows[h / 8] + 32 * i)); });
}
template <int HD> __device__ __forceinline__ void piece_values(const __half *from, int there, Values v[HD / 64]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    from += PAGE_TOKENS * HD + 8 * g;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const __half *row = from + min(2 * t + i % 2 + i / 2 * 8, there - 1) * HD;
#pragma unroll
        for (int d = 0; d < HD / 64; d++)
            v[d].v[i] = there > 0 ? __ldcg((const uint4 *)(row + 64 * d)) : make_uint4(0, 0, 0, 0);
    }
}
#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* A piece of which some tokens are earlier rows of the chunk, those from number `split` of the piece on; as
 * piece_keys() and piece_values(), at least one token exists. */
template <int HD>
__device__ __forceinline__ void piece_of_both(const __half *from, int there, int split,
    const EarlierRows<HD, true> &earlier, uint4 k[HD / 16], Values v[HD / 64]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    keys_load<HD>(k, [&](int h, int i) {
        const int token = min(g + h, there - 1), at = 32 * i + 8 * t;
        return token < split ? __ldcg((const uint4 *)(from + token * HD + at))
                             : *(const uint4 *)(earlier.keys[token - split] + at);
    });
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int token = min(2 * t + i % 2 + i / 2 * 8, there - 1);
#pragma unroll
        for (int d = 0; d < HD / 64; d++) {
            const int at = 8 * g + 64 * d;
            v[d].v[i] = token < split ? __ldcg((const uint4 *)(from + PAGE_TOKENS * HD + token * HD + at))
                                      : *(const uint4 *)(earlier.values[token - split] + at);
        }
    }
}
#endif

/* A block has at most one page (ROUNDS: several), whose keys and values are in registers before the previous kernel has
 * ended, except for rare kinds of heads. CHUNKS: flash_decode_takes_chunks(). */
template <int HD, int NT, bool ROUNDS, bool CHUNKS>
__global__ void __launch_bounds__(BLOCK) __maxnreg__(128 < HD * NT ? 255 : BESIDE_REGISTERS)
    spread_kernel(const __grid_constant__ Attend a, const __grid_constant__ Spreading spread) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    /* [warp][head][dim], twice if there are rounds; then the results that blocks send: [page][dim], [page][head] */
    extern __shared__ __align__(128) float parts[];
    using Shared = SpreadShared<HD, CHUNKS>;
    __shared__ __align__(16) Shared s;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int group = a.heads / a.kv_heads, rank = blockIdx.x, kv_head = blockIdx.y, row = a.first_row + blockIdx.z;
    const int place = __ldcg(a.step.places + row), run = __ldcg(a.step.chunks + row); /* on their way together */
    const RopeReady rotations(a, row);
    const int first = window_begin(a, place);
    if (place < 0) { /* another kernel computes the row */
        wait_for_previous();
        return;
    }
    const int32_t *table = a.tables + (int64_t)run * a.table_stride;
    const int first_page = first / PAGE_TOKENS, end_page = first < place ? (place - 1) / PAGE_TOKENS + 1 : first_page;
    const int first_span = first_page / SPAN_PAGES, spans = (end_page + SPAN_PAGES - 1) / SPAN_PAGES - first_span;
    const int part_floats = WARPS * group * HD;
    int page = first_page + rank;
    uint4 k[HD / 16];
    Values v[HD / 64];
    const auto piece_of = [&](int page) {
        return half_head(a, table, min(page * PAGE_TOKENS, place), kv_head) + warp * PIECE * HD;
    };
    const auto there_of = [&](int page) {
        const int piece = page * PAGE_TOKENS + warp * PIECE;
        return page < end_page && piece + PIECE > first ? place - piece : 0;
    };
    const __half *from = piece_of(page);
    const bool usual = CHUNKS || heads_usual(a, group);
    const auto bring = [&] {
        piece_keys<HD>(from, there_of(page), k);
        piece_values<HD>(from, there_of(page), v);
    };
    if (usual) bring();

    const int share = group * HD / spread.cluster;
    float *sent = parts + (ROUNDS ? 2 : 1) * part_floats;
    float2 *received = (float2 *)(sent + spread.slots * share);
    /* Invisible pages of these spans have no effect. */
#pragma unroll 1
    for (int slot = 0; slot < spans * SPAN_PAGES; slot++) {
        const int at = first_span * SPAN_PAGES + slot;
        if (at >= first_page && at < end_page) continue;
#pragma unroll 1
        for (int i = threadIdx.x; i < share; i += BLOCK) sent[slot * share + i] = 0;
        if (threadIdx.x < group) received[slot * group + threadIdx.x] = make_float2(NONE, 0);
    }
    const uint32_t barrier = shared_address(&s.barrier);
    if (threadIdx.x == 0) {
        barrier_make(barrier, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        barrier_expect(barrier, (end_page - first_page) * (share * 4 + group * 8));
    }
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    __half *own_key = (__half *)half_head(a, table, place, kv_head) + place % PAGE_TOKENS * HD;
    float *energy = energies_at(a, table, place) + kv_head * PAGE_TOKENS + place % PAGE_TOKENS;
    heads_begin(a, row, kv_head, group, rotations, s.heads);
    __syncthreads();
    const HeadReady<HD> ready(a, usual, row, kv_head, group, s.heads);
    const int earlier = CHUNKS ? __ldcg(a.step.chunk_offsets + row) : 0; /* rows of the chunk before this one */
    const EarlierRow<HD, CHUNKS> other(a, row - earlier + min(warp, max(earlier - 1, 0)));
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); /* all have begun */
    wait_for_previous();
    let_next_begin(); /* only now: the first loads of the next kernel would slow the previous one */
    const bool appends = a.k && !a.prepared && rank == 0;
    float square = 0;
    if constexpr (CHUNKS)
        if (warp < earlier) other.take(a, row - earlier + warp, kv_head, s.earlier.keys[warp], s.earlier.values[warp]);
    if (usual) {
        square = heads_take_ready(a, ready, own_key, row, kv_head, group, appends, s.heads);
    } else { /* no values stay in registers across the call */
        heads_take_rarely(a, own_key, row, kv_head, group, appends, s.heads, s.spare[warp]);
        bring();
    }
    const float cap = a.softcap * LOG2E;
#pragma unroll 1
    for (float *part = parts; page < end_page; page += spread.cluster) {
        const int piece = page * PAGE_TOKENS + warp * PIECE, next = page + spread.cluster;
        float2(*sums)[FLASH_DECODE_GROUP_MAX] = s.sums[ROUNDS && part != parts];
        if constexpr (CHUNKS) {
            const int split = place - earlier - piece; /* negative: the chunk begins in a piece before */
            if (earlier > 0 && split < PIECE && there_of(page) > 0)
                piece_of_both<HD>(piece_of(page), there_of(page), split, s.earlier, k, v);
        }
        if (ROUNDS) from = piece_of(next);
        const bool on[2] = {piece + g >= first && piece + g < place, piece + g + 8 >= first && piece + g + 8 < place};
#pragma unroll
        for (int n = 0; n < NT; n++) {
            Query<HD> query;
            float scores[4], most[2], sum[2], o[HD / 64][4][4] = {};
            uint32_t weights[2];
            heads_query(s.heads, n * 8, group, query);
            piece_scores<HD>(k, query, scores);
            if (ROUNDS && n == NT - 1) piece_keys<HD>(from, there_of(next), k);
            piece_exponentials(scores, on, cap, weights, most, sum);
            if (g == 0)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    if (n * 8 + 2 * t + c < group) sums[warp][n * 8 + 2 * t + c] = make_float2(most[c], sum[c]);
#pragma unroll
            for (int d = 0; d < HD / 64; d++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    uint32_t numbers[4];
                    values_numbers(v[d], e, numbers);
                    multiply(o[d][e], numbers, weights[0], weights[1]);
                }
            if (ROUNDS && n == NT - 1) piece_values<HD>(from, there_of(next), v);
#pragma unroll
            for (int c = 0; c < 2; c++)
                if (n * 8 + 2 * t + c < group) part_put<HD>(part + (warp * group + n * 8 + 2 * t + c) * HD, o, c);
        }
        __syncthreads();
        /* The page's pieces in order. */
        const int slot = page - first_span * SPAN_PAGES;
#pragma unroll 1
        for (int at = 2 * threadIdx.x; at < group * HD; at += 2 * BLOCK) {
            const int head = at / HD, dim = at % HD, to = (int)__umulhi(at, spread.share_of);
            Chain chain = {NONE, 0, make_float2(0, 0)};
            take_eight(
                chain, [&](int w) { return sums[w][head]; },
                [&](int w) { return *(const float2 *)(part + w * group * HD + at); });
            push(address_in(shared_address(sent + slot * share + at - to * share), to), chain.o,
                address_in(barrier, to));
            if (dim / 2 < spread.cluster)
                push(address_in(shared_address(received + slot * group + head), dim / 2),
                    make_float2(chain.most, chain.sum), address_in(barrier, dim / 2));
        }
        if (!ROUNDS) break;
        part = part == parts ? parts + part_floats : parts; /* the buffer that no thread still reads */
    }
    if (appends && usual) heads_squares(s.heads, group, square);
    heads_own(s.heads, group, cap);
    __syncthreads();
    if (appends) heads_energy(s.heads, group, energy);
    barrier_wait(barrier, 0);
#pragma unroll 1
    for (int at = 2 * threadIdx.x; at < share; at += 2 * BLOCK) {
        const int head = (rank * share + at) / HD;
        Chain chain = {NONE, 0, make_float2(0, 0)};
#pragma unroll 1
        for (int slot = 0; slot < spans * SPAN_PAGES; slot += SPAN_PAGES) {
            Chain own = {NONE, 0, make_float2(0, 0)};
            take_eight(
                own, [&](int w) { return received[(slot + w) * group + head]; },
                [&](int w) { return *(const float2 *)(sent + (slot + w) * share + at); });
            chain.take(make_float2(own.most, own.sum), own.o);
        }
        row_end(a, s.heads, row, kv_head, group, rank * share + at, chain);
    }
#endif
}

/* ---- a block for a span ---- */

/* Slots of a warp's ring. deep: a block has a multiprocessor to itself. */
template <int HD, bool DEEP>
constexpr int RING_SLOTS = (DEEP              ? 24 << 10
                                   : HD > 128 ? 16 << 10
                                              : 12 << 10) /
    SLOT_BYTES<HD>;

template <int HD, bool CHUNKS> struct SpanShared {
    RowHeads<HD> heads;
    __align__(16) EarlierRows<HD, CHUNKS> earlier;
    float spare[WARPS][HD];
    float2 sums[WARPS][FLASH_DECODE_GROUP_MAX]; /* [warp][head]: the page's largest score and sum */
    int last;
};

/* apart: another kernel folds the spans. CHUNKS: flash_decode_takes_chunks(). */
template <int HD, int NT, bool DEEP, bool CHUNKS>
__global__ void __launch_bounds__(BLOCK, DEEP || 128 < HD * NT ? 1 : 2)
    span_kernel(const __grid_constant__ Attend a, int most_spans, int apart) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    constexpr int PAIRS = THREAD_PAIRS<HD, NT>, SLOTS = RING_SLOTS<HD, DEEP>, RING_FLOATS = SLOTS * SLOT_BYTES<HD> / 4;
    extern __shared__ __align__(128) float rings[]; /* one ring per warp, later the warp's partial result */
    using Shared = SpanShared<HD, CHUNKS>;
    __shared__ __align__(16) Shared s;
    let_next_begin();
    const int warp = threadIdx.x / 32, group = a.heads / a.kv_heads, kv_head = blockIdx.y,
              row = a.first_row + blockIdx.z;
    const int place = __ldcg(a.step.places + row), run = __ldcg(a.step.chunks + row); /* on their way together */
    const RopeReady rotations(a, row);
    const int first = window_begin(a, place);
    const int spans = max(1, (place + SPAN - 1) / SPAN - first / SPAN), span = first / SPAN + blockIdx.x;
    if ((int)blockIdx.x >= spans || place < 0 /* another kernel's row */) {
        wait_for_previous();
        return;
    }
    const int32_t *table = a.tables + (int64_t)run * a.table_stride;
    const int begin = max(first, span * SPAN), end = max(begin, min(place, (span + 1) * SPAN));
    const int first_page = begin / PAGE_TOKENS, end_page = begin < end ? (end - 1) / PAGE_TOKENS + 1 : first_page;
    const int page = span * SPAN_PAGES + warp, low = max(begin, page * PAGE_TOKENS),
              high = min(end, (page + 1) * PAGE_TOKENS);
    Pieces pieces = {nullptr, low / PIECE, low < high ? (high - 1) / PIECE + 1 : 0, first, place};
    if (low < high) pieces.page = half_head(a, table, low, kv_head);
    PieceRing<HD, SLOTS, DEEP> ring((const uint8_t *)(rings + warp * RING_FLOATS), pieces);
    if (!a.prepared)
#pragma unroll 1
        for (int i = 0; i < SLOTS; i++) ring.bring();
    __half *own_key = (__half *)half_head(a, table, place, kv_head) + place % PAGE_TOKENS * HD;
    float *energy = energies_at(a, table, place) + kv_head * PAGE_TOKENS + place % PAGE_TOKENS;
    heads_begin(a, row, kv_head, group, rotations, s.heads);
    const int earlier = CHUNKS ? __ldcg(a.step.chunk_offsets + row) : 0; /* rows of the chunk before this one */
    const EarlierRow<HD, CHUNKS> other(a, row - earlier + min(warp, max(earlier - 1, 0)));
    __syncthreads();
    wait_for_previous();
    if constexpr (CHUNKS)
        if (warp < earlier) other.take(a, row - earlier + warp, kv_head, s.earlier.keys[warp], s.earlier.values[warp]);
    if (a.prepared)
#pragma unroll 1
        for (int i = 0; i < SLOTS; i++) ring.bring();
    const bool appends = a.k && !a.prepared && blockIdx.x == 0;
    heads_take(a, own_key, row, kv_head, group, appends, s.heads, s.spare[warp], [](int, float *) {});
    const float cap = a.softcap * LOG2E;
    if (appends) heads_energy(s.heads, group, energy);
    heads_own(s.heads, group, cap);
    if (low < high) {
        Query<HD> query[NT];
#pragma unroll
        for (int n = 0; n < NT; n++) heads_query(s.heads, n * 8, group, query[n]);
        pieces_fold<HD, NT>(pieces, ring, query, cap, group, rings + warp * RING_FLOATS, s.sums[warp],
            [&](const uint8_t *slot, int token, bool value) {
                if constexpr (CHUNKS)
                    if (earlier > 0 && token + PIECE > place - earlier)
                        slot_complete<HD>(slot, place - token, place - earlier - token,
                            value ? s.earlier.values : s.earlier.keys, value);
            });
    }
    __syncthreads();

    /* The span's pages in order. */
    Chain chain[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        chain[i] = {NONE, 0, make_float2(0, 0)};
        const int at = 2 * (i * BLOCK + threadIdx.x), head = at / HD;
        if (head >= group) continue;
        take_eight(
            chain[i], first_page - span * SPAN_PAGES, end_page - span * SPAN_PAGES,
            [&](int w) { return s.sums[w][head]; },
            [&](int w) { return *(const float2 *)(rings + w * RING_FLOATS + at); });
    }
    if (spans > 1 || apart) {
        const int64_t stride = left_floats<HD>(group), rows = (int64_t)blockIdx.z * a.kv_heads + kv_head;
        float *all = a.partials + rows * (most_spans + apart) * stride, *mine = all + blockIdx.x * stride;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int at = 2 * (i * BLOCK + threadIdx.x), head = at / HD;
            if (head >= group) continue;
            __stcg((float2 *)(mine + at), chain[i].o);
            if (at % HD == 0) __stcg((float2 *)(mine + group * HD) + head, make_float2(chain[i].most, chain[i].sum));
        }
        if (apart) {
            float *own = all + most_spans * stride;
            for (int at = threadIdx.x; blockIdx.x == 0 && at < group * HD; at += BLOCK) {
                __stcg(own + at, __half2float(s.heads.value[at % HD]));
                if (at % HD == 0) __stcg((float2 *)(own + group * HD) + at / HD, make_float2(s.heads.own[at / HD], 1));
            }
            return;
        }
        /* The last block to arrive has all spans. */
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned *counter = a.arrivals + rows;
            s.last = atomicAdd(counter, 1u) == (unsigned)spans - 1;
            if (s.last) *counter = 0;
        }
        __syncthreads();
        if (!s.last) return;
        __threadfence();
#pragma unroll
        for (int i = 0; i < PAIRS; i++) chain[i] = {NONE, 0, make_float2(0, 0)};
        const int batch = WARPS * RING_FLOATS / (int)stride;
        for (int first = 0; first < spans; first += batch) {
            const int count = min(batch, spans - first);
            __syncthreads();
            parts_bring(rings, all + first * stride, count * (int)stride);
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                const int at = 2 * (i * BLOCK + threadIdx.x), head = at / HD;
                if (head >= group) continue;
#pragma unroll 1
                for (int w = 0; w < count; w += 8) {
                    const auto from = [&](int n) { return rings + min(w + n, count - 1) * (int)stride; };
                    take_eight(
                        chain[i], 0, count - w, [&](int n) { return ((const float2 *)(from(n) + group * HD))[head]; },
                        [&](int n) { return *(const float2 *)(from(n) + at); });
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int at = 2 * (i * BLOCK + threadIdx.x);
        if (at < group * HD) row_end(a, s.heads, row, kv_head, group, at, chain[i]);
    }
#endif
}

/* Folds the spans that span_kernel() left with `apart` and, behind them, the row's own token. A block has FOLD_DIMS
 * dims of a head.
 */
enum { FOLD_DIMS = 32, FOLD_SPANS = BLOCK / (FOLD_DIMS / 4) };
template <int HD>
__global__ void __launch_bounds__(BLOCK) fold_kernel(const __grid_constant__ Attend a, int most_spans) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    __shared__ __align__(16) float o[FOLD_SPANS][FOLD_DIMS];
    __shared__ float2 sums[FOLD_SPANS];
    __shared__ FoldFactors factors[FOLD_SPANS];
    let_next_begin();
    const int lane = threadIdx.x % 32, group = a.heads / a.kv_heads, kv_head = blockIdx.y,
              row = a.first_row + blockIdx.z;
    const int dim = blockIdx.x * FOLD_DIMS, head = dim / HD;
    const int place = __ldcg(a.step.places + row), first = window_begin(a, place);
    const int spans = max(1, (place + SPAN - 1) / SPAN - first / SPAN);
    const int64_t stride = left_floats<HD>(group), rows = (int64_t)blockIdx.z * a.kv_heads + kv_head;
    const float *all = a.partials + rows * (most_spans + 1) * stride, *own = all + most_spans * stride;
    const float sink = a.sinks ? __ldg(a.sinks + kv_head * group + head) * LOG2E : NONE;
    const int at = threadIdx.x % (FOLD_DIMS / 4) * 4, number = threadIdx.x / (FOLD_DIMS / 4);
    wait_for_previous();
    if (place < 0) return;
    float2 own_sums = make_float2(0, 0);
    float own_value = 0, most = NONE, sum = 0, out = 0; /* warp 0, a dim to a lane */
    if (threadIdx.x < 32) {
        own_sums = __ldcg((const float2 *)(own + group * HD) + head);
        own_value = __ldcg(own + dim + lane);
    }
    for (int span = 0; span < spans; span += FOLD_SPANS) {
        const int count = min(spans - span, FOLD_SPANS);
        if (number < count) {
            const float *from = all + (span + number) * stride;
            *(float4 *)&o[number][at] = __ldcg((const float4 *)(from + dim + at));
            if (at == 0) sums[number] = __ldcg((const float2 *)(from + group * HD) + head);
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            factors[lane] = fold_factors_of(most, lane < count ? sums[lane] : make_float2(NONE, 0), lane);
            __syncwarp();
#pragma unroll 8
            for (int w = 0; w < count; w++) fold(factors[w], o[w][lane], sum, out);
        }
        __syncthreads();
    }
    if (threadIdx.x >= 32) return;
    Chain chain = {most, sum, make_float2(out, 0)};
    chain.take(own_sums, make_float2(own_value, 0));
    if (a.sinks) chain.take(make_float2(sink, 1), make_float2(0, 0));
    a.out[((int64_t)row * a.heads + kv_head * group) * HD + dim + lane] = chain.o.x / chain.sum;
#endif
}

/* ---- distribution ---- */

/* Ways to distribute work. The choice does not depend on a.rows, which may be a part of the step's rows. */
enum Dealing { IN_CLUSTERS, IN_SPANS, IN_SPANS_APART };
enum { BLOCKS_MAX = 132 /* one per multiprocessor */, ROUNDS_MAX = 2, APART_ROWS_MAX = 32, APART_SPANS = 9 };
static int pages_seen(const Attend &a) {
    const int pages = a.slices * SLICE / PAGE_TOKENS;
    return a.window ? min(pages, (a.window - 1 + PAGE_TOKENS - 1) / PAGE_TOKENS + 1) : pages;
}
static int spans_seen(const Attend &a) {
    const int spans = (a.slices * SLICE / PAGE_TOKENS + SPAN_PAGES - 1) / SPAN_PAGES;
    return a.window ? min(spans, (a.window - 1 + SPAN - 1) / SPAN + 1) : spans;
}
static int slots_of(const Attend &a) { return spans_seen(a) * SPAN_PAGES; }
template <int HD> static int spread_bytes(const Attend &a, int cluster, bool rounds) {
    const int group = a.heads / a.kv_heads;
    return (rounds ? 2 : 1) * WARPS * group * HD * (int)sizeof(float) +
        slots_of(a) * (group * HD / cluster * (int)sizeof(float) + group * (int)sizeof(float2));
}
/* cluster: blocks per cluster. Many spans of few rows are folded by separate blocks (IN_SPANS_APART). */
static Dealing dealing_of(const Attend &a, int &cluster) {
    const int pages = pages_seen(a), each = a.decode_rows * a.kv_heads, group = a.heads / a.kv_heads;
    cluster = 1;
    while (cluster < CLUSTER_MAX && cluster < pages && each * 2 * cluster <= BLOCKS_MAX) cluster *= 2;
    const int rounds = group <= 8 ? ROUNDS_MAX : 1;
    if (cluster > 1 && pages <= rounds * cluster) return IN_CLUSTERS;
    return each <= APART_ROWS_MAX && spans_seen(a) >= APART_SPANS ? IN_SPANS_APART : IN_SPANS;
}

template <int HD, int NT, bool ROUNDS, bool CHUNKS = false>
static cudaError_t in_cluster(cudaStream_t stream, const Attend &a, int cluster) {
    const auto kernel = spread_kernel<HD, NT, ROUNDS, CHUNKS>;
    const int share = a.heads / a.kv_heads * HD / cluster, bytes = spread_bytes<HD>(a, cluster, ROUNDS);
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (!error) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error) return error;
    const Spreading spreading = {cluster, slots_of(a), (unsigned)((1ull << 32) / (unsigned)share) + 1};
    return launch_clusters(
        stream, kernel, dim3(cluster, a.kv_heads, a.rows), BLOCK, (size_t)bytes, cluster, a, spreading);
}
template <int HD, int NT, bool DEEP, bool CHUNKS = false>
static cudaError_t in_spans(cudaStream_t stream, const Attend &a, bool apart) {
    const int spans = spans_seen(a), bytes = RING_SLOTS<HD, DEEP> * SLOT_BYTES<HD> * WARPS;
    cudaError_t error =
        cudaFuncSetAttribute(span_kernel<HD, NT, DEEP, CHUNKS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (!error)
        error = launch(stream, span_kernel<HD, NT, DEEP, CHUNKS>, dim3(spans, a.kv_heads, a.rows), BLOCK, (size_t)bytes,
            a, spans, (int)apart);
    return error || !apart ? error
                           : launch(stream, fold_kernel<HD>,
                                 dim3(a.heads / a.kv_heads * HD / FOLD_DIMS, a.kv_heads, a.rows), BLOCK, 0, a, spans);
}
template <int HD> static cudaError_t decode_rows(cudaStream_t stream, const Attend &a) {
    const bool wide = a.heads / a.kv_heads > 8;
    int cluster;
    const Dealing dealing = dealing_of(a, cluster);
    const bool apart = dealing == IN_SPANS_APART, rounds = pages_seen(a) > cluster;
    const bool deep = a.rows * a.kv_heads * spans_seen(a) <= BLOCKS_MAX;
    if (a.in_chunks && dealing == IN_CLUSTERS)
        return rounds ? in_cluster<HD, 1, true, true>(stream, a, cluster)
                      : in_cluster<HD, 1, false, true>(stream, a, cluster);
    if (a.in_chunks)
        return HD <= 128 && deep ? in_spans<HD, 1, HD <= 128, true>(stream, a, apart)
                                 : in_spans<HD, 1, false, true>(stream, a, apart);
    if (dealing == IN_CLUSTERS && wide) return in_cluster<HD, 2, false>(stream, a, cluster);
    if (dealing == IN_CLUSTERS && rounds) return in_cluster<HD, 1, true>(stream, a, cluster);
    if (dealing == IN_CLUSTERS) return in_cluster<HD, 1, false>(stream, a, cluster);
    if (wide) return in_spans<HD, 2, false>(stream, a, apart);
    return HD <= 128 && deep ? in_spans<HD, 1, HD <= 128>(stream, a, apart) : in_spans<HD, 1, false>(stream, a, apart);
}

extern "C" int flash_decode_fits(const Attend *a) {
    return attention_has_tiles(*a) && a->heads / a->kv_heads <= FLASH_DECODE_GROUP_MAX &&
        a->kv_heads <= FLASH_DECODE_ARRIVALS / FLASH_DECODE_ROWS_MAX;
}
extern "C" int flash_decode_takes_chunks(const Attend *a) {
    return flash_decode_fits(a) && a->k && !a->norm_full && !a->norm_last && !a->q_norm.kind && !a->k_norm.kind &&
        a->heads / a->kv_heads < WARPS && a->rope.dims == a->head_dim && !a->rope.interleaved;
}
extern "C" size_t flash_decode_floats(const Attend *a) {
    const int group = a->heads / a->kv_heads, part = (group * (a->head_dim + 2) + 3) / 4 * 4;
    int spans = spans_seen(*a), cluster;
    const Dealing dealing = dealing_of(*a, cluster);
    if (dealing == IN_CLUSTERS || (dealing == IN_SPANS && spans == 1)) return 0;
    if (dealing == IN_SPANS_APART) spans++; /* the row's own token */
    return (size_t)spans * (size_t)a->kv_heads * (size_t)part;
}
extern "C" cudaError_t flash_decode(cudaStream_t stream, const Attend *a) {
    return a->head_dim == 64 ? decode_rows<64>(stream, *a)
        : a->head_dim == 128 ? decode_rows<128>(stream, *a)
                             : decode_rows<256>(stream, *a);
}
