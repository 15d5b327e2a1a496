#include "tensor/packed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/float8.h"

enum {
    TILE_ROWS = 32,
    WORD_BITS = 32,
    AWQ_BITS = 4,
    TERNARY_GROUP = 64,
    NVFP4_GROUP = 16,
    MX_GROUP = 32,
    E4M3_CODES = 256
};

/* --- Reading the parts ------------------------------------------------------------------------------------------ */

static uint32_t word_at(const Tensor *t, int64_t i) {
    uint32_t word;
    memcpy(&word, (const uint8_t *)t->data + (size_t)i * sizeof word, sizeof word);
    return word;
}

/* Bytes are powers of two (E8M0). */
static float float_at(const Tensor *t, int64_t i) {
    float value;
    if (t->dtype == DTYPE_U8) return ldexpf(1, ((const uint8_t *)t->data)[i] - 127);
    floats_to_f32(&value, (const uint8_t *)t->data + (size_t)i * dtype_bytes(t->dtype), t->dtype, 1);
    return value;
}

/* Where AWQ has element i of eight in a word. */
static int awq_shift(int64_t i) {
    static const int order[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return AWQ_BITS * order[i % 8];
}

static int64_t groups_of(const PackedMatrix *p) { return (p->cols + p->group - 1) / p->group; }
static int64_t per_word(const PackedMatrix *p) { return WORD_BITS / p->bits; }

/* The codes of `count` rows, a byte each: [count, cols]. Words that lie beside each other are read together. */
static void read_codes(const PackedMatrix *p, int64_t first, int64_t count, uint8_t *codes) {
    const uint32_t mask = (1u << p->bits) - 1;
    const int64_t per = per_word(p);
    if (p->kind == PACKED_TERNARY) {
        for (int64_t r = 0; r < count; r++) {
            const int64_t quarter = p->data.shape[0], row = first + r;
            const uint8_t *from = (const uint8_t *)p->data.data + row % quarter * p->cols;
            for (int64_t c = 0; c < p->cols; c++)
                codes[r * p->cols + c] = (uint8_t)(from[c] >> row / quarter * p->bits & mask);
        }
    } else if (p->kind == PACKED_BYTES) {
        const uint8_t *from = (const uint8_t *)p->data.data + first * p->cols;
        for (int64_t i = 0; i < count * p->cols; i++) codes[i] = from[i] ^ 0x80;
    } else if (p->kind == PACKED_WORDS) {
        for (int64_t r = 0; r < count; r++)
            for (int64_t c = 0; c < p->cols; c++)
                codes[r * p->cols + c] =
                    (uint8_t)(word_at(&p->data, (first + r) * (p->cols / per) + c / per) >> c % per * p->bits & mask);
    } else if (p->kind == PACKED_GPTQ) {
        for (int64_t c = 0; c < p->cols; c++)
            for (int64_t r = 0; r < count; r++)
                codes[r * p->cols + c] =
                    (uint8_t)(word_at(&p->data, c / per * p->rows + first + r) >> c % per * p->bits & mask);
    } else {
        for (int64_t c = 0; c < p->cols; c++)
            for (int64_t r = 0; r < count; r++)
                codes[r * p->cols + c] =
                    (uint8_t)(word_at(&p->data, c * (p->rows / 8) + (first + r) / 8) >> awq_shift(first + r) & mask);
    }
}

static float zero_of(const PackedMatrix *p, int64_t row, int64_t group) {
    const uint32_t mask = (1u << p->bits) - 1;
    const int64_t per = per_word(p), groups = groups_of(p);
    if (p->kind == PACKED_TERNARY) return 1;
    if (!p->zeros.rank) return (float)(1 << (p->bits - 1));
    if (p->zeros.dtype == DTYPE_I8) /* compressed-tensors: not packed */
        return (float)(((const int8_t *)p->zeros.data)[row * groups + group] + (1 << (p->bits - 1)));
    if (p->kind == PACKED_AWQ)
        return (float)(word_at(&p->zeros, group * (p->rows / 8) + row / 8) >> awq_shift(row) & mask);
    const int64_t at = p->kind == PACKED_GPTQ ? group * (p->rows / per) + row / per : row / per * groups + group;
    return (float)((word_at(&p->zeros, at) >> row % per * p->bits & mask) + p->zeros_less_one);
}

static float scale_of(const PackedMatrix *p, int64_t row, int64_t group) {
    const bool by_group = p->kind == PACKED_AWQ || p->kind == PACKED_GPTQ;
    if (p->scales.bytes == dtype_bytes(p->scales.dtype)) /* one for the whole */
        return p->inverse_scale ? 1 / float_at(&p->scales, 0) : float_at(&p->scales, 0);
    return float_at(&p->scales, by_group ? group * p->rows + row : row * groups_of(p) + group);
}

/* --- Checks ----------------------------------------------------------------------------------------------------- */

static bool has_shape(const Tensor *t, int64_t a, int64_t b) {
    return t->rank == 2 && t->shape[0] == a && t->shape[1] == b;
}

static bool is_word(const Tensor *t) { return t->dtype == DTYPE_I32 || t->dtype == DTYPE_U32; }

static bool wrong(const char *part, const Tensor *t, Error *error) {
    return fail(error, ERROR_FORMAT, "%s is %s [%lld, %lld, …] of %d dimensions, which does not fit the matrix", part,
        dtype_name(t->dtype), (long long)(t->rank > 0 ? t->shape[0] : 0), (long long)(t->rank > 1 ? t->shape[1] : 0),
        t->rank);
}

/* Scales of one number, of one for each row, or of one for each group. */
static bool check_row_scales(const PackedMatrix *p, Error *error) {
    const Tensor *s = &p->scales;
    const bool one = s->bytes == dtype_bytes(s->dtype);
    const bool rows = s->rank == 1 && s->shape[0] == p->rows && groups_of(p) == 1;
    return one || rows || has_shape(s, p->rows, groups_of(p)) || wrong("its scale", s, error);
}

static bool check_zeros(const PackedMatrix *p, Error *error) {
    const Tensor *z = &p->zeros;
    if (!z->rank) return true;
    const int64_t groups = groups_of(p), per = per_word(p);
    const bool packed = is_word(z) &&
        (p->kind == PACKED_AWQ || p->kind == PACKED_GPTQ ? has_shape(z, groups, p->rows / per)
                                                         : has_shape(z, (p->rows + per - 1) / per, groups));
    const bool bytes =
        z->dtype == DTYPE_I8 && p->kind != PACKED_AWQ && p->kind != PACKED_GPTQ && has_shape(z, p->rows, groups);
    return packed || bytes || wrong("its matrix of zero points", z, error);
}

static bool check_integers(const PackedMatrix *p, Error *error) {
    if (p->bits != 2 && p->bits != 4 && p->bits != 8)
        return fail(error, ERROR_UNSUPPORTED, "%d bits are not supported: 2, 4 and 8 are", p->bits);
    const int64_t per = p->kind == PACKED_BYTES ? 1 : per_word(p), groups = groups_of(p);
    const bool by_group = p->kind == PACKED_AWQ || p->kind == PACKED_GPTQ;
    if (p->rows % (by_group ? per : 1) || p->cols % (p->kind == PACKED_GPTQ || p->kind == PACKED_WORDS ? per : 1))
        return fail(
            error, ERROR_UNSUPPORTED, "%lld × %lld are not whole words", (long long)p->rows, (long long)p->cols);
    const bool data = p->kind == PACKED_AWQ ? has_shape(&p->data, p->cols, p->rows / per)
        : p->kind == PACKED_GPTQ            ? has_shape(&p->data, p->cols / per, p->rows)
                                            : has_shape(&p->data, p->rows, p->cols / per);
    if (!data || (p->kind == PACKED_BYTES ? p->data.dtype != DTYPE_I8 : !is_word(&p->data)))
        return wrong("its matrix of codes", &p->data, error);
    if (!dtype_is_float(p->scales.dtype)) return wrong("its scale", &p->scales, error);
    if (by_group ? !has_shape(&p->scales, groups, p->rows) : !check_row_scales(p, error))
        return by_group ? wrong("its scale", &p->scales, error) : false;
    if (p->group_of.rank && (p->group_of.rank != 1 || p->group_of.shape[0] != p->cols || !is_word(&p->group_of)))
        return wrong("its order of columns", &p->group_of, error);
    for (int64_t c = 0; p->group_of.rank && c < p->cols; c++)
        if (word_at(&p->group_of, c) >= (uint64_t)groups)
            return fail(error, ERROR_FORMAT, "column %lld is in group %d of %lld", (long long)c,
                (int)word_at(&p->group_of, c), (long long)groups);
    return check_zeros(p, error);
}

static bool check_ternary(const PackedMatrix *p, Error *error) {
    if (p->rows % 4 || p->data.dtype != DTYPE_U8 || !has_shape(&p->data, p->rows / 4, p->cols))
        return wrong("its matrix of codes", &p->data, error);
    const Tensor *s = &p->scales;
    return (dtype_is_float(s->dtype) && s->bytes == dtype_bytes(s->dtype)) || wrong("its scale", s, error);
}

static bool check_fp8(const PackedMatrix *p, Error *error) {
    const int64_t down = (p->rows + p->block_rows - 1) / p->block_rows, across = groups_of(p);
    const Tensor *s = &p->scales;
    const bool one = s->bytes == dtype_bytes(s->dtype), rows = across == 1 && s->rank == 1 && s->shape[0] == down;
    if (!has_shape(&p->data, p->rows, p->cols) || p->data.dtype != DTYPE_U8)
        return wrong("its matrix of FP8 numbers", &p->data, error);
    const bool number = dtype_is_float(s->dtype) || s->dtype == DTYPE_U8;
    return (number && (one || rows || has_shape(s, down, across))) || wrong("its scale", s, error);
}

static bool check_mxfp4(const PackedMatrix *p, Error *error) {
    size_t codes = 1, scales = 1; /* their product is that of the tensors' shapes, whatever the dimensions */
    for (int i = 0; i < p->data.rank; i++) codes *= (size_t)p->data.shape[i];
    for (int i = 0; i < p->scales.rank; i++) scales *= (size_t)p->scales.shape[i];
    const size_t all = (size_t)(p->rows * p->row_step) * (size_t)(p->cols / 32);
    const bool bytes = p->data.dtype == DTYPE_U8 || p->data.dtype == DTYPE_I8;
    const bool matrix = p->data.rank == 2; /* not one of a stack */
    if (p->cols % 32 || !bytes || codes != 16 * all || (matrix && p->data.shape[1] != p->cols / 2))
        return wrong("its blocks", &p->data, error);
    if (matrix && !has_shape(&p->scales, p->rows * p->row_step, p->cols / 32))
        return wrong("its scale", &p->scales, error);
    return (p->scales.dtype == DTYPE_U8 && scales == all) || wrong("its scale", &p->scales, error);
}

static bool check_nvfp4(const PackedMatrix *p, Error *error) {
    const Tensor *f = &p->factor;
    if (p->cols % NVFP4_GROUP || p->data.dtype != DTYPE_U8 || !has_shape(&p->data, p->rows, p->cols / 2))
        return wrong("its matrix of FP4 numbers", &p->data, error);
    if (p->scales.dtype != DTYPE_U8 || !has_shape(&p->scales, p->rows, p->cols / NVFP4_GROUP))
        return wrong("its scale", &p->scales, error);
    if (!dtype_is_float(f->dtype) || f->bytes != dtype_bytes(f->dtype))
        return wrong("the factor of its scales", f, error);
    const float factor = float_at(f, 0);
    return (isfinite(factor) && factor > 0) ||
        fail(error, ERROR_FORMAT, "the factor of its scales is %g", (double)factor);
}

/* --- The form --------------------------------------------------------------------------------------------------- */

/* Groups of MLX's in which each column has one scale; 0: there are none. */
static int affine_group(const PackedMatrix *p) {
    for (int group = 128; group >= 32; group /= 2)
        if (p->cols % group == 0 && p->group % group == 0) return group;
    return 0;
}

static bool is_ordered(const PackedMatrix *p) {
    for (int64_t c = 0; p->group_of.rank && c < p->cols; c++)
        if (word_at(&p->group_of, c) != (uint64_t)(c / p->group)) return false;
    return true;
}

/* Whether every scale and every bias is a number of the scales' type. */
static bool biases_fit(const PackedMatrix *p) {
    if (p->kind == PACKED_TERNARY) return !p->inverse_scale;
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t g = 0; g < groups_of(p); g++) {
            const float bias = -zero_of(p, row, g) * scale_of(p, row, g);
            uint8_t bytes[sizeof bias];
            float rounded;
            floats_from_f32(bytes, p->scales.dtype, &bias, 1);
            floats_to_f32(&rounded, bytes, p->scales.dtype, 1);
            if (rounded != bias) return false;
        }
    return true;
}

/* A block's scale with the factor, as ModelOpt and compressed-tensors compute it. */
static float nvfp4_scale(const PackedMatrix *p, uint8_t code) {
    const float factor = float_at(&p->factor, 0);
    return p->inverse_scale ? e4m3_to_f32(code) / factor : e4m3_to_f32(code) * factor;
}

/* The code of a number that E4M3 has; −1: it has none. */
static int e4m3_of(float value) {
    for (int code = 0; code < E4M3_CODES; code++)
        if (code % 128 != 127 && e4m3_to_f32((uint8_t)code) == value) return code;
    return -1;
}

/* The code for each scale's code with the factor in it. False: some scale of the matrix has none. */
static bool nvfp4_fold(const PackedMatrix *p, uint8_t folded[E4M3_CODES]) {
    const uint8_t *scales = p->scales.data;
    int known[E4M3_CODES];
    if (!scales) return false;
    for (int code = 0; code < E4M3_CODES; code++) known[code] = e4m3_of(nvfp4_scale(p, (uint8_t)code));
    for (size_t i = 0; i < p->scales.bytes; i++)
        if (known[scales[i]] < 0) return false;
    for (int code = 0; code < E4M3_CODES; code++) folded[code] = (uint8_t)(known[code] < 0 ? 0 : known[code]);
    return true;
}

static bool is_mxfp8(const PackedMatrix *p) {
    return p->kind == PACKED_FP8 && p->scales.dtype == DTYPE_U8 && p->block_rows == 1 && p->group == MX_GROUP &&
        p->cols % MX_GROUP == 0;
}

static void set_coded(PackedMatrix *p, Quant quant, int bits, int group) {
    p->form =
        (Weight){.rows = p->rows, .cols = p->cols, .quant = quant, .bits = bits, .group = group, .dtype = DTYPE_U8};
}

static void choose_form(PackedMatrix *p) {
    const bool half = p->scales.dtype == DTYPE_F16 || p->scales.dtype == DTYPE_BF16;
    const DType own = half ? p->scales.dtype : DTYPE_BF16;
    const int group = p->kind < PACKED_FP8 && is_ordered(p) ? affine_group(p) : 0;
    const bool ternary = p->kind == PACKED_TERNARY && !p->for_file && group >= TERNARY_GROUP;
    p->form = (Weight){.rows = p->rows, .cols = p->cols, .dtype = own};
    uint8_t folded[E4M3_CODES];
    if (p->kind == PACKED_MXFP4) {
        set_coded(p, QUANT_MXFP4, 4, MX_GROUP);
    } else if (is_mxfp8(p)) {
        set_coded(p, QUANT_MXFP8, 8, MX_GROUP);
    } else if (p->kind == PACKED_NVFP4 && nvfp4_fold(p, folded)) {
        set_coded(p, QUANT_NVFP4, 4, NVFP4_GROUP);
    } else if (group) {
        p->form.quant = ternary ? QUANT_TERNARY : QUANT_AFFINE;
        p->form.bits = p->bits;
        p->form.group = ternary ? TERNARY_GROUP : group;
        p->form.dtype = biases_fit(p) ? p->scales.dtype : DTYPE_F32;
    }
}

bool packed_check(PackedMatrix *p, Error *error) {
    if (p->group <= 0 || p->group > p->cols) p->group = p->cols;
    if (p->block_rows <= 0 || p->block_rows > p->rows) p->block_rows = p->rows;
    if (p->rows <= 0 || p->cols <= 0) return fail(error, ERROR_FORMAT, "it has no elements");
    const bool ok = p->kind == PACKED_FP8 ? check_fp8(p, error)
        : p->kind == PACKED_MXFP4         ? check_mxfp4(p, error)
        : p->kind == PACKED_NVFP4         ? check_nvfp4(p, error)
        : p->kind == PACKED_TERNARY       ? check_ternary(p, error)
                                          : check_integers(p, error);
    if (ok) choose_form(p);
    return ok;
}

/* --- Reading ---------------------------------------------------------------------------------------------------- */

static void pack(const uint8_t *codes, int64_t count, int bits, uint8_t *out) {
    memset(out, 0, (size_t)(count * bits / 8));
    for (int64_t i = 0; i < count; i++) out[i * bits / 8] |= (uint8_t)(codes[i] << i * bits % 8);
}

static void read_affine_row(
    const PackedMatrix *p, int64_t row, const uint8_t *codes, uint8_t *data, uint8_t *scales, uint8_t *biases) {
    const Weight *form = &p->form;
    pack(codes, p->cols, p->bits, data);
    if (form->quant == QUANT_TERNARY) {
        const float scale = scale_of(p, row, 0);
        floats_from_f32(scales, form->dtype, &scale, 1);
        return;
    }
    for (int64_t g = 0; g < p->cols / form->group; g++) {
        const int64_t own = g * form->group / p->group;
        const float scale = scale_of(p, row, own), bias = -zero_of(p, row, own) * scale;
        const size_t at = (size_t)g * dtype_bytes(form->dtype);
        floats_from_f32(scales + at, form->dtype, &scale, 1);
        floats_from_f32(biases + at, form->dtype, &bias, 1);
    }
}

static void read_plain_row(const PackedMatrix *p, int64_t row, const uint8_t *codes, uint8_t *data) {
    const size_t size = dtype_bytes(p->form.dtype);
    for (int64_t c = 0; c < p->cols; c++) {
        const int64_t group = p->group_of.rank ? (int64_t)word_at(&p->group_of, c) : c / p->group;
        const float value = ((float)codes[c] - zero_of(p, row, group)) * scale_of(p, row, group);
        floats_from_f32(data + (size_t)c * size, p->form.dtype, &value, 1);
    }
}

static void read_fp8_row(const PackedMatrix *p, int64_t row, uint8_t *data) {
    const uint8_t *codes = (const uint8_t *)p->data.data + row * p->cols;
    const bool one = p->scales.bytes == dtype_bytes(p->scales.dtype);
    const size_t size = dtype_bytes(p->form.dtype);
    for (int64_t c = 0; c < p->cols; c++) {
        const float scale = float_at(&p->scales, one ? 0 : row / p->block_rows * groups_of(p) + c / p->group);
        const float value = e4m3_to_f32(codes[c]) * scale;
        floats_from_f32(data + (size_t)c * size, p->form.dtype, &value, 1);
    }
}

static void read_mxfp4_row(const PackedMatrix *p, int64_t row, uint8_t *data, uint8_t *scales) {
    const size_t codes = (size_t)p->cols / 2, groups = (size_t)p->cols / 32;
    const size_t from = (size_t)(p->first_row + row * p->row_step);
    memcpy(data, (const uint8_t *)p->data.data + from * codes, codes);
    memcpy(scales, (const uint8_t *)p->scales.data + from * groups, groups);
}

static void read_mxfp8_row(const PackedMatrix *p, int64_t row, uint8_t *data, uint8_t *scales) {
    const size_t groups = (size_t)p->cols / MX_GROUP;
    memcpy(data, (const uint8_t *)p->data.data + (size_t)(row * p->cols), (size_t)p->cols);
    memcpy(scales, (const uint8_t *)p->scales.data + (size_t)row * groups, groups);
}

static void read_nvfp4_row(const PackedMatrix *p, int64_t row, uint8_t *data) {
    static const float values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const uint8_t *codes = (const uint8_t *)p->data.data + row * (p->cols / 2);
    const uint8_t *scales = (const uint8_t *)p->scales.data + row * (p->cols / NVFP4_GROUP);
    const size_t bytes = NVFP4_GROUP * dtype_bytes(p->form.dtype);
    for (int64_t g = 0; g < p->cols / NVFP4_GROUP; g++) {
        const float scale = nvfp4_scale(p, scales[g]);
        float group[NVFP4_GROUP];
        for (int i = 0; i < NVFP4_GROUP; i++)
            group[i] = values[codes[(g * NVFP4_GROUP + i) / 2] >> i % 2 * 4 & 15] * scale;
        floats_from_f32(data + (size_t)g * bytes, p->form.dtype, group, NVFP4_GROUP);
    }
}

static void read_folded_row(const PackedMatrix *p, int64_t row, const uint8_t *folded, uint8_t *data, uint8_t *scales) {
    const int64_t codes = p->cols / 2, groups = p->cols / NVFP4_GROUP;
    memcpy(data, (const uint8_t *)p->data.data + row * codes, (size_t)codes);
    for (int64_t g = 0; g < groups; g++) scales[g] = folded[((const uint8_t *)p->scales.data)[row * groups + g]];
}

PackedMatrix packed_rows(const PackedMatrix *p, int64_t first, int64_t count) {
    CHECK(first >= 0 && count >= 0 && count <= p->form.rows && first <= p->form.rows - count);
    PackedMatrix part = *p;
    part.first_row += first * (p->kind == PACKED_MXFP4 ? p->row_step : 1);
    part.form.rows = count;
    return part;
}

bool packed_read(const PackedMatrix *p, int64_t first, int64_t count, uint8_t *data, uint8_t *scales, uint8_t *biases,
    Error *error) {
    const size_t row_bytes = weight_row_bytes(&p->form), scale_bytes = weight_scale_bytes(&p->form);
    uint8_t *tile = p->kind < PACKED_FP8 ? malloc((size_t)TILE_ROWS * (size_t)p->cols) : NULL;
    uint8_t folded[E4M3_CODES];
    if (p->kind < PACKED_FP8 && !tile) return fail(error, ERROR_MEMORY, "no memory for codes of %d rows", TILE_ROWS);
    if (p->form.quant == QUANT_NVFP4 && !nvfp4_fold(p, folded))
        return fail(error, ERROR_IO, "the scales of the matrix changed while it was read");
    for (int64_t i = 0; i < count; i++) {
        const int64_t left = count - i, row = p->first_row + first + i;
        if (tile && i % TILE_ROWS == 0) read_codes(p, row, left < TILE_ROWS ? left : TILE_ROWS, tile);
        const uint8_t *codes = tile ? tile + i % TILE_ROWS * p->cols : NULL;
        uint8_t *to = data + (size_t)i * row_bytes;
        const size_t at = (size_t)i * scale_bytes;
        if (p->form.quant == QUANT_NVFP4)
            read_folded_row(p, row, folded, to, scales + at);
        else if (p->kind == PACKED_NVFP4)
            read_nvfp4_row(p, row, to);
        else if (p->form.quant == QUANT_MXFP8)
            read_mxfp8_row(p, row, to, scales + at);
        else if (p->kind == PACKED_FP8)
            read_fp8_row(p, row, to);
        else if (p->kind == PACKED_MXFP4)
            read_mxfp4_row(p, first + i, to, scales + at);
        else if (p->form.quant == QUANT_NONE)
            read_plain_row(p, row, codes, to);
        else
            read_affine_row(p, row, codes, to, scales + at, biases ? biases + at : NULL);
    }
    free(tile);
    return true;
}
