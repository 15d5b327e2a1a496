/* Regular expressions of ECMA-262 (regex_parse(), REGEX_ECMA) as lexemes: the second back end of the tree. Refused as
 * well: look-ahead inside of groups. Greedy and lazy are the same here: the language counts, not the match. Internal to
 * text/grammar. Failures show in the lexicon's budget. */
#pragma once
#include "text/grammar/chars.h"

typedef struct PatternFlags {
    bool fold;    /* i: case does not count */
    bool dot_all; /* s: the dot takes line ends, too */
} PatternFlags;

/* The texts that match as a whole. */
Lex pattern_whole(Lexicon *x, Slice pattern, PatternFlags flags);
/* The texts in which there is a match. ^ and $ are supported at the edges of the pattern and its alternatives. */
Lex pattern_in_text(Lexicon *x, Slice pattern);
/* The JSON strings, quotes included, in which there is a match. */
Lex pattern_in_json(Lexicon *x, Slice pattern);

/* The escape at *at, behind a backslash, for other spellings of classes: *code is a character, or −1 for a set, which
 * was added. False: a failure. */
bool pattern_escape(Lexicon *x, Slice text, size_t *at, Chars *set, int64_t *code);
