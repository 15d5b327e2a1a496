/* The engine thread: admit, run a step, sample, hand out tokens. */
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/thread.h"
#include "engine/token_mask.h"
#include "engine/admission.h"
#include "engine/check.h"
#include "engine/expert_memory.h"
#include "engine/kv_choice.h"
#include "engine/placement.h"
#include "engine/resources.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "model/sliced_step.h"
#include "model/spec.h"

struct Engine {
    Resources *resources;     /* NULL: it has the machine for itself */
    Resources *own_resources; /* opened for this engine alone; NULL: none */
    MemoryAccount account;
    double kv_host; /* part of the cache that is memory of the host */
    Model *model;
    Runner *runner;
    KvCache *kv;
    MediaCache *media;              /* NULL: the model takes neither images nor audio */
    SlicedStep *sliced;             /* prefill of spans in slices; NULL: not of this model */
    bool span_begun;                /* the scheduler's span was begun */
    double span_row_s[SLICE_KINDS]; /* time of one of its rows; 0: not known yet */
    MediaMemory media_memory;
    size_t media_host_bytes; /* host memory that images may take; 0: none, or that of a device */
    KvFormat kv_format;
    int vocab, eos_count;
    Pooling pooling;
    int32_t eos[EOS_MAX];
    SamplerScratch scratch;
    MaskWorkers *lookahead;
    float *logits;  /* [outputs, vocab] logits of the step, borrowed from the runner until the next step */
    float *working; /* [vocab] */
    Scheduler scheduler;
    StepPlan *next; /* has been begun as well, ahead of the end of the step before; NULL: none */
    int under_way;  /* steps */
    int64_t ended_ns;
    ExpertProviderStats experts; /* when the step began */
    bool thread_runs;
    Thread thread;
    uint64_t steps, prompt_tokens, generated_tokens;
    double step_s, media_s;
    bool damaged; /* all answers fail until the model is reloaded */
    bool lost;    /* the device has failed: only another process can reload the model */
    uint64_t kv_blocks;
    size_t kv_idle_bytes; /* counted at */
    int64_t idle_counted_ns;
    int stall_ms;
    _Atomic int64_t step_due_ns; /* when the step that is being computed is taken for hung; 0: there is none */

    void (*notify)(void *context);
    void *notify_context;
    void (*failed)(void *context, const Error *why);
    void *failed_context;

    Mutex mutex;
    Condition wake, round_ended;
    bool closing;
    uint64_t rounds; /* that have ended; a round: admission, a step and its results */
    EngineStats stats;
};

/* ---- answers ---- */

static bool is_eos(const Engine *engine, int32_t id) {
    for (int i = 0; i < engine->eos_count; i++)
        if (engine->eos[i] == id) return true;
    return false;
}

static bool update_token_mask(Engine *engine, Request *request, AnswerChoice *choice) {
    Error error = {0};
    const EndTokens ends = {engine->eos, engine->eos_count};
    const int64_t start = clock_ns();
    const bool ok = token_mask_update(request, choice, engine->vocab, ends, &error);
    if (request->constraint && clock_ns() - start > LATE_MS * INT64_C(1000000)) request->constraint->slow = true;
    if (ok) return true;
    request_fail(request, &error);
    return false;
}

/* An answer that has all its tokens is whole when nothing else may follow. */
static Finish last_finish(Engine *engine, Request *request, AnswerChoice *choice) {
    const bool whole = update_token_mask(engine, request, choice) && choice->mask_kind == MASK_END;
    return whole ? FINISH_STOP : FINISH_LENGTH;
}

/* Finds NaNs, which a fault in weights or kernels spreads to every logit and every hidden state. False: the request
 * failed. */
static bool check_numbers(Request *request, const float *values, int count) {
    if (!isnan(values[0]) || !isnan(values[count / 2]) || !isnan(values[count - 1])) return true;
    Error error = {0};
    fail(&error, ERROR_DEVICE, "the model's computation gave no numbers");
    request_fail(request, &error);
    return false;
}

/* A choice's next token; an id of −1: nothing may follow. False: that was its end, or the request failed. */
static bool take_token(Engine *engine, Request *request, AnswerChoice *choice, const TokenOut *token) {
    Finish finish = FINISH_NONE;
    if (token->id < 0 || (!request->sampling.ignore_eos && is_eos(engine, token->id))) {
        finish = FINISH_STOP;
    } else {
        request_append(request, choice, token);
        choice->mask_kind = MASK_UNKNOWN;
        engine->generated_tokens++;
        if (++choice->generated == request->max_tokens) finish = last_finish(engine, request, choice);
    }
    if (finish != FINISH_NONE) scheduler_end_choice(&engine->scheduler, request, choice, finish);
    return finish == FINISH_NONE;
}

/* Draws it of those that are allowed. */
static bool sample_token(Engine *engine, Request *request, AnswerChoice *choice, float *logits) {
    TokenOut token = {.id = -1};
    const int position = request->prompt_count + choice->generated;
    if (!check_numbers(request, logits, engine->vocab)) return false;
    if (choice->generated < request->sampling.min_tokens)
        for (int i = 0; i < engine->eos_count; i++) {
            logits[engine->eos[i]] = -INFINITY;
            engine->scratch.known.logits = NULL;
        }
    if (choice->mask_kind != MASK_END) (void)sampler_next(&choice->sampler, &engine->scratch, logits, position, &token);
    return take_token(engine, request, choice, &token);
}

/* Takes a token that the backend has sampled, for a request without a constraint. */
static bool take_sampled(Engine *engine, Request *request, AnswerChoice *choice, int32_t id) {
    const TokenOut token = {.id = id, .logprob = NAN};
    return take_token(engine, request, choice, &token);
}

/* A choice's next token from its logits. The token after a forced one may be forced, too: jump-ahead tokens are taken
 * at once, as they and their log-probabilities do not depend on logits, and the next step reads all of them. Long runs
 * are taken in several steps, as other answers wait meanwhile; the mask behind forced tokens is computed beside the
 * next step. False: the choice has ended, or the request failed. */
static bool next_token(Engine *engine, Request *request, AnswerChoice *choice, float *logits) {
    bool jump_ahead = false, forces = true;
    for (int i = 0; forces && i < JUMP_AHEAD_MAX; i++) {
        const bool over = choice->jump_ahead_at == choice->jump_ahead_count; /* a mask is wanted next */
        if (i > 0 && over && (request->constraint->slow || choice->jump_ahead_count > 0)) break;
        if (!update_token_mask(engine, request, choice)) return false;
        forces = token_mask_forces(choice);
        if (jump_ahead && !forces) break;
        if (jump_ahead) { /* nothing else is looked at */
            logits[choice->only] = 0;
            engine->scratch.known.logits = NULL;
        }
        if (!sample_token(engine, request, choice, logits)) return false;
        jump_ahead = forces;
    }
    return true;
}

/* The last choice to start takes over the prompt's sequence; earlier ones get a copy that shares its pages. If the
 * pages were taken by another request meanwhile, the choice computes its text again. */
static bool take_prompt(Engine *engine, Request *request, AnswerChoice *choice, Error *error) {
    speculation_begin(&engine->scheduler.speculation, request, choice, request->waiting == 0);
    if (!request->kv.tables) return sequence_begin(&engine->scheduler.sequences, request, choice, error);
    if (request->waiting == 0) {
        choice->kv = request->kv;
        request->kv = (KvSequence){0};
        return true;
    }
    if (!kv_sequence_open(engine->kv, &request->format, &choice->kv, error)) return false;
    kv_fork(engine->kv, &request->kv, &choice->kv);
    return true;
}

/* The first waiting choice samples its first token and runs, in a slot that was taken for it. */
static void start_choice(Engine *engine, Request *request) {
    AnswerChoice *choice = request->choices;
    while (choice->state != CHOICE_WAITING) choice++;
    choice->state = CHOICE_RUNNING;
    request->waiting--;
    float *logits = request->logits;
    if (request->waiting > 0) {
        logits = engine->working;
        memcpy(logits, request->logits, (size_t)engine->vocab * sizeof *logits);
    }
    sampler_prompt(&choice->sampler, request->prompt, request->prompt_count);
    const bool goes_on = request->first < 0 ? next_token(engine, request, choice, logits)
                                            : take_sampled(engine, request, choice, request->first);
    if (!goes_on) return;
    Error error = {0};
    if (!take_prompt(engine, request, choice, &error)) request_fail(request, &error);
}

/* Brings one request up to date: failures, cancels, choices to end and to start. May free it. */
static void settle(Engine *engine, Request *request) {
    Scheduler *s = &engine->scheduler;
    for (int i = 0; i < request->choice_count; i++)
        if (atomic_load(&request->choices[i].stop)) scheduler_end_choice(s, request, &request->choices[i], FINISH_STOP);
    bool ended = request->failed || atomic_load(&request->cancel);
    while (!ended && request->waiting > 0 && request->granted > 0 && !token_mask_is_late(request)) {
        request->granted--;
        start_choice(engine, request);
        ended = request->failed;
    }
    for (; request->granted > 0 && request->waiting == 0; request->granted--) scheduler_free_slot(s, request);
    if (ended && request == s->span) scheduler_end_span(s);
    if (ended) scheduler_end_all(s, request, request->failed ? FINISH_ERROR : FINISH_CANCELLED);
    bool running = false;
    for (int i = 0; i < request->choice_count; i++) running |= request->choices[i].state != CHOICE_ENDED;
    if (!running) scheduler_retire(s, request);
}

static void settle_all(Engine *engine) {
    for (Request *request = engine->scheduler.active.first, *next; request; request = next) {
        next = request->next;
        settle(engine, request);
    }
}

/* ---- the step ---- */

/* Publishes what the request has read to the prefix cache; may free the request. */
static void end_embedding(Engine *engine, Request *request) {
    if (!check_numbers(request, request->embedding, model_hidden(engine->model))) return;
    sequence_publish(&engine->scheduler.sequences, request);
    request_set_answering(request);
    scheduler_end_choice(&engine->scheduler, request, request->choices, FINISH_STOP);
    settle(engine, request);
}

/* The device's reductions of an output of the step, if there are any. */
static void know_sums(Engine *engine, const StepPlan *plan, int output) {
    SamplerScratch *s = &engine->scratch;
    const float *sums = runner_sums(engine->runner);
    s->known.logits = NULL;
    if (!sums) return;
    s->known.logits = engine->logits + (size_t)output * (size_t)engine->vocab;
    s->known.maxima = sums + (size_t)output * 2 * (size_t)s->blocks;
    s->known.sums = s->known.maxima + s->blocks;
    s->known.scale = plan->builder.scales[output];
}

/* Gives the final hidden states of those of a slice's first rows that have one to the speculation, if it reads them. */
static void read_states(Engine *engine, const StepSlice *slice, int rows) {
    Speculation *s = &engine->scheduler.speculation;
    const size_t hidden = (size_t)model_hidden(engine->model);
    const int without = slice->rows - slice->hidden_rows;
    if (rows <= without || slice->request->pooling || speculation_state_rows(s, 1, 0) == 0) return;
    speculation_read(s, slice->request, slice->choice, slice->position + without, rows - without,
        runner_hidden_rows(engine->runner) + (size_t)slice->hidden_row * hidden);
}

/* logits: those of its first output; sampled: instead of logits, the token behind its last output; −1: none. */
static void finish_prompt_slice(
    Engine *engine, Request *request, const StepPlan *plan, const StepSlice *slice, float *logits, int32_t sampled) {
    const int first = request->prefilled;
    sequence_spill(&engine->scheduler.sequences, request, NULL, slice->rows);
    kv_advance(engine->kv, &request->kv, slice->rows);
    request->prefilled += slice->rows;
    if (request->prefilled > atomic_load(&request->prompt_read))
        atomic_store(&request->prompt_read, request->prefilled);
    if (resume_points_have(&request->resume, request->prefilled))
        sequence_publish(&engine->scheduler.sequences, request);
    engine->prompt_tokens += (uint64_t)slice->rows;
    read_states(engine, slice, slice->rows);
    const bool last = request->prefilled == request->prompt_count;
    if (request->pooling) {
        const int hidden = model_hidden(engine->model);
        const float *states =
            slice->hidden_rows ? runner_hidden_rows(engine->runner) + (size_t)slice->hidden_row * (size_t)hidden : NULL;
        request_pool(request, request->prefilled - slice->hidden_rows, slice->hidden_rows, hidden, states);
        if (last) end_embedding(engine, request);
        return;
    }
    float *final = last && sampled < 0 ? logits + (size_t)(slice->outputs - 1) * (size_t)engine->vocab : NULL;
    if (last && request->choice_count > 1) memcpy(request->logits, final, (size_t)engine->vocab * sizeof *logits);
    if (request->echo) { /* row i has the logits of token i + 1; the first token of a prompt has none */
        TokenOut token = {.id = request->prompt[0], .logprob = NAN};
        if (request->prompt_written == 0) request_append_prompt(request, &token);
        for (int i = 0; i < slice->rows && first + i + 1 < request->prompt_count; i++) {
            if (first + i + 1 < request->prompt_written) continue; /* it is read again */
            sampler_logprobs(&engine->scratch, logits + (size_t)i * (size_t)engine->vocab,
                request->prompt[first + i + 1], request->top_max, &token);
            request_append_prompt(request, &token);
        }
    }
    if (!last || (final && !check_numbers(request, final, engine->vocab))) return;
    sequence_publish(&engine->scheduler.sequences, request);
    if (request->choice_count == 1) request->logits = final;
    know_sums(engine, plan, slice->output + slice->outputs - 1);
    request->first = sampled;
    request_set_answering(request);
    request->granted = 1;    /* the slot that read the prompt */
    settle(engine, request); /* while the step's logits last */
}

/* Samples the token behind output i of a slice of a choice. False: the choice has ended, or the request failed. */
static bool sample_output(Engine *engine, const StepPlan *plan, const StepSlice *slice, int i) {
    const int output = slice->output + i;
    if (plan->builder.step.sample_params)
        return take_sampled(engine, slice->request, slice->choice, runner_sampled(engine->runner)[output]);
    know_sums(engine, plan, output);
    float *logits = engine->logits + (size_t)output * (size_t)engine->vocab;
    return next_token(engine, slice->request, slice->choice, logits);
}

/* Whether draft token i equals the answer's token at its position, and the backend has sampled the token after it. */
static bool is_accepted(const Engine *engine, const StepPlan *plan, const StepSlice *slice, int i) {
    const Request *request = slice->request;
    const int place = slice->choice->kv.length - request->prompt_count;
    if (request_answer_id(request, slice->choice, place) != slice->choice->draft.tokens[i]) return false;
    return !plan->builder.step.sample_params || runner_sampled(engine->runner)[slice->output + i + 1] >= 0;
}

/* Rows up to the first draft token that differs from the sampled one become part of the sequence; later rows are
 * overwritten. A row whose next token is a known jump-ahead token is not sampled. */
static void finish_choice_slice(Engine *engine, const StepPlan *plan, const StepSlice *slice) {
    Request *request = slice->request;
    AnswerChoice *choice = slice->choice;
    Scheduler *s = &engine->scheduler;
    const int known = slice->rows - slice->drafts;
    sequence_spill(&s->sequences, request, choice, known);
    kv_advance(engine->kv, &choice->kv, known);
    if (slice->outputs == 0) {
        read_states(engine, slice, known);
        return;
    }
    int accepted = 0;
    bool goes_on = sample_output(engine, plan, slice, 0);
    for (; goes_on && accepted < slice->drafts && is_accepted(engine, plan, slice, accepted); accepted++) {
        sequence_spill(&s->sequences, request, choice, 1);
        kv_advance(engine->kv, &choice->kv, 1);
        if (sequence_tokens(request, choice) == choice->kv.length)
            goes_on = sample_output(engine, plan, slice, accepted + 1);
    }
    if (goes_on) read_states(engine, slice, known + accepted);
    speculation_note(&s->speculation, request, choice, slice->drafts, accepted);
}

static void finish_slice(Engine *engine, const StepPlan *plan, const StepSlice *slice) {
    Request *request = slice->request;
    const KvSequence *kv = sequence_of(request, slice->choice);
    if (request->failed || token_mask_is_late(request)) return; /* its rows are computed again */
    /* The sequence has ended since, or an earlier token must be sampled again. */
    if (!kv->tables || kv->length != slice->position) return;
    const bool by_backend = plan->builder.step.sample_params, sampled = by_backend && slice->outputs > 0;
    const int32_t id = sampled ? runner_sampled(engine->runner)[slice->output] : -1;
    if (sampled && id < 0) {
        request->by_host = true;
        return;
    }
    if (slice->choice) {
        finish_choice_slice(engine, plan, slice);
        return;
    }
    float *logits = by_backend ? NULL : engine->logits + (size_t)slice->output * (size_t)engine->vocab;
    finish_prompt_slice(engine, request, plan, slice, logits, id);
}

/* Prepares masks for the choices that sample after this step: running ones, and the first of each prompt that is
 * complete. */
static void look_ahead(Engine *engine, const StepPlan *plan) {
    for (int i = 0; i < plan->slice_count; i++) {
        const StepSlice *slice = &plan->slices[i];
        Request *request = slice->request;
        if (slice->choice && slice->outputs > 0) mask_workers_add(engine->lookahead, request, slice->choice);
        if (!slice->choice && request->prefilled + slice->rows == request->prompt_count)
            mask_workers_add(engine->lookahead, request, &request->choices[0]);
    }
    mask_workers_begin(engine->lookahead);
}

/* True if all requests with rows in the step are cancelled or stopped, or the engine closes. With streamed experts no
 * step is begun ahead of another, so the step is that of the first plan. */
static bool step_given_up(void *context) {
    Engine *engine = context;
    const StepPlan *plan = engine->scheduler.plans;
    mutex_lock(&engine->mutex);
    bool wanted = !engine->closing;
    mutex_unlock(&engine->mutex);
    bool any = false;
    for (int i = 0; wanted && !any && i < plan->slice_count; i++) {
        const StepSlice *slice = &plan->slices[i];
        any = !atomic_load(&slice->request->cancel) && !(slice->choice && atomic_load(&slice->choice->stop));
    }
    return !any;
}

static ExpertProviderStats expert_stats(const Engine *engine) {
    ExpertProvider *source = model_experts(engine->model);
    return source ? source->stats(source) : (ExpertProviderStats){0};
}

/* Adds the step's figures to each request once, however many of its choices have rows in the step. */
static void note_experts(Engine *engine, const StepPlan *plan) {
    const ExpertProviderStats after = expert_stats(engine);
    for (int i = 0; after.experts > 0 && i < plan->slice_count; i++) {
        int first = 0;
        while (plan->slices[first].request != plan->slices[i].request) first++;
        if (first == i) request_add_experts(plan->slices[i].request, &engine->experts, &after);
    }
}

/* How long a step may take: while nothing is known of the model's speed, longer than usual. */
static int64_t step_patience_ns(const Engine *engine, const StepPlan *plan) {
    enum { TIMES = 10 };
    const double row_s = engine->scheduler.prompt_row_s, least = engine->stall_ms * 1e-3,
                 expected = row_s > 0 ? row_s * plan->builder.step.rows : least;
    return (int64_t)(fmax(least, TIMES * expected) * 1e9);
}

static const StepSlice *largest_slice(const StepPlan *plan) {
    const StepSlice *largest = plan->slices;
    for (int i = 1; i < plan->slice_count; i++)
        if (plan->slices[i].rows > largest->rows) largest = &plan->slices[i];
    return largest;
}

static void begin_step(Engine *engine, StepPlan *plan) {
    if (engine->resources && engine->under_way == 0) resources_begin_step(engine->resources);
    engine->under_way++;
    engine->steps++;
    engine->experts = expert_stats(engine);
    for (int i = 0; i < plan->slice_count; i++)
        request_retain(plan->slices[i].request); /* it may end before the step */
    plan->begun_ns = clock_ns();
    if (!plan->lookahead) atomic_store(&engine->step_due_ns, plan->begun_ns + step_patience_ns(engine, plan));
    runner_begin(engine->runner, engine->kv, &plan->builder.step, &plan->begun);
}

/* Waits for the step. */
static bool end_step(Engine *engine, StepPlan *plan, Error *error) {
    const bool ok = runner_end(engine->runner, &plan->begun, &engine->logits, error);
    const int64_t now = clock_ns();
    engine->scratch.known.logits = NULL; /* the step has new logits */
    atomic_store(&engine->step_due_ns, engine->next ? now + step_patience_ns(engine, engine->next) : 0);
    if (!plan->lookahead) mask_workers_end(engine->lookahead, false);
    const int64_t start = plan->begun_ns > engine->ended_ns ? plan->begun_ns : engine->ended_ns;
    const double seconds = (double)(now - start) * 1e-9;
    engine->ended_ns = now;
    if (--engine->under_way == 0 && engine->resources) resources_end_step(engine->resources);
    engine->step_s += seconds;
    note_experts(engine, plan);
    if (ok) scheduler_note_step(&engine->scheduler, plan, seconds);
    return ok;
}

static void release_slices(StepPlan *plan) {
    for (int i = 0; i < plan->slice_count; i++) request_release(plan->slices[i].request);
    plan->slice_count = 0;
}

/* Discards the step that was begun ahead: waits for it and drops its results. */
static void drop_next(Engine *engine) {
    StepPlan *next = engine->next;
    Error ignored = {0};
    engine->next = NULL;
    if (!next) return;
    (void)end_step(engine, next, &ignored);
    release_slices(next);
}

static void fail_step(Engine *engine, const StepPlan *plan, const Error *error) {
    if (error->code == ERROR_CANCELLED) return; /* cancelled by the requests with rows in it */
    if (!engine->damaged) log_error("a step of %d rows failed: %s", plan->builder.step.rows, error->text);
    if (error->code ==
        ERROR_MEMORY) { /* device memory: the step can be computed without drafts, or without a request */
        if (plan->draft_rows > 0)
            speculation_pause(&engine->scheduler.speculation);
        else
            request_fail(largest_slice(plan)->request, error);
        return;
    }
    /* Experts may well be read the next time; a device that has failed has lost everything. */
    const bool was_lost = engine->lost;
    engine->lost = error->code == ERROR_DEVICE;
    engine->damaged = engine->lost || model_damaged(runner_model(engine->runner));
    mutex_lock(&engine->mutex); /* before `failed` is called, which may read the statistics */
    engine->stats.damaged = engine->damaged;
    engine->stats.lost = engine->lost;
    mutex_unlock(&engine->mutex);
    for (int i = 0; i < plan->slice_count; i++) request_fail(plan->slices[i].request, error);
    if (engine->lost && !was_lost && engine->failed) engine->failed(engine->failed_context, error);
}

/* A step, and where that is possible the beginning of the one after it, so that the device has something to do while
 * this one's tokens are handed out. */
static void run_step(Engine *engine) {
    Scheduler *s = &engine->scheduler;
    StepPlan *now = engine->next ? engine->next : s->plans, *next = &s->plans[now == s->plans];
    if (!engine->next) {
        scheduler_plan(s, now);
        if (now->slice_count == 0) {
            mask_workers_end(engine->lookahead, true);
            return;
        }
        look_ahead(engine, now);
        begin_step(engine, now);
    }
    engine->next = NULL;
    if (!(engine->resources && resources_others_wait(engine->resources)) && scheduler_plan_lookahead(s, now, next)) {
        begin_step(engine, next);
        engine->next = next;
    }
    Error error = {0};
    if (end_step(engine, now, &error)) {
        for (int i = 0; i < now->slice_count; i++) finish_slice(engine, now, &now->slices[i]);
    } else {
        fail_step(engine, now, &error);
        drop_next(engine);
    }
    release_slices(now);
}

/* Works for a while on the image or the audio for which the oldest prompt waits. */
static void encode_media(Engine *engine) {
    MediaItem *item = NULL;
    Request *request = engine->media ? scheduler_next_media(&engine->scheduler, &item) : NULL;
    if (!request) return;
    Error error = {0};
    const bool turn = engine->resources && engine->under_way == 0;
    if (turn) resources_begin_step(engine->resources);
    const int64_t start = clock_ns();
    if (!media_cache_work(engine->media, item, scheduler_media_s(&engine->scheduler), &error)) {
        log_error("an image or audio could not be encoded: %s", error.text);
        request_fail(request, &error);
    }
    engine->media_s += (double)(clock_ns() - start) * 1e-9;
    if (turn) resources_end_step(engine->resources);
}

/* Computes slices of the scheduler's span for about so long; *done: it is complete. */
static bool continue_span(Engine *engine, double seconds, bool *done, Error *error) {
    const Scheduler *s = &engine->scheduler;
    const int64_t end_ns = clock_ns() + (int64_t)(seconds * 1e9);
    *done = false;
    if (!engine->span_begun) {
        memset(engine->span_row_s, 0, sizeof engine->span_row_s);
        engine->span_begun = true;
        if (!sliced_step_begin(engine->sliced, engine->kv, &s->span_plan.builder.step, error)) return false;
    }
    for (int64_t now; !*done && (now = clock_ns()) < end_ns;) {
        double *row_s = &engine->span_row_s[sliced_step_next(engine->sliced)];
        int rows = media_rows_within((double)(end_ns - now) * 1e-9, *row_s);
        if (!sliced_step_continue(engine->sliced, &rows, done, error)) return false;
        if (*row_s == 0 || rows >= MEDIA_ROWS_LEAST) *row_s = (double)(clock_ns() - now) * 1e-9 / rows;
    }
    return true;
}

/* Prefills a span that no step divides, beside running choices. False: there is none. */
static bool prefill_span(Engine *engine) {
    Scheduler *s = &engine->scheduler;
    Error error = {0};
    bool done;
    if (!engine->sliced || engine->under_way > 0) return false;
    if (!s->span) {
        engine->span_begun = false;
        scheduler_plan_span(s);
    }
    Request *request = s->span;
    if (!request) return false;
    const int64_t start = clock_ns();
    if (engine->resources) resources_begin_step(engine->resources);
    const bool ok = continue_span(engine, scheduler_media_s(s), &done, &error);
    if (engine->resources) resources_end_step(engine->resources);
    engine->step_s += (double)(clock_ns() - start) * 1e-9;
    if (!ok) {
        log_error("a span of %d rows failed: %s", s->span_plan.builder.step.rows, error.text);
        request_fail(request, &error);
    }
    if (!ok || done) {
        const StepSlice slice = s->span_plan.slices[0];
        request_retain(request);
        scheduler_end_span(s);
        if (ok) finish_slice(engine, &s->span_plan, &slice);
        request_release(request);
        settle_all(engine);
    }
    return true;
}

/* ---- the thread ---- */

/* A walk through the prefix cache: now and then, and before the engine goes to sleep. */
static void count_idle(Engine *engine) {
    enum { AGAIN_MS = 500 };
    const Scheduler *s = &engine->scheduler;
    const int64_t now = clock_ns();
    if (!s->sequences.prefix || (s->active.first && now - engine->idle_counted_ns < AGAIN_MS * INT64_C(1000000)))
        return;
    engine->idle_counted_ns = now;
    engine->kv_idle_bytes = prefix_idle_bytes(s->sequences.prefix);
}

static void publish_stats(Engine *engine) {
    const Scheduler *s = &engine->scheduler;
    const PrefixStats prefix = s->sequences.prefix ? prefix_stats(s->sequences.prefix) : (PrefixStats){0};
    const SpillStats disk = disk_tier_stats(s->sequences.disk);
    KvUse use = {0};
    kv_use(engine->kv, &use);
    engine->stats = (EngineStats){
        .slots = s->slots,
        .running = atomic_load(&s->used),
        .kv_idle_bytes = engine->kv_idle_bytes,
        .kv_blocks = engine->kv_blocks,
        .kv_bytes = kv_bytes_used(engine->kv),
        .kv_bytes_total = kv_bytes_total(engine->kv),
        .media_bytes = engine->media ? media_cache_bytes(engine->media) : 0,
        .media_encoder_bytes = engine->media ? media_cache_encoder_bytes(engine->media) : 0,
        .prefix_bytes = prefix.bytes,
        .prefix_state_bytes = prefix.state_bytes,
        .steps = engine->steps,
        .step_s = engine->step_s,
        .media_s = engine->media_s,
        .damaged = engine->damaged,
        .lost = engine->lost,
        .prompt_tokens = engine->prompt_tokens,
        .generated_tokens = engine->generated_tokens,
        .prefix_lookups = s->prompts_looked_up,
        .prefix_hits = s->prompts_found,
        .prefix_tokens = s->tokens_found,
        .prefix_evictions = prefix.evictions,
        .preempted = s->preempt_count,
        .resumed = s->resume_count,
        .spilled_pages = disk.written,
        .spilled_bytes = disk.written_bytes,
        .restored_pages = disk.read,
    };
    memcpy(engine->stats.drafts, s->speculation.stats, sizeof engine->stats.drafts);
    memcpy(engine->stats.kv_form_bytes, use.bytes, sizeof use.bytes);
    memcpy(engine->stats.kv_form_pages, use.pages, sizeof use.pages);
    engine->stats.experts = expert_stats(engine);
    const size_t here = (size_t)((double)engine->stats.kv_bytes * engine->kv_host);
    const size_t media = engine->media_host_bytes ? engine->stats.media_bytes + engine->stats.media_encoder_bytes : 0;
    atomic_store(&engine->account.used, here + engine->stats.experts.bytes + media);
}

static void cancel_all(Engine *engine) {
    Scheduler *s = &engine->scheduler;
    mutex_lock(&engine->mutex);
    for (Request *request = s->waiting.first; request; request = request->next) request_cancel(request);
    scheduler_admit(s); /* drops them */
    mutex_unlock(&engine->mutex);
    for (Request *request = s->active.first; request; request = request->next) request_cancel(request);
    settle_all(engine);
}

/* Readers may look. */
static void end_round(Engine *engine) {
    mutex_lock(&engine->mutex);
    engine->rounds++;
    mutex_unlock(&engine->mutex);
    condition_broadcast(&engine->round_ended);
    if (engine->notify) engine->notify(engine->notify_context);
}

static void *engine_run(void *argument) {
    Engine *engine = argument;
    Scheduler *s = &engine->scheduler;
    for (;;) {
        count_idle(engine);
        mutex_lock(&engine->mutex);
        publish_stats(engine);
        while (!engine->closing && !s->waiting.first && !s->active.first && !engine->next)
            condition_wait(&engine->wake, &engine->mutex);
        const bool closing = engine->closing;
        if (!closing) scheduler_admit(s);
        publish_stats(engine); /* with the admitted requests, whose first step may take seconds */
        mutex_unlock(&engine->mutex);
        if (closing) break;
        settle_all(engine);
        if (!prefill_span(engine)) encode_media(engine);
        run_step(engine);
        settle_all(engine);
        end_round(engine);
    }
    drop_next(engine);
    cancel_all(engine);
    end_round(engine);
    return NULL;
}

/* ---- opening ---- */

/* Bytes of memory that are neither taken nor reserved. */
static size_t free_memory(const Engine *engine) {
    return engine->resources ? resources_available(engine->resources) : memory_available();
}

static size_t default_pool(const Engine *engine, int slots, size_t most) {
    const Runner *runner = engine->runner;
    const size_t one = kv_bytes_for(runner_kv_plan(runner), &engine->kv_format, model_context(runner_model(runner)));
    const size_t snapshots = SNAPSHOTS_DEFAULT * kv_snapshot_bytes(runner_kv_plan(runner));
    size_t bytes;
    return size_mul(one, (size_t)slots, &bytes) && bytes < most && snapshots < most - bytes ? bytes + snapshots : most;
}

/* Bytes that are left for all else; the memory of a device is its own. */
static size_t free_beside_media(const Engine *engine) {
    const size_t all = free_memory(engine), media = engine->media_host_bytes;
    return all > media ? all - media : 0;
}

/* Settles how large images may be. */
static bool plan_media(Engine *engine, const EngineOptions *options, Error *error) {
    const uint64_t budget = options->model.experts.memory_budget, all = free_memory(engine);
    const bool device = backend_on_device(options->backend.device);
    const uint64_t most = device ? 0 : (budget && budget < all ? budget : all) / MEDIA_MEMORY_SHARE;
    MediaMemory *memory = &engine->media_memory;
    if (!media_memory(engine->model, model_context(engine->model), most, device, memory, error)) return false;
    if (!device) engine->media_host_bytes = (size_t)(memory->encoder_bytes + memory->cache_bytes);
    return true;
}

/* What computes the rows of images and audio; rows are memory of the first layer's backend. */
static bool open_media(Engine *engine, const RunnerOptions *runner, Error *error) {
    const VisionSpec *vision = model_spec(engine->model)->vision;
    if (!vision && !model_spec(engine->model)->audio) return true;
    const int layers = vision ? vision->deepstack_count : 0;
    if (runner->backend.tensor_parallel > 1 || (runner->split > 0 && runner->split < layers)) {
        log_warn("images and audio are not supported with these devices, the model reads text alone");
        return true;
    }
    BackendOptions own = runner->backend;
    own.wrap = NULL;
    engine->media = media_cache_open(engine->model, runner_backend(engine->runner), &own, &engine->media_memory, error);
    return engine->media;
}

/* A step has room for any text of an encoder, and its pooling may read any row. */
static void take_whole_texts(const Model *model, EngineOptions *options, RunnerOptions *runner) {
    const int context = min_int(model_context(model), RUNNER_ROWS_MAX / 2);
    runner->backend.rows_max += max_int(context - options->prefill_size, 0);
    options->prefill_size = max_int(context, options->prefill_size);
    if (model_classifies(model)) options->pooling = POOLING_FIRST;
    if (!options->pooling) options->pooling = POOLING_MEAN;
    runner->hidden_rows_max = runner->backend.rows_max;
    options->speculation = (SpeculationOptions){0};
}

/* Threads for the model and what drafts for it: two sets would wait for each other's cores. */
static bool share_threads(Engine *engine, EngineOptions *options, Error *error) {
    if (options->resources || !(options->model.mtp || options->speculation.draft_directory)) return true;
    options->resources = engine->own_resources = resources_open(options->backend.threads, error);
    return engine->own_resources;
}

static bool open_parts(Engine *engine, const EngineOptions *asked, Error *error) {
    EngineOptions own = *asked, *options = &own;
    if ((options->fit && !options->fit(options, error)) || !check_engine_options(options, error) ||
        !share_threads(engine, options, error))
        return false;
    engine->notify = options->notify;
    engine->notify_context = options->notify_context;
    engine->failed = options->failed;
    engine->failed_context = options->failed_context;
    RunnerOptions runner = engine_runner_options(options);
    engine->resources = options->resources;
    own.model.device_layers = options->gpu_layers > 0 ? options->gpu_layers : 0;
    engine->model = model_open(options->directory, &options->model, error);
    if (!engine->model) return false;
    if (model_spec(engine->model)->encoder) take_whole_texts(engine->model, &own, &runner);
    engine->pooling = options->pooling;
    placement_runner(options, engine->model, &runner);
    engine->runner = runner_open(engine->model, &runner, error);
    if (!engine->runner) return false;
    placement_leave(options, engine->model);
    model_watch_experts(engine->model, step_given_up, engine);
    engine->vocab = model_vocab(engine->model);
    engine->eos_count = model_eos(engine->model, engine->eos);
    uint64_t left = 0;
    if (!plan_media(engine, options, error) ||
        !expert_room(engine->runner, options, free_beside_media(engine), &left, error))
        return false;
    size_t most = options->kv_bytes;
    if (!asked->kv_bytes && !placement_kv_most(options, engine->runner, free_beside_media(engine), &most, error))
        return false;
    if (left && !options->kv_bytes) {
        const uint64_t share = expert_cache_share(engine->runner, left);
        most = share < most ? share : most;
    }
    if (!kv_choose(options, engine->runner, most, &engine->kv_format, error)) return false;
    own.kv_format = engine->kv_format;
    const size_t pool = options->kv_bytes ? most : default_pool(engine, options->slots, most);
    size_t experts = 0;
    const uint64_t held = expert_cache_held(engine->runner, pool);
    if (left && !expert_hold(engine->model, left - held, &experts, error)) return false;
    engine->kv = kv_open(runner_kv_plan(engine->runner), pool, error);
    engine->kv_host = placement_kv_host(options, engine->runner, pool);
    engine->account.promised = (size_t)((double)pool * engine->kv_host) + experts + engine->media_host_bytes;
    if (engine->resources) resources_enter(engine->resources, &engine->account);
    if (!engine->kv || !open_media(engine, &runner, error) ||
        !scheduler_open(&engine->scheduler, engine->runner, engine->kv, engine->media, options, error))
        return false;
    const VisionSpec *vision = engine->media ? model_spec(engine->model)->vision : NULL;
    if (vision && vision->bidirectional && sliced_step_possible(engine->runner) &&
        ((engine->sliced = sliced_step_open(engine->runner, error)) == NULL ||
            !scheduler_slice_spans(&engine->scheduler, error)))
        return false;
    if (engine->scheduler.context < model_context(engine->model))
        log_warn("the KV cache limits a sequence to %d of %d tokens", engine->scheduler.context,
            model_context(engine->model));
    if (!sampler_scratch_open(&engine->scratch, engine->vocab, error)) return false;
    const EndTokens ends = {engine->eos, engine->eos_count};
    engine->lookahead = mask_workers_open(options->slots, engine->vocab, ends, error);
    if (!engine->lookahead) return false;
    engine->working = malloc((size_t)engine->vocab * sizeof *engine->working);
    if (!engine->working) return fail(error, ERROR_MEMORY, "no memory for a row of logits");
    const int context = engine->scheduler.context;
    const size_t whole = kv_bytes_for(runner_kv_plan(engine->runner), &engine->kv_format, context);
    engine->kv_blocks = (uint64_t)((double)pool / (double)whole * context / KV_PAGE_TOKENS);
    engine->stall_ms = options->stall_ms ? options->stall_ms : STALL_MS;
    publish_stats(engine);
    engine->thread_runs = thread_start(&engine->thread, engine_run, engine, "apus-engine", error);
    return engine->thread_runs;
}

Engine *engine_open(const EngineOptions *options, Error *error) {
    Engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        fail(error, ERROR_MEMORY, "no memory for an engine");
        return NULL;
    }
    mutex_init(&engine->mutex);
    condition_init(&engine->wake);
    condition_init(&engine->round_ended);
    if (open_parts(engine, options, error)) return engine;
    engine_close(engine);
    placement_explain(options, error);
    return NULL;
}

void engine_close(Engine *engine) {
    if (!engine) return;
    mutex_lock(&engine->mutex);
    engine->closing = true;
    condition_signal(&engine->wake);
    mutex_unlock(&engine->mutex);
    if (engine->thread_runs) thread_join(engine->thread);
    scheduler_close(&engine->scheduler);
    sliced_step_close(engine->sliced);
    mask_workers_close(engine->lookahead);
    sampler_scratch_close(&engine->scratch);
    free(engine->working);
    if (engine->resources) resources_leave(engine->resources, &engine->account);
    media_cache_close(engine->media);
    kv_close(engine->kv);
    runner_close(engine->runner);
    model_close(engine->model);
    resources_close(engine->own_resources);
    condition_destroy(&engine->wake);
    condition_destroy(&engine->round_ended);
    mutex_destroy(&engine->mutex);
    free(engine);
}

const Model *engine_model(const Engine *engine) { return engine->model; }

const KvFormat *engine_kv_format(const Engine *engine) { return &engine->kv_format; }

DType engine_kv_dtype(const Engine *engine) {
    const KvPlan *plan = runner_kv_plan(engine->runner);
    for (int i = 0; i < plan->entry_count; i++)
        if (!plan->group[plan->entries[i].group].recurrent) return plan->entries[i].layout.dtype;
    return DTYPE_F16;
}

bool engine_kv_biased(const Engine *engine) {
    const KvPlan *plan = runner_kv_plan(engine->runner);
    bool biased = false;
    for (int i = 0; i < plan->entry_count; i++) biased = biased || plan->entries[i].k_bias;
    return biased;
}

bool engine_has_assistant(const Engine *engine) { return engine->scheduler.speculation.assistant; }
bool engine_looks_up(const Engine *engine) { return engine->scheduler.speculation.options.lookup; }

Pooling engine_pooling(const Engine *engine) { return engine->pooling; }
const VisionSpec *engine_vision(const Engine *engine) {
    return engine->media ? media_cache_vision(engine->media) : NULL;
}
MediaMemory engine_media_memory(const Engine *engine) { return engine->media_memory; }
const AudioSpec *engine_audio(const Engine *engine) { return engine->media ? media_cache_audio(engine->media) : NULL; }

const char *engine_backend(const Engine *engine) { return runner_upper(engine->runner)->ops->name; }

EngineStats engine_stats(Engine *engine) {
    mutex_lock(&engine->mutex);
    EngineStats stats = engine->stats;
    stats.waiting = engine->scheduler.waiting.count;
    stats.full = scheduler_full(&engine->scheduler);
    mutex_unlock(&engine->mutex);
    const int64_t due = atomic_load(&engine->step_due_ns);
    stats.stalled = due && clock_ns() > due;
    return stats;
}

uint64_t engine_wait(Engine *engine, uint64_t seen, int timeout_ms) {
    const int64_t deadline_ns = clock_ns() + (int64_t)timeout_ms * 1000000;
    mutex_lock(&engine->mutex);
    while (engine->rounds == seen) {
        const int64_t left_ns = deadline_ns - clock_ns();
        if (left_ns <= 0) break;
        condition_wait_ms(&engine->round_ended, &engine->mutex, (left_ns + 999999) / 1000000);
    }
    const uint64_t rounds = engine->rounds;
    mutex_unlock(&engine->mutex);
    return rounds;
}

/* ---- submitting ---- */

Request *engine_submit(Engine *engine, const RequestOptions *asked, Error *error) {
    Scheduler *s = &engine->scheduler;
    const Admission admission = {.model = engine->model,
        .scheduler = s,
        .media = engine->media,
        .kv_format = &engine->kv_format,
        .pooling = engine->pooling,
        .span_rows_max = runner_span_rows_max(engine->runner)};
    Request *request = admission_take(&admission, asked, error);
    if (!request) return NULL;
    mutex_lock(&engine->mutex);
    const bool full = scheduler_full(s), closing = engine->closing;
    if (!full && !closing) {
        request_retain(request);
        scheduler_queue(s, request);
        condition_signal(&engine->wake);
    }
    const int waiting = s->waiting.count;
    mutex_unlock(&engine->mutex);
    if (!full && !closing) return request;
    if (closing)
        fail(error, ERROR_CANCELLED, "the engine is closing");
    else
        fail(error, ERROR_BUSY, "%d requests wait already, the queue holds %d", waiting, s->queue_max);
    request_release(request);
    return NULL;
}
