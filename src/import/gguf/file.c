/* Reading a GGUF file (versions 2 and 3, little-endian): every length, count, type and offset is checked here. */
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/part_name.h"
#include "base/utf8.h"
#include "import/gguf/internal.h"

enum {
    MAGIC = 0x46554747, /* "GGUF" */
    KEYS_MAX = 1 << 16,
    TENSORS_MAX = 1 << 16,
    KEY_BYTES_MAX = 65535,
    NAME_BYTES_MAX = 256,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MAX = 1 << 20,
    KEY_TEXT_MAX = 256,
    PARTS_MAX = 1024,
};

typedef struct Reader {
    const uint8_t *at, *end;
    bool clip; /* the architecture is that of encoders */
    bool rest; /* this is a later part of a file, whose metadata is that of the first one */
    Error *error;
} Reader;

static const int kind_bytes[GGUF_KIND_COUNT] = {
    [GGUF_U8] = 1,
    [GGUF_I8] = 1,
    [GGUF_U16] = 2,
    [GGUF_I16] = 2,
    [GGUF_U32] = 4,
    [GGUF_I32] = 4,
    [GGUF_F32] = 4,
    [GGUF_BOOL] = 1,
    [GGUF_U64] = 8,
    [GGUF_I64] = 8,
    [GGUF_F64] = 8,
};

static bool fail_short(Reader *reader, const char *what) {
    return fail(reader->error, ERROR_FORMAT, "the file ends within %s", what);
}

static bool read_bytes(Reader *reader, void *out, size_t size, const char *what) {
    if (size > (size_t)(reader->end - reader->at)) return fail_short(reader, what);
    memcpy(out, reader->at, size);
    reader->at += size;
    return true;
}

static bool read_string(Reader *reader, Slice *out, const char *what) {
    uint64_t size = 0;
    if (!read_bytes(reader, &size, sizeof size, what)) return false;
    if (size > (size_t)(reader->end - reader->at)) return fail_short(reader, what);
    *out = (Slice){(const char *)reader->at, (size_t)size};
    reader->at += size;
    return true;
}

/* --- Metadata -------------------------------------------------------------------------------------------------- */

static bool read_elements(Reader *reader, const GgufValue *value) {
    if (value->kind == GGUF_STRING) {
        for (uint64_t i = 0; i < value->count; i++) {
            Slice text;
            if (!read_string(reader, &text, "its strings")) return false;
        }
        return true;
    }
    size_t bytes;
    if (!size_mul((size_t)kind_bytes[value->kind], value->count, &bytes) ||
        bytes > (size_t)(reader->end - reader->at)) {
        return fail_short(reader, "its values");
    }
    reader->at += bytes;
    return true;
}

static bool read_value(Reader *reader, GgufValue *value) {
    uint32_t kind = 0;
    if (!read_bytes(reader, &kind, sizeof kind, "its type")) return false;
    value->count = 1;
    value->array = kind == GGUF_ARRAY;
    if (value->array &&
        (!read_bytes(reader, &kind, sizeof kind, "its type") ||
            !read_bytes(reader, &value->count, sizeof value->count, "its count"))) {
        return false;
    }
    if (value->array && kind == GGUF_ARRAY) return fail(reader->error, ERROR_UNSUPPORTED, "an array of arrays");
    if (kind >= GGUF_KIND_COUNT) return fail(reader->error, ERROR_FORMAT, "type %u does not exist", kind);
    value->kind = (GgufKind)kind;
    value->data = reader->at;
    return read_elements(reader, value);
}

static bool read_values(GgufFile *file, Reader *reader, size_t count) {
    file->values = arena_alloc(&file->arena, count, sizeof *file->values);
    if (!file->values || !map_reserve(&file->by_key, count))
        return fail(reader->error, ERROR_MEMORY, "no memory for %zu keys", count);
    for (size_t i = 0; i < count; i++) {
        GgufValue *value = &file->values[i];
        if (!read_string(reader, &value->key, "the metadata")) return false;
        if (value->key.size > KEY_BYTES_MAX || !utf8_valid(value->key)) {
            return fail(reader->error, ERROR_FORMAT, "key %zu of the metadata is not a text of at most %d bytes", i,
                KEY_BYTES_MAX);
        }
        if (!read_value(reader, value)) return fail_while(reader->error, "%.*s", SLICE_SHOWN(value->key));
        if (map_get(&file->by_key, value->key, NULL)) {
            return fail(reader->error, ERROR_FORMAT, "%.*s: the key occurs twice", SLICE_SHOWN(value->key));
        }
        if (!map_put(&file->by_key, value->key, i)) return fail(reader->error, ERROR_MEMORY, "no memory for its keys");
        file->value_count = i + 1;
    }
    return true;
}

const GgufValue *gguf_value(const GgufFile *file, const char *key) {
    char text[KEY_TEXT_MAX];
    Slice slice = slice_of(key);
    if (key[0] == '.') {
        int size = snprintf(text, sizeof text, "%.*s%s", SLICE_ARGS(file->architecture), key);
        if (size >= KEY_TEXT_MAX) return NULL;
        slice = (Slice){text, (size_t)size};
    }
    uint64_t index;
    return map_get(&file->by_key, slice, &index) ? &file->values[index] : NULL;
}

static bool element_integer(const GgufValue *value, uint64_t index, int64_t *out) {
    const uint8_t *at = value->data + index * (size_t)kind_bytes[value->kind];
    uint64_t bits = 0;
    memcpy(&bits, at, (size_t)kind_bytes[value->kind]);
    switch (value->kind) {
    case GGUF_I8: *out = (int8_t)bits; return true;
    case GGUF_I16: *out = (int16_t)bits; return true;
    case GGUF_I32: *out = (int32_t)bits; return true;
    case GGUF_U64: *out = (int64_t)bits; return bits <= INT64_MAX;
    case GGUF_I64:
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32: *out = (int64_t)bits; return true;
    default: return false;
    }
}

bool gguf_integer(const GgufFile *file, const char *key, int64_t *out) {
    const GgufValue *value = gguf_value(file, key);
    if (!value || value->count == 0 || kind_bytes[value->kind] == 0 || !element_integer(value, 0, out)) return false;
    for (uint64_t i = 1; i < value->count; i++) {
        int64_t other;
        if (!element_integer(value, i, &other) || other != *out) return false;
    }
    return true;
}

bool gguf_layers_integer(const GgufFile *file, const char *key, int64_t *out) {
    const GgufValue *value = gguf_value(file, key);
    if (!value || value->count == 0 || kind_bytes[value->kind] == 0) return false;
    *out = 0;
    for (uint64_t i = 0; i < value->count; i++) {
        int64_t one;
        if (!element_integer(value, i, &one) || (one != 0 && *out != 0 && one != *out)) return false;
        *out = one != 0 ? one : *out;
    }
    return true;
}

bool gguf_element(const GgufFile *file, const char *key, uint64_t index, uint64_t count, int64_t *out) {
    const GgufValue *value = gguf_value(file, key);
    if (!value || kind_bytes[value->kind] == 0 || (value->array && value->count != count)) return false;
    return element_integer(value, value->array ? index : 0, out);
}

bool gguf_flag(const GgufFile *file, const char *key, uint64_t index, uint64_t count, bool *out) {
    const GgufValue *value = gguf_value(file, key);
    int64_t number = 0;
    if (!value || !value->array || value->count != count) return false;
    if (value->kind == GGUF_BOOL)
        number = value->data[index];
    else if (!gguf_element(file, key, index, count, &number))
        return false;
    *out = number != 0;
    return true;
}

bool gguf_number(const GgufFile *file, const char *key, double *out) {
    const GgufValue *value = gguf_value(file, key);
    int64_t integer;
    if (!value || value->array) return false;
    if (value->kind == GGUF_F32) {
        float number;
        memcpy(&number, value->data, sizeof number);
        *out = (double)number;
        return true;
    }
    if (value->kind == GGUF_F64) {
        memcpy(out, value->data, sizeof *out);
        return true;
    }
    if (!gguf_integer(file, key, &integer)) return false;
    *out = (double)integer;
    return true;
}

bool gguf_bool(const GgufFile *file, const char *key, bool *out) {
    const GgufValue *value = gguf_value(file, key);
    if (!value || value->array || value->kind != GGUF_BOOL) return false;
    *out = value->data[0] != 0;
    return true;
}

Slice gguf_string_next(const uint8_t **at) {
    uint64_t size;
    memcpy(&size, *at, sizeof size);
    Slice text = {(const char *)*at + sizeof size, (size_t)size};
    *at += sizeof size + size;
    return text;
}

bool gguf_string(const GgufFile *file, const char *key, Slice *out) {
    const GgufValue *value = gguf_value(file, key);
    if (!value || value->array || value->kind != GGUF_STRING) return false;
    const uint8_t *at = value->data;
    *out = gguf_string_next(&at);
    return true;
}

/* --- Tensors --------------------------------------------------------------------------------------------------- */

/* Dimensions come fastest first; three are a stack of matrices; more are accepted when they are 1, and of encoders of
 * images. */
static bool read_shape(Reader *reader, GgufTensor *tensor) {
    uint32_t rank = 0;
    if (!read_bytes(reader, &rank, sizeof rank, "its shape")) return false;
    if (rank == 0 || rank > GGUF_DIMS_MAX) return fail(reader->error, ERROR_FORMAT, "%u dimensions", rank);
    uint64_t dims[GGUF_DIMS_MAX] = {1, 1, 1, 1};
    if (!read_bytes(reader, dims, rank * sizeof dims[0], "its shape")) return false;
    if (dims[3] != 1 && !reader->clip) return fail(reader->error, ERROR_UNSUPPORTED, "more than three dimensions");
    for (int i = 0; i < GGUF_DIMS_MAX; i++)
        if (dims[i] == 0 || dims[i] > INT64_MAX)
            return fail(reader->error, ERROR_FORMAT, "a dimension of %llu", (unsigned long long)dims[i]);
    size_t rows;
    if (!size_mul((size_t)dims[1], (size_t)dims[2], &rows) || !size_mul(rows, (size_t)dims[3], &rows) ||
        rows > INT64_MAX)
        return fail(reader->error, ERROR_FORMAT, "the shape has more bytes than can be addressed");
    tensor->cols = (int64_t)dims[0];
    tensor->rows = (int64_t)rows;
    tensor->stack = dims[2] > 1 ? (int64_t)dims[2] : 0;
    tensor->rank = rank == 1 ? 1 : 2;
    tensor->dim_count = (int)rank;
    for (int i = 0; i < GGUF_DIMS_MAX; i++) tensor->dims[i] = (int64_t)dims[i];
    return true;
}

/* Integers are those of tables only: everything else is read as numbers of any kind. */
static bool is_table(Slice name) {
    const Slice end = SLICE(".ffn_gate_tid2eid.weight");
    return name.size > end.size && memcmp(name.data + name.size - end.size, end.data, end.size) == 0;
}

static bool read_type(Reader *reader, GgufTensor *tensor) {
    if (!read_bytes(reader, &tensor->type, sizeof tensor->type, "its type")) return false;
    tensor->info = gguf_type(tensor->type);
    if (!tensor->info) return fail(reader->error, ERROR_UNSUPPORTED, "type number %u is not known", tensor->type);
    if (!tensor->info->elements || (tensor->type == TYPE_I32 && !is_table(tensor->name))) {
        char known[256];
        gguf_type_list(known, sizeof known);
        return fail(
            reader->error, ERROR_UNSUPPORTED, "type %s cannot be converted (these can: %s)", tensor->info->name, known);
    }
    if (tensor->cols % tensor->info->elements) {
        return fail(reader->error, ERROR_FORMAT, "rows of %lld elements do not fill %s blocks of %d",
            (long long)tensor->cols, tensor->info->name, tensor->info->elements);
    }
    size_t row;
    if (!size_mul((size_t)(tensor->cols / tensor->info->elements), (size_t)tensor->info->bytes, &row) ||
        !size_mul(row, (size_t)tensor->rows, &tensor->bytes)) {
        return fail(reader->error, ERROR_FORMAT, "the shape has more bytes than can be addressed");
    }
    return true;
}

/* offset: from the start of the data, which is known only after the last of these entries. */
static bool read_tensor(Reader *reader, GgufTensor *tensor, uint64_t *offset) {
    return read_shape(reader, tensor) && read_type(reader, tensor) &&
        read_bytes(reader, offset, sizeof *offset, "its offset");
}

static bool read_tensors(GgufFile *file, Reader *reader, size_t count, uint64_t *offsets) {
    for (size_t i = 0; i < count; i++) {
        GgufTensor *tensor = &file->tensors[i];
        if (!read_string(reader, &tensor->name, "the list of tensors")) return false;
        if (tensor->name.size > NAME_BYTES_MAX || !utf8_valid(tensor->name) ||
            memchr(tensor->name.data, 0, tensor->name.size)) {
            return fail(reader->error, ERROR_FORMAT, "the name of tensor %zu is not a text of at most %d bytes", i,
                NAME_BYTES_MAX);
        }
        if (!read_tensor(reader, tensor, &offsets[i])) {
            return fail_while(reader->error, "tensor %.*s", SLICE_SHOWN(tensor->name));
        }
        if (map_get(&file->by_tensor, tensor->name, NULL)) {
            return fail(reader->error, ERROR_FORMAT, "tensor %.*s occurs twice", SLICE_SHOWN(tensor->name));
        }
        if (!map_put(&file->by_tensor, tensor->name, i))
            return fail(reader->error, ERROR_MEMORY, "no memory for its tensors");
        file->tensor_count = i + 1;
    }
    return true;
}

static bool place_tensors(GgufFile *file, Reader *reader, const uint64_t *offsets) {
    int64_t alignment = ALIGNMENT_DEFAULT;
    if (gguf_value(file, "general.alignment") && !gguf_integer(file, "general.alignment", &alignment)) {
        return fail(reader->error, ERROR_FORMAT, "general.alignment is not a whole number");
    }
    if (alignment <= 0 || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1))) {
        return fail(reader->error, ERROR_FORMAT, "general.alignment is %lld", (long long)alignment);
    }
    size_t used = (size_t)(reader->at - file->map.data), step = (size_t)alignment;
    size_t start = (used + step - 1) & ~(step - 1), room = start < file->map.size ? file->map.size - start : 0;
    for (size_t i = 0; i < file->tensor_count; i++) {
        GgufTensor *tensor = &file->tensors[i];
        if (offsets[i] % step) {
            return fail(reader->error, ERROR_FORMAT, "tensor %.*s: offset %llu is not a multiple of %lld",
                SLICE_SHOWN(tensor->name), (unsigned long long)offsets[i], (long long)alignment);
        }
        if (offsets[i] > room || tensor->bytes > room - offsets[i]) {
            return fail(reader->error, ERROR_FORMAT, "tensor %.*s: the file ends before its data does",
                SLICE_SHOWN(tensor->name));
        }
        tensor->data = file->map.data + start + offsets[i];
    }
    return true;
}

const GgufTensor *gguf_tensor(const GgufFile *file, const char *name) {
    uint64_t index;
    return map_get(&file->by_tensor, slice_of(name), &index) ? &file->tensors[index] : NULL;
}

static bool file_parse(GgufFile *file, Reader *reader) {
    uint32_t magic = 0, version = 0;
    uint64_t tensors = 0, keys = 0;
    if (!read_bytes(reader, &magic, sizeof magic, "the header")) return false;
    if (magic != MAGIC) return fail(reader->error, ERROR_FORMAT, "not a GGUF file");
    if (!read_bytes(reader, &version, sizeof version, "the header")) return false;
    if (version != 2 && version != 3) {
        return fail(reader->error, ERROR_UNSUPPORTED, "GGUF version %u (2 and 3 are read, little-endian)", version);
    }
    if (!read_bytes(reader, &tensors, sizeof tensors, "the header") ||
        !read_bytes(reader, &keys, sizeof keys, "the header")) {
        return false;
    }
    if (tensors > TENSORS_MAX || keys > KEYS_MAX) {
        return fail(reader->error, ERROR_LIMIT, "%llu tensors and %llu keys (at most %d and %d)",
            (unsigned long long)tensors, (unsigned long long)keys, TENSORS_MAX, KEYS_MAX);
    }
    if (!read_values(file, reader, (size_t)keys)) return false;
    reader->clip =
        gguf_string(file, "general.architecture", &file->architecture) && slice_is(file->architecture, "clip");
    uint64_t *offsets = arena_alloc(&file->arena, (size_t)tensors, sizeof *offsets);
    file->tensors = arena_alloc(&file->arena, (size_t)tensors, sizeof *file->tensors);
    if (!offsets || !file->tensors || !map_reserve(&file->by_tensor, (size_t)tensors)) {
        return fail(reader->error, ERROR_MEMORY, "no memory for its tensors");
    }
    if (!read_tensors(file, reader, (size_t)tensors, offsets) || !place_tensors(file, reader, offsets)) return false;
    return reader->rest || gguf_string(file, "general.architecture", &file->architecture) ||
        fail(reader->error, ERROR_FORMAT, "general.architecture is missing");
}

static bool open_one(GgufFile *file, const char *path, bool rest, Error *error) {
    *file = (GgufFile){0};
    if (!file_map(&file->map, path, error)) return false;
    Reader reader = {.at = file->map.data, .end = file->map.data + file->map.size, .rest = rest, .error = error};
    if (file->map.size ? file_parse(file, &reader) : fail(error, ERROR_FORMAT, "the file is empty")) return true;
    fail_while(error, "%s", path);
    gguf_close(file);
    return false;
}

/* --- Files in parts -------------------------------------------------------------------------------------------- */

/* 1 where the file does not say: it is whole. */
static int64_t part_count(const GgufFile *file) {
    int64_t count;
    return gguf_integer(file, "split.count", &count) && count > 1 ? count : 1;
}

static bool check_part(const GgufFile *part, const PartName *name, int number, Error *error) {
    int64_t own;
    if (!gguf_integer(part, "split.no", &own)) own = 0;
    if (part_count(part) == name->count && own == number - 1) return true;
    return fail(error, ERROR_FORMAT, "it is called part %d of %d, but split.no and split.count say %lld of %lld",
        number, name->count, (long long)own + 1, (long long)part_count(part));
}

/* A later part; *count grows by its tensors. */
static bool open_part(
    GgufFile *file, const char *first, const PartName *name, int number, size_t *count, Error *error) {
    Buffer path = {0};
    part_name_write(&path, first, name, number);
    GgufFile *part = &file->rest[file->rest_count];
    bool ok = path.failed ? fail(error, ERROR_MEMORY, "no memory for the path of a part")
        : file_exists(path.data)
        ? open_one(part, path.data, true, error)
        : fail(error, ERROR_NOT_FOUND, "%s: part %d of %d is missing", path.data, number, name->count);
    if (ok) {
        file->rest_count++;
        *count += part->tensor_count;
        ok = check_part(part, name, number, error) || fail_while(error, "%s", path.data);
    }
    buffer_free(&path);
    return ok;
}

/* Lists the tensors of all parts as the file's, which has `count` of them in all. */
static bool join_parts(GgufFile *file, size_t count, Error *error) {
    int64_t wanted;
    if (!gguf_integer(file, "split.tensors.count", &wanted) || (size_t)wanted != count)
        return fail(error, ERROR_FORMAT,
            "the parts have %zu tensors, which is not split.tensors.count: some are of another model", count);
    GgufTensor *all = arena_alloc(&file->arena, count, sizeof *all);
    if (!all || !map_reserve(&file->by_tensor, count)) return fail(error, ERROR_MEMORY, "no memory for its tensors");
    memcpy(all, file->tensors, file->tensor_count * sizeof *all);
    file->tensors = all;
    for (size_t p = 0; p < file->rest_count; p++)
        for (size_t i = 0; i < file->rest[p].tensor_count; i++) {
            const GgufTensor *tensor = &file->rest[p].tensors[i];
            if (map_get(&file->by_tensor, tensor->name, NULL))
                return fail(error, ERROR_FORMAT, "tensor %.*s is in two parts", SLICE_SHOWN(tensor->name));
            if (!map_put(&file->by_tensor, tensor->name, file->tensor_count))
                return fail(error, ERROR_MEMORY, "no memory for its tensors");
            file->tensors[file->tensor_count++] = *tensor;
        }
    return true;
}

static bool open_parts(GgufFile *file, const char *first, Error *error) {
    PartName name;
    size_t count = file->tensor_count;
    const long long parts = part_count(file);
    if (!part_name_parse(first, &name)) {
        return parts == 1 ||
            fail(error, ERROR_FORMAT, "%s: one of %lld parts, whose names must end in -00001-of-%05lld.gguf and so on",
                first, parts, parts);
    }
    if (!check_part(file, &name, 1, error)) return fail_while(error, "%s", first);
    if (name.count == 1) return true;
    if (name.count > PARTS_MAX)
        return fail(error, ERROR_LIMIT, "%s: %d parts (at most %d)", first, name.count, PARTS_MAX);
    file->rest = arena_alloc(&file->arena, (size_t)name.count - 1, sizeof *file->rest);
    if (!file->rest) return fail(error, ERROR_MEMORY, "no memory for its parts");
    for (int number = 2; number <= name.count; number++)
        if (!open_part(file, first, &name, number, &count, error)) return false;
    return join_parts(file, count, error) || fail_while(error, "%s", first);
}

bool gguf_open(GgufFile *file, const char *path, Error *error) {
    Buffer first = {0};
    *file = (GgufFile){0};
    part_name_first(&first, path);
    bool ok = !first.failed || fail(error, ERROR_MEMORY, "no memory for the path of a file");
    ok = ok && open_one(file, first.data, false, error);
    if (ok && !open_parts(file, first.data, error)) {
        ok = false;
        gguf_close(file);
    }
    buffer_free(&first);
    return ok;
}

bool gguf_damaged(const GgufFile *file) {
    bool damaged = file_damaged(&file->map);
    for (size_t i = 0; i < file->rest_count; i++) damaged |= file_damaged(&file->rest[i].map);
    return damaged;
}

void gguf_close(GgufFile *file) {
    for (size_t i = 0; i < file->rest_count; i++) gguf_close(&file->rest[i]);
    map_free(&file->by_key);
    map_free(&file->by_tensor);
    arena_free(&file->arena);
    file_unmap(&file->map);
    *file = (GgufFile){0};
}
