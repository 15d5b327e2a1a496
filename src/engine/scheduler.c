#include "engine/scheduler.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/log.h"

/* The most tokens, up to a limit, whose cost fits; cost never falls with the tokens. 0: not even one. */
typedef struct Fit {
    const KvPlan *plan;
    const KvFormat *format;
    size_t pool, charged; /* bytes */
    int before;           /* tokens that come on top */
} Fit;

static int most_tokens(const Fit *fit, int limit) {
    int low = 0, high = limit;
    while (low < high) {
        const int middle = low + (high - low + 1) / 2;
        if (fit->charged <= fit->pool &&
            kv_bytes_for(fit->plan, fit->format, fit->before + middle) <= fit->pool - fit->charged)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

bool scheduler_open(Scheduler *s, const Runner *runner, KvCache *kv, const EngineOptions *options, Error *error) {
    const size_t rows = (size_t)options->slots + (size_t)options->prefill_size, slots = (size_t)options->slots;
    *s = (Scheduler){
        .plan = runner_kv_plan(runner),
        .kv = kv,
        .slots = options->slots,
        .queue_max = options->queue_max,
        .prefill_size = options->prefill_size,
        .pool = kv_bytes_total(kv),
        .tokens = calloc(rows, sizeof *s->tokens),
        .positions = calloc(rows, sizeof *s->positions),
        .outputs = calloc(slots + ECHO_ROWS, sizeof *s->outputs),
        .runs = calloc(slots, sizeof *s->runs),
        .parts = calloc(slots, sizeof *s->parts),
    };
    if (!s->tokens || !s->positions || !s->outputs || !s->runs || !s->parts) {
        scheduler_close(s);
        return fail(error, ERROR_MEMORY, "no memory for a step of %zu rows", rows);
    }
    s->context = most_tokens(&(Fit){s->plan, &options->kv_format, s->pool, 0, 0}, model_context(runner_model(runner)));
    if (s->context >= 2) return true;
    const size_t least = kv_bytes_for(s->plan, &options->kv_format, 2);
    scheduler_close(s);
    return fail(error, ERROR_LIMIT, "a KV cache of %zu bytes is too small, a sequence takes at least %zu",
        kv_bytes_total(kv), least);
}

void scheduler_close(Scheduler *s) {
    free(s->tokens);
    free(s->positions);
    free(s->outputs);
    free(s->runs);
    free(s->parts);
    *s = (Scheduler){0};
}

/* ---- promises ---- */

/* With several choices the prompt's pages are promised once; a choice adds what comes after the full ones of them. */
static size_t prompt_charge(const Scheduler *s, const KvFormat *format, int prompt_count, int choices) {
    return choices > 1 ? kv_bytes_for(s->plan, format, prompt_count) : 0;
}

static int shared_tokens(int prompt_count, int choices) {
    return choices > 1 ? prompt_count / KV_PAGE_TOKENS * KV_PAGE_TOKENS : 0;
}

static size_t choice_charge(const Scheduler *s, const KvFormat *format, int prompt_count, int max_tokens, int choices) {
    return kv_bytes_for(s->plan, format, prompt_count + max_tokens - shared_tokens(prompt_count, choices));
}

int scheduler_fit(const Scheduler *s, const RequestOptions *o, Error *error) {
    const int prompt = o->prompt_count;
    int max_tokens = prompt < s->context ? s->context - prompt : 0;
    if (o->max_tokens < max_tokens) max_tokens = o->max_tokens;
    const Fit fit = {s->plan, o->kv_format, s->pool, prompt_charge(s, o->kv_format, prompt, o->choices),
        prompt - shared_tokens(prompt, o->choices)};
    max_tokens = most_tokens(&fit, max_tokens);
    if (max_tokens == 0)
        fail(error, ERROR_LIMIT,
            "This model's maximum context length is %d tokens. However, the prompt has %d tokens and needs room for at "
            "least one more",
            s->context, prompt);
    return max_tokens;
}

/* ---- lists ---- */

static void list_append(RequestList *list, Request *request) {
    request->next = NULL;
    if (list->last)
        list->last->next = request;
    else
        list->first = request;
    list->last = request;
    list->count++;
}

static void list_remove(RequestList *list, Request *before, Request *request) {
    if (before)
        before->next = request->next;
    else
        list->first = request->next;
    if (list->last == request) list->last = before;
    list->count--;
}

/* ---- admission ---- */

bool scheduler_full(const Scheduler *s) { return s->waiting.count >= s->queue_max + s->slots - atomic_load(&s->used); }

void scheduler_queue(Scheduler *s, Request *request) {
    request->prompt_charge = prompt_charge(s, &request->format, request->prompt_count, request->choice_count);
    request->choice_charge =
        choice_charge(s, &request->format, request->prompt_count, request->max_tokens, request->choice_count);
    list_append(&s->waiting, request);
}

static void take_slot(Scheduler *s, Request *request) {
    request->slots++;
    atomic_fetch_add(&s->used, 1);
    s->charged += request->choice_charge;
    CHECK(atomic_load(&s->used) <= s->slots && s->charged <= s->pool);
}

void scheduler_free_slot(Scheduler *s, Request *request) {
    CHECK(request->slots > 0);
    request->slots--;
    s->charged -= request->choice_charge;
    atomic_fetch_sub(&s->used, 1);
}

static bool fits(const Scheduler *s, size_t charge) {
    return atomic_load(&s->used) < s->slots && charge <= s->pool - s->charged;
}

static void activate(Scheduler *s, Request *request) {
    Error error = {0};
    list_append(&s->active, request);
    s->charged += request->prompt_charge;
    take_slot(s, request);
    request_set_admitted(request);
    if (!kv_sequence_open(s->kv, &request->format, &request->kv, &error)) request_fail(request, &error);
}

/* Everybody who waits longer than somebody who got in was passed. True: one of them will not be passed again. */
static bool count_passes(Request *first, const Request *end) {
    bool patient = true;
    for (Request *r = first; r != end; r = r->next) patient = ++r->passes < PASSES_MAX && patient;
    return !patient;
}

/* Free slots for further choices of requests that already run; whoever has fewest comes first. */
static void grant_slots(Scheduler *s) {
    for (;;) {
        Request *best = NULL;
        for (Request *r = s->active.first; r; r = r->next) {
            if (r->prefilled < r->prompt_count || r->waiting <= r->granted || !fits(s, r->choice_charge)) continue;
            if (!best || r->slots < best->slots) best = r;
        }
        if (!best) return;
        take_slot(s, best);
        best->granted++;
        if (count_passes(s->waiting.first, NULL)) return;
    }
}

void scheduler_admit(Scheduler *s) {
    bool closed = false; /* somebody was passed too often: nobody younger gets in */
    Request *before = NULL, *request = s->waiting.first;
    while (request) {
        Request *next = request->next;
        if (atomic_load(&request->cancel)) {
            list_remove(&s->waiting, before, request);
            for (int i = 0; i < request->choice_count; i++)
                request_end_choice(request, &request->choices[i], FINISH_CANCELLED);
            request_release(request);
        } else if (!closed && fits(s, request->prompt_charge + request->choice_charge)) {
            list_remove(&s->waiting, before, request);
            closed = count_passes(s->waiting.first, next);
            activate(s, request);
        } else {
            closed = closed || request->passes >= PASSES_MAX;
            before = request;
        }
        request = next;
    }
    if (!closed) grant_slots(s);
}

/* ---- the step ---- */

static Part *add_part(Scheduler *s, Request *request, AnswerChoice *choice, KvSequence *kv, int rows, int outputs) {
    Error error = {0};
    if (!kv_reserve(s->kv, kv, rows, &error)) { /* cannot be, unless the promises are wrong */
        log_error("%s", error.text);
        request_fail(request, &error);
        return NULL;
    }
    const int row = s->step.rows, first = s->output_count;
    for (int i = 0; i < rows; i++) s->positions[row + i] = kv->length + i;
    for (int i = 0; i < outputs; i++) s->outputs[s->output_count++] = row + rows - outputs + i;
    s->runs[s->part_count] = (Run){.row = row, .rows = rows};
    kv_run(kv, &s->runs[s->part_count]);
    s->step.rows += rows;
    Part *part = &s->parts[s->part_count++];
    *part = (Part){.request = request, .choice = choice, .rows = rows, .output = first, .outputs = outputs};
    return part;
}

static void plan_decode(Scheduler *s) {
    for (Request *r = s->active.first; r; r = r->next) {
        for (int i = 0; i < r->choice_count && !r->failed; i++) {
            AnswerChoice *choice = &r->choices[i];
            if (choice->state != CHOICE_RUNNING) continue;
            const int row = s->step.rows;
            if (add_part(s, r, choice, &choice->kv, 1, 1)) s->tokens[row] = choice->last;
        }
    }
}

static bool reads_prompt(const Request *request) {
    return request->prefilled < request->prompt_count && !request->failed;
}

static int smaller(int a, int b) { return a < b ? a : b; }

/* Prompt tokens of a step, after its decode rows are planned. */
static int prefill_limit(const Scheduler *s) {
    const double time = STEP_MS * 1e-3;
    if (s->part_count == 0 || s->prompt_row_s * s->prefill_size <= time) return s->prefill_size;
    const int fitting = (int)(time / s->prompt_row_s) / PREFILL_LEAST * PREFILL_LEAST;
    return smaller(fitting > PREFILL_LEAST ? fitting : PREFILL_LEAST, s->prefill_size);
}

void scheduler_note_step(Scheduler *s, double seconds) {
    if (s->prompt_rows >= PREFILL_LEAST) s->prompt_row_s = seconds / s->prompt_rows;
}

/* Tokens of its prompt that a request could read in the coming step. */
static int prompt_left(const Request *r) { return smaller(r->prompt_count - r->prefilled, kv_step_rows(&r->kv)); }

/* Splits the step's prompt tokens over the prompts: half to the oldest, equal parts of the rest to the others; what
 * somebody does not need goes to the oldest who does. */
static void share_prefill(Scheduler *s) {
    int readers = 0, left = prefill_limit(s), echo_left = ECHO_ROWS;
    for (Request *r = s->active.first; r; r = r->next) readers += reads_prompt(r);
    const int share = readers > 1 ? left / 2 / (readers - 1) : 0;
    bool oldest = true;
    for (Request *r = s->active.first; r; r = r->next) {
        if (!reads_prompt(r)) continue;
        r->chunk = oldest ? 0 : smaller(share, prompt_left(r));
        left -= r->chunk;
        oldest = false;
    }
    for (Request *r = s->active.first; r; r = r->next) {
        if (!reads_prompt(r)) continue;
        const int more = smaller(left, prompt_left(r) - r->chunk);
        r->chunk += more;
        left -= more;
        if (!r->echo) continue;
        if (r->chunk > echo_left) {
            left += r->chunk - echo_left;
            r->chunk = echo_left;
        }
        echo_left -= r->chunk;
    }
}

static void plan_prefill(Scheduler *s) {
    share_prefill(s);
    for (Request *r = s->active.first; r; r = r->next) {
        if (!reads_prompt(r) || r->chunk == 0) continue;
        const int row = s->step.rows;
        const bool last = r->prefilled + r->chunk == r->prompt_count;
        if (!add_part(s, r, NULL, &r->kv, r->chunk, r->echo ? r->chunk : last)) continue;
        memcpy(s->tokens + row, r->prompt + r->prefilled, (size_t)r->chunk * sizeof *s->tokens);
        s->prompt_rows += r->chunk;
    }
}

void scheduler_plan(Scheduler *s) {
    s->part_count = s->output_count = s->prompt_rows = 0;
    s->step = (Step){.tokens = s->tokens, .positions = s->positions, .runs = s->runs, .axes = 1};
    plan_decode(s);
    plan_prefill(s);
    s->step.run_count = s->part_count;
}

/* ---- ends ---- */

void scheduler_end_choice(Scheduler *s, Request *request, AnswerChoice *choice, Finish finish) {
    if (choice->state == CHOICE_ENDED) return;
    if (choice->state == CHOICE_WAITING) request->waiting--;
    if (choice->state == CHOICE_RUNNING) {
        if (choice->kv.tables) kv_sequence_close(s->kv, &choice->kv);
        if (request->slots == 1 && request->waiting > 0)
            request->granted++;
        else
            scheduler_free_slot(s, request);
    }
    choice->state = CHOICE_ENDED;
    request_end_choice(request, choice, finish);
}

void scheduler_end_all(Scheduler *s, Request *request, Finish finish) {
    for (int i = 0; i < request->choice_count; i++) scheduler_end_choice(s, request, &request->choices[i], finish);
}

void scheduler_retire(Scheduler *s, Request *request) {
    while (request->slots > 0) scheduler_free_slot(s, request);
    s->charged -= request->prompt_charge;
    if (request->kv.tables) kv_sequence_close(s->kv, &request->kv);
    Request *before = NULL;
    for (Request *r = s->active.first; r != request; r = r->next) before = r;
    list_remove(&s->active, before, request);
    request_release(request);
}
