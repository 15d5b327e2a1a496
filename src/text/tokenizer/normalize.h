/* Normalizers of tokenizer.json: NFC, NFKC, NFD, NFKD, Replace, Prepend, Strip, Lowercase, StripAccents, Precompiled
 * and the parts of BertNormalizer, in sequence. Threads: a Normalizer is immutable once built. */
#pragma once
#include "base/buffer.h"
#include "base/error.h"
#include "text/tokenizer/added_index.h"
#include "text/tokenizer/finder.h"

enum {
    NORMALIZER_STEPS_MAX = 32,
    NORMALIZED_GROWTH_MAX = 64 /* × the text, + NORMALIZED_SIZE_MIN */,
    NORMALIZED_SIZE_MIN = 64 << 10
};

typedef enum NormalizeKind {
    NORMALIZE_FORM,
    NORMALIZE_REPLACE,
    NORMALIZE_PREPEND,
    NORMALIZE_STRIP,
    NORMALIZE_LOWERCASE,
    NORMALIZE_CLEAN,       /* BertNormalizer: without control characters, white space as blanks */
    NORMALIZE_IDEOGRAPHS,  /* BertNormalizer: blanks around them */
    NORMALIZE_MARKS,       /* without characters of `marks` */
    NORMALIZE_PRECOMPILED, /* SentencePiece's table */
    NORMALIZE_PIECES,      /* all that SentencePiece itself does, with its table: for a tokenizer.model */
} NormalizeKind;

typedef struct NormalizeStep {
    NormalizeKind kind;
    bool compatible, compose; /* FORM: K, C */
    bool left, right;         /* STRIP */
    Finder finder;            /* REPLACE */
    Slice content;            /* REPLACE, PREPEND; PRECOMPILED, PIECES: the texts, each with a NUL behind */
    uint32_t marks;           /* MARKS: set of categories */
    const uint32_t *units;    /* PRECOMPILED, PIECES: a double-array trie (darts-clone) */
    size_t unit_count;
    bool prefix, prefix_once, trim; /* PIECES: a blank in front, only of the whole text; no superfluous blanks */
    AddedIndex kept;                /* PIECES: texts that stay as they are */
} NormalizeStep;

typedef struct Normalizer {
    NormalizeStep steps[NORMALIZER_STEPS_MAX];
    size_t count;
} Normalizer;

void normalizer_free(Normalizer *normalizer);

/* Scratch of one thread. origin: [bytes of the text] the least origin of the bytes that each was made from. */
typedef struct NormalText {
    Buffer text[2], origin[2];
    uint32_t *codes; /* code points of the stretch being composed */
    uint8_t *code_origin, *classes;
    size_t codes_capacity;
    bool inside; /* the text does not begin here, but behind an added token */
} NormalText;
void normal_text_free(NormalText *scratch);

/* *text and *origin (NULL: not tracked) are replaced by views of scratch where something changed. */
NODISCARD bool normalizer_run(const Normalizer *normalizer, NormalText *scratch, RegexWork *work, Slice *text,
    const uint8_t **origin, Error *error);
