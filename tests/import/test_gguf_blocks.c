/* GGUF's block types against the gguf package (tests/tensor/data/blocks.bin, made by tools/make_quant_goldens.py): bit
 * for bit, or within the error that docs/formats.md states. */
#include <stdlib.h>

#include "base/file.h"
#include "import/gguf/internal.h"
#include "test.h"

enum { ELEMENTS = 512, GROUPS = ELEMENTS / GGUF_GROUP, RECORDS = 35 };

/* What docs/formats.md promises: bits per element with f32 scales in affine form, and in compact form (0: none). */
static const struct {
    const char *name;
    double bits, compact_bits;
    bool nearest; /* in affine form */
} promised[] = {
    {"Q4_0", 6, 4.5, false},
    {"Q4_1", 6, 0, false},
    {"Q5_0", 7, 5.5, false},
    {"Q5_1", 7, 0, false},
    {"Q8_0", 10, 8.5, false},
    {"Q2_K", 6, 0, true},
    {"Q3_K", 10, 6.5625, false},
    {"Q4_K", 6, 4.625, false},
    {"Q5_K", 7, 5.625, false},
    {"Q6_K", 10, 6.5625, true},
    {"IQ1_S", 4, 0, false},
    {"IQ1_M", 10, 6.5625, true},
    {"IQ2_XXS", 10, 0, false},
    {"IQ2_XS", 10, 6.5625, true},
    {"IQ2_S", 10, 6.5625, true},
    {"IQ3_XXS", 8, 6.5625, false},
    {"IQ3_S", 6, 0, false},
    {"IQ4_NL", 10, 8.5, false},
    {"IQ4_XS", 10, 0, false},
    {"TQ1_0", 2.5, 0, false},
    {"TQ2_0", 2.5, 0, false},
    {"MXFP4", 0, 4.25, false},
};

static size_t promise_of(const GgufType *info) {
    size_t i = 0;
    while (i < COUNT_OF(promised) && strcmp(promised[i].name, info->name) != 0) i++;
    TEST_MSG(i < COUNT_OF(promised), "%s is not promised", info->name);
    return i < COUNT_OF(promised) ? i : 0;
}

/* How far an element of the compact form may be off: the levels 8, 25 and 43 of these are nearly 5, 15 and 26 times a
 * step, 0.26 apart at most; 1/128 is what their f16 may lose among the smallest halves. Everything else is exact. */
static float compact_limit(const GgufType *info, float value) {
    bool iq2 = strcmp(info->name, "IQ2_XS") == 0 || strcmp(info->name, "IQ2_S") == 0;
    return iq2 ? fabsf(value) * (0.27f / 8 + 0x1p-7f) : 0;
}

/* False: the compact form does not hold a block, so that the affine form is taken. */
static bool check_compact(uint32_t type, const uint8_t *blocks, const uint8_t *values) {
    const GgufType *info = gguf_type(type);
    uint8_t codes[ELEMENTS], packed[ELEMENTS], scales[ELEMENTS];
    float out[ELEMENTS], expected[ELEMENTS];
    memcpy(expected, values, sizeof expected);
    Weight w = {.rows = 1,
        .cols = ELEMENTS,
        .quant = info->compact,
        .bits = info->compact_bits,
        .group = info->compact == QUANT_K_SYMMETRIC ? 16 : GGUF_GROUP,
        .dtype = info->compact == QUANT_SYMMETRIC ? DTYPE_F16 : DTYPE_U8,
        .data = packed,
        .scales = scales};
    TEST((double)weight_bytes(&w) * 8 == promised[promise_of(info)].compact_bits * ELEMENTS);
    for (int i = 0; i < ELEMENTS / info->elements; i++) {
        if (!gguf_block_fits(type, blocks + (ptrdiff_t)i * info->bytes)) return false;
    }
    gguf_blocks_compact(type, blocks, ELEMENTS, codes, scales);
    gguf_codes_pack(codes, ELEMENTS, w.bits, packed);
    weight_dequantize_row(&w, 0, 0, ELEMENTS, out);
    for (int i = 0; i < ELEMENTS; i++)
        TEST_MSG(out[i] == expected[i] || fabsf(out[i] - expected[i]) <= compact_limit(info, expected[i]),
            "compact %s element %d: %g, expected %g", info->name, i, (double)out[i], (double)expected[i]);
    return true;
}

static void check_type(uint32_t type, const uint8_t *blocks, const uint8_t *values) {
    const GgufType *info = gguf_type(type);
    const size_t promise = promise_of(info);
    uint8_t codes[ELEMENTS], packed[ELEMENTS];
    float scales[GROUPS], biases[GROUPS], out[ELEMENTS], expected[ELEMENTS];
    memcpy(expected, values, sizeof expected);
    gguf_blocks_convert(type, blocks, ELEMENTS, codes, scales, biases);
    gguf_codes_pack(codes, ELEMENTS, info->bits, packed);
    Weight w = {.rows = 1,
        .cols = ELEMENTS,
        .quant = QUANT_AFFINE,
        .bits = info->bits,
        .group = info->group,
        .dtype = DTYPE_F32,
        .data = packed,
        .scales = scales,
        .biases = biases};
    TEST((double)weight_bytes(&w) * 8 == promised[promise].bits * ELEMENTS);
    weight_dequantize_row(&w, 0, 0, ELEMENTS, out);
    for (int i = 0; type == TYPE_Q2_K && i < GROUPS; i++) { /* so that they take 16 bits */
        const float scale = scales[i];
        TEST(fabsf(scale) > 65504 || fabsf(scale) < 0x1p-14f || f16_to_f32(f32_to_f16(scale)) == scale);
    }
    bool inexact = promised[promise].nearest;
    int unequal = 0;
    for (int i = 0; i < ELEMENTS; i++) {
        /* Half a step over the group's range and a rounding of the code beside a tie; of Q2_K scale and bias are
         * rounded to 11 bits as well, up to 15 times the one. */
        const int group = i / info->group;
        float limit = inexact ? fabsf(scales[group]) * 0.5001f : 0;
        if (type == TYPE_Q2_K) limit += (15 * fabsf(scales[group]) + fabsf(biases[group])) * 0x1p-11f;
        TEST_MSG(fabsf(out[i] - expected[i]) <= limit, "%s element %d: %g, expected %g", info->name, i, (double)out[i],
            (double)expected[i]);
        unequal += out[i] != expected[i];
    }
    /* IQ1_M has more than 256 values only where the largest scale meets both signs */
    TEST_MSG(!inexact || type == TYPE_IQ1_M || (unequal > 0 && unequal < ELEMENTS),
        "%d of %d differ: the golden no longer tests rounding", unequal, ELEMENTS);
}

/* Blocks of any bytes, infinite and NaN scales among them: nothing is read behind them, every code has its bits, and no
 * scale that is not a number becomes one. */
static void check_hostile(uint32_t type, uint64_t *random) {
    const GgufType *info = gguf_type(type);
    const size_t bytes = (size_t)(ELEMENTS / info->elements * info->bytes);
    uint8_t *blocks = malloc(bytes), *codes = malloc(ELEMENTS);
    uint8_t records[ELEMENTS];
    float scales[GROUPS], biases[GROUPS];
    for (int round = 0; round < 200; round++) {
        int over = 0;
        for (size_t i = 0; i < bytes; i++)
            blocks[i] = round == 0 ? 0xFF : round == 1 ? 0x7C : round == 2 ? 0 : (uint8_t)(test_random(random) >> 32);
        if (info->compact != QUANT_MXFP4) {
            gguf_blocks_convert(type, blocks, ELEMENTS, codes, scales, biases);
            for (int i = 0; i < ELEMENTS; i++) over += codes[i] >> info->bits;
            TEST_MSG(round > 0 || isnan(scales[0]) || isnan(biases[0]), "%s: a NaN is lost", info->name);
        }
        if (info->compact != QUANT_NONE) {
            gguf_blocks_compact(type, blocks, ELEMENTS, codes, records);
            for (int i = 0; i < ELEMENTS; i++) over += codes[i] >> info->compact_bits;
        }
        TEST_MSG(!over, "%s: %d codes are too large", info->name, over);
    }
    free(blocks);
    free(codes);
}

int main(void) {
    FileMap map;
    Error error;
    bool mapped = file_map(&map, "tests/tensor/data/blocks.bin", &error);
    TEST_MSG(mapped, "%s", error.text);
    size_t at = 0;
    int records = 0, unfit = 0;
    while (mapped && at < map.size) {
        uint32_t head[2];
        memcpy(head, map.data + at, sizeof head);
        const GgufType *info = gguf_type(head[0]);
        TEST(info && info->bits && head[1] == ELEMENTS);
        if (!info || !info->bits) break;
        size_t bytes = (size_t)(ELEMENTS / info->elements * info->bytes);
        /* A block of memory of exactly this size: a sanitizer sees what reads further. */
        uint8_t *blocks = malloc(bytes);
        memcpy(blocks, map.data + at + sizeof head, bytes);
        const uint8_t *values = map.data + at + sizeof head + bytes;
        if (info->compact != QUANT_MXFP4) check_type(head[0], blocks, values);
        if (info->compact != QUANT_NONE) unfit += !check_compact(head[0], blocks, values);
        free(blocks);
        at += sizeof head + bytes + ELEMENTS * sizeof(float);
        records++;
    }
    TEST(records == RECORDS && at == map.size);
    TEST(unfit == 2); /* IQ3_XXS and IQ1_M with a scale whose half, or eighth, is no half */
    file_unmap(&map);
    uint64_t random = 1;
    for (uint32_t type = 0; type < 64; type++) {
        if (gguf_type(type) && gguf_type(type)->bits) check_hostile(type, &random);
    }
    return test_done();
}
