/* Packs weights from the file's layout into tiles. A block packs a row of tiles, which share a factor. */
#include "backend/cuda/gemm/tile.cuh"
#include "tensor/tensor.h"

__device__ static float e4m3(uint8_t code) {
    const float v = __half2float(__ushort_as_half((unsigned short)((code & 0x7f) << 7))) * 256.0f;
    return code & 0x80 ? -v : v;
}
__device__ static float e8m0(uint8_t code) { return __uint_as_float(code ? (uint32_t)code << 23 : 1u << 22); }

/* Reads unaligned bytes of a file. */
__device__ static uint32_t bytes_at(const uint8_t *p, int count) {
    uint32_t v = 0;
    for (int i = 0; i < count; i++) v |= (uint32_t)p[i] << 8 * i;
    return v;
}
__device__ static float half_at(const uint8_t *p) {
    return __half2float(__ushort_as_half((unsigned short)bytes_at(p, 2)));
}
__device__ static float float_at(const uint8_t *p, int dtype) {
    if (dtype == DTYPE_F32) return __uint_as_float(bytes_at(p, 4));
    return dtype == DTYPE_F16 ? half_at(p) : __uint_as_float(bytes_at(p, 2) << 16);
}

/* Scale and bias of a group, as in weight_scale(); formats without a bias have 0. */
__device__ static float2 scale_at(const RawRows &w, int64_t row, int64_t group) {
    const uint8_t *scales = w.scales + row * w.scale_bytes;
    if (w.quant == QUANT_MXFP4 || w.quant == QUANT_MXFP8) return make_float2(e8m0(scales[group]), 0);
    if (w.quant == QUANT_NVFP4) return make_float2(e4m3(scales[group]), 0);
    if (w.quant == QUANT_K) {
        const uint8_t *record = scales + group / 8 * K_BYTES;
        return make_float2(half_at(record) * record[4 + group % 8], half_at(record + 2) * record[12 + group % 8]);
    }
    const float symmetric = -(float)(1 << (w.bits - 1));
    float scale;
    if (w.quant == QUANT_K_SYMMETRIC) {
        const uint8_t *record = scales + group / 16 * K_SYMMETRIC_BYTES;
        scale = half_at(record) * (float)(int8_t)record[2 + group % 16];
    } else {
        const int size = w.dtype == DTYPE_F32 ? 4 : 2;
        if (w.quant == QUANT_TERNARY) group = 0;
        scale = float_at(scales + group * size, w.dtype);
        if (w.quant == QUANT_TERNARY) return make_float2(scale, -scale);
        if (w.quant == QUANT_AFFINE)
            return make_float2(scale, float_at(w.biases + row * w.scale_bytes + group * size, w.dtype));
    }
    return make_float2(scale, symmetric * scale);
}

__device__ static uint32_t code_at(const RawRows &w, int64_t row, int64_t col) {
    const int64_t bit = col * w.bits;
    const uint8_t *p = w.data + row * w.row_bytes + bit / 8;
    const int shift = (int)(bit % 8), bytes = shift + w.bits > 8 ? 2 : 1;
    return bytes_at(p, bytes) >> shift & ((1u << w.bits) - 1);
}
__device__ static float plain_at(const RawRows &w, int64_t row, int64_t col) {
    return float_at(w.data + row * w.row_bytes + col * (w.dtype == DTYPE_F32 ? 4 : 2), w.dtype);
}

/* The power of two by which a tile row's numbers, or their scales in units, come near the top of f16. */
__device__ static int row_shift(const RawRows &w, int first, float unit, float *shared) {
    float most = 0;
    const int rows = min(TILE_ROWS, w.rows - first);
    const int64_t groups = w.quant == QUANT_NONE ? w.cols : w.cols / w.group;
    for (int64_t i = threadIdx.x; i < rows * groups; i += BLOCK) {
        const int64_t row = first + i / groups, at = i % groups;
        if (w.quant == QUANT_NONE) {
            most = fmaxf(most, fabsf(plain_at(w, row, at)));
            continue;
        }
        const float2 s = scale_at(w, row, at);
        most = fmaxf(most, fmaxf(fabsf(s.x) * unit, fabsf(s.y)));
    }
    most = block_max(most, shared);
    if (!(most > 0) || !isfinite(most)) return 0;
    int exponent;
    frexpf(most, &exponent); /* most < 2^exponent */
    return max(-100, min(100, 15 - exponent));
}

template <int KIND>
__global__ void pack_kernel(RawRows w, int groups, int subs, int bytes, uint8_t *out, float *factors) {
    using K = Kind<KIND>;
    __shared__ float shared[WARPS];
    let_next_begin();
    wait_for_previous();
    const int first = blockIdx.x * TILE_ROWS;
    const int shift = row_shift(w, first, code_unit(KIND), shared);
    const float up = ldexpf(1, shift);
    if (threadIdx.x == 0) factors[blockIdx.x] = ldexpf(1, -shift);
    for (int64_t u = threadIdx.x; u < (int64_t)groups * 32; u += BLOCK) {
        const int lane = u % 32, g = lane / 4, t = lane % 4;
        const int64_t group = u / 32, col = group * 64 + 16 * t;
        uint8_t *tile = out + (blockIdx.x * (int64_t)groups + group) * bytes;
        uint32_t words[K::WORDS] = {};
#pragma unroll
        for (int s = 0; s < 4; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    const int row = first + g + 8 * (i % 2);
                    const int64_t k = col + 4 * s + 2 * (i / 2) + odd;
                    if (row >= w.rows || k >= w.cols) continue;
                    if constexpr (KIND == TILE_F16) {
                        words[4 * s + i] |= (uint32_t)__half_as_ushort(__float2half(plain_at(w, row, k) * up))
                            << 16 * odd;
                        continue;
                    }
                    const uint32_t code = code_at(w, row, k);
                    if constexpr (K::EIGHTS > 0) words[2 * s + i / 2] |= code << (8 * (i % 2) + 16 * odd);
                    if constexpr (K::FOURS > 0) words[s] |= (code & 15) << (4 * i + 16 * odd);
                    if constexpr (K::TWOS > 0)
                        words[K::FOURS + s / 2] |= (code >> (K::FOURS ? 4 : 0) & 3)
                            << (2 * (i + 4 * (s % 2)) + 16 * odd);
                    if constexpr (K::ONES > 0)
                        words[K::FOURS + K::TWOS] |= (code >> (K::FOURS ? 4 : 2) & 1) << (i + 4 * s + 16 * odd);
                }
        constexpr int QUADS = K::FOURS + K::EIGHTS + K::PLAIN;
#pragma unroll
        for (int i = 0; i < QUADS / 4; i++)
            *(uint4 *)(tile + i * 512 + lane * 16) =
                make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
        if constexpr (K::TWOS > 0)
            *(uint2 *)(tile + K::FOURS * 128 + lane * 8) = make_uint2(words[QUADS], words[QUADS + 1]);
        if constexpr (K::ONES > 0) *(uint32_t *)(tile + (K::FOURS + K::TWOS) * 128 + lane * 4) = words[QUADS + K::TWOS];
        if (KIND != TILE_F16 && t < subs) {
            const int64_t k = group * 64 + t * (64 / subs);
            __half2 pair[2];
            for (int h = 0; h < 2; h++) {
                float2 s = make_float2(0, 0);
                if (first + g + 8 * h < w.rows && k < w.cols) s = scale_at(w, first + g + 8 * h, k / w.group);
                pair[h] = __floats2half2_rn(s.x * code_unit(KIND) * up * (h ? second_unit(KIND) : 1), s.y * up);
            }
            *(uint2 *)(tile + K::CODE_BYTES + t * 64 + g * 8) = make_uint2(as_word(pair[0]), as_word(pair[1]));
        }
    }
}

extern "C" int tile_code_bytes(int kind) {
    static const int words[TILE_KIND_COUNT] = {Kind<TILE_Q2>::WORDS, Kind<TILE_Q3>::WORDS, Kind<TILE_Q4>::WORDS,
        Kind<TILE_Q5>::WORDS, Kind<TILE_Q6>::WORDS, Kind<TILE_Q8>::WORDS, Kind<TILE_FP4>::WORDS, Kind<TILE_FP8>::WORDS,
        Kind<TILE_F16>::WORDS};
    return words[kind] * 4 * 32;
}

struct Pack {
    cudaStream_t stream;
    const RawRows *raw;
    const Tiles *tiles;
    uint8_t *data;
    float *factors;
    template <int KIND> cudaError_t operator()() const {
        return launch(stream, pack_kernel<KIND>, dim3((raw->rows + TILE_ROWS - 1) / TILE_ROWS), BLOCK, 0, *raw,
            tiles->groups, tiles->subs, tiles->bytes, data, factors);
    }
};
extern "C" cudaError_t tiles_pack(
    cudaStream_t stream, const RawRows *raw, const Tiles *tiles, uint8_t *data, float *factors) {
    return with_kind(tiles->kind, Pack{stream, raw, tiles, data, factors});
}
