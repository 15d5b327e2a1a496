/* Pages to codes and back. Written over sixteen tokens, or dims, at a time, in loops of sixteen steps that compilers
 * turn into vectors: every lane's sums run in one order, so that the bits are the same whatever they are compiled for.
 */
#include "backend/kv_code.h"

#include <math.h>
#include <string.h>

#define F16_MOST 65504.0f

enum {
    LANES = 16,
    BLOCKS = KV_PAGE_TOKENS / LANES, /* of tokens */
    ALIGNMENT = 64,
    PART_BYTES = 4 * LANES, /* of a plane: a word a lane */
    ITEMS_MAX = ATTENTION_HEAD_MAX > KV_PAGE_TOKENS ? ATTENTION_HEAD_MAX : KV_PAGE_TOKENS,
};

/* Some bits of every index, from bit `shift` on. */
typedef struct Plane {
    int bits, shift;
} Plane;

static const struct Planes {
    Plane base, extra; /* extra: 0 bits where there is none */
} planes[KV_FORMS] = {
    [KV_CODE3] = {{2, 0}, {1, 2}},
    [KV_CODE4] = {{4, 0}, {0, 0}},
    [KV_CODE5] = {{4, 1}, {1, 0}},
    [KV_CODE6] = {{4, 2}, {2, 0}},
    [KV_CODE8] = {{8, 0}, {0, 0}},
};

/* ---- planes ---- */

/* Items of a lane in one part: as many as a word has fields. */
static int part_items(Plane plane) { return 32 / plane.bits; }

static size_t plane_bytes(Plane plane, int items) {
    return plane.bits ? (size_t)((items + part_items(plane) - 1) / part_items(plane)) * PART_BYTES : 0;
}

/* Item n·4 + i of a part is the field n of byte i. */
static int field_shift(Plane plane, int item) { return item % 4 * 8 + item / 4 * plane.bits; }

static uint32_t field_mask(Plane plane) { return (1u << plane.bits) - 1; }

/* index [items][LANES] to words [part][LANES] */
static void pack(Plane plane, int items, const uint8_t *index, uint8_t *out) {
    const int per_part = plane.bits ? part_items(plane) : 1;
    for (int first = 0; plane.bits && first < items; first += per_part, out += PART_BYTES) {
        uint32_t words[LANES] = {0};
        for (int item = 0; item < per_part && first + item < items; item++) {
            const uint8_t *from = index + (first + item) * LANES;
            const int shift = field_shift(plane, item);
            for (int l = 0; l < LANES; l++) words[l] |= (from[l] >> plane.shift & field_mask(plane)) << shift;
        }
        memcpy(out, words, PART_BYTES);
    }
}

/* Adds the plane's bits to index. */
static void unpack(Plane plane, int items, const uint8_t *from, uint8_t *index) {
    const int per_part = plane.bits ? part_items(plane) : 1;
    for (int first = 0; plane.bits && first < items; first += per_part, from += PART_BYTES) {
        uint32_t words[LANES];
        memcpy(words, from, PART_BYTES);
        for (int item = 0; item < per_part && first + item < items; item++) {
            uint8_t *to = index + (first + item) * LANES;
            const int shift = field_shift(plane, item);
            for (int l = 0; l < LANES; l++) to[l] |= (uint8_t)((words[l] >> shift & field_mask(plane)) << plane.shift);
        }
    }
}

static int plane_get(Plane plane, const uint8_t *from, int item, int lane) {
    if (!plane.bits) return 0;
    uint32_t word;
    memcpy(&word, from + item / part_items(plane) * PART_BYTES + lane * 4, sizeof word);
    return (int)((word >> field_shift(plane, item % part_items(plane)) & field_mask(plane)) << plane.shift);
}

/* ---- layout ---- */

static size_t align(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

KvCodeLayout kv_code_layout(int d, KvForm form, bool values) {
    CHECK(kv_code_dim(d) && form != KV_EXACT && (values || form != KV_CODE3));
    KvCodeLayout layout = {.d = d, .group = kv_group_dims(d)};
    const int items = values ? KV_PAGE_TOKENS : d, blocks = (values ? d : KV_PAGE_TOKENS) / LANES;
    layout.groups = d / layout.group;
    layout.block = plane_bytes(planes[form].base, items);
    layout.extra_block = plane_bytes(planes[form].extra, items);
    layout.scale = values ? 0 : align((size_t)d * sizeof(uint16_t));
    layout.codes = layout.scale + (size_t)layout.groups * KV_PAGE_TOKENS * sizeof(uint16_t);
    layout.extra = layout.codes + (size_t)blocks * layout.block;
    layout.bytes = layout.extra + (size_t)blocks * layout.extra_block;
    return layout;
}

int kv_code_get(const KvCodeLayout *layout, KvForm form, bool values, const uint8_t *page, int token, int dim) {
    const int lane = values ? dim : token, item = values ? token : dim;
    const size_t block = (size_t)(lane / LANES);
    const uint8_t *base = page + layout->codes + block * layout->block;
    const uint8_t *extra = page + layout->extra + block * layout->extra_block;
    return plane_get(planes[form].base, base, item, lane % LANES) |
        plane_get(planes[form].extra, extra, item, lane % LANES);
}

static void pack_block(
    const KvCodeLayout *layout, KvForm form, int items, int block, const uint8_t *index, uint8_t *page) {
    pack(planes[form].base, items, index, page + layout->codes + (size_t)block * layout->block);
    pack(planes[form].extra, items, index, page + layout->extra + (size_t)block * layout->extra_block);
}

static void unpack_block(
    const KvCodeLayout *layout, KvForm form, int items, int block, const uint8_t *page, uint8_t *index) {
    memset(index, 0, (size_t)items * LANES);
    unpack(planes[form].base, items, page + layout->codes + (size_t)block * layout->block, index);
    unpack(planes[form].extra, items, page + layout->extra + (size_t)block * layout->extra_block, index);
}

static void write_f16(uint8_t *to, float x) {
    const uint16_t half = f32_to_f16(x);
    memcpy(to, &half, sizeof half);
}

static float read_f16(const uint8_t *from) {
    uint16_t half;
    memcpy(&half, from, sizeof half);
    return f16_to_f32(half);
}

/* ---- codes of a group ---- */

/* A form ready for use. */
typedef struct Codebook {
    KvForm form;
    int half;                    /* levels of the positive half */
    const float *edges;          /* between them */
    float level[KV_CODE_LEVELS]; /* of every index */
} Codebook;

static Codebook open_codebook(KvForm form) {
    Codebook book = {.form = form, .half = 1 << (kv_form_bits(form) - 1)};
    if (form != KV_CODE8) book.edges = kv_code_edges(form);
    for (int i = 0; i < 2 * book.half; i++) book.level[i] = kv_codebook(form)[i] + 0.5f;
    return book;
}

typedef float Four __attribute__((vector_size(16)));
typedef int32_t FourInts __attribute__((vector_size(16)));

/* Indices of 16 numbers, which `factor` brings to N(0,1): how many edges lie below the size, mirrored for what is not
 * positive. */
static void compare(const Codebook *book, const float *z, const float *factor, uint8_t *index) {
    for (int l = 0; l < LANES; l += 4) {
        Four x, scale;
        memcpy(&x, z + l, sizeof x);
        memcpy(&scale, factor + l, sizeof scale);
        const FourInts positive = x > 0;
        const Four u = x * scale, size = (Four)((FourInts)u & INT32_MAX);
        FourInts below = {0};
        for (int e = 0; e < book->half - 1; e++) below -= size > book->edges[e];
        const FourInts i = (below ^ ~positive) + book->half;
        for (int j = 0; j < 4; j++) index[l + j] = (uint8_t)i[j];
    }
}

/* The same for uniform steps. */
static void divide(const Codebook *book, const float *z, const float *factor, uint8_t *index) {
    for (int l = 0; l < LANES; l++) {
        const float u = fabsf(z[l]) * factor[l];
        const int below = u < (float)(book->half - 1) ? (int)u : book->half - 1;
        index[l] = (uint8_t)(z[l] > 0 ? book->half + below : book->half - 1 - below);
    }
}

/* Codes a group of 16 tokens: z [dims][LANES]; scales to out [LANES] f16. */
static void code_group(const Codebook *book, int dims, const float *z, uint8_t *index, uint8_t *out) {
    float square[LANES] = {0}, most[LANES] = {0}, factor[LANES], dot[LANES] = {0};
    for (int i = 0; i < dims; i++)
        for (int l = 0; l < LANES; l++) {
            const float x = z[i * LANES + l];
            square[l] += x * x;
            most[l] = fabsf(x) > most[l] ? fabsf(x) : most[l];
        }
    const bool uniform = book->form == KV_CODE8;
    for (int l = 0; l < LANES; l++) {
        const float size = uniform ? most[l] : sqrtf(square[l]);
        factor[l] = size > 0 ? (uniform ? (float)book->half : sqrtf((float)dims)) / size : 0;
    }
    for (int i = 0; i < dims; i++, z += LANES, index += LANES) {
        (uniform ? divide : compare)(book, z, factor, index);
        for (int l = 0; l < LANES; l++) dot[l] += z[l] * book->level[index[l]];
    }
    for (int l = 0; l < LANES; l++) {
        const float scale = square[l] / dot[l];
        write_f16(out + 2 * l, scale >= 0 && scale <= F16_MOST ? scale : 0); /* nothing, or what is no number */
    }
}

/* All groups of 16 tokens; index [d][LANES]. */
static void code_block(
    const KvCodeLayout *layout, const Codebook *book, int block, const float *z, uint8_t *index, uint8_t *page) {
    for (int g = 0; g < layout->groups; g++) {
        const size_t at = (size_t)g * (size_t)layout->group * LANES;
        uint8_t *scales = page + layout->scale + (size_t)(g * KV_PAGE_TOKENS + block * LANES) * sizeof(uint16_t);
        code_group(book, layout->group, z + at, index + at, scales);
    }
}

/* ---- keys ---- */

/* Takes the mean of the page's tokens, as it is stored, from x [BLOCKS][d][LANES]. */
static void centre(int d, float *x, uint8_t *means) {
    const size_t block = (size_t)d * LANES;
    for (int i = 0; i < d; i++) {
        float sum[LANES] = {0};
        for (int b = 0; b < BLOCKS; b++)
            for (int l = 0; l < LANES; l++) sum[l] += x[(size_t)b * block + (size_t)(i * LANES + l)];
        for (int half = LANES / 2; half > 0; half /= 2)
            for (int l = 0; l < half; l++) sum[l] += sum[l + half];
        write_f16(means + 2 * i, sum[0] / KV_PAGE_TOKENS);
        const float mean = read_f16(means + 2 * i);
        for (int b = 0; b < BLOCKS; b++)
            for (int l = 0; l < LANES; l++) x[(size_t)b * block + (size_t)(i * LANES + l)] -= mean;
    }
}

void kv_code_keys(int d, KvForm form, float *x, const KvBias *bias, uint8_t *page) {
    const KvCodeLayout layout = kv_code_layout(d, form, false);
    const Codebook book = open_codebook(form);
    const size_t block = (size_t)d * LANES;
    uint8_t index[ATTENTION_HEAD_MAX * LANES];
    memset(page, 0, layout.codes);
    if (bias) kv_subtract_bias(d, x, bias);
    for (int b = 0; b < BLOCKS; b++) kv_rotate(d, LANES, x + (size_t)b * block);
    centre(d, x, page + layout.mean);
    for (int b = 0; b < BLOCKS; b++) {
        code_block(&layout, &book, b, x + (size_t)b * block, index, page);
        pack_block(&layout, form, d, b, index, page);
    }
}

/* ---- values ---- */

void kv_code_values(int d, KvForm form, float *x, uint8_t *page) {
    const KvCodeLayout layout = kv_code_layout(d, form, true);
    const Codebook book = open_codebook(form);
    const size_t block = (size_t)d * LANES;
    uint8_t index[ATTENTION_HEAD_MAX * LANES], turned[KV_PAGE_TOKENS * LANES];
    uint8_t *all = (uint8_t *)x; /* indices take the place of the numbers that they are made of */
    for (int b = 0; b < BLOCKS; b++) {
        float *z = x + (size_t)b * block;
        kv_rotate(d, LANES, z);
        code_block(&layout, &book, b, z, index, page);
        memcpy(all + (size_t)b * block, index, block);
    }
    for (int b = 0; b < d / LANES; b++) {
        for (int t = 0; t < KV_PAGE_TOKENS; t++)
            for (int l = 0; l < LANES; l++)
                turned[t * LANES + l] =
                    all[(size_t)(t / LANES) * block + (size_t)((b * LANES + l) * LANES + t % LANES)];
        pack_block(&layout, form, KV_PAGE_TOKENS, b, turned, page);
    }
}

/* ---- back ---- */

void kv_decode(int d, KvForm form, bool values, const uint8_t *page, float *out) {
    const KvCodeLayout layout = kv_code_layout(d, form, values);
    const int8_t *codebook = kv_codebook(form);
    const int items = values ? KV_PAGE_TOKENS : d, lanes = values ? d : KV_PAGE_TOKENS;
    uint8_t index[ITEMS_MAX * LANES];
    float scales[ATTENTION_HEAD_MAX / KV_CODE_DIM][KV_PAGE_TOKENS], means[ATTENTION_HEAD_MAX] = {0};
    for (int i = 0; i < layout.groups * KV_PAGE_TOKENS; i++)
        scales[i / KV_PAGE_TOKENS][i % KV_PAGE_TOKENS] = read_f16(page + layout.scale + 2 * i);
    for (int i = 0; i < d && !values; i++) means[i] = read_f16(page + layout.mean + 2 * i);
    for (int lane = 0; lane < lanes; lane++) {
        if (lane % LANES == 0) unpack_block(&layout, form, items, lane / LANES, page, index);
        for (int item = 0; item < items; item++) {
            const int token = values ? item : lane, dim = values ? lane : item;
            const float c = codebook[index[item * LANES + lane % LANES]] + 0.5f;
            out[(size_t)token * (size_t)d + (size_t)dim] = scales[dim / layout.group][token] * c + means[dim];
        }
    }
}
