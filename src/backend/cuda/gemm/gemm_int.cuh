/* Products of decode rows: weight codes times integer inputs. The sums are exact, so the sum of a group depends neither
 * on the instruction nor on the rows beside it.
 *
 * Inputs. A group is 64 columns of a row, zero beyond the width. Of an RMS norm only the weights enter, y = x · weight;
 * its factor is applied to the sum. Other norms, and norms without weights, are computed before (rows_norm()). m = max
 * |y|, q = rint(y · (32512 / m)), step = m / 32512; q = 256 · high + low, each a signed byte. m < 2^−80: all is 0. m ≥
 * 2^126, infinite or NaN: step is NaN. The norm's factor is 1 / sqrt(Σ x² / width + eps). Order of that sum:
 * integer_square() of 16 columns; the rounds of a slice in order; over the 32 lanes of a warp, lane 4 · (group within
 * its run) + (16 columns within the group), as warp_sum() does; the slices in order.
 *
 * Sums. For a row of weights and a row of inputs, `subs` times per group (a sub-group is 64 / subs columns):
 *   S = Σ code · q, exact; sum = fmaf(scale, unit · S, sum), then sum = fmaf(bias, offset, sum)
 * with unit = step · 2^−24 and offset = step · Σ q, both rounded once; integer_term(). The groups of a slice in order
 * (all of its rounds, tile.cuh), in each its sub-groups in order; then the slices in order, beginning with the first as
 * it is; slices without groups are 0 and may be left out. product_sum() ends it.
 *
 * Codes are unsigned bytes. Those of the second eight rows may be 16 times as large, which their scale undoes. */
#pragma once
#include "backend/cuda/gemm/gemm.cuh"

/* True if decode rows of a weight are computed with integers. */
__host__ __device__ __forceinline__ constexpr bool integer_kind(int kind) { return kind <= TILE_FP4; }
__host__ __device__ __forceinline__ bool integer_fits(const Tiles &w) {
    return integer_kind(w.kind) && (w.subs == 1 || w.subs == 2);
}

/* True if the norm's factor is applied after the sum. */
__host__ __device__ __forceinline__ bool integer_norm(const RowNorm &norm) { return norm.kind == 0 && norm.weight; }

/* 1 to GEMV_ROWS_MAX rows, and up to DECODE_ROWS_MAX. On devices with little shared memory not all shapes fit. */
bool gemv_int_fits(const ProductWork &work, int shared_max);
cudaError_t product_gemv_int(
    cudaStream_t stream, int kind, const ProductWork &work, int multiprocessors, int shared_max, bool *fits);
cudaError_t product_gemm_int(
    cudaStream_t stream, int kind, const ProductWork &work, const Product &product, bool *fits);
bool gemm_int_fits(const Product &product);
/* Whether a gated product can leave its result as the next one's inputs. */
bool gemm_int_hands(const Product &product);
/* Offset in Product.inputs of the inputs of gemm_int_wgmma, behind those of the other kernels; and their bytes.
 */
constexpr int64_t gemm_int_at(int groups) {
    return (int64_t)INPUT_TILE * (groups * TILE_COLS * 2 + (int64_t)sizeof(float));
}
constexpr int64_t gemm_int_bytes(int groups) {
    return (int64_t)DECODE_ROWS_MAX * (groups * 152 + (int64_t)sizeof(float));
}

/* ---- inputs ---- */

/* A number is taken from the lowest bits of NUMBER_AT + q: its low byte is 128 too much there, the next one is high. */
constexpr float NUMBER_AT = 12582912.0f + 128;
/* Words of both planes of four numbers' bits; columns, from the lowest byte on: 0, 2, 1, 3. */
__device__ __forceinline__ void integer_planes(const uint32_t q[4], uint32_t &high, uint32_t &low) {
    const uint32_t even = __byte_perm(q[0], q[2], 0x5140), odd = __byte_perm(q[1], q[3], 0x5140);
    high = __byte_perm(even, odd, 0x7632);
    low = __byte_perm(even, odd, 0x5410) ^ 0x80808080;
}

__device__ __forceinline__ float integer_square(const float v[16]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 16; i += 4)
        sum += (v[i] * v[i] + v[i + 1] * v[i + 1]) + (v[i + 2] * v[i + 2] + v[i + 3] * v[i + 3]);
    return sum;
}

/* The larger; not a number if one is not. */
__device__ __forceinline__ float integer_larger(float a, float b) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}

/* A lane's data of a group: 16 of its columns; the four lanes of a group are neighbours. */
struct IntegerPart {
    uint4 high, low; /* planes of the lane's columns */
    float step;      /* step of the group */
    int sum[2];      /* Σ q of the lane's half of the group, of the other one */
};
/* A warp; y: columns 16 · (lane mod 4) … of group lane / 4, of whichever eight. */
__device__ __forceinline__ IntegerPart integer_part(const float y[16]) {
    float most[8];
#pragma unroll
    for (int i = 0; i < 8; i++) most[i] = integer_larger(fabsf(y[i]), fabsf(y[i + 8]));
#pragma unroll
    for (int k = 4; k; k /= 2)
#pragma unroll
        for (int i = 0; i < k; i++) most[i] = integer_larger(most[i], most[i + k]);
    float m = most[0];
    m = integer_larger(m, __shfl_xor_sync(~0u, m, 1));
    m = integer_larger(m, __shfl_xor_sync(~0u, m, 2));
    const bool some = m >= 0x1p-80f;
    const float up = some ? __fdividef(32512.0f, m) : 0;
    IntegerPart part;
    part.step = m < 0x1p126f ? (some ? m * (1 / 32512.0f) : 0) : __uint_as_float(0x7fffffff);
    uint32_t high[4], low[4];
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t q[4];
#pragma unroll
        for (int k = 0; k < 4; k++) q[k] = __float_as_uint(fmaf(y[4 * i + k], up, NUMBER_AT));
        integer_planes(q, high[i], low[i]);
        sum = __dp4a((int)high[i], 0x01010101, sum);
    }
    sum *= 256;
#pragma unroll
    for (int i = 0; i < 4; i++) sum = __dp4a((int)low[i], 0x01010101, sum);
    part.high = make_uint4(high[0], high[1], high[2], high[3]);
    part.low = make_uint4(low[0], low[1], low[2], low[3]);
    part.sum[0] = sum + __shfl_xor_sync(~0u, sum, 1);
    part.sum[1] = __shfl_xor_sync(~0u, part.sum[0], 2);
    return part;
}
__device__ __forceinline__ float integer_unit(float step) { return step * 0x1p-24f; }
__device__ __forceinline__ float integer_offset(float step, int sum) { return step * (float)sum; }

/* ---- weights ---- */

/* Bytes that a word of codes chooses among eight, none of whose highest bits is 0; where a code's is set, 0xff. */
__device__ __forceinline__ uint32_t integer_chosen(uint32_t low, uint32_t high, uint32_t codes) {
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(codes));
    return r;
}

/* Codes of step s (columns 16t + 4s …) of rows g and g + 8 as words in the order of the inputs: A's registers s mod
 * 2 · 2 and one more of multiplication s / 2, whose B registers are words s of the inputs. */
template <int KIND> __device__ __forceinline__ void integer_codes(const Piece<KIND> &p, int s, uint32_t a[2]) {
    using K = Kind<KIND>;
    if constexpr (KIND == TILE_Q8) {
        a[0] = __byte_perm(p.w[2 * s], p.w[2 * s + 1], 0x6240);
        a[1] = __byte_perm(p.w[2 * s], p.w[2 * s + 1], 0x7351);
    } else if constexpr (KIND == TILE_Q4) {
        a[0] = p.w[s] & 0x0f0f0f0f;
        a[1] = p.w[s] & 0xf0f0f0f0;
    } else if constexpr (KIND == TILE_FP4) {
        /* 140 + twice the number: a positive code is found by the first and is 0xff in the second, and conversely. */
        uint32_t pairs[2]; /* even column, odd column: rows g and g + 8 in turn */
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            const uint32_t code = odd ? p.w[s] >> 16 : p.w[s];
            pairs[odd] =
                integer_chosen(0x8f8e8d8c, 0x98949290, code) & integer_chosen(0x898a8b8c, 0x80848688, code ^ 0x8888);
        }
        a[0] = __byte_perm(pairs[0], pairs[1], 0x6420);
        a[1] = __byte_perm(pairs[0], pairs[1], 0x7531);
    } else {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t code = 0;
            if constexpr (K::FOURS > 0) code = p.w[s] >> 4 * h & 0x0f0f0f0f;
            if constexpr (K::TWOS > 0) {
                constexpr int AT = K::FOURS ? 4 : 0;
                const uint32_t two = p.w[K::FOURS + s / 2] >> (2 * h + 8 * (s % 2));
                code |= (two & 0x00030003) << AT | (two & 0x00300030) << (AT + 4);
            }
            if constexpr (K::ONES > 0) {
                constexpr int AT = K::FOURS ? 4 : 2;
                const uint32_t one = p.w[K::FOURS + K::TWOS] >> (h + 4 * s);
                code |= (one & 0x00010001) << AT | (one & 0x00040004) << (AT + 6);
            }
            a[h] = code;
        }
    }
}
/* {scale, bias} of a row and sub-group as stored in a tile. */
template <int KIND> __device__ __forceinline__ float2 integer_pair(uint32_t word) {
    const float2 v = __half22float2(as_half2(word));
    if constexpr (KIND == TILE_FP4) return make_float2(v.x * 512, v.x * (-140.0f / 32768));
    return v;
}

/* m16n8k32; A: registers 0 and 1 of one step, then of the next. */
__device__ __forceinline__ void integer_multiply(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* high, low: Σ code · high, Σ code · low */
__device__ __forceinline__ float integer_term(float sum, float2 pair, float unit, float offset, int high, int low) {
    sum = fmaf(pair.x, unit * (float)(high * 256 + low), sum);
    return fmaf(pair.y, offset, sum);
}
