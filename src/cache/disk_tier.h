/* The disk tier: full pages of sequences in files, found again by a later process. A page is written when it is full,
 * in full precision and canonical form (kv_page.h); quantised pages are made again from it with the same result.
 *
 * Each page has a key that stands for everything that decides its bytes: the identity of the computation (the directory
 * of the store), cache salt, KV format, and the content ids of all positions up to the end of the page. A sequence
 * carries the key of its last full page (KvSequence.tail_key), so every page is hashed once. Threads: the engine
 * thread. */
#pragma once
#include "base/slice.h"
#include "cache/kv_cache.h"
#include "cache/spill.h"

typedef struct DiskTier DiskTier;

typedef struct DiskTierOptions {
    const char *directory; /* the store is a folder in it that is named after the identity */
    uint64_t bytes;        /* limit of the store's files */
    Slice identity;        /* describes what computed the pages: model files, arithmetic, options that change results */
    void (*warn)(void *context, const char *line); /* as of SpillOptions */
} DiskTierOptions;

/* The cache is borrowed and outlives the tier. NULL with ERROR_BUSY: another process has the directory; with any other
 * code: it cannot be used. */
NODISCARD DiskTier *disk_tier_open(const DiskTierOptions *options, KvCache *kv, Error *error);
void disk_tier_close(DiskTier *tier); /* returns when all pages are written; NULL is fine */

/* What identifies the contents of a sequence's pages. */
typedef struct SequenceText {
    uint64_t salt; /* sequences of different salts never share pages */
    const KvFormat *format;
    int first;           /* position of ids[0]: a multiple of KV_PAGE_TOKENS, ≤ disk_tier_position() */
    const uint64_t *ids; /* content id of each position from `first` on; a token's content id is its id */
} SequenceText;

/* The first position whose content id the calls below read: earlier ones are part of the running key. */
int disk_tier_position(const KvSequence *sequence);
/* Writes the pages that are full at length `end`. Called when the rows up to `end` are computed and before
 * kv_advance(), which must follow with that length. text: up to `end`. Neither waits nor allocates: a page for which no
 * buffer is free is not written. */
void disk_tier_put(DiskTier *tier, const SequenceText *text, KvSequence *sequence, int end);
/* Writes the state of recurrent entries at the sequence's length, with the begun page: a later process can go on from
 * there. For the places where a sequence is published to the prefix cache. text: up to the length. No effect without
 * such entries. Neither waits nor allocates. */
void disk_tier_put_state(DiskTier *tier, const SequenceText *text, KvSequence *sequence);
/* Continues the sequence with pages from disk as far as they go, up to `count` tokens at most; with recurrent entries,
 * to the furthest place whose state is there. At least one record is read, then further ones until deadline_ns
 * (clock_ns()). text: up to `count`; the same in all calls. True: there is more; until all is read, recurrent entries
 * are undefined (KvSequence.restoring). False: there is no more, or a record was lost or there was no memory for it:
 * with recurrent entries the sequence is then empty. Reads files. */
bool disk_tier_find(DiskTier *tier, const SequenceText *text, int count, int64_t deadline_ns, KvSequence *sequence);
SpillStats disk_tier_stats(const DiskTier *tier); /* NULL: all zero */
