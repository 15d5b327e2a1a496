/* Lexemes: regular languages over bytes. A lexeme is an expression; its derivative by a byte, the language that remains
 * after this byte, is an expression too, so expressions are the states of their own automaton. Equal expressions are
 * stored once, in a normal form without order and repetition of alternatives, which keeps the automaton finite. Its
 * rows are computed on demand. Internal to text/grammar. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/slice.h"
#include "text/grammar/budget.h"

typedef uint32_t Lex; /* a number in its Lexicon */

enum {
    LEX_NONE,  /* the empty language */
    LEX_EMPTY, /* the empty text */
    LEX_ALL,   /* any bytes */
};
#define LEX_FOREVER UINT32_MAX /* an unbounded repeat; too large for an enum */

enum { LEX_DEPTH_MAX = 1000, LEX_CHOICES_MAX = 1 << 15, LEX_SET_BUCKETS = 512 };

typedef struct ByteSet {
    uint64_t bits[4];
} ByteSet;
typedef struct SetNode {
    ByteSet set;
    Lex lex;
    uint32_t next; /* in its hash bucket */
} SetNode;
static inline bool byteset_has(const ByteSet *set, uint8_t byte) { return set->bits[byte >> 6] >> (byte & 63) & 1; }
static inline void byteset_add(ByteSet *set, uint8_t byte) { set->bits[byte >> 6] |= (uint64_t)1 << (byte & 63); }

static inline unsigned byteset_size(const ByteSet *set) {
    unsigned size = 0;
    for (int i = 0; i < 4; i++) size += (unsigned)__builtin_popcountll(set->bits[i]);
    return size;
}

typedef enum LexKind {
    LEX_IS_NONE,
    LEX_IS_EMPTY,
    LEX_IS_BYTES,   /* a: the number of a ByteSet, not empty */
    LEX_IS_CAT,     /* a, then b; a is not a CAT */
    LEX_IS_OR,      /* b children from a on, sorted */
    LEX_IS_AND,     /* b children from a on, sorted */
    LEX_IS_NOT,     /* a */
    LEX_IS_REPEAT,  /* a, min to max times */
    LEX_IS_MULTIPLE /* decimal digits: see lex_multiple */
} LexKind;

typedef struct LexNode {
    uint8_t kind;
    bool nullable; /* matches the empty text */
    bool hard;     /* contains AND, NOT or MULTIPLE: emptiness needs a search */
    uint8_t life;  /* lex_step.c */
    bool filtered; /* empty derivatives in the row are LEX_NONE */
    uint16_t depth;
    uint32_t a, b, min, max;
    uint32_t size;          /* size of the expression, saturating */
    uint32_t next;          /* in its hash bucket */
    uint32_t mark, derived; /* derivative by the current byte, valid if mark is the lexicon's */
    uint32_t seen;          /* mark of the current row */
    uint32_t visited;       /* mark of the current search */
    uint32_t behind[3];     /* lex_behind, by alphabet */
    Lex *row;               /* 256 derivatives, or NULL */
} LexNode;

typedef struct LexList {
    Lex *data;
    uint32_t count, capacity;
} LexList;

typedef struct Lexicon {
    Budget *budget;
    LexNode *nodes;
    uint32_t count, capacity;
    struct SetNode *sets;
    uint32_t set_count, set_capacity, set_buckets[LEX_SET_BUCKETS];
    LexList children; /* operands of OR and AND */
    uint32_t *buckets;
    uint32_t bucket_count;
    LexList work, queue; /* scratch */
    uint32_t mark, seen, visited;
} Lexicon;

NODISCARD bool lexicon_open(Lexicon *x, Budget *budget);
void lexicon_close(Lexicon *x);
void lexicon_forget_rows(Lexicon *x); /* they are computed again on demand */

/* Constructors. On failure budget->failed is set and the result is LEX_NONE. */
Lex lex_bytes(Lexicon *x, const ByteSet *set);
Lex lex_range(Lexicon *x, uint8_t first, uint8_t last);
Lex lex_literal(Lexicon *x, Slice bytes);
Lex lex_literals(Lexicon *x, Slice *texts, uint32_t count); /* any of them, as a trie; sorts texts */
Lex lex_cat(Lexicon *x, Lex first, Lex second);
Lex lex_or(Lexicon *x, const Lex *list, uint32_t count);
Lex lex_or2(Lexicon *x, Lex a, Lex b);
Lex lex_and(Lexicon *x, const Lex *list, uint32_t count);
Lex lex_and2(Lexicon *x, Lex a, Lex b);
Lex lex_not(Lexicon *x, Lex a);
Lex lex_repeat(Lexicon *x, Lex a, uint32_t min, uint32_t max);
/* Decimal numbers without exponent, of any sign, that are multiples of modulus · 10^−scale; rest: remainder of the
 * digits so far. The caller intersects the result with a lexeme of numbers. */
Lex lex_multiple(Lexicon *x, uint32_t modulus, uint32_t scale, uint32_t rest, bool fraction);

/* lex_or or lex_and (kind) of the operands on x->work from index start on; pops them. */
void lex_push(Lexicon *x, Lex a);
Lex lex_combine(Lexicon *x, uint32_t start, LexKind kind);

/* --- The automaton (lex_step.c) ----------------------------------------------------------------------------------- */

/* The 256 derivatives, owned by the lexicon; dead ones are LEX_NONE. NULL: the budget failed. */
const Lex *lex_row(Lexicon *x, Lex a);
/* First bytes of a lexeme that is a sequence beginning with a byte set, such as a literal: after each of them the same
 * rest follows. NULL: any other lexeme. */
static inline const ByteSet *lex_head(const Lexicon *x, Lex a) {
    const LexNode *n = &x->nodes[a];
    if (n->kind != LEX_IS_CAT || x->nodes[n->a].kind != LEX_IS_BYTES) return NULL;
    return &x->sets[x->nodes[n->a].a].set;
}
/* Derivative of a live lexeme by a byte. Literals need no row. */
static inline Lex lex_next(Lexicon *x, Lex a, uint8_t byte) {
    const LexNode *n = &x->nodes[a];
    if (n->filtered) return n->row[byte];
    const ByteSet *head = lex_head(x, a);
    if (head) return byteset_has(head, byte) ? n->b : LEX_NONE;
    const Lex *row = lex_row(x, a);
    return row ? row[byte] : LEX_NONE;
}
bool lex_live(Lexicon *x, Lex a); /* some text matches */
bool lex_matches(Lexicon *x, Lex a, Slice bytes);
static inline bool lex_nullable(const Lexicon *x, Lex a) { return x->nodes[a].nullable; }

/* Alphabets: character classes that many lexemes treat alike. ALPHABET_PLAIN: characters without escapes in JSON
 * strings, U+0020 and above except the quote, the backslash and U+007F. */
typedef enum Alphabet { ALPHABET_PLAIN, ALPHABET_LETTERS_DIGITS, ALPHABET_LOWER, ALPHABET_COUNT } Alphabet;
static inline bool alphabet_has(
    Alphabet alphabet, uint8_t byte) { /* ASCII; ALPHABET_PLAIN also has all other characters */
    const bool lower = byte >= 'a' && byte <= 'z';
    if (alphabet == ALPHABET_LOWER) return lower;
    if (alphabet == ALPHABET_LETTERS_DIGITS)
        return lower || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9');
    return byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\';
}
/* The derivative by a character of an alphabet, if it is the same for all of them (LEX_NONE: none may follow);
 * LEX_MIXED otherwise. */
#define LEX_MIXED UINT32_MAX
Lex lex_behind(Lexicon *x, Lex a, Alphabet alphabet);
/* A lexeme that treats texts of at most `bytes` bytes alike: repeat counts that these cannot reach are dropped, so that
 * most positions of a long string share one state. */
Lex lex_within(Lexicon *x, Lex a, uint32_t bytes);
