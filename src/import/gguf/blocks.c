/* GGUF's block types as affine groups of 32: w = scale·code + bias. All but Q6_K are affine already, so the conversion
 * only moves bits and the products stay exact in f32. In compact form the scales keep their few bits as well, and Q6_K
 * its groups of 16. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "import/gguf/internal.h"

enum {
    TYPE_F32 = 0,
    TYPE_F16 = 1,
    TYPE_Q4_0 = 2,
    TYPE_Q4_1 = 3,
    TYPE_Q5_0 = 6,
    TYPE_Q5_1 = 7,
    TYPE_Q8_0 = 8,
    TYPE_Q4_K = 12,
    TYPE_Q5_K = 13,
    TYPE_Q6_K = 14,
    TYPE_IQ4_NL = 20,
    TYPE_BF16 = 30,
    TYPE_MXFP4 = 39,
};

static const GgufType types[] = {
    [TYPE_F32] = {"F32", 1, 4, 0, DTYPE_F32, QUANT_NONE, 0},
    [TYPE_F16] = {"F16", 1, 2, 0, DTYPE_F16, QUANT_NONE, 0},
    [TYPE_Q4_0] = {"Q4_0", 32, 18, 4, 0, QUANT_SYMMETRIC, 4},
    [TYPE_Q4_1] = {"Q4_1", 32, 20, 4, 0, QUANT_NONE, 0},
    [TYPE_Q5_0] = {"Q5_0", 32, 22, 5, 0, QUANT_SYMMETRIC, 5},
    [TYPE_Q5_1] = {"Q5_1", 32, 24, 5, 0, QUANT_NONE, 0},
    [TYPE_Q8_0] = {"Q8_0", 32, 34, 8, 0, QUANT_SYMMETRIC, 8},
    [9] = {.name = "Q8_1"},
    [10] = {.name = "Q2_K"},
    [11] = {.name = "Q3_K"},
    [TYPE_Q4_K] = {"Q4_K", 256, 144, 4, 0, QUANT_K, 4},
    [TYPE_Q5_K] = {"Q5_K", 256, 176, 5, 0, QUANT_K, 5},
    [TYPE_Q6_K] = {"Q6_K", 256, 210, 8, 0, QUANT_K_SYMMETRIC, 6},
    [15] = {.name = "Q8_K"},
    [16] = {.name = "IQ2_XXS"},
    [17] = {.name = "IQ2_XS"},
    [18] = {.name = "IQ3_XXS"},
    [19] = {.name = "IQ1_S"},
    [TYPE_IQ4_NL] = {"IQ4_NL", 32, 18, 8, 0, QUANT_SYMMETRIC, 8},
    [21] = {.name = "IQ3_S"},
    [22] = {.name = "IQ2_S"},
    [23] = {.name = "IQ4_XS"},
    [24] = {.name = "I8"},
    [25] = {.name = "I16"},
    [26] = {.name = "I32"},
    [27] = {.name = "I64"},
    [28] = {.name = "F64"},
    [29] = {.name = "IQ1_M"},
    [TYPE_BF16] = {"BF16", 1, 2, 0, DTYPE_BF16, QUANT_NONE, 0},
    [34] = {.name = "TQ1_0"},
    [35] = {.name = "TQ2_0"},
    [TYPE_MXFP4] = {"MXFP4", 32, 17, 4, 0, QUANT_MXFP4, 4},
    [40] = {.name = "NVFP4"},
};

const GgufType *gguf_type(uint32_t type) { return type < COUNT_OF(types) && types[type].name ? &types[type] : NULL; }

static float half_at(const uint8_t *at) {
    uint16_t half;
    memcpy(&half, at, sizeof half);
    return f16_to_f32(half);
}

/* Sixteen bytes hold 32 nibbles: the low ones first, then the high ones. */
static void nibbles_spread(const uint8_t *packed, uint8_t *codes) {
    for (int i = 0; i < 16; i++) {
        codes[i] = packed[i] & 15;
        codes[i + 16] = packed[i] >> 4;
    }
}

/* Element i's fifth bit is bit i of a word. */
static void fifth_bits_add(const uint8_t *at, uint8_t *codes) {
    uint32_t high;
    memcpy(&high, at, sizeof high);
    for (int i = 0; i < 32; i++) codes[i] |= (uint8_t)((high >> i & 1) << 4);
}

static void convert_simple(uint32_t type, const uint8_t *block, uint8_t *codes, float *scale, float *bias) {
    float d = half_at(block);
    *scale = d;
    switch (type) {
    case TYPE_Q4_0:
        nibbles_spread(block + 2, codes);
        *bias = -8 * d;
        break;
    case TYPE_Q4_1:
        nibbles_spread(block + 4, codes);
        *bias = half_at(block + 2);
        break;
    case TYPE_Q5_0:
        nibbles_spread(block + 6, codes);
        fifth_bits_add(block + 2, codes);
        *bias = -16 * d;
        break;
    case TYPE_Q5_1:
        nibbles_spread(block + 8, codes);
        fifth_bits_add(block + 4, codes);
        *bias = half_at(block + 2);
        break;
    default:
        CHECK(type == TYPE_Q8_0);
        for (int i = 0; i < 32; i++) codes[i] = block[2 + i] ^ 0x80; /* int8 + 128 */
        *bias = -128 * d;
    }
}

/* Sixteen levels that are not evenly spaced, all whole numbers: eight bits hold them exactly. */
static void convert_iq4_nl(const uint8_t *block, uint8_t *codes, float *scale, float *bias) {
    static const int8_t levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    nibbles_spread(block + 2, codes);
    for (int i = 0; i < 32; i++) codes[i] = (uint8_t)(levels[codes[i]] + 128);
    *scale = half_at(block);
    *bias = -128 * *scale;
}

/* Eight 6-bit scales and minima in 12 bytes: the first four in the low bits of bytes 0–3 and 4–7; of the others four
 * bits in bytes 8–11 and two on top of bytes 0–7. */
static void k_scale_min(const uint8_t *packed, int j, int *scale, int *minimum) {
    if (j < 4) {
        *scale = packed[j] & 63;
        *minimum = packed[j + 4] & 63;
    } else {
        *scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        *minimum = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
    }
}

/* Q4_K and Q5_K: sub-block pairs share 32 bytes, the even one in the low nibbles; the fifth bit of sub-block j is bit
 * j. */
static void convert_k(
    const uint8_t *block, const uint8_t *fifth, const uint8_t *nibbles, uint8_t *codes, float *scales, float *biases) {
    float d = half_at(block), dmin = half_at(block + 2);
    for (int j = 0; j < 8; j++, codes += 32) {
        int scale, minimum;
        k_scale_min(block + 4, j, &scale, &minimum);
        scales[j] = d * (float)scale;
        biases[j] = -(dmin * (float)minimum);
        const uint8_t *from = nibbles + j / 2 * 32;
        for (int i = 0; i < 32; i++) codes[i] = j & 1 ? from[i] >> 4 : from[i] & 15;
        for (int i = 0; fifth && i < 32; i++) codes[i] |= (uint8_t)((fifth[i] >> j & 1) << 4);
    }
}

static int gcd_of(int a, int b) {
    while (b) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The largest step that leads from k[0] to all others, 0 when they are equal. */
static int step_of(const int *k) {
    int step = 0;
    for (int i = 1; i < 32 && step != 1; i++) step = gcd_of(step, abs(k[i] - k[0]));
    return step;
}

/* 32 values d·k with whole numbers k: eight bits between the smallest and the largest. When all lie on a grid of at
 * most 256 points that is exact, else the error is at most half a step. */
static void integers_to_codes(const int *k, float d, uint8_t *codes, float *scale, float *bias) {
    int low = k[0], high = k[0];
    for (int i = 1; i < 32; i++) {
        if (k[i] < low) low = k[i];
        if (k[i] > high) high = k[i];
    }
    int step = step_of(k);
    bool exact = high - low <= 255 * step;
    float unit = exact ? (float)step : (float)(high - low) / 255;
    float inverse = unit ? 1 / unit : 0;
    for (int i = 0; i < 32; i++) codes[i] = (uint8_t)((float)(k[i] - low) * inverse + 0.5f);
    *scale = d * unit;
    *bias = d * (float)low;
}

/* Two halves of 128: low nibbles in 64 bytes, the upper two bits of four elements in each of 32 bytes. */
static void q6_k_codes(const uint8_t *block, uint8_t *codes) {
    for (int i = 0; i < GGUF_SUPERBLOCK; i++) {
        int half = i / 128, quarter = i % 128 / 32, place = i % 32;
        int nibbles = block[half * 64 + (quarter & 1) * 32 + place], top = block[128 + half * 32 + place];
        codes[i] = (uint8_t)((quarter < 2 ? nibbles & 15 : nibbles >> 4) | (top >> 2 * quarter & 3) << 4);
    }
}

/* One int8 scale for 16 elements. */
static void convert_q6_k(const uint8_t *block, uint8_t *codes, float *scales, float *biases) {
    const int8_t *sub_scale = (const int8_t *)block + 192;
    float d = half_at(block + 208);
    q6_k_codes(block, codes);
    for (int group = 0; group < 8; group++, codes += 32) {
        int k[32];
        for (int i = 0; i < 32; i++) k[i] = sub_scale[group * 2 + i / 16] * (codes[i] - 32);
        integers_to_codes(k, d, codes, &scales[group], &biases[group]);
    }
}

void gguf_blocks_convert(
    uint32_t type, const uint8_t *blocks, int64_t count, uint8_t *codes, float *scales, float *biases) {
    const GgufType *info = gguf_type(type);
    CHECK(info && info->bits && count % info->elements == 0);
    int groups = info->elements / GGUF_GROUP;
    for (int64_t at = 0; at < count; at += info->elements) {
        if (type == TYPE_Q4_K) {
            convert_k(blocks, NULL, blocks + 16, codes, scales, biases);
        } else if (type == TYPE_Q5_K) {
            convert_k(blocks, blocks + 16, blocks + 48, codes, scales, biases);
        } else if (type == TYPE_Q6_K) {
            convert_q6_k(blocks, codes, scales, biases);
        } else if (type == TYPE_IQ4_NL) {
            convert_iq4_nl(blocks, codes, scales, biases);
        } else {
            convert_simple(type, blocks, codes, scales, biases);
        }
        blocks += info->bytes;
        codes += info->elements;
        scales += groups;
        biases += groups;
    }
}

/* What QUANT_K and QUANT_K_SYMMETRIC want (tensor.h), from the scales of a block. */
static void k_record(const uint8_t *block, uint8_t *record) {
    memcpy(record, block, 4);
    record[3] ^= 0x80; /* the minimum is taken off, the bias is added */
    for (int j = 0; j < 8; j++) {
        int scale, minimum;
        k_scale_min(block + 4, j, &scale, &minimum);
        record[4 + j] = (uint8_t)scale;
        record[12 + j] = (uint8_t)minimum;
    }
}

static void q6_k_record(const uint8_t *block, uint8_t *record) {
    memcpy(record, block + 208, 2);
    memcpy(record + 2, block + 192, 16);
}

void gguf_blocks_compact(uint32_t type, const uint8_t *blocks, int64_t count, uint8_t *codes, uint8_t *scales) {
    const GgufType *info = gguf_type(type);
    CHECK(info && info->compact != QUANT_NONE && count % info->elements == 0);
    for (int64_t at = 0; at < count; at += info->elements) {
        float values[2][GGUF_SUPERBLOCK / GGUF_GROUP];
        if (info->compact == QUANT_K_SYMMETRIC)
            q6_k_codes(blocks, codes);
        else if (info->compact == QUANT_MXFP4) /* the scale, an exponent, then the codes, the same as MLX's */
            nibbles_spread(blocks + 1, codes);
        else
            gguf_blocks_convert(type, blocks, info->elements, codes, values[0], values[1]);
        if (info->compact == QUANT_K) {
            k_record(blocks, scales);
            scales += K_BYTES;
        } else if (info->compact == QUANT_K_SYMMETRIC) {
            q6_k_record(blocks, scales);
            scales += K_SYMMETRIC_BYTES;
        } else if (info->compact == QUANT_MXFP4) {
            *scales++ = blocks[0];
        } else {
            memcpy(scales, blocks, 2);
            scales += 2;
        }
        blocks += info->bytes;
        codes += info->elements;
    }
}

void gguf_codes_pack(const uint8_t *codes, int64_t count, int bits, uint8_t *out) {
    for (int64_t i = 0; i < count; i += 8, out += bits) {
        uint64_t packed = 0;
        for (int k = 0; k < 8; k++) packed |= (uint64_t)codes[i + k] << k * bits;
        memcpy(out, &packed, (size_t)bits);
    }
}
