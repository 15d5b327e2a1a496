#include "engine/speculation.h"

#include "base/math.h"

enum { STREAMED_MATCH_LEAST = 16 /* tokens of a match, where experts are streamed */ };

bool speculation_open(Speculation *s, const Runner *runner, const EngineOptions *options, int rows_max, Error *error) {
    const Model *model = runner_model(runner);
    float fanout[STEP_COSTS_ROWS + 1];
    *s = (Speculation){.options = options->speculation, .rows_max = rows_max, .streamed = model_experts(model) != NULL};
    s->eos_count = model_eos(model, s->eos);
    const bool experts = model_expert_fanout(model, STEP_COSTS_ROWS, fanout);
    step_costs_init(&s->costs, backend_on_device(options->backend.device), experts ? fanout : NULL);
    return true;
}

void speculation_close(Speculation *s) { *s = (Speculation){0}; }

/* ---- proposing ---- */

/* Brings the lookup up to the answer's last token. */
static void look_up_answer(Request *r, AnswerChoice *choice, int number) {
    Lookup *lookup = &r->lookup;
    if (!lookup->ready) lookup_begin(lookup, r->prediction, r->prompt);
    while (lookup->lengths[number] < choice->generated)
        lookup_add(lookup, number, request_answer_id(r, choice, lookup->lengths[number]));
}

/* The row of an end token would be of no use. */
static int tokens_to_end(const Speculation *s, const Request *r, const Draft *draft) {
    for (int i = 0; i < draft->count && !r->sampling.ignore_eos; i++)
        for (int k = 0; k < s->eos_count; k++)
            if (draft->tokens[i] == s->eos[k]) return i;
    return draft->count;
}

static void propose_lookup(Speculation *s, const DraftTarget *target) {
    Request *r = target->request;
    Draft *draft = &target->choice->draft;
    const int number = (int)(target->choice - r->choices);
    if (!s->options.lookup || !r->lookup.ids) return;
    look_up_answer(r, target->choice, number);
    const LookupMatch match = lookup_find(&r->lookup, number, target->most, draft->tokens);
    if (match.count == 0 || (s->streamed && match.length < STREAMED_MATCH_LEAST)) return;
    draft->count = match.count;
    draft->source = match.prediction ? DRAFT_PREDICTION : DRAFT_LOOKUP;
    draft->bucket = draft_bucket(match.length);
    draft->count = tokens_to_end(s, r, draft);
}

static void propose_script(Speculation *s, const DraftTarget *target) {
    const Request *r = target->request;
    Draft *draft = &target->choice->draft;
    draft->source = DRAFT_LOOKUP;
    draft->count = s->options.script(s->options.script_context, r->sampling.seed, (int)(target->choice - r->choices),
        r->prompt_count + target->choice->generated, target->most, draft->tokens);
}

/* While a constraint keeps steps waiting, a step has one mask of it to wait for. */
static bool can_draft(const DraftTarget *target) {
    const Constraint *constraint = target->request->constraint;
    return target->most > 0 && !(constraint && constraint->slow);
}

static void propose(Speculation *s, const DraftTarget *targets, int count) {
    for (int i = 0; i < count; i++) {
        Draft *draft = &targets[i].choice->draft;
        draft->count = 0;
        draft->cost = 0;
        if (!can_draft(&targets[i])) continue;
        if (s->options.script)
            propose_script(s, &targets[i]);
        else
            propose_lookup(s, &targets[i]);
    }
}

/* ---- choosing ---- */

static void limit_drafts(const DraftTarget *targets, int count, int room) {
    for (int i = 0; i < count; i++) {
        Draft *draft = &targets[i].choice->draft;
        draft->count = min_int(draft->count, room);
        room -= draft->count;
    }
}

static void choose(Speculation *s, const DraftTarget *targets, int count, int streams, int rows, int room) {
    DraftOffer offers[STEP_COSTS_ROWS];
    int offered = 0, total = 0;
    for (int i = 0; i < count; i++) {
        Draft *draft = &targets[i].choice->draft;
        if (draft->count) offers[offered++] = (DraftOffer){&draft->rule, draft->bucket, draft->count};
    }
    if (offered == 0) return;
    const float cost = draft_choose(&s->costs, streams, rows, offers, offered, room);
    for (int i = 0; i < offered; i++) total += offers[i].count;
    offered = 0;
    for (int i = 0; i < count; i++) {
        Draft *draft = &targets[i].choice->draft;
        if (draft->count == 0) continue;
        draft->count = offers[offered++].count;
        draft->cost = total ? cost * (float)draft->count / (float)total : 0;
    }
}

void speculation_plan(
    Speculation *s, const DraftTarget *targets, int count, int streams, int rows, bool prompts, int room) {
    room = min_int(room, s->rows_max);
    const bool forced = s->options.script != NULL;
    /* What rows cost beside a prompt is not known. */
    const bool possible = room > 0 && (forced || (!prompts && rows < STEP_COSTS_ROWS && s->costs.unit_s > 0));
    if (!possible) {
        for (int i = 0; i < count; i++) targets[i].choice->draft.count = 0;
        return;
    }
    propose(s, targets, count);
    if (forced)
        limit_drafts(targets, count, room);
    else
        choose(s, targets, count, streams, rows, room);
}

bool speculation_wanted(Speculation *s, const DraftTarget *targets, int count) {
    bool wanted = false;
    speculation_plan(s, targets, count, count, count, false, s->rows_max);
    for (int i = 0; i < count; i++) {
        Draft *draft = &targets[i].choice->draft;
        if (draft->count == 0) continue;
        wanted = true;
        draft->rule.silent = DRAFT_SILENT_STEPS; /* a token that is only tried is tried in the next step */
        draft->count = 0;
    }
    return wanted;
}

void speculation_note(Speculation *s, Request *request, AnswerChoice *choice, int drafts, int accepted) {
    const Draft *draft = &choice->draft;
    if (s->rows_max == 0) return;
    draft_note(&choice->draft.rule, draft->bucket, drafts, accepted, drafts ? draft->cost : 0);
    if (drafts == 0) return;
    s->stats[draft->source].drafted += (uint64_t)drafts;
    s->stats[draft->source].accepted += (uint64_t)accepted;
    request_add_drafts(request, draft->source, drafts, accepted);
}
