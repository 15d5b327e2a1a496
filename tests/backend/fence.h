/* The fence: a backend over another one whose memory is inaccessible outside its own operations, as a device's is. A
 * read or write through one of its addresses ends in SIGSEGV. An operation that is given an address of other memory
 * aborts, and so does a call against the order of a step. Opened through BackendOptions.wrap = fence_open. The results
 * are the inner backend's, bit for bit. */
#pragma once
#include "backend/backend.h"

enum { FENCE_BLOCKS_MAX = 4096 };

typedef struct FenceBlock {
    uint8_t *start;
    size_t bytes;
} FenceBlock;

typedef struct Fence {
    Backend base;
    Backend *inner;  /* owned */
    uint8_t *region; /* blocks one after another; addresses are not used twice */
    size_t used;
    int block_count; /* alive; the first is the scratch */
    FenceBlock blocks[FENCE_BLOCKS_MAX];
    size_t scratch_used;
    int host_blocks;      /* blocks of take_host that were not given back */
    bool walking, waited; /* between begin and submit; after wait */
    float *logits;        /* result of read_logits: host memory, owned */
    int64_t logits_count;
} Fence;

/* Owns inner, also on failure. */
Backend *fence_open(Backend *inner, Error *error);

/* For a backend that adds operations to a fence (stand_in.c). */
Fence *fence_of(Backend *backend);
void fence_expect(bool good, const char *what); /* aborts with the message unless good */
/* Aborts unless all of it lies in one block that is alive. */
void fence_own_floats(const Fence *f, const float *memory, int64_t count, const char *what);
Backend *fence_enter_step(Fence *f); /* opens the memory for an operation of a step; the inner backend */
void fence_leave(Fence *f);          /* closes the memory */
