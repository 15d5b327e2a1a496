/* The token mask of a choice's next token, computed during the step that computes its logits: the mask of its
 * constraint, without end tokens where these are ignored or min_tokens is not reached. */
#pragma once
#include "engine/request.h"

typedef struct EndTokens {
    const int32_t *ids;
    int count;
} EndTokens;

/* Advances the choice's constraint state and mask to the token sampled last. False: the constraint failed. */
NODISCARD bool token_mask_update(Request *request, AnswerChoice *choice, int vocab, EndTokens ends, Error *error);
/* True if only one token may follow. */
static inline bool token_mask_forces(const AnswerChoice *choice) {
    return choice->mask_kind == MASK_SOME && choice->only >= 0;
}

/* Threads that compute masks during a step. A choice whose mask is not ready at the end of the step waits alone: its
 * row is left out of steps until it is, and is computed again. At most one thread works for constraints that were late
 * once, so that another one is free for the rest. Thread: the engine's. */
enum { AHEAD_THREADS = 2, LATE_MS = 10 };

typedef struct MaskWorkers MaskWorkers;
NODISCARD MaskWorkers *mask_workers_open(int slots, int vocab, EndTokens ends, Error *error);
void mask_workers_close(MaskWorkers *ahead); /* NULL is fine */
/* Adds a choice for the next step, unless its mask is complete. At most one per slot. */
void mask_workers_add(MaskWorkers *ahead, Request *request, AnswerChoice *choice);
void mask_workers_begin(MaskWorkers *ahead); /* the threads own the added choices until mask_workers_end() */
/* Waits until all masks are complete, with `any` one of them, but at most LATE_MS, and takes those that are. Requests
 * whose constraint failed have failed. */
void mask_workers_end(MaskWorkers *ahead, bool any);
/* Whether a request must wait for its constraint. */
static inline bool token_mask_is_late(const Request *request) {
    return request->constraint && request->constraint->jobs > 0;
}
