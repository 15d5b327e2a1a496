/* The part of the Loader that fetches the matrices of MLA's heads. */
#include <stdio.h>

#include "base/checked.h"
#include "model/loader/internal.h"

/* Rows first … first + nope_dim of `from`, whose elements can be read, transposed. */
static void transpose(const Weight *from, int64_t first, int64_t nope_dim, DType dtype, float *row, uint8_t *out) {
    const size_t size = dtype_bytes(dtype);
    uint8_t element[sizeof(float)];
    for (int64_t r = 0; r < nope_dim; r++) {
        weight_dequantize_row(from, first + r, 0, from->cols, row);
        for (int64_t c = 0; c < from->cols; c++) {
            floats_from_f32(element, dtype, row + c, 1);
            memcpy(out + (size_t)(c * nope_dim + r) * size, element, size);
        }
    }
}

/* As precise as they are: of quantised ones f32. */
static Weight *embed_transposed(Loader *ld, const char *name, const HeadSizes *s) {
    const int64_t each = s->nope_dim + s->width;
    ld->in_file = true;
    const Weight both = load_linear(ld, name, s->heads * each, s->latent, false);
    ld->in_file = false;
    const DType dtype = both.quant == QUANT_NONE ? both.dtype : DTYPE_F32;
    size_t head, all = 0;
    if (!size_mul((size_t)s->nope_dim, (size_t)s->latent, &head) || !size_mul(head, (size_t)s->heads, &all))
        loader_fail(ld, ERROR_LIMIT, "tensor %s: its size overflows", name);
    Weight *out = loader_alloc(ld, (size_t)s->heads, sizeof *out);
    float *row = loader_alloc(ld, (size_t)s->latent, sizeof *row);
    uint8_t *data = loader_alloc(ld, all, dtype_bytes(dtype));
    for (int h = 0; data && h < s->heads; h++) {
        uint8_t *own = data + (size_t)h * head * dtype_bytes(dtype);
        transpose(&both, h * each, s->nope_dim, dtype, row, own);
        out[h] = (Weight){.rows = s->latent, .cols = s->nope_dim, .dtype = dtype, .data = own};
    }
    return data ? out : NULL;
}

static Weight *unembed_parts(Loader *ld, const char *name, const HeadSizes *s) {
    const int64_t each = s->nope_dim + s->width;
    const Weight both = load_linear(ld, name, s->heads * each, s->latent, false);
    Weight *out = loader_alloc(ld, (size_t)s->heads, sizeof *out);
    for (int h = 0; out && h < s->heads; h++) out[h] = load_part(&both, h * each + s->nope_dim, s->width);
    return out;
}

/* HOME.PART [heads, rows, cols] */
static Weight *head_stack(Loader *ld, const char *home, const char *part, int heads, int64_t rows, int64_t cols) {
    char name[PART_SIZE];
    snprintf(name, sizeof name, "%s.%s", home, part);
    Weight *out = loader_alloc(ld, (size_t)heads, sizeof *out);
    if (out) loader_stack(ld, name, heads, rows, cols, false, out);
    return out;
}

/* Nothing is transposed: that may take gigabytes. */
static void record_heads(Loader *ld, const char *name, const char *home, const HeadSizes *s) {
    char joined[NAME_SIZE], own[NAME_SIZE];
    const Weight both = load_linear(ld, name, s->heads * (s->nope_dim + s->width), s->latent, false);
    loader_full_name(ld, joined, name, "");
    loader_full_name(ld, own, home, "");
    if (!ld->failed) loader_record_heads(ld, joined, own, &both, s);
}

void load_mla_heads(Loader *ld, const char *home, const HeadSizes *s, Weight **w_uk, Weight **w_uv) {
    char name[PART_SIZE];
    snprintf(name, sizeof name, "%s.kv_b_proj", home);
    if (loader_has_matrix(ld, name) && ld->source->record) {
        record_heads(ld, name, home, s);
        return;
    }
    if (loader_has_matrix(ld, name)) {
        *w_uk = embed_transposed(ld, name, s);
        *w_uv = unembed_parts(ld, name, s);
        return;
    }
    *w_uk = head_stack(ld, home, "embed_q", s->heads, s->latent, s->nope_dim);
    *w_uv = head_stack(ld, home, "unembed_out", s->heads, s->width, s->latent);
}
