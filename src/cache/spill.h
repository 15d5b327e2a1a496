/* The store of the disk tier: records of bytes, found by key, in the files of one directory. A thread of its own writes
 * them; a caller never waits for a disk that writes. The total size of the files is bounded: the oldest are removed
 * first. A fault of a file costs its records and one warning: a torn end, foreign bytes, a full or failing disk (which
 * ends writing; existing records can still be read).
 *
 * One process at a time uses a directory. Files are named pages-XXXXXXXX in the order of writing and are readable by
 * their owner only; names and keys reveal nothing of the contents. A file is a sequence of records, all numbers
 * little-endian: a head of SPILL_HEAD_BYTES (spill_store.c), then the bytes. Files are not synced: a checksum reveals a
 * record that a crash has torn. Threads: any; put, find and get may wait for each other's reads. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    SPILL_HEAD_BYTES = 64,
    SPILL_BYTES_LEAST = 1 << 20, /* least limit of a store */
};

/* The key of a record: half of a SHA-256 digest. The text of users decides keys, and a record found by its key is used
 * without comparing texts, so it must be infeasible to construct two texts with one key. */
typedef struct SpillKey {
    uint64_t word[2];
} SpillKey;
/* The key of `bytes` behind everything that `before` stands for. Does not allocate. */
SpillKey spill_key(SpillKey before, const void *bytes, size_t size);

typedef struct SpillOptions {
    const char *directory; /* created if missing; contains nothing but the store */
    uint64_t bytes;        /* limit of all files, ≥ SPILL_BYTES_LEAST */
    size_t record_bytes;   /* bytes of the largest record */
    int buffers;           /* records that can wait to be written; their memory is allocated at open */
    /* Called by any thread with a line for the log; no line is repeated. NULL: no warnings. */
    void (*warn)(void *context, const char *line);
    void *warn_context;
} SpillOptions;

typedef struct SpillStats {
    bool writes;             /* false: the disk was full or failed, and writing has ended */
    uint64_t records, bytes; /* in the files */
    uint64_t written, written_bytes, read, read_bytes;
    uint64_t dropped; /* records that were not written: every buffer was waiting, or writing had ended */
    uint64_t damaged; /* records whose bytes did not match their checksum */
} SpillStats;

typedef struct Spill Spill;

/* Indexes the records that the directory has. ERROR_BUSY: another process uses the directory. */
NODISCARD Spill *spill_open(const SpillOptions *options, Error *error);
void spill_close(Spill *spill); /* returns when all waiting records are written; NULL is fine */
void spill_flush(Spill *spill); /* returns when no record is waiting */

/* A buffer of record_bytes for one record, to be passed to spill_put() or spill_cancel(). NULL: every buffer is waiting
 * to be written, or writing has ended; the record counts as dropped. Does not allocate. */
void *spill_buffer(Spill *spill);
/* Queues the first `size` bytes of the buffer, size ≤ record_bytes, unless the key is known already. */
void spill_put(Spill *spill, SpillKey key, void *buffer, size_t size);
void spill_cancel(Spill *spill, void *buffer); /* returns a buffer unused */
size_t spill_find(Spill *spill, SpillKey key); /* size of the record; 0: there is none */
/* Copies a record to out; size as returned by spill_find(). False: the record is gone or was damaged; a damaged record
 * is removed. */
NODISCARD bool spill_get(Spill *spill, SpillKey key, void *out, size_t size);
SpillStats spill_stats(Spill *spill);
