/* Regular expressions (ECMA-262, with the u flag: what JSON Schema asks for) as lexemes. Not kept, and refused: back
 * references, look-behind, word boundaries, look-ahead inside of groups. Greedy and lazy are the same here: the
 * language counts, not the match. Internal to text/grammar. Failures show in the lexicon's budget. */
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

/* One item of a class at *at: a character, or behind a backslash a set. Shared with other spellings of classes: the
 * code of a character, or −1 when it was a set, which was added. False: a failure. */
bool pattern_escape(Lexicon *x, Slice text, size_t *at, Chars *set, int64_t *code);
