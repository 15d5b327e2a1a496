/* The rows of a step, and the pages for them. Pages are reserved in the order of age; when they run out, the prefix
 * cache has nothing left to give but what sequences hold as well. Then whoever is youngest is parked: its pages go to
 * the prefix cache, from where those that are wanted leave and the others come back. So the oldest always goes on; or
 * waits for those whose masks are late, who keep their pages and are not there to be parked. */
#include "base/clock.h"
#include "base/log.h"
#include "engine/allowed.h"
#include "engine/scheduler.h"

static int smaller(int a, int b) { return a < b ? a : b; }

/* ---- who has rows ---- */

static int rows_left(const Scheduler *s, const Turn *turn) {
    if (!turn->choice && s->sequences.disk && !turn->request->sought) return 0;
    const KvSequence *kv = sequence_of(turn->request, turn->choice);
    const int rows = smaller(sequence_tokens(turn->request, turn->choice) - kv->length, kv_step_rows(kv));
    if (!turn->choice) return smaller(rows, sequence_rows_to_resume(turn->request));
    return s->generated_max && !turn->generated ? smaller(rows, turn->request->prompt_count - kv->length) : rows;
}

/* All but a choice's next token is read as prompts are: so is the answer of a choice that was parked. */
static bool is_reader(const Turn *turn) {
    return !turn->choice || sequence_tokens(turn->request, turn->choice) - turn->choice->kv.length > 1;
}

/* Whether its next token is one of an answer, and told from a prompt's. */
static bool is_generated(const Scheduler *s, const Turn *turn) {
    return s->generated_max && turn->choice && turn->choice->kv.length >= turn->request->prompt_count;
}

static void collect_turns(Scheduler *s) {
    s->turn_count = s->readers = s->answer_readers = 0;
    s->left_out = false;
    for (Request *r = s->active.first; r; r = r->next) {
        s->left_out = s->left_out || allowed_is_late(r);
        if (r->failed || allowed_is_late(r)) continue;
        if (request_reads_prompt(r)) s->turns[s->turn_count++] = (Turn){.request = r};
        for (int i = 0; i < r->choice_count; i++)
            if (r->choices[i].state == CHOICE_RUNNING)
                s->turns[s->turn_count++] = (Turn){.request = r, .choice = &r->choices[i]};
    }
    for (int i = 0; i < s->turn_count; i++) {
        Turn *turn = &s->turns[i];
        turn->reads = is_reader(turn);
        turn->generated = is_generated(s, turn);
        turn->rows = !turn->reads;
        s->readers += turn->reads;
        s->answer_readers += turn->reads && turn->generated;
    }
}

/* Prompt tokens of a step, beside its decode rows. */
static int prefill_limit(const Scheduler *s) {
    const double time = STEP_MS * 1e-3;
    if (s->readers == s->turn_count || s->prompt_row_s * s->prefill_size <= time) return s->prefill_size;
    const int fitting = (int)(time / s->prompt_row_s) / PREFILL_LEAST * PREFILL_LEAST;
    return smaller(fitting > PREFILL_LEAST ? fitting : PREFILL_LEAST, s->prefill_size);
}

void scheduler_note_step(Scheduler *s, const StepPlan *plan, double seconds) {
    if (plan->prompt_rows >= PREFILL_LEAST) s->prompt_row_s = seconds / plan->prompt_rows;
}

/* Rows that are left for those who read. */
typedef struct Room {
    int rows, generated; /* and so many of them may be of answers, if these are told from prompts */
} Room;

/* Up to `most` more rows. */
static void give(const Scheduler *s, Turn *turn, int most, Room *room) {
    int rows = smaller(most, rows_left(s, turn) - turn->rows);
    if (turn->generated) rows = smaller(rows, room->generated);
    turn->rows += rows;
    room->rows -= rows;
    if (turn->generated) room->generated -= rows;
}

/* Splits the step's prompt tokens over the prompts: half to the oldest, equal parts of the rest to the others; what
 * somebody does not need goes to the oldest who does. Answers that are read are prompts here, but for a part of what
 * may be told from them. */
static void share_prefill(Scheduler *s) {
    Room room = {prefill_limit(s), s->generated_max - (s->turn_count - s->readers)};
    int echo_left = ECHO_ROWS;
    const int share = s->readers > 1 ? room.rows / 2 / (s->readers - 1) : 0;
    const int answer_share = s->answer_readers ? smaller(share, room.generated / s->answer_readers) : 0;
    bool oldest = true;
    for (int i = 0; i < s->turn_count; i++) {
        Turn *turn = &s->turns[i];
        if (!turn->reads) continue;
        if (!oldest) give(s, turn, turn->generated ? answer_share : share, &room);
        oldest = false;
    }
    for (int i = 0; i < s->turn_count; i++) {
        Turn *turn = &s->turns[i];
        if (!turn->reads) continue;
        give(s, turn, room.rows, &room);
        if (!turn->request->echo || turn->choice) continue;
        if (turn->rows > echo_left) {
            room.rows += turn->rows - echo_left;
            turn->rows = echo_left;
        }
        echo_left -= turn->rows;
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
static bool make_room(Scheduler *s, const Turn *turn) {
    PrefixCache *prefix = s->sequences.prefix;
    if (prefix && prefix_stats(prefix).nodes > 0) { /* a last page that is shared no more need not be copied */
        prefix_clear(prefix);
        return true;
    }
    if (drop_idle_prompt(s)) return true;
    for (Turn *youngest = s->turns + s->turn_count - 1; youngest > turn; youngest--) {
        if (!sequence_of(youngest->request, youngest->choice)->tables) continue;
        scheduler_park(s, youngest->request, youngest->choice);
        return true;
    }
    return false;
}

static void reserve(Scheduler *s, Turn *turn) {
    KvSequence *kv = sequence_of(turn->request, turn->choice);
    while (kv->tables) {
        Error error = {0};
        if (kv_reserve(s->sequences.kv, kv, turn->rows, &error)) return;
        const bool full = error.code == ERROR_LIMIT;
        if (full && make_room(s, turn)) continue;
        if (full && turn > s->turns) {
            scheduler_park(s, turn->request, turn->choice);
            return;
        }
        turn->rows = 0;
        if (full && s->left_out) return; /* until those who hold the rest come back, who can be parked then */
        log_error("%s", error.text);
        request_fail(turn->request, &error);
        return;
    }
}

/* ---- the step ---- */

/* Whether the token behind so many of an answer can be drawn where its logits are. */
static bool can_leave(const Scheduler *s, const Request *r, const AnswerChoice *choice, int generated) {
    return s->draws && !r->by_host && !r->constraint && !r->echo && generated >= r->sampling.min_tokens &&
        (choice || r->choice_count == 1) && sampler_can_leave(&r->sampling);
}

/* How the outputs of a part are drawn from, the last of which follows so many tokens of the answer. */
static void add_draws(const Scheduler *s, StepPlan *plan, const Part *part, int generated) {
    const Request *r = part->request;
    if (part->outputs == 0) return;
    const int choice = part->choice ? (int)(part->choice - r->choices) : 0;
    for (int i = 0; i < part->outputs; i++) plan->scales[part->output + i] = sampler_scale(&r->sampling);
    plan->drawn = plan->drawn && can_leave(s, r, part->choice, generated);
    if (plan->drawn) plan->draws[part->output] = sampler_leave(&r->sampling, choice, r->prompt_count + generated);
}

static void plan_begin(StepPlan *plan, bool many, bool ahead) {
    plan->part_count = plan->output_count = plan->state_count = plan->prompt_rows = 0;
    plan->step =
        (Step){.many = many, .tokens = plan->tokens, .positions = plan->positions, .runs = plan->runs, .axes = 1};
    plan->drawn = true;
    plan->ahead = ahead;
}

static void plan_end(StepPlan *plan) {
    plan->drawn = plan->drawn && plan->output_count > 0 && plan->state_count == 0;
    plan->step.draws = plan->drawn ? plan->draws : NULL;
    plan->step.scales = plan->drawn ? NULL : plan->scales;
    plan->step.run_count = plan->part_count;
    plan->step.state_count = plan->state_count;
    plan->step.states = plan->states;
}

static void add_part(Scheduler *s, StepPlan *plan, const Turn *turn) {
    Request *r = turn->request;
    const KvSequence *kv = sequence_of(r, turn->choice);
    if (turn->rows == 0 || !kv->tables || r->failed) return; /* failed by another of its turns, perhaps */
    const int row = plan->step.rows, rows = turn->rows, first = plan->output_count;
    const bool last = kv->length + rows == sequence_tokens(r, turn->choice);
    const int wanted = r->whole && !turn->choice ? rows : last;
    const int outputs = r->pooling ? 0 : wanted, states = r->pooling ? wanted : 0, first_state = plan->state_count;
    sequence_text(r, turn->choice, kv->length, rows, plan->tokens + row);
    for (int i = 0; i < rows; i++) plan->positions[row + i] = kv->length + i;
    for (int i = 0; i < outputs; i++) plan->outputs[plan->output_count++] = row + rows - outputs + i;
    for (int i = 0; i < states; i++) plan->states[plan->state_count++] = row + rows - states + i;
    plan->runs[plan->part_count] = (Run){.row = row, .rows = rows};
    kv_run(kv, &plan->runs[plan->part_count]);
    plan->step.rows += rows;
    if (turn->generated)
        plan->step.generated += rows;
    else if (turn->reads)
        plan->prompt_rows += rows;
    Part *part = &plan->parts[plan->part_count++];
    *part = (Part){.request = r,
        .choice = turn->choice,
        .rows = rows,
        .position = kv->length,
        .output = first,
        .outputs = outputs,
        .state = first_state,
        .states = states};
    add_draws(s, plan, part, turn->choice ? turn->choice->generated : 0);
}

/* Prompts that have begun go on with what the disk has of them, the oldest first, a little in each round. */
static void seek_on_disk(Scheduler *s) {
    const int64_t deadline_ns = clock_ns() + SEEK_MS * INT64_C(1000000);
    bool time = true;
    for (Request *r = s->active.first; s->sequences.disk && r && time; r = r->next) {
        if (r->sought || r->failed || !request_reads_prompt(r)) continue;
        time = !sequence_continue(&s->sequences, r, deadline_ns);
        r->sought = time;
        r->prefilled = r->kv.length;
        const int more = request_note_found(r, r->prefilled);
        s->prompts_found += more > 0 && r->cached == more;
        s->tokens_found += (uint64_t)more;
    }
}

void scheduler_plan(Scheduler *s, StepPlan *plan) {
    seek_on_disk(s);
    plan_begin(plan, s->many, false);
    collect_turns(s);
    share_prefill(s);
    for (int i = 0; i < s->turn_count; i++)
        if (s->turns[i].rows > 0) reserve(s, &s->turns[i]);
    for (int i = 0; i < s->turn_count; i++)
        if (!s->turns[i].reads) add_part(s, plan, &s->turns[i]);
    for (int i = 0; i < s->turn_count; i++)
        if (s->turns[i].reads && s->turns[i].generated) add_part(s, plan, &s->turns[i]);
    for (int i = 0; i < s->turn_count; i++)
        if (s->turns[i].reads && !s->turns[i].generated) add_part(s, plan, &s->turns[i]);
    plan_end(plan);
}

/* ---- one step ahead ---- */

/* Whether each sequence that has something to do is in the step with one token, behind which it draws. */
static bool all_go_on(const Scheduler *s, const StepPlan *plan) {
    int running = 0, going = 0;
    if (!s->goes_ahead || !plan->drawn || plan->step.rows != plan->part_count) return false;
    for (const Request *r = s->active.first; r; r = r->next) {
        if (r->failed || request_reads_prompt(r)) return false;
        for (int i = 0; i < r->choice_count; i++) running += r->choices[i].state == CHOICE_RUNNING;
    }
    for (int i = 0; i < plan->part_count; i++) {
        const Part *part = &plan->parts[i];
        if (!part->choice || part->outputs == 0) return false;
        going += part->choice->state == CHOICE_RUNNING && part->choice->kv.length == part->position;
    }
    return running == going;
}

/* The row behind a part's. False: there is no room for it. */
static bool add_ahead(Scheduler *s, StepPlan *plan, const Part *before) {
    Request *r = before->request;
    AnswerChoice *choice = before->choice;
    KvSequence *kv = &choice->kv;
    const int row = plan->part_count, position = before->position + 1;
    Error ignored;
    if (kv_step_rows(kv) < 2 || !kv_reserve(s->sequences.kv, kv, 2, &ignored)) return false;
    plan->tokens[row] = -2 - before->output;
    plan->positions[row] = position;
    plan->outputs[row] = row;
    plan->runs[row] = (Run){.row = row, .rows = 1};
    kv_run(kv, &plan->runs[row]);
    plan->runs[row].position = position;
    plan->parts[row] =
        (Part){.request = r, .choice = choice, .rows = 1, .position = position, .output = row, .outputs = 1};
    add_draws(s, plan, &plan->parts[row], choice->generated + 1);
    plan->step.rows = plan->part_count = plan->output_count = row + 1;
    if (s->generated_max) plan->step.generated = row + 1;
    return true;
}

bool scheduler_plan_ahead(Scheduler *s, const StepPlan *under_way, StepPlan *plan) {
    if (!all_go_on(s, under_way)) return false;
    plan_begin(plan, s->many, true);
    for (int i = 0; i < under_way->part_count; i++) {
        const Part *part = &under_way->parts[i];
        const Request *r = part->request;
        AnswerChoice *choice = part->choice;
        if (choice->state != CHOICE_RUNNING || choice->generated + 1 >= r->max_tokens || atomic_load(&r->cancel) ||
            atomic_load(&choice->stop))
            continue;
        if (!add_ahead(s, plan, part)) return false;
    }
    plan_end(plan);
    return plan->part_count > 0;
}
