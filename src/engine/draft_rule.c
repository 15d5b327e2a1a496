#include "engine/draft_rule.h"

#include <math.h>

#include "base/error.h"
#include "base/math.h"

enum {
    ORDER_MAX = 64,    /* draft tokens of a step */
    LEDGER_MAX = 40,   /* tokens */
    LOOKUP_TOKENS = 8, /* that the first estimates count as */
    MODEL_TOKENS = 6,
};
static const float LEDGER_START = 0.5f, LEDGER_SHARE = 0.01f; /* tokens; share of an answer's tokens */
/* Tokens that the ledger may be overdrawn by: likely drafts would otherwise wait for their first rows, which cost half
 * a step each where rows have experts of their own, for half of a short answer. */
static const float OVERDRAFT[DRAFT_BUCKETS] = {[4] = 0.25f, [5] = 0.5f, [6] = 1.5f, [DRAFT_BUCKET_MODEL] = 0.5f};
static const float GAIN_LEAST = 1.01f;
static const float KEPT_LOOKUP = 0.97f, KEPT_MODEL = 0.95f; /* kept share of the counts, per use */
static const float STARTS[DRAFT_BUCKETS] = {0.35f, 0.5f, 0.6f, 0.7f, 0.8f, 0.88f, 0.95f, 0.75f};

void draft_rule_init(DraftRule *rule) {
    *rule = (DraftRule){.balance = LEDGER_START};
    for (int i = 0; i < DRAFT_BUCKETS; i++) {
        rule->bucket[i].tried = i == DRAFT_BUCKET_MODEL ? MODEL_TOKENS : LOOKUP_TOKENS;
        rule->bucket[i].accepted = STARTS[i] * rule->bucket[i].tried;
    }
}

int draft_bucket(int length) {
    static const int ENDS[DRAFT_MATCH_BUCKETS - 1] = {1, 2, 3, 5, 8, 16};
    int bucket = 0;
    while (bucket < DRAFT_MATCH_BUCKETS - 1 && length > ENDS[bucket]) bucket++;
    return bucket;
}

float draft_probability(const DraftRule *rule, int bucket) {
    return rule->bucket[bucket].accepted / rule->bucket[bucket].tried;
}

/* What further rows cost in tokens: the share of the step that they add, times the tokens of the step without them. */
static float cost_of(const StepCosts *costs, int streams, int rows, int drafts) {
    return (float)streams * (costs->cost[rows + drafts] / costs->cost[rows] - 1);
}

static float credit(const DraftRule *rule, int bucket) { return rule->balance + OVERDRAFT[bucket]; }

/* The most draft tokens that the ledger pays for. */
static int affordable(const StepCosts *costs, const DraftOffer *offer, int streams, int rows) {
    int count = min_int(offer->count, STEP_COSTS_ROWS - rows);
    while (count > 0 && cost_of(costs, streams, rows, count) > credit(offer->rule, offer->bucket)) count--;
    return max_int(count, 0);
}

/* The offer whose next token is the likeliest to be accepted; −1: all have given what they have. */
static int likeliest(const DraftOffer *offers, const int *most, const float *reach, int count) {
    int best = -1;
    for (int i = 0; i < count; i++)
        if (offers[i].count < most[i] && (best < 0 || reach[i] > reach[best])) best = i;
    return best;
}

float draft_choose(const StepCosts *costs, int streams, int rows, DraftOffer *offers, int count, int rows_max) {
    int most[STEP_COSTS_ROWS], order[ORDER_MAX], total = 0;
    float probability[STEP_COSTS_ROWS], reach[STEP_COSTS_ROWS], expected = (float)streams;
    CHECK(count <= STEP_COSTS_ROWS && rows_max <= ORDER_MAX);
    const int room = min_int(rows_max, STEP_COSTS_ROWS - rows);
    for (int i = 0; i < count; i++) {
        most[i] = affordable(costs, &offers[i], streams, rows);
        probability[i] = reach[i] = draft_probability(offers[i].rule, offers[i].bucket);
        offers[i].count = 0;
    }
    float best = GAIN_LEAST * expected / costs->cost[rows];
    for (int n = 0; n < room; n++) {
        const int next = likeliest(offers, most, reach, count);
        if (next < 0) break;
        order[n] = next;
        expected += reach[next];
        reach[next] *= probability[next];
        offers[next].count++;
        const float value = expected / costs->cost[rows + n + 1];
        if (value <= best) continue;
        best = value;
        total = n + 1;
    }
    for (int i = 0; i < count; i++) offers[i].count = 0;
    for (int n = 0; n < total; n++) offers[order[n]].count++;
    const bool pays =
        room > 0 && (float)(streams + 1) / costs->cost[rows + 1] > GAIN_LEAST * (float)streams / costs->cost[rows];
    for (int i = 0; i < count && pays;
         i++) { /* estimates that are too low are corrected, where right drafts would pay */
        if (offers[i].count || most[i] == 0 || total == room || ++offers[i].rule->silent < DRAFT_SILENT_STEPS) continue;
        offers[i].count = 1;
        total++;
    }
    for (int i = 0; i < count; i++)
        if (offers[i].count) offers[i].rule->silent = 0;
    return total ? cost_of(costs, streams, rows, total) : 0;
}

int draft_length(const StepCosts *costs, DraftRule *rule, int streams, int rows, float draft_cost, int most) {
    const float p = draft_probability(rule, DRAFT_BUCKET_MODEL), base = costs->cost[rows];
    float reach = p, expected = 1, best = GAIN_LEAST;
    int length = 0;
    bool pays = false; /* a token that is right */
    for (int k = 1; k <= most && rows + streams * k <= STEP_COSTS_ROWS; k++) {
        expected += reach;
        reach *= p;
        const float cost = (costs->cost[rows + streams * k] + (float)k * draft_cost) / base, value = expected / cost;
        if (cost - 1 > credit(rule, DRAFT_BUCKET_MODEL)) break;
        pays = pays || (float)(1 + k) > GAIN_LEAST * cost;
        if (value <= best) continue;
        best = value;
        length = k;
    }
    if (length > 0 || !pays || ++rule->silent < DRAFT_SILENT_STEPS) return length;
    return 1; /* an estimate that is too low is corrected now and then */
}

void draft_note(DraftRule *rule, int bucket, int drafts, int accepted, float cost) {
    rule->balance = fminf(rule->balance + (float)accepted - cost + LEDGER_SHARE * (float)(accepted + 1), LEDGER_MAX);
    if (drafts == 0) return;
    const float kept = bucket == DRAFT_BUCKET_MODEL ? KEPT_MODEL : KEPT_LOOKUP;
    rule->bucket[bucket].accepted = kept * rule->bucket[bucket].accepted + (float)accepted;
    rule->bucket[bucket].tried = kept * rule->bucket[bucket].tried + (float)(accepted + (accepted < drafts));
}

double draft_pace_seconds(DraftPace *pace, double target_step_s) {
    const double expected = pace->weight_share * target_step_s;
    if (pace->token_s == 0) return expected;
    if (pace->token_s > expected) pace->token_s += 0.01 * (expected - pace->token_s);
    return pace->token_s;
}

/* The first steps read weights from their file: what is faster counts more. */
void draft_pace_note(DraftPace *pace, double seconds) {
    if (pace->token_s == 0) pace->token_s = seconds;
    const double rate = seconds < pace->token_s ? 0.3 : 0.1;
    pace->token_s += rate * (fmin(seconds, 2 * pace->token_s) - pace->token_s);
}
