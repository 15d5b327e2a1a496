#include "library/outline.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "hub/hub.h"
#include "library/library.h"
#include "library/local.h"

enum { OUTLINES_MAX = 256, KEPT_S = 86400 };

static bool ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), tail = strlen(end);
    return length > tail && !strcmp(text + length - tail, end);
}

static bool has_file(const char *directory, const char *name, uint64_t *bytes) {
    Buffer path = {0};
    struct stat info;
    buffer_printf(&path, "%s/%s", directory, name);
    const bool there = !path.failed && !stat(path.data, &info) && S_ISREG(info.st_mode);
    if (there) *bytes = (uint64_t)info.st_size;
    buffer_free(&path);
    return there;
}

/* A checkpoint, or a GGUF file with its conversion. */
static bool take_local(const char *path, ModelOutline *out, Error *error) {
    uint64_t size;
    Buffer conversion = {0};
    Error none;
    out->local = true;
    if (!ends_with(path, ".gguf")) {
        buffer_text(&out->directory, path);
    } else if (library_conversion(path, &conversion, &none) && has_file(conversion.data, "config.json", &size)) {
        buffer_text(&out->directory, conversion.data);
    } else {
        out->gguf_bytes = library_gguf_bytes(path);
    }
    buffer_free(&conversion);
    return !out->directory.failed || fail(error, ERROR_MEMORY, "no memory for the path of a model");
}

/* ---- outlines in the cache ---- */

static void remove_outline(const char *directory) {
    DIR *list = opendir(directory);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        Buffer path = {0};
        buffer_printf(&path, "%s/%s", directory, entry->d_name);
        if (entry->d_name[0] != '.' && !path.failed) unlink(path.data);
        buffer_free(&path);
    }
    if (list) closedir(list);
    rmdir(directory);
}

/* Appends ${cache}/outlines. */
static bool outlines_path(Buffer *path, Error *error) {
    if (!library_path(path, error)) return false;
    path->size -= strlen("/models");
    buffer_text(path, "/outlines");
    return !path->failed || fail(error, ERROR_MEMORY, "no memory for the path of an outline");
}

/* The oldest one goes where there are too many. */
static void make_room(const char *outlines) {
    DIR *list = opendir(outlines);
    Buffer path = {0}, oldest = {0};
    time_t least = 0;
    int count = 0;
    for (struct dirent *entry; list && (entry = readdir(list));) {
        struct stat info;
        buffer_clear(&path);
        buffer_printf(&path, "%s/%s", outlines, entry->d_name);
        if (entry->d_name[0] == '.' || path.failed || stat(path.data, &info) || !S_ISDIR(info.st_mode)) continue;
        count++;
        if (oldest.size && info.st_mtime >= least) continue;
        least = info.st_mtime;
        buffer_clear(&oldest);
        buffer_slice(&oldest, buffer_view(&path));
    }
    if (list) closedir(list);
    if (count >= OUTLINES_MAX && !oldest.failed) remove_outline(oldest.data);
    buffer_free(&path);
    buffer_free(&oldest);
}

/* org--name, with what else the name says. */
static void write_name(const HubName *name, Buffer *out) {
    const char *parts[] = {name->repo, name->file, name->revision};
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (i > 0 && parts[i][0]) buffer_byte(out, i == 1 ? ':' : '@');
        for (const char *at = parts[i]; *at; at++)
            if (*at == '/')
                buffer_text(out, "--");
            else
                buffer_byte(out, *at);
    }
}

/* Another thread may bring the same outline: each writes its own, and the last one stays. */
static bool bring(const HubName *name, const char *outlines, const char *to, Error *error) {
    HubSettings settings;
    Buffer made = {0};
    if (!file_make_directories(outlines, error) || !hub_settings_read(&settings, error)) return false;
    make_room(outlines);
    buffer_printf(&made, "%s/.new-XXXXXX", outlines);
    bool ok = (!made.failed && mkdtemp(made.data)) ||
        fail(error, ERROR_IO, "cannot create a directory in %s: %s", outlines, strerror(errno));
    if (ok) {
        ok = hub_outline(&settings, name, made.data, error);
        if (ok) remove_outline(to);
        if (ok && rename(made.data, to) && errno != ENOTEMPTY && errno != EEXIST)
            ok = fail(error, ERROR_IO, "cannot create %s: %s", to, strerror(errno));
        remove_outline(made.data);
    }
    hub_settings_free(&settings);
    buffer_free(&made);
    return ok;
}

static bool take_outline(const HubName *name, ModelOutline *out, Error *error) {
    Buffer outlines = {0}, path = {0};
    struct stat info;
    uint64_t size;
    bool ok = outlines_path(&outlines, error);
    buffer_printf(&path, "%s/", ok ? outlines.data : "");
    write_name(name, &path);
    ok = ok && (!path.failed || fail(error, ERROR_MEMORY, "no memory for the path of an outline"));
    const bool fresh = ok && !stat(path.data, &info) && info.st_mtime + KEPT_S > time(NULL);
    ok = ok && (fresh || bring(name, outlines.data, path.data, error));
    if (ok && has_file(path.data, "config.json", &size))
        buffer_slice(&out->directory, buffer_view(&path));
    else if (ok && !has_file(path.data, "model.gguf", &out->gguf_bytes))
        ok = fail(error, ERROR_FORMAT, "%s has nothing that can be planned", name->repo);
    if (ok && out->directory.failed) ok = fail(error, ERROR_MEMORY, "no memory for the path of an outline");
    buffer_free(&outlines);
    buffer_free(&path);
    return ok;
}

bool outline_find(const char *model, bool ask_hub, ModelOutline *out, Error *error) {
    HubName name;
    Buffer path = {0};
    Error unknown = {0};
    *out = (ModelOutline){0};
    bool ok = local_find(model, &path, &unknown);
    if (ok) {
        ok = take_local(path.data, out, error);
    } else if (!ask_hub || unknown.code != ERROR_NOT_FOUND) {
        *error = unknown;
    } else {
        ok = hub_name_parse(model, &name, error) && take_outline(&name, out, error);
    }
    buffer_free(&path);
    if (!ok) outline_free(out);
    return ok;
}

void outline_free(ModelOutline *outline) { buffer_free(&outline->directory); }
