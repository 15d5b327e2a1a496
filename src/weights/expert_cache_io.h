/* Reading pieces of files in the background: by io_uring, or by threads where the system has none or forbids it. Both
 * read around the page cache where the file system lets them, so that what is read is held once.
 * Threads: one that submits and waits. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    EXPERT_CACHE_ALIGN = 4096,   /* alignment of offsets, sizes and addresses: no drive needs more */
    EXPERT_CACHE_TRIES_MAX = 3,  /* attempts per read, with a pause before each retry */
    EXPERT_CACHE_STALLS_MAX = 8, /* calls that bring less than a block: then the file ends there */
};

/* `size` bytes from `offset` to `to`, all multiples of EXPERT_CACHE_ALIGN; the file may end after `need` of them. */
typedef struct ExpertCacheRead ExpertCacheRead;
struct ExpertCacheRead {
    int file;
    uint64_t offset;
    size_t size, need;
    uint8_t *to;
    int owner;   /* the submitter's */
    int error;   /* when it is finished: 0, an errno, or EXPERT_CACHE_SHORT */
    size_t done; /* the rest is the reader's */
    int tries, stalls;
    ExpertCacheRead *next;
};
enum { EXPERT_CACHE_SHORT = -1 }; /* the file ends before `need` bytes */

/* For tests: faults of single reads, by chance. All zero: none. */
typedef struct ExpertCacheFaults {
    double fail, cut, hang; /* chances of EIO, of fewer bytes than asked for, of an answer after too long */
    int slow_ms;            /* before each read */
    int silence_ms;         /* replaces EXPERT_CACHE_SILENCE_MS; 0: does not */
    uint64_t seed;
} ExpertCacheFaults;

typedef enum ExpertCacheIoKind {
    EXPERT_CACHE_IO_AUTO, /* io_uring if the system has it, else threads */
    EXPERT_CACHE_IO_URING,
    EXPERT_CACHE_IO_THREADS,
    EXPERT_CACHE_IO_PAGE_CACHE, /* threads that read through the page cache and keep the pages: a baseline */
} ExpertCacheIoKind;
typedef struct ExpertCacheIo ExpertCacheIo;

/* AUTO: io_uring where it is to be had. paths: files that stay open. depth: most reads under way. */
NODISCARD ExpertCacheIo *expert_cache_io_open(ExpertCacheIoKind kind, const char *const *paths, int count, int depth,
    const ExpertCacheFaults *faults, Error *error);
/* Reads go through the page cache from here on, which keeps nothing of them unless it shall. False: the system cannot.
 */
NODISCARD bool expert_cache_io_buffer(ExpertCacheIo *io, bool keep);
void expert_cache_io_close(ExpertCacheIo *io);                  /* nothing may be under way; NULL is fine */
const char *expert_cache_io_name(const ExpertCacheIo *io);      /* "io_uring, direct" */
size_t expert_cache_io_size(const ExpertCacheIo *io, int file); /* size of the file when it was opened */
/* Takes the files out of the page cache, but for what is mapped and in use. */
void expert_cache_io_forget(ExpertCacheIo *io);
/* Begins a read, which stays where it is until it is finished. Others of the same batch may still come:
 * expert_cache_io_wait lets them all go. */
void expert_cache_io_submit(ExpertCacheIo *io, ExpertCacheRead *read);
/* A finished read, waited for so long at most; NULL: there is none. At once when none is under way. */
ExpertCacheRead *expert_cache_io_wait(ExpertCacheIo *io, int timeout_ms);
/* Nothing more will be submitted: what faults have hang comes back. */
void expert_cache_io_stop(ExpertCacheIo *io);
/* False when a file may hold something else than when it was opened: it has another size, or was written to and a
 * sample of its blocks is another. A file that was given its old contents again is as it was. */
NODISCARD bool expert_cache_io_check(ExpertCacheIo *io, Error *error);
