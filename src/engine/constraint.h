/* A rule that the tokens of an answer must keep: a grammar, a tool call. The engine knows no text, so a constraint is
 * functions over numbered states. It is made by the thread that submits a request, not the engine's, and asked by one
 * thread of the engine at a time; requests of one engine, and all choices of each, may share it. It is freed with its
 * last reference: each request that it was given to has one until its reader and the engine are done with it. */
#pragma once
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Where an answer stands: equal numbers are equal states, a copy is another answer that stands there, and an older
 * number can be gone back to. */
typedef uint32_t ConstraintState;

typedef struct Constraint Constraint;
typedef struct ConstraintOps {
    /* The permitted tokens: bit id % 64 of word id / 64, all of mask_words, end tokens where the answer may end. With
     * end tokens alone, or no token, the answer is over. *any: every token is permitted, and the mask is not read.
     * False: a limit; the request fails. */
    bool (*mask)(Constraint *constraint, ConstraintState state, uint64_t *mask, bool *any, Error *error);
    /* Jump-ahead tokens: at most `max` tokens that spell the only text that may follow, without running the model.
     * last: the token before them, −1: none. NULL: there are never any. False: a limit. */
    bool (*jump_ahead)(Constraint *constraint, ConstraintState state, int32_t last, int32_t *tokens, int max,
        int *count, Error *error);
    /* Advances *state by a token of the mask or a jump-ahead token. False: a limit. */
    bool (*accept)(Constraint *constraint, ConstraintState *state, int32_t token, Error *error);
    void (*free)(Constraint *constraint);
} ConstraintOps;

struct Constraint { /* the first member of each implementation's struct */
    const ConstraintOps *ops;
    ConstraintState start;
    size_t mask_words;
    atomic_int references;
    /* The engine's thread: */
    int jobs;  /* jobs whose end the engine has not seen: until then no other thread may ask the constraint, nor sample
                  with it */
    bool slow; /* it kept a step waiting */
};

/* One reference, the caller's. */
void constraint_init(Constraint *constraint, const ConstraintOps *ops, ConstraintState start, size_t mask_words);
Constraint *constraint_retain(Constraint *constraint); /* these two: any thread; NULL is fine */
void constraint_release(Constraint *constraint);
