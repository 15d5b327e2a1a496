/* Pre-tokenising: each step splits a piece for the next step; the last pieces are words for the model. Thread: a
 * PreTokenizer is immutable once built; each thread has its own PreWork. */
#pragma once
#include "base/buffer.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/finder.h"

enum { PRE_STEPS_MAX = 32 };

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
    Buffer text[PRE_STEPS_MAX]; /* buffers of the rewriting steps */
    RegexWork *regex;
    BpeWork bpe;
} PreWork;
void pre_work_free(PreWork *work);

/* Appends the ids of a normalized text. first: it begins where the whole text begins. */
NODISCARD bool pretokenize(
    const PreTokenizer *pre, const Bpe *bpe, PreWork *work, Slice text, bool first, Tokens *out, Error *error);
