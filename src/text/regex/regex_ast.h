/* The tree of a regular expression, for two back ends: the matcher of tokenizers (regex.c) and the lexemes of grammars
 * (text/grammar/pattern.c). All parts of a tree belong to the arena that it was parsed into. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "text/unicode/unicode.h"

typedef enum RegexDialect {
    REGEX_ONIGURUMA, /* the dialect of tokenizer.json (regex.h) */
    /* ECMA-262 with the u flag, which JSON Schema asks for. Refused: back references, look-behind, word boundaries.
     * Greedy and lazy repeats are told apart, for a language they are the same. */
    REGEX_ECMA,
} RegexDialect;

/* A set of characters: the union of its parts, then folded, then negated, then intersected with `both`. */
typedef struct CharSet {
    uint64_t ascii[2];   /* membership of the first 128 code points, by charset_finish() */
    uint32_t categories; /* UNICODE_SET… */
    bool word, not_word; /* REGEX_ONIGURUMA: \w, \W */
    bool alphabetic;     /* REGEX_ONIGURUMA: [:alpha:] */
    bool lower, upper;   /* REGEX_ONIGURUMA: [:lower:], [:upper:] */
    bool fold;           /* with all characters that differ from a member only in case */
    bool negated;
    UnicodeRange *ranges; /* [range_count] sorted, disjoint */
    size_t range_count;
    unsigned script;             /* REGEX_ONIGURUMA: value of unicode_script; 0: none */
    const struct CharSet *child; /* further sets of the union, linked by sibling */
    const struct CharSet *sibling;
    const struct CharSet *both; /* REGEX_ONIGURUMA: && this one; NULL: all characters */
} CharSet;
bool charset_has(const CharSet *set, uint32_t code);
CharSet *charset_finish(CharSet *set); /* sorts ranges and fills `ascii`, after its children; returns set */

typedef enum NodeKind { NODE_SET, NODE_CAT, NODE_ALT, NODE_REPEAT, NODE_LOOK, NODE_ATOMIC, NODE_ASSERT } NodeKind;
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
    bool edges;                /* an assertion or a look-ahead is at or below the node */
    bool negative;             /* LOOK */
    RepeatMode mode;           /* REPEAT */
    AssertKind assert;         /* ASSERT */
    uint32_t min, max;         /* REPEAT; max: REPEAT_FOREVER for none */
    const CharSet *set;        /* SET */
    struct Node *first, *next; /* children, linked by next; REPEAT, LOOK and ATOMIC have one */
} Node;

typedef struct RegexSyntax {
    RegexDialect dialect;
    bool fold;       /* from the beginning, as (?i) */
    bool dot_all;    /* from the beginning: the dot takes line ends */
    int depth_max;   /* nested groups and classes */
    size_t size_max; /* bytes of a pattern; 0: any */
} RegexSyntax;

/* NULL: an error that names the byte. */
NODISCARD Node *regex_parse(Arena *arena, Slice pattern, const RegexSyntax *syntax, Error *error);

/* What a backslash introduces, for other spellings of classes. *at: behind the backslash; moved behind the escape.
 * *set: a set, or NULL where the escape is the character *code. */
NODISCARD bool regex_parse_escape(
    Arena *arena, Slice text, RegexDialect dialect, size_t *at, const CharSet **set, uint32_t *code, Error *error);
