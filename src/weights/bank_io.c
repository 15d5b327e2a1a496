#include "weights/bank_io.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "weights/bank_io_internal.h"

static bool open_files(BankIo *io, const char *const *paths, int count, Error *error) {
    io->files = calloc((size_t)count + 1, sizeof *io->files);
    if (!io->files) return fail(error, ERROR_MEMORY, "no memory for a table of files");
    for (int i = 0; i < count; i++) io->files[i] = (BankFile){.path = paths[i], .fd = -1};
    io->file_count = count;
    for (int i = 0; i < count; i++)
        if (!bank_file_open(&io->files[i], error)) return false;
    return true;
}

BankIo *bank_io_open(
    BankIoKind kind, const char *const *paths, int count, int depth, const BankFaults *faults, Error *error) {
    BankIo *io = kind == BANK_IO_THREADS ? NULL : bank_uring_open(depth, error);
    if (!io && kind == BANK_IO_URING) {
        fail(error, ERROR_UNSUPPORTED, "this system does not let us use io_uring");
        return NULL;
    }
    if (!io) io = bank_threads_open(depth, error);
    if (!io) return NULL;
    mutex_init(&io->fault_mutex);
    if (faults) io->faults = *faults;
    io->fault_state = io->faults.seed;
    if (!open_files(io, paths, count, error)) {
        bank_io_close(io);
        return NULL;
    }
    return io;
}

bool bank_io_buffer(BankIo *io, bool keep) {
    io->keep = keep;
    for (int i = 0; i < io->file_count; i++) {
        BankFile *file = &io->files[i];
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

void bank_io_close(BankIo *io) {
    if (!io) return;
    for (int i = 0; i < io->file_count; i++)
        if (io->files[i].fd >= 0) close(io->files[i].fd);
    free(io->files);
    mutex_destroy(&io->fault_mutex);
    io->ops->close(io);
}

const char *bank_io_name(const BankIo *io) {
    bool direct = true;
    for (int i = 0; i < io->file_count; i++) direct &= __atomic_load_n(&io->files[i].direct, __ATOMIC_RELAXED) != 0;
    static const char *const names[2][3] = {{"threads, buffered", "threads, direct", "threads, page cache"},
        {"io_uring, buffered", "io_uring, direct", "io_uring, page cache"}};
    return names[!strcmp(io->way, "io_uring")][io->keep ? 2 : direct];
}

size_t bank_io_size(const BankIo *io, int file) { return io->files[file].size; }
void bank_io_submit(BankIo *io, BankRead *read) {
    read->done = 0;
    read->tries = read->stalls = 0;
    io->ops->submit(io, read);
}
BankRead *bank_io_wait(BankIo *io, int timeout_ms) { return io->ops->wait(io, timeout_ms); }
void bank_io_forget(BankIo *io) {
#ifdef POSIX_FADV_DONTNEED
    for (int i = 0; i < io->file_count; i++) (void)posix_fadvise(io->files[i].fd, 0, 0, POSIX_FADV_DONTNEED);
#endif
}

void bank_io_stop(BankIo *io) { __atomic_store_n(&io->stopping, 1, __ATOMIC_RELAXED); }

bool bank_io_check(BankIo *io, Error *error) {
    bool ok = true;
    for (int i = 0; ok && i < io->file_count; i++) ok = bank_file_check(&io->files[i], error);
    return ok;
}
