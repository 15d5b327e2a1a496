/* Reading safetensors checkpoints (github.com/huggingface/safetensors, "Format"): u64 header size, JSON header, data.
 */
#include "tensor/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/json.h"

enum {
    HEADER_BYTES_MAX = 100 * 1000 * 1000, /* as in the reference implementation */
    HEADER_MEMORY_MAX = 1 << 30,          /* for its JSON nodes */
    INDEX_BYTES_MAX = 100 * 1000 * 1000,
    FILES_MAX = 512,
    SIZE_BYTES = 8,
};

#define INDEX_NAME "model.safetensors.index.json"

/* While one checkpoint is opened. */
typedef struct Opening {
    Checkpoint *checkpoint;
    const char *directory;
    size_t capacity; /* capacity of `entries` */
    Error *error;
} Opening;

/* --- One tensor of a header ------------------------------------------------------------------------------------ */

static bool dtype_parse(Slice name, DType *dtype) {
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (!slice_is(name, dtype_name((DType)i))) continue;
        *dtype = (DType)i;
        return true;
    }
    /* Eight-bit floats are scales or codes whose meaning the quantisation knows: bytes, as in MLX. */
    *dtype = DTYPE_U8;
    return slice_is(name, "F8_E4M3") || slice_is(name, "F8_E8M0");
}

static bool shape_parse(Tensor *tensor, const Json *shape, Error *error) {
    if (!shape || shape->type != JSON_ARRAY) {
        return fail(error, ERROR_FORMAT, "shape is %s, not an array", json_type_name(shape));
    }
    if (shape->size > TENSOR_RANK_MAX) {
        return fail(error, ERROR_UNSUPPORTED, "%u dimensions, more than %d", shape->size, TENSOR_RANK_MAX);
    }
    size_t bytes = dtype_bytes(tensor->dtype);
    bool fits = true, empty = false;
    for (JSON_EACH(dim, shape)) {
        if (dim->type != JSON_INTEGER || dim->integer < 0) {
            return fail(error, ERROR_FORMAT, "a dimension is not a whole number from 0 to 2^63-1");
        }
        tensor->shape[tensor->rank++] = dim->integer;
        if (dim->integer == 0) empty = true;
        fits = fits && size_mul(bytes, (size_t)dim->integer, &bytes);
    }
    if (!fits && !empty) return fail(error, ERROR_FORMAT, "the shape has more bytes than can be addressed");
    tensor->bytes = empty ? 0 : bytes;
    return true;
}

/* data: what follows the header, size bytes. */
static bool offsets_parse(Tensor *tensor, const Json *offsets, const uint8_t *data, size_t size, Error *error) {
    if (!offsets || offsets->type != JSON_ARRAY || offsets->size != 2) {
        return fail(error, ERROR_FORMAT, "data_offsets is not an array of two numbers");
    }
    const Json *begin = json_first(offsets), *end = json_next(begin);
    if (begin->type != JSON_INTEGER || end->type != JSON_INTEGER || begin->integer < 0 ||
        end->integer < begin->integer) {
        return fail(error, ERROR_FORMAT, "data_offsets are not two ascending numbers");
    }
    if ((uint64_t)end->integer > size) {
        return fail(error, ERROR_FORMAT, "the data ends at %lld, behind the %zu bytes that the file has",
            (long long)end->integer, size);
    }
    if ((uint64_t)(end->integer - begin->integer) != tensor->bytes) {
        return fail(error, ERROR_FORMAT, "shape and dtype make %zu bytes, data_offsets span %lld", tensor->bytes,
            (long long)(end->integer - begin->integer));
    }
    tensor->data = data + begin->integer;
    return true;
}

static bool tensor_parse(Tensor *tensor, const Json *info, const uint8_t *data, size_t size, Error *error) {
    if (info->type != JSON_OBJECT) return fail(error, ERROR_FORMAT, "%s, not an object", json_type_name(info));
    const Json *dtype = json_get(info, "dtype");
    if (!dtype || dtype->type != JSON_STRING) {
        return fail(error, ERROR_FORMAT, "dtype is %s, not a string", json_type_name(dtype));
    }
    if (!dtype_parse(json_slice(dtype), &tensor->dtype)) {
        return fail(error, ERROR_UNSUPPORTED, "dtype %.*s", SLICE_SHOWN(json_slice(dtype)));
    }
    return shape_parse(tensor, json_get(info, "shape"), error) &&
        offsets_parse(tensor, json_get(info, "data_offsets"), data, size, error);
}

/* --- One file -------------------------------------------------------------------------------------------------- */

static bool entries_reserve(Opening *o, size_t more) {
    Checkpoint *c = o->checkpoint;
    size_t need;
    if (!size_add(c->entry_count, more, &need)) return false;
    if (need <= o->capacity) return true;
    size_t capacity = need + need / 2;
    TensorEntry *grown = arena_alloc(&c->arena, capacity, sizeof *grown);
    if (!grown) return false;
    if (c->entry_count) memcpy(grown, c->entries, c->entry_count * sizeof *grown);
    c->entries = grown;
    o->capacity = capacity;
    return true;
}

static bool entry_add(Opening *o, Slice name, Tensor tensor, int file) {
    Checkpoint *c = o->checkpoint;
    char *copy = arena_copy(&c->arena, name);
    if (!copy) return fail(o->error, ERROR_MEMORY, "no memory for its name");
    c->entries[c->entry_count++] = (TensorEntry){
        .name = {copy, name.size},
        .tensor = tensor,
        .file = file,
        .offset = (uint64_t)((const uint8_t *)tensor.data - c->files[file].data),
    };
    return true;
}

static int entry_order(const void *a, const void *b) {
    const TensorEntry *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->tensor.bytes != y->tensor.bytes) return x->tensor.bytes < y->tensor.bytes ? -1 : 1;
    size_t size = x->name.size < y->name.size ? x->name.size : y->name.size;
    int order = memcmp(x->name.data, y->name.data, size);
    return order ? order : (x->name.size > y->name.size) - (x->name.size < y->name.size);
}

/* Gaps are harmless and occur (alignment); two tensors in the same bytes never do. */
static bool overlaps_check(Opening *o, size_t first) {
    Checkpoint *c = o->checkpoint;
    if (c->entry_count == first) return true;
    qsort(c->entries + first, c->entry_count - first, sizeof *c->entries, entry_order);
    for (size_t i = first + 1; i < c->entry_count; i++) {
        const TensorEntry *a = &c->entries[i - 1], *b = &c->entries[i];
        if (a->offset + a->tensor.bytes <= b->offset) continue;
        return fail(
            o->error, ERROR_FORMAT, "tensors %.*s and %.*s overlap", SLICE_SHOWN(a->name), SLICE_SHOWN(b->name));
    }
    return true;
}

static bool header_read(Opening *o, Arena *scratch, int file) {
    const FileMap *map = &o->checkpoint->files[file];
    uint64_t header_size;
    if (map->size < SIZE_BYTES) return fail(o->error, ERROR_FORMAT, "%zu bytes, too short for a header", map->size);
    memcpy(&header_size, map->data, SIZE_BYTES);
    if (header_size > HEADER_BYTES_MAX || header_size > map->size - SIZE_BYTES) {
        return fail(o->error, ERROR_FORMAT, "a header of %llu bytes in a file of %zu", (unsigned long long)header_size,
            map->size);
    }
    Slice text = {(const char *)map->data + SIZE_BYTES, (size_t)header_size};
    const Json *header = json_parse(scratch, text, o->error);
    if (!header) return fail_while(o->error, "header");
    if (header->type != JSON_OBJECT) {
        return fail(o->error, ERROR_FORMAT, "the header is %s, not an object", json_type_name(header));
    }
    if (!entries_reserve(o, header->size)) return fail(o->error, ERROR_MEMORY, "no memory for its tensors");
    size_t first = o->checkpoint->entry_count, before = SIZE_BYTES + (size_t)header_size;
    for (JSON_EACH_PAIR(key, value, header)) {
        Slice name = json_slice(key);
        if (slice_is(name, "__metadata__")) continue;
        Tensor tensor = {0};
        if (memchr(name.data, 0, name.size)) return fail(o->error, ERROR_FORMAT, "a tensor's name holds a NUL byte");
        if (!tensor_parse(&tensor, value, map->data + before, map->size - before, o->error) ||
            !entry_add(o, name, tensor, file)) {
            return fail_while(o->error, "tensor %.*s", SLICE_SHOWN(name));
        }
    }
    return overlaps_check(o, first);
}

static bool file_add(Opening *o, const char *name) {
    Checkpoint *c = o->checkpoint;
    int file = c->file_count;
    char *path = arena_printf(&c->arena, "%s/%s", o->directory, name);
    if (!path) return fail(o->error, ERROR_MEMORY, "no memory to open %s", name);
    if (!file_map(&c->files[file], path, o->error)) return false;
    c->paths[file] = path;
    c->file_count++;
    Arena scratch = {.limit = HEADER_MEMORY_MAX};
    bool ok = header_read(o, &scratch, file);
    arena_free(&scratch);
    return ok || fail_while(o->error, "%s", path);
}

/* --- Which files ----------------------------------------------------------------------------------------------- */

static int name_order(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool files_add(Opening *o, char **names, int count) {
    Checkpoint *c = o->checkpoint;
    c->files = arena_alloc(&c->arena, (size_t)count, sizeof *c->files);
    c->paths = arena_alloc(&c->arena, (size_t)count, sizeof *c->paths);
    if (!c->files || !c->paths) return fail(o->error, ERROR_MEMORY, "no memory to open %s", o->directory);
    qsort(names, (size_t)count, sizeof *names, name_order);
    for (int i = 0; i < count; i++) {
        if (!file_add(o, names[i])) return false;
    }
    return true;
}

/* A shard lies in the checkpoint's own directory: anything that could lead elsewhere is refused. */
static bool shard_name_valid(Slice name) {
    Slice end = SLICE(".safetensors");
    if (name.size <= end.size || name.size > 255 || name.data[0] == '.') return false;
    if (memchr(name.data, '/', name.size) || memchr(name.data, '\\', name.size) || memchr(name.data, 0, name.size)) {
        return false;
    }
    return memcmp(name.data + name.size - end.size, end.data, end.size) == 0;
}

/* The distinct shards named by the index. */
static bool shards_collect(Opening *o, Map *seen, const Json *weight_map, char **names, int *count) {
    for (JSON_EACH_PAIR(key, value, weight_map)) {
        Slice shard = value->type == JSON_STRING ? json_slice(value) : slice_of(json_type_name(value));
        if (value->type != JSON_STRING || !shard_name_valid(shard)) {
            return fail(o->error, ERROR_FORMAT, "weight_map.%.*s: \"%.*s\" is not the name of a shard beside the index",
                SLICE_SHOWN(json_slice(key)), SLICE_SHOWN(shard));
        }
        if (map_get(seen, shard, NULL)) continue;
        if (*count == FILES_MAX) return fail(o->error, ERROR_LIMIT, "more than %d shards", FILES_MAX);
        char *name = arena_copy(&o->checkpoint->arena, shard);
        if (!name || !map_put(seen, shard, 0)) return fail(o->error, ERROR_MEMORY, "no memory for the shards");
        names[(*count)++] = name;
    }
    return *count > 0 || fail(o->error, ERROR_FORMAT, "weight_map names no shard");
}

static bool index_check(const Opening *o, const Json *weight_map) {
    for (JSON_EACH_PAIR(key, value, weight_map)) {
        uint64_t index;
        if (map_get(&o->checkpoint->by_name, json_slice(key), &index)) continue;
        return fail(o->error, ERROR_NOT_FOUND, "weight_map.%.*s: no shard has this tensor (the index says %.*s)",
            SLICE_SHOWN(json_slice(key)), SLICE_SHOWN(json_slice(value)));
    }
    return true;
}

static bool names_index(Opening *o) {
    Checkpoint *c = o->checkpoint;
    if (!map_reserve(&c->by_name, c->entry_count)) return fail(o->error, ERROR_MEMORY, "no memory for the names");
    for (size_t i = 0; i < c->entry_count; i++) {
        const TensorEntry *entry = &c->entries[i];
        uint64_t other;
        if (map_get(&c->by_name, entry->name, &other)) {
            return fail(o->error, ERROR_FORMAT, "tensor %.*s is in %s and again in %s", SLICE_SHOWN(entry->name),
                c->paths[c->entries[other].file], c->paths[entry->file]);
        }
        if (!map_put(&c->by_name, entry->name, i)) return fail(o->error, ERROR_MEMORY, "no memory for the names");
    }
    return true;
}

static bool index_open(Opening *o, const char *path, Arena *scratch, Buffer *text, Map *seen) {
    if (!file_read(path, INDEX_BYTES_MAX, text, o->error)) return false;
    const Json *root = json_parse(scratch, buffer_view(text), o->error);
    if (!root) return fail_while(o->error, "%s", path);
    const Json *weight_map = json_get(root, "weight_map");
    if (!weight_map || weight_map->type != JSON_OBJECT) {
        return fail(o->error, ERROR_FORMAT, "%s: weight_map is %s, not an object", path, json_type_name(weight_map));
    }
    char *names[FILES_MAX];
    int count = 0;
    if (!shards_collect(o, seen, weight_map, names, &count)) return fail_while(o->error, "%s", path);
    if (!files_add(o, names, count) || !names_index(o)) return false;
    return index_check(o, weight_map) || fail_while(o->error, "%s", path);
}

static bool open_with_index(Opening *o, const char *path) {
    Arena scratch = {.limit = HEADER_MEMORY_MAX};
    Buffer text = {0};
    Map seen = {0};
    bool ok = index_open(o, path, &scratch, &text, &seen);
    map_free(&seen);
    buffer_free(&text);
    arena_free(&scratch);
    return ok;
}

static bool names_list(Opening *o, DIR *directory, char **names, int *count) {
    for (struct dirent *item; (item = readdir(directory));) {
        Slice name = slice_of(item->d_name);
        if (!slice_starts(name, SLICE("model")) || !shard_name_valid(name)) continue;
        if (*count == FILES_MAX) return fail(o->error, ERROR_LIMIT, "%s: more than %d shards", o->directory, FILES_MAX);
        names[*count] = arena_copy(&o->checkpoint->arena, name);
        if (!names[(*count)++]) return fail(o->error, ERROR_MEMORY, "no memory to open %s", o->directory);
    }
    if (*count) return true;
    return fail(o->error, ERROR_NOT_FOUND, "%s holds no model*.safetensors", o->directory);
}

static bool open_by_listing(Opening *o) {
    DIR *directory = opendir(o->directory);
    if (!directory) return fail(o->error, ERROR_NOT_FOUND, "cannot open %s: %s", o->directory, strerror(errno));
    char *names[FILES_MAX];
    int count = 0;
    bool ok = names_list(o, directory, names, &count);
    closedir(directory);
    return ok && files_add(o, names, count) && names_index(o);
}

bool checkpoint_open(Checkpoint *checkpoint, const char *directory, Error *error) {
    *checkpoint = (Checkpoint){0};
    Opening opening = {.checkpoint = checkpoint, .directory = directory, .error = error};
    char *index = arena_printf(&checkpoint->arena, "%s/%s", directory, INDEX_NAME);
    bool ok = index != NULL;
    if (!ok) {
        fail(error, ERROR_MEMORY, "no memory to open %s", directory);
    } else {
        ok = file_exists(index) ? open_with_index(&opening, index) : open_by_listing(&opening);
    }
    if (!ok) checkpoint_close(checkpoint);
    return ok;
}

bool checkpoint_open_file(Checkpoint *checkpoint, const char *directory, const char *name, Error *error) {
    *checkpoint = (Checkpoint){0};
    Opening opening = {.checkpoint = checkpoint, .directory = directory, .error = error};
    char *copy = arena_copy(&checkpoint->arena, slice_of(name));
    const bool ok = copy ? files_add(&opening, &copy, 1) && names_index(&opening)
                         : fail(error, ERROR_MEMORY, "no memory to open %s", directory);
    if (!ok) checkpoint_close(checkpoint);
    return ok;
}

void checkpoint_close(Checkpoint *checkpoint) {
    for (int i = 0; i < checkpoint->file_count; i++) file_unmap(&checkpoint->files[i]);
    map_free(&checkpoint->by_name);
    arena_free(&checkpoint->arena);
    *checkpoint = (Checkpoint){0};
}

const TensorEntry *checkpoint_find(const Checkpoint *checkpoint, const char *name) {
    uint64_t index;
    return map_get(&checkpoint->by_name, slice_of(name), &index) ? &checkpoint->entries[index] : NULL;
}

const char *checkpoint_damaged(const Checkpoint *checkpoint) {
    for (int i = 0; i < checkpoint->file_count; i++) {
        if (file_damaged(&checkpoint->files[i])) return checkpoint->paths[i];
    }
    return NULL;
}
