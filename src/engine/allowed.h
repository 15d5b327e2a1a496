/* Which tokens a choice may draw next, found out while the step is computed that makes the logits: its constraint's
 * mask, without end tokens as long as they are ignored or come too soon. */
#pragma once
#include "engine/request.h"

typedef struct EndTokens {
    const int32_t *ids;
    int count;
} EndTokens;

/* Brings choice->allowed and its mask up to the token drawn last. False: the constraint failed. */
NODISCARD bool allowed_update(Request *request, AnswerChoice *choice, int vocab, EndTokens ends, Error *error);
/* Whether there is one token only that may follow. */
static inline bool allowed_forces(const AnswerChoice *choice) {
    return choice->allowed == ALLOWED_SOME && choice->only >= 0;
}

/* A thread that does so ahead of time. The engine's thread calls these. */
typedef struct AllowedAhead AllowedAhead;
NODISCARD AllowedAhead *allowed_ahead_open(int slots, int vocab, EndTokens ends, Error *error);
void allowed_ahead_close(AllowedAhead *ahead); /* NULL is fine */
/* For the next run; a choice that is up to date is not added. At most as many as there are slots. */
void allowed_ahead_add(AllowedAhead *ahead, Request *request, AnswerChoice *choice);
void allowed_ahead_begin(AllowedAhead *ahead); /* from here on what was added is the thread's */
void allowed_ahead_end(AllowedAhead *ahead);   /* waits for it; requests whose constraint failed have failed */
