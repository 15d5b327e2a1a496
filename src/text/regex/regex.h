/* text/regex/: regular expressions of tokenizers: parser and matcher.
 *
 * Regular expressions over code points, in the dialect of tokenizer.json (Oniguruma, Ruby syntax): alternation takes
 * the first branch that fits; greedy, lazy and possessive repeats; classes with \p{…}, nesting and &&; (?i:…),
 * look-ahead, atomic groups, \b. No captures, back-references or look-behind. Matching backtracks, with a budget of
 * steps: hostile patterns end in an error, not in a hang. Threads: a Regex is immutable; each thread has its own
 * RegexWork.
 *
 * Why an engine of our own: ids are equal to the reference's only when the syntax is Oniguruma's, down to what \s and
 * nested classes mean, and when characters are those of one Unicode version on every machine (text/unicode). A library
 * brings another dialect, or the Unicode of the day. In this folder: set (classes of characters), parse (pattern to
 * tree, in this dialect and in ECMA-262's, which grammars use), regex (tree to program, and the matcher). */
#pragma once
#include "base/error.h"
#include "base/slice.h"

#include <stdint.h>

enum {
    REGEX_PATTERN_MAX = 64 << 10, /* bytes of a pattern */
    REGEX_DEPTH_MAX = 64,         /* nested groups or classes */
    REGEX_PROGRAM_MAX = 20000,    /* instructions, repeats unrolled */
};

typedef struct Regex Regex;
NODISCARD Regex *regex_compile(Slice pattern, Error *error);
void regex_free(Regex *regex);

typedef struct RegexWork { /* scratch of one thread; zeroed to begin with */
    struct RegexChoice *stack;
    size_t depth, capacity;
    uint64_t steps; /* remaining budget: set before use */
} RegexWork;
void regex_work_free(RegexWork *work);

typedef enum RegexResult { REGEX_NONE, REGEX_FOUND, REGEX_EXHAUSTED /* out of steps or memory */ } RegexResult;
/* The leftmost match in text (valid UTF-8) that begins at `from` (a character boundary) or later: [*start, *end). */
RegexResult regex_search(const Regex *regex, RegexWork *work, Slice text, size_t from, size_t *start, size_t *end);
