/* The block types of 256 elements whose values are whole numbers times whole-numbered scales of 16 elements. What they
 * look like: ggml-common.h and the dequantize_row functions of ggml-quants.c in github.com/ggml-org/ggml. */
#include <string.h>

#include "import/gguf/grids.h"
#include "import/gguf/internal.h"

const int8_t gguf_iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static float half_at(const uint8_t *at) {
    uint16_t half;
    memcpy(&half, at, sizeof half);
    return f16_to_f32(half);
}

static uint32_t word_at(const uint8_t *at, size_t bytes) {
    uint32_t word = 0;
    memcpy(&word, at, bytes);
    return word;
}

static int nibble_at(const uint8_t *bytes, int i) { return bytes[i / 2] >> 4 * (i % 2) & 15; }

/* Element i's two bits: 128 elements lie in 32 bytes, those that are 32 apart in one. */
static int quarter_at(const uint8_t *bytes, int i) { return bytes[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3; }

/* ---- evenly spaced ---- */

/* Two halves of 128: low nibbles in 64 bytes, the upper two bits of four elements in each of 32 bytes. */
static void read_q6_k(const uint8_t *block, GgufIntegers *out) {
    out->unit = half_at(block + 208);
    memcpy(out->scale, block + 192, 16);
    for (int i = 0; i < GGUF_SUPERBLOCK; i++) {
        int half = i / 128, quarter = i % 128 / 32, place = i % 32;
        int nibbles = block[half * 64 + (quarter & 1) * 32 + place];
        int code = (quarter < 2 ? nibbles & 15 : nibbles >> 4) | quarter_at(block + 128, i) << 4;
        out->value[i] = (int8_t)(code - 32);
    }
}

/* Sixteen 6-bit scales in 12 bytes: low nibbles of the first 8, then their high ones; two bits each in bytes 8–11. */
static void read_q3_k(const uint8_t *block, GgufIntegers *out) {
    const uint8_t *scales = block + 96;
    out->unit = half_at(block + 108);
    for (int i = 0; i < 16; i++)
        out->scale[i] = (int8_t)(((scales[i % 8] >> i / 8 * 4 & 15) | (scales[8 + i % 4] >> i / 4 * 2 & 3) << 4) - 32);
    for (int i = 0; i < GGUF_SUPERBLOCK; i++) /* a bit that is not set takes 4 off */
        out->value[i] = (int8_t)(quarter_at(block + 32, i) - (block[i % 32] >> i / 32 & 1 ? 0 : 4));
}

static void read_tq2_0(const uint8_t *block, GgufIntegers *out) {
    out->unit = half_at(block + 64);
    memset(out->scale, 1, sizeof out->scale);
    for (int i = 0; i < GGUF_SUPERBLOCK; i++) out->value[i] = (int8_t)(quarter_at(block, i) - 1);
}

/* `places` runs of `run` elements: a byte is the fraction of 256 that its digits to the base of 3 make, the first digit
 * being that of the first run. */
static void thirds_spread(const uint8_t *bytes, int run, int places, int8_t *values) {
    for (int place = 0, power = 1; place < places; place++, power *= 3) {
        for (int i = 0; i < run; i++) *values++ = (int8_t)(((uint8_t)(bytes[i] * power) * 3 >> 8) - 1);
    }
}

static void read_tq1_0(const uint8_t *block, GgufIntegers *out) {
    out->unit = half_at(block + 52);
    memset(out->scale, 1, sizeof out->scale);
    thirds_spread(block, 32, 5, out->value);
    thirds_spread(block + 32, 16, 5, out->value + 160);
    thirds_spread(block + 48, 4, 4, out->value + 240);
}

/* ---- sixteen levels ---- */

static void read_iq4_xs(const uint8_t *block, GgufIntegers *out) {
    const uint32_t high = word_at(block + 2, 2);
    out->unit = half_at(block);
    for (int i = 0; i < 16; i++)
        out->scale[i] = (int8_t)((nibble_at(block + 4, i / 2) | (high >> i / 2 * 2 & 3) << 4) - 32);
    for (int i = 0; i < GGUF_SUPERBLOCK; i++) {
        const uint8_t both = block[8 + i / 32 * 16 + i % 16];
        out->value[i] = gguf_iq4_levels[i % 32 < 16 ? both & 15 : both >> 4];
    }
}

/* ---- code books ---- */

/* 8 elements: an entry of 8 levels, or two of 4; a bit of signs that is set makes its element negative. */
static void levels_spread(uint32_t entry, int bits, const int8_t *levels, uint32_t signs, int8_t *values) {
    for (int i = 0; i < 8; i++) {
        int8_t level = levels[entry >> i * bits & ((1u << bits) - 1)];
        values[i] = (int8_t)(signs >> i & 1 ? -level : level);
    }
}

/* Eight signs in seven bits: an even number of them is set. */
static uint32_t signs_of(uint32_t seven) { return seven | (uint32_t)__builtin_parity(seven) << 7; }

static const int8_t levels_iq2[4] = {8, 25, 43, 0}, levels_iq1[4] = {-8, 0, 8, 0};
static const int8_t levels_iq3_xxs[8] = {2, 6, 10, 14, 18, 22, 26, 31}, levels_iq3_s[8] = {1, 3, 5, 7, 9, 11, 13, 15};

/* 32 elements: four places in the book, then four times seven signs and a scale. */
static void read_iq2_xxs(const uint8_t *block, GgufIntegers *out) {
    out->unit = half_at(block) / 8;
    for (int i = 0; i < 32; i++) {
        const uint8_t *part = block + 2 + i / 4 * 8;
        const uint32_t word = word_at(part + 4, 4);
        out->scale[i / 2] = (int8_t)(2 * (word >> 28) + 1);
        levels_spread(gguf_grid_iq2_xxs[part[i % 4]], 2, levels_iq2, signs_of(word >> i % 4 * 7 & 127),
            out->value + 8 * (ptrdiff_t)i);
    }
}

static void scales_odd(const uint8_t *nibbles, int each, GgufIntegers *out) {
    for (int i = 0; i < 16; i++) out->scale[i] = (int8_t)(2 * nibble_at(nibbles, i / each) + 1);
}

static void read_iq2_xs(const uint8_t *block, GgufIntegers *out) {
    out->unit = half_at(block) / 8;
    scales_odd(block + 66, 1, out);
    for (int i = 0; i < 32; i++) {
        const uint32_t word = word_at(block + 2 + 2 * i, 2);
        levels_spread(gguf_grid_iq2_xs[word & 511], 2, levels_iq2, signs_of(word >> 9), out->value + 8 * (ptrdiff_t)i);
    }
}

static void read_iq2_s(const uint8_t *block, GgufIntegers *out) {
    out->unit = half_at(block) / 8;
    scales_odd(block + 74, 1, out);
    for (int i = 0; i < 32; i++) {
        const unsigned place = block[2 + i] | (block[66 + i / 4] >> i % 4 * 2 & 3u) << 8;
        levels_spread(gguf_grid_iq2_s[place], 2, levels_iq2, block[34 + i], out->value + 8 * (ptrdiff_t)i);
    }
}

/* The levels are halves of those in the package, so that they fit six bits. */
static void read_iq3_xxs(const uint8_t *block, GgufIntegers *out) {
    out->unit = half_at(block) / 2;
    for (int i = 0; i < 32; i++) {
        const uint8_t *place = block + 2 + 2 * i;
        const uint32_t word = word_at(block + 66 + i / 4 * 4, 4);
        const uint32_t entry = gguf_grid_iq3_xxs[place[0]] | (uint32_t)gguf_grid_iq3_xxs[place[1]] << 12;
        out->scale[i / 2] = (int8_t)(2 * (word >> 28) + 1);
        levels_spread(entry, 3, levels_iq3_xxs, signs_of(word >> i % 4 * 7 & 127), out->value + 8 * (ptrdiff_t)i);
    }
}

static void read_iq3_s(const uint8_t *block, GgufIntegers *out) {
    out->unit = half_at(block);
    scales_odd(block + 106, 2, out);
    for (int i = 0; i < 32; i++) {
        const uint8_t *place = block + 2 + 2 * i;
        const unsigned high = block[66 + i / 4] >> i % 4 * 2;
        const uint32_t entry = gguf_grid_iq3_s[place[0] | (high & 1) << 8] |
            (uint32_t)gguf_grid_iq3_s[place[1] | (high >> 1 & 1) << 8] << 12;
        levels_spread(entry, 3, levels_iq3_s, block[74 + i], out->value + 8 * (ptrdiff_t)i);
    }
}

/* Eighths of −1, 0 and 1, all moved up or down by one eighth. */
static void read_iq1(unsigned place, bool down, int8_t *values) {
    levels_spread(gguf_grid_iq1_s[place], 2, levels_iq1, 0, values);
    for (int i = 0; i < 8; i++) values[i] = (int8_t)(values[i] + (down ? -1 : 1));
}

static void read_iq1_s(const uint8_t *block, GgufIntegers *out) {
    out->unit = half_at(block) / 8;
    for (int i = 0; i < 32; i++) {
        const uint32_t high = word_at(block + 34 + i / 4 * 2, 2);
        out->scale[i / 2] = (int8_t)(2 * (high >> 12 & 7) + 1);
        read_iq1(block[2 + i] | (high >> i % 4 * 3 & 7) << 8, high >> 15, out->value + 8 * (ptrdiff_t)i);
    }
}

/* The upper four bits of four words are the block's scale, the others four scales of three bits each. */
static void read_iq1_m(const uint8_t *block, GgufIntegers *out) {
    uint16_t unit = 0;
    for (int i = 0; i < 4; i++) unit |= (uint16_t)(word_at(block + 48 + 2 * i, 2) >> 12 << 4 * i);
    out->unit = f16_to_f32(unit) / 8;
    for (int i = 0; i < 16; i++)
        out->scale[i] = (int8_t)(2 * (word_at(block + 48 + i / 4 * 2, 2) >> i % 4 * 3 & 7) + 1);
    for (int i = 0; i < 32; i++) {
        const int high = nibble_at(block + 32, i);
        read_iq1(block[i] | (high & 7u) << 8, high >> 3, out->value + 8 * (ptrdiff_t)i);
    }
}

static void (*const readers[])(const uint8_t *block, GgufIntegers *out) = {
    [TYPE_Q3_K] = read_q3_k,
    [TYPE_Q6_K] = read_q6_k,
    [TYPE_IQ2_XXS] = read_iq2_xxs,
    [TYPE_IQ2_XS] = read_iq2_xs,
    [TYPE_IQ3_XXS] = read_iq3_xxs,
    [TYPE_IQ1_S] = read_iq1_s,
    [TYPE_IQ3_S] = read_iq3_s,
    [TYPE_IQ2_S] = read_iq2_s,
    [TYPE_IQ4_XS] = read_iq4_xs,
    [TYPE_IQ1_M] = read_iq1_m,
    [TYPE_TQ1_0] = read_tq1_0,
    [TYPE_TQ2_0] = read_tq2_0,
};

bool gguf_integers(uint32_t type, const uint8_t *block, GgufIntegers *out) {
    if (type >= COUNT_OF(readers) || !readers[type]) return false;
    readers[type](block, out);
    return true;
}
