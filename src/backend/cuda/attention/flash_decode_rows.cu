/* Attention of steps with many rows, one for each sequence, in one kernel: a block takes a row and a kv head, applies
 * norms and RoPE to its queries and key, and walks all tokens that they see. Its warps take slices in turn, through
 * rings in shared memory of 16 tokens' keys or values at a time; after each round the sums of the slices are folded in
 * order. The bits are those of the other slice kernels (flash_slice.cuh). */
#include "backend/cuda/attention/heads.cuh"
#include "backend/cuda/attention/flash_slice.cuh"

enum { RING_BYTES = 12 << 10, BLOCKS_LEAST = 128 };

/* GROUP: most heads of a kv head. */
template <int HD, int GROUP> struct DecodeRows {
    static constexpr int SLOT_BYTES = 16 * HD * 2,
                         SLOTS = RING_BYTES * (GROUP > 4 ? 2 : 3) / 3 / SLOT_BYTES < 2
        ? 2
        : RING_BYTES * (GROUP > 4 ? 2 : 3) / 3 / SLOT_BYTES;
    struct Shared {
        uint8_t ring[WARPS][SLOTS][SLOT_BYTES];
        union {
            float parts[WARPS][GROUP][HD]; /* results of the slices of a round */
            struct {
                float heads[GROUP + 1][HD]; /* queries, key */
                float2 rotations[HD / 2];
                float energies[GROUP];
            } row;
        };
        float2 sums[WARPS][GROUP]; /* [warp][head]: the slice's largest score and sum */
        __half key[HD], value[HD];
    };
};

__device__ __forceinline__ void copy_sixteen(uint32_t to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
/* As in flash_prefill_mma.cu: pieces of 16 bytes trade places so that lanes that read together find different banks. */
__device__ __forceinline__ int key_place(int row, int piece) { return piece ^ (row & 1) << 2; }
__device__ __forceinline__ int value_place(int row, int piece) { return piece ^ (row & 6); }

template <int HD, int GROUP>
__global__ void __launch_bounds__(BLOCK, HD > 128 ? 1 : 2) flash_decode_rows_kernel(const __grid_constant__ Attend a) {
    using M = DecodeRows<HD, GROUP>;
    constexpr int PIECES = HD / 8, SLOTS = M::SLOTS, PAIRS = GROUP * HD / BLOCK;
    extern __shared__ __align__(128) uint8_t memory[];
    typename M::Shared &s = *(typename M::Shared *)memory;
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int kv_head = blockIdx.x, row = blockIdx.y, group = a.heads / a.kv_heads, place = __ldcg(a.step.places + row);
    const Seen seen = {window_begin(a, place), place + 1};
    const int first_slice = seen.first / SLICE, end_slice = place / SLICE + 1;
    const int32_t *table = a.tables + (int64_t)__ldcg(a.step.chunks + row) * a.table_stride;

    /* The next copy: the keys, then the values of 16 tokens, number `chunk` of this warp's slice. */
    int slice = first_slice + warp, chunk = 0, slot = 0;
    const __half *from = half_head(a, table, min(slice, end_slice - 1) * SLICE, kv_head);
    const uint32_t ring = (uint32_t)__cvta_generic_to_shared(s.ring[warp]);
    const auto bring = [&]() {
        if (slice < end_slice) {
            const int token = slice * SLICE + chunk % BLOCKS * 16;
            const bool value = chunk >= BLOCKS;
            const __half *at = from + (value ? PAGE_TOKENS * HD : 0) + token % PAGE_TOKENS * HD;
            const uint32_t to = ring + slot * M::SLOT_BYTES;
#pragma unroll
            for (int j = 0; j < 16 * PIECES / 32; j++) {
                const int i = j * 32 + lane, in = i / PIECES, piece = i % PIECES;
                const bool there = token + in < place;
                copy_sixteen(to + in * HD * 2 + (value ? value_place(in, piece) : key_place(in, piece)) * 16,
                    at + (there ? i * 8 : 0), there);
            }
            if (++chunk == 2 * BLOCKS) {
                chunk = 0;
                slice += WARPS;
                from = half_head(a, table, min(slice, end_slice - 1) * SLICE, kv_head);
            }
            slot = slot + 1 == SLOTS ? 0 : slot + 1;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (int i = 0; i < SLOTS; i++) bring();

    if (threadIdx.x < a.rope.dims / 2) {
        float sn, cs;
        sincosf(angle_of(a.rope, a.step, row, threadIdx.x), &sn, &cs);
        s.row.rotations[threadIdx.x] = make_float2(cs, sn);
    }
    __half *own_key = (__half *)half_head(a, table, place, kv_head) + place % PAGE_TOKENS * HD,
           *own_value = own_key + PAGE_TOKENS * HD;
    __syncthreads();
    wait_for_previous();
#pragma unroll 1
    for (int h = warp; h < group + 1; h += WARPS) {
        const bool key = h == group;
        float *head = s.row.heads[h], square = 0;
        const Scaling whole = whole_scaling(a, row, key);
        head_take<HD>(a,
            key ? a.k + ((int64_t)row * a.kv_heads + kv_head) * HD
                : a.q + ((int64_t)row * a.heads + kv_head * group + h) * HD,
            key ? a.k_norm : a.q_norm, a.norm_full && (key ? a.k_norm : a.q_norm).width ? &whole : nullptr,
            (key ? kv_head : kv_head * group + h) * HD, s.row.rotations, head);
#pragma unroll
        for (int j = 0; j < HD / 32; j++) {
            const int i = lane + 32 * j;
            const float one = head[i] * a.scale;
            square += one * one;
            if (!key) continue;
            s.key[i] = own_key[i] = __float2half_rn(head[i]);
            s.value[i] = own_value[i] = __float2half_rn(load(a.v + ((int64_t)row * a.kv_heads + kv_head) * HD + i));
        }
        square = warp_sum(square);
        if (lane == 0 && !key) s.row.energies[h] = square;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float energy = s.row.energies[0];
        for (int h = 1; h < group; h++) energy += s.row.energies[h];
        energies_at(a, table, place)[kv_head * PAGE_TOKENS + place % PAGE_TOKENS] = energy / (float)group;
    }
    Query<HD> query;
    query_load<HD, true>(query, g < group ? s.row.heads[g] : nullptr, a.scale * LOG2E, t);
    const Sight sight = {{seen.first, seen.first}, {seen.end, seen.end}};
    /* A thread folds dims of some heads: pair i is dim (i · BLOCK + thread) of all. */
    float most[PAIRS], sum[PAIRS], o[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int head = (i * BLOCK + threadIdx.x) / HD;
        const bool sinks = a.sinks && head < group;
        most[i] = sinks ? __ldg(a.sinks + kv_head * group + head) * LOG2E : NONE;
        sum[i] = sinks ? 1 : 0;
        o[i] = 0;
    }
    __syncthreads(); /* parts lie where queries do */

    int taken = 0; /* the next slot */
    /* Waits for it; the row's own token is put in its place. */
    const auto take = [&](int token, bool value) {
        asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 1) : "memory");
        __syncwarp(); /* a lane waits for its own copies only, and zeros of other lanes lie at the token's place */
        uint8_t *at = s.ring[warp][taken];
        const int in = place - token;
        if (in >= 0 && in < 16 && lane < PIECES)
            *(uint4 *)(at + in * HD * 2 + (value ? value_place(in, lane) : key_place(in, lane)) * 16) =
                *(const uint4 *)((value ? s.value : s.key) + lane * 8);
        __syncwarp();
        taken = taken + 1 == SLOTS ? 0 : taken + 1;
        return (const uint8_t *)at;
    };
    for (int round = first_slice; round < end_slice; round += WARPS) {
        const int token = (round + warp) * SLICE;
        if (round + warp < end_slice) {
            float scores[BLOCKS][4];
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                const uint8_t *at = take(token + b * 16, false);
                uint4 k[HD / 16];
                keys_load<HD>(k, [&](int h, int i) {
                    return *(const uint4 *)(at + (g + h) * HD * 2 + key_place(g + h, 4 * i + t) * 16);
                });
                __syncwarp();
                bring();
                scores_of<HD>(k, query, scores[b]);
            }
            uint32_t p[BLOCKS][2];
            float slice_most[2], slice_sum[2];
            exponentials(scores, sight, token + g, a.softcap, p, slice_most, slice_sum);
            float part[HD / 64][4][4] = {};
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                const uint8_t *at = take(token + b * 16, true);
#pragma unroll
                for (int d = 0; d < HD / 64; d++) {
                    Values v;
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int in = 2 * t + i % 2 + i / 2 * 8;
                        v.v[i] = *(const uint4 *)(at + in * HD * 2 + value_place(in, 8 * d + g) * 16);
                    }
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        uint32_t numbers[4];
                        values_numbers(v, e, numbers);
                        multiply(part[d][e], numbers, p[b][0], p[b][1]);
                    }
                }
                __syncwarp();
                bring();
            }
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int head = 2 * t + c;
                if (head >= group) continue;
                if (g == 0) s.sums[warp][head] = make_float2(slice_most[c], slice_sum[c]);
#pragma unroll
                for (int d = 0; d < HD / 64; d++) {
                    float4 *to = (float4 *)(s.parts[warp][head] + 64 * d + 8 * g);
                    to[0] = make_float4(part[d][0][c], part[d][0][c + 2], part[d][1][c], part[d][1][c + 2]);
                    to[1] = make_float4(part[d][2][c], part[d][2][c + 2], part[d][3][c], part[d][3][c + 2]);
                }
            }
        }
        __syncthreads();
        const int count = min((int)WARPS, end_slice - round);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int head = (i * BLOCK + threadIdx.x) / HD, dim = (i * BLOCK + threadIdx.x) % HD;
            if (head >= group) continue;
            for (int w = 0; w < count; w++) {
                const float2 own = s.sums[w][head];
                float keep, take;
                fold_factors(most[i], own.x, keep, take);
                sum[i] = folded(sum[i], keep, own.y, take);
                o[i] = folded(o[i], keep, s.parts[w][head][dim], take);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int at = i * BLOCK + threadIdx.x;
        if (at / HD < group) a.out[((int64_t)row * a.heads + kv_head * group) * HD + at] = o[i] / sum[i];
    }
}

template <int HD, int GROUP> static cudaError_t flash_decode_rows_of(cudaStream_t stream, const Attend &a) {
    const auto kernel = flash_decode_rows_kernel<HD, GROUP>;
    constexpr int BYTES = sizeof(typename DecodeRows<HD, GROUP>::Shared);
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    return error ? error : launch(stream, kernel, dim3(a.kv_heads, a.step.rows), BLOCK, (size_t)BYTES, a);
}
template <int HD> static cudaError_t flash_decode_rows_of(cudaStream_t stream, const Attend &a) {
    return a.heads / a.kv_heads > 4 ? flash_decode_rows_of<HD, 8>(stream, a) : flash_decode_rows_of<HD, 4>(stream, a);
}

bool attention_fills_device(const Attend &a) {
    return a.step.rows * a.kv_heads >= BLOCKS_LEAST && a.heads / a.kv_heads <= 8 &&
        (int)sizeof(DecodeRows<256, 8>::Shared) <= a.shared_bytes;
}
extern "C" cudaError_t flash_decode_rows(cudaStream_t stream, const Attend *attend) {
    const Attend &a = *attend;
    return a.head_dim == 64 ? flash_decode_rows_of<64>(stream, a)
        : a.head_dim == 128 ? flash_decode_rows_of<128>(stream, a)
                            : flash_decode_rows_of<256>(stream, a);
}
