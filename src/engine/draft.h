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
    float cost;     /* in tokens: of the rows, and of a draft model's or a head's own steps */
    float row_cost; /* that of the rows, as it was expected */
    DraftRule rule;
    DraftSequence sequence; /* what the draft model has read */
} Draft;
