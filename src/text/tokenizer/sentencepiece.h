/* SentencePiece's tokenizer.model in place of a tokenizer.json: a protobuf of pieces with scores and of the normaliser,
 * kinds Unigram and BPE, written as the JSON of a tokenizer.json. Merges: each way to cut a piece into two others, by
 * the score of the piece. Source: sentencepiece_model.proto and the models of github.com/google/sentencepiece. */
#pragma once
#include "base/buffer.h"
#include "base/error.h"

/* model: the bytes of a tokenizer.model; config: the text of tokenizer_config.json, added: of added_tokens.json, which
 * has the ids of further tokens by their spelling, or empty. */
NODISCARD bool sentencepiece_json(Slice model, Slice config, Slice added, Buffer *out, Error *error);
/* Whether the directory has the file; then `out` gets the JSON. False with *found: the file is wrong, as the error
 * says. */
NODISCARD bool sentencepiece_read(const char *directory, Slice config, Buffer *out, bool *found, Error *error);
