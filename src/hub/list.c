/* The whole models of the cache. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "hub/cache.h"
#include "hub/choose.h"

typedef struct Listing {
    const HubSettings *settings;
    HubModels *models;
    HubName name;
    Buffer repo, path;
    Error *error;
} Listing;

static int64_t used_of(const char *snapshot, const char *path) {
    Buffer file = {0};
    struct stat status;
    buffer_printf(&file, "%s/%s", snapshot, path);
    const int64_t used = !file.failed && !stat(file.data, &status) ? (int64_t)status.st_atime : 0;
    buffer_free(&file);
    return used;
}

static bool add(Listing *l, const char *file, const char *path, uint64_t bytes, int64_t used_s, HubFormat format) {
    HubModels *models = l->models;
    if (models->count == models->capacity) {
        const size_t capacity = models->capacity ? models->capacity * 2 : 32;
        HubModel *more = realloc(models->models, capacity * sizeof *more);
        if (!more) return fail(l->error, ERROR_MEMORY, "no memory for a list of models");
        models->models = more;
        models->capacity = capacity;
    }
    HubName name = l->name;
    Buffer text = {0};
    memcpy(name.file, file, strlen(file) + 1);
    hub_name_show(&name, &text);
    HubModel *model = &models->models[models->count];
    *model = (HubModel){.bytes = bytes, .used_s = used_s, .format = format};
    model->name = text.failed ? NULL : arena_copy(&models->arena, buffer_view(&text));
    model->path = arena_copy(&models->arena, slice_of(path));
    buffer_free(&text);
    if (!model->name || !model->path) return fail(l->error, ERROR_MEMORY, "no memory for a list of models");
    models->count++;
    return true;
}

/* All that is whole in a snapshot: a checkpoint, and every GGUF file. */
static bool list_snapshot(Listing *l, const char *snapshot) {
    HubTree tree;
    Error none;
    if (!cache_walk(snapshot, &tree, l->error)) return false;
    size_t ggufs = 0;
    uint64_t bytes = 0;
    int64_t used_s = 0;
    for (size_t i = 0; i < tree.count; i++) {
        const HubFile *file = &tree.files[i];
        ggufs += choose_is_gguf_model(file->path) && choose_gguf_bytes(&tree, file) >= 0;
        if (!hub_ends_with(slice_of(file->path), ".gguf") && file->size > 0) bytes += (uint64_t)file->size;
        const int64_t used = hub_ends_with(slice_of(file->path), ".safetensors") ? used_of(snapshot, file->path) : 0;
        if (used > used_s) used_s = used;
    }
    buffer_clear(&l->path);
    bool ok = true, checkpoint = hub_find(l->settings, &l->name, &l->path, &none) && file_is_directory(l->path.data);
    if (checkpoint) ok = add(l, "", l->path.data, bytes, used_s, HUB_SAFETENSORS);
    for (size_t i = 0; ok && i < tree.count; i++) {
        const HubFile *file = &tree.files[i];
        const int64_t size = choose_is_gguf_model(file->path) ? choose_gguf_bytes(&tree, file) : -1;
        if (size < 0) continue;
        buffer_clear(&l->path);
        buffer_printf(&l->path, "%s/%s", snapshot, file->path);
        ok = l->path.failed ? fail(l->error, ERROR_MEMORY, "no memory for a path")
                            : add(l, ggufs == 1 && !checkpoint ? "" : file->path, l->path.data, (uint64_t)size,
                                  used_of(snapshot, file->path), HUB_GGUF);
    }
    tree_free(&tree);
    return ok;
}

/* What a commit is called: "main" before other refs, and the commit itself when no ref names it. */
static void revision_of(const char *repo, const char *commit, char revision[HUB_REVISION_MAX]) {
    char known[HUB_COMMIT_DIGITS + 1];
    HubTree refs = {0};
    Buffer folder = {0};
    Error ignored;
    memcpy(revision, commit, HUB_COMMIT_DIGITS + 1);
    buffer_printf(&folder, "%s/refs", repo);
    if (!folder.failed && cache_walk(folder.data, &refs, &ignored)) {
        for (size_t i = 0; i < refs.count; i++) {
            const char *ref = refs.files[i].path;
            if (strlen(ref) >= HUB_REVISION_MAX || !cache_commit(repo, ref, known) || strcmp(known, commit)) continue;
            if (hub_is_hex(slice_of(revision), HUB_COMMIT_DIGITS) || !strcmp(ref, "main"))
                memcpy(revision, ref, strlen(ref) + 1);
        }
        tree_free(&refs);
    }
    buffer_free(&folder);
}

static void count_unfinished(Listing *l) {
    uint64_t bytes = 0;
    buffer_clear(&l->path);
    buffer_printf(&l->path, "%s/blobs", l->repo.data);
    DIR *folder = l->path.failed ? NULL : opendir(l->path.data);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        struct stat status;
        buffer_clear(&l->path);
        buffer_printf(&l->path, "%s/blobs/%s", l->repo.data, entry->d_name);
        if (!hub_ends_with(slice_of(entry->d_name), ".incomplete") || l->path.failed) continue;
        if (!lstat(l->path.data, &status)) bytes += (uint64_t)status.st_blocks * 512;
    }
    if (folder) closedir(folder);
    l->models->unfinished_bytes += bytes;
    l->models->unfinished += bytes > 0;
}

static bool list_repo(Listing *l) {
    bool ok = true;
    buffer_clear(&l->repo);
    cache_repo(l->settings, l->name.repo, &l->repo);
    buffer_clear(&l->path);
    buffer_printf(&l->path, "%s/snapshots", l->repo.data);
    DIR *folder = l->repo.failed || l->path.failed ? NULL : opendir(l->path.data);
    for (struct dirent *entry; ok && folder && (entry = readdir(folder));) {
        Buffer snapshot = {0};
        if (!hub_is_hex(slice_of(entry->d_name), HUB_COMMIT_DIGITS)) continue;
        revision_of(l->repo.data, entry->d_name, l->name.revision);
        buffer_printf(&snapshot, "%s/snapshots/%s", l->repo.data, entry->d_name);
        ok = snapshot.failed ? fail(l->error, ERROR_MEMORY, "no memory for a path") : list_snapshot(l, snapshot.data);
        buffer_free(&snapshot);
    }
    if (folder) closedir(folder);
    if (!l->repo.failed) count_unfinished(l);
    return ok;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const HubModel *)a)->name, ((const HubModel *)b)->name);
}

/* "models--org--name" */
static bool repo_of(const char *folder, HubName *name) {
    Error ignored;
    char repo[HUB_REPO_MAX];
    const char *org = strncmp(folder, "models--", 8) ? NULL : folder + 8, *dashes = org ? strstr(org, "--") : NULL;
    if (!dashes || strlen(org) >= sizeof repo) return false;
    const size_t size = (size_t)(dashes - org);
    memcpy(repo, org, size);
    repo[size] = '/';
    memcpy(repo + size + 1, dashes + 2, strlen(dashes + 2) + 1);
    return hub_name_parse(repo, name, &ignored);
}

bool hub_list(const HubSettings *settings, HubModels *models, Error *error) {
    *models = (HubModels){0};
    Listing l = {.settings = settings, .models = models, .error = error};
    bool ok = true;
    DIR *folder = opendir(settings->cache);
    for (struct dirent *entry; ok && folder && (entry = readdir(folder));)
        if (repo_of(entry->d_name, &l.name)) ok = list_repo(&l);
    if (folder) closedir(folder);
    buffer_free(&l.repo);
    buffer_free(&l.path);
    if (models->count) qsort(models->models, models->count, sizeof *models->models, by_name);
    if (!ok) hub_models_free(models);
    return ok;
}

void hub_models_free(HubModels *models) {
    arena_free(&models->arena);
    free(models->models);
    *models = (HubModels){0};
}
