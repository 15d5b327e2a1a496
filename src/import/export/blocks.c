/* Rows of numbers into GGUF's block types, as llama.cpp's reference quantisers compute them: ggml-quants.c,
 * quantize_row_q8_0_ref, quantize_row_q4_0_ref, quantize_row_q4_K_ref with make_qkx2_quants. */
#include <math.h>
#include <string.h>

#include "import/export/internal.h"

enum { BLOCK = 32, SUPERBLOCK = 256, PARTS = SUPERBLOCK / BLOCK, SCALES = 12 };

int export_block(uint32_t type) {
    return type == TYPE_Q4_K ? SUPERBLOCK : type == TYPE_Q8_0 || type == TYPE_Q4_0 ? BLOCK : 1;
}

static void put_half(uint8_t *out, float value) {
    const uint16_t half = f32_to_f16(value);
    memcpy(out, &half, sizeof half);
}

static float half_of(const uint8_t *in) {
    uint16_t half;
    memcpy(&half, in, sizeof half);
    return f16_to_f32(half);
}

/* A half, then 32 codes. Halves are rounded away from 0. */
static void block_q8_0(const float *x, uint8_t *out) {
    float most = 0;
    for (int i = 0; i < BLOCK; i++) most = fmaxf(most, fabsf(x[i]));
    const float d = most / 127, inverse = d != 0 ? 1 / d : 0;
    put_half(out, d);
    for (int i = 0; i < BLOCK; i++) out[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
}

/* A half, then codes of which the low nibbles are the first 16. The value of largest magnitude gets code 0. */
static void block_q4_0(const float *x, uint8_t *out) {
    float most = 0, value = 0;
    for (int i = 0; i < BLOCK; i++) {
        if (most >= fabsf(x[i])) continue;
        most = fabsf(x[i]);
        value = x[i];
    }
    const float d = value / -8, inverse = d != 0 ? 1 / d : 0;
    put_half(out, d);
    for (int i = 0; i < BLOCK / 2; i++) {
        int code[2];
        for (int k = 0; k < 2; k++) {
            code[k] = (int)(int8_t)(x[i + k * BLOCK / 2] * inverse + 8.5F);
            code[k] = code[k] > 15 ? 15 : code[k];
        }
        out[2 + i] = (uint8_t)(code[0] | code[1] << 4);
    }
}

/* Halves are rounded to even. */
static int code_of(float x, int most) {
    const int code = (int)rintf(x);
    return code < 0 ? 0 : code > most ? most : code;
}

typedef struct Fit {
    float scale, min; /* a value is scale · code − min */
    uint8_t codes[BLOCK];
} Fit;

/* Weighted squares of the distances. */
static float error_of(const float *x, const float *weights, const uint8_t *codes, float scale, float least) {
    float sum = 0;
    for (int i = 0; i < BLOCK; i++) {
        const float off = scale * (float)codes[i] + least - x[i];
        sum += weights[i] * (off * off);
    }
    return sum;
}

/* Scale and minimum that fit 32 values best by weighted squares: of those that 21 ranges of codes give. */
static Fit fit(const float *x, const float *weights) {
    enum { MOST = 15, TRIES = 20 };
    Fit best = {0};
    float least = x[0], largest = x[0], sum_w = weights[0], sum_x = sum_w * x[0];
    for (int i = 1; i < BLOCK; i++) {
        least = x[i] < least ? x[i] : least;
        largest = x[i] > largest ? x[i] : largest;
        sum_w += weights[i];
        sum_x += weights[i] * x[i];
    }
    if (least > 0) least = 0;
    best.min = -least;
    if (largest == least) return best;
    float inverse = MOST / (largest - least);
    best.scale = 1 / inverse;
    for (int i = 0; i < BLOCK; i++) best.codes[i] = (uint8_t)code_of(inverse * (x[i] - least), MOST);
    float best_error = error_of(x, weights, best.codes, best.scale, least);
    for (int t = 0; t <= TRIES; t++) {
        uint8_t codes[BLOCK];
        float sum_l = 0, sum_l2 = 0, sum_xl = 0;
        inverse = (-1.F + 0.1F * (float)t + MOST) / (largest - least); /* from the best minimum so far */
        for (int i = 0; i < BLOCK; i++) {
            codes[i] = (uint8_t)code_of(inverse * (x[i] - least), MOST);
            const float l = (float)codes[i], w = weights[i];
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * x[i];
        }
        const float determinant = sum_w * sum_l2 - sum_l * sum_l;
        if (!(determinant > 0)) continue;
        float scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        float low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        if (low > 0) {
            low = 0;
            scale = sum_xl / sum_l2;
        }
        const float error = error_of(x, weights, codes, scale, low);
        if (!(error < best_error)) continue;
        best_error = error;
        best.scale = scale;
        least = low;
        memcpy(best.codes, codes, sizeof codes);
    }
    best.min = -least;
    return best;
}

/* Scales and minima have 6 bits: the first four in the low bits of a byte, of the others two bits lie above those. */
static void put_scale(uint8_t *scales, int part, int scale, int min) {
    if (part < 4) {
        scales[part] = (uint8_t)scale;
        scales[part + 4] = (uint8_t)min;
        return;
    }
    scales[part + 4] = (uint8_t)((scale & 15) | (min & 15) << 4);
    scales[part - 4] |= (uint8_t)(scale >> 4 << 6);
    scales[part] |= (uint8_t)(min >> 4 << 6);
}

/* Two halves, 12 bytes of scales, 128 bytes of codes: of 64 values the first 32 are in low nibbles. */
static void block_q4_k(const float *x, uint8_t *out) {
    Fit fits[PARTS];
    float most_scale = 0, most_min = 0;
    uint8_t scale[PARTS], min[PARTS], *scales = out + 4, *codes = scales + SCALES;
    for (int p = 0; p < PARTS; p++) {
        float weights[BLOCK], sum = 0;
        for (int i = 0; i < BLOCK; i++) sum += x[p * BLOCK + i] * x[p * BLOCK + i];
        const float mean = sqrtf(sum / BLOCK);
        for (int i = 0; i < BLOCK; i++) weights[i] = mean + fabsf(x[p * BLOCK + i]);
        fits[p] = fit(x + p * BLOCK, weights);
        most_scale = fits[p].scale > most_scale ? fits[p].scale : most_scale;
        most_min = fits[p].min > most_min ? fits[p].min : most_min;
    }
    const float by_scale = most_scale > 0 ? 63 / most_scale : 0, by_min = most_min > 0 ? 63 / most_min : 0;
    for (int p = 0; p < PARTS; p++) {
        scale[p] = (uint8_t)code_of(by_scale * fits[p].scale, 63);
        min[p] = (uint8_t)code_of(by_min * fits[p].min, 63);
        put_scale(scales, p, scale[p], min[p]);
    }
    put_half(out, most_scale / 63);
    put_half(out + 2, most_min / 63);
    for (int p = 0; p < PARTS; p++) {
        const float d = half_of(out) * (float)scale[p], low = half_of(out + 2) * (float)min[p];
        for (int i = 0; d != 0 && i < BLOCK; i++) fits[p].codes[i] = (uint8_t)code_of((x[p * BLOCK + i] + low) / d, 15);
    }
    for (int p = 0; p < PARTS; p += 2)
        for (int i = 0; i < BLOCK; i++) *codes++ = (uint8_t)(fits[p].codes[i] | fits[p + 1].codes[i] << 4);
}

void export_row(uint32_t type, const float *x, int64_t count, uint8_t *out) {
    const GgufType *info = gguf_type(type);
    switch (type) {
    case TYPE_F32: memcpy(out, x, (size_t)count * sizeof *x); return;
    case TYPE_F16: floats_from_f32(out, DTYPE_F16, x, count); return;
    case TYPE_BF16: floats_from_f32(out, DTYPE_BF16, x, count); return;
    default: break;
    }
    for (int64_t i = 0; i < count; i += info->elements, out += info->bytes) {
        if (type == TYPE_Q8_0)
            block_q8_0(x + i, out);
        else if (type == TYPE_Q4_0)
            block_q4_0(x + i, out);
        else
            block_q4_k(x + i, out);
    }
}
