/* Lexemes: regular languages over bytes. A lexeme is an expression, and what remains of it behind a byte, its
 * derivative, is one too: so expressions are the states of their own automaton. Equal expressions are stored once, in a
 * form that forgets order and repetition of alternatives; this is what makes the automaton finite. Its rows are
 * computed when they are first asked for. Internal to text/grammar. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/slice.h"
#include "text/grammar/budget.h"

typedef uint32_t Lex; /* a number in its Lexicon */

enum {
    LEX_NONE,  /* nothing fits */
    LEX_EMPTY, /* the empty text */
    LEX_ALL,   /* any bytes */
};
#define LEX_FOREVER UINT32_MAX /* a repeat without an end; too large for an enum */

enum { LEX_DEPTH_MAX = 1000, LEX_CHOICES_MAX = 1 << 15, LEX_SET_BUCKETS = 512 };

typedef struct ByteSet {
    uint64_t bits[4];
} ByteSet;
typedef struct SetNode {
    ByteSet set;
    Lex lex;
    uint32_t next; /* in its bucket */
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
    LEX_IS_AND,     /* the same */
    LEX_IS_NOT,     /* a */
    LEX_IS_REPEAT,  /* a, min to max times */
    LEX_IS_MULTIPLE /* decimal digits: see lex_multiple */
} LexKind;

typedef struct LexNode {
    uint8_t kind;
    bool nullable; /* holds the empty text */
    bool hard;     /* holds AND, NOT or MULTIPLE: whether it is empty must be searched for */
    uint8_t life;  /* lex_step.c */
    bool filtered; /* the row leads to nothing empty */
    uint16_t depth;
    uint32_t a, b, min, max;
    uint32_t size;          /* size of the expression, saturating */
    uint32_t next;          /* in its bucket */
    uint32_t mark, derived; /* the derivative by the byte in progress */
    uint32_t seen;          /* by the row in progress */
    uint32_t visited;       /* by the search in progress */
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
void lexicon_forget_rows(Lexicon *x); /* they are computed again when they are asked for */

/* Constructors. Failures show in the budget; the result is then LEX_NONE. */
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
/* Decimal numbers without exponent, signs not looked at, that are multiples of modulus · 10^−scale; rest: what the
 * digits so far leave. The caller intersects it with a lexeme of numbers. */
Lex lex_multiple(Lexicon *x, uint32_t modulus, uint32_t scale, uint32_t rest, bool fraction);

/* lex_or and lex_and of what was pushed onto x->work from start on, which they take away. */
void lex_push(Lexicon *x, Lex a);
Lex lex_combine(Lexicon *x, uint32_t start, LexKind kind);

/* --- The automaton (lex_step.c) ----------------------------------------------------------------------------------- */

/* The 256 derivatives; LEX_NONE is the only one from which nothing can be reached. NULL: a failure. */
const Lex *lex_row(Lexicon *x, Lex a);
/* The bytes that a text of this lexeme begins with, when nothing but the rest of the sequence comes behind them: as in
 * a literal. NULL: the lexeme is another. */
static inline const ByteSet *lex_head(const Lexicon *x, Lex a) {
    const LexNode *n = &x->nodes[a];
    if (n->kind != LEX_IS_CAT || x->nodes[n->a].kind != LEX_IS_BYTES) return NULL;
    return &x->sets[x->nodes[n->a].a].set;
}
/* One derivative of a lexeme that is alive. Literals need no row for it. */
static inline Lex lex_next(Lexicon *x, Lex a, uint8_t byte) {
    const LexNode *n = &x->nodes[a];
    if (n->filtered) return n->row[byte];
    const ByteSet *head = lex_head(x, a);
    if (head) return byteset_has(head, byte) ? n->b : LEX_NONE;
    const Lex *row = lex_row(x, a);
    return row ? row[byte] : LEX_NONE;
}
bool lex_live(Lexicon *x, Lex a); /* some text fits */
bool lex_matches(Lexicon *x, Lex a, Slice bytes);
static inline bool lex_nullable(const Lexicon *x, Lex a) { return x->nodes[a].nullable; }

/* Alphabets: characters that many lexemes do not tell apart. Plain ones are what JSON strings hold as it stands: U+0020
 * and above but for the quote, the backslash and U+007F. */
typedef enum Alphabet { ALPHABET_PLAIN, ALPHABET_LETTERS_DIGITS, ALPHABET_LOWER, ALPHABET_COUNT } Alphabet;
static inline bool alphabet_has(Alphabet alphabet, uint8_t byte) { /* ASCII; the plain one has all else, too */
    const bool lower = byte >= 'a' && byte <= 'z';
    if (alphabet == ALPHABET_LOWER) return lower;
    if (alphabet == ALPHABET_LETTERS_DIGITS)
        return lower || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9');
    return byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\';
}
/* The lexeme behind any character of an alphabet when it is the same behind all of them (LEX_NONE: none may follow);
 * LEX_MIXED when it is not. */
#define LEX_MIXED UINT32_MAX
Lex lex_behind(Lexicon *x, Lex a, Alphabet alphabet);
/* A lexeme that lets the same texts of so many bytes begin, be over and go on: counts that they cannot use up are
 * forgotten, so that most places of a long string are one. */
Lex lex_within(Lexicon *x, Lex a, uint32_t bytes);
