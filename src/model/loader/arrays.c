/* The part of the Loader that fetches rows in blocks, and arrays that are not matrices to multiply by. */
#include <math.h>
#include <stdio.h>

#include "model/loader/internal.h"

/* ---- rows in blocks ---- */

/* Rows of `bytes` each at `from`, as the blocks say. NULL after an error. */
static const void *gather(Loader *ld, const void *from, size_t bytes, const RowBlocks *b, int64_t rows) {
    uint8_t *out = loader_alloc(ld, (size_t)(b->count * b->size), bytes);
    for (int64_t i = 0; out && i < b->count * b->size; i++) {
        const int64_t row = (b->first + i / b->size * b->stride + i % b->size) % rows;
        memcpy(out + (size_t)i * bytes, (const uint8_t *)from + (size_t)row * bytes, bytes);
    }
    return out;
}

Weight load_row_blocks(Loader *ld, const char *name, int64_t rows, int64_t cols, bool bias, RowBlocks b) {
    CHECK(b.first + (b.count - 1) * b.stride < rows);
    ld->in_file = true;
    const Weight all = load_linear(ld, name, rows, cols, bias);
    ld->in_file = false;
    Weight out = all;
    out.rows = b.count * b.size;
    if (ld->failed || ld->source->record) return out;
    out.data = gather(ld, all.data, weight_row_bytes(&all), &b, rows);
    if (all.scales) out.scales = gather(ld, all.scales, weight_scale_bytes(&all), &b, rows);
    if (all.biases) out.biases = gather(ld, all.biases, weight_scale_bytes(&all), &b, rows);
    if (all.bias) out.bias = gather(ld, all.bias, sizeof *all.bias, &b, rows);
    if (!ld->failed) loader_tally(ld, &out);
    return out;
}

/* ---- rows in another order ---- */

typedef struct RowOrder {
    const int *order;
    int period;
    int64_t rows;
} RowOrder;

static const void *reorder(Loader *ld, const void *from, size_t bytes, const RowOrder *o) {
    uint8_t *out = loader_alloc(ld, (size_t)o->rows, bytes);
    for (int64_t i = 0; out && i < o->rows; i++) {
        const int64_t row = i / o->period * o->period + o->order[i % o->period];
        memcpy(out + (size_t)i * bytes, (const uint8_t *)from + (size_t)row * bytes, bytes);
    }
    return out;
}

Weight load_reordered(
    Loader *ld, const char *name, int64_t rows, int64_t cols, bool bias, const int *order, int period) {
    const RowOrder o = {order, period, rows};
    CHECK(rows % period == 0);
    ld->in_file = true;
    Weight out = load_linear(ld, name, rows, cols, bias);
    ld->in_file = false;
    if (ld->failed) return out;
    out.data = reorder(ld, out.data, weight_row_bytes(&out), &o);
    if (out.scales) out.scales = reorder(ld, out.scales, weight_scale_bytes(&out), &o);
    if (out.biases) out.biases = reorder(ld, out.biases, weight_scale_bytes(&out), &o);
    if (out.bias) out.bias = reorder(ld, out.bias, sizeof *out.bias, &o);
    if (!ld->failed) loader_tally(ld, &out);
    return out;
}

/* ---- scaled matrices ---- */

static void *copy_scaled(Loader *ld, const void *from, DType dtype, int64_t count, float scale, DType to) {
    void *out = loader_alloc(ld, (size_t)count, dtype_bytes(to));
    const size_t step = dtype_bytes(dtype), out_step = dtype_bytes(to);
    for (int64_t i = 0; out && i < count; i++) {
        float x;
        floats_to_f32(&x, (const uint8_t *)from + (size_t)i * step, dtype, 1);
        x *= scale;
        floats_from_f32((uint8_t *)out + (size_t)i * out_step, to, &x, 1);
    }
    return out;
}

Weight load_scaled(Loader *ld, const char *name, int64_t rows, int64_t cols, bool bias, float scale) {
    ld->in_file = scale != 1;
    Weight weight = load_linear(ld, name, rows, cols, bias);
    ld->in_file = false;
    if (ld->failed || scale == 1 || ld->source->record) return weight;
    const bool unpacked = weight.quant == QUANT_AFFINE && ld->packing.load; /* its codes are not the file's */
    if (weight.quant != QUANT_NONE && !unpacked) {
        loader_fail(
            ld, ERROR_UNSUPPORTED, "tensor %s is quantised, but has to be multiplied by %g", name, (double)scale);
        return weight;
    }
    if (unpacked) {
        const int64_t groups = rows * (cols / weight.group);
        weight.scales = copy_scaled(ld, weight.scales, weight.dtype, groups, scale, DTYPE_F32);
        weight.biases = copy_scaled(ld, weight.biases, weight.dtype, groups, scale, DTYPE_F32);
    } else {
        weight.data = copy_scaled(ld, weight.data, weight.dtype, rows * cols, scale, DTYPE_F32);
    }
    weight.dtype = DTYPE_F32;
    if (weight.bias) weight.bias = copy_scaled(ld, weight.bias, DTYPE_F32, rows, scale, DTYPE_F32);
    if (!ld->failed) loader_tally(ld, &weight);
    return weight;
}

/* Divides each row by its length + epsilon. */
static void *copy_unit_rows(Loader *ld, const Weight *w, float epsilon) {
    const size_t bytes = weight_row_bytes(w);
    uint8_t *out = loader_alloc(ld, (size_t)w->rows, bytes);
    float *row = loader_alloc(ld, (size_t)w->cols, sizeof *row);
    for (int64_t r = 0; out && row && r < w->rows; r++) {
        double sum = 0;
        floats_to_f32(row, (const uint8_t *)w->data + (size_t)r * bytes, w->dtype, w->cols);
        for (int64_t c = 0; c < w->cols; c++) sum += (double)row[c] * (double)row[c];
        const float length = (float)sqrt(sum) + epsilon;
        for (int64_t c = 0; c < w->cols; c++) row[c] /= length;
        floats_from_f32(out + (size_t)r * bytes, w->dtype, row, w->cols);
    }
    return out;
}

Weight load_unit_rows(Loader *ld, const char *name, int64_t rows, int64_t cols, float epsilon) {
    char scales[PART_SIZE];
    snprintf(scales, sizeof scales, "%s.scales", name);
    const bool done = !ld->packing.load && load_has(ld, scales); /* MLX quantises the divided rows */
    ld->in_file = !done;
    Weight weight = load_linear(ld, name, rows, cols, false);
    ld->in_file = false;
    if (!done) loader_record_unit_rows(ld, epsilon);
    if (!done && weight.quant != QUANT_NONE)
        loader_fail(ld, ERROR_UNSUPPORTED, "tensor %s is quantised, but its rows have to be divided", name);
    if (ld->failed || done || ld->source->record) return weight;
    weight.data = copy_unit_rows(ld, &weight, epsilon);
    if (!ld->failed) loader_tally(ld, &weight);
    return weight;
}

/* ---- arrays ---- */

float *load_floats(Loader *ld, int64_t count) { return loader_alloc(ld, (size_t)count, sizeof(float)); }

bool load_has_torch_conv(Loader *ld, const char *name) {
    char full[PART_SIZE];
    snprintf(full, sizeof full, "%s.weight", name);
    const TensorEntry *entry = loader_find(ld, full);
    return entry && entry->tensor.rank == 3 && entry->tensor.shape[1] == 1 && entry->tensor.shape[2] > 1;
}

/* The dimensions other than 1 must be rows and cols; of a vector the number of elements must be right. */
static bool fits(const Tensor *tensor, int64_t rows, int64_t cols) {
    int64_t count = 1, found[TENSOR_RANK_MAX];
    int rank = 0;
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] > 0 && count > rows * cols / tensor->shape[i]) return false;
        count *= tensor->shape[i];
        if (tensor->shape[i] != 1) found[rank++] = tensor->shape[i];
    }
    if (count != rows * cols) return false;
    return cols == 1 || rows == 1 || (rank == 2 && found[0] == rows);
}

static float *read_array(Loader *ld, const char *name, int64_t rows, int64_t cols) {
    const TensorEntry *entry = loader_take(ld, name, "");
    if (!entry) return NULL;
    const Tensor *tensor = &entry->tensor;
    if (!dtype_is_float(tensor->dtype)) {
        loader_wrong_dtype(ld, entry, "F32, F16 or BF16");
        return NULL;
    }
    if (!fits(tensor, rows, cols)) {
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

/* Element i of a tensor of I32 or I64. */
static int64_t integer_at(const Tensor *t, int64_t i) {
    const uint8_t *at = (const uint8_t *)t->data + (size_t)i * dtype_bytes(t->dtype);
    int64_t whole = 0;
    int32_t half = 0;
    if (t->dtype == DTYPE_I64) {
        memcpy(&whole, at, sizeof whole);
        return whole;
    }
    memcpy(&half, at, sizeof half);
    return half;
}

const float *load_numbers(Loader *ld, const char *name, int64_t rows, int64_t cols, int limit) {
    const TensorEntry *entry = loader_take(ld, name, "");
    if (!entry) return NULL;
    const Tensor *t = &entry->tensor;
    if (t->dtype != DTYPE_I32 && t->dtype != DTYPE_I64) {
        loader_wrong_dtype(ld, entry, "I32 or I64");
        return NULL;
    }
    if (t->rank != 2 || t->shape[0] != rows || t->shape[1] != cols) {
        char expected[64];
        snprintf(expected, sizeof expected, "%lld, %lld", (long long)rows, (long long)cols);
        loader_wrong_shape(ld, entry, expected);
        return NULL;
    }
    float *out = loader_alloc(ld, (size_t)(rows * cols), sizeof *out);
    for (int64_t i = 0; out && !ld->source->record && i < rows * cols; i++) {
        const int64_t number = integer_at(t, i);
        if (number < 0 || number >= limit) {
            loader_fail(ld, ERROR_FORMAT, "tensor %s: element %lld is %lld, must be from 0 to %d", name, (long long)i,
                (long long)number, limit - 1);
            return NULL;
        }
        out[i] = (float)number;
    }
    return out;
}

const float *load_axes(Loader *ld, const char *name, int64_t count, int64_t width, int64_t side, bool paired) {
    const TensorEntry *entry = loader_take(ld, name, "");
    if (!entry) return NULL;
    const Tensor *t = &entry->tensor;
    if (!dtype_is_float(t->dtype)) {
        loader_wrong_dtype(ld, entry, "F32, F16 or BF16");
        return NULL;
    }
    const int64_t first = paired ? count : 2, second = paired ? 2 : count;
    if (t->rank != 3 || t->shape[0] != first || t->shape[1] != second || t->shape[2] != width || side > count) {
        char expected[96];
        snprintf(expected, sizeof expected, "%lld, %lld, %lld", (long long)first, (long long)second, (long long)width);
        loader_wrong_shape(ld, entry, expected);
        return NULL;
    }
    float *out = loader_alloc(ld, (size_t)(2 * side * width), sizeof *out);
    const size_t bytes = (size_t)width * dtype_bytes(t->dtype);
    for (int64_t axis = 0; out && axis < 2; axis++)
        for (int64_t i = 0; i < side; i++) {
            const int64_t row = paired ? 2 * i + axis : axis * count + i;
            floats_to_f32(
                out + (axis * side + i) * width, (const uint8_t *)t->data + (size_t)row * bytes, t->dtype, width);
        }
    return out;
}

/* Strides of a convolution's weights in elements. */
typedef struct KernelStrides {
    int64_t out, time, row, column, in;
} KernelStrides;

/* Channels last as MLX has them, or first. False: it is no such tensor. */
static bool kernel_strides(const Tensor *t, int64_t out, int64_t in, int64_t size, int64_t times, KernelStrides *s) {
    const bool timed = t->rank == 5; /* else there is no dimension of time */
    const int64_t last[] = {out, times, size, size, in}, first[] = {out, in, times, size, size};
    bool is_last = t->rank == 4 + timed && (timed || times == 1), is_first = is_last;
    for (int i = 0; i < 4 + timed && is_last + is_first > 0; i++) {
        is_last = is_last && t->shape[i] == last[i + (!timed && i > 0)];
        is_first = is_first && t->shape[i] == first[i + (!timed && i > 1)];
    }
    const int64_t area = size * size;
    *s = is_last ? (KernelStrides){times * area * in, area * in, size * in, in, 1}
                 : (KernelStrides){in * times * area, area, size, 1, times * area};
    return is_last || is_first;
}

/* The weights of a convolution as f32, in the file's order; NULL: there are none. */
static float *read_kernel(Loader *ld, const char *name, int out, int in, int size, int times, KernelStrides *strides) {
    const TensorEntry *entry = loader_take(ld, name, ".weight");
    if (!entry) return NULL;
    if (!dtype_is_float(entry->tensor.dtype)) {
        loader_wrong_dtype(ld, entry, "F32, F16 or BF16");
        return NULL;
    }
    if (!kernel_strides(&entry->tensor, out, in, size, times, strides)) {
        char expected[96], time[16] = "";
        if (times > 1) snprintf(time, sizeof time, "%d, ", times);
        snprintf(expected, sizeof expected, "%d, %s%d, %d, %d", out, time, size, size, in);
        loader_wrong_shape(ld, entry, expected);
        return NULL;
    }
    const int64_t count = (int64_t)out * times * size * size * in;
    float *all = loader_alloc(ld, (size_t)count, sizeof *all);
    if (all) floats_to_f32(all, entry->tensor.data, entry->tensor.dtype, count);
    return all;
}

/* Adds the weights of input `time`. shape: out, size, in; step: from a row of `to` to the next. */
static void add_kernel(
    const float *all, const KernelStrides *s, const int shape[3], int64_t time, int64_t step, float *to) {
    const int out = shape[0], size = shape[1], in = shape[2];
    for (int64_t o = 0; o < out; o++) {
        float *at = to + o * step;
        for (int64_t y = 0; y < size; y++)
            for (int64_t x = 0; x < size; x++)
                for (int64_t c = 0; c < in; c++, at++)
                    *at += all[o * s->out + time * s->time + y * s->row + x * s->column + c * s->in];
    }
}

static void take_bias(Loader *ld, const char *name, bool bias, Weight *weight) {
    char full[PART_SIZE];
    loader_tally(ld, weight);
    snprintf(full, sizeof full, "%s.bias", name);
    if (bias) weight->bias = load_vector(ld, full, weight->rows, 0);
}

Weight load_convolution(Loader *ld, const char *name, int out, int in, int size, int times, bool bias) {
    const int64_t cols = (int64_t)size * size * in;
    const int shape[] = {out, size, in};
    Weight weight = {.rows = out, .cols = cols, .dtype = DTYPE_F32};
    KernelStrides s;
    const float *all = read_kernel(ld, name, out, in, size, times, &s);
    float *sums = all ? loader_alloc(ld, (size_t)(out * cols), sizeof *sums) : NULL;
    if (!sums) return weight;
    for (int64_t t = 0; t < times; t++) add_kernel(all, &s, shape, t, cols, sums);
    weight.data = sums;
    take_bias(ld, name, bias, &weight);
    return weight;
}

Weight load_patch_convolution(Loader *ld, const char *name, int out, int size, int times, bool bias, Weight *pair) {
    enum { COLOURS = 3, FRAMES = 2 };
    const int64_t cols = (int64_t)size * size * COLOURS;
    const int shape[] = {out, size, COLOURS};
    Weight weight = {.rows = out, .cols = cols, .dtype = DTYPE_F32};
    *pair = (Weight){0};
    KernelStrides s;
    const float *all = read_kernel(ld, name, out, COLOURS, size, times, &s);
    float *sums = all ? loader_alloc(ld, (size_t)(out * cols), sizeof *sums) : NULL;
    float *both = all && times == FRAMES ? loader_alloc(ld, (size_t)(FRAMES * out * cols), sizeof *both) : NULL;
    if (!sums) return weight;
    for (int64_t t = 0; t < times; t++) {
        add_kernel(all, &s, shape, t, cols, sums);
        if (both) add_kernel(all, &s, shape, t, FRAMES * cols, both + t * cols);
    }
    weight.data = sums;
    take_bias(ld, name, bias, &weight);
    if (both)
        *pair = (Weight){.rows = out, .cols = FRAMES * cols, .dtype = DTYPE_F32, .data = both, .bias = weight.bias};
    return weight;
}

Weight load_transposed(Loader *ld, const char *name, int64_t rows, int64_t cols) {
    Weight weight = {.rows = rows, .cols = cols, .dtype = DTYPE_F32};
    const float *columns = read_array(ld, name, cols, rows);
    float *data = columns ? loader_alloc(ld, (size_t)(rows * cols), sizeof *data) : NULL;
    if (!data) return weight;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) data[r * cols + c] = columns[c * rows + r];
    weight.data = data;
    loader_tally(ld, &weight);
    return weight;
}

/* Which of a matrix's columns become rows. */
typedef struct ColumnSteps {
    int64_t first, step;
} ColumnSteps;

/* rows × cols elements of `size` bytes, from cols × (rows · step). */
static void transpose(const uint8_t *from, int64_t rows, int64_t cols, size_t size, ColumnSteps s, uint8_t *to) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++, to += size)
            memcpy(to, from + (size_t)(c * rows * s.step + s.first + r * s.step) * size, size);
}

static Weight *experts_transposed(
    Loader *ld, const char *name, bool flat, int experts, int extra, int64_t rows, int64_t cols, ColumnSteps s) {
    load_require(ld, experts <= EXPERTS_MAX, "%d experts, at most %d can be", experts, EXPERTS_MAX);
    Weight *out = loader_alloc(ld, (size_t)experts + (size_t)extra, sizeof *out);
    if (!out) return NULL;
    ld->stack = flat ? 0 : experts;
    ld->in_file = true;
    const Weight all = load_linear(ld, name, experts * cols, rows * s.step, false);
    ld->stack = 0;
    ld->in_file = false;
    if (ld->source->record) {
        if (!flat && s.first == 0) loader_record_transposed(ld, experts, s.step == 2);
        return out;
    }
    if (all.quant != QUANT_NONE)
        loader_fail(ld, ERROR_UNSUPPORTED, "tensor %s is quantised, but has to be transposed", name);
    const size_t size = dtype_bytes(all.dtype), each = (size_t)(rows * cols) * size;
    uint8_t *data = ld->failed ? NULL : loader_alloc(ld, (size_t)experts, each);
    for (int e = 0; data && e < experts; e++) {
        out[e] = (Weight){.rows = rows, .cols = cols, .dtype = all.dtype, .data = data + (size_t)e * each};
        const uint8_t *from = (const uint8_t *)all.data + (size_t)(e * s.step) * each;
        transpose(from, rows, cols, size, s, data + (size_t)e * each);
        loader_tally(ld, &out[e]);
    }
    return out;
}

Weight *load_experts_transposed(
    Loader *ld, const char *name, bool flat, int experts, int extra, int64_t rows, int64_t cols) {
    return experts_transposed(ld, name, flat, experts, extra, rows, cols, (ColumnSteps){0, 1});
}

Weight *load_experts_alternating(
    Loader *ld, const char *name, const char *as, int experts, int64_t rows, int64_t cols, int first, int step) {
    Weight *out = experts_transposed(ld, name, false, experts, 0, rows, cols, (ColumnSteps){first, step});
    const float *biases = loader_expert_biases(ld, name, as, experts, rows, first, step);
    for (int e = 0; out && biases && e < experts; e++) out[e].bias = biases + e * rows;
    return out;
}

Weight load_unfolded(Loader *ld, const char *name, int64_t rows, int in, int parts) {
    Weight weight = {.rows = rows, .cols = (int64_t)in * parts, .dtype = DTYPE_F32};
    const float *from = read_array(ld, name, rows, weight.cols);
    float *data = from ? loader_alloc(ld, (size_t)(rows * weight.cols), sizeof *data) : NULL, *to = data;
    if (!data) return weight;
    for (int64_t r = 0; r < rows; r++, from += weight.cols)
        for (int p = 0; p < parts; p++)
            for (int i = 0; i < in; i++) *to++ = from[i * parts + p];
    weight.data = data;
    loader_tally(ld, &weight);
    return weight;
}

const float *load_rows(Loader *ld, const char *format, int count, int64_t width) {
    float *rows = loader_alloc(ld, (size_t)count * (size_t)width, sizeof *rows);
    const char *place = strstr(format, "%d");
    CHECK(place);
    for (int i = 0; rows && i < count; i++) {
        char name[PART_SIZE];
        snprintf(name, sizeof name, "%.*s%d%s", (int)(place - format), format, i, place + 2);
        const float *row = load_vector(ld, name, width, 0);
        if (row) memcpy(rows + i * width, row, (size_t)width * sizeof *row);
    }
    return rows;
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
