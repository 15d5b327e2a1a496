/* Experts that stay in their files and are read when a step wants them: a cache of whole experts in one block of
 * memory. What was used longest ago makes room. Where the cache is smaller than what a step uses in all layers, that
 * rule would throw out every expert right before it comes up again; then what was wanted least often makes room
 * instead, and experts that many tokens want stay. Bits do not depend on any of this: an expert is the same wherever it
 * lies, and who sums over experts has his order. Threads: opened and closed anywhere; used by one thread at a time,
 * that of the step. */
#pragma once
#include "tensor/safetensors.h"
#include "tensor/source.h"
#include "weights/bank_io.h"

enum { BANK_MATRICES = 3 };

/* The routed experts of one layer. */
typedef struct BankLayer {
    int count, used;                 /* used: by a token */
    Weight *matrices[BANK_MATRICES]; /* gate, up, down: [count], lying in mapped files of the checkpoint */
} BankLayer;

/* Zeroed: what suits the machine. */
typedef struct BankOptions {
    BankIoKind io;
    int depth;                /* reads under way at most; 0: as many as any drive needs */
    bool buffered;            /* through the page cache, which keeps nothing of it; */
    bool cached;              /* or what it likes, beside what the bank holds: to be compared with */
    const char *trace;        /* a file for what is wanted (bank_trace.h); NULL: none */
    const BankFaults *faults; /* NULL: none */
} BankOptions;

enum { BANK_SILENCE_MS = 30000 /* a step fails when no read has come back for so long */ };

typedef struct ExpertBank ExpertBank;

/* Notes where the experts lie; what matrices point to is not needed afterwards. The checkpoint may be closed. */
NODISCARD ExpertBank *bank_open(
    const Checkpoint *checkpoint, const BankLayer *layers, int layer_count, const BankOptions *options, Error *error);
void bank_close(ExpertBank *bank);                 /* NULL is fine */
uint64_t bank_bytes(const ExpertBank *bank);       /* of all experts in the cache's form */
uint64_t bank_floor_bytes(const ExpertBank *bank); /* of the smallest cache: what a token uses of one layer */
uint64_t bank_cycle_bytes(const ExpertBank *bank); /* of what a token uses in all layers */
/* Makes the cache, as large as fits these bytes, before the first use. */
NODISCARD bool bank_allocate(ExpertBank *bank, uint64_t bytes, Error *error);
ExpertSource *bank_source(ExpertBank *bank);
/* Around a step: others wait until it ends. False when an expert could not be read since it began,
 * or a file that was read from is not what it was: what was computed is wrong. */
void bank_begin(ExpertBank *bank);
NODISCARD bool bank_end(ExpertBank *bank, Error *error);
/* Whether lanes may want what so many rows use without having to wait for each other. */
bool bank_lanes_fit(const ExpertBank *bank, int rows);
/* Asked by whoever waits for a read, on his thread: whether nobody wants the step any more, which then fails with
 * ERROR_CANCELLED. */
void bank_watch(ExpertBank *bank, bool (*given_up)(void *context), void *context);
