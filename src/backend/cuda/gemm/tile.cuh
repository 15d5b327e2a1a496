/* A tile of weights in the registers of a lane: loading it, and its numbers as f16 in the order of mma's A operand. */
#pragma once
#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/runtime/common.cuh"

/* Words of a lane in a tile. Planes follow one another; in each a lane's words are adjacent, so a warp reads them in
 * one piece. Step s of four multiplies columns 16t + 4s … + 3; A's registers hold (row g | g + 8; columns 0, 1 | 2, 3):
 * 0 = (g; 0, 1), 1 = (g + 8; 0, 1), 2 = (g; 2, 3), 3 = (g + 8; 2, 3). In a plane of b bits register i of step s has its
 * even column in the low and its odd column in the high half of a word, b·(i + 4·(s mod (4/b))) bits up; 8-bit codes:
 * a word for registers 2j and 2j + 1. */
template <int KIND> struct Kind {
    static constexpr int FOURS = KIND == TILE_Q4 || KIND == TILE_Q5 || KIND == TILE_Q6 || KIND == TILE_FP4 ? 4 : 0;
    static constexpr int EIGHTS = KIND == TILE_Q8 || KIND == TILE_FP8 ? 8 : 0;
    static constexpr int TWOS = KIND == TILE_Q2 || KIND == TILE_Q3 || KIND == TILE_Q6 ? 2 : 0;
    static constexpr int ONES = KIND == TILE_Q3 || KIND == TILE_Q5 ? 1 : 0;
    static constexpr int PLAIN = KIND == TILE_F16 ? 16 : 0;
    static constexpr int WORDS = FOURS + EIGHTS + TWOS + ONES + PLAIN;
    static constexpr int CODE_BYTES = WORDS * 4 * 32;
};

template <int KIND> struct Piece {
    uint32_t w[Kind<KIND>::WORDS];
    uint2 scales; /* {scale, bias} of row g, then of row g + 8 */
};

__device__ __forceinline__ uint4 stream16(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
__device__ __forceinline__ uint2 stream8(const void *p) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
__device__ __forceinline__ uint32_t stream4(const void *p) {
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

/* Offset of lane (g, t)'s scales in a tile. */
template <int KIND> __device__ __forceinline__ int scale_offset(int lane, int subs) {
    return Kind<KIND>::CODE_BYTES + (lane % 4 * subs / 4) * 64 + lane / 4 * 8;
}

template <int KIND>
__device__ __forceinline__ void piece_load(Piece<KIND> &p, const uint8_t *tile, int lane, int scales) {
    using K = Kind<KIND>;
    int at = 0;
    if constexpr (K::FOURS || K::EIGHTS || K::PLAIN) {
#pragma unroll
        for (int i = 0; i < (K::FOURS + K::EIGHTS + K::PLAIN) / 4; i++) {
            const uint4 v = stream16(tile + i * 512 + lane * 16);
            p.w[at] = v.x, p.w[at + 1] = v.y, p.w[at + 2] = v.z, p.w[at + 3] = v.w;
            at += 4;
        }
    }
    if constexpr (K::TWOS > 0) {
        const uint2 v = stream8(tile + K::FOURS * 128 + lane * 8);
        p.w[at] = v.x, p.w[at + 1] = v.y;
        at += 2;
    }
    if constexpr (K::ONES > 0) p.w[at] = stream4(tile + (K::FOURS + K::TWOS) * 128 + lane * 4);
    if constexpr (!K::PLAIN) p.scales = stream8(tile + scales);
}

__device__ __forceinline__ __half2 as_half2(uint32_t v) { return *(__half2 *)&v; }
__device__ __forceinline__ uint32_t as_word(__half2 v) { return *(uint32_t *)&v; }

/* The value of a code's f16 bits per unit: integers are subnormal numbers, E2M1 and E4M3 lie in the middle of the
 * exponents. Stored scales undo the unit, so that one multiplication and addition turns a code into a weight. */
__host__ __device__ constexpr float code_unit(int kind) {
    return kind == TILE_FP4 ? 16384.0f : kind == TILE_FP8 ? 256.0f : 16777216.0f;
}
/* The unit of the second eight rows, whose 4-bit codes stand four bits higher: 16 times as large. */
__host__ __device__ constexpr float second_unit(int kind) { return kind == TILE_Q4 ? 0.0625f : 1.0f; }

/* The pair in register i of step s, in units. */
template <int KIND> __device__ __forceinline__ __half2 piece_pair(const Piece<KIND> &p, int s, int i) {
    using K = Kind<KIND>;
    if constexpr (KIND == TILE_FP8) {
        const uint32_t b = p.w[2 * s + i / 2] >> 8 * (i % 2);
        return as_half2((b & 0x007f007f) << 7 | (b & 0x00800080) << 8);
    } else if constexpr (KIND == TILE_Q8) {
        return as_half2(p.w[2 * s + i / 2] >> 8 * (i % 2) & 0x00ff00ff);
    } else if constexpr (KIND == TILE_FP4) {
        const uint32_t b = p.w[s] >> 4 * i;
        return as_half2((b & 0x00070007) << 9 | (b & 0x00080008) << 12);
    } else if constexpr (KIND == TILE_Q4) {
        return as_half2(p.w[s] >> 4 * (i / 2 * 2) & (i % 2 ? 0x00f000f0 : 0x000f000f));
    } else {
        uint32_t code = 0;
        if constexpr (K::FOURS > 0) code = p.w[s] >> 4 * i & 0x000f000f;
        if constexpr (K::TWOS > 0) {
            const uint32_t two = p.w[K::FOURS + s / 2] >> 2 * (i + 4 * (s % 2)) & 0x00030003;
            code |= two << (K::FOURS ? 4 : 0);
        }
        if constexpr (K::ONES > 0) {
            const uint32_t one = p.w[K::FOURS + K::TWOS] >> (i + 4 * s) & 0x00010001;
            code |= one << (K::FOURS ? 4 : 2);
        }
        return as_half2(code);
    }
}

/* A's registers of step s. */
template <int KIND> __device__ __forceinline__ void piece_numbers(const Piece<KIND> &p, int s, uint32_t a[4]) {
    if constexpr (KIND == TILE_F16) {
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = p.w[4 * s + i];
    } else {
        const __half2 low = as_half2(p.scales.x), high = as_half2(p.scales.y);
        const __half2 scale[2] = {__low2half2(low), __low2half2(high)},
                      bias[2] = {__high2half2(low), __high2half2(high)};
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = as_word(__hfma2(piece_pair<KIND>(p, s, i), scale[i % 2], bias[i % 2]));
    }
}

__device__ __forceinline__ void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Order of a product's sum, the same for every number of rows: 64 columns form a group, runs of slice_run() groups are
 * assigned to 8 slices in turn; each slice is one chain of multiplications in order of columns, and the slices are
 * added in order. */
constexpr int SLICES = 8;
__host__ __device__ __forceinline__ int slice_rounds(int groups) { return (groups + 63) / 64; }
__host__ __device__ __forceinline__ int slice_run(int groups) {
    const int dealt = SLICES * slice_rounds(groups);
    return (groups + dealt - 1) / dealt;
}

/* One weight's element in f32, for a table of rows. */
template <int KIND> __device__ __forceinline__ float tile_element(const Tiles &t, int64_t row, int64_t col) {
    using K = Kind<KIND>;
    const uint8_t *tile = t.data + (row / 16 * t.groups + col / 64) * t.bytes;
    const int r = row % 16, c = col % 64, lane = r % 8 * 4 + c / 16, s = c % 16 / 4, i = c % 4 / 2 * 2 + r / 8,
              odd = c % 2;
    Piece<KIND> p;
    piece_load(p, tile, lane, scale_offset<KIND>(lane, t.subs));
    if constexpr (KIND == TILE_F16) {
        const __half2 v = as_half2(p.w[4 * s + i]);
        return __half2float(odd ? __high2half(v) : __low2half(v)) * t.factors[row / 16];
    } else {
        __half2 v = piece_pair<KIND>(p, 0, 0);
        /* Register numbers are constants: all are visited, one is taken. */
#pragma unroll
        for (int j = 1; j < 16; j++)
            if (j == 4 * s + i) v = piece_pair<KIND>(p, j / 4, j % 4);
        const __half2 scale = as_half2(r / 8 ? p.scales.y : p.scales.x);
        const float code = __half2float(odd ? __high2half(v) : __low2half(v));
        return (__low2float(scale) * code + __high2float(scale)) * t.factors[row / 16];
    }
}

/* Calls f<KIND>() for a kind known at run time. */
template <class F> static cudaError_t with_kind(int kind, const F &f) {
    switch (kind) {
    case TILE_Q2: return f.template operator()<TILE_Q2>();
    case TILE_Q3: return f.template operator()<TILE_Q3>();
    case TILE_Q4: return f.template operator()<TILE_Q4>();
    case TILE_Q5: return f.template operator()<TILE_Q5>();
    case TILE_Q6: return f.template operator()<TILE_Q6>();
    case TILE_Q8: return f.template operator()<TILE_Q8>();
    case TILE_FP4: return f.template operator()<TILE_FP4>();
    case TILE_FP8: return f.template operator()<TILE_FP8>();
    case TILE_F16: return f.template operator()<TILE_F16>();
    }
    return cudaErrorInvalidValue;
}
