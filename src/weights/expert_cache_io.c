#include "weights/expert_cache_io.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "weights/expert_cache_io_internal.h"

static bool open_files(ExpertCacheIo *io, const char *const *paths, int count, Error *error) {
    io->files = calloc((size_t)count + 1, sizeof *io->files);
    if (!io->files) return fail(error, ERROR_MEMORY, "no memory for a table of files");
    for (int i = 0; i < count; i++) io->files[i] = (ExpertCacheFile){.path = paths[i], .fd = -1};
    io->file_count = count;
    for (int i = 0; i < count; i++)
        if (!expert_cache_file_open(&io->files[i], error)) return false;
    return true;
}

ExpertCacheIo *expert_cache_io_open(ExpertCacheIoKind kind, const char *const *paths, int count, int depth,
    const ExpertCacheFaults *faults, Error *error) {
    ExpertCacheIo *io = kind >= EXPERT_CACHE_IO_THREADS ? NULL : expert_cache_uring_open(depth, error);
    if (!io && kind == EXPERT_CACHE_IO_URING) {
        fail(error, ERROR_UNSUPPORTED, "this system does not let us use io_uring");
        return NULL;
    }
    if (!io) io = expert_cache_threads_open(depth, error);
    if (!io) return NULL;
    mutex_init(&io->fault_mutex);
    if (faults) io->faults = *faults;
    io->fault_state = io->faults.seed;
    if (!open_files(io, paths, count, error)) {
        expert_cache_io_close(io);
        return NULL;
    }
    return io;
}

bool expert_cache_io_buffer(ExpertCacheIo *io, bool keep) {
    io->keep = keep;
    for (int i = 0; i < io->file_count; i++) {
        ExpertCacheFile *file = &io->files[i];
#if defined(O_DIRECT)
        const int flags = fcntl(file->fd, F_GETFL);
        if (flags < 0 || fcntl(file->fd, F_SETFL, flags & ~O_DIRECT)) return false;
#elif defined(F_NOCACHE)
        if (fcntl(file->fd, F_NOCACHE, 0)) return false;
#endif
        file->direct = 0;
#ifdef POSIX_FADV_DONTNEED
        (void)posix_fadvise(file->fd, 0, 0, POSIX_FADV_RANDOM); /* what is asked for is all that is wanted */
#endif
    }
    return true;
}

void expert_cache_io_close(ExpertCacheIo *io) {
    if (!io) return;
    for (int i = 0; i < io->file_count; i++)
        if (io->files[i].fd >= 0) close(io->files[i].fd);
    free(io->files);
    mutex_destroy(&io->fault_mutex);
    io->ops->close(io);
}

const char *expert_cache_io_name(const ExpertCacheIo *io) {
    bool direct = true;
    for (int i = 0; i < io->file_count; i++) direct &= __atomic_load_n(&io->files[i].direct, __ATOMIC_RELAXED) != 0;
    static const char *const names[2][3] = {{"threads, buffered", "threads, direct", "threads, page cache"},
        {"io_uring, buffered", "io_uring, direct", "io_uring, page cache"}};
    return names[!strcmp(io->way, "io_uring")][io->keep ? 2 : direct];
}

size_t expert_cache_io_size(const ExpertCacheIo *io, int file) { return io->files[file].size; }
void expert_cache_io_submit(ExpertCacheIo *io, ExpertCacheRead *read) {
    read->done = 0;
    read->tries = read->stalls = 0;
    io->ops->submit(io, read);
}
ExpertCacheRead *expert_cache_io_wait(ExpertCacheIo *io, int timeout_ms) { return io->ops->wait(io, timeout_ms); }
void expert_cache_io_forget(ExpertCacheIo *io) {
#ifdef POSIX_FADV_DONTNEED
    for (int i = 0; i < io->file_count; i++) (void)posix_fadvise(io->files[i].fd, 0, 0, POSIX_FADV_DONTNEED);
#endif
}

void expert_cache_io_stop(ExpertCacheIo *io) { __atomic_store_n(&io->stopping, 1, __ATOMIC_RELAXED); }

bool expert_cache_io_check(ExpertCacheIo *io, Error *error) {
    bool ok = true;
    for (int i = 0; ok && i < io->file_count; i++) ok = expert_cache_file_check(&io->files[i], error);
    return ok;
}
