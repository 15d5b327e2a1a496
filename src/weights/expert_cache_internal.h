/* Internals of ExpertCache: expert_cache.c opens and allocates, expert_cache_steps.c serves the requests of steps. */
#pragma once
#include "base/thread.h"
#include "weights/expert_cache.h"
#include "weights/expert_cache_trace.h"

enum {
    PARTS_MAX = 9, /* codes, scales, biases of three matrices */
    NONE = -1,
};

/* Where a part of an expert lies, and where its first aligned byte goes within a slot. */
typedef struct ExpertCachePart {
    uint64_t offset;
    size_t bytes, at;
    int file;
} ExpertCachePart;

typedef struct ExpertCacheExpert {
    Weight matrix[EXPERT_CACHE_MATRICES]; /* data pointers hold 1 + part number; NULL: absent */
    ExpertCachePart part[PARTS_MAX];
    int part_count;
    int slot; /* NONE: neither cached nor loading */
} ExpertCacheExpert;

/* LOST: its reads do not complete. The slot has no owner until they do. */
typedef enum SlotState { SLOT_EMPTY, SLOT_LOADING, SLOT_READY, SLOT_LOST } SlotState;
typedef struct ExpertCacheSlot {
    int expert; /* index over all layers; NONE: empty */
    int older, newer;
    SlotState state;
    uint8_t wanted;       /* bit per micro-batch that requested it: not evictable */
    bool guessed, unused; /* read by a prefetch; not requested since */
    uint64_t request;     /* last request number when its reads began */
    int parts_left, error, error_file;
    ExpertCacheRead reads[PARTS_MAX];
} ExpertCacheSlot;

/* Requests of one micro-batch; indices over all layers. */
typedef struct ExpertCacheLane {
    int *wanted;
    int wanted_count, given_first,
        given_count;    /* wanted[0…given_first) are released, the next given_count are in use */
    int queued;         /* requested experts whose reads have not begun */
    int here, here_end; /* range of experts of the current layer */
} ExpertCacheLane;

struct ExpertCache {
    ExpertProvider source;
    ExpertCacheIo *io;
    const char **paths;
    Arena arena;
    int layer_count, expert_count, cycle, most_used;
    int *layer_first; /* [layer_count] index of each layer's first expert */
    ExpertCacheExpert *experts;
    size_t slot_bytes;

    uint8_t *memory; /* slot_count · slot_bytes */
    size_t memory_bytes;
    int slot_count;
    ExpertCacheSlot *slots;
    int oldest, newest;

    Mutex user; /* held while a step runs */
    ExpertCacheLane micro_batches[PROVIDER_MICRO_BATCHES];
    uint64_t wants, step_first;           /* number of requests; the last one before the step */
    int cycle_now, step_wanted;           /* working set of the previous step; requested in this step so far */
    uint32_t *uses;                       /* [expert_count] request count with decay */
    uint64_t hint_pause;                  /* no prefetches up to this request number */
    int32_t hinted[PREFETCH_EXPERTS_MAX]; /* experts of hinted_layer whose reads have not begun */
    int hinted_layer, hinted_count;
    ExpertProviderStats hint_window; /* counters at the beginning of the evaluated window */
    bool failed;
    Error error;
    int silence_ms;
    bool unchecked;          /* reads were made since the last check of the files */
    uint64_t wants_checked;  /* files were verified unchanged up to this request */
    int lost;                /* reads that never completed */
    bool *displaced;         /* [expert_count] evicted by a prefetch */
    ExpertCacheTrace *trace; /* NULL: none */
    bool (*given_up)(void *context);
    void *watcher;

    Mutex mutex; /* over what follows */
    ExpertProviderStats stats;
    bool stop;
    int64_t reading_since_ns; /* 0: nothing is under way */
    int reading;              /* lost ones are not counted */

    bool touching;
    Thread toucher;
};

static inline ExpertCache *expert_cache_of(ExpertProvider *source) { return (ExpertCache *)source; }

/* expert_cache_steps.c */
void expert_cache_use(
    ExpertCache *cache, int slot); /* it becomes the newest; of one that is in no list: expert_cache_link */
void expert_cache_link(ExpertCache *cache, int slot);
void expert_cache_request(ExpertProvider *source, int micro_batch, int layer, const int32_t *experts, int count);
int expert_cache_acquire(ExpertProvider *source, int micro_batch, int most, ProvidedExpert *out);
void expert_cache_prefetch(ExpertProvider *source, int layer, const int32_t *experts, int count);
