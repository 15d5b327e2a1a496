/* What a Tokenizer is made of. Internal to text/tokenizer and its tests. */
#pragma once
#include "base/arena.h"
#include "text/tokenizer/added_index.h"
#include "text/tokenizer/normalize.h"
#include "text/tokenizer/pretokenize.h"
#include "text/tokenizer/tokenizer.h"

enum {
    DECODE_STEPS_MAX = 32,
    ADDED_TOKENS_MAX = 1 << 18,
    ADDED_TOKEN_BYTES_MAX = 1024,
    ADDED_PATTERN_BYTES_MAX = 4096, /* longest normalised added-token pattern */
    TEMPLATE_IDS_MAX = 64,
};

/* --- Added tokens ------------------------------------------------------------------------------------------------ */

typedef struct AddedToken {
    Slice content; /* as in the file */
    Slice pattern; /* searched text: the content, normalised if `normalized` */
    int32_t id;
    bool single_word, left, right, normalized, special;
    bool control; /* special, or part of the chat template */
} AddedToken;

/* --- Decoder ---------------------------------------------------------------------------------------------------- */

typedef enum DecodeKind {
    DECODE_BYTE_LEVEL,
    DECODE_REPLACE,
    DECODE_BYTE_FALLBACK,
    DECODE_FUSE,
    DECODE_STRIP,
    DECODE_METASPACE,
    DECODE_WORDPIECE
} DecodeKind;

typedef struct DecodeStep {
    DecodeKind kind;
    Finder finder;        /* REPLACE */
    Slice content;        /* REPLACE; STRIP, METASPACE: one character; WORDPIECE: the prefix of later pieces */
    bool cleanup;         /* WORDPIECE: without the blank in front of punctuation and of some English endings */
    uint32_t start, stop; /* STRIP */
    PrependScheme scheme; /* METASPACE */
} DecodeStep;

typedef enum DecodeShape {
    SHAPE_BYTES,  /* ByteLevel alone: ids are bytes */
    SHAPE_PIECES, /* steps on single tokens, then perhaps ByteFallback, then perhaps Strip on the whole */
    SHAPE_WHOLE,  /* anything else: can only be decoded all at once */
} DecodeShape;

typedef struct Decoder {
    DecodeStep steps[DECODE_STEPS_MAX];
    size_t count;
    bool absent; /* no decoder: tokens are joined with spaces */
    DecodeShape shape;
    /* PIECES */
    size_t piece_steps; /* the leading steps that work on single tokens */
    bool byte_fallback;
    const DecodeStep *strip; /* or NULL */
} Decoder;

/* --- All of it ---------------------------------------------------------------------------------------------------- */

typedef enum IdFlags { ID_ADDED = 1, ID_SPECIAL = 2 } IdFlags;

/* A part of the template for two texts. */
typedef struct PairItem {
    enum { PAIR_TOKEN, PAIR_FIRST, PAIR_SECOND } part;
    bool second; /* its type id is 1 */
    int32_t id;  /* TOKEN */
} PairItem;

struct Tokenizer {
    Arena arena; /* strings and small arrays */
    Bpe bpe;
    Normalizer normalizer;
    PreTokenizer pre;
    AddedToken *added; /* sorted by id */
    size_t added_count;
    AddedIndex raw, normalized; /* the added tokens searched before and after normalizing */
    int32_t prefix[TEMPLATE_IDS_MAX], suffix[TEMPLATE_IDS_MAX];
    size_t prefix_count, suffix_count;
    PairItem pair[TEMPLATE_IDS_MAX];
    size_t pair_count; /* 0: the tokenizer encodes no pairs */
    Decoder decoder;
    uint8_t *id_flags; /* by id */
    int32_t vocab;
};

/* From the texts of tokenizer.json and tokenizer_config.json (empty: there is none). NULL: *error says why. */
NODISCARD Tokenizer *tokenizer_parse(Slice json, Slice config, Error *error);

/* vocabulary.c */
const AddedToken *added_by_id(const Tokenizer *t, int32_t id); /* or NULL */
/* A token as the vocabulary spells it, appended. False: no such id. */
bool token_spelling(const Tokenizer *t, int32_t id, Buffer *out);
/* Appends the bytes of a token in a ByteLevel decoder: a spelling outside of the byte alphabet is copied. */
bool token_bytes(const Tokenizer *t, int32_t id, Buffer *out);
