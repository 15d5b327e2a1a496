/* Lists of token ids. */
#include "text/tokenizer/tokens.h"

#include <stdlib.h>

#include "base/checked.h"

bool tokens_reserve(Tokens *tokens, size_t more) {
    if (tokens->capacity - tokens->count >= more) return true;
    size_t capacity = tokens->capacity ? tokens->capacity : 64;
    while (capacity - tokens->count < more) {
        if (!size_mul(capacity, 2, &capacity)) return false;
    }
    size_t bytes;
    int32_t *ids = size_mul(capacity, sizeof *ids, &bytes) ? realloc(tokens->ids, bytes) : NULL;
    if (!ids) return false;
    tokens->ids = ids;
    tokens->capacity = capacity;
    return true;
}

bool tokens_push(Tokens *tokens, int32_t id) {
    if (tokens->count == tokens->capacity && !tokens_reserve(tokens, 1)) return false;
    tokens->ids[tokens->count++] = id;
    return true;
}

void tokens_free(Tokens *tokens) {
    free(tokens->ids);
    *tokens = (Tokens){0};
}
