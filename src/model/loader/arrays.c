/* The part of the Loader that fetches rows in blocks, and arrays that are not matrices to multiply by. */
#include <math.h>
#include <stdio.h>

#include "model/loader/internal.h"

/* ---- rows in blocks ---- */

/* Rows of `bytes` each at `from`, as the blocks say. NULL after an error. */
static const void *gather(Loader *ld, const void *from, size_t bytes, const RowBlocks *b) {
    uint8_t *out = loader_alloc(ld, (size_t)(b->count * b->size), bytes);
    for (int64_t i = 0; out && i < b->count; i++)
        memcpy(out + (size_t)(i * b->size) * bytes, (const uint8_t *)from + (size_t)(b->first + i * b->stride) * bytes,
            (size_t)b->size * bytes);
    return out;
}

Weight load_row_blocks(Loader *ld, const char *name, int64_t rows, int64_t cols, bool bias, RowBlocks b) {
    CHECK(b.first + (b.count - 1) * b.stride + b.size <= rows);
    ld->in_file = true;
    const Weight all = load_linear(ld, name, rows, cols, bias);
    ld->in_file = false;
    Weight out = all;
    out.rows = b.count * b.size;
    if (ld->failed) return out;
    out.data = gather(ld, all.data, weight_row_bytes(&all), &b);
    if (all.scales) out.scales = gather(ld, all.scales, weight_scale_bytes(&all), &b);
    if (all.biases) out.biases = gather(ld, all.biases, weight_scale_bytes(&all), &b);
    if (all.bias) out.bias = gather(ld, all.bias, sizeof *all.bias, &b);
    if (!ld->failed) loader_tally(ld, &out);
    return out;
}

/* ---- arrays ---- */

/* Writes the dimensions other than 1; returns their number. */
static int true_shape(const int64_t *shape, int rank, int64_t *out) {
    int count = 0;
    for (int i = 0; i < rank; i++)
        if (shape[i] != 1) out[count++] = shape[i];
    return count;
}

static float *read_array(Loader *ld, const char *name, int64_t rows, int64_t cols) {
    const TensorEntry *entry = loader_take(ld, name, "");
    if (!entry) return NULL;
    const Tensor *tensor = &entry->tensor;
    int64_t found[TENSOR_RANK_MAX], wanted[2];
    const int count = true_shape(tensor->shape, tensor->rank, found);
    if (!dtype_is_float(tensor->dtype)) {
        loader_wrong_dtype(ld, entry, "F32, F16 or BF16");
        return NULL;
    }
    if (count != true_shape((const int64_t[]){rows, cols}, 2, wanted) ||
        memcmp(found, wanted, (size_t)count * sizeof *found) != 0) {
        char expected[64];
        if (cols == 1)
            snprintf(expected, sizeof expected, "%lld", (long long)rows);
        else
            snprintf(expected, sizeof expected, "%lld, %lld", (long long)rows, (long long)cols);
        loader_wrong_shape(ld, entry, expected);
        return NULL;
    }
    float *array = loader_alloc(ld, (size_t)(rows * cols), sizeof *array);
    if (array) floats_to_f32(array, tensor->data, tensor->dtype, rows * cols);
    return array;
}

const float *load_array(Loader *ld, const char *name, int64_t rows, int64_t cols) {
    return read_array(ld, name, rows, cols);
}

const float *load_rate(Loader *ld, const char *stem, int64_t rows, int64_t cols) {
    char name[PART_SIZE];
    snprintf(name, sizeof name, "%sA", stem);
    if (load_has(ld, name)) return read_array(ld, name, rows, cols);
    snprintf(name, sizeof name, "%sA_log", stem);
    float *rate = read_array(ld, name, rows, cols);
    for (int64_t i = 0; rate && i < rows * cols; i++) rate[i] = -expf(rate[i]);
    return rate;
}

const float *load_repeated(Loader *ld, const char *name, int64_t size, int64_t count) {
    const float *one = load_vector(ld, name, size, 0);
    float *out = one ? loader_alloc(ld, (size_t)(size * count), sizeof *out) : NULL;
    for (int64_t i = 0; out && i < count; i++) memcpy(out + i * size, one, (size_t)size * sizeof *out);
    return out;
}
