/* How many draft tokens a step verifies. An answer counts, per source, how many draft tokens were accepted, so that p
 * is the probability of the next; k draft tokens give 1 + p + … + p^k tokens for the cost of 1 + k rows. Rows are given
 * where a token is the likeliest to be accepted, as long as the step's tokens per cost grow. A ledger per answer bounds
 * what drafts can lose, whatever the estimates are. Costs decide how many tokens are drafted, never which tokens an
 * answer has. Thread: the engine's. */
#pragma once
#include "engine/step_costs.h"

enum {
    DRAFT_MATCH_BUCKETS = 7,                  /* buckets of lookups, by the length of the match */
    DRAFT_BUCKET_MODEL = DRAFT_MATCH_BUCKETS, /* bucket of the draft model */
    DRAFT_BUCKETS,
    DRAFT_SILENT_STEPS = 32, /* after so many steps without a draft a single token is tried */
};

typedef struct DraftRule {
    struct {
        float accepted, tried; /* tokens; old ones count less; tried includes the one that ended a run */
    } bucket[DRAFT_BUCKETS];
    float balance; /* tokens that drafts may still lose */
    int silent;    /* steps since the last draft */
} DraftRule;

/* A sequence's draft tokens in the step that is planned. */
typedef struct DraftOffer {
    DraftRule *rule;
    int bucket;
    int count; /* in: draft tokens that there are; out: those that the step verifies */
} DraftOffer;

/* What a draft token of a draft model or a multi-token prediction head takes. */
typedef struct DraftPace {
    double weight_share; /* weights that it reads, relative to a step of the target */
    double token_s;      /* measured, of all texts together; 0: not yet */
} DraftPace;

/* Seconds of a draft token; before the first one, and slowly again after those that took long and were not repeated,
 * what the weights say. */
double draft_pace_seconds(DraftPace *pace, double target_step_s);
void draft_pace_note(DraftPace *pace, double seconds);
void draft_rule_init(DraftRule *rule);
/* The bucket of a match of this length ≥ 1. */
int draft_bucket(int match_length);
float draft_probability(const DraftRule *rule, int bucket);
/* Sets the counts of the offers. streams, rows: sequences and rows of the step without drafts; rows_max: draft tokens
 * at most. Returns the cost of the draft tokens in tokens that the step would have had instead. */
float draft_choose(const StepCosts *costs, int streams, int rows, DraftOffer *offers, int count, int rows_max);
/* The draft tokens for a draft model that costs so much per token and sequence, relative to a step of one row; 0: it
 * does not pay. */
int draft_length(const StepCosts *costs, DraftRule *rule, int streams, int rows, float draft_cost, int most);
/* A step has verified drafts, 0: it had none; cost: as draft_choose(), this sequence's share. */
void draft_note(DraftRule *rule, int bucket, int drafts, int accepted, float cost);
