/* A vocabulary as tries, and what is known of free text before any grammar. Internal to text/grammar; what others call
 * is in grammar.h.
 *
 * Most of what a model says in JSON is inside strings, where any plain character (lex.h) may follow any other. Behind k
 * plain characters such a string is in the same state whatever they were. So each token is taken apart into its leading
 * plain characters and the rest: tokens without a rest need only be counted, and of the others only the rest must be
 * walked, once for all tokens that end in it. */
#pragma once
#include "text/grammar/grammar.h"

typedef struct TrieNode {
    uint32_t skip;  /* the node behind this one's descendants */
    uint32_t first; /* of its tokens, which go on to those of the next node */
    uint16_t depth; /* bytes, at least 1 */
    uint8_t byte;
} TrieNode;

/* Nodes in the order of a walk that goes down first; one more behind the last. */
typedef struct Trie {
    TrieNode *nodes;
    uint32_t count;
    int32_t *tokens;
    uint32_t root[256]; /* the node of each first byte, or UINT32_MAX */
    uint16_t depth;     /* the largest */
} Trie;

enum { PLAIN_CHARS_MAX = 32, TOKEN_BYTES_MAX = 4096 };

struct Vocabulary {
    size_t count, words;
    char *bytes; /* of all tokens */
    uint32_t *start;
    int32_t *ends;
    size_t end_count;
    Trie all;                      /* every token */
    Trie rests;                    /* what follows the plain characters of those that are not plain throughout */
    Trie rest_of[PLAIN_CHARS_MAX]; /* the same, by the number of plain characters before it */
    Trie longer;                   /* tokens of at least PLAIN_CHARS_MAX plain characters, whole */
    uint64_t *plain;               /* masks of plain tokens: of at most 1…PLAIN_CHARS_MAX − 1 characters, and all */
};

static inline Slice vocabulary_token(const Vocabulary *v, int32_t id) {
    return (Slice){v->bytes + v->start[id], v->start[id + 1] - v->start[id]};
}
static inline bool vocabulary_is_end(const Vocabulary *v, int32_t id) {
    for (size_t i = 0; i < v->end_count; i++)
        if (v->ends[i] == id) return true;
    return false;
}
/* chars: at most this many; PLAIN_CHARS_MAX: any number. */
static inline const uint64_t *vocabulary_plain(const Vocabulary *v, uint32_t chars) {
    return v->plain + (size_t)(chars - 1) * v->words;
}
