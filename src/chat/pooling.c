#include "chat/pooling.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

enum { FILE_BYTES_MAX = 1 << 20 };

/* NULL: an error, which is ERROR_NOT_FOUND where there is no such file. text is the tree's, too. */
static const Json *read_json(const char *directory, Slice name, Arena *arena, Buffer *text, Error *error) {
    Buffer path = {0};
    buffer_printf(&path, "%s/%.*s", directory, (int)name.size, name.data);
    const bool ok = path.failed ? fail(error, ERROR_MEMORY, "no memory for a path")
                                : file_read(path.data, FILE_BYTES_MAX, text, error);
    const Json *root = ok ? json_parse(arena, buffer_view(text), error) : NULL;
    if (ok && !root) fail_while(error, "%s", path.data);
    buffer_free(&path);
    return root;
}

static bool is_true(const Json *object, const char *name) {
    const Json *value = json_get(object, name);
    return value && value->type == JSON_BOOL && value->boolean;
}

/* Of 1_Pooling/config.json: several modes at once would be vectors one behind the other. */
static bool read_mode(const Json *config, Pooling *pooling, Error *error) {
    static const char *const others[] = {
        "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens"};
    static const struct {
        const char *name;
        Pooling pooling;
    } modes[] = {{"pooling_mode_lasttoken", POOLING_LAST}, {"pooling_mode_mean_tokens", POOLING_MEAN},
        {"pooling_mode_cls_token", POOLING_FIRST}};
    int count = 0;
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (is_true(config, others[i])) return fail(error, ERROR_UNSUPPORTED, "%s is not supported", others[i]);
    for (size_t i = 0; i < COUNT_OF(modes); i++)
        if (is_true(config, modes[i].name)) *pooling = modes[i].pooling, count++;
    if (count != 1)
        return fail(error, ERROR_UNSUPPORTED, "pooling by several of first token, last token and mean, or by none");
    return true;
}

/* Files made from GGUF have the module's config in modules.json itself. */
static bool read_pooling(const char *directory, const Json *module, Pooling *pooling, Error *error) {
    if (json_get(module, "config")) return read_mode(json_get(module, "config"), pooling, error);
    const Json *path = json_get(module, "path");
    Arena arena = {0};
    Buffer text = {0}, name = {0};
    const bool plain = path && path->type == JSON_STRING && path->size > 0 && !memchr(path->string, '/', path->size) &&
        !memchr(path->string, 0, path->size) && path->string[0] != '.';
    if (!plain) return fail(error, ERROR_FORMAT, "modules.json: the path of the pooling is no name of a folder");
    buffer_printf(&name, "%.*s/config.json", (int)path->size, path->string);
    const Json *config = name.failed ? NULL : read_json(directory, buffer_view(&name), &arena, &text, error);
    const bool ok = config && read_mode(config, pooling, error);
    if (config && !ok) fail_while(error, "%s/%s", directory, name.data);
    buffer_free(&name);
    buffer_free(&text);
    arena_free(&arena);
    return ok;
}

static bool ends_with(const Json *type, const char *end) {
    const size_t size = strlen(end);
    return type && type->type == JSON_STRING && type->size >= size &&
        !memcmp(type->string + type->size - size, end, size);
}

static bool read_modules(const char *directory, const Json *modules, Pooling *pooling, Error *error) {
    if (modules->type != JSON_ARRAY) return fail(error, ERROR_FORMAT, "%s/modules.json: no array", directory);
    for (JSON_EACH(module, modules)) {
        const Json *type = json_get(module, "type");
        if (ends_with(type, ".Transformer") || ends_with(type, ".Normalize"))
            continue; /* vectors have length 1 anyway */
        if (!ends_with(type, ".Pooling"))
            return fail(error, ERROR_UNSUPPORTED,
                "%s/modules.json: a module that is no Transformer, Pooling or "
                "Normalize is not supported",
                directory);
        if (!read_pooling(directory, module, pooling, error)) return false;
    }
    return true;
}

bool pooling_read(const char *directory, Pooling *pooling, Error *error) {
    Arena arena = {0};
    Buffer text = {0};
    Error why = {0};
    *pooling = POOLING_NONE;
    const Json *modules = read_json(directory, SLICE("modules.json"), &arena, &text, &why);
    const bool ok = modules ? read_modules(directory, modules, pooling, &why) : why.code == ERROR_NOT_FOUND;
    if (!ok) {
        *pooling = POOLING_NONE;
        if (error) *error = why;
    }
    buffer_free(&text);
    arena_free(&arena);
    return ok;
}
