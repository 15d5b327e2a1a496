/* Shared by flash_decode.cu and flash_decode_kvq4.cu: pieces of 16 tokens, folding in order, heads. */
#pragma once
#include "backend/cuda/runtime/bulk.cuh"
#include "backend/cuda/attention/heads.cuh"
#include "backend/cuda/attention/flash_slice.cuh"

enum { PIECE = 16, PAGE_PIECES = PAGE_TOKENS / PIECE, SPAN_PAGES = WARPS, SPAN = SPAN_PAGES * PAGE_TOKENS };
enum { FLASH_DECODE_GROUP_MAX = 16 };
static_assert(PAGE_PIECES == WARPS, "a warp has a piece of a page or a page of a span");

/* The folded result so far of two dims of a head. */
struct Chain {
    float most, sum;
    float2 o;
    __device__ __forceinline__ void take(float2 most_sum, float2 part) {
        float keep, take;
        fold_factors(most, most_sum.x, keep, take);
        sum = folded(sum, keep, most_sum.y, take);
        o.x = folded(o.x, keep, part.x, take);
        o.y = folded(o.y, keep, part.y, take);
    }
};

/* Parts from … to − 1 of eight in order, as Chain.take() has them; all may be read. Factors do not wait for sums. */
template <class Sums, class Part>
__device__ __forceinline__ void take_eight(Chain &c, int from, int to, const Sums &sums, const Part &part) {
    float2 s[8], o[8];
    float keep[8], take[8];
#pragma unroll
    for (int w = 0; w < 8; w++) s[w] = sums(w), o[w] = part(w);
#pragma unroll
    for (int w = 0; w < 8; w++) {
        const float next = w >= from && w < to ? fmaxf(c.most, s[w].x) : c.most;
        keep[w] = power_of_two(c.most - next);
        take[w] = power_of_two(s[w].x - next);
        c.most = next;
    }
#pragma unroll
    for (int w = 0; w < 8; w++) {
        const bool on = w >= from && w < to;
        const float sum = folded(c.sum, keep[w], s[w].y, take[w]), x = folded(c.o.x, keep[w], o[w].x, take[w]),
                    y = folded(c.o.y, keep[w], o[w].y, take[w]);
        c.sum = on ? sum : c.sum;
        c.o.x = on ? x : c.o.x;
        c.o.y = on ? y : c.o.y;
    }
}

/* The same of eight parts; missing ones are {NONE, 0} and zeros, which have no effect. */
template <class Sums, class Part>
__device__ __forceinline__ void take_eight(Chain &c, const Sums &sums, const Part &part) {
    float2 s[8], o[8];
    float keep[8], take[8];
#pragma unroll
    for (int w = 0; w < 8; w++) s[w] = sums(w), o[w] = part(w);
#pragma unroll
    for (int w = 0; w < 8; w++) fold_factors(c.most, s[w].x, keep[w], take[w]);
#pragma unroll
    for (int w = 0; w < 8; w++) {
        c.sum = folded(c.sum, keep[w], s[w].y, take[w]);
        c.o.x = folded(c.o.x, keep[w], o[w].x, take[w]);
        c.o.y = folded(c.o.y, keep[w], o[w].y, take[w]);
    }
}

/* A warp's ring in shared memory, through which keys and values pass 16 tokens at a time. */
template <int HD> constexpr int SLOT_BYTES = 2 * (PIECE * HD);

/* The row's heads of a kv head: queries as f16 times scale · log2 e, its own key and value. */
template <int HD, int GROUP = FLASH_DECODE_GROUP_MAX> struct RowHeads {
    enum { QUERY_STRIDE = HD + 32 /* lanes that read together use different banks */ };
    __half queries[GROUP][QUERY_STRIDE], key[HD], value[HD];
    float2 rotations[HD / 2];
    float own[GROUP]; /* scores of the row's own key */
    float energies[GROUP];
    float squares[2][WARPS]; /* norms over all heads: the warps' sums of squares of q and k */
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ uint32_t address_in(uint32_t own, int rank) {
    uint32_t at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(own), "r"(rank));
    return at;
}
/* Writes to a block of the cluster, whose barrier counts the bytes. */
__device__ __forceinline__ void push(uint32_t at, float2 v, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(at),
                 "f"(v.x), "f"(v.y), "r"(barrier)
                 : "memory");
}

/* The scores of a piece. Even and odd steps are chains of their own. */
template <int HD>
__device__ __forceinline__ void piece_scores(const uint4 k[HD / 16], const Query<HD> &query, float s[4]) {
    float odd[4] = {0, 0, 0, 0};
    s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
    for (int i = 0; i < HD / 32; i++) {
        const uint32_t low[4] = {k[2 * i].x, k[2 * i + 1].x, k[2 * i].y, k[2 * i + 1].y};
        const uint32_t high[4] = {k[2 * i].z, k[2 * i + 1].z, k[2 * i].w, k[2 * i + 1].w};
        multiply(s, low, query.w[4 * i], query.w[4 * i + 1]);
        multiply(odd, high, query.w[4 * i + 2], query.w[4 * i + 3]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] += odd[i];
}

/* softcap · tanh(s / softcap), both times log2 e; cap: that softcap */
__device__ __forceinline__ float score_capped(float s, float cap) {
    return cap - 2 * cap / (1 + power_of_two(s * (2 * LOG2E / cap)));
}

/* Scores (token g or g + 8; column 2t or 2t + 1) to exponentials as B; the largest of each column, the sum of the
 * exponentials as f16. on: the row sees the tokens. */
__device__ __forceinline__ void piece_exponentials(
    float s[4], const bool on[2], float cap, uint32_t p[2], float most[2], float sum[2]) {
    if (cap > 0)
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] = score_capped(s[i], cap);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        most[c] = fmaxf(on[0] ? s[c] : NONE, on[1] ? s[c + 2] : NONE);
#pragma unroll
        for (int k = 4; k < 32; k *= 2) most[c] = fmaxf(most[c], __shfl_xor_sync(~0u, most[c], k));
    }
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] = on[i / 2] ? power_of_two(s[i] - most[i % 2]) : 0;
    p[0] = transposed(packed(s[0], s[1]));
    p[1] = transposed(packed(s[2], s[3]));
    const uint32_t ones[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
    float sums[4] = {0, 0, 0, 0};
    multiply(sums, ones, p[0], p[1]);
    sum[0] = sums[0];
    sum[1] = sums[1];
}

__device__ __forceinline__ void copy_sixteen(uint32_t to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits until at most N groups of the warp's copies are in flight. */
template <int N> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
    __syncwarp();
}
/* Pieces of 16 bytes trade places so that lanes that read together find different banks. */
__device__ __forceinline__ int key_place(int row, int piece) { return piece ^ (row & 1) << 2; }
__device__ __forceinline__ int value_place(int row, int piece) { return piece ^ (row & 6); }

/* Copies keys or values of a piece; `there` tokens exist; the rest is zeros. */
template <int HD>
static __device__ __noinline__ void slot_bring_some(uint32_t to, const __half *from, int there, bool value) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = lane; i < PIECE * HD / 8; i += 32) {
        const int row = i / (HD / 8), piece = i % (HD / 8);
        copy_sixteen(to + (row * (HD / 8) + (value ? value_place(row, piece) : key_place(row, piece))) * 16,
            from + (row < there ? i * 8 : 0), row < there);
    }
}
/* The same without a call, where many warps wait for memory rather than for instructions. */
template <int HD>
__device__ __forceinline__ void slot_bring_here(uint32_t to, const __half *from, int there, bool value) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < HD / 16; j++) {
        const int i = 32 * j + lane, row = i / (HD / 8), piece = i % (HD / 8);
        copy_sixteen(to + (row * (HD / 8) + (value ? value_place(row, piece) : key_place(row, piece))) * 16,
            from + (row < there ? i * 8 : 0), row < there);
    }
}
template <int HD> __device__ __forceinline__ void slot_bring(uint32_t to, const __half *from, int there, bool value) {
    if (there < PIECE) {
        slot_bring_some<HD>(to, from, there, value);
        return;
    }
    /* A lane has the same piece of every so-many-th row, whose place changes with the row alone. */
    constexpr int ROWS = 32 * 8 / HD;
    static_assert(32 * 8 % HD == 0, "a warp copies whole rows at a time");
    const int lane = threadIdx.x % 32, row = lane / (HD / 8), piece = lane % (HD / 8);
    from += lane * 8;
    to += row * HD * 2;
#pragma unroll
    for (int j = 0; j < PIECE / ROWS; j++) {
        const int at = value ? value_place(j * ROWS + row, piece) : key_place(j * ROWS + row, piece);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + j * ROWS * HD * 2 + at * 16),
                     "l"(from + j * ROWS * HD)
                     : "memory");
    }
}
template <int HD> __device__ __forceinline__ void slot_keys(uint4 k[HD / 16], const uint8_t *slot) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    keys_load<HD>(k,
        [&](int h, int i) { return *(const uint4 *)(slot + ((g + h) * (HD / 8) + key_place(g + h, 4 * i + t)) * 16); });
}
template <int HD> __device__ __forceinline__ void slot_values(Values v[HD / 64], const uint8_t *slot) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int d = 0; d < HD / 64; d++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = 2 * t + i % 2 + i / 2 * 8;
            v[d].v[i] = *(const uint4 *)(slot + (row * (HD / 8) + value_place(row, 8 * d + g)) * 16);
        }
}

/* The pieces of one page that a warp has, from `piece` to before `end`. */
struct Pieces {
    const __half *page; /* the kv head's */
    int piece, end;
    int first, place; /* visible range before the row's own token */
};

template <int HD, int SLOTS, bool QUICK> struct PieceRing {
    const uint8_t *slots;
    uint32_t address;
    const __half *page;
    int next, end, place; /* pieces, keys and values on their own */
    int in, out;

    __device__ __forceinline__ PieceRing(const uint8_t *slots, const Pieces &p)
        : slots(slots), address(shared_address(slots)), page(p.page), next(2 * p.piece), end(2 * p.end), place(p.place),
          in(0), out(0) {}
    __device__ __forceinline__ void bring() {
        if (next < end) {
            const int token = next / 2 * PIECE;
            const bool value = next % 2;
            const __half *from = page + ((value ? PAGE_TOKENS : 0) + token % PAGE_TOKENS) * HD;
            const uint32_t to = address + in * SLOT_BYTES<HD>;
            if (QUICK)
                slot_bring<HD>(to, from, place - token, value);
            else
                slot_bring_here<HD>(to, from, place - token, value);
            in = in + 1 == SLOTS ? 0 : in + 1;
            next++;
        }
        copies_commit();
    }
    /* Waits for the oldest copy. */
    __device__ __forceinline__ const uint8_t *take() {
        copies_wait<SLOTS - 1>();
        const uint8_t *at = slots + out * SLOT_BYTES<HD>;
        out = out + 1 == SLOTS ? 0 : out + 1;
        return at;
    }
};

/* Column 2t + c of sums, rows of a tile being dims 8g + 2e and one more. */
template <int HD> __device__ __forceinline__ void part_put(float *to, const float (&o)[HD / 64][4][4], int c) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int d = 0; d < HD / 64; d++) {
        *(float4 *)(to + 64 * d + 8 * g) = make_float4(o[d][0][c], o[d][0][c + 2], o[d][1][c], o[d][1][c + 2]);
        *(float4 *)(to + 64 * d + 8 * g + 4) = make_float4(o[d][2][c], o[d][2][c + 2], o[d][3][c], o[d][3][c + 2]);
    }
}

/* The warp's pieces, on their way through the ring, into its part [head][dim] and its sums. The part may lie in the
 * ring. complete(slot, token, value): puts what the pages do not have yet into a slot with the keys or values of the
 * piece that begins at the token. */
template <int HD, int NT, int SLOTS, bool QUICK, class Complete>
__device__ __forceinline__ void pieces_fold(const Pieces &p, PieceRing<HD, SLOTS, QUICK> &ring,
    const Query<HD> query[NT], float cap, int group, float *part, float2 *sums, const Complete &complete) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float most[NT][2], sum[NT][2], o[NT][HD / 64][4][4];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        most[n][0] = most[n][1] = NONE, sum[n][0] = sum[n][1] = 0;
#pragma unroll
        for (int i = 0; i < HD / 4; i++) o[n][i / 16][i / 4 % 4][i % 4] = 0;
    }
#pragma unroll 1
    for (int piece = p.piece; piece < p.end; piece++) {
        const int token = piece * PIECE + g;
        const bool on[2] = {token >= p.first && token < p.place, token + 8 >= p.first && token + 8 < p.place};
        float scores[NT][4], keep[NT][2], take[NT][2];
        uint32_t weights[NT][2];
        {
            const uint8_t *at = ring.take();
            complete(at, piece * PIECE, false);
            uint4 k[HD / 16];
            slot_keys<HD>(k, at);
            __syncwarp();
            ring.bring();
#pragma unroll
            for (int n = 0; n < NT; n++) piece_scores<HD>(k, query[n], scores[n]);
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float own[2], ones[2];
            piece_exponentials(scores[n], on, cap, weights[n], own, ones);
#pragma unroll
            for (int c = 0; c < 2; c++) {
                fold_factors(most[n][c], own[c], keep[n][c], take[n][c]);
                sum[n][c] = folded(sum[n][c], keep[n][c], ones[c], take[n][c]);
            }
        }
        const uint8_t *at = ring.take();
        complete(at, piece * PIECE, true);
        Values v[HD / 64];
        slot_values<HD>(v, at);
        __syncwarp();
        ring.bring();
#pragma unroll
        for (int d = 0; d < HD / 64; d++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                uint32_t numbers[4];
                values_numbers(v[d], e, numbers);
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    float own[4] = {0, 0, 0, 0};
                    multiply(own, numbers, weights[n][0], weights[n][1]);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        o[n][d][e][i] = folded(o[n][d][e][i], keep[n][i % 2], own[i], take[n][i % 2]);
                }
            }
    }
    copies_wait<0>();
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int head = n * 8 + 2 * t + c;
            if (head >= group) continue;
            if (g == 0) sums[head] = make_float2(most[n][c], sum[n][c]);
            part_put<HD>(part + head * HD, o[n], c);
        }
}

template <int HD, int NT, int SLOTS, bool QUICK>
__device__ __forceinline__ void pieces_fold(const Pieces &p, PieceRing<HD, SLOTS, QUICK> &ring,
    const Query<HD> query[NT], float cap, int group, float *part, float2 *sums) {
    pieces_fold<HD, NT>(p, ring, query, cap, group, part, sums, [](const uint8_t *, int, bool) {});
}

/* Inputs of the rotations of a row, loaded before any wait. */
struct RopeReady {
    int position;
    float frequency;
    __device__ __forceinline__ RopeReady(const Attend &a, int row) : position(0), frequency(0) {
        if (a.prepared) return;
        position = __ldcg(a.step.positions + row);
        if (threadIdx.x < a.rope.dims / 2) frequency = __ldg(a.rope.frequencies + threadIdx.x);
    }
};
/* Work independent of the previous kernel: rotations; prefetches of norm weights. */
template <int HD, int GROUP>
__device__ __forceinline__ void heads_begin(
    const Attend &a, int row, int kv_head, int group, const RopeReady &ready, RowHeads<HD, GROUP> &s) {
    if (a.prepared) return;
    if (threadIdx.x < a.rope.dims / 2) {
        float sn, cs;
        sincosf(angle_of(a.rope, a.step, row, threadIdx.x, ready.position, ready.frequency), &sn, &cs);
        s.rotations[threadIdx.x] = make_float2(cs, sn);
    }
    constexpr int LINE = 32;
    const auto soon = [&](const RowNorm &norm, int heads) {
        const int first = a.norm_full ? kv_head * heads * HD : 0, count = a.norm_full ? heads * HD : HD;
        if (norm.width && norm.weight && threadIdx.x * LINE < count)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(norm.weight + first + threadIdx.x * LINE));
    };
    soon(a.q_norm, group);
    soon(a.k_norm, 1);
}
/* Norms over all heads of q and of k, by the whole block, in the order of row_scaling(); all of their rows are RMS. */
template <int HD, int GROUP>
__device__ __forceinline__ void heads_whole(const Attend &a, int row, RowHeads<HD, GROUP> &s, Scaling whole[2]) {
    const float *const x[2] = {a.q + (int64_t)row * a.heads * HD, a.k + (int64_t)row * a.kv_heads * HD};
    const int width[2] = {a.heads * HD, a.k ? a.kv_heads * HD : 0};
    const float eps[2] = {a.q_norm.eps, a.k_norm.eps};
    float sum[2] = {0, 0};
#pragma unroll 1
    for (int first = 4 * threadIdx.x; first < a.heads * HD; first += 2 * 4 * BLOCK) {
        float4 v[2][2];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int at = first + j * 4 * BLOCK;
                v[n][j] = at < width[n] ? __ldcg((const float4 *)(x[n] + at)) : make_float4(0, 0, 0, 0);
            }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                sum[n] +=
                    (v[n][j].x * v[n][j].x + v[n][j].y * v[n][j].y) + (v[n][j].z * v[n][j].z + v[n][j].w * v[n][j].w);
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        sum[n] = warp_sum(sum[n]);
        if (threadIdx.x % 32 == 0) s.squares[n][threadIdx.x / 32] = sum[n];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 2; n++) {
        sum[n] = s.squares[n][0];
#pragma unroll
        for (int i = 1; i < WARPS; i++) sum[n] += s.squares[n][i];
        whole[n] = {0, 1.0f / sqrtf(sum[n] / (float)width[n] + eps[n])};
    }
}
/* own_key: where the row's is in its page. spare: HD floats of the warp's own. appends: it also puts key and value into
 * the page, and keeps the inputs of heads_energy(). query(head, v): further use of a query, whose dim lane + 32j
 * v[j] is, times scale · log2 e. */
template <int HD, int GROUP, class Use>
__device__ __forceinline__ void heads_take(const Attend &a, __half *own_key, int row, int kv_head, int group,
    bool appends, RowHeads<HD, GROUP> &s, float *spare, const Use &use) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __half *own_value = own_key + PAGE_TOKENS * HD;
    Scaling whole[2] = {{0, 1}, {0, 1}};
#pragma unroll 1
    for (int h = warp; h < group + WARPS; h += WARPS) { /* every warp goes through the first round */
        const bool on = h <= group, key = h == group, there = key && (a.prepared || !a.k);
        const int head = key ? kv_head : kv_head * group + h;
        const float *x = (key ? a.k + (int64_t)row * a.kv_heads * HD : a.q + (int64_t)row * a.heads * HD) + head * HD;
        float v[HD / 32], value[HD / 32], square = 0;
#pragma unroll
        for (int j = 0; j < HD / 32; j++) {
            v[j] = on && !there ? load(x + lane + 32 * j) : 0;
            value[j] = key && !there ? load(a.v + ((int64_t)row * a.kv_heads + kv_head) * HD + lane + 32 * j) : 0;
        }
        if (h == warp && a.norm_full && !a.prepared) {
            if (a.whole) {
                whole[0] = whole_scaling(a, row, 0);
                whole[1] = whole_scaling(a, row, 1);
            } else {
                heads_whole(a, row, s, whole);
            }
        }
        if (!on) break;
        if (there) {
#pragma unroll
            for (int j = 0; j < HD / 32; j++) {
                s.key[lane + 32 * j] = __ushort_as_half(__ldcg((const unsigned short *)own_key + lane + 32 * j));
                s.value[lane + 32 * j] = __ushort_as_half(__ldcg((const unsigned short *)own_value + lane + 32 * j));
            }
            continue;
        }
        if (!a.prepared) {
            const RowNorm &norm = key ? a.k_norm : a.q_norm;
            const Scaling scaling = key ? whole[1] : whole[0];
            head_rotated<HD>(
                a, x, norm, a.norm_full && norm.width ? &scaling : nullptr, head * HD, s.rotations, spare, v);
        }
        if (key) {
#pragma unroll
            for (int j = 0; j < HD / 32; j++) {
                const int i = lane + 32 * j;
                s.key[i] = __float2half_rn(v[j]);
                s.value[i] = __float2half_rn(value[j]);
                if (appends) own_key[i] = s.key[i], own_value[i] = s.value[i];
            }
            continue;
        }
#pragma unroll
        for (int j = 0; j < HD / 32; j++) {
            square += v[j] * a.scale * (v[j] * a.scale);
            v[j] *= a.scale * LOG2E;
            s.queries[h][lane + 32 * j] = __float2half_rn(v[j]);
        }
        use(h, v);
        if (!appends) continue;
        square = warp_sum(square);
        if (lane == 0) s.energies[h] = square;
    }
    __syncthreads();
}
/* True if heads have a common shape, and a warp has at most one, or the key besides. The dims of a pair are in the same
 * lane then. */
__device__ __forceinline__ bool heads_usual(const Attend &a, int group) {
    return !a.prepared && a.k && !a.whole && group <= WARPS && a.rope.dims % 64 == 0 && !a.rope.interleaved &&
        !a.norm_last && !a.q_norm.kind && !a.k_norm.kind;
}
/* Data independent of the previous kernel, in registers, so that the rest of the work on a head of a common shape is
 * little code without branches. After heads_begin(), all threads of the block seeing it. */
template <int HD> struct HeadReady {
    bool normed;
    const float *x; /* the warp's head: a query's, or the key's in the warp behind those of the queries */
    float2 turn[HD / 64];
    float weight[HD / 32];

    template <int GROUP>
    __device__ __forceinline__ HeadReady(
        const Attend &a, bool usual, int row, int kv_head, int group, const RowHeads<HD, GROUP> &s) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const bool key = warp == group;
        const RowNorm &norm = key ? a.k_norm : a.q_norm;
        normed = norm.width != 0;
        const int head = key ? kv_head : kv_head * group + warp;
        x = (key ? a.k + (int64_t)row * a.kv_heads * HD : a.q + (int64_t)row * a.heads * HD) + head * HD + lane;
#pragma unroll
        for (int j = 0; j < HD / 64; j++)
            turn[j] = usual && 64 * j < a.rope.dims ? s.rotations[lane + 32 * j] : make_float2(0, 0);
        const bool weighed = usual && normed && norm.weight && warp <= group;
#pragma unroll
        for (int j = 0; j < HD / 32; j++)
            weight[j] = weighed ? __ldg(norm.weight + (a.norm_full ? head * HD : 0) + lane + 32 * j) : 1;
    }
    /* That of the key, in a warp that has a query besides. */
    __device__ __forceinline__ float key_weight(const Attend &a, int kv_head, int j) const {
        const float *from = a.k_norm.weight + (a.norm_full ? kv_head * HD : 0) + threadIdx.x % 32 + 32 * j;
        return a.k_norm.weight ? __ldg(from) : 1;
    }
};
/* Heads of any kind, in a function apart, so that the code of usual ones is short. */
template <int HD, int GROUP>
static __device__ __noinline__ void heads_take_rarely(const Attend &a, __half *own_key, int row, int kv_head, int group,
    bool appends, RowHeads<HD, GROUP> &s, float *spare) {
    heads_take(a, own_key, row, kv_head, group, appends, s, spare, [](int, float *) {});
}
/* Usual heads; the numbers are heads_take()'s. Returns what the warp has for heads_squares(). */
template <int HD, int GROUP>
__device__ __forceinline__ float heads_take_ready(const Attend &a, const HeadReady<HD> &ready, __half *own_key, int row,
    int kv_head, int group, bool appends, RowHeads<HD, GROUP> &s) {
    constexpr int N = HD / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pairs = a.rope.dims / 64;
    const int64_t own = ((int64_t)row * a.kv_heads + kv_head) * HD + lane;
    float square = 0;
    Scaling whole[2] = {{0, 1}, {0, 1}};
#pragma unroll 1
    for (int h = warp; h < group + WARPS; h += WARPS) { /* every warp goes through the first round */
        const bool key = h == group, first = h == warp;
        float v[N] = {}, value[N] = {};
        if (h <= group)
#pragma unroll
            for (int j = 0; j < N; j++) v[j] = load((first ? ready.x : a.k + own) + 32 * j);
        if (key)
#pragma unroll
            for (int j = 0; j < N; j++) value[j] = load(a.v + own + 32 * j);
        if (first && a.norm_full) heads_whole(a, row, s, whole);
        if (h > group) break;
        if (key ? a.k_norm.width : ready.normed) {
            float factor = whole[key].factor;
            if (!a.norm_full) {
                float sum = 0;
#pragma unroll
                for (int j = 0; j < N; j++) sum += v[j] * v[j];
                factor = 1.0f / sqrtf(warp_sum(sum) / (float)HD + (key ? a.k_norm.eps : a.q_norm.eps));
            }
#pragma unroll
            for (int j = 0; j < N; j++)
                v[j] = v[j] * factor * (first ? ready.weight[j] : ready.key_weight(a, kv_head, j));
        }
#pragma unroll
        for (int half = N / 2; half > 0; half--)
            if (half == pairs)
#pragma unroll
                for (int j = 0; j < half; j++) {
                    const float one = v[j] * a.rope.scale, other = v[j + half] * a.rope.scale;
                    v[j] = one * ready.turn[j].x - other * ready.turn[j].y;
                    v[j + half] = one * ready.turn[j].y + other * ready.turn[j].x;
                }
        __half *to = (key ? s.key : s.queries[h]) + lane;
        const float scale = key ? 1 : a.scale * LOG2E;
#pragma unroll
        for (int j = 0; j < N; j++) to[32 * j] = __float2half_rn(v[j] * scale);
        if (!key)
#pragma unroll
            for (int j = 0; j < N; j++) square += v[j] * a.scale * (v[j] * a.scale);
        else
#pragma unroll
            for (int j = 0; j < N; j++) {
                const int i = lane + 32 * j;
                s.value[i] = __float2half_rn(value[j]);
                if (appends) own_key[i] = s.key[i], own_key[PAGE_TOKENS * HD + i] = s.value[i];
            }
    }
    __syncthreads();
    return square;
}
/* Keeps the inputs of heads_energy(). */
template <int HD, int GROUP>
__device__ __forceinline__ void heads_squares(RowHeads<HD, GROUP> &s, int group, float square) {
    if ((int)threadIdx.x / 32 >= group) return;
    square = warp_sum(square);
    if (threadIdx.x % 32 == 0) s.energies[threadIdx.x / 32] = square;
}
/* Stores the energy of the row's queries in its page. */
template <int HD, int GROUP>
__device__ __forceinline__ void heads_energy(const RowHeads<HD, GROUP> &s, int group, float *energies) {
    if (threadIdx.x) return;
    float energy = s.energies[0];
#pragma unroll 1
    for (int h = 1; h < group; h++) energy += s.energies[h];
    *energies = energy / (float)group;
}
template <int HD, int GROUP>
__device__ __forceinline__ void heads_query(const RowHeads<HD, GROUP> &s, int first, int group, Query<HD> &q) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < HD / 32; i++) {
        uint4 w = make_uint4(0, 0, 0, 0);
        if (first + g < group) w = *(const uint4 *)&s.queries[first + g][32 * i + 8 * t];
        q.w[4 * i] = w.x, q.w[4 * i + 1] = w.y, q.w[4 * i + 2] = w.z, q.w[4 * i + 3] = w.w;
    }
}
/* The scores of the row's own token. */
template <int HD, int GROUP> __device__ __forceinline__ void heads_own(RowHeads<HD, GROUP> &s, int group, float cap) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int h = warp; h < group; h += WARPS) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < HD / 32; j++)
            sum = fmaf(__half2float(s.queries[h][lane + 32 * j]), __half2float(s.key[lane + 32 * j]), sum);
        sum = warp_sum(sum);
        if (cap > 0) sum = score_capped(sum, cap);
        if (lane == 0) s.own[h] = sum;
    }
}

/* Floats of the partial result of `group` heads that a block leaves for the last block: [head][dim], then sums; a
 * multiple of four. */
template <int HD> __host__ __device__ constexpr int left_floats(int group) { return (group * (HD + 2) + 3) / 4 * 4; }
/* Copies such partial results to shared memory, by the whole block. */
__device__ __forceinline__ void parts_bring(float *to, const float *from, int floats) {
    const uint32_t address = shared_address(to);
#pragma unroll 8
    for (int i = threadIdx.x; i < floats / 4; i += BLOCK) copy_sixteen(address + i * 16, from + i * 4, true);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
}
#endif
