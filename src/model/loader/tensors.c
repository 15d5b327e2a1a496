/* The part of the Loader that fetches tensors: by name, checked for type and shape, quantised or plain.
 * Formats: mlx/ops.cpp (quantize); which module is quantised and how: mlx_lm/utils.py load_model. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model/loader/internal.h"

void load_scope(Loader *ld, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(ld->scope, sizeof ld->scope, format, arguments);
    va_end(arguments);
}

void load_module_names(Loader *ld, const LoadName *names) { ld->names = names; }

/* Replaces the first place where `usual` stands between dots. */
static void rename_part(char text[NAME_SIZE], const LoadName *name) {
    const size_t length = strlen(name->usual);
    for (char *at = text; (at = strstr(at, name->usual)) != NULL; at++) {
        char rest[NAME_SIZE];
        if ((at > text && at[-1] != '.') || (at[length] && at[length] != '.')) continue;
        snprintf(rest, sizeof rest, "%s", at + length);
        snprintf(at, NAME_SIZE - (size_t)(at - text), "%s%s", name->here, rest);
        return;
    }
}

/* The three parts together, with the names of load_module_names(). */
static void renamed(const Loader *ld, char out[NAME_SIZE], const char *first, const char *rest, const char *suffix) {
    snprintf(out, NAME_SIZE, "%s%s%s", first, rest, suffix);
    for (const LoadName *name = ld->names; name->usual; name++) rename_part(out, name);
}

void loader_full_name(const Loader *ld, char out[NAME_SIZE], const char *name, const char *suffix) {
    static const char own[] = "model.";
    const size_t length = strlen(own);
    const char *first = ld->scope[0] ? ld->scope : name, *rest = ld->scope[0] ? name : "";
    char text[NAME_SIZE];
    if (ld->names) {
        renamed(ld, text, first, rest, suffix);
        first = text;
        rest = suffix = "";
    }
    if (strncmp(first, own, length) == 0)
        snprintf(out, NAME_SIZE, "%s%s%s%s%s", ld->prefix, ld->body, first + length, rest, suffix);
    else
        snprintf(out, NAME_SIZE, "%s%s%s%s", ld->prefix, first, rest, suffix);
}

static const TensorEntry *find(const Loader *ld, const char *name, const char *suffix) {
    char full[NAME_SIZE];
    loader_full_name(ld, full, name, suffix);
    return checkpoint_find(ld->source->checkpoint, full);
}

const TensorEntry *loader_find(const Loader *ld, const char *name) { return find(ld, name, ""); }

bool loader_has_matrix(Loader *ld, const char *name) {
    static const char *const ends[] = {".weight", ".qweight", ".weight_packed"};
    for (size_t i = 0; i < COUNT_OF(ends); i++)
        if (find(ld, name, ends[i])) return true;
    return false;
}

bool load_has(Loader *ld, const char *name) {
    char module[PART_SIZE];
    const char *end = strrchr(name, '.');
    if (find(ld, name, "")) return true;
    if (!ld->packing.load || !end || strcmp(end, ".weight") != 0) return false;
    snprintf(module, sizeof module, "%.*s", (int)(end - name), name);
    return loader_has_matrix(ld, module);
}

int load_dim(Loader *ld, const char *name, int dim) {
    const TensorEntry *entry = find(ld, name, "");
    const int64_t size = entry && dim < entry->tensor.rank ? entry->tensor.shape[dim] : 0;
    return size <= INT32_MAX ? (int)size : 0;
}

static const char *path_of(const Loader *ld, const TensorEntry *entry) {
    return ld->source->checkpoint->paths[entry->file];
}

const TensorEntry *loader_take(Loader *ld, const char *name, const char *suffix) {
    if (ld->failed) {
        return NULL;
    }
    const TensorEntry *entry = find(ld, name, suffix);
    if (!entry) {
        char full[NAME_SIZE];
        loader_full_name(ld, full, name, suffix);
        loader_fail(ld, ERROR_NOT_FOUND, "tensor %s is missing", full);
        return NULL;
    }
    uint8_t *used = &ld->tensor_used[entry - ld->source->checkpoint->entries];
    if (!*used) {
        ld->bytes += entry->tensor.bytes;
    }
    *used = 1;
    loader_record_entry(ld, entry);
    return entry;
}

/* The length of "layers." or, as in GPT-2, "h." in front of a layer's number at this place; 0: there is none. */
static size_t begins_layer(Slice name, size_t at) {
    static const char *const words[] = {"layers.", "h."};
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        const size_t size = strlen(words[i]);
        if ((at > 0 && name.data[at - 1] != '.') || at + size >= name.size) continue;
        if (memcmp(name.data + at, words[i], size) == 0 && isdigit((unsigned char)name.data[at + size])) return size;
    }
    return 0;
}

/* Whether a name is that of a layer which a device will have: "….layers.31.…". */
static bool of_device(const Loader *ld, Slice name) {
    for (size_t at = 0; ld->source->device_layers && at < name.size; at++) {
        const size_t size = begins_layer(name, at);
        if (size == 0) continue;
        int layer = 0;
        for (at += size; at < name.size && isdigit((unsigned char)name.data[at]) && layer < LAYERS_MAX; at++)
            layer = 10 * layer + name.data[at] - '0';
        return layer >= ld->spec->layer_count - ld->source->device_layers;
    }
    return false;
}

/* Where a matrix, or a part of one, will lie. */
static const void *place(const Loader *ld, const TensorEntry *entry) {
    const bool stays =
        !ld->source->weights || ld->in_file || (ld->experts && ld->source->experts_stay) || of_device(ld, entry->name);
    return stays ? entry->tensor.data : weights_place(ld->source->weights, entry);
}

static void shape_text(const Tensor *tensor, char out[96]) {
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < tensor->rank && used < 90; i++) {
        used += (size_t)snprintf(out + used, 96 - used, i ? ", %lld" : "%lld", (long long)tensor->shape[i]);
    }
}

void loader_wrong_shape(Loader *ld, const TensorEntry *entry, const char *expected) {
    char found[96];
    shape_text(&entry->tensor, found);
    loader_fail(ld, ERROR_FORMAT, "tensor %.*s in %s has shape [%s], must be [%s]", SLICE_SHOWN(entry->name),
        path_of(ld, entry), found, expected);
}

void loader_wrong_dtype(Loader *ld, const TensorEntry *entry, const char *expected) {
    loader_fail(ld, ERROR_FORMAT, "tensor %.*s in %s is %s, must be %s", SLICE_SHOWN(entry->name), path_of(ld, entry),
        dtype_name(entry->tensor.dtype), expected);
}

/* A stack of matrices as one below the other. Empty ones can have more rows than there are numbers for. */
Tensor loader_flat(const Loader *ld, const Tensor *tensor) {
    Tensor out = *tensor;
    if (!ld->stack || tensor->rank < 2 || tensor->shape[0] != ld->stack || tensor->shape[1] > INT64_MAX / ld->stack)
        return out;
    out.rank--;
    out.shape[0] *= tensor->shape[1];
    for (int i = 1; i < out.rank; i++) out.shape[i] = tensor->shape[i + 1];
    return out;
}

static bool is_matrix(const Tensor *tensor, int64_t rows, int64_t cols) {
    return tensor->rank == 2 && tensor->shape[0] == rows && tensor->shape[1] == cols;
}

/* "rows, " of a matrix; "experts, rows, " of a stack of them. */
static const char *rows_text(const Loader *ld, int64_t rows, char out[64]) {
    if (ld->stack)
        snprintf(out, 64, "%lld, %lld, ", (long long)ld->stack, (long long)(rows / ld->stack));
    else
        snprintf(out, 64, "%lld, ", (long long)rows);
    return out;
}

/* count: columns of a matrix, or elements of a norm. */
static void check_limit(Loader *ld, const TensorEntry *entry, const char *what, int64_t count, int64_t most) {
    if (count <= most || ld->failed) {
        return;
    }
    char found[96];
    shape_text(&entry->tensor, found);
    loader_fail(ld, ERROR_LIMIT, "tensor %.*s in %s has shape [%s]: %lld %s, at most %lld are possible",
        SLICE_SHOWN(entry->name), path_of(ld, entry), found, (long long)count, what, (long long)most);
}

void loader_tally(Loader *ld, const Weight *weight) {
    Spec *spec = ld->spec;
    int i = 0;
    for (; i < spec->tally_count; i++) {
        const Tally *t = &spec->tally[i];
        if (t->quant == weight->quant && t->dtype == weight->dtype && t->bits == weight->bits &&
            t->group == weight->group) {
            break;
        }
    }
    CHECK(i < TALLY_MAX); /* more than there are kinds that load_linear accepts */
    if (i == spec->tally_count) {
        spec->tally[spec->tally_count++] =
            (Tally){.quant = weight->quant, .bits = weight->bits, .group = weight->group, .dtype = weight->dtype};
    }
    spec->tally[i].parameters += (uint64_t)weight->rows * (uint64_t)weight->cols;
    spec->tally[i].bytes += weight_bytes(weight);
}

/* ---- how a weight is quantised ---- */

static Quant quant_of(DType scales, int bits, int group) {
    if (scales != DTYPE_U8) {
        const bool bits_known = bits == 2 || bits == 3 || bits == 4 || bits == 5 || bits == 6 || bits == 8;
        return bits_known && (group == 32 || group == 64 || group == 128) ? QUANT_AFFINE : QUANT_NONE;
    }
    return bits == 4 && group == 16 ? QUANT_NVFP4
        : bits == 4 && group == 32  ? QUANT_MXFP4
        : bits == 8 && group == 32  ? QUANT_MXFP8
                                    : QUANT_NONE;
}

/* Bits, group and form, as the shapes of codes and scales tell. False: they fit no form. */
static bool read_form(Weight *weight, const Tensor *codes, const Tensor *scales) {
    const int64_t bits = codes->shape[1] <= weight->cols ? codes->shape[1] * 32 / weight->cols : 0;
    const int64_t records = weight->cols % K_COLS == 0 ? weight->cols / K_COLS : 0, width = scales->shape[1];
    if (bits * weight->cols != codes->shape[1] * 32) return false;
    weight->bits = (int)bits;
    weight->dtype = scales->dtype;
    if (scales->dtype == DTYPE_U8 && width == records * K_BYTES) {
        weight->quant = QUANT_K;
        weight->group = 32;
        return bits == 4 || bits == 5;
    }
    if (scales->dtype == DTYPE_U8 && width == records * K_SYMMETRIC_BYTES) {
        weight->quant = QUANT_K_SYMMETRIC;
        weight->group = 16;
        return bits == 6;
    }
    if (weight->cols % width != 0 || weight->cols / width > 128) return false;
    weight->group = (int)(weight->cols / width);
    if (scales->dtype != DTYPE_U8 && !dtype_is_float(scales->dtype)) return false;
    weight->quant = quant_of(scales->dtype, weight->bits, weight->group);
    return weight->quant != QUANT_NONE;
}

/* What config.json says about this very module; NULL: nothing, or that it is plain. true: what it says about all. */
static const Json *find_override(const Loader *ld, const char *module) {
    const Json *block = json_get(ld->root, "quantization"), *override = json_get(block, module);
    if (override && override->type == JSON_BOOL && override->boolean) {
        return block;
    }
    return override && override->type == JSON_OBJECT ? override : NULL;
}

/* Where config.json names the module, the file must hold it so: false (or null) is plain, anything else has scales. */
static bool check_presence(Loader *ld, const char *name, const TensorEntry *scales) {
    char module[NAME_SIZE], shown[64];
    loader_full_name(ld, module, name, "");
    const Json *override = json_get(json_get(ld->root, "quantization"), module);
    if (!override) {
        return true;
    }
    const bool quantised = find_override(ld, module) != NULL;
    if (override->type != JSON_NULL && override->type != JSON_BOOL && override->type != JSON_OBJECT) {
        loader_fail(ld, ERROR_FORMAT, "config.json: quantization.%s is %s, must be an object, true or false", module,
            loader_show(override, shown));
    } else if (scales && !quantised) {
        loader_fail(ld, ERROR_FORMAT, "config.json: quantization.%s is %s, but %s has the tensor %.*s", module,
            loader_show(override, shown), path_of(ld, scales), SLICE_SHOWN(scales->name));
    } else if (!scales && quantised) {
        loader_fail(ld, ERROR_FORMAT, "config.json: quantization.%s is %s, but there is no tensor %s.scales", module,
            loader_show(override, shown), module);
    }
    return !ld->failed;
}

/* Whether config.json calls the module symmetric; nothing else tells that from affine without its biases. */
static bool is_symmetric(const Loader *ld, const char *module) {
    const Json *override = find_override(ld, module);
    const Json *mode = json_get(override ? override : json_get(ld->root, "quantization"), "mode");
    return mode && mode->type == JSON_STRING && slice_is(json_slice(mode), quant_name(QUANT_SYMMETRIC));
}

/* What config.json says about this very module must be what the shapes say. */
static void check_override(Loader *ld, const Weight *weight, const char *module) {
    const Json *override = find_override(ld, module);
    if (!override) {
        return;
    }
    const Json *bits = json_get(override, "bits"), *group = json_get(override, "group_size");
    const Json *mode = json_get(override, "mode");
    const bool same_bits = !bits || (bits->type == JSON_INTEGER && bits->integer == weight->bits);
    const bool same_group = !group || (group->type == JSON_INTEGER && group->integer == weight->group);
    const bool same_mode =
        !mode || (mode->type == JSON_STRING && slice_is(json_slice(mode), quant_name(weight->quant)));
    if (!same_bits || !same_group || !same_mode) {
        loader_fail(ld, ERROR_FORMAT,
            "config.json: quantization.%s does not say what the tensor's shapes say: %s, %d bits, groups of %d", module,
            quant_name(weight->quant), weight->bits, weight->group);
    }
}

static bool load_biases(Loader *ld, Weight *weight, const char *name, const Tensor *scales) {
    const TensorEntry *biases = loader_take(ld, name, ".biases");
    if (!biases) {
        return false;
    }
    if (biases->tensor.dtype != scales->dtype) {
        loader_wrong_dtype(ld, biases, dtype_name(scales->dtype));
        return false;
    }
    const Tensor shape = loader_flat(ld, &biases->tensor);
    if (!is_matrix(&shape, scales->shape[0], scales->shape[1])) {
        char expected[96];
        shape_text(scales, expected);
        loader_wrong_shape(ld, biases, expected);
        return false;
    }
    weight->biases = place(ld, biases);
    return true;
}

static void load_quantised(Loader *ld, Weight *weight, const char *name, const TensorEntry *data) {
    const TensorEntry *scales = loader_take(ld, name, ".scales");
    const Tensor codes = loader_flat(ld, &data->tensor), records = loader_flat(ld, &scales->tensor), *w = &codes,
                 *s = &records;
    char expected[96], module[NAME_SIZE], above[64];
    loader_full_name(ld, module, name, "");
    if (w->dtype != DTYPE_U32) {
        loader_wrong_dtype(ld, data, "U32, since there are scales");
        return;
    }
    if (w->rank != 2 || w->shape[0] != weight->rows) {
        snprintf(
            expected, sizeof expected, "%s%lld·bits/32", rows_text(ld, weight->rows, above), (long long)weight->cols);
        loader_wrong_shape(ld, data, expected);
        return;
    }
    if (s->rank != 2 || s->shape[0] != weight->rows || s->shape[1] < 1 ||
        (s->dtype != DTYPE_U8 && weight->cols % s->shape[1] != 0)) { /* bytes may be records */
        snprintf(
            expected, sizeof expected, "%s%lld/group", rows_text(ld, weight->rows, above), (long long)weight->cols);
        loader_wrong_shape(ld, scales, expected);
        return;
    }
    if (!read_form(weight, w, s)) {
        char found[96];
        shape_text(w, found);
        loader_fail(ld, ERROR_UNSUPPORTED,
            "tensor %.*s in %s: shape [%s] with %lld %s scales per row is no known quantisation of %lld columns",
            SLICE_SHOWN(data->name), path_of(ld, data), found, (long long)s->shape[1], dtype_name(s->dtype),
            (long long)weight->cols);
        return;
    }
    weight->scales = place(ld, scales);
    const bool symmetric_bits = weight->bits == 4 || weight->bits == 5 || weight->bits == 8;
    if (weight->quant == QUANT_AFFINE && symmetric_bits && s->dtype == DTYPE_F16 && weight->group == 32 &&
        is_symmetric(ld, module)) {
        weight->quant = QUANT_SYMMETRIC;
    }
    if (weight->quant == QUANT_AFFINE && !load_biases(ld, weight, name, s)) {
        return;
    }
    check_override(ld, weight, module);
}

static void record_matrix(Loader *ld, const char *name, bool bare, const Weight *weight, const TensorEntry *data) {
    const TensorEntry *entries[] = {data, find(ld, name, ".scales"), find(ld, name, ".biases")};
    char full[NAME_SIZE];
    if (!ld->source->record || ld->failed) return;
    loader_full_name(ld, full, name, "");
    loader_record_matrix(ld, full, bare, weight, entries, !weight->scales ? 1 : !weight->biases ? 2 : 3);
}

static const float *load_bias(Loader *ld, const char *name, int64_t rows) {
    char full[PART_SIZE];
    snprintf(full, sizeof full, "%s.bias", name);
    return load_vector(ld, full, rows, 0);
}

Weight load_linear(Loader *ld, const char *name, int64_t rows, int64_t cols, bool bias) {
    Weight weight = {.rows = rows, .cols = cols};
    if (ld->packing.load && ld->packing.load(ld, name, &weight)) {
        if (!ld->failed && !ld->in_file) loader_tally(ld, &weight);
        if (bias) weight.bias = load_bias(ld, name, rows);
        return weight;
    }
    const bool bare = !find(ld, name, ".weight") && find(ld, name, "");
    const TensorEntry *data = loader_take(ld, name, bare ? "" : ".weight");
    if (!data) {
        return weight;
    }
    weight.data = place(ld, data);
    weight.dtype = data->tensor.dtype;
    const TensorEntry *scales = find(ld, name, ".scales");
    const Tensor plain = loader_flat(ld, &data->tensor);
    if (!check_presence(ld, name, scales)) {
        return weight;
    }
    if (scales) {
        load_quantised(ld, &weight, name, data);
    } else if (!dtype_is_float(weight.dtype)) {
        loader_wrong_dtype(ld, data, "F32, F16 or BF16, since there are no scales");
    } else if (!is_matrix(&plain, rows, cols)) {
        char expected[96], above[64];
        snprintf(expected, sizeof expected, "%s%lld", rows_text(ld, rows, above), (long long)cols);
        loader_wrong_shape(ld, data, expected);
    }
    check_limit(ld, data, "columns", cols, MATRIX_COLS_MAX);
    if (!ld->failed && !ld->in_file) { /* what is only read now is counted where it stays */
        loader_tally(ld, &weight);
    }
    record_matrix(ld, name, bare, &weight, data);
    if (bias) weight.bias = load_bias(ld, name, rows);
    return weight;
}

Weight load_part(const Weight *fused, int64_t first, int64_t count) {
    return fused->data ? weight_rows(fused, first, count) : (Weight){.rows = count, .cols = fused->cols};
}

const float *load_vector(Loader *ld, const char *name, int64_t count, float plus) {
    const TensorEntry *entry = loader_take(ld, name, "");
    if (!entry) {
        return NULL;
    }
    if (!dtype_is_float(entry->tensor.dtype)) {
        loader_wrong_dtype(ld, entry, "F32, F16 or BF16");
        return NULL;
    }
    const Tensor shape = loader_flat(ld, &entry->tensor);
    const bool row = shape.rank == 2 && shape.shape[0] == 1; /* as some files hold vectors */
    const bool scalar = shape.rank == 0 && count == 1;
    if (!scalar && ((shape.rank != 1 && !row) || shape.shape[row] != count)) {
        char expected[32];
        snprintf(expected, sizeof expected, "%lld", (long long)count);
        loader_wrong_shape(ld, entry, expected);
        return NULL;
    }
    float *vector = loader_alloc(ld, (size_t)count, sizeof(float));
    if (!vector) {
        return NULL;
    }
    floats_to_f32(vector, entry->tensor.data, entry->tensor.dtype, count);
    loader_record_plus(ld, entry, plus);
    for (int64_t i = 0; plus != 0 && i < count; i++) {
        vector[i] += plus;
    }
    return vector;
}

static void load_norm_weights(Loader *ld, const char *name, Norm *norm, float plus) {
    char full[PART_SIZE];
    snprintf(full, sizeof full, "%s.weight", name);
    norm->weight = load_vector(ld, full, norm->width, plus);
    if (norm->weight) {
        check_limit(ld, find(ld, full, ""), "elements of a norm", norm->width, NORM_WIDTH_MAX);
    }
    snprintf(full, sizeof full, "%s.bias", name);
    if (norm->kind == NORM_LAYER && load_has(ld, full)) {
        norm->bias = load_vector(ld, full, norm->width, 0);
    }
}

static const Norm *load_norm(Loader *ld, const char *name, Norm norm, float plus) {
    if (name) {
        load_norm_weights(ld, name, &norm, plus);
    }
    Norm *copy = loader_alloc(ld, 1, sizeof *copy);
    if (copy) {
        *copy = norm;
    }
    return copy;
}

const Norm *load_rms(Loader *ld, const char *name, int64_t width, float eps) {
    return load_norm(ld, name, (Norm){.kind = NORM_RMS, .width = width, .eps = eps}, 0);
}

const Norm *load_rms_plus(Loader *ld, const char *name, int64_t width, float eps, float plus) {
    return load_norm(ld, name, (Norm){.kind = NORM_RMS, .width = width, .eps = eps}, plus);
}

const Norm *load_rms_plus_one(Loader *ld, const char *name, int64_t width, float eps) {
    return load_rms_plus(ld, name, width, eps, 1);
}

const Norm *load_layer_norm_plus(Loader *ld, const char *name, int64_t width, float eps, float plus) {
    return load_norm(ld, name, (Norm){.kind = NORM_LAYER, .width = width, .eps = eps}, plus);
}

const Norm *load_layer_norm(Loader *ld, const char *name, int64_t width, float eps) {
    return load_layer_norm_plus(ld, name, width, eps, 0);
}

const Norm *load_rms_times(Loader *ld, const char *name, int64_t width, float eps, float factor) {
    const float *from = load_vector(ld, name, width, 0);
    float *weight = loader_alloc(ld, (size_t)width, sizeof *weight);
    for (int64_t i = 0; from && weight && i < width; i++) weight[i] = factor * from[i];
    return load_norm(ld, NULL, (Norm){.kind = NORM_RMS, .width = width, .eps = eps, .weight = weight}, 0);
}

static const float *vector_reordered(Loader *ld, const char *name, const char *part, int64_t width, const int *order) {
    char full[PART_SIZE];
    snprintf(full, sizeof full, "%s.%s", name, part);
    const float *from = load_vector(ld, full, width, 0);
    float *to = loader_alloc(ld, (size_t)width, sizeof *to);
    for (int64_t i = 0; from && to && i < width; i++) to[i] = from[order[i]];
    return to;
}

const Norm *load_rms_reordered(Loader *ld, const char *name, int64_t width, float eps, const int *order) {
    const Norm norm = {
        .kind = NORM_RMS, .width = width, .eps = eps, .weight = vector_reordered(ld, name, "weight", width, order)};
    return load_norm(ld, NULL, norm, 0);
}

const Norm *load_layer_norm_reordered(Loader *ld, const char *name, int64_t width, float eps, const int *order) {
    const Norm norm = {.kind = NORM_LAYER,
        .width = width,
        .eps = eps,
        .weight = vector_reordered(ld, name, "weight", width, order),
        .bias = vector_reordered(ld, name, "bias", width, order)};
    return load_norm(ld, NULL, norm, 0);
}

static float load_scalar(Loader *ld, const char *name, const char *suffix) {
    char full[PART_SIZE];
    snprintf(full, sizeof full, "%s.%s", name, suffix);
    const float *scalar = load_vector(ld, full, 1, 0);
    return scalar ? *scalar : 0;
}

const Clip *load_clips(Loader *ld, const char *const *names, int count) {
    Clip *clips = loader_alloc(ld, (size_t)count, sizeof *clips);
    for (int i = 0; clips && i < count; i++)
        clips[i] = (Clip){load_scalar(ld, names[i], "input_min"), load_scalar(ld, names[i], "input_max"),
            load_scalar(ld, names[i], "output_min"), load_scalar(ld, names[i], "output_max")};
    return clips;
}

void load_leave(Loader *ld, const char *name) {
    static const char *const parts[] = {".weight", ".scales", ".biases", ".bias", ".qweight", ".qzeros", ".g_idx",
        ".weight_packed", ".weight_scale", ".weight_scale_inv", ".weight_zero_point", ".weight_g_idx", ".weight_shape"};
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const TensorEntry *entry = find(ld, name, parts[i]);
        if (entry) ld->tensor_used[entry - ld->source->checkpoint->entries] = 1;
    }
}

void load_skip(Loader *ld, const char *format, ...) {
    va_list arguments;
    CHECK(ld->skip_count < SKIP_MAX);
    va_start(arguments, format);
    vsnprintf(ld->skip[ld->skip_count++], sizeof ld->skip[0], format, arguments);
    va_end(arguments);
}

void load_layers(Loader *ld, Spec *spec) {
    load_require(ld, spec->layer_count <= LAYERS_MAX, "num_hidden_layers is %d, at most %d can be", spec->layer_count,
        LAYERS_MAX);
    spec->layers = loader_alloc(ld, (size_t)spec->layer_count, sizeof *spec->layers);
    if (!spec->layers) {
        spec->layer_count = 0;
    }
}

bool load_has_part(const Loader *ld, const char *part) {
    const Checkpoint *checkpoint = ld->source->checkpoint;
    for (size_t i = 0; i < checkpoint->entry_count; i++)
        if (memmem(checkpoint->entries[i].name.data, checkpoint->entries[i].name.size, part, strlen(part))) return true;
    return false;
}

static bool is_skipped(const Loader *ld, Slice name) {
    for (int i = 0; i < ld->skip_count; i++) {
        if (memmem(name.data, name.size, ld->skip[i], strlen(ld->skip[i]))) {
            return true;
        }
    }
    return memmem(name.data, name.size, "rotary_emb.inv_freq", strlen("rotary_emb.inv_freq")) != NULL;
}

/* Beginnings of the names of tensors that a text model does not have. */
static const char *const media[] = {"audio_tower.", "connector.", "embed_audio.", "embed_vision.", "mm_projector.",
    "model.audio_tower.", "model.connector.", "model.embed_audio.", "model.embed_vision.",
    "model.multi_modal_projector.", "model.vision_embedder.", "model.vision_model.", "model.vision_tower.",
    "model.visual.", "model.vision_adapter.", "model.vision_projection.", "multi_modal_projector.", "vision_adapter.",
    "vision_embedder.", "vision_model.", "vision_projection.", "vision_tower.", "visual.", "vit_large_projector."};

bool load_is_media(Slice name) {
    for (size_t m = 0; m < COUNT_OF(media); m++)
        if (slice_starts(name, slice_of(media[m]))) return true;
    return false;
}

static bool is_zero(const Tensor *t) {
    const uint8_t *bytes = t->data;
    for (size_t i = 0; bytes && i < t->bytes; i++)
        if (bytes[i]) return false;
    return true;
}

/* A bias beside a matrix that is used: what is computed would lack it. Some files have biases of zeros. */
static bool is_missed_bias(const Loader *ld, const TensorEntry *bias) {
    const Slice name = bias->name;
    const Slice end = SLICE(".bias");
    char matrix[NAME_SIZE];
    if (name.size <= end.size || name.size + sizeof ".weight" > sizeof matrix) return false;
    if (memcmp(name.data + name.size - end.size, end.data, end.size) != 0) return false;
    snprintf(matrix, sizeof matrix, "%.*s.weight", (int)(name.size - end.size), name.data);
    const TensorEntry *entry = checkpoint_find(ld->source->checkpoint, matrix);
    return entry && ld->tensor_used[entry - ld->source->checkpoint->entries] && !is_zero(&bias->tensor);
}

void loader_check_tensors(Loader *ld) {
    size_t unused = 0, left_out = 0;
    Slice first = {0};
    for (size_t i = 0; i < ld->source->checkpoint->entry_count; i++) {
        const TensorEntry *entry = &ld->source->checkpoint->entries[i];
        if (ld->tensor_used[i] || is_skipped(ld, entry->name)) continue;
        if (ld->text_part && load_is_media(entry->name)) {
            left_out++;
            continue;
        }
        load_require(ld, !is_missed_bias(ld, entry),
            "it does not say that %s has biases, or in a field that is not known here, but the file has %.*s",
            ld->family, SLICE_SHOWN(entry->name));
        first = unused++ ? first : entry->name;
    }
    if (ld->source->record) ld->source->record->unused = unused;
    if (left_out)
        loader_warn(ld, "%zu tensors for images and sound are left out: %s is loaded %s", left_out, ld->family,
            ld->spec->vision || ld->spec->audio ? "without them" : "as a text model");
    if (unused) {
        loader_warn(ld, "%zu tensors of the file are not used by %s, the first is %.*s", unused, ld->family,
            SLICE_SHOWN(first));
    }
}
