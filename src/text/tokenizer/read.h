/* Reads tokenizer.json: the vocabulary and the merges, nearly all of its megabytes, by a scanner of their own straight
 * into a Bpe; everything else as Json. Strict like base/json. Internal to text/tokenizer. */
#pragma once
#include "base/arena.h"
#include "base/json.h"
#include "text/tokenizer/bpe.h"

enum { TOKENIZER_JSON_MAX = 1 << 30 };

typedef struct TokenizerFile { /* NULL: the key is absent */
    const Json *added_tokens, *normalizer, *pre_tokenizer, *post_processor, *decoder;
    /* members of model */
    const Json *type, *dropout, *unk_token, *subword_prefix, *word_suffix, *fuse_unk, *byte_fallback, *ignore_merges,
        *unk_id, *single, *word_characters_max;
} TokenizerFile;

/* The last component of "pre_tokenizer" (NULL: absent). When it is a ByteLevel, words reach the model as bytes. */
const Json *last_pre_tokenizer(const Json *node);

/* Json values and their strings live in arena and in text. bpe: zeroed; the caller frees it, also after an error. */
NODISCARD bool tokenizer_read(Slice text, Arena *arena, TokenizerFile *file, Bpe *bpe, Error *error);
