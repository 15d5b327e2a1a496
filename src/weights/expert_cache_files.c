/* The files that experts lie in: opened to be read around the page cache, and told from what may replace them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "weights/expert_cache_io_internal.h"

enum { SAMPLES = 32 /* blocks, spread evenly: of another checkpoint of the same shape all but the header differ */ };

static int64_t later(struct timespec a, struct timespec b) {
    const int64_t x = a.tv_sec * INT64_C(1000000000) + a.tv_nsec, y = b.tv_sec * INT64_C(1000000000) + b.tv_nsec;
    return x > y ? x : y;
}

/* mtime can be set by a program that replaces the contents, ctime cannot. */
static int64_t changed_ns(const struct stat *info) {
#ifdef __APPLE__
    return later(info->st_mtimespec, info->st_ctimespec);
#else
    return later(info->st_mtim, info->st_ctim);
#endif
}

static bool read_block(ExpertCacheFile *file, uint8_t *block, off_t offset, ssize_t *size) {
    do {
        *size = pread(file->fd, block, EXPERT_CACHE_ALIGN, offset);
#ifdef O_DIRECT
        if (*size < 0 && errno == EINVAL && __atomic_exchange_n(&file->direct, 0, __ATOMIC_RELAXED)) {
            (void)fcntl(file->fd, F_SETFL, 0); /* the file system opens files so and does not read them so */
            errno = EINTR;
        }
#endif
    } while (*size < 0 && errno == EINTR);
    return *size >= 0;
}

/* A checksum of SAMPLES blocks, spread over the file. */
static bool take_sample(ExpertCacheFile *file, uint64_t *sample) {
    void *block = NULL;
    if (posix_memalign(&block, EXPERT_CACHE_ALIGN, EXPERT_CACHE_ALIGN)) return false;
    uint64_t hash = 0;
    bool ok = true;
    for (uint64_t i = 0; ok && i < SAMPLES; i++) {
        ssize_t size;
        ok =
            read_block(file, block, (off_t)(file->size / SAMPLES * i / EXPERT_CACHE_ALIGN * EXPERT_CACHE_ALIGN), &size);
        if (ok) hash = checksum64_seeded(hash, block, (size_t)size);
    }
    free(block);
    *sample = hash;
    return ok;
}

bool expert_cache_file_open(ExpertCacheFile *file, Error *error) {
    struct stat info;
#ifdef O_DIRECT
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
    file->direct = file->fd >= 0;
#endif
    if (file->fd < 0) file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0 || fstat(file->fd, &info))
        return fail(error, ERROR_IO, "cannot open %s: %s", file->path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return fail(error, ERROR_IO, "%s is no plain file", file->path);
    /* It was for what is no plain file. io_uring would answer EAGAIN for ever where a drive cannot but wait (md before
     * Linux 5.17). */
    const int flags = fcntl(file->fd, F_GETFL);
    if (flags >= 0) (void)fcntl(file->fd, F_SETFL, flags & ~O_NONBLOCK);
    file->size = (size_t)info.st_size;
    file->changed_ns = changed_ns(&info);
#ifdef F_NOCACHE
    file->direct = fcntl(file->fd, F_NOCACHE, 1) == 0;
#endif
    return take_sample(file, &file->sample) || fail(error, ERROR_IO, "cannot read %s: %s", file->path, strerror(errno));
}

bool expert_cache_file_check(ExpertCacheFile *file, Error *error) {
    struct stat info;
    uint64_t sample;
    if (fstat(file->fd, &info)) return fail(error, ERROR_IO, "cannot look at %s: %s", file->path, strerror(errno));
    if ((size_t)info.st_size < file->size)
        return fail(error, ERROR_IO, "%s became shorter while it was in use", file->path);
    if (changed_ns(&info) == file->changed_ns && (size_t)info.st_size == file->size) return true;
    if (!take_sample(file, &sample)) return fail(error, ERROR_IO, "cannot read %s: %s", file->path, strerror(errno));
    if (sample != file->sample || (size_t)info.st_size != file->size)
        return fail(error, ERROR_IO, "%s was replaced while it was in use: the model must be loaded again", file->path);
    file->changed_ns = changed_ns(&info);
    return true;
}
