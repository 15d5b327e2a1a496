#include "tensor/quantize.h"

#include <math.h>
#include <string.h>

#include "base/slice.h"

enum { GROUP_MAX = 128 };

/* The nearest number of a type. */
static float round_to(DType dtype, float value) {
    if (dtype == DTYPE_BF16) return bf16_to_f32(f32_to_bf16(value));
    return dtype == DTYPE_F16 ? f16_to_f32(f32_to_f16(value)) : value;
}

bool quant_form_complete(QuantForm *form, Error *error) {
    static const QuantForm usual[] = {
        {QUANT_AFFINE, 4, 64}, {QUANT_MXFP4, 4, 32}, {QUANT_NVFP4, 4, 16}, {QUANT_MXFP8, 8, 32}};
    for (size_t i = 0; i < COUNT_OF(usual); i++) {
        if (usual[i].quant != form->quant) continue;
        if (!form->bits) form->bits = usual[i].bits;
        if (!form->group) form->group = usual[i].group;
        const bool same = form->bits == usual[i].bits && form->group == usual[i].group;
        if (form->quant != QUANT_AFFINE)
            return same ||
                fail(error, ERROR_USAGE, "%s has %d bits and groups of %d, not %d and %d", quant_name(form->quant),
                    usual[i].bits, usual[i].group, form->bits, form->group);
    }
    if (form->bits < 2 || form->bits > 8 || form->bits == 7)
        return fail(error, ERROR_USAGE, "%d bits: affine groups have 2, 3, 4, 5, 6 or 8", form->bits);
    return form->group == 32 || form->group == 64 || form->group == 128 ||
        fail(error, ERROR_USAGE, "groups of %d: affine groups have 32, 64 or 128 elements", form->group);
}

static float e2m1_to_f32(int code) {
    static const float values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return code & 8 ? -values[code & 7] : values[code];
}

/* The first of the nearest, where the distance is rounded too. What is no number is 0. */
static int to_e2m1(float value, DType dtype) {
    int best = 0;
    float least = INFINITY;
    for (int code = 0; code < 16; code++) {
        const float distance = fabsf(round_to(dtype, value - e2m1_to_f32(code)));
        if (!(distance < least)) continue;
        least = distance;
        best = code;
    }
    return best;
}

/* The scale's byte, and through `scale` what elements are divided by. */
static uint8_t float_scale(QuantForm form, DType dtype, const float *x, float *scale) {
    float largest = 0;
    for (int i = 0; i < form.group; i++) largest = fmaxf(largest, fabsf(x[i]));
    const float wanted = round_to(dtype, largest / (form.bits == 4 ? 6.0f : 448.0f));
    if (form.quant == QUANT_NVFP4) {
        const uint8_t code = f32_to_e4m3(wanted);
        *scale = round_to(dtype, e4m3_to_f32(code));
        return code;
    }
    int exponent = 0; /* the least power of two that is not smaller */
    if (wanted != 0 && frexpf(wanted, &exponent) == 0.5f) exponent--;
    *scale = round_to(dtype, ldexpf(1, exponent));
    return (uint8_t)(exponent + 127);
}

static void quantize_float_row(
    QuantForm form, DType dtype, const float *x, int64_t cols, uint8_t *data, uint8_t *scales) {
    for (int64_t at = 0; at < cols; at += form.group) {
        float scale;
        scales[at / form.group] = float_scale(form, dtype, x + at, &scale);
        for (int64_t i = at; i < at + form.group; i++) {
            const float element = round_to(dtype, x[i] / scale);
            if (form.bits == 8) {
                data[i] = f32_to_e4m3(element);
                continue;
            }
            /* nvfp4 multiplies by an f32 factor of 1, after which the distances are f32's */
            const int code = to_e2m1(element, form.quant == QUANT_NVFP4 ? DTYPE_F32 : dtype);
            data[i / 2] = (uint8_t)(i % 2 ? data[i / 2] | code << 4 : code);
        }
    }
}

void quantize_row(
    QuantForm form, DType dtype, const float *x, int64_t cols, uint8_t *data, uint8_t *scales, uint8_t *biases) {
    CHECK(form.group > 0 && form.group <= GROUP_MAX && cols % form.group == 0);
    if (form.quant != QUANT_AFFINE) {
        quantize_float_row(form, dtype, x, cols, data, scales);
        return;
    }
    const size_t size = dtype_bytes(dtype), group_bytes = (size_t)form.group * (size_t)form.bits / 8;
    for (int64_t g = 0; g < cols / form.group; g++) {
        float scale, bias;
        quantize_affine_row(
            x + g * form.group, form.group, form.bits, form.group, data + (size_t)g * group_bytes, &scale, &bias);
        floats_from_f32(scales + (size_t)g * size, dtype, &scale, 1);
        floats_from_f32(biases + (size_t)g * size, dtype, &bias, 1);
    }
}

static bool rounds_between(const Weight *w) { return w->quant == QUANT_AFFINE; }

void weight_dequantize_row_as(const Weight *w, int64_t row, DType dtype, float *out) {
    if (dtype == DTYPE_F32 || !rounds_between(w)) {
        weight_dequantize_row(w, row, 0, w->cols, out);
        for (int64_t i = 0; dtype != DTYPE_F32 && i < w->cols; i++) out[i] = round_to(dtype, out[i]);
        return;
    }
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row * weight_row_bytes(w);
    const uint64_t mask = (1u << w->bits) - 1;
    for (int64_t i = 0; i < w->cols; i += 8) { /* eight elements take `bits` bytes */
        float scale, bias;
        uint64_t packed = 0;
        weight_scale(w, row, i / w->group, &scale, &bias);
        memcpy(&packed, data + i / 8 * w->bits, (size_t)w->bits);
        for (int k = 0; k < 8; k++, packed >>= w->bits)
            out[i + k] = round_to(dtype, round_to(dtype, (float)(packed & mask) * scale) + bias);
    }
}
