/* The files of a store, and the index of their records. One thread at a time; spill_store_write(), spill_store_drop():
 * any thread. */
#pragma once
#include "cache/spill.h"

typedef struct SpillSegment {
    struct SpillSegment *next; /* the next one in the order of writing */
    uint32_t number;           /* in its name */
    int file;
    uint64_t size;
} SpillSegment;

typedef struct SpillPlace {
    SpillKey key;
    SpillSegment *segment; /* NULL: the slot is free */
    uint64_t offset;       /* offset of the record's head */
    uint64_t size;         /* number of its bytes; 0: it was damaged */
} SpillPlace;

typedef struct SpillStore {
    int directory, lock; /* open files; −1: not */
    uint64_t limit, bytes;
    uint32_t next_number;
    SpillSegment *oldest, *newest, *current; /* current: being written, the newest or NULL */
    SpillPlace *slots;                       /* open addressing, at most half full */
    size_t slot_count, record_count;
    uint64_t ignored; /* files and ends of files that are not what they should be */
} SpillStore;

NODISCARD bool spill_store_open(SpillStore *store, const char *directory, uint64_t limit, Error *error);
void spill_store_close(SpillStore *store); /* safe on a zeroed one */

/* NULL: it is not there. */
SpillPlace *spill_store_find(const SpillStore *store, SpillKey key);
/* False: the record is damaged; it is removed from the index. */
NODISCARD bool spill_store_read(SpillStore *store, SpillPlace *place, void *out);

/* Decides the place of a record; the oldest files leave the index, for spill_store_drop(). */
NODISCARD bool spill_store_prepare(
    SpillStore *store, SpillKey key, size_t size, SpillPlace *place, SpillSegment **removed, Error *error);

NODISCARD bool spill_store_write(const SpillStore *store, const SpillPlace *place, const void *bytes, Error *error);
/* Ends what prepare began: written adds the record to the index, otherwise its place is given up. */
NODISCARD bool spill_store_commit(SpillStore *store, const SpillPlace *place, bool written);
/* Closes and deletes the files that left the index. */
void spill_store_drop(const SpillStore *store, SpillSegment *removed);
