/* What both ways of reading share. */
#pragma once
#include "base/thread.h"
#include "weights/bank_io.h"

typedef struct BankFile {
    const char *path; /* whoever opened it keeps it */
    int fd;
    size_t size;
    int direct;         /* 1: around the page cache. Read and written atomically */
    int64_t changed_ns; /* of its contents or its inode, when it was looked at last; */
    uint64_t sample;    /* of its blocks when it was opened */
} BankFile;

typedef struct BankIoOps {
    void (*submit)(BankIo *, BankRead *);
    BankRead *(*wait)(BankIo *, int timeout_ms);
    void (*close)(BankIo *);
} BankIoOps;

struct BankIo { /* first member of each way's own struct */
    const BankIoOps *ops;
    const char *way;
    BankFile *files;
    int file_count;
    BankFaults faults;
    Mutex fault_mutex;
    uint64_t fault_state;
    int stopping; /* read and written atomically */
    bool keep;    /* the page cache may keep what is read through it */
};

/* bank_read.c. What became of one call for the rest of a read: bytes, or −errno. True: the read is finished. False: the
 * rest, from `done` on, is to be asked for again. */
bool bank_read_advance(BankIo *io, BankRead *read, int64_t result);
/* A fault: no answer comes. */
bool bank_read_hangs(BankIo *io);
void bank_pause_ms(int milliseconds);

/* bank_files.c. file->path is set. */
NODISCARD bool bank_file_open(BankFile *file, Error *error);
NODISCARD bool bank_file_check(BankFile *file, Error *error);

/* NULL without an error: the system does not have it. */
NODISCARD BankIo *bank_uring_open(int depth, Error *error);
NODISCARD BankIo *bank_threads_open(int depth, Error *error);
