/* Prompt lookup: the places where the last tokens of an answer occurred before, and the tokens that followed there. The
 * text of a request is its prediction, its prompt and the answers of its choices; each token has a place in it. Two
 * tokens hash to the latest place that ends with them, which is chained to earlier ones. Source: prompt lookup decoding
 * (Saxena), suffix decoding (arXiv 2411.04975). Thread: the engine's. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    LOOKUP_MATCH_MAX = 64,      /* tokens that are compared at most */
    LOOKUP_CANDIDATES_MAX = 32, /* places that are compared */
};

typedef struct LookupShape {
    int prediction, prompt, answer, choices; /* tokens: of the prediction, the prompt and the longest answer */
} LookupShape;

typedef struct Lookup {
    LookupShape shape;
    uint32_t hash_mask;
    uint32_t *pairs;   /* [hash_mask + 1] latest place of two tokens, plus 1; 0: none */
    uint32_t *singles; /* [hash_mask + 1] the same of a single token */
    uint32_t *earlier; /* [places] the place before with the same hash of two tokens, plus 1; 0: none */
    int32_t *ids;      /* [places] */
    int32_t *lengths;  /* [choices] tokens of the answers so far */
    bool ready;        /* prediction and prompt are in */
} Lookup;

/* What follows a match. */
typedef struct LookupMatch {
    int count;       /* tokens */
    int length;      /* tokens of the match, ≤ LOOKUP_MATCH_MAX */
    bool prediction; /* the match is in the prediction */
} LookupMatch;

/* false: the text is too long to be looked up. */
NODISCARD bool lookup_bytes(const LookupShape *shape, size_t *bytes);
/* memory: lookup_bytes(), zeroed, aligned to 8; only what is used of it is touched. */
void lookup_init(Lookup *lookup, const LookupShape *shape, void *memory);
/* prediction and prompt: as many ids as the shape says; once, before lookup_add(). */
void lookup_begin(Lookup *lookup, const int32_t *prediction, const int32_t *prompt);
/* The next token of a choice's answer. */
void lookup_add(Lookup *lookup, int choice, int32_t id);
/* Writes at most `max` tokens that followed the longest match with the end of a choice's text, the latest of several. A
 * match that reaches the end of the text goes on with what was written: a loop. count 0: there is no match. */
LookupMatch lookup_find(const Lookup *lookup, int choice, int max, int32_t *tokens);
