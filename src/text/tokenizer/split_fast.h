/* Hand-written matchers for the split patterns that most tokenizers share: each equals its regular expression, many
 * times faster. Text is valid UTF-8. Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/slice.h"

/* The leftmost match that begins at `from` or later: [*start, *end). False: none. */
typedef bool (*SplitFind)(const char *text, size_t size, size_t from, size_t *start, size_t *end);

/* The matcher of that very pattern, or NULL. */
SplitFind split_fast(Slice pattern);
/* ByteLevel's own pattern (GPT-2). */
bool split_gpt2(const char *text, size_t size, size_t from, size_t *start, size_t *end);
