/* What a Tokenizer is made of. Internal to tokenizer*.c and pretokenize.c. */
#pragma once
#include "base/arena.h"
#include "base/json.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/finder.h"
#include "text/tokenizer/normalize.h"
#include "text/tokenizer/tokenizer.h"

enum {
    PRE_STEPS_MAX = 32,
    DECODE_STEPS_MAX = 32,
    ADDED_TOKENS_MAX = 1 << 18,
    ADDED_TOKEN_BYTES_MAX = 1024,
    ADDED_PATTERN_BYTES_MAX = 4096, /* of one that is normalized */
    TEMPLATE_IDS_MAX = 64,
};

/* --- Pre-tokenizer: each step cuts a piece into pieces for the next one (pretokenize.c) ------------------------- */

typedef enum SplitBehaviour {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_WITH_PREVIOUS,
    SPLIT_WITH_NEXT,
    SPLIT_CONTIGUOUS
} SplitBehaviour;
typedef enum PrependScheme { PREPEND_FIRST, PREPEND_NEVER, PREPEND_ALWAYS } PrependScheme;
typedef enum PreKind { PRE_SPLIT, PRE_PREFIX_SPACE, PRE_BYTES, PRE_METASPACE } PreKind;

typedef struct PreStep {
    PreKind kind;
    Finder finder; /* SPLIT */
    SplitBehaviour behaviour;
    bool invert;
    Slice replacement; /* METASPACE: one character */
    PrependScheme scheme;
} PreStep;

typedef struct PreTokenizer {
    PreStep steps[PRE_STEPS_MAX];
    size_t count;
} PreTokenizer;

typedef struct PreWork {        /* scratch of one thread */
    Buffer text[PRE_STEPS_MAX]; /* of the steps that rewrite */
    RegexWork *regex;
    BpeWork bpe;
} PreWork;
void pre_work_free(PreWork *work);

/* Appends the ids of a normalized text. first: it begins where the whole text begins. */
NODISCARD bool pretokenize(
    const PreTokenizer *pre, const Bpe *bpe, PreWork *work, Slice text, bool first, Tokens *out, Error *error);

/* --- Added tokens (tokenizer_added.c) -------------------------------------------------------------------------- */

typedef struct AddedToken {
    Slice content; /* as in the file */
    Slice pattern; /* what is searched: the content, normalized when `normalized` */
    int32_t id;
    bool single_word, left, right, normalized, special;
    bool control; /* special, or part of the chat template */
} AddedToken;

typedef struct AddedIndex { /* a trie in a hash table */
    bool first[256];
    uint64_t *edges; /* node 24 bits, byte 8 bits, child 32 bits; 0: free */
    uint32_t edge_mask, edge_count;
    int32_t *token; /* by node: the added token that ends there, or −1. Node 0 is the root */
    uint32_t node_count, node_capacity;
} AddedIndex;
void added_index_free(AddedIndex *index);
/* False: no memory. */
NODISCARD bool added_index_add(AddedIndex *index, Slice pattern, int32_t token);
/* The longest token that begins at `at`, or −1. */
int32_t added_index_match(const AddedIndex *index, Slice text, size_t at, size_t *end);

/* --- Decoder ---------------------------------------------------------------------------------------------------- */

typedef enum DecodeKind {
    DECODE_BYTE_LEVEL,
    DECODE_REPLACE,
    DECODE_BYTE_FALLBACK,
    DECODE_FUSE,
    DECODE_STRIP,
    DECODE_METASPACE
} DecodeKind;

typedef struct DecodeStep {
    DecodeKind kind;
    Finder finder;        /* REPLACE */
    Slice content;        /* REPLACE; STRIP, METASPACE: one character */
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
    Decoder decoder;
    uint8_t *id_flags; /* by id */
    int32_t vocab;
};

/* From the texts of tokenizer.json and tokenizer_config.json (empty: there is none). NULL: *error says why. */
NODISCARD Tokenizer *tokenizer_parse(Slice json, Slice config, Error *error);

/* From JSON (tokenizer_build.c); node may be NULL. Strings are copied to arena. */
NODISCARD bool pretokenizer_build(PreTokenizer *pre, Arena *arena, const Json *node, bool by_bytes, Error *error);
bool pretokenizer_by_bytes(const Json *node);
NODISCARD bool decoder_build(Decoder *decoder, Arena *arena, const Json *node, Error *error);
NODISCARD bool post_processor_build(Tokenizer *t, const Json *node, Error *error);
/* tokenizer_added.c. config: tokenizer_config.json, or NULL. */
NODISCARD bool added_build(Tokenizer *t, const Json *added, const Json *config, Error *error);
const AddedToken *added_by_id(const Tokenizer *t, int32_t id); /* or NULL */
/* Marks the added tokens that occur in the source of a chat template as control tokens. */
void added_mark_control(Tokenizer *t, Slice template_source);

/* A token as the vocabulary spells it, appended. False: no such id. */
bool token_spelling(const Tokenizer *t, int32_t id, Buffer *out);
