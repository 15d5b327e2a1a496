/* Attention of rows that see quantised pages. Such a row sees its first and its newest tokens in full precision, in
 * slices (flash_slice.cuh), and the tokens between as quantised pages. Both are folded in order of position, each in a
 * chain of its own; the chain of the quantised pages is in rotated space, is rotated back, and then the two are added.
 *
 * In a quantised page, for each query: integer products of the query's 8-bit numbers with the levels of the keys'
 * codes; from these, the page's mean and its bias the scores; p = 2^(score − largest); weights p·scale of a token's
 * value, as integers of 7 bits relative to the largest of the page; integer products of these with the levels of the
 * values' codes. Integer sums do not depend on their order, and the rest is computed alike by every kernel that visits
 * a page: for one row (kvq_decode.cu) or for many (kvq_prefill.cu). */
#pragma once
#include "backend/cuda/kv/kv_quant.cuh"
#include "backend/cuda/attention/flash_slice.cuh"

enum { KVQ_GROUP_MAX = 8, BIAS_PAIRS = 64 };

/* ---- the visible range of a row ---- */

struct KvqRow {
    int sink, end; /* tokens */
    const int32_t *record;
    int k_form, v_form;
};
__device__ __forceinline__ KvqRow kvq_row(const Attend &a, const AttendQuant &c, int row) {
    const int32_t *record = c.records + (int64_t)__ldcg(a.step.chunks + row) * c.record_ints;
    return {__ldcg(c.sinks + row), __ldcg(c.ends + row), record, __ldcg(record), __ldcg(record + 1)};
}
__device__ __forceinline__ uint64_t kvq_pairs(const AttendQuant &c, const KvqRow &r, int kv_head) {
    if (!c.bias) return 0;
    return (uint32_t)__ldcg(r.record + 2 + 2 * kv_head) | (uint64_t)(uint32_t)__ldcg(r.record + 3 + 2 * kv_head) << 32;
}
__device__ __forceinline__ const uint8_t *kvq_keys(
    const AttendQuant &c, const KvqRow &r, int page, int kv_head, int kv_heads) {
    const int64_t stride = c.k_stride[r.k_form];
    return c.k_base[r.k_form] + __ldcg(r.record + 2 + 2 * c.heads + page) * stride + kv_head * (stride / kv_heads);
}
__device__ __forceinline__ const uint8_t *kvq_values(
    const AttendQuant &c, const KvqRow &r, int page, int kv_head, int kv_heads) {
    const int64_t stride = c.v_stride[r.v_form];
    return c.v_base[r.v_form] + __ldcg(r.record + 2 + 2 * c.heads + c.table_stride + page) * stride +
        kv_head * (stride / kv_heads);
}

/* Results of parts: [row of the chunk][part][head] of o [d], then as many pairs {largest, sum}. Full-precision slices
 * come first, at most quant.full_slices; then quantised pages. */
struct KvqPartials {
    float *o;
    float2 *sums;
    int parts;
};
__host__ __device__ inline int kvq_partial_count(const AttendQuant &c) { return c.full_slices + c.pages; }
__device__ __forceinline__ KvqPartials kvq_partials(const Attend &a, const AttendQuant &c) {
    const int parts = kvq_partial_count(c);
    return {a.partials, (float2 *)(a.partials + (int64_t)a.rows * parts * a.heads * a.value_dim), parts};
}
/* The first token of a full-precision part: parts of the sink, then those behind the quantised pages. */
__device__ __forceinline__ int full_token(const KvqRow &r, int part) {
    const int sinks = r.sink / ATTENTION_SLICE;
    return part < sinks ? part * ATTENTION_SLICE : r.end + (part - sinks) * ATTENTION_SLICE;
}

/* ---- queries ---- */

/* The query of a row's head, times scale · log2 e and rotated: as 8 bits, as f16 for pages' means, and its products
 * with the bias pairs. */
template <int HD> struct __align__(16) KvqQuery {
    int8_t number[HD];
    __half half[HD];
    float unit, half_sum; /* unit of `number`; half the sum of all numbers */
    float2 rotations[BIAS_PAIRS];
};

/* A lane's part: the numbers of column g as B, of each 32 dims two words; units of columns 2t and 2t + 1. */
template <int HD> struct KvqQueryPart {
    uint32_t w[HD / 16];
    float unit[2], half_sum[2];
};
/* queries: that of the first column; `columns` of them exist */
template <int HD> __device__ __forceinline__ void query_part(KvqQueryPart<HD> &q, const KvqQuery<HD> *const at[3]) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < HD / 16; i++) q.w[i] = at[2] ? __ldcg((const unsigned *)(at[2]->number + 16 * i + 4 * t)) : 0;
#pragma unroll
    for (int c = 0; c < 2; c++) {
        q.unit[c] = at[c] ? load(&at[c]->unit) : 0;
        q.half_sum[c] = at[c] ? load(&at[c]->half_sum) : 0;
    }
}

/* The products of 16 pages' means with 8 queries, as scores_of() gives them; mean(page) of a page or NULL. */
template <int HD, class Mean>
__device__ __forceinline__ void mean_products(const KvqQuery<HD> *column, const Mean &mean, float s[4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    Query<HD> query;
    uint4 k[HD / 16];
#pragma unroll
    for (int i = 0; i < HD / 32; i++) {
        const uint4 w = column ? __ldcg((const uint4 *)(column->half + 32 * i + 8 * t)) : make_uint4(0, 0, 0, 0);
        query.w[4 * i] = w.x, query.w[4 * i + 1] = w.y, query.w[4 * i + 2] = w.z, query.w[4 * i + 3] = w.w;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const __half *m = mean(g + 8 * h);
            k[2 * i + h] = m ? __ldcg((const uint4 *)(m + 32 * i + 8 * t)) : make_uint4(0, 0, 0, 0);
        }
    }
    scores_of<HD>(k, query, s);
}

/* ---- codes as integers ---- */

/* A lane's codes of two tiles, as stored. */
template <bool FOUR> struct KvqCodes { uint32_t w[FOUR ? 4 : 8]; };

template <bool FOUR>
__device__ __forceinline__ void kvq_load(KvqCodes<FOUR> &c, int form, const uint8_t *row, int pair, int lane) {
    if (FOUR) form = KVQ4;
    const int low = kvq_low_bytes(form), high = kvq_high_bytes(form);
    const uint8_t *p = row + pair * 64 * (low + high) + lane * 2 * low,
                  *q = row + pair * 64 * (low + high) + 64 * low + lane * 2 * high;
    if (!FOUR && form == KVQ3) {
        const uint2 v = __ldcg((const uint2 *)p);
        c.w[0] = v.x, c.w[1] = v.y, c.w[FOUR ? 0 : 4] = __ldcg((const unsigned *)q);
        return;
    }
    const uint4 v = __ldcg((const uint4 *)p);
    c.w[0] = v.x, c.w[1] = v.y, c.w[2] = v.z, c.w[3] = v.w;
    if constexpr (!FOUR) {
        if (form == KVQ5) c.w[4] = __ldcg((const unsigned *)q);
        if (form == KVQ6) {
            const uint2 h = __ldcg((const uint2 *)q);
            c.w[4] = h.x, c.w[5] = h.y;
        }
        if (form == KVQ8) {
            const uint4 h = __ldcg((const uint4 *)p + 1);
            c.w[4] = h.x, c.w[5] = h.y, c.w[6] = h.z, c.w[7] = h.w;
        }
    }
}

/* Bytes of a table of 16 that the nibbles of a word choose: low of the first four, high of the others. */
__device__ __forceinline__ void looked_up(const uint32_t *table, uint32_t w, uint32_t &low, uint32_t &high) {
    const uint32_t s = w & 0x77777777u, p = ((w >> 1) & 0x44444444u) | 0x32103210u;
    low = __byte_perm(__byte_perm(table[0], table[1], s), __byte_perm(table[2], table[3], s), p);
    high = __byte_perm(__byte_perm(table[0], table[1], s >> 16), __byte_perm(table[2], table[3], s >> 16), p >> 16);
}
/* Bytes of one or the other, by bits 0, 4, 8 and 12. */
__device__ __forceinline__ uint32_t chosen(uint32_t zero, uint32_t one, uint32_t bits) {
    return __byte_perm(zero, one, (bits & 0x1111u) << 2 | 0x3210u);
}

/* The levels of the codes of tile 0 or 1, as A of mma.m16n8k32. */
template <bool FOUR>
__device__ __forceinline__ void kvq_numbers(
    const KvqCodes<FOUR> &c, const KvqCodebooks &books, int form, int tile, uint32_t a[4]) {
    if (FOUR || form == KVQ4) {
        looked_up(books.words[KVQ4], c.w[2 * tile], a[0], a[1]);
        looked_up(books.words[KVQ4], c.w[2 * tile + 1], a[2], a[3]);
        return;
    }
    if constexpr (!FOUR) {
        if (form == KVQ8) {
#pragma unroll
            for (int r = 0; r < 4; r++) a[r] = c.w[4 * tile + r];
            return;
        }
        if (form == KVQ3) {
            const uint32_t low = c.w[tile], high = c.w[4] >> 16 * tile, *table = books.words[KVQ3];
#pragma unroll
            for (int r = 0; r < 4; r++)
                a[r] = __byte_perm(
                    table[0], table[1], (low >> (16 * (r / 2) + 2 * (r % 2)) & 0x3333u) | (high >> r & 0x1111u) << 2);
            return;
        }
        const uint32_t *table = books.words[form], high = form == KVQ5 ? c.w[4] >> 16 * tile : c.w[4 + tile];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t one[2], other[2];
            looked_up(table, c.w[2 * tile + h], one[0], one[1]);
            looked_up(table + 4, c.w[2 * tile + h], other[0], other[1]);
#pragma unroll
            for (int i = 0; i < 2; i++) a[2 * h + i] = chosen(one[i], other[i], high >> (2 * h + i));
            if (form != KVQ6) continue;
            looked_up(table + 8, c.w[2 * tile + h], one[0], one[1]);
            looked_up(table + 12, c.w[2 * tile + h], other[0], other[1]);
#pragma unroll
            for (int i = 0; i < 2; i++)
                a[2 * h + i] =
                    chosen(a[2 * h + i], chosen(one[i], other[i], high >> (2 * h + i)), high >> (16 + 2 * h + i));
        }
    }
}

__device__ __forceinline__ void multiply_bytes(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- a page's numbers ----
 * A lane has of 32 tokens g, g + 8, g + 16 and g + 24, and columns 2t and 2t + 1 of them: s[token / 8][column]. */

__device__ __forceinline__ float logarithm_of_two(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return x > 0 ? y : -100.0f; /* far below every scale that f16 has */
}

/* The lane's four scales of 32 tokens. */
__device__ __forceinline__ void scales_of(uint2 halves, float s[4]) {
    const float2 low = __half22float2(as_half2(halves.x)), high = __half22float2(as_half2(halves.y));
    s[0] = low.x, s[1] = low.y, s[2] = high.x, s[3] = high.y;
}

template <int HD>
__device__ __forceinline__ void score_tokens(
    const int c[2][4], const float k_scale[4], const KvqQueryPart<HD> &q, const float mean[2], float s[4][2]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int n = 0; n < 2; n++)
            s[i][n] = fmaf(k_scale[i] * q.unit[n], (float)c[i / 2][i % 2 * 2 + n] + q.half_sum[n], mean[n]);
}

/* The contribution of a bias to the scores of a lane's tokens, of which `token` is the first, in the page from `base`
 * on. */
static __device__ __noinline__ void score_bias(
    const AttendQuant &c, uint64_t pairs, const float2 *const rotations[2], int base, int token, float s[4][2]) {
    for (int n = 0; pairs; n++, pairs &= pairs - 1) {
        const int pair = __ffsll((long long)pairs) - 1;
        const float2 start = pair_rotation(c.rope, pair, base);
        float2 by[2];
        for (int i = 0; i < 2; i++) by[i] = rotations[i] ? __ldcg(rotations[i] + n) : make_float2(0, 0);
        for (int i = 0; i < 4; i++) {
            const float2 turn = rotated_twice(start, pair_rotation(c.rope, pair, token + 8 * i));
            for (int k = 0; k < 2; k++) s[i][k] = fmaf(by[k].x, turn.x, fmaf(by[k].y, turn.y, s[i][k]));
        }
    }
}

/* The largest score, and the largest score that has its value's scale in it. */
__device__ __forceinline__ void largest_tokens(
    const float s[4][2], const float v_scale[4], float most[2], float heaviest[2]) {
    float logarithm[4];
#pragma unroll
    for (int i = 0; i < 4; i++) logarithm[i] = logarithm_of_two(v_scale[i]);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            most[n] = fmaxf(most[n], s[i][n]);
            heaviest[n] = fmaxf(heaviest[n], s[i][n] + logarithm[i]);
        }
}
__device__ __forceinline__ void largest_lanes(float most[2], float heaviest[2]) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int k = 4; k < 32; k *= 2) {
            most[n] = fmaxf(most[n], __shfl_xor_sync(~0u, most[n], k));
            heaviest[n] = fmaxf(heaviest[n], __shfl_xor_sync(~0u, heaviest[n], k));
        }
}

/* Weights of the lane's four tokens, a byte each in a word; the sum of p over the 32 tokens. */
__device__ __forceinline__ void weigh_tokens(const float s[4][2], const float v_scale[4], const float most[2],
    const float heaviest[2], uint32_t word[2], float sum[2]) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const float unit = 127.0f * power_of_two(most[n] - heaviest[n]);
        uint32_t w[4];
        sum[n] = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float p = power_of_two(s[i][n] - most[n]);
            sum[n] += p;
            w[i] = (uint32_t)min(__float2int_rn(p * (v_scale[i] * unit)), 127);
        }
        word[n] = w[0] | w[1] << 8 | w[2] << 16 | w[3] << 24;
#pragma unroll
        for (int k = 4; k < 32; k *= 2) sum[n] += __shfl_xor_sync(~0u, sum[n], k);
    }
}
/* The factor of integer sums of values. */
__device__ __forceinline__ float weight_unit(float most, float heaviest) {
    return power_of_two(heaviest - most) * (1.0f / 127.0f);
}
__device__ __forceinline__ float weighed(int sum, int weights, float unit) {
    return ((float)sum + 0.5f * (float)weights) * unit;
}

/* ---- the files ---- */

cudaError_t kvq_generic(cudaStream_t stream, const Attend &a, const AttendQuant &c);
cudaError_t kvq_fold(cudaStream_t stream, const Attend &a, const AttendQuant &c);
