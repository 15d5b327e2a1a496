/* What ids and spellings mean: the model's tokens, and the added ones. */
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/internal.h"

const AddedToken *added_by_id(const Tokenizer *t, int32_t id) {
    if (id < 0 || id >= t->vocab || !(t->id_flags[id] & ID_ADDED)) return NULL;
    size_t low = 0, high = t->added_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (t->added[middle].id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return &t->added[low];
}

int tokenizer_vocab(const Tokenizer *t) { return t->vocab; }

size_t tokenizer_longest(const Tokenizer *t) {
    size_t longest = t->bpe.size_max;
    if (!t->bpe.by_bytes && !t->bpe.byte_fallback) return 0; /* unknown characters may be one token together, or none */
    for (size_t i = 0; i < t->added_count; i++) {
        if (t->added[i].left || t->added[i].right) return 0; /* takes all blanks beside it */
        if (t->added[i].content.size > longest) longest = t->added[i].content.size;
    }
    return longest;
}

bool tokenizer_is_special(const Tokenizer *t, int32_t id) {
    return id >= 0 && id < t->vocab && t->id_flags[id] & ID_SPECIAL;
}

bool tokenizer_id(const Tokenizer *t, Slice token, int32_t *id) {
    *id = bpe_find_spelled(&t->bpe, token);
    if (*id >= 0) return true;
    for (size_t i = 0; t->id_flags && i < t->added_count; i++) {
        if (!slice_equal(t->added[i].content, token)) continue;
        *id = t->added[i].id;
        return true;
    }
    return false;
}

static const BpeToken *model_token(const Tokenizer *t, int32_t id) {
    if (id < 0 || (uint32_t)id >= t->bpe.id_limit || !(t->bpe.tokens[id].flags & BPE_TOKEN_USED)) return NULL;
    return &t->bpe.tokens[id];
}

bool token_spelling(const Tokenizer *t, int32_t id, Buffer *out) {
    const AddedToken *added = added_by_id(t, id);
    if (added) {
        buffer_slice(out, added->pattern);
        return true;
    }
    const BpeToken *token = model_token(t, id);
    if (!token) return false;
    Slice bytes = bpe_token(&t->bpe, (uint32_t)id);
    if (t->bpe.by_bytes && !(token->flags & BPE_TOKEN_LITERAL)) {
        byte_level_write(bytes, out);
    } else {
        buffer_slice(out, bytes);
    }
    return true;
}

bool token_bytes(const Tokenizer *t, int32_t id, Buffer *out) {
    const AddedToken *added = added_by_id(t, id);
    if (!added && !model_token(t, id)) return false;
    Slice token = added ? added->pattern : bpe_token(&t->bpe, (uint32_t)id);
    if (!added && t->bpe.by_bytes) {
        buffer_slice(out, token);
    } else {
        byte_level_append(token, out);
    }
    return true;
}
