/* What the regex parser leaves and the matcher runs. Internal to regex*.c. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "text/regex/regex.h"
#include "text/unicode/unicode.h"

/* A class of characters: a union of items, perhaps negated, perhaps intersected with further sets. */
typedef struct CharSet {
    uint64_t ascii[2]; /* the verdict on the first 128 code points, all told */
    uint32_t categories;
    bool word, not_word, alphabetic, lower, upper; /* properties among the items: \w, \W, [:alpha:] and so on */
    bool negated, fold;
    UnicodeRange *ranges; /* sorted, disjoint */
    size_t range_count;
    unsigned script;             /* value of unicode_script; 0: none */
    const struct CharSet *child; /* nested sets of the union, linked by sibling */
    const struct CharSet *sibling;
    const struct CharSet *both; /* && this one */
} CharSet;
bool charset_has(const CharSet *set, uint32_t code);
CharSet *charset_finish(CharSet *set); /* once it is complete, children first; returns it */

typedef enum NodeKind {
    NODE_EMPTY,
    NODE_SET,
    NODE_CAT,
    NODE_ALT,
    NODE_REPEAT,
    NODE_LOOK,
    NODE_ATOMIC,
    NODE_ASSERT
} NodeKind;
typedef enum RepeatMode { REPEAT_GREEDY, REPEAT_LAZY, REPEAT_POSSESSIVE } RepeatMode;
typedef enum AssertKind {
    ASSERT_WORD,
    ASSERT_NOT_WORD,
    ASSERT_LINE_START,
    ASSERT_LINE_END,
    ASSERT_START,
    ASSERT_END,
    ASSERT_LAST_LINE_END
} AssertKind;
#define REPEAT_FOREVER UINT32_MAX /* too large for an enum */

typedef struct Node {
    NodeKind kind;
    const CharSet *set;
    struct Node *first, *next; /* children: linked by next. REPEAT, LOOK and ATOMIC have one */
    uint32_t min, max;
    RepeatMode mode;
    bool negative;
    AssertKind assert;
} Node;

typedef enum OpCode {
    OP_SET,      /* one character of set */
    OP_RUN,      /* min…max characters of set, by mode */
    OP_SPLIT,    /* try the next instruction, then target */
    OP_SPLIT_TO, /* try target, then the next instruction */
    OP_JUMP,
    OP_LOOK,   /* the following instructions up to their OP_MATCH must (not) match here; go on at target */
    OP_ATOMIC, /* the same, consuming */
    OP_ASSERT,
    OP_MARK,     /* remembers the position in a register */
    OP_PROGRESS, /* goes to target when nothing was consumed since the mark */
    OP_MATCH,
} OpCode;

typedef struct Op {
    uint8_t code, mode; /* mode: RepeatMode, AssertKind, or 1 for a negative look-ahead */
    uint16_t reg;
    uint32_t min, max;
    uint32_t target;
    const CharSet *set;
} Op;

enum { REGEX_REGISTERS_MAX = 64 };

struct Regex {
    Arena arena; /* owns the program */
    Op *ops;
    uint32_t count;
    uint32_t registers;
};

/* NULL: an error. */
Node *regex_parse(Arena *arena, Slice pattern, Error *error);
