/* The draft tokens of an answer, for the step that is planned and until it has ended, and what was learned from earlier
 * ones. */
#pragma once
#include "engine/draft_rule.h"
#include "engine/draft_model.h"
#include "engine/engine.h"

typedef struct Draft {
    int32_t tokens[DRAFT_TOKENS_MAX];
    int count;
    DraftSource source;
    int bucket;
    float cost; /* cost of the rows, in tokens */
    DraftRule rule;
    DraftSequence sequence; /* what the draft model has read */
} Draft;
