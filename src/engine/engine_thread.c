/* The engine thread: admit, compute, hand out tokens; and requests that come to it. */
#include "engine/engine_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/admission.h"

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

void engine_publish_stats(Engine *engine) {
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
    engine->stats.experts = engine_expert_stats(engine);
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
    engine_settle_all(engine);
}

/* Readers may look. */
static void end_round(Engine *engine) {
    mutex_lock(&engine->mutex);
    engine->rounds++;
    mutex_unlock(&engine->mutex);
    condition_broadcast(&engine->round_ended);
    if (engine->notify) engine->notify(engine->notify_context);
}

void *engine_run(void *argument) {
    Engine *engine = argument;
    Scheduler *s = &engine->scheduler;
    for (;;) {
        count_idle(engine);
        mutex_lock(&engine->mutex);
        engine_publish_stats(engine);
        while (!engine->closing && !s->waiting.first && !s->active.first && !engine->next)
            condition_wait(&engine->wake, &engine->mutex);
        const bool closing = engine->closing;
        if (!closing) scheduler_admit(s);
        engine_publish_stats(engine); /* with the admitted requests, whose first step may take seconds */
        mutex_unlock(&engine->mutex);
        if (closing) break;
        engine_settle_all(engine);
        s->media_spent_s = 0;
        if (!engine_prefill_span(engine)) engine_encode_media(engine);
        engine_run_step(engine);
        engine_settle_all(engine);
        end_round(engine);
    }
    engine_drop_next(engine);
    cancel_all(engine);
    end_round(engine);
    return NULL;
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
