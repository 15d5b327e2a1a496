#include "library/library.h"

#include <inttypes.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/part_name.h"
#include "import/gguf/gguf.h"

bool library_path(Buffer *path, Error *error) {
    const char *own = getenv("APUS_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own && own[0])
        buffer_printf(path, "%s/models", own);
    else if (xdg && xdg[0])
        buffer_printf(path, "%s/apus/models", xdg);
    else if (home && home[0])
        buffer_printf(path, "%s/.cache/apus/models", home);
    else
        return fail(error, ERROR_USAGE, "no cache directory: set HOME or APUS_CACHE");
    return !path->failed || fail(error, ERROR_MEMORY, "no memory for the path of the cache");
}

const char *library_calibrations(void) {
    static char path[4096];
    Buffer models = {0};
    const bool known = library_path(&models, NULL);
    const int size = known ? (int)models.size - (int)strlen("/models") : 0;
    snprintf(path, sizeof path, "%.*s/calibration", size, models.data ? models.data : "");
    buffer_free(&models);
    return known ? path : NULL;
}

static bool ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), tail = strlen(end);
    return length > tail && !strcmp(text + length - tail, end);
}

void library_name_of(const char *model, Buffer *name) {
    size_t end = strlen(model);
    while (end > 1 && model[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && model[start - 1] != '/') start--;
    PartName part;
    if (part_name_parse(model, &part) && part.stem > start)
        end = part.stem;
    else if (end - start > 5 && !strncmp(model + end - 5, ".gguf", 5))
        end -= 5;
    if (end - start == 1 && model[start] == '.')
        buffer_text(name, "model");
    else
        buffer_append(name, model + start, end - start);
}

/* One place in the cache per file: its name, and a checksum of its (first part's) full path against namesakes. */
bool library_conversion(const char *gguf, Buffer *directory, Error *error) {
    Buffer first = {0};
    part_name_first(&first, gguf);
    char *full = first.failed ? NULL : realpath(first.data, NULL);
    buffer_free(&first);
    if (!full) return fail(error, ERROR_NOT_FOUND, "%s: no such file", gguf);
    const uint64_t hash = checksum64(full, strlen(full));
    free(full);
    Buffer name = {0};
    library_name_of(gguf, &name);
    const bool ok = library_path(directory, error);
    buffer_printf(directory, "/compact-%s-%016" PRIx64, name.data ? name.data : "model", hash);
    const bool fits = !directory->failed && !name.failed;
    buffer_free(&name);
    return ok && (fits || fail(error, ERROR_MEMORY, "no memory for the path of a model"));
}

uint64_t library_gguf_bytes(const char *path) {
    PartName name = {.count = 1};
    Buffer part = {0};
    uint64_t bytes = 0;
    const bool several = part_name_parse(path, &name);
    for (int number = 1; number <= name.count; number++) {
        struct stat info;
        buffer_clear(&part);
        if (several)
            part_name_write(&part, path, &name, number);
        else
            buffer_text(&part, path);
        if (!part.failed && !stat(part.data, &info)) bytes += (uint64_t)info.st_size;
    }
    buffer_free(&part);
    return bytes;
}

/* Records a conversion's GGUF file, so that `apus list` can name a conversion whose file was deleted. Failures are
 * ignored: a cache that cannot be written gets no conversions. */
static void note_source(const char *gguf, const char *directory) {
    Buffer path = {0}, known = {0};
    Error ignored;
    char *full = realpath(gguf, NULL);
    buffer_printf(&path, "%s/" CONVERSION_SOURCE, directory);
    if (full && !path.failed && !(file_read(path.data, 0, &known, &ignored) && slice_is(buffer_view(&known), full)))
        (void)!file_write_atomic(path.data, slice_of(full), &ignored);
    free(full);
    buffer_free(&path);
    buffer_free(&known);
}

static bool watch_conversion(void *context, uint64_t done_bytes, uint64_t total_bytes, const char *tensor) {
    const LibraryWatch *watch = context;
    return !watch->conversion || watch->conversion(watch->context, done_bytes, total_bytes);
}

static bool resolve_gguf(const char *path, const LibraryWatch *watch, Buffer *directory, Error *error) {
    Buffer cache = {0};
    const bool ready = library_path(&cache, error) && file_make_directories(cache.data, error);
    buffer_free(&cache);
    if (!ready || !library_conversion(path, directory, error)) return false;
    GgufOptions options = {.compact = true, .replace = true};
    if (watch) {
        options.progress = watch_conversion;
        options.context = (void *)(uintptr_t)watch;
        if (watch->begin) watch->begin(watch->context, LIBRARY_CONVERSION, path, directory->data);
    }
    const bool ok = gguf_convert(path, directory->data, &options, error);
    if (watch && watch->end) watch->end(watch->context, LIBRARY_CONVERSION, NULL);
    if (ok) note_source(path, directory->data);
    return ok;
}

static bool ignore_progress(void *context, const HubProgress *progress) { return true; }

bool library_fetch(const HubName *name, bool update, const LibraryWatch *watch, Buffer *path, Error *error) {
    HubSettings settings;
    Error none, stale = {0};
    if (!hub_settings_read(&settings, error)) return false;
    bool ok = !update && hub_find(&settings, name, path, &none);
    if (!ok) {
        const HubWatch hub = {
            watch && watch->download ? watch->download : ignore_progress, watch ? watch->context : NULL};
        buffer_clear(path);
        if (watch && watch->begin)
            watch->begin(watch->context, LIBRARY_DOWNLOAD, name->repo, settings.offline ? NULL : settings.endpoint);
        ok = hub_pull(&settings, name, &hub, path, &stale, error);
        if (watch && watch->end) watch->end(watch->context, LIBRARY_DOWNLOAD, ok && stale.code ? &stale : NULL);
    }
    hub_settings_free(&settings);
    return ok;
}

static bool holds_config(const char *directory) {
    Buffer path = {0};
    buffer_printf(&path, "%s/config.json", directory);
    const bool there = !path.failed && file_exists(path.data);
    buffer_free(&path);
    return there;
}

/* ORG/NAME, which no path here has. A .gguf file two levels deep is a path with a mistake in it. */
static bool resolve_hub(const char *model, const LibraryWatch *watch, Buffer *directory, Error *error) {
    HubName name;
    Error none;
    if (!hub_name_parse(model, &name, &none) || (!name.file[0] && ends_with(model, ".gguf")))
        return fail(error, ERROR_NOT_FOUND, "%s: no such file or directory", model);
    if (!library_fetch(&name, false, watch, directory, error))
        return error->code == ERROR_NOT_FOUND || error->code == ERROR_IO
            ? fail_while(error, "%s is no directory here", model)
            : false;
    if (!ends_with(directory->data, ".gguf")) return true;
    Buffer gguf = *directory;
    *directory = (Buffer){0};
    const bool ok = resolve_gguf(gguf.data, watch, directory, error);
    buffer_free(&gguf);
    return ok;
}

/* names: one after the other, each with its NUL. */
static const char *cached_name_at(const void *names, int i) {
    const Buffer *buffer = names;
    size_t at = 0;
    for (; i > 0 && at < buffer->size; i--) at += strlen(buffer->data + at) + 1;
    return at < buffer->size ? buffer->data + at : NULL;
}

/* "; did you mean NAME?" when a model of the cache is called nearly so. */
static void suggest(const char *model, const Buffer *directory, size_t cache_size, Buffer *out) {
    Buffer cache = {0}, names = {0};
    buffer_append(&cache, directory->data, cache_size);
    DIR *dir = cache.failed || !cache.data ? NULL : opendir(cache.data);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        library_name_of(entry->d_name, &names);
        buffer_byte(&names, 0);
    }
    if (dir) closedir(dir);
    const char *nearest = names.failed ? NULL : nearest_name(slice_of(model), cached_name_at, &names);
    if (nearest) buffer_printf(out, "; did you mean %s?", nearest);
    buffer_free(&names);
    buffer_free(&cache);
}

bool library_resolve(const char *model, const LibraryWatch *watch, Buffer *directory, Error *error) {
    buffer_clear(directory);
    if (file_is_directory(model)) {
        if (!holds_config(model))
            return fail(error, ERROR_NOT_FOUND, "%s: a directory without config.json is no model", model);
        buffer_text(directory, model);
        return !directory->failed || fail(error, ERROR_MEMORY, "no memory for the path of a model");
    }
    if (file_exists(model)) {
        if (ends_with(model, ".gguf")) return resolve_gguf(model, watch, directory, error);
        return fail(error, ERROR_UNSUPPORTED, "%s: not a model: want a checkpoint directory or a .gguf file", model);
    }
    if (strchr(model, '/')) return resolve_hub(model, watch, directory, error);
    if (ends_with(model, ".gguf")) return fail(error, ERROR_NOT_FOUND, "%s: no such file or directory", model);
    if (!library_path(directory, error)) return false;
    const size_t cache = directory->size;
    buffer_printf(directory, "/%s", model);
    if (!directory->failed && holds_config(directory->data)) return true;
    buffer_text(directory, ".gguf");
    if (!directory->failed && file_exists(directory->data)) {
        Buffer gguf = *directory;
        *directory = (Buffer){0};
        const bool ok = resolve_gguf(gguf.data, watch, directory, error);
        buffer_free(&gguf);
        return ok;
    }
    Buffer near = {0};
    suggest(model, directory, cache, &near);
    fail(error, ERROR_NOT_FOUND,
        "%s: no such file, directory or model in %.*s%s (apus list shows them; apus search finds more)", model,
        (int)cache, directory->data ? directory->data : "", near.data ? near.data : "");
    buffer_free(&near);
    return false;
}
