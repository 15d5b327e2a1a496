/* The rotation of heads before quantisation: signs, a Hadamard transform, signs. The Hadamard matrix is Sylvester's of
 * order 2^k, outermost, times Paley's of orders 12, 20 and 28. */
#include <math.h>
#include <string.h>

#include "backend/kv_quant.h"

enum { PALEY_MAX = 28, FACTORS_MAX = 3 };

/* s1 and s2 of any size: bit i is the sign of number i, set where it is −1. numpy's default_rng(42).choice([-1, 1],
 * 2 · ATTENTION_HEAD_MAX); the first 256 are those that TurboQuant's implementations share. */
static const uint8_t sign_bits[2 * ATTENTION_HEAD_MAX / 8] = {0x59, 0x03, 0x6a, 0xe4, 0x49, 0x59, 0xf8, 0x42, 0xbb,
    0x3b, 0xc6, 0xa4, 0xa9, 0x50, 0xf2, 0x49, 0x90, 0xee, 0xac, 0x16, 0xdc, 0x8f, 0x62, 0x3f, 0x7a, 0x35, 0xa5, 0xb7,
    0x62, 0x65, 0xa5, 0xbe, 0x66, 0xcc, 0xdd, 0x5b, 0x2a, 0x5e, 0x36, 0x07, 0xe3, 0x59, 0x26, 0xb2, 0x53, 0xd4, 0xb5,
    0x9c, 0xa7, 0xf1, 0xd4, 0x7e, 0x06, 0x53, 0xce, 0x4e, 0x32, 0xa9, 0x15, 0xa3, 0x75, 0xc0, 0x1b, 0x3b, 0x68, 0xb7,
    0xb8, 0xeb, 0x86, 0x02, 0xee, 0xf8, 0xd8, 0x09, 0x05, 0x48, 0x28, 0xff, 0xae, 0x37, 0x68, 0x14, 0xdc, 0x20, 0x22,
    0x52, 0xc1, 0xcc, 0x35, 0x60, 0xa9, 0x49, 0x82, 0xba, 0x69, 0x91, 0x13, 0xc7, 0xe5, 0xec, 0x83, 0x25, 0x53, 0xe2,
    0x63, 0xf9, 0x60, 0x43, 0xf0, 0x03, 0xcd, 0x07, 0x76, 0xbd, 0x49, 0x9c, 0x51, 0xa7, 0xeb, 0x92, 0x8b, 0xfe, 0x05,
    0x58, 0x23, 0x10, 0x34, 0x3f, 0xee, 0x66, 0x6c, 0x4a, 0x4d, 0xb2, 0x6c, 0x10, 0xea, 0xbc, 0xa7, 0x8f, 0x0f, 0x84,
    0x22, 0x43, 0xd5, 0xe2, 0xf0, 0x8f, 0xe7, 0x01, 0x02, 0xd1, 0x08, 0x35, 0xf8, 0x88, 0x9d, 0x51, 0xef, 0x40, 0xb4,
    0x35, 0x29, 0x9c, 0xc8, 0xa3, 0x16, 0x6a, 0xc1, 0xfd, 0xef, 0x38, 0x60, 0x4b, 0xc4, 0x7e, 0x17, 0x0a, 0xd1, 0x5d,
    0x38, 0xbe, 0xe6, 0x2a, 0xfb, 0xdf, 0xfd, 0xe4, 0xca, 0xf6, 0xec, 0xad, 0x73, 0x71, 0x0c, 0x27, 0xcc, 0xb4, 0xaa,
    0x0b, 0x59, 0xcb, 0xb4, 0x30, 0xd5, 0x76, 0xdc, 0x48, 0x02, 0x31, 0xd6, 0x62, 0xb7, 0xf0, 0x60, 0x01, 0x03, 0xde,
    0x09, 0x1a, 0x87, 0xbf, 0x77, 0x1e, 0x6f, 0xff, 0xa5, 0x5f, 0x44, 0x6e, 0x43, 0x7e, 0xa1, 0xd6, 0x9c, 0xa7, 0x4f,
    0x88, 0x5f, 0x75, 0xf9, 0xcd, 0xb9, 0x37, 0x8b, 0xc4, 0xa2, 0x46, 0x98, 0xc9, 0xee, 0x9c, 0x19, 0xa3, 0xa1, 0x51};

/* Rows of Paley's matrices: bit j set where column j is −1. Orders 12 and 20 are the first construction (q = 11, 19),
 * 28 is the second (q = 13). */
static const uint32_t paley_12[] = {0x000, 0xb89, 0x713, 0xe25, 0xc4b, 0x897, 0x12f, 0x25d, 0x4b9, 0x971, 0x2e3, 0x5c5};
static const uint32_t paley_20[] = {0x00000, 0x9ea19, 0x3d433, 0x7a865, 0xf50c9, 0xea193, 0xd4327, 0xa864f, 0x50c9f,
    0xa193d, 0x4327b, 0x864f5, 0x0c9eb, 0x193d5, 0x327a9, 0x64f51, 0xc9ea1, 0x93d43, 0x27a87, 0x4f50d};
static const uint32_t paley_28[] = {0x0000002, 0xaaaaaab, 0x30ff0c8, 0x9a55a6e, 0xc3fc320, 0x69569ba, 0x0ff0c8c,
    0xa55a6e6, 0x3fc3230, 0x9569b9a, 0xff0c8c0, 0x55a6e6a, 0xfc3230c, 0x569b9a6, 0xf0c8c3c, 0x5a6e696, 0xc3230fc,
    0x69b9a56, 0x0c8c3fc, 0xa6e6956, 0x3230ff0, 0x9b9a55a, 0xc8c3fc0, 0x6e6956a, 0x230ff0c, 0xb9a55a6, 0x8c3fc30,
    0xe69569a};

static const struct Paley {
    int order;
    const uint32_t *rows;
} paleys[] = {{12, paley_12}, {20, paley_20}, {28, paley_28}};

/* d as 2^k times orders of Paley's, the smallest first. False: it is none. */
static bool factor(int d, int *power, const struct Paley *factors[FACTORS_MAX], int *count) {
    *count = 0;
    while (d & (d - 1)) {
        size_t i = 0;
        while (i < sizeof paleys / sizeof *paleys && d % paleys[i].order) i++;
        if (i == sizeof paleys / sizeof *paleys || *count == FACTORS_MAX) return false;
        factors[(*count)++] = &paleys[i];
        d /= paleys[i].order;
    }
    *power = d;
    return true;
}

bool kv_quant_dim(int d) {
    const struct Paley *factors[FACTORS_MAX];
    int power, count;
    return d >= KV_QUANT_DIM && d <= ATTENTION_HEAD_MAX && d % KV_QUANT_DIM == 0 && factor(d, &power, factors, &count);
}

/* ---- the transform of x [d][lanes] ---- */

/* Butterflies over neighbours that are `stride` floats apart. */
static void butterflies(float *x, size_t count, size_t stride) {
    for (size_t base = 0; base < count; base += 2 * stride) {
        float *restrict a = x + base, *restrict b = x + base + stride;
        for (size_t i = 0; i < stride; i++) {
            const float sum = a[i] + b[i], difference = a[i] - b[i];
            a[i] = sum;
            b[i] = difference;
        }
    }
}

static bool is_negative(int i) { return sign_bits[i / 8] >> (i % 8) & 1; }

typedef float Four __attribute__((vector_size(16)));
typedef uint32_t FourBits __attribute__((vector_size(16)));

static Four flip(Four x, FourBits signs) { return (Four)((FourBits)x ^ signs); }

/* The butterflies 1, 2, 4 and 8 floats apart, of one vector. */
static void butterflies_16(float *x) {
    static const FourBits odd = {0, 1u << 31, 0, 1u << 31}, upper = {0, 0, 1u << 31, 1u << 31};
    Four v[4];
    memcpy(v, x, sizeof v);
    for (int i = 0; i < 4; i++) {
        v[i] = __builtin_shufflevector(v[i], v[i], 1, 0, 3, 2) + flip(v[i], odd);
        v[i] = __builtin_shufflevector(v[i], v[i], 2, 3, 0, 1) + flip(v[i], upper);
    }
    const Four a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    const Four out[4] = {a + c, b + d, a - c, b - d};
    memcpy(x, out, sizeof out);
}

enum { CHUNK = 16 }; /* numbers that are transformed together: which compilers vectorise */

/* Numbers i of a chunk's columns are `stride` floats apart. */
static inline void multiply_chunk(float *x, size_t stride, int width, const struct Paley *paley, bool transposed) {
    const int order = paley->order;
    float in[PALEY_MAX][CHUNK];
    for (int j = 0; j < order; j++) memcpy(in[j], x + (size_t)j * stride, (size_t)width * sizeof *x);
    for (int i = 0; i < order; i++) {
        float sum[CHUNK] = {0};
        for (int j = 0; j < order; j++) {
            const float sign = (transposed ? paley->rows[j] >> i : paley->rows[i] >> j) & 1 ? -1 : 1;
            for (int l = 0; l < width; l++) sum[l] += sign * in[j][l];
        }
        memcpy(x + (size_t)i * stride, sum, (size_t)width * sizeof *x);
    }
}

/* Paley's matrix, or its transpose, over each `order` numbers that are `stride` floats apart. */
static void multiply(float *x, size_t count, size_t stride, const struct Paley *paley, bool transposed) {
    for (size_t base = 0; base < count; base += (size_t)paley->order * stride)
        if (stride % CHUNK == 0)
            for (size_t i = 0; i < stride; i += CHUNK) multiply_chunk(x + base + i, stride, CHUNK, paley, transposed);
        else
            for (size_t i = 0; i < stride; i++) multiply_chunk(x + base + i, stride, 1, paley, transposed);
}

static void hadamard(int d, int lanes, float *x, bool transposed) {
    const struct Paley *factors[FACTORS_MAX];
    int power, count;
    CHECK(factor(d, &power, factors, &count));
    const size_t floats = (size_t)d * (size_t)lanes;
    size_t stride = (size_t)lanes;
    for (int i = 0; i < count; i++) { /* the first factor is innermost */
        multiply(x, floats, stride, factors[i], transposed);
        stride *= (size_t)factors[i]->order;
    }
    if (stride == 1) {
        for (size_t i = 0; i < floats; i += CHUNK) butterflies_16(x + i);
        stride = CHUNK;
    }
    for (; stride < floats; stride *= 2) butterflies(x, floats, stride);
}

/* x[i] ← ± scale · x[i], the signs from number `first` on, a multiple of 8. */
static void apply_signs(int d, int lanes, float *x, int first, float scale) {
    static const FourBits nibbles[16] = {
#define BIT(n, i) ((uint32_t)((n) >> (i)&1) << 31)
#define NIBBLE(n) {BIT(n, 0), BIT(n, 1), BIT(n, 2), BIT(n, 3)}
        NIBBLE(0), NIBBLE(1), NIBBLE(2), NIBBLE(3), NIBBLE(4), NIBBLE(5), NIBBLE(6), NIBBLE(7), NIBBLE(8), NIBBLE(9),
        NIBBLE(10), NIBBLE(11), NIBBLE(12), NIBBLE(13), NIBBLE(14), NIBBLE(15)};
    for (int i = 0; lanes == 1 && i < d; i += 4) {
        Four v;
        memcpy(&v, x + i, sizeof v);
        v = flip(v, nibbles[sign_bits[(first + i) / 8] >> (first + i) % 8 & 15]) * scale;
        memcpy(x + i, &v, sizeof v);
    }
    for (int i = 0; lanes > 1 && i < d; i++) {
        const float factor = is_negative(first + i) ? -scale : scale;
        for (int lane = 0; lane < lanes; lane++) x[(size_t)i * (size_t)lanes + (size_t)lane] *= factor;
    }
}

void kv_rotate(int d, int lanes, float *x) {
    apply_signs(d, lanes, x, 0, 1);
    hadamard(d, lanes, x, false);
    apply_signs(d, lanes, x, d, 1 / sqrtf((float)d));
}

void kv_rotate_back(int d, int lanes, float *x) {
    apply_signs(d, lanes, x, d, 1);
    hadamard(d, lanes, x, true);
    apply_signs(d, lanes, x, 0, 1 / sqrtf((float)d));
}

void kv_rotation_signs(int d, float *signs) {
    for (int i = 0; i < 2 * d; i++) signs[i] = is_negative(i) ? -1 : 1;
}
