/* Experts whose matrices are brought when a step wants them, in whatever order they come: between whoever computes
 * with them (backend/) and whoever has them (weights/bank.h). */
#pragma once
#include "tensor/tensor.h"

/* One expert that is there: matrices in host memory, laid out as any other Weight. */
typedef struct ProvidedExpert {
    int expert;
    Weight gate, up, down;
} ProvidedExpert;

enum { PROVIDER_MICRO_BATCHES = 2, PREFETCH_EXPERTS_MAX = 2 /* experts read for one hint */ };

typedef struct ExpertProviderStats {
    int slots, experts;               /* that fit into its memory, that there are */
    size_t bytes;                     /* of its memory */
    const char *io;                   /* how it reads: "io_uring, direct" */
    uint64_t hits, misses, evictions; /* experts wanted that were there, that were not, that made room */
    uint64_t missing;                 /* wants of which an expert was not there */
    uint64_t prefetches, prefetch_hits, prefetch_losses; /* experts read for a hint; wanted afterwards; that made room
                                               for one and were wanted afterwards */
    uint64_t read_bytes;
    double read_s, stall_s; /* reads were under way; somebody waited for one */
} ExpertProviderStats;

typedef struct ExpertProvider ExpertProvider;
struct ExpertProvider {
    /* Begins to bring these experts of a layer, each named once. Then take() until it gives 0. Within a step, which
     * whoever runs it has begun (weights/bank.h), each lane may want something: one is computed while others come. */
    void (*request)(ExpertProvider *, int micro_batch, int layer, const int32_t *experts, int count);
    /* At least one and up to `most` of them, as soon as there are some; those that the last call gave are given up by
     * this one. 0: all were given; or some could not be read, which whoever runs the step asks the source about. */
    int (*acquire)(ExpertProvider *, int micro_batch, int most, ProvidedExpert *out);
    /* These are likely to be wanted soon, the first most so: may read some while nothing that is wanted is read. */
    void (*prefetch)(ExpertProvider *, int layer, const int32_t *experts, int count);
    ExpertProviderStats (*stats)(ExpertProvider *); /* any thread */
};
