/* GGUF's block types as affine groups: w = scale·code + bias. Where a group has one scale the conversion only moves
 * bits and the products stay exact in f32; Q2_K, Q6_K, IQ1_M, IQ2_XS and IQ2_S have two in 32 elements, which codes
 * between the smallest and the largest value meet nearly. In compact form the scales keep their few bits as well, and
 * Q6_K its groups of 16. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "import/gguf/internal.h"

static const GgufType types[] = {
    [TYPE_F32] = {"F32", 1, 4, 0, 0, DTYPE_F32, QUANT_NONE, 0},
    [TYPE_F16] = {"F16", 1, 2, 0, 0, DTYPE_F16, QUANT_NONE, 0},
    [TYPE_Q4_0] = {"Q4_0", 32, 18, 4, 32, 0, QUANT_SYMMETRIC, 4},
    [TYPE_Q4_1] = {"Q4_1", 32, 20, 4, 32, 0, QUANT_NONE, 0},
    [TYPE_Q5_0] = {"Q5_0", 32, 22, 5, 32, 0, QUANT_SYMMETRIC, 5},
    [TYPE_Q5_1] = {"Q5_1", 32, 24, 5, 32, 0, QUANT_NONE, 0},
    [TYPE_Q8_0] = {"Q8_0", 32, 34, 8, 32, 0, QUANT_SYMMETRIC, 8},
    [9] = {.name = "Q8_1"},
    [TYPE_Q2_K] = {"Q2_K", 256, 84, 4, 32, 0, QUANT_NONE, 0},
    [TYPE_Q3_K] = {"Q3_K", 256, 110, 8, 32, 0, QUANT_K_SYMMETRIC, 6},
    [TYPE_Q4_K] = {"Q4_K", 256, 144, 4, 32, 0, QUANT_K, 4},
    [TYPE_Q5_K] = {"Q5_K", 256, 176, 5, 32, 0, QUANT_K, 5},
    [TYPE_Q6_K] = {"Q6_K", 256, 210, 8, 32, 0, QUANT_K_SYMMETRIC, 6},
    [15] = {.name = "Q8_K"},
    [TYPE_IQ2_XXS] = {"IQ2_XXS", 256, 66, 8, 32, 0, QUANT_NONE, 0},
    [TYPE_IQ2_XS] = {"IQ2_XS", 256, 74, 8, 32, 0, QUANT_K_SYMMETRIC, 6},
    [TYPE_IQ3_XXS] = {"IQ3_XXS", 256, 98, 6, 32, 0, QUANT_K_SYMMETRIC, 6},
    [TYPE_IQ1_S] = {"IQ1_S", 256, 50, 2, 32, 0, QUANT_NONE, 0},
    [TYPE_IQ4_NL] = {"IQ4_NL", 32, 18, 8, 32, 0, QUANT_SYMMETRIC, 8},
    [TYPE_IQ3_S] = {"IQ3_S", 256, 110, 4, 32, 0, QUANT_NONE, 0},
    [TYPE_IQ2_S] = {"IQ2_S", 256, 82, 8, 32, 0, QUANT_K_SYMMETRIC, 6},
    [TYPE_IQ4_XS] = {"IQ4_XS", 256, 136, 8, 32, 0, QUANT_NONE, 0},
    [24] = {.name = "I8"},
    [25] = {.name = "I16"},
    [TYPE_I32] = {"I32", 1, 4, 0, 0, DTYPE_I32, QUANT_NONE, 0},
    [27] = {.name = "I64"},
    [28] = {.name = "F64"},
    [TYPE_IQ1_M] = {"IQ1_M", 256, 56, 8, 32, 0, QUANT_K_SYMMETRIC, 6},
    [TYPE_BF16] = {"BF16", 1, 2, 0, 0, DTYPE_BF16, QUANT_NONE, 0},
    [TYPE_TQ1_0] = {"TQ1_0", 256, 54, 2, 128, 0, QUANT_NONE, 0},
    [TYPE_TQ2_0] = {"TQ2_0", 256, 66, 2, 128, 0, QUANT_NONE, 0},
    [TYPE_MXFP4] = {"MXFP4", 32, 17, 4, 32, 0, QUANT_MXFP4, 4},
    [40] = {.name = "NVFP4"},
};

const GgufType *gguf_type(uint32_t type) { return type < COUNT_OF(types) && types[type].name ? &types[type] : NULL; }

void gguf_type_list(char *out, size_t size) {
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < COUNT_OF(types) && at < size; i++) {
        if (types[i].elements) at += (size_t)snprintf(out + at, size - at, "%s%s", at ? " " : "", types[i].name);
    }
}

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
    nibbles_spread(block + 2, codes);
    for (int i = 0; i < 32; i++) codes[i] = (uint8_t)(gguf_iq4_levels[codes[i]] + 128);
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
static int step_of(const int *k, int count) {
    int step = 0;
    for (int i = 1; i < count && step != 1; i++) step = gcd_of(step, abs(k[i] - k[0]));
    return step;
}

/* `count` values d·k with whole numbers k: codes between the smallest and the largest. When all lie on a grid of no
 * more points than there are codes that is exact, else the error is at most half a step. */
static void integers_to_codes(const int *k, int count, float d, int bits, uint8_t *codes, float *scale, float *bias) {
    const int most = (1 << bits) - 1;
    int low = k[0], high = k[0];
    for (int i = 0; i < count; i++) {
        if (k[i] < low) low = k[i];
        if (k[i] > high) high = k[i];
    }
    int step = step_of(k, count);
    bool exact = high - low <= most * step;
    float unit = exact ? (float)step : (float)(high - low) / (float)most;
    float inverse = unit ? 1 / unit : 0;
    for (int i = 0; i < count; i++) codes[i] = (uint8_t)((float)(k[i] - low) * inverse + 0.5f);
    *scale = d * unit;
    *bias = d * (float)low;
}

static void convert_integers(
    const GgufType *info, const GgufIntegers *block, uint8_t *codes, float *scales, float *biases) {
    int k[GGUF_SUPERBLOCK];
    for (int at = 0; at < GGUF_SUPERBLOCK; at += info->group) {
        for (int i = 0; i < info->group; i++) k[i] = block->scale[(at + i) / 16] * block->value[at + i];
        integers_to_codes(k, info->group, block->unit, info->bits, codes + at, scales++, biases++);
    }
}

/* What is not exact anyway need not have scales of 32 bits, where 16 hold it nearly. */
static float half_or_same(float value) {
    const float half = f16_to_f32(f32_to_f16(value));
    return fabsf(half - value) <= fabsf(value) * 0x1p-11f ? half : value;
}

/* 32 elements of two bits whose two halves have a scale and a minimum each: four values and four others on one grid of
 * 16 points. */
static void convert_q2_k_group(const float *values, uint8_t *codes, float *scale, float *bias) {
    float low = values[0], high = values[0];
    for (int i = 1; i < 32; i++) {
        low = fminf(low, values[i]);
        high = fmaxf(high, values[i]);
    }
    *scale = half_or_same((high - low) / 15);
    *bias = half_or_same(low);
    for (int i = 0; i < 32; i++)
        codes[i] = *scale > 0 ? (uint8_t)fminf(fmaxf(rintf((values[i] - *bias) / *scale), 0), 15) : 0;
}

/* Sixteen bytes of scales and minima, four bits each; 64 of codes, those of elements that are 32 apart in one. */
static void convert_q2_k(const uint8_t *block, uint8_t *codes, float *scales, float *biases) {
    const float d = half_at(block + 80), dmin = half_at(block + 82);
    for (int group = 0; group < 8; group++, codes += 32) {
        float values[32];
        const uint8_t *sub = block + 2 * group, *quarters = block + 16 + group / 4 * 32;
        for (int i = 0; i < 32; i++) codes[i] = quarters[i] >> group % 4 * 2 & 3;
        scales[group] = half_or_same(d * (float)(sub[0] & 15));
        biases[group] = half_or_same(-(dmin * (float)(sub[0] >> 4)));
        if (sub[0] == sub[1]) continue; /* one scale: the codes as they are */
        for (int i = 0; i < 32; i++)
            values[i] = d * (float)(sub[i / 16] & 15) * (float)codes[i] - dmin * (float)(sub[i / 16] >> 4);
        convert_q2_k_group(values, codes, &scales[group], &biases[group]);
    }
}

void gguf_blocks_convert(
    uint32_t type, const uint8_t *blocks, int64_t count, uint8_t *codes, float *scales, float *biases) {
    const GgufType *info = gguf_type(type);
    CHECK(info && info->bits && count % info->elements == 0);
    int groups = info->elements / info->group;
    for (int64_t at = 0; at < count; at += info->elements) {
        GgufIntegers integers;
        if (gguf_integers(type, blocks, &integers)) {
            convert_integers(info, &integers, codes, scales, biases);
        } else if (type == TYPE_Q2_K) {
            convert_q2_k(blocks, codes, scales, biases);
        } else if (type == TYPE_Q4_K) {
            convert_k(blocks, NULL, blocks + 16, codes, scales, biases);
        } else if (type == TYPE_Q5_K) {
            convert_k(blocks, blocks + 16, blocks + 48, codes, scales, biases);
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

/* What QUANT_K wants (tensor.h), from the scales of a block. */
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

/* IQ2_XS and IQ2_S have the levels 8, 25 and 43: nearly 5, 15 and 26 times 1.6525. The largest error is 0.26, where the
 * levels themselves lie 17 apart. */
static const float IQ2_STEP = 1.6525f;
static int iq2_code(int level) { return level < 0 ? -iq2_code(-level) : level == 8 ? 5 : level == 25 ? 15 : 26; }
static bool is_iq2(uint32_t type) { return type == TYPE_IQ2_XS || type == TYPE_IQ2_S; }

static void k_symmetric_block(uint32_t type, const uint8_t *block, uint8_t *codes, uint8_t *record) {
    GgufIntegers integers;
    CHECK(gguf_integers(type, block, &integers));
    const bool iq2 = is_iq2(type);
    const uint16_t unit = f32_to_f16(iq2 ? integers.unit * IQ2_STEP : integers.unit);
    for (int i = 0; i < GGUF_SUPERBLOCK; i++)
        codes[i] = (uint8_t)((iq2 ? iq2_code(integers.value[i]) : integers.value[i]) + 32);
    memcpy(record, &unit, sizeof unit);
    memcpy(record + 2, integers.scale, sizeof integers.scale);
}

bool gguf_block_fits(uint32_t type, const uint8_t *block) {
    GgufIntegers integers;
    if (!is_iq2(type) && type != TYPE_IQ3_XXS && type != TYPE_IQ1_M) return true; /* their own f16 is the unit */
    CHECK(gguf_integers(type, block, &integers));
    const float unit = is_iq2(type) ? integers.unit * IQ2_STEP : integers.unit;
    const float half = f16_to_f32(f32_to_f16(unit)), error = is_iq2(type) ? fabsf(unit) * 0x1p-7f : 0;
    return fabsf(half - unit) <= error || !isfinite(unit);
}

void gguf_blocks_compact(uint32_t type, const uint8_t *blocks, int64_t count, uint8_t *codes, uint8_t *scales) {
    const GgufType *info = gguf_type(type);
    CHECK(info && info->compact != QUANT_NONE && count % info->elements == 0);
    for (int64_t at = 0; at < count; at += info->elements) {
        float values[2][GGUF_SUPERBLOCK / GGUF_GROUP];
        if (info->compact == QUANT_K_SYMMETRIC) {
            k_symmetric_block(type, blocks, codes, scales);
            scales += K_SYMMETRIC_BYTES;
        } else if (info->compact == QUANT_MXFP4) { /* an exponent as scale, then the codes, as in MLX */
            nibbles_spread(blocks + 1, codes);
            *scales++ = blocks[0];
        } else {
            gguf_blocks_convert(type, blocks, info->elements, codes, values[0], values[1]);
            if (info->compact == QUANT_K)
                k_record(blocks, scales);
            else
                memcpy(scales, blocks, 2);
            scales += info->compact == QUANT_K ? K_BYTES : 2;
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
