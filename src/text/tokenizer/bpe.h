/* Byte-pair encoding: a vocabulary, ranked merges, and the ids of one word. Linear in words of usual length, n log n in
 * long ones. Words are read by bytes (tokens are stored as bytes; byte-level vocabularies) or by characters (tokens are
 * stored as spelled; SentencePiece style, with byte fallback). Thread: immutable once built; any thread may use the
 * cache. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/slice.h"
#include "text/tokenizer/tokens.h"

enum {
    BPE_ID_MAX = (1 << 20) - 2, /* a pair of ids and a rank share 64 bits */
    BPE_MERGES_MAX = (1 << 24) - 2,
    BPE_TOKEN_BYTES_MAX = UINT16_MAX,
    BPE_WIDE_BLOCK_BITS = 6,
    BPE_WIDE_BLOCKS = 1 << (16 - BPE_WIDE_BLOCK_BITS), /* for characters of up to three bytes */
};

typedef enum BpeTokenFlags {
    BPE_TOKEN_USED = 1,
    BPE_TOKEN_LITERAL =
        2, /* by bytes: holds characters outside the byte alphabet; it is stored as spelled and no text gives it */
    BPE_TOKEN_BYTE = 4,   /* "<0xNN>" of byte fallback */
    BPE_TOKEN_SILENT = 8, /* UNIGRAM: no text gives it */
} BpeTokenFlags;

typedef struct BpeToken {
    uint32_t offset; /* into pool */
    uint16_t size, flags;
} BpeToken;

typedef enum ModelKind { MODEL_BPE, MODEL_WORDPIECE, MODEL_UNIGRAM } ModelKind; /* the last two: word_models.h */

typedef struct Bpe {
    ModelKind kind;
    bool by_bytes, ignore_merges, byte_fallback, fuse_unk;
    int32_t unk; /* −1: none */
    char *pool;
    size_t pool_size;
    BpeToken *tokens;  /* by id */
    uint32_t id_limit; /* largest id + 1 */
    uint32_t vocab_count;
    uint32_t size_max;     /* bytes of the longest token */
    uint16_t longest[256]; /* the same, by the token's first byte */
    uint64_t *index;       /* open addressing: 44 bits of the hash above id + 1; 0: free */
    uint32_t index_mask;
    bool ambiguous;  /* two tokens have these 44 bits */
    uint64_t *pairs; /* open addressing: left 20 bits, right 20 bits, rank + 1 24 bits; 0: free */
    uint64_t pairs_mask;
    uint32_t *results; /* by rank, and one entry behind them */
    uint32_t merge_count;
    int32_t byte_ids[256];  /* token id per byte; −1: none. Character vocabularies: the ids of "<0xNN>" */
    int32_t ascii_ids[128]; /* by characters: of the token for one ASCII character */
    int32_t *byte_ranks;    /* by bytes: the rank of the merge of two single bytes, 65,536 of them */
    /* By bytes, in blocks of code points (bpe_tables.h, wide_id): the token that the three bytes of a character become
     * before anything merges with it, where no merge crosses its boundaries with a part of a character; −1: there is
     * none. Or NULL. */
    int32_t *wide_ids;
    uint16_t wide_blocks[BPE_WIDE_BLOCKS]; /* places in wide_ids; block 0 has no ids */
    struct BpeCache *cache;
    Slice subword_prefix;         /* WORDPIECE: in front of pieces that do not begin a word; owned */
    uint32_t word_characters_max; /* WORDPIECE: longer words are unknown */
    bool whole_words;             /* WORDPIECE: a word is one token, or unknown (WordLevel) */
    double *scores;               /* UNIGRAM: by id */
    double unknown_score;         /* UNIGRAM: of a character without a token */
    bool single;                  /* UNIGRAM: sums are kept in single precision, as SentencePiece itself does */
    /* Split points that no merge crosses: before "▁" (by characters), unless the byte before it is in before_space;
     * between two characters of three bytes, unless their pair is in bigrams, or one of them with the byte beside it in
     * edges, or the two bytes at the boundary in seams; between two ASCII characters (by characters), unless they are
     * in seams. */
    bool space_splits, wide_splits, ascii_splits;
    uint8_t before_space[256];
    uint64_t *bigrams; /* BPE_BIGRAM_BITS: tokens have both characters whole */
    uint64_t *edges;   /* BPE_EDGE_BITS: tokens have one of them whole */
    uint64_t seams[256][4];
} Bpe;

void bpe_free(Bpe *bpe);
/* The id of a token's stored bytes, or −1. literal: the token must be LITERAL. */
int32_t bpe_find(const Bpe *bpe, const char *bytes, size_t size, bool literal);
/* The id of a token as tokenizer.json spells it, or −1. */
int32_t bpe_find_spelled(const Bpe *bpe, Slice spelled);
/* bpe_find for the bytes of an existing token, such as a merge's result; compares hashes alone where that is enough. */
int32_t bpe_find_hashed(const Bpe *bpe, const char *bytes, size_t size, bool literal, uint64_t hash, bool trusted);
static inline Slice bpe_token(const Bpe *bpe, uint32_t id) {
    return (Slice){bpe->pool + bpe->tokens[id].offset, bpe->tokens[id].size};
}
/* Once tokens are there: the index, and the tables of single characters. False: no memory, or two equal tokens. */
NODISCARD bool bpe_index(Bpe *bpe, Error *error);
/* merges: triples (left, right, result), by rank; the last of equal pairs counts. */
NODISCARD bool bpe_set_merges(Bpe *bpe, const int32_t *merges, size_t count, Error *error);

typedef struct BpeWork { /* scratch of one thread */
    struct BpeSymbol *symbols;
    uint64_t *heap;
    struct UnigramNode *nodes;
    size_t symbols_capacity, heap_capacity, nodes_capacity;
} BpeWork;
void bpe_work_free(BpeWork *work);
/* Appends the ids of one word. False: no memory. */
NODISCARD bool bpe_encode(const Bpe *bpe, BpeWork *work, Slice word, Tokens *out);
/* The same for the words of a text that lie side by side: from `start` to ends[0], and so on. */
NODISCARD bool bpe_encode_words(
    const Bpe *bpe, BpeWork *work, Slice text, size_t start, const size_t *ends, size_t count, Tokens *out);
