/* The token mask of a choice's next token, computed beside the step that makes the logits: its constraint's mask,
 * without end tokens as long as they are ignored or come too soon. */
#pragma once
#include "engine/request.h"

typedef struct EndTokens {
    const int32_t *ids;
    int count;
} EndTokens;

/* Brings choice->allowed and its mask up to the token sampled last. False: the constraint failed. */
NODISCARD bool token_mask_update(Request *request, AnswerChoice *choice, int vocab, EndTokens ends, Error *error);
/* True if only one token may follow. */
static inline bool token_mask_forces(const AnswerChoice *choice) {
    return choice->mask_kind == MASK_SOME && choice->only >= 0;
}

/* Threads that do so ahead of time. Whose masks are not ready when the step is waits, alone: its rows are left out
 * until they are, and computed again. Once a constraint was that slow, one thread at most works for those like it, so
 * that there is always another for the rest. The engine's thread calls these. */
enum { AHEAD_THREADS = 2, LATE_MS = 10 };

typedef struct MaskWorkers MaskWorkers;
NODISCARD MaskWorkers *mask_workers_open(int slots, int vocab, EndTokens ends, Error *error);
void mask_workers_close(MaskWorkers *ahead); /* NULL is fine */
/* For the next run; a choice that is up to date is not added. At most as many as there are slots. */
void mask_workers_add(MaskWorkers *ahead, Request *request, AnswerChoice *choice);
void mask_workers_begin(MaskWorkers *ahead); /* from here on what was added is the threads' */
/* Sees the end of what is done: requests whose constraint failed have failed. Waits for what is not, but for LATE_MS at
 * most, or with `any` only until something is done. */
void mask_workers_end(MaskWorkers *ahead, bool any);
/* Whether a request must wait for its constraint. */
static inline bool token_mask_is_late(const Request *request) {
    return request->constraint && request->constraint->jobs > 0;
}
