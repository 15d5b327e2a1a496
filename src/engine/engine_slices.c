/* What is computed in slices between steps: images and audio that are encoded, spans that no step divides. */
#include "engine/engine_internal.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"

void engine_encode_media(Engine *engine) {
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
    engine->scheduler.media_spent_s = (double)(clock_ns() - start) * 1e-9;
    engine->media_s += engine->scheduler.media_spent_s;
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

bool engine_prefill_span(Engine *engine) {
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
    s->media_spent_s = (double)(clock_ns() - start) * 1e-9;
    engine->step_s += s->media_spent_s;
    if (!ok) {
        log_error("a span of %d rows failed: %s", s->span_plan.builder.step.rows, error.text);
        request_fail(request, &error);
    }
    if (!ok || done) {
        const StepSlice slice = s->span_plan.slices[0];
        request_retain(request);
        scheduler_end_span(s);
        if (ok) engine_finish_slice(engine, &s->span_plan, &slice);
        request_release(request);
        engine_settle_all(engine);
    }
    return true;
}
