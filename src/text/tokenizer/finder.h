/* What a tokenizer.json pattern finds in a text: a literal, a regular expression (by hand or compiled) or a kind of
 * character; and white space around a place. Threads: immutable; each thread has its own RegexWork. */
#pragma once
#include "base/error.h"
#include "base/slice.h"
#include "text/regex/regex.h"
#include "text/tokenizer/split_fast.h"

typedef enum FinderKind { FIND_LITERAL, FIND_FAST, FIND_REGEX, FIND_NUMBER, FIND_PUNCTUATION, FIND_SPACE } FinderKind;

typedef struct Finder {
    FinderKind kind;
    Slice literal; /* LITERAL: not empty; owned by the tokenizer */
    const SplitFast *fast;
    Regex *regex; /* owned */
} Finder;

/* The next match that begins at `from` or later. As RegexResult. */
RegexResult finder_next(const Finder *finder, RegexWork *work, Slice text, size_t from, size_t *start, size_t *end);
void finder_free(Finder *finder);
/* Where the search continues after a match: at its end; after an empty match one character further; past the text at
 * its end. */
static inline size_t finder_resume(Slice text, size_t start, size_t end) {
    if (start < end) return end;
    do end++;
    while (end < text.size && ((uint8_t)text.data[end] & 0xC0) == 0x80);
    return end;
}

/* The character that ends at `at` > 0; returns where it begins. Texts are valid UTF-8, here and below. */
size_t character_before(Slice text, size_t at, uint32_t *code);
/* Where the white space that ends at `at` begins, and where that which begins there ends. */
size_t space_before(Slice text, size_t at);
size_t space_behind(Slice text, size_t at);
