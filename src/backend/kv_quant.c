/* Quantises pages and back. Written over sixteen tokens, or dims, at a time, in loops of sixteen steps that compilers
 * vectorise: every lane's sums run in one order, so that the bits are the same for every compilation target.
 */
#include "backend/kv_quant.h"

#include <math.h>
#include <string.h>

#define F16_MOST 65504.0f

enum {
    LANES = 16,
    BLOCKS = KV_PAGE_TOKENS / LANES, /* blocks of tokens */
    ALIGNMENT = 64,
    ROW_BYTES = 4 * LANES, /* one word per lane */
};

/* Bits of an index in the bytes of a row. */
typedef struct Field {
    uint8_t row, from, bits, to; /* bits from … of a byte are bits to … of the index */
} Field;

enum { QUADS_MAX = 8, FIELDS_MAX = 3, ROWS_MAX = 5 };

/* Places of indices in the part that repeats along a lane; a field of 0 bits ends a list. */
typedef struct Part {
    int rows, quads;
    Field fields[QUADS_MAX][FIELDS_MAX];
} Part;

static const Part parts[KV_FORMS] = {
    [KV_Q3] = {3, 8,
        {{{0, 0, 3, 0}}, {{1, 0, 3, 0}}, {{2, 0, 3, 0}}, {{0, 3, 3, 0}}, {{1, 3, 3, 0}}, {{2, 3, 3, 0}},
            {{0, 6, 2, 0}, {2, 6, 1, 2}}, {{1, 6, 2, 0}, {2, 7, 1, 2}}}},
    [KV_Q4] = {1, 2, {{{0, 0, 4, 0}}, {{0, 4, 4, 0}}}},
    [KV_Q5] = {5, 8,
        {{{0, 0, 5, 0}}, {{1, 0, 5, 0}}, {{2, 0, 5, 0}}, {{0, 5, 3, 0}, {1, 6, 2, 3}}, {{3, 0, 5, 0}}, {{4, 0, 5, 0}},
            {{2, 5, 3, 0}, {3, 6, 2, 3}}, {{4, 5, 3, 0}, {1, 5, 1, 3}, {3, 5, 1, 4}}}},
    [KV_Q6] = {3, 4, {{{0, 0, 6, 0}}, {{1, 0, 6, 0}}, {{2, 0, 6, 0}}, {{0, 6, 2, 0}, {1, 6, 2, 2}, {2, 6, 2, 4}}}},
    [KV_Q8] = {1, 1, {{{0, 0, 8, 0}}}},
};

/* ---- parts ---- */

/* Rows that the first quads of a part need. */
static int rows_of(const Part *part, int quads) {
    int rows = 0;
    for (int q = 0; q < quads; q++)
        for (int f = 0; f < FIELDS_MAX; f++)
            if (part->fields[q][f].bits && part->fields[q][f].row >= rows) rows = part->fields[q][f].row + 1;
    return rows;
}

static size_t codes_bytes(KvForm form, int items) {
    const Part *part = &parts[form];
    const int quads = items / 4;
    return (size_t)(quads / part->quads * part->rows + rows_of(part, quads % part->quads)) * ROW_BYTES;
}

static uint32_t field_mask(const Field *field) { return (1u << field->bits) - 1; }

/* index [items][LANES] to rows of words [LANES] */
static void pack(KvForm form, int items, const uint8_t *index, uint8_t *out) {
    const Part *part = &parts[form];
    for (int quads; items > 0; items -= quads * 4, index += (size_t)quads * 4 * LANES) {
        uint32_t words[ROWS_MAX][LANES] = {{0}};
        quads = items / 4 < part->quads ? items / 4 : part->quads;
        for (int item = 0; item < quads * 4; item++)
            for (const Field *f = part->fields[item / 4]; f < part->fields[item / 4] + FIELDS_MAX && f->bits; f++) {
                const uint8_t *from = index + item * LANES;
                const int shift = item % 4 * 8 + f->from;
                for (int l = 0; l < LANES; l++) words[f->row][l] |= (from[l] >> f->to & field_mask(f)) << shift;
            }
        const size_t bytes = (size_t)rows_of(part, quads) * ROW_BYTES;
        memcpy(out, words, bytes);
        out += bytes;
    }
}

static int code_at(KvForm form, const uint8_t *from, int item, int lane) {
    const Part *part = &parts[form];
    const int quad = item / 4;
    const uint8_t *rows = from + (size_t)(quad / part->quads * part->rows) * ROW_BYTES + lane * 4 + item % 4;
    int index = 0;
    for (const Field *f = part->fields[quad % part->quads]; f < part->fields[quad % part->quads] + FIELDS_MAX; f++)
        index |= (int)(rows[f->row * ROW_BYTES] >> f->from & field_mask(f)) << f->to;
    return index;
}

/* ---- layout ---- */

static size_t align(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

KvQuantLayout kv_quant_layout(int d, KvForm form, bool values) {
    CHECK(kv_quant_dim(d) && form != KV_FULL && (values || form != KV_Q3));
    KvQuantLayout layout = {.d = d, .group = kv_group_dims(d)};
    layout.groups = d / layout.group;
    layout.run = codes_bytes(form, values ? KV_PAGE_TOKENS : layout.group);
    layout.block = values ? layout.run : layout.run * (size_t)layout.groups;
    layout.scale = values ? 0 : align((size_t)d * sizeof(uint16_t));
    layout.codes = layout.scale + (size_t)layout.groups * KV_PAGE_TOKENS * sizeof(uint16_t);
    layout.bytes = layout.codes + (size_t)(values ? d : KV_PAGE_TOKENS) / LANES * layout.block;
    return layout;
}

int kv_quant_get(const KvQuantLayout *layout, KvForm form, bool values, const uint8_t *page, int token, int dim) {
    const int lane = values ? dim : token, item = values ? token : dim % layout->group;
    const uint8_t *block = page + layout->codes + (size_t)(lane / LANES) * layout->block;
    return code_at(form, block + (values ? 0 : (size_t)(dim / layout->group) * layout->run), item, lane % LANES);
}

/* index [items][LANES] of a block. */
static void pack_block(
    const KvQuantLayout *layout, KvForm form, bool values, int block, const uint8_t *index, uint8_t *page) {
    uint8_t *out = page + layout->codes + (size_t)block * layout->block;
    const int items = values ? KV_PAGE_TOKENS : layout->group;
    for (int g = 0; g < (values ? 1 : layout->groups); g++, out += layout->run, index += (size_t)items * LANES)
        pack(form, items, index, out);
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

/* ---- quantisation of a group ---- */

/* The codebook of a format, prepared. */
typedef struct Codebook {
    KvForm form;
    int half;                     /* levels of the positive half */
    const float *edges;           /* edges between those levels */
    float level[KV_QUANT_LEVELS]; /* level of every index */
} Codebook;

static Codebook open_codebook(KvForm form) {
    Codebook book = {.form = form, .half = 1 << (kv_form_bits(form) - 1)};
    if (form != KV_Q8) book.edges = kv_quant_edges(form);
    for (int i = 0; i < 2 * book.half; i++) book.level[i] = kv_codebook(form)[i] + 0.5f;
    return book;
}

typedef float Four __attribute__((vector_size(16)));
typedef int32_t FourInts __attribute__((vector_size(16)));

/* Indices of 16 numbers, which `factor` scales to N(0,1): the number of edges below the magnitude, mirrored for numbers
 * ≤ 0. */
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

/* Quantises a group of 16 tokens: z [dims][LANES]; scales to out [LANES] f16. */
static void code_group(const Codebook *book, int dims, const float *z, uint8_t *index, uint8_t *out) {
    float square[LANES] = {0}, most[LANES] = {0}, factor[LANES], dot[LANES] = {0};
    for (int i = 0; i < dims; i++)
        for (int l = 0; l < LANES; l++) {
            const float x = z[i * LANES + l];
            square[l] += x * x;
            most[l] = fabsf(x) > most[l] ? fabsf(x) : most[l];
        }
    const bool uniform = book->form == KV_Q8;
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
        write_f16(out + 2 * l, scale >= 0 && scale <= F16_MOST ? scale : 0); /* 0 for zeros and for NaN or infinity */
    }
}

/* All groups of 16 tokens; index [d][LANES]. */
static void code_block(
    const KvQuantLayout *layout, const Codebook *book, int block, const float *z, uint8_t *index, uint8_t *page) {
    for (int g = 0; g < layout->groups; g++) {
        const size_t at = (size_t)g * (size_t)layout->group * LANES;
        uint8_t *scales = page + layout->scale + (size_t)(g * KV_PAGE_TOKENS + block * LANES) * sizeof(uint16_t);
        code_group(book, layout->group, z + at, index + at, scales);
    }
}

/* ---- keys ---- */

/* Subtracts the mean of the page's tokens, as stored, from x [BLOCKS][d][LANES]. */
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

void kv_quant_keys(int d, KvForm form, float *x, const KvBias *bias, uint8_t *page) {
    const KvQuantLayout layout = kv_quant_layout(d, form, false);
    const Codebook book = open_codebook(form);
    const size_t block = (size_t)d * LANES;
    uint8_t index[ATTENTION_HEAD_MAX * LANES];
    memset(page, 0, layout.codes);
    if (bias) kv_subtract_bias(d, x, bias);
    for (int b = 0; b < BLOCKS; b++) kv_rotate(d, LANES, x + (size_t)b * block);
    centre(d, x, page + layout.mean);
    for (int b = 0; b < BLOCKS; b++) {
        code_block(&layout, &book, b, x + (size_t)b * block, index, page);
        pack_block(&layout, form, false, b, index, page);
    }
}

/* ---- values ---- */

void kv_quant_values(int d, KvForm form, float *x, uint8_t *page) {
    const KvQuantLayout layout = kv_quant_layout(d, form, true);
    const Codebook book = open_codebook(form);
    const size_t block = (size_t)d * LANES;
    uint8_t index[ATTENTION_HEAD_MAX * LANES], rotated[KV_PAGE_TOKENS * LANES];
    uint8_t *all = (uint8_t *)x; /* indices overwrite their source numbers */
    for (int b = 0; b < BLOCKS; b++) {
        float *z = x + (size_t)b * block;
        kv_rotate(d, LANES, z);
        code_block(&layout, &book, b, z, index, page);
        memcpy(all + (size_t)b * block, index, block);
    }
    for (int b = 0; b < d / LANES; b++) {
        for (int t = 0; t < KV_PAGE_TOKENS; t++)
            for (int l = 0; l < LANES; l++)
                rotated[t * LANES + l] =
                    all[(size_t)(t / LANES) * block + (size_t)((b * LANES + l) * LANES + t % LANES)];
        pack_block(&layout, form, true, b, rotated, page);
    }
}

/* ---- back ---- */

void kv_decode(int d, KvForm form, bool values, const uint8_t *page, float *out) {
    const KvQuantLayout layout = kv_quant_layout(d, form, values);
    const int8_t *codebook = kv_codebook(form);
    float means[ATTENTION_HEAD_MAX] = {0};
    for (int i = 0; i < d && !values; i++) means[i] = read_f16(page + layout.mean + 2 * i);
    for (int token = 0; token < KV_PAGE_TOKENS; token++)
        for (int i = 0; i < d; i++) {
            const float c = codebook[kv_quant_get(&layout, form, values, page, token, i)] + 0.5f;
            const float scale = read_f16(page + layout.scale + (i / layout.group * KV_PAGE_TOKENS + token) * 2);
            *out++ = scale * c + means[i];
        }
}
