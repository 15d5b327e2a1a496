/* ExpertProvider: the interface between the operation that computes with streamed experts (backend/) and the cache that
 * reads them from the checkpoint (weights/expert_cache.h). Experts arrive in any order. */
#pragma once
#include "tensor/tensor.h"

/* One expert in memory. Its matrices lie in host memory, laid out as any other Weight. Borrowed until the next
 * acquire(). */
typedef struct ProvidedExpert {
    int expert; /* index within its layer */
    Weight gate, up, down;
} ProvidedExpert;

enum {
    PROVIDER_MICRO_BATCHES = 2, /* independent request streams per step */
    PREFETCH_EXPERTS_MAX = 2,   /* experts read per prefetch() */
};

/* Counters since the provider was opened. */
typedef struct ExpertProviderStats {
    int slots;                /* experts that fit into the cache */
    int experts;              /* experts of all layers */
    size_t bytes;             /* memory of the cache */
    const char *io;           /* I/O method: "io_uring, direct"; static text */
    uint64_t hits;            /* requested experts found in the cache */
    uint64_t misses;          /* requested experts read from disk */
    uint64_t evictions;       /* experts evicted */
    uint64_t missing;         /* requests with at least one miss */
    uint64_t prefetches;      /* experts read by prefetch() */
    uint64_t prefetch_hits;   /* prefetched experts that were requested afterwards */
    uint64_t prefetch_losses; /* experts evicted by a prefetch and requested afterwards */
    uint64_t read_bytes;      /* bytes read from disk */
    double read_s;            /* time with reads in flight */
    double stall_s;           /* time that a step waited for a read */
} ExpertProviderStats;

typedef struct ExpertProvider ExpertProvider;
struct ExpertProvider {
    /* Requests these experts of a layer (each named once); call acquire() until it returns 0. Only within a step
     * (expert_cache_begin()). Each micro-batch has one request at a time, so one computes while the other loads. */
    void (*request)(ExpertProvider *, int micro_batch, int layer, const int32_t *experts, int count);
    /* Waits for at least one requested expert and returns up to `most` that are in memory; releases those of the call
     * before. 0: all were returned, or a read failed, which expert_cache_end() reports. */
    int (*acquire)(ExpertProvider *, int micro_batch, int most, ProvidedExpert *out);
    /* Experts that the next layers will likely request, most likely first. Reads some while no request is in flight. */
    void (*prefetch)(ExpertProvider *, int layer, const int32_t *experts, int count);
    ExpertProviderStats (*stats)(ExpertProvider *); /* any thread */
};
