/* What a step computed becomes part of sequences, prompts and answers. */
#include "engine/engine_internal.h"

#include <math.h>

/* Publishes what the request has read to the prefix cache; may free the request. */
static void end_embedding(Engine *engine, Request *request) {
    if (!engine_check_numbers(request, request->embedding, model_hidden(engine->model))) return;
    sequence_publish(&engine->scheduler.sequences, request);
    request_set_answering(request);
    scheduler_end_choice(&engine->scheduler, request, request->choices, FINISH_STOP);
    engine_settle(engine, request);
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
    const float *states = runner_hidden_rows(engine->runner);
    if (!states) return; /* the device failed: so will the next step */
    speculation_read(s, slice->request, slice->choice, slice->position + without, rows - without,
        states + (size_t)slice->hidden_row * hidden);
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
    if (!last || (final && !engine_check_numbers(request, final, engine->vocab))) return;
    sequence_publish(&engine->scheduler.sequences, request);
    if (request->choice_count == 1) request->logits = final;
    know_sums(engine, plan, slice->output + slice->outputs - 1);
    request->first = sampled;
    request_set_answering(request);
    request->granted = 1;           /* the slot that read the prompt */
    engine_settle(engine, request); /* while the step's logits last */
}

/* Samples the token behind output i of a slice of a choice. False: the choice has ended, or the request failed. */
static bool sample_output(Engine *engine, const StepPlan *plan, const StepSlice *slice, int i) {
    const int output = slice->output + i;
    if (plan->builder.step.sample_params)
        return engine_take_sampled(engine, slice->request, slice->choice, runner_sampled(engine->runner)[output]);
    know_sums(engine, plan, output);
    float *logits = engine->logits + (size_t)output * (size_t)engine->vocab;
    return engine_next_token(engine, slice->request, slice->choice, logits);
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

void engine_finish_slice(Engine *engine, const StepPlan *plan, const StepSlice *slice) {
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
