/* Reads tokenizer.json: the vocabulary and the merges, nearly all of its megabytes, by a scanner of their own straight
 * into a Bpe; everything else as Json. Strict like base/json. Internal to tokenizer*.c. */
#pragma once
#include "base/arena.h"
#include "base/json.h"
#include "text/tokenizer/bpe.h"

enum { TOKENIZER_JSON_MAX = 1 << 30 };

typedef struct TokenizerFile { /* NULL: the key is absent */
    const Json *added_tokens, *normalizer, *pre_tokenizer, *post_processor, *decoder;
    /* members of model */
    const Json *type, *dropout, *unk_token, *subword_prefix, *word_suffix, *fuse_unk, *byte_fallback, *ignore_merges;
} TokenizerFile;

/* Whether words reach the model as bytes, by the value of "pre_tokenizer" (NULL: absent). */
typedef bool (*TokenizerByBytes)(const Json *pre_tokenizer);

/* Json values and their strings live in arena and in text. bpe: zeroed; the caller frees it, also after an error. */
NODISCARD bool tokenizer_read(
    Slice text, TokenizerByBytes by_bytes, Arena *arena, TokenizerFile *file, Bpe *bpe, Error *error);

/* The alphabet of byte-level vocabularies: each byte is spelled as one printable character. */
extern const uint16_t byte_level_codes[256];
/* Appends the bytes that spelled stands for; false when a character is not of the alphabet (nothing useful is written
 * then). out: room for spelled.size bytes. */
bool byte_level_read(Slice spelled, char *out, size_t *size);
