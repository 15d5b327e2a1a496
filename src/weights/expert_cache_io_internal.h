/* What both ways of reading share. */
#pragma once
#include "base/thread.h"
#include "weights/expert_cache_io.h"

typedef struct ExpertCacheFile {
    const char *path; /* borrowed from the caller of open */
    int fd;
    size_t size;
    int direct;         /* 1: around the page cache. Read and written atomically */
    int64_t changed_ns; /* later of mtime and ctime at the last check */
    uint64_t sample;    /* hash of sampled blocks when it was opened */
} ExpertCacheFile;

typedef struct ExpertCacheIoOps {
    void (*submit)(ExpertCacheIo *, ExpertCacheRead *);
    ExpertCacheRead *(*wait)(ExpertCacheIo *, int timeout_ms);
    void (*close)(ExpertCacheIo *);
} ExpertCacheIoOps;

struct ExpertCacheIo { /* first member of each way's own struct */
    const ExpertCacheIoOps *ops;
    const char *way;
    ExpertCacheFile *files;
    int file_count;
    ExpertCacheFaults faults;
    Mutex fault_mutex;
    uint64_t fault_state;
    int stopping; /* read and written atomically */
    bool keep;    /* the page cache may keep what is read through it */
};

/* expert_cache_read.c. What became of one call for the rest of a read: bytes, or −errno. True: the read is finished.
 * False: the rest, from `done` on, is to be asked for again. */
bool expert_cache_read_advance(ExpertCacheIo *io, ExpertCacheRead *read, int64_t result);
/* A fault: no answer comes. */
bool expert_cache_read_hangs(ExpertCacheIo *io);
void expert_cache_pause_ms(int milliseconds);

/* expert_cache_files.c. file->path is set. */
NODISCARD bool expert_cache_file_open(ExpertCacheFile *file, Error *error);
NODISCARD bool expert_cache_file_check(ExpertCacheFile *file, Error *error);

/* NULL without an error: the system does not have it. */
NODISCARD ExpertCacheIo *expert_cache_uring_open(int depth, Error *error);
NODISCARD ExpertCacheIo *expert_cache_threads_open(int depth, Error *error);
