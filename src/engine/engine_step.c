/* A step: masks and experts beside it, the one that is begun ahead, its time, its failure. */
#include "engine/engine_internal.h"

#include <math.h>

#include "base/clock.h"
#include "base/log.h"

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

/* With streamed experts no step is begun ahead of another, so the step is that of the first plan. */
bool engine_step_given_up(void *context) {
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

ExpertProviderStats engine_expert_stats(const Engine *engine) {
    ExpertProvider *source = model_experts(engine->model);
    return source ? source->stats(source) : (ExpertProviderStats){0};
}

/* Adds the step's figures to each request once, however many of its choices have rows in the step. */
static void note_experts(Engine *engine, const StepPlan *plan) {
    const ExpertProviderStats after = engine_expert_stats(engine);
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
    engine->experts = engine_expert_stats(engine);
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
    const double seconds = (double)(now - start) * 1e-9, idle_s = (double)(start - engine->ended_ns) * 1e-9;
    engine->ended_ns = now;
    if (--engine->under_way == 0 && engine->resources) resources_end_step(engine->resources);
    engine->step_s += seconds;
    note_experts(engine, plan);
    if (ok) scheduler_note_step(&engine->scheduler, plan, seconds, idle_s);
    return ok;
}

static void release_slices(StepPlan *plan) {
    for (int i = 0; i < plan->slice_count; i++) request_release(plan->slices[i].request);
    plan->slice_count = 0;
}

void engine_drop_next(Engine *engine) {
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

void engine_run_step(Engine *engine) {
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
        for (int i = 0; i < now->slice_count; i++) engine_finish_slice(engine, now, &now->slices[i]);
    } else {
        fail_step(engine, now, &error);
        engine_drop_next(engine);
    }
    release_slices(now);
}
