#include "weights/bank_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "weights/bank_io_internal.h"

static bool open_file(BankFile *file, const char *path, Error *error) {
    struct stat info;
#ifdef O_DIRECT
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
    file->direct = file->fd >= 0;
#endif
    if (file->fd < 0) file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0 || fstat(file->fd, &info))
        return fail(error, ERROR_IO, "cannot open %s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return fail(error, ERROR_IO, "%s is no plain file", path);
    /* It was for what is no plain file. io_uring would answer EAGAIN for ever where a drive cannot but wait (md before
     * Linux 5.17). */
    const int flags = fcntl(file->fd, F_GETFL);
    if (flags >= 0) (void)fcntl(file->fd, F_SETFL, flags & ~O_NONBLOCK);
    file->size = (size_t)info.st_size;
#ifdef F_NOCACHE
    file->direct = fcntl(file->fd, F_NOCACHE, 1) == 0;
#endif
    return true;
}

static bool open_files(BankIo *io, const char *const *paths, int count, Error *error) {
    io->files = calloc((size_t)count + 1, sizeof *io->files);
    if (!io->files) return fail(error, ERROR_MEMORY, "no memory for a table of files");
    for (int i = 0; i < count; i++) io->files[i].fd = -1;
    io->file_count = count;
    for (int i = 0; i < count; i++)
        if (!open_file(&io->files[i], paths[i], error)) return false;
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
    static const char *const names[2][2] = {
        {"threads, buffered", "threads, direct"}, {"io_uring, buffered", "io_uring, direct"}};
    return names[!strcmp(io->way, "io_uring")][direct];
}

size_t bank_io_size(const BankIo *io, int file) { return io->files[file].size; }
void bank_io_submit(BankIo *io, BankRead *read) {
    read->done = 0;
    read->tries = read->stalls = 0;
    io->ops->submit(io, read);
}
BankRead *bank_io_wait(BankIo *io, bool block) { return io->ops->wait(io, block); }
