/* Experts that stay in their files and are read when a step wants them: a cache of whole experts in one block of
 * memory. What was used longest ago makes room. Where the cache is smaller than what a step uses in all layers, that
 * rule would throw out every expert right before it comes up again; then what was wanted least often makes room
 * instead, and experts that many tokens want stay. Bits do not depend on any of this: an expert is the same wherever it
 * lies, and who sums over experts has his order. Threads: opened and closed anywhere; used by one thread at a time,
 * that of the step. */
#pragma once
#include "tensor/safetensors.h"
#include "tensor/expert_provider.h"
#include "weights/expert_cache_io.h"

enum { EXPERT_CACHE_MATRICES = 3 };

/* The routed experts of one layer. */
typedef struct ExpertCacheLayer {
    int count, used;                         /* used: by a token */
    Weight *matrices[EXPERT_CACHE_MATRICES]; /* gate, up, down: [count], lying in mapped files of the checkpoint */
} ExpertCacheLayer;

/* Zeroed: what suits the machine. */
typedef struct ExpertCacheOptions {
    ExpertCacheIoKind io;
    int depth;                       /* reads under way at most; 0: as many as any drive needs */
    bool buffered;                   /* through the page cache, which keeps nothing of it; */
    bool cached;                     /* or what it likes, beside what the bank holds: to be compared with */
    const char *trace;               /* a file for what is wanted (expert_cache_trace.h); NULL: none */
    const ExpertCacheFaults *faults; /* NULL: none */
} ExpertCacheOptions;

enum { EXPERT_CACHE_SILENCE_MS = 30000 /* a step fails when no read has come back for so long */ };

typedef struct ExpertCache ExpertCache;

/* Notes where the experts lie; what matrices point to is not needed afterwards. The checkpoint may be closed. */
NODISCARD ExpertCache *expert_cache_open(const Checkpoint *checkpoint, const ExpertCacheLayer *layers, int layer_count,
    const ExpertCacheOptions *options, Error *error);
void expert_cache_close(ExpertCache *cache);                 /* NULL is fine */
uint64_t expert_cache_bytes(const ExpertCache *cache);       /* of all experts in the cache's form */
uint64_t expert_cache_floor_bytes(const ExpertCache *cache); /* of the smallest cache: what a token uses of one layer */
uint64_t expert_cache_working_set_bytes(const ExpertCache *cache); /* of what a token uses in all layers */
/* Makes the cache, as large as fits these bytes, before the first use. */
NODISCARD bool expert_cache_allocate(ExpertCache *cache, uint64_t bytes, Error *error);
ExpertProvider *expert_cache_source(ExpertCache *cache);
/* Around a step: others wait until it ends. False when an expert could not be read since it began,
 * or a file that was read from is not what it was: what was computed is wrong. */
void expert_cache_begin(ExpertCache *cache);
NODISCARD bool expert_cache_end(ExpertCache *cache, Error *error);
/* Whether lanes may want what so many rows use without having to wait for each other. */
bool expert_cache_micro_batches_fit(const ExpertCache *cache, int rows);
/* Asked by whoever waits for a read, on his thread: whether nobody wants the step any more, which then fails with
 * ERROR_CANCELLED. */
void expert_cache_watch(ExpertCache *cache, bool (*given_up)(void *context), void *context);
