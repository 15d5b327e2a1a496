#include "hub/tree.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "hub/fault.h"

enum { TREE_FILES_MAX = 100000, TREE_PAGES_MAX = 1000, TREE_BYTES_MAX = 256 << 20, FORMAT_VERSION = 1 };

void tree_free(HubTree *tree) {
    arena_free(&tree->arena);
    free(tree->files);
    *tree = (HubTree){0};
}

bool tree_add(HubTree *tree, const HubFile *file, Error *error) {
    if (tree->count == TREE_FILES_MAX) return fail(error, ERROR_LIMIT, "more than %d files", TREE_FILES_MAX);
    if (tree->count == tree->capacity) {
        const size_t capacity = tree->capacity ? tree->capacity * 2 : 64;
        HubFile *files = realloc(tree->files, capacity * sizeof *files);
        if (!files) return fail(error, ERROR_MEMORY, "no memory for a list of files");
        tree->files = files;
        tree->capacity = capacity;
    }
    HubFile *to = &tree->files[tree->count++];
    *to = *file;
    const char **texts[] = {&to->path, &to->etag, &to->oid, &to->xet};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (!*texts[i]) continue;
        *texts[i] = arena_copy(&tree->arena, slice_of(*texts[i]));
        if (!*texts[i]) return fail(error, ERROR_MEMORY, "no memory for a list of files");
    }
    return true;
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const HubFile *)a)->path, ((const HubFile *)b)->path);
}

void tree_sort(HubTree *tree) {
    if (tree->count) qsort(tree->files, tree->count, sizeof *tree->files, by_path);
}

const HubFile *tree_find(const HubTree *tree, Slice path) {
    size_t low = 0, high = tree->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const Slice here = slice_of(tree->files[middle].path);
        const int order = memcmp(here.data, path.data, here.size < path.size ? here.size : path.size);
        if (order == 0 && here.size == path.size) return &tree->files[middle];
        if (order < 0 || (order == 0 && here.size < path.size))
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* --- From JSON --------------------------------------------------------------------------------------------------- */

/* A hash, or NULL when the key is absent; *ok becomes false when it is no hash of that length. */
static const char *hash_of(const Json *object, const char *key, size_t size, char *text, bool *ok) {
    const Json *value = json_get(object, key);
    if (!value || value->type == JSON_NULL) return NULL;
    if (value->type != JSON_STRING || !hub_is_hex(json_slice(value), size)) {
        *ok = false;
        return NULL;
    }
    memcpy(text, value->string, size);
    text[size] = '\0';
    return text;
}

static int64_t size_of(const Json *object, const char *key, bool *ok) {
    const Json *value = json_get(object, key);
    *ok = *ok && value && value->type == JSON_INTEGER && value->integer >= 0;
    return *ok ? value->integer : 0;
}

enum { SHA1_DIGITS = 40, SHA256_DIGITS = 64 };

/* sha256, lfs_size: NULL when it is a small file. */
static bool add_file(HubTree *tree, Slice path, const Json *size, const Json *object, const char *oid_key,
    const Json *lfs, const char *sha_key, const char *lfs_size_key, const char *xet_key, Error *error) {
    char name[HUB_FILE_MAX], oid[SHA1_DIGITS + 1], sha[SHA256_DIGITS + 1], xet[SHA256_DIGITS + 1];
    if (!hub_path_valid(path) || memchr(path.data, '\0', path.size))
        return fail(error, ERROR_FORMAT, "a file called \"%.*s\" is refused", SLICE_SHOWN(path));
    memcpy(name, path.data, path.size);
    name[path.size] = '\0';
    bool ok = size && size->type == JSON_INTEGER && size->integer >= 0;
    HubFile file = {.path = name, .size = ok ? size->integer : 0};
    file.oid = hash_of(object, oid_key, SHA1_DIGITS, oid, &ok);
    file.etag = file.oid;
    if (lfs && json_get(lfs, sha_key)) {
        file.etag = hash_of(lfs, sha_key, SHA256_DIGITS, sha, &ok);
        file.listed_size = file.size;
        file.size = size_of(lfs, lfs_size_key, &ok);
    }
    file.xet = hash_of(object, xet_key, SHA256_DIGITS, xet, &ok);
    if (!ok || !file.etag) return fail(error, ERROR_FORMAT, "%s: its size or its hash is none", name);
    return tree_add(tree, &file, error);
}

bool tree_add_page(HubTree *tree, Slice text, Error *error) {
    Arena arena = {0};
    const Json *root = json_parse(&arena, text, error);
    bool ok = root && (root->type == JSON_ARRAY || fail(error, ERROR_FORMAT, "%s, not an array", json_type_name(root)));
    if (ok) {
        for (JSON_EACH(entry, root)) {
            const Json *type = json_get(entry, "type"), *path = json_get(entry, "path");
            if (!type || type->type != JSON_STRING || !slice_is(json_slice(type), "file")) continue;
            ok = path && path->type == JSON_STRING &&
                add_file(tree, json_slice(path), json_get(entry, "size"), entry, "oid", json_get(entry, "lfs"), "oid",
                    "size", "xetHash", error);
            if (!path || path->type != JSON_STRING) fail(error, ERROR_FORMAT, "a file without a path");
            if (!ok) break;
        }
    }
    arena_free(&arena);
    return ok || fail_while(error, "the list of files");
}

bool tree_fetch(HttpClient *client, const HubName *name, const char *commit, HubTree *tree, Error *error) {
    Buffer url = {0}, body = {0};
    HttpHead head;
    *tree = (HubTree){0};
    buffer_printf(&url, "%s/api/models/%s/tree/%s?recursive=true", client->settings->endpoint, name->repo, commit);
    bool ok = true;
    for (int page = 0; ok; page++) {
        ok = !url.failed || fail(error, ERROR_MEMORY, "no memory for an address");
        ok = ok && http_get(client, url.data, &body, &head, error);
        if (ok && head.status != 200) ok = hub_fault(client, name, NULL, &head, error);
        ok = ok && tree_add_page(tree, buffer_view(&body), error);
        if (!ok || !head.next[0]) break;
        buffer_clear(&url);
        buffer_text(&url, head.next);
        if (page == TREE_PAGES_MAX) ok = fail(error, ERROR_LIMIT, "the list of files has no end");
    }
    buffer_free(&url);
    buffer_free(&body);
    tree_sort(tree);
    for (size_t i = 1; ok && i < tree->count; i++)
        if (!strcmp(tree->files[i - 1].path, tree->files[i].path))
            ok = fail(error, ERROR_FORMAT, "the list of files has %s twice", tree->files[i].path);
    if (!ok) tree_free(tree);
    return ok;
}

bool tree_read(const char *path, HubTree *tree, Error *error) {
    Arena arena = {0};
    Buffer text = {0};
    *tree = (HubTree){0};
    const Json *root =
        file_read(path, TREE_BYTES_MAX, &text, error) ? json_parse(&arena, buffer_view(&text), error) : NULL;
    const Json *version = json_get(root, "format_version"), *files = json_get(root, "files");
    bool ok = root != NULL;
    if (ok && (!version || version->type != JSON_INTEGER || version->integer != FORMAT_VERSION))
        ok = fail(error, ERROR_UNSUPPORTED, "%s: another format", path);
    if (ok && (!files || files->type != JSON_OBJECT)) ok = fail(error, ERROR_FORMAT, "%s: no files", path);
    if (ok) {
        for (JSON_EACH_PAIR(key, file, files)) {
            ok = add_file(tree, json_slice(key), json_get(file, "size"), file, "blob_id", file, "lfs_sha256",
                "lfs_size", "xet_hash", error);
            if (!ok) break;
        }
    }
    arena_free(&arena);
    buffer_free(&text);
    tree_sort(tree);
    if (!ok) tree_free(tree);
    return ok;
}

/* --- To JSON: as Python's json.dump(…, indent=1) writes it, all beyond ASCII escaped
 * ------------------------------------- */

static void write_ascii(Buffer *out, const char *text) {
    buffer_byte(out, '"');
    for (size_t size = strlen(text); size;) {
        uint32_t code;
        const int length = utf8_decode(text, size, &code);
        if (code == '"' || code == '\\')
            buffer_printf(out, "\\%c", (char)code);
        else if (code >= 0x20 && code < 0x7F)
            buffer_byte(out, (char)code);
        else if (code < 0x10000)
            buffer_printf(out, "\\u%04x", code);
        else
            buffer_printf(
                out, "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF));
        text += abs(length);
        size -= (size_t)abs(length);
    }
    buffer_byte(out, '"');
}

static void write_file(Buffer *out, const HubFile *file) {
    const bool large = file->etag != file->oid && strlen(file->etag) == SHA256_DIGITS;
    buffer_text(out, "\n  ");
    write_ascii(out, file->path);
    buffer_printf(out, ": {\n   \"size\": %" PRId64 ",\n   \"blob_id\": \"%s\"", large ? file->listed_size : file->size,
        file->oid ? file->oid : "");
    if (large) buffer_printf(out, ",\n   \"lfs_sha256\": \"%s\",\n   \"lfs_size\": %" PRId64, file->etag, file->size);
    if (file->xet) buffer_printf(out, ",\n   \"xet_hash\": \"%s\"", file->xet);
    buffer_text(out, "\n  }");
}

bool tree_write(const char *path, const HubTree *tree, Error *error) {
    Buffer out = {0};
    buffer_printf(&out, "{\n \"format_version\": %d,\n \"files\": {", FORMAT_VERSION);
    for (size_t i = 0; i < tree->count; i++) {
        if (i) buffer_byte(&out, ',');
        write_file(&out, &tree->files[i]);
    }
    buffer_text(&out, tree->count ? "\n }\n}" : "}\n}");
    const bool ok = out.failed ? fail(error, ERROR_MEMORY, "no memory for a list of files")
                               : file_write_atomic(path, buffer_view(&out), error);
    buffer_free(&out);
    return ok;
}
