/* text/tokenizer/: tokenizer.json: from its file to tables, from text to ids and back.
 *
 * tokenizer.json (Hugging Face tokenizers): BPE, byte-level and SentencePiece style, WordPiece, Unigram. Reference:
 * huggingface/tokenizers 0.23. Threads: immutable once open, shared by all. Encoding is linear in the text, also for
 * one word of 100 KB.
 *
 * In this folder lives what turns text into ids and back, and nothing that knows a model or a conversation. Each file
 * calls only those above it:
 *   tokens, byte_level            lists of ids; the alphabet of byte-level vocabularies
 *   bpe_cache, bpe, bpe_encode    vocabulary and merges; from a word to ids
 *   word_models                   WordPiece and Unigram
 *   split_fast, finder            what a pattern finds
 *   normalize, pretokenize        the steps before the model
 *   added_index, vocabulary       added tokens in a text; what ids and spellings mean
 *   encode, decode                all of it, forth and back
 *   members, read, build, added   from tokenizer.json to these
 *   ranks                         tekken.json and tiktoken files as a tokenizer.json
 *   tokenizer, debug              opening one; the debug instruments */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"
#include "base/slice.h"
#include "text/tokenizer/tokens.h"

typedef struct Tokenizer Tokenizer;

/* directory holds tokenizer.json, or a vocabulary of ranks (ranks.h), and, if present, tokenizer_config.json. */
NODISCARD Tokenizer *tokenizer_open(const char *directory, Error *error);
void tokenizer_close(Tokenizer *tokenizer);

typedef enum ControlTokens {
    CONTROL_AS_TEXT,    /* control tokens spelled in the text are plain text (HF: encode_special_tokens = True) */
    CONTROL_RECOGNISED, /* they become their ids */
} ControlTokens;

/* Appends the ids of text. bos: run the post-processor as for a single sequence. Text must be UTF-8. */
NODISCARD bool tokenizer_encode(
    const Tokenizer *t, Slice text, ControlTokens control, bool bos, Tokens *out, Error *error);

/* Appends the ids of two texts by the post-processor's template for pairs, control tokens as text. *types: from which
 * of the appended ids on the type id is 1; their number: nowhere. ERROR_UNSUPPORTED: there is no such template. */
NODISCARD bool tokenizer_encode_pair(
    const Tokenizer *t, Slice first, Slice second, Tokens *out, size_t *types, Error *error);

/* A rendered prompt is a sequence of spans. Control tokens are the special ones, and other added tokens that occur in
 * the chat template's text and are not white space (<think>, <tool_call>): only bytes that came from the template may
 * become them, never across the seam between template and data. Otherwise the same ids as encoding the joined text. */
typedef struct Span {
    Slice text;
    bool from_template;
} Span;
NODISCARD bool tokenizer_encode_spans(const Tokenizer *t, const Span *spans, size_t count, Tokens *out, Error *error);

/* Decoding as HF's decode: the whole list at once. */
NODISCARD bool tokenizer_decode(
    const Tokenizer *t, const int32_t *ids, size_t count, bool skip_special, Buffer *out, Error *error);

/* Decoding one id at a time. Pieces are whole UTF-8 characters, never later than HF's DecodeStream; joined they equal
 * tokenizer_decode. */
typedef struct Detokenizer Detokenizer;
NODISCARD Detokenizer *detokenizer_new(const Tokenizer *t, bool skip_special, Error *error);
NODISCARD bool detokenizer_push(Detokenizer *d, int32_t id, Buffer *out, Error *error); /* appends decided bytes */
NODISCARD bool detokenizer_finish(Detokenizer *d, Buffer *out, Error *error);           /* and the rest */
void detokenizer_free(Detokenizer *d);

int tokenizer_vocab(const Tokenizer *t); /* largest id + 1 */
/* A text of n bytes is at least n / this many tokens, but for blanks that the tokenizer drops. 0: there is no telling.
 */
size_t tokenizer_longest(const Tokenizer *t);
bool tokenizer_id(const Tokenizer *t, Slice token, int32_t *id); /* by its spelling in the vocabulary */
bool tokenizer_is_special(const Tokenizer *t, int32_t id);
/* Appends the raw bytes of an id inside of a text, possibly a part of a character; for logprob entries. */
NODISCARD bool tokenizer_bytes(const Tokenizer *t, int32_t id, Buffer *out, Error *error);
