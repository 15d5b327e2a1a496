/* Quantised pages as they lie on the device. kv_quant.h (backend) defines the codes; only their layout is different
 * here.
 *
 * Codes lie in tiles of 16 rows × 32 columns in the lane order of mma.m16n8k32: lane 4g + t holds, of rows g and g +
 * 8, columns 4t … 4t + 3 (registers 0 and 1) and 16 + 4t … (2 and 3). Keys have tokens as rows and dims as columns;
 * values have dims as rows and tokens as columns, in the order of token_place() within 32, in which the weights that a
 * lane computes are one word. Scales are in that order, too. Two tiles of a row are stored together, a lane's share of
 * both in one piece; an odd tile at the end is alone. A lane's share of a tile, code i of register r:
 *
 *     KV_Q4  two words, r / 2 and in it nibble 4·(r mod 2) + i
 *     KV_Q5  the same, and behind the words of both tiles half words: bit 4i + r is the fifth bit
 *     KV_Q6  the same with words: bit 4i + r is the fifth bit, bit 16 + 4i + r the sixth
 *     KV_Q3  a word: bits 16·(r / 2) + 4i + 2·(r mod 2) are the lower two; behind, as with KV_Q5, the third
 *     KV_Q8  four words of bytes: the levels
 *
 * The keys of a kv head: means f16 [d], scales f16 [groups][128], codes; its values: scales, codes. All begin at
 * multiples of 64 bytes. */
#pragma once
#include "backend/cuda/attention/attention.cuh"
#include "backend/cuda/kv/kv.h"

enum { KVQ3 = 1, KVQ4, KVQ5, KVQ6, KVQ8 }; /* KvForm */
enum { WARP_TOKENS = 32 };

__host__ __device__ constexpr int kvq_low_bytes(int form) { return form == KVQ3 ? 4 : form == KVQ8 ? 16 : 8; }
__host__ __device__ constexpr int kvq_high_bytes(int form) {
    return form == KVQ3 || form == KVQ5 ? 2 : form == KVQ6 ? 4 : 0;
}

struct KvqShape {
    int d, group, groups, form, values;
    int tile_rows, tiles; /* in a column, in a row */
    int row_bytes;        /* bytes of a row of tiles */
    int scales, codes, bytes;
};

__host__ __device__ inline KvqShape kvq_shape(int d, int group, int form, int values) {
    KvqShape s = {d, group, d / group, form, values};
    s.tile_rows = (values ? d : PAGE_TOKENS) / 16;
    s.tiles = ((values ? PAGE_TOKENS : d) + 31) / 32;
    s.row_bytes = s.tiles * 32 * (kvq_low_bytes(form) + kvq_high_bytes(form));
    s.scales = values ? 0 : (2 * d + 63) / 64 * 64;
    s.codes = s.scales + s.groups * PAGE_TOKENS * 2;
    s.bytes = s.codes + s.tile_rows * s.row_bytes;
    return s;
}

/* Index of a token's scale, and of its column in values. */
__host__ __device__ constexpr int token_place(int token) {
    return token / WARP_TOKENS * WARP_TOKENS + token % 8 * 4 + token % WARP_TOKENS / 8;
}

/* The place of a lane's part of a tile in its row of tiles. */
struct LanePart {
    int low, high;
};
__device__ __forceinline__ LanePart lane_part(const KvqShape &s, int tile, int lane) {
    const int low = kvq_low_bytes(s.form), high = kvq_high_bytes(s.form), pair = tile / 2;
    const int together = min(2, s.tiles - 2 * pair), base = pair * 64 * (low + high);
    return {
        base + (lane * together + tile % 2) * low, base + 32 * together * low + (lane * together + tile % 2) * high};
}

/* codes[4r + i]: code i of register r */
__device__ __forceinline__ void lane_pack(const KvqShape &s, uint8_t *row, int tile, int lane, const uint8_t *codes) {
    const LanePart at = lane_part(s, tile, lane);
    uint32_t low[4] = {0, 0, 0, 0}, high = 0;
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const int r = n / 4, i = n % 4;
        const uint32_t code = codes[n];
        if (s.form == KVQ8) {
            low[r] |= (code ^ 128) << 8 * i;
        } else if (s.form == KVQ3) {
            low[0] |= (code & 3) << (16 * (r / 2) + 4 * i + 2 * (r % 2));
            high |= (code >> 2) << (4 * i + r);
        } else {
            low[r / 2] |= (code & 15) << 4 * (4 * (r % 2) + i);
            high |= (code >> 4 & 1) << (4 * i + r) | (code >> 5) << (16 + 4 * i + r);
        }
    }
    for (int i = 0; i < kvq_low_bytes(s.form) / 4; i++) ((uint32_t *)(row + at.low))[i] = low[i];
    if (kvq_high_bytes(s.form) == 2) *(uint16_t *)(row + at.high) = (uint16_t)high;
    if (kvq_high_bytes(s.form) == 4) *(uint32_t *)(row + at.high) = high;
}

/* The level of one code; the value is a half more. */
__device__ __forceinline__ int book_level(const KvqCodebooks &books, int form, int code) {
    return (int8_t)(books.words[form][code / 4] >> code % 4 * 8);
}
__device__ __forceinline__ int kvq_level(
    const KvqCodebooks &books, const KvqShape &s, const uint8_t *head, int row, int column) {
    const int r = row % 16 / 8 + column % 32 / 16 * 2, i = column % 4, lane = row % 8 * 4 + column % 16 / 4;
    const LanePart at = lane_part(s, column / 32, lane);
    const uint8_t *tiles = head + s.codes + row / 16 * s.row_bytes, *low = tiles + at.low, *high = tiles + at.high;
    if (s.form == KVQ8) return (int8_t)__ldcg(low + 4 * r + i);
    uint32_t code;
    if (s.form == KVQ3)
        code = __ldcg((const unsigned *)low) >> (16 * (r / 2) + 4 * i + 2 * (r % 2)) & 3;
    else
        code = __ldcg((const unsigned *)low + r / 2) >> 4 * (4 * (r % 2) + i) & 15;
    if (s.form == KVQ3) code |= (__ldcg((const unsigned short *)high) >> (4 * i + r) & 1) << 2;
    if (s.form == KVQ5) code |= (__ldcg((const unsigned short *)high) >> (4 * i + r) & 1) << 4;
    if (s.form == KVQ6) {
        const uint32_t bits = __ldcg((const unsigned *)high) >> (4 * i + r);
        code |= (bits & 1) << 4 | (bits >> 16 & 1) << 5;
    }
    return book_level(books, s.form, (int)code);
}

/* ---- rotation, by a warp ---- */

__device__ __forceinline__ float rotated_sign(const Rotation &r, int which, int i, float v) {
    return __uint_as_float(__float_as_uint(v) ^ (r.signs[which][i / 32] >> i % 32) << 31);
}

/* x [d] in shared memory ← R x, or Rᵀ x; spare [d] */
static __device__ __noinline__ void warp_rotate(const Rotation &r, bool back, float *x, float *spare) {
    const int lane = threadIdx.x % 32, d = r.d;
    const float scale = 1.0f / sqrtf((float)d);
    __syncwarp();
    if (r.matrix) {
        for (int i = lane; i < d; i += 32) {
            float sum = 0;
            for (int j = 0; j < d; j++) sum = fmaf(__ldg(r.matrix + (back ? j * d + i : i * d + j)), x[j], sum);
            spare[i] = sum;
        }
        __syncwarp();
        for (int i = lane; i < d; i += 32) x[i] = spare[i];
        __syncwarp();
        return;
    }
    for (int i = lane; i < d; i += 32) x[i] = rotated_sign(r, back, i, x[i]);
    __syncwarp();
    for (int stride = 1; stride < d; stride *= 2) {
        for (int i = lane; i < d / 2; i += 32) {
            const int at = i / stride * 2 * stride + i % stride;
            const float a = x[at], b = x[at + stride];
            x[at] = a + b;
            x[at + stride] = a - b;
        }
        __syncwarp();
    }
    for (int i = lane; i < d; i += 32) x[i] = rotated_sign(r, !back, i, x[i]) * scale;
    __syncwarp();
}

/* ---- biases ---- */

/* The first of the two elements of a head that form a RoPE pair. */
__device__ __forceinline__ int pair_first(const RopeParams &rope, int pair) {
    return rope.interleaved ? 2 * pair : pair;
}
__device__ __forceinline__ int pair_second(const RopeParams &rope, int pair) {
    return rope.interleaved ? 2 * pair + 1 : pair + rope.dims / 2;
}
/* The rotation (cosine, sine) of a pair at a position, composed of the page's start and the offset in the page. */
__device__ __forceinline__ float2 pair_rotation(const RopeParams &rope, int pair, int position) {
    float2 v;
    sincosf((float)position * __ldg(rope.frequencies + pair), &v.y, &v.x);
    return v;
}
__device__ __forceinline__ float2 rotated_twice(float2 a, float2 b) {
    return make_float2(a.x * b.x - a.y * b.y, a.y * b.x + a.x * b.y);
}
