/* The rows of a step, and the pages for them. Pages are reserved in the order of age; when they run out, the prefix
 * cache has nothing left to give but what sequences hold as well. Then whoever is youngest is parked: its pages go to
 * the prefix cache, from where those that are wanted leave and the others come back. So the oldest always goes on; or
 * waits for those whose masks are late, who keep their pages and are not there to be parked. */
#include "base/clock.h"
#include "base/log.h"
#include "base/math.h"
#include "engine/token_mask.h"
#include "engine/scheduler.h"

/* ---- who has rows ---- */

static int rows_left(const Scheduler *s, const StepCandidate *candidate) {
    if (!candidate->choice && s->sequences.disk && !candidate->request->sought) return 0;
    const KvSequence *kv = sequence_of(candidate->request, candidate->choice);
    const int rows = min_int(sequence_tokens(candidate->request, candidate->choice) - kv->length, kv_step_rows(kv));
    if (!candidate->choice) return min_int(rows, sequence_rows_to_resume(candidate->request));
    return s->decode_rows_max && !candidate->generated ? min_int(rows, candidate->request->prompt_count - kv->length)
                                                       : rows;
}

/* All but a choice's next token is read as prompts are: so is the answer of a choice that was parked. */
static bool is_reader(const StepCandidate *candidate) {
    return !candidate->choice ||
        sequence_tokens(candidate->request, candidate->choice) - candidate->choice->kv.length > 1;
}

/* Whether its next token is one of an answer, and told from a prompt's. */
static bool is_generated(const Scheduler *s, const StepCandidate *candidate) {
    return s->decode_rows_max && candidate->choice && candidate->choice->kv.length >= candidate->request->prompt_count;
}

static void collect_turns(Scheduler *s) {
    s->candidate_count = s->readers = s->answer_readers = 0;
    s->left_out = false;
    for (Request *r = s->active.first; r; r = r->next) {
        s->left_out = s->left_out || token_mask_is_late(r);
        if (r->failed || token_mask_is_late(r)) continue;
        if (request_reads_prompt(r)) s->candidates[s->candidate_count++] = (StepCandidate){.request = r};
        for (int i = 0; i < r->choice_count; i++)
            if (r->choices[i].state == CHOICE_RUNNING)
                s->candidates[s->candidate_count++] = (StepCandidate){.request = r, .choice = &r->choices[i]};
    }
    for (int i = 0; i < s->candidate_count; i++) {
        StepCandidate *candidate = &s->candidates[i];
        candidate->reads = is_reader(candidate);
        candidate->generated = is_generated(s, candidate);
        candidate->rows = !candidate->reads;
        s->readers += candidate->reads;
        s->answer_readers += candidate->reads && candidate->generated;
    }
}

/* Prompt tokens of a step, beside its decode rows. */
static int prefill_limit(const Scheduler *s) {
    const double time = STEP_MS * 1e-3;
    if (s->readers == s->candidate_count || s->prompt_row_s * s->prefill_size <= time) return s->prefill_size;
    const int fitting = (int)(time / s->prompt_row_s) / PREFILL_LEAST * PREFILL_LEAST;
    return min_int(fitting > PREFILL_LEAST ? fitting : PREFILL_LEAST, s->prefill_size);
}

void scheduler_note_step(Scheduler *s, const StepPlan *plan, double seconds) {
    if (plan->prompt_rows >= PREFILL_LEAST) s->prompt_row_s = seconds / plan->prompt_rows;
}

/* Rows that are left for those who read. */
typedef struct Room {
    int rows, generated; /* and so many of them may be of answers, if these are told from prompts */
} Room;

/* Up to `most` more rows. */
static void give(const Scheduler *s, StepCandidate *candidate, int most, Room *room) {
    int rows = min_int(most, rows_left(s, candidate) - candidate->rows);
    if (candidate->generated) rows = min_int(rows, room->generated);
    candidate->rows += rows;
    room->rows -= rows;
    if (candidate->generated) room->generated -= rows;
}

/* Splits the step's prompt tokens over the prompts: half to the oldest, equal parts of the rest to the others; what
 * somebody does not need goes to the oldest who does. Answers that are read are prompts here, but for a part of what
 * may be told from them. */
static void share_prefill(Scheduler *s) {
    Room room = {prefill_limit(s), s->decode_rows_max - (s->candidate_count - s->readers)};
    int echo_left = ECHO_ROWS;
    const int share = s->readers > 1 ? room.rows / 2 / (s->readers - 1) : 0;
    const int answer_share = s->answer_readers ? min_int(share, room.generated / s->answer_readers) : 0;
    bool oldest = true;
    for (int i = 0; i < s->candidate_count; i++) {
        StepCandidate *candidate = &s->candidates[i];
        if (!candidate->reads) continue;
        if (!oldest) give(s, candidate, candidate->generated ? answer_share : share, &room);
        oldest = false;
    }
    for (int i = 0; i < s->candidate_count; i++) {
        StepCandidate *candidate = &s->candidates[i];
        if (!candidate->reads) continue;
        give(s, candidate, room.rows, &room);
        if (!candidate->request->echo || candidate->choice) continue;
        if (candidate->rows > echo_left) {
            room.rows += candidate->rows - echo_left;
            candidate->rows = echo_left;
        }
        echo_left -= candidate->rows;
    }
}

/* ---- pages ---- */

/* The sequence of a prompt that waits for slots to start further choices: whatever it holds can be had again. */
static bool drop_idle_prompt(Scheduler *s) {
    Request *youngest = NULL;
    for (Request *r = s->active.first; r; r = r->next)
        if (r->kv.tables && !request_reads_prompt(r)) youngest = r;
    if (youngest) sequence_end(&s->sequences, youngest, NULL);
    return youngest != NULL;
}

/* Makes room for a turn at the cost of others. False: nobody younger holds anything. */
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
        if (kv_reserve(s->sequences.kv, kv, candidate->rows, &error)) return;
        const bool full = error.code == ERROR_LIMIT;
        if (full && make_room(s, candidate)) continue;
        if (full && candidate > s->candidates) {
            scheduler_preempt(s, candidate->request, candidate->choice);
            return;
        }
        candidate->rows = 0;
        if (full && s->left_out) return; /* until those who hold the rest come back, who can be parked then */
        log_error("%s", error.text);
        request_fail(candidate->request, &error);
        return;
    }
}

/* ---- the step ---- */

/* Whether the token behind so many of an answer can be drawn where its logits are. */
static bool can_leave(const Scheduler *s, const Request *r, const AnswerChoice *choice, int generated) {
    return s->sample_params && !r->by_host && !r->constraint && !r->echo && generated >= r->sampling.min_tokens &&
        (choice || r->choice_count == 1) && sampler_device_possible(&r->sampling);
}

/* How the outputs of a part are drawn from, the last of which follows so many tokens of the answer. */
static void add_sample(const Scheduler *s, StepPlan *plan, const StepSlice *part, int generated) {
    const Request *r = part->request;
    if (part->outputs == 0) return;
    const int choice = part->choice ? (int)(part->choice - r->choices) : 0;
    for (int i = 0; i < part->outputs; i++) plan->scales[part->output + i] = sampler_scale(&r->sampling);
    plan->sampled = plan->sampled && can_leave(s, r, part->choice, generated);
    if (plan->sampled)
        plan->sample_params[part->output] = sampler_device_params(&r->sampling, choice, r->prompt_count + generated);
}

static void plan_begin(StepPlan *plan, bool uniform_matmul, bool lookahead) {
    plan->slice_count = plan->output_count = plan->hidden_row_count = plan->prompt_rows = 0;
    plan->step = (Step){.uniform_matmul = uniform_matmul,
        .tokens = plan->tokens,
        .positions = plan->positions,
        .chunks = plan->chunks,
        .position_dims = 1};
    plan->sampled = true;
    plan->lookahead = lookahead;
}

static void plan_end(StepPlan *plan) {
    plan->sampled = plan->sampled && plan->output_count > 0 && plan->hidden_row_count == 0;
    plan->step.sample_params = plan->sampled ? plan->sample_params : NULL;
    plan->step.scales = plan->sampled ? NULL : plan->scales;
    plan->step.chunk_count = plan->slice_count;
    plan->step.hidden_row_count = plan->hidden_row_count;
    plan->step.hidden_rows = plan->hidden_rows;
}

static void add_part(Scheduler *s, StepPlan *plan, const StepCandidate *candidate) {
    Request *r = candidate->request;
    const KvSequence *kv = sequence_of(r, candidate->choice);
    if (candidate->rows == 0 || !kv->tables || r->failed) return; /* failed by another of its turns, perhaps */
    const int row = plan->step.rows, rows = candidate->rows, first = plan->output_count;
    const bool last = kv->length + rows == sequence_tokens(r, candidate->choice);
    const int wanted = r->whole && !candidate->choice ? rows : last;
    const int outputs = r->pooling ? 0 : wanted, hidden_rows = r->pooling ? wanted : 0,
              first_state = plan->hidden_row_count;
    sequence_text(r, candidate->choice, kv->length, rows, plan->tokens + row);
    for (int i = 0; i < rows; i++) plan->positions[row + i] = kv->length + i;
    for (int i = 0; i < outputs; i++) plan->outputs[plan->output_count++] = row + rows - outputs + i;
    for (int i = 0; i < hidden_rows; i++) plan->hidden_rows[plan->hidden_row_count++] = row + rows - hidden_rows + i;
    plan->chunks[plan->slice_count] = (SequenceChunk){.row = row, .rows = rows};
    kv_run(kv, &plan->chunks[plan->slice_count]);
    plan->step.rows += rows;
    if (candidate->generated)
        plan->step.decode_rows += rows;
    else if (candidate->reads)
        plan->prompt_rows += rows;
    StepSlice *part = &plan->slices[plan->slice_count++];
    *part = (StepSlice){.request = r,
        .choice = candidate->choice,
        .rows = rows,
        .position = kv->length,
        .output = first,
        .outputs = outputs,
        .state = first_state,
        .hidden_rows = hidden_rows};
    add_sample(s, plan, part, candidate->choice ? candidate->choice->generated : 0);
}

/* Prompts that have begun go on with what the disk has of them, the oldest first, a little in each round. */
static void seek_on_disk(Scheduler *s) {
    const int64_t deadline_ns = clock_ns() + SEEK_MS * INT64_C(1000000);
    bool time = true;
    for (Request *r = s->active.first; s->sequences.disk && r && time; r = r->next) {
        if (r->sought || r->failed || !request_reads_prompt(r)) continue;
        time = !sequence_resume_from_disk(&s->sequences, r, deadline_ns);
        r->sought = time;
        r->prefilled = r->kv.length;
        const int more = request_note_found(r, r->prefilled);
        s->prompts_found += more > 0 && r->cached == more;
        s->tokens_found += (uint64_t)more;
    }
}

void scheduler_plan(Scheduler *s, StepPlan *plan) {
    seek_on_disk(s);
    plan_begin(plan, s->uniform_matmul, false);
    collect_turns(s);
    share_prefill(s);
    for (int i = 0; i < s->candidate_count; i++)
        if (s->candidates[i].rows > 0) reserve(s, &s->candidates[i]);
    for (int i = 0; i < s->candidate_count; i++)
        if (!s->candidates[i].reads) add_part(s, plan, &s->candidates[i]);
    for (int i = 0; i < s->candidate_count; i++)
        if (s->candidates[i].reads && s->candidates[i].generated) add_part(s, plan, &s->candidates[i]);
    for (int i = 0; i < s->candidate_count; i++)
        if (s->candidates[i].reads && !s->candidates[i].generated) add_part(s, plan, &s->candidates[i]);
    plan_end(plan);
}

/* ---- one step ahead ---- */

/* Whether each sequence that has something to do is in the step with one token, behind which it draws. */
static bool all_go_on(const Scheduler *s, const StepPlan *plan) {
    int running = 0, going = 0;
    if (!s->can_lookahead || !plan->sampled || plan->step.rows != plan->slice_count) return false;
    for (const Request *r = s->active.first; r; r = r->next) {
        if (r->failed || request_reads_prompt(r)) return false;
        for (int i = 0; i < r->choice_count; i++) running += r->choices[i].state == CHOICE_RUNNING;
    }
    for (int i = 0; i < plan->slice_count; i++) {
        const StepSlice *part = &plan->slices[i];
        if (!part->choice || part->outputs == 0) return false;
        going += part->choice->state == CHOICE_RUNNING && part->choice->kv.length == part->position;
    }
    return running == going;
}

/* The row behind a part's. False: there is no room for it. */
static bool add_ahead(Scheduler *s, StepPlan *plan, const StepSlice *before) {
    Request *r = before->request;
    AnswerChoice *choice = before->choice;
    KvSequence *kv = &choice->kv;
    const int row = plan->slice_count, position = before->position + 1;
    Error ignored;
    if (kv_step_rows(kv) < 2 || !kv_reserve(s->sequences.kv, kv, 2, &ignored)) return false;
    plan->tokens[row] = -2 - before->output;
    plan->positions[row] = position;
    plan->outputs[row] = row;
    plan->chunks[row] = (SequenceChunk){.row = row, .rows = 1};
    kv_run(kv, &plan->chunks[row]);
    plan->chunks[row].position = position;
    plan->slices[row] =
        (StepSlice){.request = r, .choice = choice, .rows = 1, .position = position, .output = row, .outputs = 1};
    add_sample(s, plan, &plan->slices[row], choice->generated + 1);
    plan->step.rows = plan->slice_count = plan->output_count = row + 1;
    if (s->decode_rows_max) plan->step.decode_rows = row + 1;
    return true;
}

bool scheduler_plan_lookahead(Scheduler *s, const StepPlan *under_way, StepPlan *plan) {
    if (!all_go_on(s, under_way)) return false;
    plan_begin(plan, s->uniform_matmul, true);
    for (int i = 0; i < under_way->slice_count; i++) {
        const StepSlice *part = &under_way->slices[i];
        const Request *r = part->request;
        AnswerChoice *choice = part->choice;
        if (choice->state != CHOICE_RUNNING || choice->generated + 1 >= r->max_tokens || atomic_load(&r->cancel) ||
            atomic_load(&choice->stop))
            continue;
        if (!add_ahead(s, plan, part)) return false;
    }
    plan_end(plan);
    return plan->slice_count > 0;
}
