/* The disk tier: byte strings by key, in the files of one directory. What is put is written behind by a thread of its
 * own; the caller never waits for a disk that writes. The files are bounded: the oldest go first. Whatever is wrong
 * with a file costs what it held, and one line: a torn end, foreign bytes, a full or failing disk (which ends the
 * writing; what is there can still be read).
 *
 * A store belongs to one process at a time. Files are named pages-XXXXXXXX, in the order of writing, for their owner
 * only; their names and keys tell nothing of what they hold. A file is records, one after another, all numbers
 * little-endian: a head of SPILL_HEAD_BYTES (spill_store.c), then the bytes. It is not synced: a record that a crash
 * has torn is seen by its checksum. Threads: any; put, find and get may wait for each other's reads. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    SPILL_HEAD_BYTES = 64,
    SPILL_BYTES_LEAST = 1 << 20, /* of a store */
};

/* Names what it stands for: nobody can find two chains of bytes with one key. */
typedef struct SpillKey {
    uint64_t word[2];
} SpillKey;
/* The key of what follows `before`: half of a SHA-256 of both. */
SpillKey spill_key(SpillKey before, const void *bytes, size_t size);

typedef struct SpillOptions {
    const char *directory; /* nothing else belongs there; made if need be */
    uint64_t bytes;        /* that the files may take, ≥ SPILL_BYTES_LEAST */
    size_t queue_bytes;    /* of memory that may wait to be written */
    /* What somebody should know, by any thread; no line comes twice. */
    void (*warn)(void *context, const char *line);
    void *warn_context;
} SpillOptions;

typedef struct SpillStats {
    bool writes;             /* false: the disk was full or failed */
    uint64_t records, bytes; /* in the files */
    uint64_t written, written_bytes, read, read_bytes;
    uint64_t dropped; /* because the queue was full, or the writing had ended */
    uint64_t damaged; /* records that were not what they should be */
} SpillStats;

typedef struct Spill Spill;

/* Reads the heads of what is there. ERROR_BUSY: another process has the directory. */
NODISCARD Spill *spill_open(const SpillOptions *options, Error *error);
void spill_close(Spill *spill); /* when all that waits is written; NULL is fine */
void spill_flush(Spill *spill); /* returns when nothing waits */

/* Whether so many bytes would be queued now. */
bool spill_room(Spill *spill, size_t size);
/* bytes: from malloc, taken over; dropped when there is no room or the key is there already. */
void spill_put(Spill *spill, SpillKey key, void *bytes, size_t size);
size_t spill_find(Spill *spill, SpillKey key); /* its bytes; 0: it is not there */
/* size is what spill_find said. False: it is gone, or was damaged, and is not there any more. */
NODISCARD bool spill_get(Spill *spill, SpillKey key, void *out, size_t size);
SpillStats spill_stats(Spill *spill);
