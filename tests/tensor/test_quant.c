/* Every quantisation against MLX, bit for bit (tests/tensor/data/quant.bin, made by tools/make_quant_goldens.py), from
 * unaligned memory of exactly the right size; 16-bit floats against their definition. */
#include <stdlib.h>

#include "base/file.h"
#include "tensor/tensor.h"
#include "test.h"

enum { COLS = 128, ROWS_MAX = 16 };

typedef struct Record {
    uint32_t operation, quant, dtype, bits, group, rows;
} Record;

static uint32_t float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* A NaN's sign and payload depend on the processor: any NaN equals any other. */
static bool same_bits(float a, float b) { return float_bits(a) == float_bits(b) || (isnan(a) && isnan(b)); }

/* A copy at an odd address with nothing behind it, so that a sanitizer sees reads past the end. */
static uint8_t *odd_copy(const uint8_t *from, size_t size, uint8_t **block) {
    *block = malloc(size + 1);
    memcpy(*block + 1, from, size);
    return *block + 1;
}

static void check_dequantize(const Record *r, const uint8_t *parts, const uint8_t *values) {
    Weight w = {.rows = r->rows,
        .cols = COLS,
        .quant = r->quant,
        .bits = (int)r->bits,
        .group = (int)r->group,
        .dtype = r->dtype};
    size_t data_bytes = weight_row_bytes(&w) * r->rows, scale_bytes = weight_scale_bytes(&w) * r->rows;
    uint8_t *block[3] = {0};
    w.data = odd_copy(parts, data_bytes, &block[0]);
    w.scales = odd_copy(parts + data_bytes, scale_bytes, &block[1]);
    if (r->quant == QUANT_AFFINE) w.biases = odd_copy(parts + data_bytes + scale_bytes, scale_bytes, &block[2]);
    for (int row = 0; row < (int)r->rows; row++) {
        float expected[COLS], whole[COLS], part[COLS];
        memcpy(expected, values + (size_t)row * sizeof expected, sizeof expected);
        weight_dequantize_row(&w, row, 0, COLS, whole);
        int wrong = 0;
        for (int i = 0; i < COLS; i++) wrong += !same_bits(whole[i], expected[i]);
        TEST_MSG(!wrong, "%s %u bits group %u %s row %d: %d of %d elements differ", quant_name(r->quant), r->bits,
            r->group, dtype_name(r->dtype), row, wrong, COLS);
        for (int first = 0; first < COLS; first += 13) {
            int count = (first * 7) % (COLS - first);
            weight_dequantize_row(&w, row, first, count, part);
            for (int i = 0; i < count; i++) wrong += !same_bits(part[i], whole[first + i]);
        }
        Weight slice = weight_rows(&w, row, 1);
        weight_dequantize_row(&slice, 0, 0, COLS, part);
        for (int i = 0; i < COLS; i++) wrong += !same_bits(part[i], whole[i]);
        TEST(!wrong);
    }
    for (int i = 0; i < 3; i++) free(block[i]);
}

static void check_quantize(const Record *r, const uint8_t *parts, const uint8_t *values) {
    size_t row_bytes = COLS * r->bits / 8, groups = COLS / r->group;
    const uint8_t *scales = parts + row_bytes * r->rows, *biases = scales + groups * sizeof(float) * r->rows;
    for (uint32_t row = 0; row < r->rows; row++) {
        float x[COLS], scale[COLS], bias[COLS];
        uint8_t data[COLS];
        memcpy(x, values + row * sizeof x, sizeof x);
        quantize_affine_row(x, COLS, (int)r->bits, (int)r->group, data, scale, bias);
        TEST_MSG(memcmp(data, parts + row * row_bytes, row_bytes) == 0, "codes of %u bits group %u row %u", r->bits,
            r->group, row);
        TEST(memcmp(scale, scales + row * groups * sizeof(float), groups * sizeof(float)) == 0);
        TEST(memcmp(bias, biases + row * groups * sizeof(float), groups * sizeof(float)) == 0);
    }
}

static void test_goldens(void) {
    FileMap map;
    Error error;
    bool mapped = file_map(&map, "tests/tensor/data/quant.bin", &error);
    TEST_MSG(mapped, "%s", error.text);
    if (!mapped) return;
    int records = 0;
    size_t at = 0;
    while (at + sizeof(Record) <= map.size) {
        Record r;
        memcpy(&r, map.data + at, sizeof r);
        const uint8_t *parts = map.data + at + sizeof r;
        Weight w = {.rows = r.rows,
            .cols = COLS,
            .quant = r.quant,
            .bits = (int)r.bits,
            .group = (int)r.group,
            .dtype = r.dtype};
        size_t part_bytes = weight_bytes(&w);
        if (r.operation == 0) check_dequantize(&r, parts, parts + part_bytes);
        if (r.operation == 1) check_quantize(&r, parts, parts + part_bytes);
        at += sizeof r + part_bytes + (size_t)r.rows * COLS * sizeof(float);
        records++;
    }
    TEST(at == map.size);
    TEST_MSG(records == 6 * 3 * 3 + 3 + 6 * 3, "%d records", records);
    file_unmap(&map);
}

/* Nearest even by trying the neighbours: the definition, slowly. */
static void test_f16(void) {
    int wrong = 0;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        int exponent = (int)(h >> 10 & 31), mantissa = (int)(h & 1023);
        double magnitude = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
        if (exponent == 31) {
            wrong += mantissa ? !isnan(f) : !isinf(f);
        } else {
            wrong += (double)f != (h & 0x8000 ? -magnitude : magnitude) || (signbit(f) != 0) != (h >= 0x8000);
        }
        if (!isnan(f)) wrong += f32_to_f16(f) != h;
    }
    TEST_MSG(!wrong, "%d halves differ", wrong);
    for (uint32_t h = 0; h < 0x7BFF; h++) { /* the midpoint of each pair of neighbours, and just beside it */
        float low = f16_to_f32((uint16_t)h), high = f16_to_f32((uint16_t)(h + 1)), middle = low + (high - low) / 2;
        wrong += f32_to_f16(middle) != (h & 1 ? h + 1 : h);
        wrong += f32_to_f16(nextafterf(middle, 0)) != h;
        wrong += f32_to_f16(nextafterf(middle, INFINITY)) != h + 1;
        wrong += f32_to_f16(-middle) != ((h & 1 ? h + 1 : h) | 0x8000);
    }
    TEST_MSG(!wrong, "%d roundings differ", wrong);
    TEST(f32_to_f16(65519.996f) == 0x7BFF && f32_to_f16(65520) == 0x7C00 && f32_to_f16(-INFINITY) == 0xFC00);
    TEST((f32_to_f16(NAN) & 0x7C00) == 0x7C00 && (f32_to_f16(NAN) & 0x3FF));
}

static void test_bf16(void) {
    int wrong = 0;
    for (uint32_t h = 0; h < 0x7F7F; h++) {
        float low = bf16_to_f32((uint16_t)h), high = bf16_to_f32((uint16_t)(h + 1));
        float middle = (float)(((double)low + (double)high) / 2);
        wrong += f32_to_bf16(low) != h || f32_to_bf16(middle) != (h & 1 ? h + 1 : h);
        wrong += f32_to_bf16(nextafterf(middle, 0)) != h || f32_to_bf16(nextafterf(middle, INFINITY)) != h + 1;
    }
    TEST_MSG(!wrong, "%d roundings differ", wrong);
    TEST(f32_to_bf16(INFINITY) == 0x7F80 && f32_to_bf16(3.4e38f) == 0x7F80);
    TEST((f32_to_bf16(NAN) & 0x7FFF) > 0x7F80);
}

static void test_plain(void) {
    static const float x[] = {0.0f, -1.5f, 65504.0f, 1e-7f, 3.0f};
    for (DType dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
        uint8_t packed[sizeof x + 1];
        floats_from_f32(packed + 1, dtype, x, COUNT_OF(x));
        Weight w = {.rows = 1, .cols = COUNT_OF(x), .dtype = dtype, .data = packed + 1};
        TEST(weight_row_bytes(&w) == COUNT_OF(x) * dtype_bytes(dtype) && weight_scale_bytes(&w) == 0);
        float out[COUNT_OF(x)];
        weight_dequantize_row(&w, 0, 1, COUNT_OF(x) - 1, out + 1);
        for (size_t i = 1; i < COUNT_OF(x); i++) {
            float expected = dtype == DTYPE_F16 ? f16_to_f32(f32_to_f16(x[i]))
                : dtype == DTYPE_BF16           ? bf16_to_f32(f32_to_bf16(x[i]))
                                                : x[i];
            TEST(out[i] == expected);
        }
    }
}

int main(void) {
    test_goldens();
    test_f16();
    test_bf16();
    test_plain();
    return test_done();
}
