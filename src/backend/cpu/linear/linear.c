/* The products' definition in plain C (see linear.h) and code shared by all kernel sets. */
#include "backend/cpu/linear/linear.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/linear/linear_kinds.h"

enum { LINE_BYTES = 64 };

/* Below this a group counts as zero: 127 / max would overflow. */
static const float SMALLEST = 1e-30f;

int64_t linear_panel_place(int64_t group, int64_t count) {
    int64_t place = group / LINEAR_LANES;
    int leaf = linear_leaf((int)(group % LINEAR_LANES));
    for (int earlier = 0; earlier < leaf; earlier++) { /* linear_leaf is its own inverse */
        int lane = linear_leaf(earlier);
        place += (count - lane + LINEAR_LANES - 1) / LINEAR_LANES;
    }
    return place;
}

LinearKind linear_kind(const Weight *w) {
#define KIND_PLACE(name, quant, bits, group, ...) [quant][bits][((group) > 16) + ((group) > 32)] = 1 + name,
    static const uint8_t KINDS[QUANT_TERNARY + 1][9][3] = {LINEAR_KINDS(KIND_PLACE, )};
    const int found = KINDS[w->quant][w->bits][(w->group > 16) + (w->group > 32)];
    CHECK(found > 0);
    return (LinearKind)(found - 1);
}

LinearCodes linear_codes(const Weight *w) {
#define CODES_PLACE(name, bits, coded, ...) [coded][bits] = 1 + name,
    static const uint8_t CODES[2][9] = {LINEAR_CODES(CODES_PLACE, )};
    const int found = CODES[!quant_is_affine(w->quant)][w->bits];
    CHECK(found > 0);
    return (LinearCodes)(found - 1);
}

Plain linear_plain(const Weight *w) {
    return w->quant == QUANT_MXFP8 ? PLAIN_MXFP8
        : w->dtype == DTYPE_F32    ? PLAIN_F32
        : w->dtype == DTYPE_F16    ? PLAIN_F16
                                   : PLAIN_BF16;
}

/* Prefetches the scales of the following rows while these rows are computed. Rows past the end are prefetched too,
 * which is no fault. */
static void prefetch_scales(const Weight *w, int64_t row, int rows) {
    const size_t bytes = weight_scale_bytes(w);
    for (size_t at = 0; at < (size_t)rows * bytes; at += LINE_BYTES) {
        __builtin_prefetch((const uint8_t *)w->scales + (size_t)row * bytes + at);
        if (w->biases) __builtin_prefetch((const uint8_t *)w->biases + (size_t)row * bytes + at);
    }
}

void linear_unpack(const Weight *w, int64_t first, LinearPanel *panel, int height, int together,
    UnpackKernel *const *codes, UnpackScales *scales) {
    const int64_t groups = w->cols / panel->group, row_bytes = (int64_t)weight_row_bytes(w);
    UnpackKernel *const unpack = codes[linear_codes(w)];
    Places places = {.shift = __builtin_ctz((unsigned)panel->group), .group_bytes = (size_t)(panel->group * height)};
    for (int lane = 0; lane < LINEAR_LANES; lane++) places.start[lane] = linear_panel_place(lane, groups);
    for (int from = 0; from < height; from += together) {
        const uint8_t *data[UNPACK_ROWS_MAX];
        int64_t rows[UNPACK_ROWS_MAX], left[UNPACK_ROWS_MAX];
        for (int i = 0; i < together; i++) {
            rows[i] = first + from + i < w->rows ? first + from + i : w->rows - 1;
            data[i] = (const uint8_t *)w->data + rows[i] * row_bytes;
            left[i] = (w->rows - rows[i]) * row_bytes;
        }
        prefetch_scales(w, first + from + together, together);
        unpack(w, data, left, &places, panel->codes + from * 4);
        scales(w, rows, &places, groups, panel->scales + from, panel->biases + from);
    }
}

static float e4m3_to_f32(uint8_t v) {
    return f16_to_f32((uint16_t)((v & 0x80) << 8 | (v & 0x7f) << 7)) * 256.0f; /* exponent bias 15 − 7 */
}

static float half_e8m0(uint8_t v) {
    union {
        uint32_t u;
        float f;
    } bits = {v >= 2 ? (uint32_t)(v - 1) << 23 : UINT32_C(0x200000) << v};
    return bits.f;
}

void linear_scale(const Weight *w, int64_t row, int64_t group, float *scale, float *bias) {
    if (quant_is_affine(w->quant)) {
        weight_scale(w, row, w->group > 64 ? group * 64 / w->group : group, scale, bias);
        return;
    }
    uint8_t stored = ((const uint8_t *)w->scales)[row * (w->cols / w->group) + group];
    *scale = w->quant == QUANT_MXFP4 ? half_e8m0(stored) : e4m3_to_f32(stored) * 0.5f;
    *bias = -12.0f * *scale;
}

int linear_code_max(const Weight *w) { return quant_is_affine(w->quant) ? (1 << w->bits) - 1 : 24; }

static unsigned code_at(const Weight *w, int64_t row, int64_t col) {
    static const uint8_t E2M1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row * weight_row_bytes(w);
    int64_t bit = col * w->bits;
    unsigned code = data[bit / 8];
    if (bit % 8 + w->bits > 8) code |= (unsigned)data[bit / 8 + 1] << 8;
    code = code >> (bit % 8) & ((1u << w->bits) - 1);
    return quant_is_affine(w->quant) ? code : E2M1[code];
}

static float sum_lanes(float lanes[LINEAR_LANES]) {
    for (int half = LINEAR_LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
    return lanes[0];
}

void linear_spec_quantise(const float *x, int64_t cols, int group, int8_t *q, float *scales, float *sums) {
    int64_t padded = linear_stride(cols, group);
    memset(q, 0, (size_t)padded);
    memset(scales, 0, (size_t)(padded / group) * sizeof *scales);
    memset(sums, 0, (size_t)(padded / group) * sizeof *sums);
    for (int64_t g = 0; g < cols / group; g++) {
        const float *values = x + g * group;
        float most = 0;
        bool finite = true;
        for (int i = 0; i < group; i++) {
            most = fmaxf(most, fabsf(values[i]));
            finite = finite && isfinite(values[i]);
        }
        if (!finite) {
            scales[g] = sums[g] = NAN;
            continue;
        }
        if (most < SMALLEST) continue;
        float inverse = 127.0f / most;
        int sum = 0;
        for (int i = 0; i < group; i++) {
            int value = (int)rintf(values[i] * inverse);
            q[g * group + i] = (int8_t)value;
            sum += value;
        }
        scales[g] = most / 127.0f;
        sums[g] = scales[g] * (float)sum;
    }
}

float linear_spec_integer(const Weight *w, int64_t row, const int8_t *q, const float *scales, const float *sums) {
    float lanes[LINEAR_LANES] = {0};
    int group = linear_group(w);
    for (int64_t g = 0; g < w->cols / group; g++) {
        int sum = 0;
        for (int64_t k = g * group; k < (g + 1) * group; k++) sum += (int)code_at(w, row, k) * q[k];
        float scale, bias, *lane = &lanes[g % LINEAR_LANES];
        linear_scale(w, row, g, &scale, &bias);
        *lane = fmaf(scale * scales[g], (float)sum, *lane);
        *lane = fmaf(bias, sums[g], *lane);
    }
    return sum_lanes(lanes);
}

static float spec_mxfp8(const Weight *w, int64_t row, const float *x) {
    float lanes[LINEAR_LANES] = {0};
    const uint8_t *data = (const uint8_t *)w->data + row * w->cols;
    const uint8_t *scales = (const uint8_t *)w->scales + row * (w->cols / 32);
    for (int64_t k = 0; k < w->cols; k++) {
        if (k % 32 >= LINEAR_LANES) continue;
        const int64_t other = k + LINEAR_LANES;
        const float low = e4m3_to_f32(data[k]) / 256.0f, high = e4m3_to_f32(data[other]) / 256.0f;
        const float scale = ldexpf(1.0f, scales[k / 32] - 127 + 8);
        lanes[k % LINEAR_LANES] = fmaf(scale, fmaf(high, x[other], low * x[k]), lanes[k % LINEAR_LANES]);
    }
    return sum_lanes(lanes);
}

float linear_spec_plain(const Weight *w, int64_t row, const float *x) {
    if (w->quant == QUANT_MXFP8) return spec_mxfp8(w, row, x);
    float lanes[LINEAR_LANES] = {0};
    for (int64_t k = 0; k < w->cols; k++) {
        float value;
        weight_dequantize_row(w, row, k, 1, &value);
        lanes[k % LINEAR_LANES] = fmaf(value, x[k], lanes[k % LINEAR_LANES]);
    }
    return sum_lanes(lanes);
}
