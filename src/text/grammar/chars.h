/* Character sets and their spelling in a text. Internal to text/grammar. */
#pragma once
#include "text/grammar/lex.h"
#include "text/unicode/unicode.h"

typedef struct Chars {
    UnicodeRange *data;
    uint32_t count, capacity;
} Chars;

void chars_add(Budget *budget, Chars *set, uint32_t first, uint32_t last);
void chars_add_all(Budget *budget, Chars *set, const Chars *more);
void chars_add_categories(Budget *budget, Chars *set, uint32_t categories); /* UNICODE_SET… */
void chars_normalize(Chars *set);                                           /* sorted and disjoint */
void chars_negate(Budget *budget, Chars *set);
void chars_fold(Budget *budget, Chars *set); /* adds characters that differ from a member in case only */
void chars_free(Budget *budget, Chars *set);

/* Spelling of a character. In JSON each character has one spelling, itself unless JSON demands an escape, so that
 * excluding a text excludes all of its spellings. */
typedef enum Spelling { SPELLING_UTF8, SPELLING_JSON } Spelling;
Lex chars_lex(Lexicon *x, const Chars *set, Spelling spelling); /* one character of a normalized set */
Lex chars_any(Lexicon *x, Spelling spelling);                   /* any one character */
/* A character of a JSON string in any of its spellings: each escape is one character, and so is a pair of surrogates.
 */
Lex chars_any_json(Lexicon *x);
