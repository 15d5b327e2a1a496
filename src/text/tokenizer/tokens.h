/* A growing list of token ids. Threads: one list, one thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Tokens {
    int32_t *ids;
    size_t count, capacity;
} Tokens;
NODISCARD bool tokens_push(Tokens *tokens, int32_t id);     /* false: no memory */
NODISCARD bool tokens_reserve(Tokens *tokens, size_t more); /* room for `more` ids beyond count */
void tokens_free(Tokens *tokens);
