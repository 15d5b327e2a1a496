/* A vocabulary as tries, and masks of free text that do not depend on a grammar. Internal to text/grammar; the public
 * functions are in grammar.h.
 *
 * Most tokens of JSON are inside strings, where any plain character may follow any other; in names and addresses the
 * same holds for letters and digits. After k characters of such an alphabet (lex.h) a lexeme is in the same state,
 * whichever characters they were. Each token is therefore split into its leading characters of an alphabet and a rest:
 * tokens without a rest are decided by their length, and for the other ones only the rest is walked, once for all
 * tokens that share it. */
#pragma once
#include "text/grammar/grammar.h"
#include "text/grammar/lex.h"

typedef struct TrieNode {
    uint32_t skip;  /* index after this node's descendants */
    uint32_t first; /* index of its first token; its tokens end at the next node's first */
    uint16_t depth; /* bytes, at least 1 */
    uint8_t byte;
} TrieNode;

/* Nodes in depth-first order, with a sentinel after the last. */
typedef struct Trie {
    TrieNode *nodes;
    uint32_t count;
    int32_t *tokens;
    uint16_t depth; /* the deepest node's */
} Trie;

enum { RUN_MAX = 32, TOKEN_BYTES_MAX = 4096, TOKEN_BYTES_USUAL = 32 };

/* Tokens by their leading characters of an alphabet. */
typedef struct Runs {
    uint64_t *whole; /* masks of tokens of this alphabet only: of at most 1, 2, … RUN_MAX − 1 characters, and all */
    Trie rests;      /* the rests of the other tokens */
    Trie rest_of[RUN_MAX]; /* rests by the number of leading characters */
    Trie longer;           /* whole tokens with RUN_MAX leading characters or more */
} Runs;

struct Vocabulary {
    size_t count, words;
    char *bytes; /* bytes of all tokens */
    uint32_t *start;
    int32_t *ends;
    size_t end_count;
    Trie all;        /* every token */
    Trie unusual;    /* tokens of more than TOKEN_BYTES_USUAL bytes */
    uint64_t *usual; /* mask of tokens of at most TOKEN_BYTES_USUAL bytes */
    Runs runs[ALPHABET_COUNT];
};

static inline Slice vocabulary_token(const Vocabulary *v, int32_t id) {
    return (Slice){v->bytes + v->start[id], v->start[id + 1] - v->start[id]};
}
static inline bool vocabulary_is_end(const Vocabulary *v, int32_t id) {
    for (size_t i = 0; i < v->end_count; i++)
        if (v->ends[i] == id) return true;
    return false;
}
/* Mask of tokens with characters of an alphabet only: at most `chars` of them; RUN_MAX: any number. */
static inline const uint64_t *vocabulary_whole(const Vocabulary *v, Alphabet alphabet, uint32_t chars) {
    return v->runs[alphabet].whole + (size_t)(chars - 1) * v->words;
}
