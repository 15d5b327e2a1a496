/* GGUF's block types against the gguf package (tests/tensor/data/blocks.bin, made by tools/make_quant_goldens.py): all
 * but Q6_K exactly. */
#include <stdlib.h>

#include "base/file.h"
#include "import/gguf/internal.h"
#include "test.h"

enum { ELEMENTS = 512, GROUPS = ELEMENTS / GGUF_GROUP, TYPES = 9 };

/* The compact form is exact, always. */
static void check_compact(uint32_t type, const uint8_t *blocks, const uint8_t *values) {
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
    TEST(weight_bytes(&w) <= (size_t)(ELEMENTS / info->elements * info->bytes) * 103 / 100 ||
        strcmp(info->name, "IQ4_NL") == 0);
    gguf_blocks_compact(type, blocks, ELEMENTS, codes, scales);
    gguf_codes_pack(codes, ELEMENTS, w.bits, packed);
    weight_dequantize_row(&w, 0, 0, ELEMENTS, out);
    for (int i = 0; i < ELEMENTS; i++)
        TEST_MSG(out[i] == expected[i], "compact %s element %d: %g, expected %g", info->name, i, (double)out[i],
            (double)expected[i]);
}

static void check_type(uint32_t type, const uint8_t *blocks, const uint8_t *values) {
    const GgufType *info = gguf_type(type);
    uint8_t codes[ELEMENTS], packed[ELEMENTS];
    float scales[GROUPS], biases[GROUPS], out[ELEMENTS], expected[ELEMENTS];
    memcpy(expected, values, sizeof expected);
    gguf_blocks_convert(type, blocks, ELEMENTS, codes, scales, biases);
    gguf_codes_pack(codes, ELEMENTS, info->bits, packed);
    Weight w = {.rows = 1,
        .cols = ELEMENTS,
        .quant = QUANT_AFFINE,
        .bits = info->bits,
        .group = GGUF_GROUP,
        .dtype = DTYPE_F32,
        .data = packed,
        .scales = scales,
        .biases = biases};
    weight_dequantize_row(&w, 0, 0, ELEMENTS, out);
    bool inexact = strcmp(info->name, "Q6_K") == 0;
    int unequal = 0;
    for (int i = 0; i < ELEMENTS; i++) {
        /* Q6_K: half a step of eight bits over the group's range, and a rounding of the code beside a tie. */
        float limit = inexact ? fabsf(scales[i / GGUF_GROUP]) * 0.5001f : 0;
        TEST_MSG(fabsf(out[i] - expected[i]) <= limit, "%s element %d: %g, expected %g", info->name, i, (double)out[i],
            (double)expected[i]);
        unequal += out[i] != expected[i];
    }
    TEST_MSG(!inexact || (unequal > 0 && unequal < ELEMENTS / 2),
        "%d of %d differ: the golden no longer tests rounding", unequal, ELEMENTS);
}

int main(void) {
    FileMap map;
    Error error;
    bool mapped = file_map(&map, "tests/tensor/data/blocks.bin", &error);
    TEST_MSG(mapped, "%s", error.text);
    size_t at = 0;
    int types = 0;
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
        check_type(head[0], blocks, map.data + at + sizeof head + bytes);
        if (info->compact != QUANT_NONE) check_compact(head[0], blocks, map.data + at + sizeof head + bytes);
        free(blocks);
        at += sizeof head + bytes + ELEMENTS * sizeof(float);
        types++;
    }
    TEST(types == TYPES && at == map.size);
    file_unmap(&map);
    return test_done();
}
