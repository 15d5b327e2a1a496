/* Reading pieces of files in the background: by io_uring, or by threads where the system has none or forbids it. Both
 * read around the page cache where the file system lets them, so that what is read is held once.
 * Threads: one that submits and waits. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    BANK_ALIGN = 4096,   /* of offsets, sizes and addresses: no drive wants more */
    BANK_TRIES_MAX = 3,  /* of a read that fails, with a pause before each further one */
    BANK_STALLS_MAX = 8, /* calls that bring less than a block: then the file ends there */
};

/* `size` bytes from `offset` to `to`, all multiples of BANK_ALIGN; the file may end after `need` of them. */
typedef struct BankRead BankRead;
struct BankRead {
    int file;
    uint64_t offset;
    size_t size, need;
    uint8_t *to;
    int owner;   /* the submitter's */
    int error;   /* when it is finished: 0, an errno, or BANK_SHORT */
    size_t done; /* the rest is the reader's */
    int tries, stalls;
    BankRead *next;
};
enum { BANK_SHORT = -1 }; /* the file ends before `need` bytes */

/* For tests: what goes wrong with single calls, by chance. */
typedef struct BankFaults {
    double fail, cut, hang; /* chances of EIO, of fewer bytes than asked for, of no answer for long */
    int slow_ms;            /* before each read */
    int silence_ms;         /* instead of BANK_SILENCE_MS; 0: as ever */
    uint64_t seed;
} BankFaults;
/* "fail:0.001,cut:0.1,hang:0.0001,slow:5,silence:500,seed:7", each of them or not; NULL: none. */
NODISCARD bool bank_faults_read(const char *text, BankFaults *out, Error *error);

typedef enum BankIoKind { BANK_IO_AUTO, BANK_IO_URING, BANK_IO_THREADS } BankIoKind;
typedef struct BankIo BankIo;

/* AUTO: io_uring where it is to be had. paths: files that stay open. depth: most reads under way. */
NODISCARD BankIo *bank_io_open(
    BankIoKind kind, const char *const *paths, int count, int depth, const BankFaults *faults, Error *error);
/* Reads go through the page cache from here on, which keeps nothing of them unless it shall. False: the system cannot.
 */
NODISCARD bool bank_io_buffer(BankIo *io, bool keep);
void bank_io_close(BankIo *io);                  /* nothing may be under way; NULL is fine */
const char *bank_io_name(const BankIo *io);      /* "io_uring, direct" */
size_t bank_io_size(const BankIo *io, int file); /* of the file when it was opened */
/* Takes the files out of the page cache, but for what is mapped and in use. */
void bank_io_forget(BankIo *io);
/* Begins a read, which stays where it is until it is finished. Others of the same batch may still come: bank_io_wait
 * lets them all go. */
void bank_io_submit(BankIo *io, BankRead *read);
/* A finished read, waited for so long at most; NULL: there is none. At once when none is under way. */
BankRead *bank_io_wait(BankIo *io, int timeout_ms);
/* Nothing more will be submitted: what faults have hang comes back. */
void bank_io_stop(BankIo *io);
/* False when a file may hold something else than when it was opened: it has another size, or was written to and a
 * sample of its blocks is another. A file that was given its old contents again is as it was. */
NODISCARD bool bank_io_check(BankIo *io, Error *error);
