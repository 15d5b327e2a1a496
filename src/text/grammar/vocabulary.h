/* A vocabulary as tries, and what is known of free text before any grammar. Internal to text/grammar; what others call
 * is in grammar.h.
 *
 * Most of what a model says in JSON is inside strings, where any plain character may follow any other; in names,
 * addresses and the like so may any letter or digit. Behind k characters of such an alphabet (lex.h) a lexeme is in the
 * same state whatever they were. So each token is taken apart into its leading characters of an alphabet and the rest:
 * tokens without a rest need only be counted, and of the others only the rest must be walked, once for all tokens that
 * end in it. */
#pragma once
#include "text/grammar/grammar.h"
#include "text/grammar/lex.h"

typedef struct TrieNode {
    uint32_t skip;  /* the node behind this one's descendants */
    uint32_t first; /* index of its first token; the tokens end where the next node's begin */
    uint16_t depth; /* bytes, at least 1 */
    uint8_t byte;
} TrieNode;

/* Nodes in the order of a walk that goes down first; one more behind the last. */
typedef struct Trie {
    TrieNode *nodes;
    uint32_t count;
    int32_t *tokens;
    uint16_t depth; /* the largest */
} Trie;

enum { RUN_MAX = 32, TOKEN_BYTES_MAX = 4096, TOKEN_BYTES_USUAL = 32 };

/* Tokens by the characters of an alphabet that they begin with. */
typedef struct Runs {
    uint64_t *whole;       /* masks of the tokens that have no others: of at most 1…RUN_MAX − 1 of them, and all */
    Trie rests;            /* what follows these characters in the other tokens */
    Trie rest_of[RUN_MAX]; /* the same, by how many come before it */
    Trie longer;           /* tokens that begin with RUN_MAX of them or more, as a whole */
} Runs;

struct Vocabulary {
    size_t count, words;
    char *bytes; /* bytes of all tokens */
    uint32_t *start;
    int32_t *ends;
    size_t end_count;
    Trie all;        /* every token */
    Trie unusual;    /* those of more than TOKEN_BYTES_USUAL bytes */
    uint64_t *usual; /* mask of the others */
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
/* Tokens of characters of an alphabet only: at most so many, or with RUN_MAX any number. */
static inline const uint64_t *vocabulary_whole(const Vocabulary *v, Alphabet alphabet, uint32_t chars) {
    return v->runs[alphabet].whole + (size_t)(chars - 1) * v->words;
}
