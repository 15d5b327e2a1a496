/* What a tokenizer.json pattern finds in a text: a literal, a regular expression (by hand or compiled) or a kind of
 * character. Threads: immutable; each thread has its own RegexWork. */
#pragma once
#include "base/error.h"
#include "base/slice.h"
#include "text/regex/regex.h"
#include "text/tokenizer/split_fast.h"

typedef enum FinderKind { FIND_LITERAL, FIND_FAST, FIND_REGEX, FIND_NUMBER, FIND_PUNCTUATION, FIND_SPACE } FinderKind;

typedef struct Finder {
    FinderKind kind;
    Slice literal; /* LITERAL: not empty; owned by the tokenizer */
    SplitFind fast;
    Regex *regex; /* owned */
} Finder;

/* The next match that begins at `from` or later. As RegexResult. */
RegexResult finder_next(const Finder *finder, RegexWork *work, Slice text, size_t from, size_t *start, size_t *end);
void finder_free(Finder *finder);
