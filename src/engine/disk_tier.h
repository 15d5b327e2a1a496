/* Pages of sequences on disk, found again by what they stand for: this model computed by this kind of backend, what may
 * be shared with whom, the form, and all tokens up to the page's end. Each page goes there exactly, when it is full;
 * codes are made again from it, the same as they were. Threads: the engine thread. */
#pragma once
#include "cache/spill.h"
#include "engine/engine.h"

typedef struct DiskTier DiskTier;

/* options->cache_directory is not NULL. What is wrong with the directory is logged, and NULL: all goes on without. */
DiskTier *disk_tier_open(const EngineOptions *options, const Runner *runner, KvCache *kv);
void disk_tier_close(DiskTier *tier); /* NULL is fine */

/* A step was computed that carries the sequence, whose text this is, to `end` tokens; before kv_advance(). Never waits:
 * what there is no room for is dropped. */
void disk_tier_spill(
    DiskTier *tier, uint64_t salt, const KvFormat *format, const int32_t *text, const KvSequence *sequence, int end);
/* Continues the sequence with what the disk has of its text, count tokens at most: a page, and more of them until the
 * deadline (clock_ns()). False: that was all; true: there may be more. */
bool disk_tier_find(DiskTier *tier, uint64_t salt, const KvFormat *format, const int32_t *text, int count,
    int64_t deadline_ns, KvSequence *sequence);
SpillStats disk_tier_stats(const DiskTier *tier); /* NULL: all zero */
