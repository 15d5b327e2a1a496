#include "library/local.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/part_name.h"
#include "library/library.h"
#include "hub/hub.h"

static bool ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), tail = strlen(end);
    return length > tail && !strcmp(text + length - tail, end);
}

/* Bytes of a directory's plain files, and when its weights were last read. */
static uint64_t directory_bytes(const char *path, int64_t *used_s) {
    uint64_t total = 0;
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        struct stat info;
        Buffer file = {0};
        buffer_printf(&file, "%s/%s", path, entry->d_name);
        if (!file.failed && !stat(file.data, &info) && S_ISREG(info.st_mode)) {
            total += (uint64_t)info.st_size;
            if (ends_with(entry->d_name, ".safetensors") && info.st_atime > *used_s) *used_s = (int64_t)info.st_atime;
        }
        buffer_free(&file);
    }
    if (directory) closedir(directory);
    return total;
}

static bool add(LocalModels *models, const LocalModel *model, Error *error) {
    if (models->count == models->capacity) {
        const size_t capacity = models->capacity ? models->capacity * 2 : 32;
        LocalModel *more = realloc(models->models, capacity * sizeof *more);
        if (!more) return fail(error, ERROR_MEMORY, "no memory for a list of models");
        models->models = more;
        models->capacity = capacity;
    }
    LocalModel *to = &models->models[models->count];
    *to = *model;
    const char **texts[] = {&to->name, &to->path, &to->conversion};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (!*texts[i]) continue;
        *texts[i] = arena_copy(&models->arena, slice_of(*texts[i]));
        if (!*texts[i]) return fail(error, ERROR_MEMORY, "no memory for a list of models");
    }
    models->count++;
    return true;
}

/* A row for a .gguf file; its conversion, if there is one, belongs to it. */
static bool add_gguf(LocalModels *models, LocalModel model, Error *error) {
    Buffer directory = {0};
    Error none;
    model.format = "GGUF, converted on first use";
    if (library_conversion(model.path, &directory, &none) && file_is_directory(directory.data)) {
        model.bytes += directory_bytes(directory.data, &model.used_s);
        model.format = "GGUF, converted";
        model.conversion = directory.data;
    }
    const bool ok = add(models, &model, error);
    buffer_free(&directory);
    return ok;
}

static bool add_hub(LocalModels *models, Error *error) {
    HubSettings settings;
    HubModels hub;
    if (!hub_settings_read(&settings, error)) return false;
    bool ok = hub_list(&settings, &hub, error);
    hub_settings_free(&settings);
    if (!ok) return false;
    for (size_t i = 0; ok && i < hub.count; i++) {
        const HubModel *from = &hub.models[i];
        const LocalModel model = {.name = from->name,
            .path = from->path,
            .bytes = from->bytes,
            .used_s = from->used_s,
            .format = "safetensors",
            .hub = true};
        ok = from->format == HUB_GGUF ? add_gguf(models, model, error) : add(models, &model, error);
    }
    models->unfinished_bytes += hub.unfinished_bytes;
    models->unfinished += hub.unfinished;
    hub_models_free(&hub);
    return ok;
}

static bool is_conversion_of_a_row(const LocalModels *models, const char *directory) {
    for (size_t i = 0; i < models->count; i++)
        if (models->models[i].conversion && !strcmp(models->models[i].conversion, directory)) return true;
    return false;
}

/* A conversion is called as its file is, unless another model is. */
static const char *name_of_source(LocalModels *models, const char *source, const char *directory) {
    Buffer name = {0};
    library_name_of(source, &name);
    bool taken = name.failed || !name.size;
    for (size_t i = 0; i < models->count && !taken; i++) taken = !strcmp(models->models[i].name, name.data);
    const char *copy = taken ? NULL : arena_copy(&models->arena, buffer_view(&name));
    buffer_free(&name);
    return copy ? copy : directory;
}

/* Adds a directory of the cache that is not the conversion of a listed file: a checkpoint, or a conversion whose file
 * is elsewhere or deleted. */
static bool add_directory(LocalModels *models, const char *name, const char *path, Error *error) {
    LocalModel model = {.name = name, .path = path, .format = "checkpoint"};
    Buffer file = {0}, source = {0};
    Error none;
    model.bytes = directory_bytes(path, &model.used_s);
    buffer_printf(&file, "%s/config.json", path);
    const bool whole = !file.failed && file_exists(file.data);
    buffer_clear(&file);
    buffer_printf(&file, "%s/" CONVERSION_SOURCE, path);
    if (!file.failed && file_read(file.data, 0, &source, &none) && source.size)
        model.format = arena_printf(
            &models->arena, file_exists(source.data) ? "conversion of %s" : "orphan: %s is gone", source.data);
    else if (!strncmp(name, "compact-", 8))
        model.format = "conversion";
    bool ok = model.format || fail(error, ERROR_MEMORY, "no memory for a list of models");
    if (source.size) model.name = name_of_source(models, source.data, name);
    if (ends_with(name, ".partial") || ends_with(name, ".old") || !whole) {
        models->unfinished_bytes += model.bytes;
        models->unfinished += model.bytes > 0;
    } else if (ok) {
        ok = add(models, &model, error);
    }
    buffer_free(&file);
    buffer_free(&source);
    return ok;
}

static bool add_own(LocalModels *models, Error *error) {
    Buffer cache = {0}, path = {0};
    if (!library_path(&cache, error)) return false;
    struct dirent **entries = NULL;
    const int count = scandir(cache.data, &entries, NULL, alphasort);
    bool ok = true;
    for (int pass = 0; pass < 2; pass++) { /* files first: directories may be their conversions */
        for (int i = 0; ok && i < count; i++) {
            struct stat info;
            char *name = entries[i]->d_name;
            buffer_clear(&path);
            buffer_printf(&path, "%s/%s", cache.data, name);
            if (path.failed || name[0] == '.' || stat(path.data, &info)) continue;
            if (pass == 0 && S_ISREG(info.st_mode) && ends_with(name, ".gguf")) {
                PartName part;
                if (part_name_parse(name, &part) && part.part > 1) continue;
                name[strlen(name) - 5] = '\0';
                ok = add_gguf(models,
                    (LocalModel){.name = name,
                        .path = path.data,
                        .bytes = library_gguf_bytes(path.data),
                        .used_s = (int64_t)info.st_atime},
                    error);
            } else if (pass == 1 && S_ISDIR(info.st_mode) && !is_conversion_of_a_row(models, path.data)) {
                ok = add_directory(models, name, path.data, error);
            }
        }
    }
    for (int i = 0; i < count; i++) free(entries[i]);
    free(entries);
    buffer_free(&cache);
    buffer_free(&path);
    return ok;
}

bool local_list(LocalModels *models, Error *error) {
    *models = (LocalModels){0};
    const bool ok = add_hub(models, error) && add_own(models, error);
    if (!ok) local_free(models);
    return ok;
}

bool local_find(const char *name, Buffer *path, Error *error) {
    LocalModels models;
    const LocalModel *found = NULL;
    if (!local_list(&models, error)) return false;
    for (size_t i = 0; i < models.count; i++)
        if (!strcmp(models.models[i].name, name)) found = &models.models[i];
    if (found) buffer_text(path, found->path);
    local_free(&models);
    if (!found) return fail(error, ERROR_NOT_FOUND, "%s: no such model here", name);
    return !path->failed || fail(error, ERROR_MEMORY, "no memory for the path of a model");
}

void local_id(const LocalModel *model, Buffer *id) { library_name_of(model->name, id); }

void local_free(LocalModels *models) {
    arena_free(&models->arena);
    free(models->models);
    *models = (LocalModels){0};
}

static bool remove_directory(const char *path, uint64_t *freed_bytes, Error *error) {
    DIR *list = opendir(path);
    bool ok = true;
    if (!list) return errno == ENOENT || fail(error, ERROR_IO, "cannot open %s: %s", path, strerror(errno));
    for (struct dirent *entry; ok && (entry = readdir(list));) {
        struct stat info;
        Buffer file = {0};
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        buffer_printf(&file, "%s/%s", path, entry->d_name);
        ok = !file.failed || fail(error, ERROR_MEMORY, "no memory for a path");
        if (ok && !lstat(file.data, &info)) {
            ok = !unlink(file.data) || fail(error, ERROR_IO, "cannot remove %s: %s", file.data, strerror(errno));
            if (ok) *freed_bytes += (uint64_t)info.st_blocks * 512;
        }
        buffer_free(&file);
    }
    closedir(list);
    return ok && (!rmdir(path) || fail(error, ERROR_IO, "cannot remove %s: %s", path, strerror(errno)));
}

/* The conversions of a hub name's files, which are found through the files: so before these. */
static bool remove_conversions(const LocalModels *local, const char *name, uint64_t *freed_bytes, Error *error) {
    const size_t size = strlen(name);
    for (size_t i = 0; i < local->count; i++) {
        const LocalModel *model = &local->models[i];
        const bool named = !strncmp(model->name, name, size) && strchr(":@", model->name[size]); /* or the very name */
        if (model->hub && named && model->conversion && !remove_directory(model->conversion, freed_bytes, error))
            return false;
    }
    return true;
}

static bool remove_hub(const LocalModels *local, const char *name, uint64_t *freed_bytes, Error *error) {
    HubSettings settings;
    HubName parsed;
    uint64_t freed = 0;
    if (!hub_name_parse(name, &parsed, error) || !hub_settings_read(&settings, error)) return false;
    const bool ok =
        remove_conversions(local, name, freed_bytes, error) && hub_remove(&settings, &parsed, &freed, error);
    hub_settings_free(&settings);
    *freed_bytes += freed;
    return ok;
}

static bool remove_file(const char *path, uint64_t *freed_bytes, Error *error) {
    struct stat info;
    if (lstat(path, &info)) return true;
    if (unlink(path)) return fail(error, ERROR_IO, "cannot remove %s: %s", path, strerror(errno));
    *freed_bytes += (uint64_t)info.st_blocks * 512;
    return true;
}

/* A .gguf file with all its parts. */
static bool remove_gguf(const char *path, uint64_t *freed_bytes, Error *error) {
    PartName name;
    Buffer part = {0};
    bool ok = true;
    if (!part_name_parse(path, &name)) return remove_file(path, freed_bytes, error);
    for (int number = 1; ok && number <= name.count; number++) {
        buffer_clear(&part);
        part_name_write(&part, path, &name, number);
        ok = part.failed ? fail(error, ERROR_MEMORY, "no memory for a path")
                         : remove_file(part.data, freed_bytes, error);
    }
    buffer_free(&part);
    return ok;
}

/* NAME.gguf with its conversion, or the directory NAME: of our own cache. */
static bool remove_own(const LocalModels *local, const char *name, uint64_t *freed_bytes, Error *error) {
    for (size_t i = 0; i < local->count; i++) {
        const LocalModel *model = &local->models[i];
        if (model->hub || strcmp(model->name, name) != 0) continue;
        if (file_is_directory(model->path)) return remove_directory(model->path, freed_bytes, error);
        return (!model->conversion || remove_directory(model->conversion, freed_bytes, error)) &&
            remove_gguf(model->path, freed_bytes, error);
    }
    Buffer path = {0}; /* what is unfinished is no row */
    bool ok = library_path(&path, error);
    buffer_printf(&path, "/%s", name);
    if (ok && (path.failed || name[0] == '.' || !file_is_directory(path.data)))
        ok = fail(error, ERROR_NOT_FOUND, "%s: no such model here (apus list shows them)", name);
    ok = ok && remove_directory(path.data, freed_bytes, error);
    buffer_free(&path);
    return ok;
}

bool local_remove(const LocalModels *local, const char *name, uint64_t *freed_bytes, Error *error) {
    return strchr(name, '/') ? remove_hub(local, name, freed_bytes, error)
                             : remove_own(local, name, freed_bytes, error);
}
