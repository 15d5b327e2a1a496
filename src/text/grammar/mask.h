/* Token masks: the tokens that may follow a state. Internal to text/grammar. */
#pragma once
#include "text/grammar/matcher.h"
#include "text/grammar/vocabulary.h"

enum { MASKS_BYTES_MAX = 32 << 20, MASK_LIST_MAX = 1024 };

typedef struct Mask { /* a list of ids if there are few, otherwise bits */
    uint32_t count;   /* MASK_LIST_MAX + 1: bits */
    uint64_t data[];
} Mask;

enum { RECENT_ITEMS = 8 };

typedef struct Masks {
    Matcher *matcher;
    const Vocabulary *vocabulary;
    Mask **of; /* by state; NULL: not computed, or dropped */
    uint32_t count, capacity;
    size_t bytes;
    uint64_t *base, *near;      /* scratch: masks */
    State recent[RECENT_ITEMS]; /* ring of recent one-item states with computed masks */
    uint32_t recent_at;
} Masks;

NODISCARD bool masks_open(Masks *masks, Matcher *matcher, const Vocabulary *vocabulary);
void masks_close(Masks *masks);
void masks_forget(Masks *masks); /* masks are computed again on demand */
/* False: the budget failed. */
bool masks_fill(Masks *masks, State state, uint64_t *mask);
State masks_token(
    Masks *masks, State state, int32_t token); /* the state after a token; STATE_DEAD: it may not follow */
/* Number of leading bytes in which no token begins that extends past their end. state: the state after the bytes. */
size_t masks_settled(const Masks *masks, State state, Slice bytes);
