/* The outline of a model: its headers. Format: github.com/huggingface/safetensors, "Format". */
#include <fcntl.h>
#include <inttypes.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/math.h"
#include "base/memory.h"
#include "hub/choose.h"
#include "hub/commit.h"
#include "hub/fault.h"

enum {
    SIZE_BYTES = 8,          /* the header's size, in front of it */
    FIRST_BYTES = 128 << 10, /* asked for first: the whole header of most files */
    HEADER_BYTES_MAX = 64 << 20,
    SETTINGS_BYTES_MAX = 32 << 20,
};

typedef struct Outline {
    HttpClient client;
    const HubName *name;
    const char *directory;
    char commit[HUB_COMMIT_DIGITS + 1];
} Outline;

static bool ask(Outline *o, const HubFile *file, uint64_t begin, uint64_t size, Buffer *body, Error *error) {
    Buffer url = {0};
    HttpHead head = {0};
    buffer_printf(&url, "%s/%s/resolve/%s/", o->client.settings->endpoint, o->name->repo, o->commit);
    http_escape(&url, file->path, true);
    bool ok = !url.failed || fail(error, ERROR_MEMORY, "no memory for an address");
    ok = ok && http_get_part(&o->client, url.data, begin, size, body, &head, error);
    if (!ok && error->code == ERROR_LIMIT)
        fail(error, ERROR_UNSUPPORTED, "%s: the hub sends no parts of it", file->path);
    const bool whole = begin == 0 && size == (uint64_t)file->size;
    if (ok && head.status != 206 && !(head.status == 200 && whole))
        ok = head.status == 200 ? fail(error, ERROR_UNSUPPORTED, "%s: the hub sends no parts of it", file->path)
                                : hub_fault(&o->client, o->name, file->path, &head, error);
    if (ok && body->size != size) ok = fail(error, ERROR_FORMAT, "%s: the hub sends another part of it", file->path);
    buffer_free(&url);
    return ok;
}

/* The bytes, then a hole up to the size. */
static bool write_file(const Outline *o, const HubFile *file, Slice bytes, Error *error) {
    Buffer path = {0};
    buffer_printf(&path, "%s/%s", o->directory, file->path);
    const int to = path.failed ? -1 : open(path.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool ok = to >= 0;
    for (size_t at = 0; ok && at < bytes.size;) {
        const ssize_t written = write(to, bytes.data + at, bytes.size - at);
        ok = written > 0;
        at += ok ? (size_t)written : 0;
    }
    ok = ok && !ftruncate(to, (off_t)file->size);
    const int why = errno;
    if (to >= 0) close(to);
    if (!ok) fail(error, ERROR_IO, "cannot write the outline of %s: %s", file->path, strerror(why));
    buffer_free(&path);
    return ok;
}

static uint64_t size_of_header(const char *bytes) {
    uint64_t size = 0;
    for (int i = 0; i < SIZE_BYTES; i++) size |= (uint64_t)(unsigned char)bytes[i] << 8 * i;
    return size;
}

static bool outline_weights(Outline *o, const HubFile *file, Error *error) {
    Buffer bytes = {0}, rest = {0};
    const uint64_t size = (uint64_t)file->size, first = min_u64(size, FIRST_BYTES);
    bool ok = size > SIZE_BYTES || fail(error, ERROR_FORMAT, "%s is no safetensors file", file->path);
    ok = ok && ask(o, file, 0, first, &bytes, error);
    const uint64_t header = ok ? size_of_header(bytes.data) : 0;
    if (ok && (header > size - SIZE_BYTES || header > HEADER_BYTES_MAX))
        ok = fail(error, ERROR_FORMAT, "%s: a header of %" PRIu64 " bytes cannot be", file->path, header);
    if (ok && SIZE_BYTES + header > first) {
        ok = ask(o, file, first, SIZE_BYTES + header - first, &rest, error);
        bytes.limit = 0;
        buffer_append(&bytes, rest.data, rest.size);
        ok = ok && (!bytes.failed || fail(error, ERROR_MEMORY, "no memory for the header of %s", file->path));
    }
    ok = ok && write_file(o, file, (Slice){bytes.data, (size_t)(SIZE_BYTES + header)}, error);
    buffer_free(&bytes);
    buffer_free(&rest);
    return ok;
}

static bool outline_settings(Outline *o, const HubFile *file, Error *error) {
    Buffer bytes = {0};
    bool ok = (file->size > 0 && file->size <= SETTINGS_BYTES_MAX) ||
        fail(error, ERROR_LIMIT, "%s has %" PRId64 " bytes", file->path, file->size);
    ok = ok && ask(o, file, 0, (uint64_t)file->size, &bytes, error) && write_file(o, file, buffer_view(&bytes), error);
    buffer_free(&bytes);
    return ok;
}

static bool is_settings(const char *path) {
    static const char *const names[] = {"config.json", "generation_config.json", "preprocessor_config.json",
        "processor_config.json", "hf_quant_config.json", "model.safetensors.index.json"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!strcmp(path, names[i])) return true;
    return false;
}

static bool outline_files(Outline *o, const HubTree *tree, Error *error) {
    HubChoice choice;
    if (!choose_files(tree, o->name, memory_available(), &choice, error)) return false;
    bool ok = true;
    for (size_t i = 0; ok && i < choice.count; i++) {
        const HubFile *file = choice.files[i];
        if (choice.format == HUB_GGUF) {
            const HubFile hole = {.path = "model.gguf", .size = choose_gguf_bytes(tree, file)};
            ok = write_file(o, &hole, SLICE(""), error);
            break;
        } else if (is_settings(file->path)) {
            ok = outline_settings(o, file, error);
        } else if (hub_ends_with(slice_of(file->path), ".safetensors") && !strchr(file->path, '/')) {
            ok = outline_weights(o, file, error);
        }
    }
    choice_free(&choice);
    return ok;
}

bool hub_outline(const HubSettings *settings, const HubName *name, const char *directory, Error *error) {
    Outline o = {.name = name, .directory = directory};
    HubTree tree;
    bool unreachable;
    if (settings->offline) return fail(error, ERROR_USAGE, "HF_HUB_OFFLINE is set, so the hub is not asked");
    if (!http_open(&o.client, settings, NULL, error)) return false;
    bool ok = commit_ask(&o.client, name, o.commit, &unreachable, error) &&
        tree_fetch(&o.client, name, o.commit, &tree, error);
    if (ok) {
        ok = outline_files(&o, &tree, error);
        tree_free(&tree);
    }
    http_close(&o.client);
    return ok;
}
