/* From a name to a whole model in the cache. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "hub/cache.h"
#include "hub/choose.h"
#include "hub/commit.h"
#include "hub/download.h"
#include "hub/partial.h"

enum { DISK_SPARE_BYTES = 1 << 20 };

typedef struct Pull {
    const HubSettings *settings;
    const HubName *name;
    HttpClient client;
    Buffer repo; /* the folder of the repository */
    char commit[HUB_COMMIT_DIGITS + 1];
    HubTree tree;
    HubChoice choice;
} Pull;

static bool append_path(const Pull *pull, Buffer *path, Error *error) {
    buffer_printf(path, "%s/snapshots/%s", pull->repo.data, pull->commit);
    if (pull->choice.format == HUB_GGUF) /* a file, or the first part of one */
        buffer_printf(path, "/%s", pull->choice.files[0]->path);
    return !path->failed || fail(error, ERROR_MEMORY, "no memory for the path of a model");
}

/* --- From the cache alone ---------------------------------------------------------------------------------------- */

/* Without a list of the commit's files the shards that the index names must be there. */
static bool index_whole(const Pull *pull) {
    Arena arena = {0};
    Buffer path = {0}, text = {0};
    Error ignored;
    buffer_printf(&path, "%s/snapshots/%s/model.safetensors.index.json", pull->repo.data, pull->commit);
    bool whole = !path.failed;
    if (whole && file_exists(path.data)) {
        const Json *root =
            file_read(path.data, 0, &text, &ignored) ? json_parse(&arena, buffer_view(&text), &ignored) : NULL;
        const Json *map = json_get(root, "weight_map");
        whole = map && map->type == JSON_OBJECT;
        if (whole)
            for (JSON_EACH_PAIR(key, shard, map))
                whole &= shard->type == JSON_STRING && tree_find(&pull->tree, json_slice(shard));
    }
    arena_free(&arena);
    buffer_free(&path);
    buffer_free(&text);
    return whole;
}

static bool find_tree(Pull *pull, Error *error) {
    Buffer path = {0};
    buffer_printf(&path, "%s/trees/%s.json", pull->repo.data, pull->commit);
    bool listed = !path.failed && file_exists(path.data) && tree_read(path.data, &pull->tree, error), ok = listed;
    if (!listed) {
        buffer_clear(&path);
        buffer_printf(&path, "%s/snapshots/%s", pull->repo.data, pull->commit);
        ok =
            path.failed ? fail(error, ERROR_MEMORY, "no memory for a path") : cache_walk(path.data, &pull->tree, error);
    }
    ok = ok && choose_files(&pull->tree, pull->name, memory_available(), &pull->choice, error);
    for (size_t i = 0; ok && i < pull->choice.count; i++)
        if (pull->choice.files[i]->size < 0 || !cache_has(pull->repo.data, pull->commit, pull->choice.files[i]))
            ok = fail(error, ERROR_NOT_FOUND, "%s is in the cache in part only: %s is missing", pull->name->repo,
                pull->choice.files[i]->path);
    if (ok && !listed && pull->choice.format == HUB_SAFETENSORS && !index_whole(pull))
        ok = fail(error, ERROR_NOT_FOUND, "%s is in the cache in part only", pull->name->repo);
    buffer_free(&path);
    return ok;
}

/* A snapshot that was taken without a choice among its GGUF files is what is there of them. */
static bool find(Pull *pull, Buffer *path, Error *error) {
    Error first = {0};
    if (!cache_commit(pull->repo.data, pull->name->revision, pull->commit))
        return fail(error, ERROR_NOT_FOUND, "%s is not in the cache%s%s", pull->name->repo,
            strcmp(pull->name->revision, "main") ? " at revision " : "",
            strcmp(pull->name->revision, "main") ? pull->name->revision : "");
    if (find_tree(pull, &first)) return append_path(pull, path, error);
    choice_free(&pull->choice);
    tree_free(&pull->tree);
    Buffer snapshot = {0};
    buffer_printf(&snapshot, "%s/snapshots/%s", pull->repo.data, pull->commit);
    const bool ok = first.code == ERROR_USAGE && !snapshot.failed && cache_walk(snapshot.data, &pull->tree, error) &&
        choose_files(&pull->tree, pull->name, memory_available(), &pull->choice, error) &&
        pull->choice.format == HUB_GGUF && choose_gguf_bytes(&pull->tree, pull->choice.files[0]) >= 0;
    buffer_free(&snapshot);
    if (ok) return append_path(pull, path, error);
    *error = first;
    return false;
}

/* --- From the hub
 * ----------------------------------------------------------------------------------------------------- */

static bool ask_tree(Pull *pull, Error *error) {
    Buffer path = {0};
    Error ignored;
    buffer_printf(&path, "%s/trees/%s.json", pull->repo.data, pull->commit);
    bool ok = !path.failed || fail(error, ERROR_MEMORY, "no memory for a path");
    if (ok && !(file_exists(path.data) && tree_read(path.data, &pull->tree, &ignored))) {
        ok = tree_fetch(&pull->client, pull->name, pull->commit, &pull->tree, error);
        if (ok && cache_begin(pull->settings, pull->name->repo, pull->repo.data, &ignored))
            (void)!tree_write(path.data, &pull->tree, &ignored); /* it saves the next one a request */
    }
    buffer_free(&path);
    return ok;
}

static bool check_disk(const Pull *pull, const DownloadJob *job, Error *error) {
    uint64_t missing = 0;
    for (size_t i = 0; i < job->count; i++)
        missing += (uint64_t)(job->files[i]->size - partial_present(pull->repo.data, job->files[i]));
    const uint64_t free_bytes = file_room(pull->settings->cache);
    if (missing == 0 || free_bytes == UINT64_MAX || missing + DISK_SPARE_BYTES <= free_bytes) return true;
    return fail(error, ERROR_LIMIT,
        "%s needs %.3g GB more on disk, and %s has %.3g GB free: make room (apus list, apus rm) or set "
        "HF_HUB_CACHE to another place",
        pull->name->repo, (double)missing * 1e-9, pull->settings->cache, (double)free_bytes * 1e-9);
}

static int by_etag(const void *a, const void *b) {
    return strcmp((*(const HubFile *const *)a)->etag, (*(const HubFile *const *)b)->etag);
}
static int by_size(const void *a, const void *b) {
    const int64_t x = (*(const HubFile *const *)a)->size, y = (*(const HubFile *const *)b)->size;
    return x != y ? (x > y) - (x < y) : by_etag(a, b);
}

/* Small files first: what is wrong with a model shows early. Files of the same bytes are one blob. */
static bool download_missing(Pull *pull, Error *error) {
    const HubChoice *choice = &pull->choice;
    const HubFile **files = calloc(choice->count + 1, sizeof *files);
    DownloadJob job = {pull->name, pull->commit, pull->repo.data, files, 0};
    if (!files) return fail(error, ERROR_MEMORY, "no memory for a list of files");
    for (size_t i = 0; i < choice->count; i++)
        if (!cache_has(pull->repo.data, pull->commit, choice->files[i]) &&
            !cache_has_blob(pull->repo.data, choice->files[i]))
            files[job.count++] = choice->files[i];
    qsort(files, job.count, sizeof *files, by_etag);
    size_t kept = 0;
    for (size_t i = 0; i < job.count; i++)
        if (i == 0 || strcmp(files[i]->etag, files[kept - 1]->etag) != 0) files[kept++] = files[i];
    job.count = kept;
    qsort(files, job.count, sizeof *files, by_size);
    HubProgress *progress = &pull->client.progress;
    progress->files_total = (int)job.count;
    for (size_t i = 0; i < job.count; i++) progress->total_bytes += (uint64_t)files[i]->size;
    const bool ok = job.count == 0 ||
        (cache_begin(pull->settings, pull->name->repo, pull->repo.data, error) && check_disk(pull, &job, error) &&
            download_run(&pull->client, &job, error));
    free((void *)files);
    return ok;
}

/* The ref comes last: who looks for "main" finds the old snapshot until the new one is whole. */
static bool publish(Pull *pull, Error *error) {
    for (size_t i = 0; i < pull->choice.count; i++)
        if (!cache_link(pull->repo.data, pull->commit, pull->choice.files[i], error)) return false;
    Error ignored; /* a complete cache that is read-only is not an error */
    return cache_ref_write(pull->repo.data, pull->name->revision, pull->commit, &ignored) || ignored.code == ERROR_IO ||
        fail(error, ignored.code, "%s", ignored.text);
}

static bool pull_run(Pull *pull, Buffer *path, Error *stale, Error *error) {
    bool unreachable = false;
    if (hub_is_hex(slice_of(pull->name->revision), HUB_COMMIT_DIGITS)) {
        memcpy(pull->commit, pull->name->revision, HUB_COMMIT_DIGITS + 1);
    } else if (!commit_ask(&pull->client, pull->name, pull->commit, &unreachable, error)) {
        Error none;
        if (!unreachable || error->code == ERROR_CANCELLED || !find(pull, path, &none)) return false;
        *stale = *error;
        *error = (Error){0};
        return true;
    }
    return ask_tree(pull, error) && choose_files(&pull->tree, pull->name, memory_available(), &pull->choice, error) &&
        download_missing(pull, error) && publish(pull, error) && append_path(pull, path, error);
}

static bool pull_open(Pull *pull, const HubSettings *settings, const HubName *name, Error *error) {
    *pull = (Pull){.settings = settings, .name = name};
    cache_repo(settings, name->repo, &pull->repo);
    return !pull->repo.failed || fail(error, ERROR_MEMORY, "no memory for a path");
}

static void pull_close(Pull *pull) {
    choice_free(&pull->choice);
    tree_free(&pull->tree);
    buffer_free(&pull->repo);
}

bool hub_find(const HubSettings *settings, const HubName *name, Buffer *path, Error *error) {
    Pull pull;
    const bool ok = pull_open(&pull, settings, name, error) && find(&pull, path, error);
    pull_close(&pull);
    return ok;
}

bool hub_pull(
    const HubSettings *settings, const HubName *name, const HubWatch *watch, Buffer *path, Error *stale, Error *error) {
    if (settings->offline)
        return hub_find(settings, name, path, error) ||
            fail_while(error, "HF_HUB_OFFLINE is set, so only the cache counts");
    Pull pull;
    bool ok = pull_open(&pull, settings, name, error);
    if (ok) {
        ok = http_open(&pull.client, settings, watch, error) && pull_run(&pull, path, stale, error);
        http_close(&pull.client);
    }
    pull_close(&pull);
    return ok;
}
