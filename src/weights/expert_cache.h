/* ExpertCache: whole experts in one block of memory, read from the checkpoint on demand, around the page cache. Evicts
 * LRU; if the cache is smaller than the working set of a step, evicts LFU instead, because LRU would evict every
 * expert just before its next use. Contents never affect results. Threads: open and close anywhere; a step at a time.
 */
#pragma once
#include "tensor/safetensors.h"
#include "tensor/expert_provider.h"
#include "weights/expert_cache_io.h"

enum { EXPERT_CACHE_MATRICES = 3 };

/* The routed experts of one layer. */
typedef struct ExpertCacheLayer {
    int count; /* experts */
    int top_k; /* experts per token */
    /* gate, up, down: [count] each, in mapped files of the checkpoint. gate may be up: it is read once. */
    Weight *matrices[EXPERT_CACHE_MATRICES];
} ExpertCacheLayer;

/* All zero: defaults for this machine. */
typedef struct ExpertCacheOptions {
    ExpertCacheIoKind io;
    int depth;                /* reads in flight, at most; 0: default */
    bool buffered;            /* read through the page cache and drop the pages afterwards */
    const char *trace;        /* path of a trace of all requests (expert_cache_trace.h); NULL: none */
    ExpertCacheFaults faults; /* for tests */
} ExpertCacheOptions;

enum { EXPERT_CACHE_SILENCE_MS = 30000 /* a step fails when no read completes for this long */ };

typedef struct ExpertCache ExpertCache;

/* Records the experts' file positions; the checkpoint may be closed afterwards. */
NODISCARD ExpertCache *expert_cache_open(const Checkpoint *checkpoint, const ExpertCacheLayer *layers, int layer_count,
    const ExpertCacheOptions *options, Error *error);
void expert_cache_close(ExpertCache *cache);                 /* NULL is fine */
uint64_t expert_cache_bytes(const ExpertCache *cache);       /* all experts, in the cache's layout */
uint64_t expert_cache_floor_bytes(const ExpertCache *cache); /* smallest cache: one token's experts of one layer */
uint64_t expert_cache_working_set_bytes(const ExpertCache *cache); /* one token's experts of all layers */
/* Allocates as many slots as fit into `bytes`. Call it once, before the first step. ERROR_MEMORY, ERROR_LIMIT. */
NODISCARD bool expert_cache_allocate(ExpertCache *cache, uint64_t bytes, Error *error);
ExpertProvider *expert_cache_source(ExpertCache *cache);
/* Encloses a step; a second caller waits for the first. end() returns false when a read failed or a file has changed
 * since it was opened: the results of the step are then invalid. */
void expert_cache_begin(ExpertCache *cache);
NODISCARD bool expert_cache_end(ExpertCache *cache, Error *error);
/* Whether both micro-batches' requests for `rows` rows fit into the cache at the same time. */
bool expert_cache_micro_batches_fit(const ExpertCache *cache, int rows);
/* given_up: called by the thread that waits for a read; true cancels the step with ERROR_CANCELLED. */
void expert_cache_watch(ExpertCache *cache, bool (*given_up)(void *context), void *context);
