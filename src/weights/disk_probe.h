/* What the disk under a file gives: random reads of an expert's size at several depths, around the page cache and
 * through it. Reads only, and leaves nothing in the page cache. */
#pragma once
#include "weights/expert_cache_io.h"

enum { DISK_DEPTHS = 5 };
extern const int disk_depths[DISK_DEPTHS]; /* reads under way: 1, 4, 8, 16, 32 */

typedef struct DiskProbe {
    bool direct;              /* reading around the page cache is at least as fast as through it, and possible */
    int depth;                /* the largest of disk_depths that is nearly as fast as any */
    int64_t block_bytes;      /* size of the reads at each queue depth, */
    double rate[DISK_DEPTHS]; /* bytes a second, direct where that is chosen */
    double buffered;          /* the same through the page cache, at depth 8 */
    int64_t large_bytes;      /* reads of this size */
    double large;             /* at depth 8: what a layout with whole experts in one piece would give */
} DiskProbe;

/* path: a file of at least a few such blocks. block_bytes: what is usually read at once; large_bytes: a whole expert.
 * Takes at most half a second beside the reads under way when that has passed. */
NODISCARD bool disk_probe(
    const char *path, ExpertCacheIoKind kind, int64_t block_bytes, int64_t large_bytes, DiskProbe *out, Error *error);
/* Bytes a second with so many reads under way. */
double disk_rate(const DiskProbe *probe, double under_way);
