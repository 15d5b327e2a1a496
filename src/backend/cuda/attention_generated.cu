/* Attention of rows that lie behind their prompts' ends, over f16 pages, in one kernel for every depth.
 *
 * Keys and values are cut by position: pieces of 16 tokens, pages of 8 pieces, spans of 8 pages. Of a piece, for each
 * query on its own: the largest score; p = 2^(score − largest) as f16; the sum of p; o = Σ p·v. Pieces are folded in
 * order into their page, pages into their span, spans into the row, and at last the row's own token and the sink. So a
 * row's bits depend on nothing but what it sees, and work can be dealt out in two ways: a row and kv head to a cluster,
 * of which a block has a page and a warp a piece at a time; or a span to a block, of which a warp has a page.
 *
 * What earlier steps have left is loaded before the kernel before has ended; the row's own key and value are not needed
 * until the end. A row that follows others of the same step, whose keys it sees, comes prepared (attention_prepare). */
#include "backend/cuda/attention_generated.cuh"

enum { CLUSTER_MAX = 16, SPREAD_PAGES_MAX = 64 };

/* Pairs of dims that a thread folds of `group` heads, at most. */
template <int HD, int NT> constexpr int THREAD_PAIRS = NT * 8 * HD / 2 / BLOCK < 1 ? 1 : NT * 8 * HD / 2 / BLOCK;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/* The row's own token, then the sink; what comes of two dims from `at` of the kv head's. */
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

/* ---- a cluster for a row and kv head ---- */

template <int HD> struct SpreadShared {
    RowHeads<HD> heads;
    float spare[WARPS][HD];
    float2 sums[WARPS][GENERATED_GROUP_MAX]; /* of each warp's piece: the largest score, the sum */
    uint64_t barrier;
};
struct Spreading {
    int cluster, pages; /* pages: that a row may see */
    unsigned share_of;  /* 2^32 by the dims that a block folds, rounded up */
};

/* AHEAD: pages of a block that are on their way at once. */
template <int HD, int NT, int AHEAD> __global__ void __launch_bounds__(BLOCK, HD * NT > 128 || AHEAD > 1 ? 1 : 2)
    spread_kernel(const __grid_constant__ Attend a, const __grid_constant__ Spreading spread) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    constexpr int PAIRS = THREAD_PAIRS<HD, NT>, RING_FLOATS = AHEAD * 2 * SLOT_BYTES<HD> / 4;
    /* Of each warp keys and values, in whose place its part comes; then what blocks send: [page][dim], [page][head] */
    extern __shared__ __align__(128) float rings[];
    __shared__ __align__(16) SpreadShared<HD> s;
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int group = a.heads / a.kv_heads, rank = blockIdx.x, kv_head = blockIdx.y, row = a.first_row + blockIdx.z;
    const int place = __ldcg(a.step.places + row), first = a.window && place >= a.window ? place - a.window + 1 : 0;
    if (place < 0) { /* others have the row */
        wait_for_previous();
        return;
    }
    const int32_t *table = a.tables + (int64_t)__ldcg(a.step.runs + row) * a.table_stride;
    const int first_page = first / PAGE_TOKENS, end_page = first < place ? (place - 1) / PAGE_TOKENS + 1 : first_page;
    const int in_page = warp * PIECE;
    float *ring = rings + warp * RING_FLOATS;
    int turn = 0; /* which of the pages on their way is at work */
    int page = first_page + rank;
    const auto page_of = [&](int page) { return half_head(a, table, min(page * PAGE_TOKENS, place), kv_head); };
    const auto bring = [&](const __half *from, int page, bool value) {
        if (page < end_page)
            slot_bring<HD>(shared_address(ring) + (2 * turn + value) * SLOT_BYTES<HD>, from + (value * PAGE_TOKENS + in_page) * HD,
                place - page * PAGE_TOKENS - in_page, value);
        copies_commit();
    };
    const auto begin = [&]() {
#pragma unroll
        for (turn = 0; turn < AHEAD; turn++) {
            const __half *from = page_of(page + turn * spread.cluster);
            bring(from, page + turn * spread.cluster, false);
            bring(from, page + turn * spread.cluster, true);
        }
        turn = 0;
    };
    if (!a.prepared) begin();
    const __half *from = page_of(page + AHEAD * spread.cluster);

    const int share = group * HD / spread.cluster;
    const uint32_t barrier = shared_address(&s.barrier);
    if (threadIdx.x == 0) {
        barrier_make(barrier, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        barrier_expect(barrier, (end_page - first_page) * (share * 4 + group * 8));
    }
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    __half *own_key = (__half *)half_head(a, table, place, kv_head) + place % PAGE_TOKENS * HD;
    float *energies = energies_at(a, table, place) + kv_head * PAGE_TOKENS + place % PAGE_TOKENS;
    heads_begin(a, row, s.heads);
    __syncthreads();
    wait_for_previous();
    if (a.prepared) begin();
    heads_take(a, own_key, energies, row, kv_head, group, a.k && !a.prepared && rank == 0, s.heads, s.spare[warp],
        [](int, float *) {});
    const float cap = a.softcap * LOG2E;
    Query<HD> query[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) heads_query(s.heads, n * 8, group, query[n]);
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); /* all have begun */

    float *sent = rings + WARPS * RING_FLOATS;
    float2 *received = (float2 *)(sent + spread.pages * share);
#pragma unroll 1
    for (; page < end_page; page += spread.cluster) {
        const int token = page * PAGE_TOKENS + in_page + g, next = page + AHEAD * spread.cluster;
        const uint8_t *slots = (const uint8_t *)ring + 2 * turn * SLOT_BYTES<HD>;
        float *part_at = (float *)(slots + (NT == 1 ? SLOT_BYTES<HD> : 0));
        const bool on[2] = {token >= first && token < place, token + 8 >= first && token + 8 < place};
        uint32_t weights[NT][2];
        copies_wait<2 * AHEAD - 1>();
        {
            float scores[NT][4];
            uint4 k[HD / 16];
            slot_keys<HD>(k, slots);
            __syncwarp();
            bring(from, next, false);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                float most[2], sum[2];
                piece_scores<HD>(k, query[n], scores[n]);
                piece_exponentials(scores[n], on, cap, weights[n], most, sum);
                if (g == 0)
#pragma unroll
                    for (int c = 0; c < 2; c++)
                        if (n * 8 + 2 * t + c < group) s.sums[warp][n * 8 + 2 * t + c] = make_float2(most[c], sum[c]);
            }
        }
        copies_wait<2 * AHEAD - 1>();
        Values v[HD / 64];
        slot_values<HD>(v, slots + SLOT_BYTES<HD>);
        __syncwarp();
        if (NT > 1) copies_wait<0>(); /* the part takes both slots' place, and there is no next page */
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float o[HD / 64][4][4] = {};
#pragma unroll
            for (int d = 0; d < HD / 64; d++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    uint32_t numbers[4];
                    values_numbers(v[d], e, numbers);
                    multiply(o[d][e], numbers, weights[n][0], weights[n][1]);
                }
#pragma unroll
            for (int c = 0; c < 2; c++)
                if (n * 8 + 2 * t + c < group) part_put<HD>(part_at + (n * 8 + 2 * t + c) * HD, o, c);
        }
        __syncthreads();
        /* The page's pieces in order. */
        const int low = max(first, page * PAGE_TOKENS), high = min(place, (page + 1) * PAGE_TOKENS) - 1;
        const int slot = page - first_page;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int at = 2 * (i * BLOCK + threadIdx.x), head = at / HD, dim = at % HD,
                      to = (int)__umulhi(at, spread.share_of);
            if (head >= group) continue;
            Chain chain = {NONE, 0, make_float2(0, 0)};
            take_eight(chain, low / PIECE % PAGE_PIECES, high / PIECE % PAGE_PIECES + 1,
                [&](int w) { return s.sums[w][head]; },
                [&](int w) { return *(const float2 *)(part_at + (w - warp) * RING_FLOATS + at); });
            push(address_in(shared_address(sent + slot * share + at - to * share), to), chain.o, address_in(barrier, to));
            if (dim / 2 < spread.cluster)
                push(address_in(shared_address(received + slot * group + head), dim / 2),
                    make_float2(chain.most, chain.sum), address_in(barrier, dim / 2));
        }
        if (page + spread.cluster >= end_page) break;
        __syncthreads();
        bring(from, next, true);
        from = page_of(next + spread.cluster);
        turn = turn + 1 == AHEAD ? 0 : turn + 1;
    }
    copies_wait<0>();
    heads_own(s.heads, group, cap);
    __syncthreads();
    barrier_wait(barrier, 0);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int at = 2 * (i * BLOCK + threadIdx.x), head = (rank * share + at) / HD, last = end_page - first_page - 1;
        if (at >= share) continue;
        Chain chain = {NONE, 0, make_float2(0, 0)};
        for (int span = first_page / SPAN_PAGES * SPAN_PAGES; span < end_page; span += SPAN_PAGES) {
            Chain own = {NONE, 0, make_float2(0, 0)};
            const auto slot = [&](int w) { return min(max(span + w - first_page, 0), last); };
            take_eight(own, first_page - span, end_page - span, [&](int w) { return received[slot(w) * group + head]; },
                [&](int w) { return *(const float2 *)(sent + slot(w) * share + at); });
            chain.take(make_float2(own.most, own.sum), own.o);
        }
        row_end(a, s.heads, row, kv_head, group, rank * share + at, chain);
    }
#endif
}

/* ---- a block for a span ---- */

/* Slots of a warp's ring. deep: a block has a multiprocessor to itself. */
template <int HD, bool DEEP> constexpr int RING_SLOTS = (DEEP ? 24 << 10 : HD > 128 ? 16 << 10 : 12 << 10) / SLOT_BYTES<HD>;

template <int HD> struct SpanShared {
    RowHeads<HD> heads;
    float spare[WARPS][HD];
    float2 sums[WARPS][GENERATED_GROUP_MAX]; /* of each warp's page */
    int last;
};

template <int HD, int NT, bool DEEP> __global__ void __launch_bounds__(BLOCK, HD * NT > 128 || DEEP ? 1 : 2)
    span_kernel(const __grid_constant__ Attend a, int most_spans) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    constexpr int PAIRS = THREAD_PAIRS<HD, NT>, SLOTS = RING_SLOTS<HD, DEEP>, RING_FLOATS = SLOTS * SLOT_BYTES<HD> / 4;
    extern __shared__ __align__(128) float rings[]; /* of each warp, at last its part */
    __shared__ __align__(16) SpanShared<HD> s;
    let_next_begin();
    const int warp = threadIdx.x / 32, group = a.heads / a.kv_heads, kv_head = blockIdx.y, row = a.first_row + blockIdx.z;
    const int place = __ldcg(a.step.places + row), first = a.window && place >= a.window ? place - a.window + 1 : 0;
    const int spans = max(1, (place + SPAN - 1) / SPAN - first / SPAN), span = first / SPAN + blockIdx.x;
    if ((int)blockIdx.x >= spans || place < 0 /* others have the row */) {
        wait_for_previous();
        return;
    }
    const int32_t *table = a.tables + (int64_t)__ldcg(a.step.runs + row) * a.table_stride;
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
    float *energies = energies_at(a, table, place) + kv_head * PAGE_TOKENS + place % PAGE_TOKENS;
    heads_begin(a, row, s.heads);
    __syncthreads();
    wait_for_previous();
    if (a.prepared)
#pragma unroll 1
        for (int i = 0; i < SLOTS; i++) ring.bring();
    heads_take(a, own_key, energies, row, kv_head, group, a.k && !a.prepared && blockIdx.x == 0, s.heads, s.spare[warp],
        [](int, float *) {});
    const float cap = a.softcap * LOG2E;
    if (low < high) {
        Query<HD> query[NT];
#pragma unroll
        for (int n = 0; n < NT; n++) heads_query(s.heads, n * 8, group, query[n]);
        pieces_fold<HD, NT>(pieces, ring, query, cap, group, rings + warp * RING_FLOATS, s.sums[warp]);
    }
    heads_own(s.heads, group, cap);
    __syncthreads();

    /* The span's pages in order. */
    Chain chain[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        chain[i] = {NONE, 0, make_float2(0, 0)};
        const int at = 2 * (i * BLOCK + threadIdx.x), head = at / HD;
        if (head >= group) continue;
        take_eight(chain[i], first_page - span * SPAN_PAGES, end_page - span * SPAN_PAGES,
            [&](int w) { return s.sums[w][head]; }, [&](int w) { return *(const float2 *)(rings + w * RING_FLOATS + at); });
    }
    if (spans > 1) {
        /* The last block to arrive has all spans. */
        const int64_t stride = left_floats<HD>(group), rows = (int64_t)blockIdx.z * a.kv_heads + kv_head;
        float *all = a.partials + rows * most_spans * stride, *mine = all + blockIdx.x * stride;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int at = 2 * (i * BLOCK + threadIdx.x), head = at / HD;
            if (head >= group) continue;
            __stcg((float2 *)(mine + at), chain[i].o);
            if (at % HD == 0) __stcg((float2 *)(mine + group * HD) + head, make_float2(chain[i].most, chain[i].sum));
        }
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
                    take_eight(chain[i], 0, count - w, [&](int n) { return ((const float2 *)(from(n) + group * HD))[head]; },
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

/* ---- dealing ---- */

/* Clusters as long as all their blocks have a multiprocessor to themselves; with few blocks for spans rings are deep. */
enum { SPREAD_BLOCKS_MAX = 132, SPREAD_ROUNDS_MAX = 2, DEEP_BLOCKS_MAX = 132 };
static int pages_seen(const Attend &a) {
    const int pages = a.slices * SLICE / PAGE_TOKENS;
    return a.window ? min(pages, (a.window - 1 + PAGE_TOKENS - 1) / PAGE_TOKENS + 1) : pages;
}
static int spans_seen(const Attend &a) {
    const int spans = (a.slices * SLICE / PAGE_TOKENS + SPAN_PAGES - 1) / SPAN_PAGES;
    return a.window ? min(spans, (a.window - 1 + SPAN - 1) / SPAN + 1) : spans;
}
/* Blocks of a cluster; 1: spans have blocks. */
static int cluster_of(const Attend &a) {
    const int pages = pages_seen(a);
    int cluster = 1;
    while (cluster < CLUSTER_MAX && cluster < pages && a.rows * a.kv_heads * 2 * cluster <= SPREAD_BLOCKS_MAX) cluster *= 2;
    const int rounds = a.heads / a.kv_heads > 8 ? 1 : SPREAD_ROUNDS_MAX;
    return pages <= SPREAD_PAGES_MAX && pages <= cluster * rounds ? cluster : 1;
}

template <int HD, int NT, int AHEAD> static cudaError_t spread(cudaStream_t stream, const Attend &a, int cluster) {
    const auto kernel = spread_kernel<HD, NT, AHEAD>;
    const int group = a.heads / a.kv_heads, share = group * HD / cluster, pages = pages_seen(a);
    const int bytes = AHEAD * 2 * SLOT_BYTES<HD> * WARPS + pages * (share * (int)sizeof(float) + group * (int)sizeof(float2));
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (!error) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error) return error;
    const Spreading spreading = {cluster, pages, (unsigned)((1ull << 32) / (unsigned)share) + 1};
    return launch_clusters(
        stream, kernel, dim3(cluster, a.kv_heads, a.rows), BLOCK, (size_t)bytes, cluster, a, spreading);
}
template <int HD, int NT, bool DEEP> static cudaError_t in_spans(cudaStream_t stream, const Attend &a) {
    const int bytes = RING_SLOTS<HD, DEEP> * SLOT_BYTES<HD> * WARPS, spans = spans_seen(a);
    const cudaError_t error =
        cudaFuncSetAttribute(span_kernel<HD, NT, DEEP>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return error ? error
                 : launch(stream, span_kernel<HD, NT, DEEP>, dim3(spans, a.kv_heads, a.rows), BLOCK, (size_t)bytes, a, spans);
}
template <int HD> static cudaError_t generated(cudaStream_t stream, const Attend &a) {
    const int cluster = cluster_of(a), wide = a.heads / a.kv_heads > 8;
    if (cluster > 1) {
        if (wide) return spread<HD, 2, 1>(stream, a, cluster);
        return HD <= 128 && pages_seen(a) > cluster ? spread<HD, 1, HD <= 128 ? 2 : 1>(stream, a, cluster)
                                                    : spread<HD, 1, 1>(stream, a, cluster);
    }
    if (wide) return in_spans<HD, 2, false>(stream, a);
    bool deep = a.rows * a.kv_heads * spans_seen(a) <= DEEP_BLOCKS_MAX;
    return HD <= 128 && deep ? in_spans<HD, 1, HD <= 128>(stream, a) : in_spans<HD, 1, false>(stream, a);
}

extern "C" int attention_generated_fits(const Attend *a) {
    return launch_early && attention_has_tiles(*a) && a->heads / a->kv_heads <= GENERATED_GROUP_MAX &&
        a->kv_heads <= GENERATED_ARRIVALS / ATTENTION_GENERATED_ROWS;
}
extern "C" size_t attention_generated_floats(const Attend *a) {
    const int spans = spans_seen(*a);
    const int group = a->heads / a->kv_heads;
    return spans > 1 ? (size_t)spans * (size_t)a->kv_heads * (size_t)(group * (a->head_dim + 2) + 3) : 0;
}
extern "C" cudaError_t attention_generated(cudaStream_t stream, const Attend *a) {
    return a->head_dim == 64 ? generated<64>(stream, *a)
        : a->head_dim == 128 ? generated<128>(stream, *a)
                             : generated<256>(stream, *a);
}
