/* Plans steps: chooses the rows of each sequence and reserves pages for them. Pages are reserved in order of age. When
 * none are left, pages that only the prefix cache holds are released; then the youngest sequence is preempted. It
 * leaves its pages to the prefix cache and is computed again later. So the oldest sequence always continues, except
 * while requests with late token masks, or with a span in slices, hold the pages: those are not in the step and cannot
 * be preempted. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/math.h"
#include "engine/scheduler.h"
#include "engine/token_mask.h"

/* ---- candidates ---- */

/* The most of `rows` rows behind the first `from`: up to an image whose rows are not encoded yet, and not into a span
 * that must be read whole. */
static int media_rows(const Scheduler *s, const Request *r, int from, int rows) {
    for (int i = 0; i < r->media_count; i++) {
        const MediaSpan *media = &r->media[i];
        if (media->begin + media->rows <= from || media->begin >= from + rows) continue;
        if (media_cache_rows(s->media, media->item)) continue;
        rows = max_int(media->begin - from, 0);
        break;
    }
    BidirectionalSpan span;
    for (int at = from; request_span_from(r, at, &span) && span.begin < from + rows; at = span.end)
        if (span.end > from + rows) return max_int(span.begin - from, 0);
    return rows;
}

Request *scheduler_next_media(Scheduler *s, MediaItem **item) {
    for (Request *r = s->active.first; r; r = r->next) {
        if (r->media_count == 0 || r->failed || atomic_load(&r->cancel)) continue;
        int position = request_reads_prompt(r) ? r->kv.length : r->prompt_count;
        for (int i = 0; i < r->choice_count; i++)
            if (r->choices[i].state == CHOICE_RUNNING) position = min_int(position, r->choices[i].kv.length);
        for (int i = 0; i < r->media_count; i++) {
            *item = r->media[i].item;
            if (r->media[i].begin + r->media[i].rows > position && !media_cache_rows(s->media, *item)) return r;
        }
    }
    return NULL;
}

/* Time of a step of so many running choices alone; 0: not measured yet. */
static double answers_step_s(const Scheduler *s, int answers) {
    const StepCosts *costs = &s->speculation.costs;
    return costs->unit_s * (double)costs->cost[min_int(answers, STEP_COSTS_ROWS)];
}

static int running_choices(const Scheduler *s) {
    int count = 0;
    for (const Request *r = s->active.first; r; r = r->next)
        for (int i = 0; i < r->choice_count; i++) count += r->choices[i].state == CHOICE_RUNNING;
    return count;
}

/* Time of a round for what images and audio need beside so many running choices; 0: no limit, as none wait. */
static double media_budget_s(const Scheduler *s, int answers) {
    const double step = answers > 0 ? answers_step_s(s, answers) : 0;
    if (step <= 0) return 0;
    return fmin(fmax(MEDIA_PERCENT * 1e-2 * step, MEDIA_MS_LEAST * 1e-3), STEP_MS * 1e-3);
}

/* Whether rows of a prompt with images or audio can be in the next step: they wait for no encoder. */
static bool reads_media_prompt(const Scheduler *s) {
    for (const Request *r = s->active.first; r; r = r->next)
        if (r->media_count > 0 && r != s->span && request_reads_prompt(r) && !r->failed &&
            media_rows(s, r, r->kv.length, 1) > 0)
            return true;
    return false;
}

double scheduler_media_s(const Scheduler *s) {
    const double budget = media_budget_s(s, running_choices(s));
    if (budget == 0) return MEDIA_SLICE_MS * 1e-3;
    return reads_media_prompt(s) ? budget / 2 : budget;
}

/* Tokens that are not in its cache. */
static int tokens_left(const StepCandidate *candidate) {
    return sequence_tokens(candidate->request, candidate->choice) -
        sequence_of(candidate->request, candidate->choice)->length;
}

/* Rows that the candidate could have in this step. */
static int rows_left(const Scheduler *s, const StepCandidate *candidate) {
    const Request *r = candidate->request;
    if (!candidate->choice && s->sequences.disk && !r->disk_searched) return 0;
    const KvSequence *kv = sequence_of(candidate->request, candidate->choice);
    const int rows = min_int(tokens_left(candidate), kv_step_rows(kv));
    if (!candidate->choice) return min_int(rows, sequence_rows_to_resume(r));
    return s->decode_rows_max && !candidate->decode ? min_int(rows, r->prompt_count - kv->length) : rows;
}

/* A prompt, or a choice with several tokens that are not in its cache: after preemption, or with jump-ahead tokens. */
static bool is_prefill(const StepCandidate *candidate) {
    const AnswerChoice *choice = candidate->choice;
    return !choice || tokens_left(candidate) > 1;
}

/* Whether its next row follows the prompt, where that makes a difference. */
static bool is_decode(const Scheduler *s, const StepCandidate *candidate) {
    return s->decode_rows_max && candidate->choice && candidate->choice->kv.length >= candidate->request->prompt_count;
}

/* Rows of the span, if it can be prefilled in slices, with which the prompt goes on; its images are encoded. 0: none.
 */
static int span_rows(const Scheduler *s, const Request *r) {
    BidirectionalSpan span;
    const int from = r->kv.length;
    if (!request_reads_prompt(r) || !r->kv.tables || r->failed || token_mask_is_late(r) || atomic_load(&r->cancel) ||
        r->whole_prompt || r->whole || r->echo || r->pooling || (s->sequences.disk && !r->disk_searched) ||
        !request_span_from(r, from, &span) || span.begin != from || span.end >= r->prompt_count)
        return 0;
    const int rows = span.end - from;
    return media_rows(s, r, from, rows) == rows && rows <= s->span_plan.builder.capacity.rows ? rows : 0;
}

/* Whether its next rows are a span that is prefilled in slices, now or when another one has ended. */
static bool waits_for_slices(const Scheduler *s, const Request *r) {
    return r == s->span || (s->spans_sliced && span_rows(s, r) > 0);
}

static void collect_candidates(Scheduler *s) {
    s->candidate_count = s->prefill_count = 0;
    s->masks_late = false;
    for (Request *r = s->active.first; r; r = r->next) {
        s->masks_late = s->masks_late || token_mask_is_late(r);
        if (r->failed || token_mask_is_late(r)) continue;
        if (request_reads_prompt(r) && !waits_for_slices(s, r))
            s->candidates[s->candidate_count++] = (StepCandidate){.request = r};
        for (int i = 0; i < r->choice_count; i++)
            if (r->choices[i].state == CHOICE_RUNNING)
                s->candidates[s->candidate_count++] = (StepCandidate){.request = r, .choice = &r->choices[i]};
    }
    for (int i = 0; i < s->candidate_count; i++) {
        StepCandidate *candidate = &s->candidates[i];
        candidate->prefill = is_prefill(candidate);
        candidate->decode = is_decode(s, candidate);
        candidate->rows = !candidate->prefill;
        s->prefill_count += candidate->prefill;
    }
}

/* What the rows of prompts have added to a step of running choices. */
static void note_prompt_rows(Scheduler *s, const StepPlan *plan, double seconds) {
    const int answers = plan->builder.step.rows - plan->prompt_rows;
    if (answers <= 0) return;
    /* A long prompt says little of the answers beside it. */
    if (s->speculation.costs.unit_s > 0 || plan->prompt_rows <= answers) {
        const double before = s->speculation.costs.unit_s;
        step_costs_note_most(&s->speculation.costs, answers, seconds);
        s->step_unsure = s->step_unsure || s->speculation.costs.unit_s != before;
    }
    if (plan->media_rows == 0) return;
    const double added = fmax(seconds - answers_step_s(s, answers), 0) / plan->prompt_rows;
    s->media_row_s = s->media_row_s > 0 ? s->media_row_s + 0.3 * (added - s->media_row_s) : added;
    s->media_rows = max_int(plan->media_rows, MEDIA_PREFILL_LEAST);
}

void scheduler_note_step(Scheduler *s, const StepPlan *plan, double seconds, double idle_s) {
    if (plan->prompt_rows >= PREFILL_LEAST) s->prompt_row_s = seconds / plan->builder.step.rows;
    if (plan->prompt_rows > 0) {
        note_prompt_rows(s, plan, seconds);
        return;
    }
    if (s->step_unsure) step_costs_note_most(&s->speculation.costs, plan->builder.step.rows, seconds);
    s->step_unsure = false;
    /* With draft tokens a step cannot begin ahead. What else takes long between two steps is not theirs. */
    const bool ahead = s->can_lookahead && !speculation_has_model(&s->speculation);
    const double lost = ahead ? fmin(idle_s, seconds) : 0;
    step_costs_note(&s->speculation.costs, plan->builder.step.rows, plan->draft_rows, seconds + lost);
}

/* Rows left for prefill candidates. */
typedef struct Room {
    int rows;
    int decode_rows; /* at most this many of them may be decode rows */
    int media_rows;  /* at most this many may be of prompts with images or audio */
    bool answers;    /* the step has rows of running choices */
} Room;

static bool is_media_prompt(const StepCandidate *candidate) {
    return !candidate->choice && candidate->request->media_count > 0;
}

/* Whether these rows of a prompt are the text in front of an image that is not encoded yet. */
static bool lead_to_media(const Scheduler *s, const Request *r, int from, int rows) {
    const MediaSpan *next = request_media_from(r, from);
    return next && next->begin == from + rows && !media_cache_rows(s->media, next->item);
}

/* Gives the candidate up to `most` further rows. */
static void give(const Scheduler *s, StepCandidate *candidate, int most, Room *room) {
    int rows = max_int(min_int(most, rows_left(s, candidate) - candidate->rows), 0);
    if (candidate->decode) rows = min_int(rows, room->decode_rows);
    if (is_media_prompt(candidate)) rows = min_int(rows, room->media_rows);
    if (candidate->request->media_count > 0 || candidate->request->whole_prompt) {
        const int from = sequence_of(candidate->request, candidate->choice)->length;
        rows = max_int(media_rows(s, candidate->request, from, candidate->rows + rows) - candidate->rows, 0);
        /* A step for them alone would cost as much as they do together with the image. */
        if (!room->answers && candidate->rows == 0 && lead_to_media(s, candidate->request, from, rows)) rows = 0;
    }
    candidate->rows += rows;
    room->rows -= rows;
    if (candidate->decode) room->decode_rows -= rows;
    if (is_media_prompt(candidate)) room->media_rows -= rows;
}

/* Rows of a span that begins at the candidate's next row and must be read whole; 0: there is none. */
static int whole_rows(const Scheduler *s, const StepCandidate *candidate) {
    const Request *r = candidate->request;
    const int from = sequence_of(candidate->request, candidate->choice)->length;
    BidirectionalSpan span;
    const int rows = request_span_from(r, from, &span) && span.begin == from ? span.end - span.begin : 0;
    return rows <= rows_left(s, candidate) && media_rows(s, r, from, rows) == rows ? rows : 0;
}

/* The prefill candidate with the fewest rows left, of equal ones the oldest, that comes behind `before` in this order;
 * the first candidate is left out. NULL: there is none; before NULL: the first in the order. */
static StepCandidate *next_shortest(Scheduler *s, const StepCandidate *first, const StepCandidate *before) {
    StepCandidate *found = NULL;
    const int least = before ? tokens_left(before) : -1;
    int fewest = 0;
    for (int i = 0; i < s->candidate_count; i++) {
        StepCandidate *candidate = &s->candidates[i];
        const int left = tokens_left(candidate);
        if (!candidate->prefill || candidate == first || left < least || (left == least && candidate <= before))
            continue;
        if (found && left >= fewest) continue;
        found = candidate;
        fewest = left;
    }
    return found;
}

/* Prefill rows that take so long, as measured. */
static int rows_within(const Scheduler *s, double seconds) {
    const int fitting = (int)fmin(seconds / s->prompt_row_s, s->prefill_size) / PREFILL_UNIT * PREFILL_UNIT;
    return min_int(max_int(fitting, PREFILL_LEAST), s->prefill_size);
}

/* Prefill tokens of a step: fewer while other sequences wait for it on a slow machine. */
static int prefill_limit(Scheduler *s, const StepCandidate *oldest) {
    const int answers = s->candidate_count - s->prefill_count;
    if (s->candidate_count == 1 || s->prompt_row_s == 0) return s->prefill_size;
    if (answers == 0) {
        const StepCandidate *shortest = next_shortest(s, oldest, NULL);
        const int few = rows_within(s, STEP_MS * 1e-3);
        return tokens_left(shortest) <= few / 2 ? few : rows_within(s, PROMPTS_MS * 1e-3);
    }
    const double step = answers_step_s(s, answers);
    if (step == 0) return rows_within(s, STEP_MS * 1e-3); /* no step without prompts yet */
    return rows_within(s, fmin(fmax(ANSWER_STEPS * step, STEP_MS_LEAST * 1e-3), STEP_MS * 1e-3));
}

/* Rows of prompts with images or audio: what the budget of the round has left. Twice as many rows take at most twice as
 * long, so they grow by no more. */
static int media_limit(const Scheduler *s, int answers) {
    bool texts = false;
    if (answers == 0) return s->prefill_size;
    for (int i = 0; i < s->candidate_count; i++)
        texts = texts || (s->candidates[i].prefill && !is_media_prompt(&s->candidates[i]));
    if (s->step_unsure && !texts) return 0; /* a step without prompts tells */
    const double left = media_budget_s(s, answers) - s->media_spent_s;
    const int most = min_int(2 * s->media_rows, s->prefill_size);
    const double fitting = s->media_row_s > 0 ? fmin(left / s->media_row_s, most) : left > 0 ? most : 0;
    return max_int((int)fitting, MEDIA_PREFILL_LEAST);
}

/* Divides the step's prefill tokens: half to the oldest candidate, the other half to those with the fewest tokens left;
 * unused rows go to the oldest candidates that can use them. */
static void share_prefill(Scheduler *s) {
    StepCandidate *oldest = s->candidates;
    if (s->prefill_count == 0) return;
    while (!oldest->prefill) oldest++;
    const int answers = s->candidate_count - s->prefill_count;
    Room room = {prefill_limit(s, oldest), s->decode_rows_max - answers, media_limit(s, answers), answers > 0};
    oldest->rows = whole_rows(s, oldest); /* an image fits the step, if not always the limit of the time */
    room.rows = max_int(room.rows - oldest->rows, 0);
    const int half = room.rows - room.rows / 2, decode_half = room.decode_rows - room.decode_rows / 2;
    for (StepCandidate *next = NULL; room.rows > half && (next = next_shortest(s, oldest, next));)
        give(s, next, next->decode ? min_int(room.rows - half, room.decode_rows - decode_half) : room.rows - half,
            &room);
    int echo_left = ECHO_ROWS;
    for (int i = 0; i < s->candidate_count; i++) {
        StepCandidate *candidate = &s->candidates[i];
        if (!candidate->prefill) continue;
        give(s, candidate, room.rows, &room);
        if (!candidate->request->echo || candidate->choice) continue;
        if (candidate->rows > echo_left) {
            room.rows += candidate->rows - echo_left;
            candidate->rows = echo_left;
        }
        echo_left -= candidate->rows;
    }
}

/* ---- drafts ---- */

/* Draft tokens that a choice can take: the last token of an answer is sampled behind them. */
static int drafts_most(const Request *r, const AnswerChoice *choice) {
    const int left = r->max_tokens - choice->generated - 1;
    return max_int(min_int(min_int(left, kv_step_rows(&choice->kv) - 1), DRAFT_TOKENS_MAX), 0);
}

/* Rows of answers may be followed by draft tokens. */
static void add_drafts(Scheduler *s) {
    int rows = 0, decode_rows = 0, streams = 0, count = 0;
    bool prompts = false;
    if (s->speculation.rows_max == 0) return;
    for (int i = 0; i < s->candidate_count; i++) {
        StepCandidate *candidate = &s->candidates[i];
        rows += candidate->rows;
        decode_rows += candidate->decode ? candidate->rows : 0;
        streams += candidate->choice && candidate->rows > 0;
        prompts = prompts || !candidate->choice;
        if (candidate->prefill) continue;
        s->targets[count++] =
            (DraftTarget){candidate->request, candidate->choice, drafts_most(candidate->request, candidate->choice)};
    }
    const int room = s->decode_rows_max ? s->decode_rows_max - decode_rows : DRAFT_TOKENS_MAX;
    speculation_plan(&s->speculation, s->targets, count, streams, rows, prompts, room);
    for (int i = 0; i < s->candidate_count; i++) {
        StepCandidate *candidate = &s->candidates[i];
        candidate->drafts = candidate->prefill ? 0 : candidate->choice->draft.count;
    }
}

/* Whether a running answer would have draft tokens in the next step. */
static bool wants_drafts(Scheduler *s) {
    int count = 0;
    if (s->speculation.rows_max == 0) return false;
    for (Request *r = s->active.first; r; r = r->next)
        for (int i = 0; i < r->choice_count; i++)
            if (r->choices[i].state == CHOICE_RUNNING)
                s->targets[count++] = (DraftTarget){r, &r->choices[i], drafts_most(r, &r->choices[i])};
    return speculation_wanted(&s->speculation, s->targets, count);
}

/* ---- pages ---- */

/* Closes the youngest prompt sequence that only waits for slots of further choices: it can be computed again. */
static bool drop_idle_prompt(Scheduler *s) {
    Request *youngest = NULL;
    for (Request *r = s->active.first; r; r = r->next)
        if (r->kv.tables && !request_reads_prompt(r)) youngest = r;
    if (youngest) sequence_end(&s->sequences, youngest, NULL);
    return youngest != NULL;
}

/* Frees pages for a candidate. False: no younger sequence holds any. */
static bool make_room(Scheduler *s, const StepCandidate *candidate) {
    PrefixCache *prefix = s->sequences.prefix;
    if (prefix && prefix_stats(prefix).nodes > 0) { /* a last page that is shared no more need not be copied */
        prefix_clear(prefix);
        return true;
    }
    if (drop_idle_prompt(s)) return true;
    for (StepCandidate *youngest = s->candidates + s->candidate_count - 1; youngest > candidate; youngest--) {
        if (!sequence_of(youngest->request, youngest->choice)->tables) continue;
        scheduler_preempt(s, youngest->request, youngest->choice);
        return true;
    }
    return false;
}

static void reserve(Scheduler *s, StepCandidate *candidate) {
    KvSequence *kv = sequence_of(candidate->request, candidate->choice);
    while (kv->tables) {
        Error error = {0};
        if (kv_reserve(s->sequences.kv, kv, candidate->rows + candidate->drafts, &error)) return;
        const bool full = error.code == ERROR_LIMIT;
        if (full && candidate->drafts > 0) { /* nothing gives way to a draft */
            candidate->drafts = 0;
            continue;
        }
        if (full && make_room(s, candidate)) continue;
        if (full && candidate > s->candidates) {
            scheduler_preempt(s, candidate->request, candidate->choice);
            return;
        }
        candidate->rows = 0;
        /* Requests that hold the other pages can be preempted in a later step. */
        if (full && (s->masks_late || s->span)) return;
        log_error("%s", error.text);
        request_fail(candidate->request, &error);
        return;
    }
}

/* ---- the step ---- */

/* Whether the token after `generated` tokens of an answer can be sampled by the backend. */
static bool can_sample(const Scheduler *s, const Request *r, const AnswerChoice *choice, int generated) {
    return s->sample_params && !r->by_host && !r->constraint && !r->echo && generated >= r->sampling.min_tokens &&
        (choice || r->choice_count == 1) && sampler_device_possible(&r->sampling);
}

/* Sampling parameters of a slice's outputs, which are its last rows. generated: tokens of the answer that precede the
 * token of the last output. */
static void set_sampling(Scheduler *s, const StepSlice *slice, int generated, StepSequence *sequence) {
    const Request *r = slice->request;
    const int choice = slice->choice ? (int)(slice->choice - r->choices) : 0;
    bool sampled = true;
    for (int i = 0; i < slice->outputs; i++) {
        const int before = generated - (slice->outputs - 1 - i);
        s->scales[i] = sampler_scale(&r->sampling);
        sampled = sampled && can_sample(s, r, slice->choice, before);
        if (sampled) s->samples[i] = sampler_device_params(&r->sampling, choice, r->prompt_count + before);
    }
    sequence->output_count = slice->outputs;
    sequence->scales = s->scales;
    sequence->sample_params = sampled ? s->samples : NULL;
}

/* RoPE positions of a slice's rows: mapped in the prompt, at an offset from the place in the cache after it. */
static void set_positions(Scheduler *s, const StepSlice *slice, StepSequence *sequence) {
    const Request *r = slice->request;
    sequence->position_offset = r->position_offset;
    if (!r->positions || slice->position >= r->prompt_count) return;
    for (int dim = 0; dim < POSITION_DIMS_MAX; dim++)
        for (int i = 0; i < slice->rows; i++) {
            const int place = slice->position + i;
            s->positions[dim * slice->rows + i] = place < r->prompt_count
                ? r->positions[(size_t)dim * (size_t)r->prompt_count + (size_t)place]
                : place + r->position_offset;
        }
    sequence->positions = s->positions;
}

/* Embeddings and spans of the images and of audio among a slice's rows. */
static void set_media(Scheduler *s, StepPlan *plan, const StepSlice *slice, StepSequence *sequence) {
    const Request *r = slice->request;
    const int from = slice->position, to = from + slice->rows;
    sequence->embeddings = s->embeddings;
    sequence->spans = plan->spans + plan->span_count;
    for (int i = 0; i < r->media_count; i++) {
        const MediaSpan *span = &r->media[i];
        const int end = span->begin + span->rows;
        if (end <= from || span->begin >= to) continue;
        const int64_t block = media_cache_set_floats(s->media, span->item);
        const int first = max_int(span->begin, from), last = min_int(end, to);
        const float *rows = media_cache_rows(s->media, span->item);
        CHECK(rows);
        rows += (span->first + first - span->begin) * (block / span->item->tokens);
        s->embeddings[sequence->embedding_count++] = (EmbeddingRange){.row = first - from,
            .rows = last - first,
            .values = rows,
            .in_backend = true,
            .deepstack_layers = media_cache_row_sets(s->media, span->item) - 1,
            .deepstack = rows + block,
            .deepstack_stride = block};
    }
    BidirectionalSpan whole;
    for (int at = from; request_span_from(r, at, &whole) && whole.begin < to; at = whole.end) {
        plan->spans[plan->span_count++] = whole;
        sequence->span_count++;
    }
}

static void plan_begin(StepPlan *plan, bool uniform_matmul, bool lookahead) {
    plan->span_count = 0;
    plan->slice_count = plan->prompt_rows = plan->media_rows = plan->draft_rows = 0;
    plan->lookahead = lookahead;
    step_begin(&plan->builder, uniform_matmul);
}

static void add_slice(Scheduler *s, StepPlan *plan, const StepSlice *slice, int generated, StepSequence *sequence) {
    plan->slices[plan->slice_count++] = *slice;
    sequence->adapter = slice->request->adapter;
    set_sampling(s, slice, generated, sequence);
    set_positions(s, slice, sequence);
    if (slice->request->media_count > 0 || slice->request->whole_prompt) set_media(s, plan, slice, sequence);
    step_add_sequence(&plan->builder, sequence);
}

static void add_candidate(Scheduler *s, StepPlan *plan, const StepCandidate *candidate) {
    Request *r = candidate->request;
    const AnswerChoice *choice = candidate->choice;
    const KvSequence *kv = sequence_of(r, candidate->choice);
    const int known = candidate->rows, drafts = candidate->drafts, rows = known + drafts;
    if (known == 0 || !kv->tables || r->failed) return; /* another candidate of the request may have failed */
    const bool last = kv->length + known == sequence_tokens(r, choice);
    const int wanted = r->whole && !choice ? rows : last + drafts;
    const StepSlice slice = {.request = r,
        .choice = candidate->choice,
        .rows = rows,
        .drafts = drafts,
        .position = kv->length,
        .output = plan->builder.step.output_count,
        .outputs = r->pooling ? 0 : wanted,
        .hidden_row = plan->builder.step.hidden_row_count,
        .hidden_rows = r->pooling ? wanted : speculation_state_rows(&s->speculation, rows, drafts)};
    sequence_text(r, choice, kv->length, known, s->tokens);
    if (drafts > 0) memcpy(s->tokens + known, choice->draft.tokens, (size_t)drafts * sizeof *s->tokens);
    StepSequence sequence = {.rows = rows,
        .decode = candidate->decode,
        .kv = kv,
        .tokens = s->tokens,
        .hidden_row_count = slice.hidden_rows};
    if (candidate->prefill && !candidate->decode) plan->prompt_rows += rows;
    if (is_media_prompt(candidate)) plan->media_rows += rows;
    plan->draft_rows += drafts;
    add_slice(s, plan, &slice, choice ? choice->generated + drafts : 0, &sequence);
}

void scheduler_plan_span(Scheduler *s) {
    Error error = {0};
    s->spans_sliced = s->can_slice && running_choices(s) > 0 && speculation_state_rows(&s->speculation, 1, 0) == 0;
    if (!s->spans_sliced) return;
    for (Request *r = s->active.first; r; r = r->next) {
        const StepCandidate candidate = {.request = r, .prefill = true, .rows = span_rows(s, r)};
        if (candidate.rows == 0) continue;
        plan_begin(&s->span_plan, s->uniform_matmul, false);
        /* Where pages are short, a step makes room. */
        s->spans_sliced = kv_reserve(s->sequences.kv, &r->kv, candidate.rows, &error);
        if (s->spans_sliced) add_candidate(s, &s->span_plan, &candidate);
        if (!step_end(&s->span_plan.builder, &error) || s->span_plan.slice_count == 0) return;
        request_retain(r);
        s->span = r;
        return;
    }
}

void scheduler_end_span(Scheduler *s) {
    request_release(s->span);
    s->span = NULL;
}

/* Prompts that have begun continue with pages from disk, the oldest first, for a limited time per step. */
static void resume_from_disk(Scheduler *s) {
    const int64_t deadline_ns = clock_ns() + DISK_MS * INT64_C(1000000);
    bool time = true;
    for (Request *r = s->active.first; s->sequences.disk && r && time; r = r->next) {
        if (r->disk_searched || r->failed || !request_reads_prompt(r)) continue;
        time = !sequence_resume_from_disk(&s->sequences, r, deadline_ns);
        r->disk_searched = time;
        r->prefilled = r->kv.length;
        const int more = request_note_found(r, r->prefilled);
        s->prompts_found += more > 0 && r->cached == more;
        s->tokens_found += (uint64_t)more;
    }
}

/* Candidates of one kind, in order of age. */
static void add_candidates(Scheduler *s, StepPlan *plan, bool prefill, bool decode) {
    for (int i = 0; i < s->candidate_count; i++) {
        const StepCandidate *candidate = &s->candidates[i];
        if (candidate->prefill == prefill && (candidate->decode == decode || !prefill))
            add_candidate(s, plan, candidate);
    }
}

void scheduler_plan(Scheduler *s, StepPlan *plan) {
    resume_from_disk(s);
    plan_begin(plan, s->uniform_matmul, false);
    collect_candidates(s);
    share_prefill(s);
    add_drafts(s);
    for (int i = 0; i < s->candidate_count; i++)
        if (s->candidates[i].rows > 0) reserve(s, &s->candidates[i]);
    add_candidates(s, plan, false, false);
    add_candidates(s, plan, true, true);
    add_candidates(s, plan, true, false);
    CHECK(step_end(&plan->builder, NULL));
}

/* ---- lookahead ---- */

/* Whether each running sequence has exactly one row in the step, with an output that the backend samples. */
static bool all_continue(const Scheduler *s, const StepPlan *plan) {
    int running = 0, continuing = 0;
    if (!s->can_lookahead || !plan->builder.step.sample_params || plan->builder.step.rows != plan->slice_count)
        return false;
    for (const Request *r = s->active.first; r; r = r->next) {
        if (r->failed || request_reads_prompt(r)) return false;
        for (int i = 0; i < r->choice_count; i++) running += r->choices[i].state == CHOICE_RUNNING;
    }
    for (int i = 0; i < plan->slice_count; i++) {
        const StepSlice *slice = &plan->slices[i];
        if (!slice->choice || slice->outputs == 0) return false;
        continuing += slice->choice->state == CHOICE_RUNNING && slice->choice->kv.length == slice->position;
    }
    return running == continuing;
}

/* Adds the row after that of a slice of the step under way. False: there are no pages for it. */
static bool add_lookahead(Scheduler *s, StepPlan *plan, const StepSlice *before) {
    AnswerChoice *choice = before->choice;
    Error ignored;
    if (kv_step_rows(&choice->kv) < 2 || !kv_reserve(s->sequences.kv, &choice->kv, 2, &ignored)) return false;
    const int32_t token = token_from_output(before->output);
    const StepSlice slice = {.request = before->request,
        .choice = choice,
        .rows = 1,
        .position = before->position + 1,
        .output = plan->builder.step.output_count,
        .outputs = 1};
    StepSequence sequence = {
        .rows = 1, .decode = s->decode_rows_max > 0, .kv = &choice->kv, .lookahead = 1, .tokens = &token};
    add_slice(s, plan, &slice, choice->generated + 1, &sequence);
    return true;
}

bool scheduler_plan_lookahead(Scheduler *s, const StepPlan *under_way, StepPlan *plan) {
    if (!all_continue(s, under_way) || wants_drafts(s)) return false;
    plan_begin(plan, s->uniform_matmul, true);
    for (int i = 0; i < under_way->slice_count; i++) {
        const StepSlice *slice = &under_way->slices[i];
        const Request *r = slice->request;
        AnswerChoice *choice = slice->choice;
        if (choice->state != CHOICE_RUNNING || choice->generated + 1 >= r->max_tokens || atomic_load(&r->cancel) ||
            atomic_load(&choice->stop))
            continue;
        if (!add_lookahead(s, plan, slice)) return false;
    }
    CHECK(step_end(&plan->builder, NULL));
    return plan->slice_count > 0;
}
