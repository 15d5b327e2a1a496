#include "engine/scheduler.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/log.h"
#include "base/math.h"
#include "engine/expert_memory.h"

/* The most tokens, up to a limit, that fit the pool; bytes never fall with the tokens. 0: not even one. */
static int most_tokens(const KvPlan *plan, const KvFormat *format, size_t pool, int limit) {
    int low = 0, high = limit;
    while (low < high) {
        const int middle = low + (high - low + 1) / 2;
        if (kv_bytes_for(plan, format, middle) <= pool)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static bool step_plan_open(StepPlan *plan, const StepCapacity *capacity, Error *error) {
    *plan = (StepPlan){.slices = calloc((size_t)capacity->sequences, sizeof *plan->slices),
        .spans = calloc((size_t)capacity->embeddings + (size_t)capacity->sequences + 1, sizeof *plan->spans)};
    if (!plan->slices || !plan->spans)
        return fail(error, ERROR_MEMORY, "no memory for a step of %d rows", capacity->rows);
    return step_builder_open(&plan->builder, capacity, error);
}

static void step_plan_close(StepPlan *plan) {
    step_builder_close(&plan->builder);
    free(plan->slices);
    free(plan->spans);
}

static bool open_steps(Scheduler *s, const StepCapacity *capacity, Error *error) {
    const size_t rows = (size_t)capacity->rows, outputs = (size_t)capacity->outputs;
    s->candidates = calloc((size_t)capacity->sequences, sizeof *s->candidates);
    s->targets = calloc((size_t)capacity->sequences, sizeof *s->targets);
    s->tokens = calloc(rows, sizeof *s->tokens);
    s->positions = calloc(rows * POSITION_DIMS_MAX, sizeof *s->positions);
    s->embeddings = calloc((size_t)capacity->embeddings + 1, sizeof *s->embeddings);
    s->scales = calloc(outputs, sizeof *s->scales);
    s->samples = calloc(outputs, sizeof *s->samples);
    bool ok = s->candidates && s->targets && s->tokens && s->positions && s->embeddings && s->scales && s->samples;
    if (!ok) fail(error, ERROR_MEMORY, "no memory for a step of %zu rows", rows);
    for (int i = 0; ok && i < (s->can_lookahead ? 2 : 1); i++) ok = step_plan_open(&s->plans[i], capacity, error);
    return ok;
}

bool scheduler_open(
    Scheduler *s, const Runner *runner, KvCache *kv, MediaCache *media, const EngineOptions *options, Error *error) {
    const RunnerOptions largest = engine_runner_options(options);
    const StepCapacity capacity = {.rows = largest.backend.rows_max,
        .sequences = options->slots,
        .outputs = largest.outputs_max,
        .hidden_rows = largest.hidden_rows_max,
        .embeddings = media ? largest.backend.rows_max : 0};
    const int most = runner_decode_rows_max(runner);
    const bool uniform_matmul = most > 0 && options->slots > most;
    const int drafts = engine_draft_rows(options);
    *s = (Scheduler){
        .slots = options->slots,
        .queue_max = options->queue_max,
        .prefill_size = options->prefill_size,
        .pool = kv_bytes_total(kv),
        .media = media,
        .decode_rows_max = uniform_matmul ? capacity.rows : most,
        .uniform_matmul = uniform_matmul,
        .sample_params = runner_samples(runner),
        .can_lookahead = runner_can_lookahead(runner),
    };
    /* Draft tokens never decide which arithmetic a row has. */
    const int room = most > 0 && !uniform_matmul ? min_int(drafts, most - options->slots) : drafts;
    if (!open_steps(s, &capacity, error) || !speculation_open(&s->speculation, runner, kv, options, room, error)) {
        scheduler_close(s);
        return false;
    }
    const KvPlan *plan = runner_kv_plan(runner);
    s->model_context = model_context(runner_model(runner));
    s->context = most_tokens(plan, &options->kv_format, s->pool, s->model_context);
    if (s->context >= 2) {
        if (sequences_open(&s->sequences, runner, kv, options, s->decode_rows_max > 0, error)) return true;
        scheduler_close(s);
        return false;
    }
    const size_t least = kv_bytes_for(plan, &options->kv_format, 2);
    scheduler_close(s);
    return fail(error, ERROR_LIMIT, "a KV cache of %zu bytes is too small, a sequence takes at least %zu",
        kv_bytes_total(kv), least);
}

bool scheduler_slice_spans(Scheduler *s, Error *error) {
    const int rows = s->plans[0].builder.capacity.rows;
    const StepCapacity capacity = {.rows = rows, .sequences = 1, .embeddings = rows};
    s->can_slice = step_plan_open(&s->span_plan, &capacity, error);
    return s->can_slice;
}

void scheduler_close(Scheduler *s) {
    sequences_close(&s->sequences);
    speculation_close(&s->speculation);
    free(s->candidates);
    free(s->targets);
    free(s->tokens);
    free(s->positions);
    free(s->embeddings);
    free(s->scales);
    free(s->samples);
    for (int i = 0; i < 2; i++) step_plan_close(&s->plans[i]);
    step_plan_close(&s->span_plan);
    *s = (Scheduler){0};
}

int scheduler_fit(const Scheduler *s, const RequestOptions *o, Error *error) {
    const KvPlan *plan = s->sequences.plan;
    const int prompt = o->prompt_count, all = most_tokens(plan, o->kv_format, s->pool, s->model_context);
    if (prompt < all) return min_int(all - prompt, o->max_tokens);
    if (prompt < s->model_context)
        fail(error, ERROR_LIMIT,
            "The prompt has %d tokens and needs room for at least one more, %zu bytes of the KV cache, which has %zu: "
            "at most %d tokens",
            prompt, kv_bytes_for(plan, o->kv_format, prompt + 1), s->pool, all);
    else
        fail(error, ERROR_LIMIT,
            "This model's maximum context length is %d tokens. However, the prompt has %d tokens and needs room for at "
            "least one more",
            s->model_context, prompt);
    return 0;
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

/* ---- room ---- */

static size_t bytes_up_to(const Scheduler *s, const Request *r, int tokens, int more) {
    const int most = r->prompt_count + r->max_tokens; /* the sum may be larger than an int */
    return kv_bytes_for(s->sequences.plan, &r->format, most - tokens > more ? tokens + more : most);
}

/* Bytes of pages for a sequence to be admitted: its text and ANSWER_ROOM more tokens. */
static size_t bytes_wanted(const Scheduler *s, const Request *r, const AnswerChoice *choice) {
    return bytes_up_to(s, r, sequence_tokens(r, choice), ANSWER_ROOM);
}

/* Bytes of pages reserved for a running sequence: prompt and ANSWER_ROOM, and beyond that always one more page. */
static size_t bytes_claimed(const Scheduler *s, const Request *r, const AnswerChoice *choice) {
    const int tokens = sequence_tokens(r, choice);
    if (tokens - r->prompt_count < ANSWER_ROOM - KV_PAGE_TOKENS) return bytes_up_to(s, r, r->prompt_count, ANSWER_ROOM);
    return bytes_up_to(s, r, tokens, KV_PAGE_TOKENS);
}

static size_t bytes_missing(const Scheduler *s, const Request *r, const AnswerChoice *choice, int length) {
    return sub_size(bytes_claimed(s, r, choice), kv_bytes_for(s->sequences.plan, &r->format, length));
}

/* Counts the bytes that are free or held by the prefix cache alone, less those that running requests will need soon. */
static void look_for_room(Scheduler *s) {
    size_t wanted = 0, room = sub_size(s->pool, kv_bytes_used(s->sequences.kv));
    if (s->sequences.prefix) room += prefix_idle_bytes(s->sequences.prefix);
    for (const Request *r = s->active.first; r; r = r->next) {
        if (request_reads_prompt(r)) wanted += bytes_missing(s, r, NULL, r->prefilled);
        for (int i = 0; i < r->choice_count; i++) {
            const AnswerChoice *choice = &r->choices[i];
            if (choice->state == CHOICE_RUNNING) wanted += bytes_missing(s, r, choice, choice->kv.length);
        }
    }
    s->room = sub_size(room, wanted);
    s->room_known = true;
}

/* A request that would run alone is always admitted: each request fits by itself. */
static bool fits(Scheduler *s, size_t bytes) {
    const int used = atomic_load(&s->used);
    if (used == 0 || used == s->slots) return used == 0;
    if (!s->room_known) look_for_room(s);
    return bytes <= s->room;
}

/* ---- admission ---- */

bool scheduler_full(const Scheduler *s) {
    const int open = s->slots - atomic_load(&s->used) - atomic_load(&s->preempted);
    return s->waiting.count >= s->queue_max + (open > 0 ? open : 0);
}

void scheduler_queue(Scheduler *s, Request *request) { list_append(&s->waiting, request); }

static void take_slot(Scheduler *s, Request *request) {
    request->slots++;
    atomic_fetch_add(&s->used, 1);
    CHECK(atomic_load(&s->used) <= s->slots);
}

void scheduler_free_slot(Scheduler *s, Request *request) {
    CHECK(request->slots > 0);
    request->slots--;
    atomic_fetch_sub(&s->used, 1);
}

/* Starts a prompt, or resumes a preempted choice, in a slot of its own if it fits, counting pages found in the prefix
 * cache. Any other failure ends the request. */
static bool enter(Scheduler *s, Request *request, AnswerChoice *choice) {
    const size_t wanted = bytes_wanted(s, request, choice);
    const bool enough = fits(s, wanted);
    if (atomic_load(&s->used) == s->slots || (!enough && (!s->sequences.prefix || s->lookups == 0))) return false;
    Error error = {0};
    if (!enough) s->lookups--;
    if (!sequence_begin(&s->sequences, request, choice, &error)) request_fail(request, &error);
    KvSequence *kv = sequence_of(request, choice);
    s->room_known = false;
    if (!enough && !request->failed && !fits(s, sub_size(wanted, sequence_bytes_found(&s->sequences, kv)))) {
        kv_sequence_close(s->sequences.kv, kv);
        return false;
    }
    if (!choice) request->prefilled = kv->length;
    take_slot(s, request);
    return true;
}

/* Resumes preempted choices first, the oldest before all. False: some are still preempted. */
static bool resume(Scheduler *s) {
    for (Request *r = s->active.first; r && atomic_load(&s->preempted) > 0; r = r->next) {
        if (r->failed || atomic_load(&r->cancel)) continue;
        if (r->preempted) {
            if (!enter(s, r, NULL)) return false;
            r->preempted = false;
            atomic_fetch_sub(&s->preempted, 1);
            s->resume_count++;
        }
        for (int i = 0; i < r->choice_count; i++) {
            AnswerChoice *choice = &r->choices[i];
            if (choice->state != CHOICE_PREEMPTED || atomic_load(&choice->stop)) continue;
            if (!enter(s, r, choice)) return false;
            choice->state = CHOICE_RUNNING;
            atomic_fetch_sub(&s->preempted, 1);
            s->resume_count++;
        }
    }
    return true;
}

void scheduler_preempt(Scheduler *s, Request *request, AnswerChoice *choice) {
    sequence_end(&s->sequences, request, choice);
    speculation_end(&s->speculation, request, choice);
    if (choice) {
        choice->state = CHOICE_PREEMPTED;
    } else {
        request->preempted = true;
        request->prefilled = 0;
        request->disk_searched = false;
    }
    atomic_fetch_add(&s->preempted, 1);
    scheduler_free_slot(s, request);
    s->preempt_count++;
    request_count_preemption(request);
}

static bool admit(Scheduler *s, Request *request) {
    if (!enter(s, request, NULL)) return false;
    const int found = request->prefilled;
    if (s->sequences.prefix && !request->cache_off && !request->whole) {
        s->prompts_looked_up++;
        s->prompts_found += found > 0;
        s->tokens_found += (uint64_t)found;
    }
    request_set_admitted(request, found);
    return true;
}

/* Counts a pass for each request that waits longer than one that was admitted. True: one of them must not be passed
 * again. */
static bool count_passes(Request *first, const Request *end) {
    bool patient = true;
    for (Request *r = first; r != end; r = r->next) patient = ++r->skips < SKIPS_MAX && patient;
    return !patient;
}

/* Free slots for further choices of requests that already run; the request with the fewest slots comes first. */
static void grant_slots(Scheduler *s) {
    for (;;) {
        Request *best = NULL;
        for (Request *r = s->active.first; r; r = r->next) {
            if (r->prefilled < r->prompt_count || r->waiting <= r->granted || r->failed) continue;
            const int shared = r->kv.tables ? r->prompt_count / KV_PAGE_TOKENS * KV_PAGE_TOKENS : 0;
            if (!fits(s, bytes_missing(s, r, NULL, shared))) continue;
            if (!best || r->slots < best->slots) best = r;
        }
        if (!best) return;
        const int shared = best->kv.tables ? best->prompt_count / KV_PAGE_TOKENS * KV_PAGE_TOKENS : 0;
        s->room = sub_size(s->room, bytes_missing(s, best, NULL, shared)); /* it holds nothing yet */
        take_slot(s, best);
        best->granted++;
        if (count_passes(s->waiting.first, NULL)) return;
    }
}

static void drop_waiting(Scheduler *s, Request *before, Request *request) {
    list_remove(&s->waiting, before, request);
    for (int i = 0; i < request->choice_count; i++) request_end_choice(request, &request->choices[i], FINISH_CANCELLED);
    request_release(request);
}

void scheduler_admit(Scheduler *s) {
    s->lookups = LOOKUPS_MAX;
    s->room_known = false;
    bool closed = !resume(s); /* or a request was passed too often: no younger one is admitted */
    Request *before = NULL, *request = s->waiting.first;
    while (request) {
        Request *next = request->next;
        if (atomic_load(&request->cancel)) {
            drop_waiting(s, before, request);
        } else if (!closed && admit(s, request)) {
            list_remove(&s->waiting, before, request);
            closed = count_passes(s->waiting.first, next);
            list_append(&s->active, request);
        } else {
            closed = closed || request->skips >= SKIPS_MAX;
            before = request;
        }
        request = next;
    }
    if (!closed) grant_slots(s);
}

/* ---- ends ---- */

static void note_use(const Scheduler *s, Request *request, const KvSequence *kv) {
    KvUse use = {0};
    kv_sequence_use(s->sequences.kv, kv, &use);
    request_set_kv_use(request, &use, kv_bytes_for(s->sequences.plan, NULL, kv->length));
}

void scheduler_end_choice(Scheduler *s, Request *request, AnswerChoice *choice, Finish finish) {
    if (choice->state == CHOICE_ENDED) return;
    if (choice->state == CHOICE_WAITING) request->waiting--;
    if (choice->state == CHOICE_PREEMPTED) atomic_fetch_sub(&s->preempted, 1);
    if (choice->state == CHOICE_RUNNING) {
        if (choice->kv.tables) note_use(s, request, &choice->kv);
        sequence_end(&s->sequences, request, choice);
        if (request->slots == 1 && request->waiting > 0)
            request->granted++;
        else
            scheduler_free_slot(s, request);
    }
    speculation_end(&s->speculation, request, choice);
    choice->state = CHOICE_ENDED;
    request_end_choice(request, choice, finish);
}

void scheduler_end_all(Scheduler *s, Request *request, Finish finish) {
    for (int i = 0; i < request->choice_count; i++) scheduler_end_choice(s, request, &request->choices[i], finish);
}

void scheduler_retire(Scheduler *s, Request *request) {
    while (request->slots > 0) scheduler_free_slot(s, request);
    if (request->preempted) atomic_fetch_sub(&s->preempted, 1);
    sequence_end(&s->sequences, request, NULL);
    speculation_end(&s->speculation, request, NULL);
    Request *before = NULL;
    for (Request *r = s->active.first; r != request; r = r->next) before = r;
    list_remove(&s->active, before, request);
    request_release(request);
}
