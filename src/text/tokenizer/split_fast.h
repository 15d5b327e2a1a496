/* Hand-written matchers for the split patterns that most tokenizers share: each equals its regular expression, many
 * times faster. Text is valid UTF-8. Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/slice.h"

/* The leftmost match that begins at `from` or later: [*start, *end). False: none. */
typedef bool (*SplitFind)(const char *text, size_t size, size_t from, size_t *start, size_t *end);
/* The ends of the next pieces from `from` < size on, `max` at most; returns their number, at least 1. Pieces are
 * matches and the text between them. */
typedef size_t (*SplitMany)(const char *text, size_t size, size_t from, size_t *ends, size_t max);

typedef struct SplitFast {
    SplitFind find;
    SplitMany many; /* NULL: there is none */
    bool tiles;     /* there is no text between matches */
} SplitFast;

/* The matcher of that very pattern, or NULL. */
const SplitFast *split_fast(Slice pattern);
/* ByteLevel's own pattern (GPT-2). */
extern const SplitFast split_gpt2;

/* DeepSeek's three splits in a row: digits, ideographs, words. */
bool split_deepseek_steps(const SplitFast *first, const SplitFast *second, const SplitFast *third);
/* The ends of the next words from `from` < size on that all three together make, `max` ≥ 64 at most; returns their
 * number, at least 1. *piece: 0 in the first call for a text; then where the text ends that the third split gets. */
size_t split_deepseek_words(const char *text, size_t size, size_t from, size_t *piece, size_t *ends, size_t max);
