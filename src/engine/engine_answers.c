/* Answers: what becomes of logits, and the beginning and end of choices and requests. */
#include "engine/engine_internal.h"

#include <math.h>

#include "base/clock.h"

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

bool engine_check_numbers(Request *request, const float *values, int count) {
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
    if (!engine_check_numbers(request, logits, engine->vocab)) return false;
    if (choice->generated < request->sampling.min_tokens)
        for (int i = 0; i < engine->eos_count; i++) {
            logits[engine->eos[i]] = -INFINITY;
            engine->scratch.known.logits = NULL;
        }
    if (choice->mask_kind != MASK_END) (void)sampler_next(&choice->sampler, &engine->scratch, logits, position, &token);
    return take_token(engine, request, choice, &token);
}

bool engine_take_sampled(Engine *engine, Request *request, AnswerChoice *choice, int32_t id) {
    const TokenOut token = {.id = id, .logprob = NAN};
    return take_token(engine, request, choice, &token);
}

/* A choice's next token from its logits. The token after a forced one may be forced, too: jump-ahead tokens are taken
 * at once, as they and their log-probabilities do not depend on logits, and the next step reads all of them. Long runs
 * are taken in several steps, as other answers wait meanwhile; the mask behind forced tokens is computed beside the
 * next step. False: the choice has ended, or the request failed. */
bool engine_next_token(Engine *engine, Request *request, AnswerChoice *choice, float *logits) {
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
    const bool goes_on = request->first < 0 ? engine_next_token(engine, request, choice, logits)
                                            : engine_take_sampled(engine, request, choice, request->first);
    if (!goes_on) return;
    Error error = {0};
    if (!take_prompt(engine, request, choice, &error)) request_fail(request, &error);
}

void engine_settle(Engine *engine, Request *request) {
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

void engine_settle_all(Engine *engine) {
    for (Request *request = engine->scheduler.active.first, *next; request; request = next) {
        next = request->next;
        engine_settle(engine, request);
    }
}
