/* Removal: names go before what they name, so that nothing half-removed looks whole. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "hub/cache.h"
#include "hub/choose.h"

typedef struct Removal {
    const HubSettings *settings;
    const HubName *name;
    Buffer repo;
    uint64_t *freed_bytes;
    Error *error;
} Removal;

static bool remove_file(Removal *r, const char *path) {
    struct stat status;
    if (lstat(path, &status)) return true;
    if (unlink(path)) return fail(r->error, ERROR_IO, "cannot remove %s: %s", path, strerror(errno));
    if (S_ISREG(status.st_mode)) *r->freed_bytes += (uint64_t)status.st_blocks * 512;
    return true;
}

/* A folder and all below it; links are removed and not followed. */
static bool remove_folder(Removal *r, const char *path) {
    DIR *list = opendir(path);
    bool ok = true;
    if (!list) return errno == ENOENT || fail(r->error, ERROR_IO, "cannot open %s: %s", path, strerror(errno));
    for (struct dirent *entry; ok && (entry = readdir(list));) {
        Buffer below = {0};
        struct stat status;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        buffer_printf(&below, "%s/%s", path, entry->d_name);
        ok = !below.failed || fail(r->error, ERROR_MEMORY, "no memory for a path");
        if (ok && !lstat(below.data, &status))
            ok = S_ISDIR(status.st_mode) ? remove_folder(r, below.data) : remove_file(r, below.data);
        buffer_free(&below);
    }
    closedir(list);
    return ok && (!rmdir(path) || fail(r->error, ERROR_IO, "cannot remove %s: %s", path, strerror(errno)));
}

/* A path below the repository; removed with what is in it. */
static bool remove_below(Removal *r, const char *below) {
    Buffer path = {0};
    buffer_printf(&path, "%s/%s", r->repo.data, below);
    const bool ok = path.failed        ? fail(r->error, ERROR_MEMORY, "no memory for a path")
        : file_is_directory(path.data) ? remove_folder(r, path.data)
                                       : remove_file(r, path.data);
    buffer_free(&path);
    return ok;
}

static bool is_busy(const Removal *r) {
    Buffer folder = {0}, path = {0};
    bool busy = false;
    buffer_printf(&folder, "%s/.locks%s", r->settings->cache, r->repo.data + strlen(r->settings->cache));
    DIR *list = folder.failed ? NULL : opendir(folder.data);
    for (struct dirent *entry; list && !busy && (entry = readdir(list));) {
        buffer_clear(&path);
        buffer_printf(&path, "%s/%s", folder.data, entry->d_name);
        if (path.failed || !hub_ends_with(slice_of(entry->d_name), ".lock")) continue;
        const int fd = open(path.data, O_RDWR | O_CLOEXEC);
        if (fd < 0) continue;
        busy = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        close(fd);
    }
    if (list) closedir(list);
    buffer_free(&folder);
    buffer_free(&path);
    return busy;
}

static bool remove_repo(Removal *r) {
    static const char *const parts[] = {"refs", "snapshots", "trees", ".no_exist", "blobs"};
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (!remove_below(r, parts[i])) return false;
    if (!remove_folder(r, r->repo.data)) return false;
    Buffer locks = {0};
    buffer_printf(&locks, "%s/.locks%s", r->settings->cache, r->repo.data + strlen(r->settings->cache));
    const bool ok = !locks.failed && remove_folder(r, locks.data);
    buffer_free(&locks);
    return ok;
}

/* --- A part of a repository -------------------------------------------------------------------------------------- */

/* Blobs that no snapshot links to any more; none when some link cannot be read. */
static bool sweep_blobs(Removal *r) {
    Buffer path = {0};
    HubTree used = {0}, links = {0};
    buffer_printf(&path, "%s/snapshots", r->repo.data);
    bool ok = !path.failed && cache_walk(path.data, &links, r->error);
    for (size_t i = 0; ok && i < links.count; i++) {
        char target[HUB_FILE_MAX * 2];
        buffer_clear(&path);
        buffer_printf(&path, "%s/snapshots/%s", r->repo.data, links.files[i].path);
        const ssize_t size = path.failed ? -1 : readlink(path.data, target, sizeof target - 1);
        links.skipped += size == sizeof target - 1;
        if (size <= 0) continue; /* the file itself, where there are no links */
        target[size] = '\0';
        const char *slash = strrchr(target, '/');
        ok = tree_add(&used, &(HubFile){.path = slash ? slash + 1 : target}, r->error);
    }
    if (ok) tree_sort(&used);
    buffer_clear(&path);
    buffer_printf(&path, "%s/blobs", r->repo.data);
    DIR *list = ok && !path.failed && !links.skipped ? opendir(path.data) : NULL;
    for (struct dirent *entry; ok && list && (entry = readdir(list));) {
        const Slice name = slice_of(entry->d_name);
        if (!hub_is_hex(name, 64) && !hub_is_hex(name, HUB_COMMIT_DIGITS)) continue;
        if (tree_find(&used, name)) continue;
        buffer_clear(&path);
        buffer_printf(&path, "%s/blobs/%s", r->repo.data, entry->d_name);
        ok = !path.failed && remove_file(r, path.data);
    }
    if (list) closedir(list);
    tree_free(&used);
    tree_free(&links);
    buffer_free(&path);
    return ok;
}

/* Refs that stand for a commit. */
static bool remove_refs(Removal *r, const char *commit) {
    Buffer path = {0};
    HubTree refs = {0};
    Error ignored;
    bool ok = true;
    buffer_printf(&path, "%s/refs", r->repo.data);
    if (!path.failed && cache_walk(path.data, &refs, &ignored)) {
        for (size_t i = 0; ok && i < refs.count; i++) {
            char known[HUB_COMMIT_DIGITS + 1];
            if (!cache_commit(r->repo.data, refs.files[i].path, known) || strcmp(known, commit) != 0) continue;
            buffer_clear(&path);
            buffer_printf(&path, "refs/%s", refs.files[i].path);
            ok = !path.failed && remove_below(r, path.data);
        }
        tree_free(&refs);
    }
    buffer_free(&path);
    return ok;
}

/* The named file with all its parts, or all files of the snapshot. */
static bool remove_from(Removal *r, const char *commit) {
    HubTree tree = {0};
    Buffer path = {0};
    HubChoice choice = {0};
    buffer_printf(&path, "%s/snapshots/%s", r->repo.data, commit);
    bool ok = !path.failed && cache_walk(path.data, &tree, r->error);
    bool one = ok && r->name->file[0];
    if (one) ok = choose_files(&tree, r->name, 0, &choice, r->error);
    if (ok && one) {
        const size_t snapshot = path.size;
        for (size_t i = 0; ok && i < choice.count; i++) {
            path.size = snapshot;
            buffer_printf(&path, "/%s", choice.files[i]->path);
            ok = !path.failed && remove_file(r, path.data);
        }
        one = tree.count > choice.count;
    }
    if (ok && !one) {
        buffer_clear(&path);
        buffer_printf(&path, "snapshots/%s", commit);
        ok = !path.failed && remove_refs(r, commit) && remove_below(r, path.data);
        buffer_clear(&path);
        buffer_printf(&path, "trees/%s.json", commit);
        ok = ok && !path.failed && remove_below(r, path.data);
    }
    choice_free(&choice);
    tree_free(&tree);
    buffer_free(&path);
    return ok && sweep_blobs(r);
}

static bool has_snapshots(const Removal *r) {
    HubTree tree = {0};
    Buffer path = {0};
    Error ignored;
    buffer_printf(&path, "%s/snapshots", r->repo.data);
    const bool any = !path.failed && cache_walk(path.data, &tree, &ignored) && tree.count > 0;
    tree_free(&tree);
    buffer_free(&path);
    return any;
}

bool hub_remove(const HubSettings *settings, const HubName *name, uint64_t *freed_bytes, Error *error) {
    Removal r = {.settings = settings, .name = name, .freed_bytes = freed_bytes, .error = error};
    char commit[HUB_COMMIT_DIGITS + 1];
    *freed_bytes = 0;
    cache_repo(settings, name->repo, &r.repo);
    const bool part = name->file[0] || strcmp(name->revision, "main") != 0;
    bool ok = !r.repo.failed || fail(error, ERROR_MEMORY, "no memory for a path");
    if (ok && !file_is_directory(r.repo.data)) ok = fail(error, ERROR_NOT_FOUND, "%s is not in the cache", name->repo);
    if (ok && part && !cache_commit(r.repo.data, name->revision, commit))
        ok = fail(error, ERROR_NOT_FOUND, "%s is not in the cache at revision %s", name->repo, name->revision);
    if (ok && is_busy(&r)) ok = fail(error, ERROR_BUSY, "%s is being downloaded by another process", name->repo);
    if (ok && part) ok = remove_from(&r, commit);
    if (ok && (!part || !has_snapshots(&r))) ok = remove_repo(&r);
    buffer_free(&r.repo);
    return ok;
}
