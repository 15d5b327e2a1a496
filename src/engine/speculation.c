#include "engine/speculation.h"

#include "base/log.h"
#include "base/math.h"

enum {
    STREAMED_MATCH_LEAST = 16, /* tokens of a match, where experts are streamed */
    PAUSE_STEPS = 64,          /* without drafts, after a step with them that had no device memory */
};

static bool open_draft_model(
    Speculation *s, const Runner *runner, KvCache *cache, const EngineOptions *options, Error *error) {
    Model *model = draft_model_load(options, runner_model(runner), error);
    if (!model) return false;
    if (model_is_assistant(model))
        s->assistant = assistant_open(options, model, runner, cache, error);
    else
        s->model = draft_model_open(options, model, runner_model(runner), error);
    return s->assistant || s->model;
}

bool speculation_open(
    Speculation *s, const Runner *runner, KvCache *cache, const EngineOptions *options, int rows_max, Error *error) {
    const Model *model = runner_model(runner);
    float fanout[STEP_COSTS_ROWS + 1];
    *s = (Speculation){.options = options->speculation, .rows_max = rows_max, .streamed = model_experts(model) != NULL};
    s->eos_count = model_eos(model, s->eos);
    s->vocab = model_vocab(model);
    s->hidden = model_hidden(model);
    const bool experts = model_expert_fanout(model, STEP_COSTS_ROWS, fanout);
    step_costs_init(&s->costs, backend_on_device(options->backend.device), experts ? fanout : NULL);
    if (rows_max == 0) return true;
    if (options->model.mtp) return (s->mtp = mtp_head_open(options, model, error)) != NULL;
    return !options->speculation.draft_directory || open_draft_model(s, runner, cache, options, error);
}

void speculation_close(Speculation *s) {
    draft_model_close(s->model);
    assistant_close(s->assistant);
    mtp_head_close(s->mtp);
    *s = (Speculation){0};
}

static DraftSequence *draft_sequence(Request *request, AnswerChoice *choice) {
    return choice ? &choice->draft.sequence : &request->draft_sequence;
}

void speculation_end(Speculation *s, Request *request, AnswerChoice *choice) {
    if (s->mtp)
        mtp_sequence_close(s->mtp, draft_sequence(request, choice));
    else if (s->assistant)
        assistant_sequence_close(draft_sequence(request, choice));
    else
        draft_sequence_close(s->model, draft_sequence(request, choice));
}

void speculation_begin(Speculation *s, Request *request, AnswerChoice *choice, bool last) {
    DraftSequence *of_prompt = &request->draft_sequence, *own = &choice->draft.sequence;
    if (!s->mtp && !s->assistant) return;
    if (!last) {
        if (s->mtp)
            mtp_head_fork(s->mtp, of_prompt, own);
        else
            assistant_fork(s->assistant, of_prompt, own);
        return;
    }
    *own = *of_prompt;
    *of_prompt = (DraftSequence){0};
}

/* ---- proposing ---- */

bool speculation_has_model(const Speculation *s) { return (s->model || s->assistant || s->mtp) && !s->broken; }

/* While a constraint keeps steps waiting, a step has one mask of it to wait for. */
static bool can_draft(const DraftTarget *target) {
    const Constraint *constraint = target->request->constraint;
    return target->most > 0 && !(constraint && constraint->slow);
}

/* Brings the lookup up to the answer's last token. */
static void look_up_answer(Request *r, AnswerChoice *choice, int number) {
    Lookup *lookup = &r->lookup;
    if (!lookup->ready) lookup_begin(lookup, r->prediction, r->prompt);
    while (lookup->lengths[number] < choice->generated)
        lookup_add(lookup, number, request_answer_id(r, choice, lookup->lengths[number]));
}

/* The row of an end token would be of no use; a draft model may have ids that the target does not have. */
static int tokens_to_end(const Speculation *s, const Request *r, const Draft *draft) {
    for (int i = 0; i < draft->count; i++) {
        if (draft->tokens[i] >= s->vocab) return i;
        for (int k = 0; k < s->eos_count && !r->sampling.ignore_eos; k++)
            if (draft->tokens[i] == s->eos[k]) return i;
    }
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

/* At most so many draft tokens by the script, in place of those that there are; returns the length of the match. */
static int take_script(Speculation *s, const DraftTarget *target, int most) {
    const Request *r = target->request;
    Draft *draft = &target->choice->draft;
    int match = 1;
    draft->count = s->options.script(s->options.script_context, r->sampling.seed, (int)(target->choice - r->choices),
        r->prompt_count + target->choice->generated, most, draft->tokens, &match);
    return match;
}

static void propose_script(Speculation *s, const DraftTarget *target) {
    Draft *draft = &target->choice->draft;
    const int match = take_script(s, target, target->most);
    draft->source = DRAFT_LOOKUP;
    draft->bucket = draft_bucket(match);
    if (s->streamed && match < STREAMED_MATCH_LEAST && !s->options.always) draft->count = 0;
}

/* ---- the draft model or the head ---- */

static void give_up(Speculation *s, const Error *why) {
    log_error("the %s is not used any more: %s",
        s->mtp             ? "multi-token prediction head"
            : s->assistant ? "assistant"
                           : "draft model",
        why->text);
    s->broken = true;
}

static void read_text(const DraftText *text, int first, int count, int32_t *out) {
    const Request *r = text->request;
    for (int i = 0; i < count; i++) {
        const int answer = first + i - r->prompt_count;
        out[i] = answer < 0 ? r->prompt[first + i] : request_answer_id(r, text->choice, answer);
    }
}

static DraftText text_of(Request *r, AnswerChoice *choice) {
    return (DraftText){.sequence = draft_sequence(r, choice),
        .read = read_text,
        .request = r,
        .choice = choice,
        .cache = choice ? &choice->kv : &r->kv,
        .sampling = &r->sampling,
        .positions = r->positions,
        .prompt_count = r->prompt_count,
        .position_offset = r->position_offset,
        .number = choice ? (int)(choice - r->choices) : 0,
        .tokens = r->prompt_count + (choice ? choice->generated : 0)};
}

int speculation_state_rows(const Speculation *s, int rows, int drafts) {
    if (s->broken) return 0;
    return s->mtp ? rows : s->assistant ? 1 + drafts : 0;
}

void speculation_read(Speculation *s, Request *r, AnswerChoice *choice, int position, int rows, const float *states) {
    Error why = {0};
    const DraftText text = text_of(r, choice);
    if (s->assistant)
        assistant_read(
            s->assistant, text.sequence, position + rows - 1, states + (size_t)(rows - 1) * (size_t)s->hidden);
    else if (!mtp_head_read(s->mtp, &text, position, rows, states, &why))
        give_up(s, &why);
}

/* Draft tokens that the model should make for a target; 0: a looked-up draft is likelier, or none pays. */
static int model_length(Speculation *s, const DraftTarget *target, int streams, int rows, float token_cost) {
    Draft *draft = &target->choice->draft;
    DraftRule *rule = &draft->rule;
    const int most = min_int(target->most, s->options.draft_tokens ? s->options.draft_tokens : DRAFT_MODEL_TOKENS);
    if (!can_draft(target) || s->options.always) return can_draft(target) && !draft->count ? most : 0;
    if (draft->count && draft_probability(rule, draft->bucket) >= draft_probability(rule, DRAFT_BUCKET_MODEL)) return 0;
    return draft_length(&s->costs, rule, streams, rows, token_cost, most);
}

/* A draft model goes on as if it had drafted the script's tokens. */
static void replace_drafts(Speculation *s, const DraftTarget *target) {
    Draft *draft = &target->choice->draft;
    (void)take_script(s, target, draft->count);
    for (int i = 0; i < draft->sequence.fed_count && i < draft->count; i++) draft->sequence.fed[i] = draft->tokens[i];
}

static void take_drafts(Speculation *s, const DraftTarget *targets, const int *number, DraftText *texts, int count,
    int streams, int rows, float token_cost) {
    int most = 0;
    for (int i = 0; i < count; i++) most = texts[i].wanted > most ? texts[i].wanted : most;
    for (int i = 0; i < count; i++) {
        const DraftTarget *target = &targets[number[i]];
        Draft *draft = &target->choice->draft;
        if (texts[i].wanted == 0) continue;
        draft->count = texts[i].wanted;
        draft->source = s->mtp ? DRAFT_MTP : DRAFT_MODEL;
        draft->bucket = DRAFT_BUCKET_MODEL;
        if (s->options.script) replace_drafts(s, target);
        draft->count = tokens_to_end(s, target->request, draft);
        draft->cost = (float)(streams * most) * token_cost / (float)count;
    }
}

static bool continue_texts(Speculation *s, DraftText *texts, int count, Error *error) {
    if (s->mtp) return mtp_head_continue(s->mtp, texts, count, error);
    if (s->assistant) return assistant_continue(s->assistant, texts, count, error);
    return draft_model_continue(s->model, texts, count, error);
}

/* The model continues the answers where that pays; it is given up when it fails. */
static void propose_model(Speculation *s, const DraftTarget *targets, int count, int streams, int rows) {
    DraftText texts[DRAFT_TOKENS_MAX];
    int number[DRAFT_TOKENS_MAX], chosen = 0;
    const double unit_s = s->costs.unit_s > 0 ? s->costs.unit_s : 1;
    const double token_s = s->mtp ? mtp_head_seconds(s->mtp, unit_s)
        : s->assistant            ? assistant_seconds(s->assistant, unit_s)
                                  : draft_model_seconds(s->model, unit_s);
    const float token_cost = (float)(token_s / unit_s);
    for (int i = 0; i < count && chosen < DRAFT_TOKENS_MAX; i++) {
        Request *r = targets[i].request;
        AnswerChoice *choice = targets[i].choice;
        const int length = model_length(s, &targets[i], streams, rows, token_cost);
        if (length == 0) continue;
        number[chosen] = i;
        texts[chosen] = text_of(r, choice);
        texts[chosen].wanted = length;
        texts[chosen++].out = choice->draft.tokens;
    }
    Error why = {0};
    if (chosen == 0) return;
    if (continue_texts(s, texts, chosen, &why)) {
        take_drafts(s, targets, number, texts, chosen, streams, rows, token_cost);
        return;
    }
    give_up(s, &why);
    for (int i = 0; i < chosen; i++) targets[number[i]].choice->draft.count = 0;
}

/* ---- proposing ---- */

static void propose(Speculation *s, const DraftTarget *targets, int count) {
    for (int i = 0; i < count; i++) {
        Draft *draft = &targets[i].choice->draft;
        draft->count = 0;
        draft->cost = draft->row_cost = 0;
        if (!can_draft(&targets[i])) continue;
        if (s->options.script && !speculation_has_model(s))
            propose_script(s, &targets[i]);
        else if (!s->options.script)
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
        if (total) draft->row_cost = cost * (float)draft->count / (float)total;
        draft->cost += draft->row_cost;
    }
}

void speculation_plan(
    Speculation *s, const DraftTarget *targets, int count, int streams, int rows, bool prompts, int room) {
    room = min_int(room, s->rows_max);
    const bool forced = s->options.always, paused = s->pause_steps > 0;
    if (paused) s->pause_steps--;
    /* What rows cost beside a prompt is not known. */
    const bool possible =
        room > 0 && !paused && (forced || (!prompts && rows < STEP_COSTS_ROWS && s->costs.unit_s > 0));
    if (!possible) {
        for (int i = 0; i < count; i++) targets[i].choice->draft.count = 0;
        for (int i = 0; i < count; i++) targets[i].choice->draft.cost = targets[i].choice->draft.row_cost = 0;
        return;
    }
    propose(s, targets, count);
    if (speculation_has_model(s)) propose_model(s, targets, count, streams, rows);
    if (forced)
        limit_drafts(targets, count, room);
    else
        choose(s, targets, count, streams, rows, room);
}

bool speculation_wanted(Speculation *s, const DraftTarget *targets, int count) {
    if (s->pause_steps > 0) {
        s->pause_steps--;
        return false;
    }
    bool wanted = speculation_has_model(s) && count < STEP_COSTS_ROWS; /* it cannot run beside a step */
    if (wanted) return true;
    speculation_plan(s, targets, count, count, count, false, s->rows_max);
    for (int i = 0; i < count; i++) {
        Draft *draft = &targets[i].choice->draft;
        draft->cost = draft->row_cost = 0; /* the step under way, which is noted next, has no draft tokens */
        if (draft->count == 0) continue;
        wanted = true;
        draft->rule.silent = DRAFT_SILENT_STEPS; /* a token that is only tried is tried in the next step */
        draft->count = 0;
    }
    return wanted;
}

void speculation_pause(Speculation *s) { s->pause_steps = PAUSE_STEPS; }

void speculation_note(Speculation *s, Request *request, AnswerChoice *choice, int drafts, int accepted) {
    const Draft *draft = &choice->draft;
    if (s->rows_max == 0) return;
    /* The ledger pays what the rows took: the first costs are those of another machine. */
    const float more = draft->row_cost > 0 ? draft->row_cost * (s->costs.draft_share - 1) : 0;
    draft_note(&choice->draft.rule, draft->bucket, drafts, accepted, draft->cost + more);
    if (drafts == 0) return;
    s->stats[draft->source].drafted += (uint64_t)drafts;
    s->stats[draft->source].accepted += (uint64_t)accepted;
    request_add_drafts(request, draft->source, drafts, accepted);
}
