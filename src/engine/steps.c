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
    return turn->choice ? rows : smaller(rows, sequence_rows_to_resume(turn->request));
}

/* All but a choice's next token is read as prompts are: so is the answer of a choice that was parked. */
static bool is_reader(const Turn *turn) {
    return !turn->choice || sequence_tokens(turn->request, turn->choice) - turn->choice->kv.length > 1;
}

static void collect_turns(Scheduler *s) {
    s->turn_count = s->readers = 0;
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
        s->turns[i].reads = is_reader(&s->turns[i]);
        s->turns[i].rows = !s->turns[i].reads;
        s->readers += s->turns[i].reads;
    }
}

/* Prompt tokens of a step, beside its decode rows. */
static int prefill_limit(const Scheduler *s) {
    const double time = STEP_MS * 1e-3;
    if (s->readers == s->turn_count || s->prompt_row_s * s->prefill_size <= time) return s->prefill_size;
    const int fitting = (int)(time / s->prompt_row_s) / PREFILL_LEAST * PREFILL_LEAST;
    return smaller(fitting > PREFILL_LEAST ? fitting : PREFILL_LEAST, s->prefill_size);
}

void scheduler_note_step(Scheduler *s, double seconds) {
    if (s->prompt_rows >= PREFILL_LEAST) s->prompt_row_s = seconds / s->prompt_rows;
}

/* Splits the step's prompt tokens over the prompts: half to the oldest, equal parts of the rest to the others; what
 * somebody does not need goes to the oldest who does. */
static void share_prefill(Scheduler *s) {
    int left = prefill_limit(s), echo_left = ECHO_ROWS;
    const int share = s->readers > 1 ? left / 2 / (s->readers - 1) : 0;
    bool oldest = true;
    for (int i = 0; i < s->turn_count; i++) {
        Turn *turn = &s->turns[i];
        if (!turn->reads) continue;
        turn->rows = oldest ? 0 : smaller(share, rows_left(s, turn));
        left -= turn->rows;
        oldest = false;
    }
    for (int i = 0; i < s->turn_count; i++) {
        Turn *turn = &s->turns[i];
        if (!turn->reads) continue;
        const int more = smaller(left, rows_left(s, turn) - turn->rows);
        turn->rows += more;
        left -= more;
        if (!turn->request->echo || turn->choice) continue;
        if (turn->rows > echo_left) {
            left += turn->rows - echo_left;
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

static void add_part(Scheduler *s, const Turn *turn) {
    Request *r = turn->request;
    const KvSequence *kv = sequence_of(r, turn->choice);
    if (turn->rows == 0 || !kv->tables || r->failed) return; /* failed by another of its turns, perhaps */
    const int row = s->step.rows, rows = turn->rows, first = s->output_count;
    const bool last = kv->length + rows == sequence_tokens(r, turn->choice);
    const int wanted = r->whole && !turn->choice ? rows : last;
    const int outputs = r->pooling ? 0 : wanted, states = r->pooling ? wanted : 0, first_state = s->state_count;
    sequence_text(r, turn->choice, kv->length, rows, s->tokens + row);
    for (int i = 0; i < rows; i++) s->positions[row + i] = kv->length + i;
    for (int i = 0; i < outputs; i++) s->outputs[s->output_count++] = row + rows - outputs + i;
    for (int i = 0; i < states; i++) s->states[s->state_count++] = row + rows - states + i;
    s->runs[s->part_count] = (Run){.row = row, .rows = rows};
    kv_run(kv, &s->runs[s->part_count]);
    s->step.rows += rows;
    if (turn->reads) s->prompt_rows += rows;
    s->parts[s->part_count++] = (Part){.request = r,
        .choice = turn->choice,
        .rows = rows,
        .output = first,
        .outputs = outputs,
        .state = first_state,
        .states = states};
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

void scheduler_plan(Scheduler *s) {
    seek_on_disk(s);
    s->part_count = s->output_count = s->state_count = s->prompt_rows = 0;
    s->step = (Step){.tokens = s->tokens, .positions = s->positions, .runs = s->runs, .axes = 1};
    collect_turns(s);
    share_prefill(s);
    for (int i = 0; i < s->turn_count; i++)
        if (s->turns[i].rows > 0) reserve(s, &s->turns[i]);
    for (int i = 0; i < s->turn_count; i++)
        if (!s->turns[i].reads) add_part(s, &s->turns[i]);
    for (int i = 0; i < s->turn_count; i++)
        if (s->turns[i].reads) add_part(s, &s->turns[i]);
    s->step.run_count = s->part_count;
    s->step.state_count = s->state_count;
    s->step.states = s->states;
}
