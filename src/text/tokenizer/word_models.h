/* The other models of tokenizer.json over a vocabulary of bpe.h, from one word to ids: WordPiece (BERT), the longest
 * pieces from the front; Unigram (SentencePiece), the pieces with the greatest sum of scores. Threads: as in bpe.h. */
#pragma once
#include "text/tokenizer/bpe.h"

enum { UNIGRAM_TOKEN_BYTES_MAX = 512 };

/* Appends the ids of one word by the vocabulary's kind. False: no memory. */
NODISCARD bool word_encode(const Bpe *bpe, BpeWork *work, Slice word, Tokens *out);
/* Once tokens and scores are there: the score of unknown characters. False: a token is too long. */
NODISCARD bool unigram_finish(Bpe *bpe, Error *error);
