#include "hub/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

enum { DEPTH_MAX = 16, REF_BYTES_MAX = 256, LOCK_MODE = 0664, LOCK_TRIES = 16 };

static const char backup_tag[] = "Signature: 8a477f597d28d172789f06886806bc55\n"
                                 "# This file is a cache directory tag created by huggingface_hub.\n"
                                 "# For information about cache directory tags, see:\n"
                                 "#\thttps://bford.info/cachedir/\n";

/* "models--org--name" */
static void folder_name(const char *repo, Buffer *out) {
    const char *slash = strchr(repo, '/');
    buffer_printf(out, "models--%.*s--%s", (int)(slash - repo), repo, slash + 1);
}

void cache_repo(const HubSettings *settings, const char *repo, Buffer *path) {
    buffer_printf(path, "%s/", settings->cache);
    folder_name(repo, path);
}

bool cache_commit(const char *repo_folder, const char *revision, char commit[HUB_COMMIT_DIGITS + 1]) {
    Buffer path = {0}, text = {0};
    Error ignored;
    bool ok = hub_is_hex(slice_of(revision), HUB_COMMIT_DIGITS);
    if (ok) {
        buffer_text(&text, revision);
    } else {
        buffer_printf(&path, "%s/refs/%s", repo_folder, revision);
        ok = !path.failed && file_read(path.data, REF_BYTES_MAX, &text, &ignored) &&
            hub_is_hex(buffer_view(&text), HUB_COMMIT_DIGITS);
    }
    if (ok) memcpy(commit, text.data, HUB_COMMIT_DIGITS + 1);
    buffer_free(&path);
    buffer_free(&text);
    return ok;
}

/* All folders above a file. */
static bool make_parent(Buffer *path, Error *error) {
    if (path->failed) return fail(error, ERROR_MEMORY, "no memory for a path");
    char *slash = strrchr(path->data, '/');
    *slash = '\0';
    const bool ok = file_make_directories(path->data, error);
    *slash = '/';
    return ok;
}

bool cache_ref_write(const char *repo_folder, const char *revision, const char *commit, Error *error) {
    char known[HUB_COMMIT_DIGITS + 1];
    if (cache_commit(repo_folder, revision, known) && !strcmp(known, commit)) return true;
    Buffer path = {0};
    buffer_printf(&path, "%s/refs/%s", repo_folder, revision);
    const bool ok = make_parent(&path, error) && file_write_atomic(path.data, slice_of(commit), error);
    buffer_free(&path);
    return ok;
}

bool cache_begin(const HubSettings *settings, const char *repo, const char *repo_folder, Error *error) {
    Buffer path = {0};
    static const char *const folders[] = {"blobs", "snapshots", "trees"};
    bool ok = true;
    for (size_t i = 0; ok && i < COUNT_OF(folders); i++) {
        buffer_clear(&path);
        buffer_printf(&path, "%s/%s", repo_folder, folders[i]);
        ok = path.failed ? fail(error, ERROR_MEMORY, "no memory for a path") : file_make_directories(path.data, error);
    }
    if (ok) {
        buffer_clear(&path);
        buffer_printf(&path, "%s/.locks/", settings->cache);
        folder_name(repo, &path);
        ok = path.failed ? fail(error, ERROR_MEMORY, "no memory for a path") : file_make_directories(path.data, error);
    }
    if (ok) {
        Error ignored; /* it only helps backups */
        buffer_clear(&path);
        buffer_printf(&path, "%s/CACHEDIR.TAG", settings->cache);
        if (!path.failed && !file_exists(path.data))
            (void)!file_write_atomic(path.data, (Slice){backup_tag, sizeof backup_tag - 1}, &ignored);
    }
    buffer_free(&path);
    return ok || fail_while(error, "the cache of models (HF_HUB_CACHE)");
}

static void pointer_path(const char *repo_folder, const char *commit, const char *path, Buffer *out) {
    buffer_clear(out);
    buffer_printf(out, "%s/snapshots/%s/%s", repo_folder, commit, path);
}

static bool has_size(const Buffer *path, const HubFile *file) {
    struct stat status;
    return !path->failed && !stat(path->data, &status) && S_ISREG(status.st_mode) &&
        (file->size < 0 || status.st_size == file->size);
}

bool cache_has(const char *repo_folder, const char *commit, const HubFile *file) {
    Buffer path = {0};
    pointer_path(repo_folder, commit, file->path, &path);
    const bool there = has_size(&path, file);
    buffer_free(&path);
    return there;
}

bool cache_has_blob(const char *repo_folder, const HubFile *file) {
    Buffer path = {0};
    buffer_printf(&path, "%s/blobs/%s", repo_folder, file->etag);
    const bool there = has_size(&path, file);
    buffer_free(&path);
    return there;
}

bool cache_link(const char *repo_folder, const char *commit, const HubFile *file, Error *error) {
    if (cache_has(repo_folder, commit, file)) return true;
    Buffer path = {0}, target = {0}, blob = {0};
    pointer_path(repo_folder, commit, file->path, &path);
    buffer_text(&target, "../../");
    for (const char *c = file->path; *c; c++)
        if (*c == '/') buffer_text(&target, "../");
    buffer_printf(&target, "blobs/%s", file->etag);
    buffer_printf(&blob, "%s/blobs/%s", repo_folder, file->etag);
    bool ok = (!target.failed && !blob.failed) || fail(error, ERROR_MEMORY, "no memory for a path");
    ok = ok && make_parent(&path, error);
    if (ok && symlink(target.data, path.data) != 0) {
        if (errno == EEXIST) { /* broken or of another size: or another process was faster, which does no harm */
            unlink(path.data);
            ok = symlink(target.data, path.data) == 0 || errno == EEXIST;
        } else {
            ok = rename(blob.data, path.data) == 0;
        }
        if (!ok) fail(error, ERROR_IO, "cannot link %s: %s", path.data, strerror(errno));
    }
    buffer_free(&path);
    buffer_free(&target);
    buffer_free(&blob);
    return ok;
}

/* path: of a folder; from `root` on, its characters are the files' paths. */
static bool walk(Buffer *path, size_t root, int depth, HubTree *tree, Error *error) {
    DIR *list = depth < DEPTH_MAX ? opendir(path->data) : NULL;
    const size_t folder = path->size;
    bool ok = true;
    for (struct dirent *entry; ok && list && (entry = readdir(list));) {
        struct stat status;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        path->size = folder;
        buffer_printf(path, "/%s", entry->d_name);
        if (path->failed) {
            ok = fail(error, ERROR_MEMORY, "no memory for a path");
        } else if (stat(path->data, &status) || S_ISREG(status.st_mode)) {
            const bool broken = access(path->data, F_OK) != 0;
            const HubFile file = {.path = path->data + root, .size = broken ? -1 : (int64_t)status.st_size};
            if (hub_path_valid(slice_of(file.path)))
                ok = tree_add(tree, &file, error);
            else
                tree->skipped++;
        } else if (S_ISDIR(status.st_mode)) {
            ok = walk(path, root, depth + 1, tree, error);
        }
    }
    if (list) closedir(list);
    path->size = folder;
    if (path->data) path->data[folder] = '\0';
    return ok;
}

bool cache_walk(const char *snapshot, HubTree *tree, Error *error) {
    Buffer path = {0};
    *tree = (HubTree){0};
    buffer_text(&path, snapshot);
    const bool ok =
        path.failed ? fail(error, ERROR_MEMORY, "no memory for a path") : walk(&path, path.size + 1, 0, tree, error);
    buffer_free(&path);
    tree_sort(tree);
    if (!ok) tree_free(tree);
    return ok;
}

/* Who holds it may remove the file while another waits, so the lock counts only while the name is that file's. */
int cache_lock(const HubSettings *settings, const char *repo, const char *etag, bool *busy, Error *error) {
    Buffer path = {0};
    int fd = -1;
    *busy = false;
    buffer_printf(&path, "%s/.locks/", settings->cache);
    folder_name(repo, &path);
    buffer_printf(&path, "/%s.lock", etag);
    bool ok = !path.failed || fail(error, ERROR_MEMORY, "no memory for a path");
    for (int tries = 0; ok && fd < 0 && !*busy; tries++) {
        struct stat named, held;
        fd = open(path.data, O_RDWR | O_CREAT | O_CLOEXEC, LOCK_MODE);
        if (fd < 0 || tries == LOCK_TRIES) {
            ok = fail(error, ERROR_IO, "cannot open %s: %s", path.data, strerror(errno));
            break;
        }
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 && !fstat(fd, &held) && !stat(path.data, &named) &&
            held.st_ino == named.st_ino && held.st_dev == named.st_dev)
            break;
        *busy = errno == EWOULDBLOCK;
        close(fd);
        fd = -1;
    }
    buffer_free(&path);
    return fd;
}
