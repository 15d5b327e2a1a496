#include "import/partial.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

bool partial_names(PartialNames *names, const char *directory, Error *error) {
    size_t length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/') length--;
    if (length == 0 || length >= sizeof names->directory)
        return fail(error, ERROR_USAGE, "not a usable directory: %s", directory);
    memcpy(names->directory, directory, length);
    names->directory[length] = '\0';
    snprintf(names->partial, sizeof names->partial, "%s.partial", names->directory);
    return true;
}

void partial_clear(const char *directory) {
    DIR *list = opendir(directory);
    for (struct dirent *item; list && (item = readdir(list));) {
        char path[PARTIAL_PATH_MAX + 300];
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
        snprintf(path, sizeof path, "%s/%s", directory, item->d_name);
        unlink(path);
    }
    if (list) closedir(list);
}

void partial_remove(const char *directory) {
    partial_clear(directory);
    rmdir(directory);
}

int partial_lock(const char *partial, bool *same, Error *error) {
    if (mkdir(partial, 0777) != 0 && errno != EEXIST) {
        return fail(error, ERROR_IO, "cannot create %s: %s", partial, strerror(errno)), -1;
    }
    struct stat named, locked;
    int fd = open(partial, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) {
        *same = false;
        return -1;
    }
    if (fd < 0) return fail(error, ERROR_IO, "cannot open %s: %s", partial, strerror(errno)), -1;
    while (flock(fd, LOCK_EX) != 0) {
        if (errno == EINTR) continue;
        fail(error, ERROR_IO, "cannot lock %s: %s", partial, strerror(errno));
        close(fd);
        return -1;
    }
    *same = fstat(fd, &locked) == 0 && stat(partial, &named) == 0 && locked.st_ino == named.st_ino &&
        locked.st_dev == named.st_dev;
    return fd;
}

void partial_sync_parent(const char *path) {
    char parent[PARTIAL_PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

static bool fail_exists(const char *directory, Error *error) {
    return fail(error, ERROR_USAGE, "%s exists: name a directory that does not, or remove it", directory);
}

static bool build_locked(const PartialNames *names, PartialBuild *build, void *context, Error *error) {
    if (file_exists(names->directory)) { /* made by another process just now */
        partial_remove(names->partial);
        return fail_exists(names->directory, error);
    }
    partial_clear(names->partial); /* left by a process that died */
    bool ok = build(context, names->partial, error);
    if (ok && rename(names->partial, names->directory) != 0)
        ok = fail(error, ERROR_IO, "cannot rename %s to %s: %s", names->partial, names->directory, strerror(errno));
    if (ok)
        partial_sync_parent(names->directory);
    else
        partial_remove(names->partial);
    return ok;
}

bool partial_build(const char *directory, PartialBuild *build, void *context, Error *error) {
    PartialNames names;
    if (!partial_names(&names, directory, error)) return false;
    for (;;) {
        bool same = true;
        if (file_exists(names.directory)) return fail_exists(names.directory, error);
        const int fd = partial_lock(names.partial, &same, error);
        if (fd < 0 && same) return false;
        if (fd < 0) continue;
        const bool ok = same && build_locked(&names, build, context, error);
        close(fd);
        if (same) return ok;
    }
}
