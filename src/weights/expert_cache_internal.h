/* A bank from the inside: bank.c opens it and gives it memory, expert_cache_steps.c serves steps. */
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
    Weight matrix[EXPERT_CACHE_MATRICES]; /* addresses: 1 + number of the part, NULL where there is none */
    ExpertCachePart part[PARTS_MAX];
    int part_count;
    int slot; /* NONE: not in the cache, nor on its way */
} ExpertCacheExpert;

/* Lost: its reads do not come back. It is nobody's until they do. */
typedef enum SlotState { SLOT_EMPTY, SLOT_LOADING, SLOT_READY, SLOT_LOST } SlotState;
typedef struct ExpertCacheSlot {
    int expert; /* of all layers; NONE: empty */
    int older, newer;
    SlotState state;
    uint8_t wanted;       /* a bit for each lane that wants it: not to be given to anybody else */
    bool guessed, unused; /* read for a hint; and not wanted so far */
    uint64_t request;     /* the last when its reads began */
    int parts_left, error, error_file;
    ExpertCacheRead reads[PARTS_MAX];
} ExpertCacheSlot;

/* What a lane wants: experts of all layers. */
typedef struct ExpertCacheLane {
    int *wanted;
    int wanted_count, given_first, given_count; /* wanted[0…given_first) were given up, given_count are in use */
    int queued;                                 /* of those wanted, not yet being read */
    int here, here_end;                         /* experts of the layer that it is at */
} ExpertCacheLane;

struct ExpertCache {
    ExpertProvider source;
    ExpertCacheIo *io;
    const char **paths;
    Arena arena;
    int layer_count, expert_count, cycle, most_used;
    int *layer_first; /* [layer_count] of experts */
    ExpertCacheExpert *experts;
    size_t slot_bytes;

    uint8_t *memory; /* slot_count · slot_bytes */
    size_t memory_bytes;
    int slot_count;
    ExpertCacheSlot *slots;
    int oldest, newest;

    Mutex user; /* held by whoever runs a step */
    ExpertCacheLane micro_batches[PROVIDER_MICRO_BATCHES];
    uint64_t wants, step_first;           /* numbers of them; the last before the step */
    int cycle_now, step_wanted;           /* as cycle, of all rows of the step before; wanted in this one so far */
    uint32_t *uses;                       /* [expert_count] how often it was wanted, old times counting less */
    uint64_t hint_pause;                  /* no hints up to this one */
    int32_t hinted[PREFETCH_EXPERTS_MAX]; /* of hinted_layer, not there and not begun to be read */
    int hinted_layer, hinted_count;
    ExpertProviderStats hint_window; /* as it was when the hints began whose use is looked at */
    bool failed;
    Error error;
    int silence_ms;
    bool unchecked;          /* something was read since the files were looked at; */
    uint64_t wants_checked;  /* what was read up to this one is known to be of the files that were opened */
    int lost;                /* reads that do not come back */
    bool *displaced;         /* [expert_count] made room for a hint */
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
