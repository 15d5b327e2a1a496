/* The life of one read, independent of the I/O implementation. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "weights/expert_cache_io_internal.h"

enum { PAUSE_MS = 10 /* before the second try; twice that before the third */ };

/* ---- faults ---- */

static double chance(ExpertCacheIo *io) {
    mutex_lock(&io->fault_mutex);
    uint64_t z = io->fault_state += 0x9E3779B97F4A7C15u;
    mutex_unlock(&io->fault_mutex);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

void expert_cache_pause_ms(int milliseconds) {
    const struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    (void)nanosleep(&time, NULL);
}

static int64_t with_faults(ExpertCacheIo *io, int64_t result) {
    if (io->faults.slow_ms) expert_cache_pause_ms(io->faults.slow_ms);
    if (io->faults.fail > 0 && chance(io) < io->faults.fail) return -EIO;
    if (result > EXPERT_CACHE_ALIGN && io->faults.cut > 0 && chance(io) < io->faults.cut)
        return (int64_t)((double)result * chance(io));
    return result;
}

bool expert_cache_read_hangs(ExpertCacheIo *io) {
    return io->faults.hang > 0 && !__atomic_load_n(&io->stopping, __ATOMIC_RELAXED) && chance(io) < io->faults.hang;
}

/* ---- a read ---- */

static bool finished(ExpertCacheIo *io, ExpertCacheRead *read, int error) {
    read->error = error;
#ifdef POSIX_FADV_DONTNEED
    const ExpertCacheFile *file = &io->files[read->file];
    if (!io->keep && !__atomic_load_n(&file->direct, __ATOMIC_RELAXED)) /* the page cache need not hold it as well */
        (void)posix_fadvise(file->fd, (off_t)read->offset, (off_t)read->size, POSIX_FADV_DONTNEED);
#endif
    return true;
}

bool expert_cache_read_advance(ExpertCacheIo *io, ExpertCacheRead *read, int64_t result) {
    result = with_faults(io, result);
    if (result == -EINTR) return false;
#ifdef O_DIRECT
    ExpertCacheFile *file = &io->files[read->file];
    if (result == -EINVAL && __atomic_exchange_n(&file->direct, 0, __ATOMIC_RELAXED)) {
        (void)fcntl(file->fd, F_SETFL, 0); /* the file system opens files so and does not read them so */
        return false;
    }
#endif
    if (result < 0) {
        if (++read->tries >= EXPERT_CACHE_TRIES_MAX) return finished(io, read, (int)-result);
        expert_cache_pause_ms(PAUSE_MS << (read->tries - 1));
        return false;
    }
    const size_t before = read->done, end = before + (size_t)result;
    if (end >= read->need) return finished(io, read, 0);
    read->done = end / EXPERT_CACHE_ALIGN * EXPERT_CACHE_ALIGN;
    if (read->done > before) return false;
    if (result > 0 && ++read->stalls < EXPERT_CACHE_STALLS_MAX) return false; /* less than a block */
    return finished(io, read, EXPERT_CACHE_SHORT);
}
