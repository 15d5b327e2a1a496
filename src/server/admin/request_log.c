#include "server/admin/request_log.h"

#include <math.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/admin/metrics.h"
#include "server/routes.h"

void request_log_note(Exchange *x) {
    const Generation *g = &x->generation;
    RequestRecord *r = &x->record;
    r->finish = g->choice_count > 0 ? metrics_finish_name(g->choices[0].finish) : NULL;
    r->prompt_tokens = g->prompt_tokens;
    r->cached_tokens = generation_cached_tokens(g);
    r->answer_tokens = generation_answer_tokens(g);
    for (int i = 0; i < g->request_count; i++) { /* they are computed beside each other */
        const RequestStats stats = request_stats(g->requests[i]);
        r->queued_s = fmax(r->queued_s, stats.queued_s);
        r->prefill_s = fmax(r->prefill_s, stats.prefill_s);
        r->decode_s = fmax(r->decode_s, stats.decode_s);
    }
}

/* nginx's status for clients that went before they were answered. */
enum { CLIENT_CLOSED = 499 };

void request_log_write(const Exchange *x) {
    const RequestRecord *r = &x->record;
    const bool probe = x->route && x->route->probe, made = r->prompt_tokens > 0;
    const char *method = x->request->method, *path = x->request->path;
    const LogField fields[] = {
        {"id", x->request_id, 0},
        {x->client[0] ? "client" : NULL, x->client, 0},
        {method ? "method" : NULL, method ? method : "", 0},
        {path ? "path" : NULL, path ? path : "", 0},
        {"status", NULL, r->status ? r->status : CLIENT_CLOSED},
        {r->code ? "code" : NULL, r->code ? r->code : "", 0},
        {r->model[0] ? "model" : NULL, r->model, 0},
        {x->response_options.stream ? "stream" : NULL, NULL, 1},
        {r->finish ? "finish" : NULL, r->finish ? r->finish : "", 0},
        {made ? "prompt_tokens" : NULL, NULL, (double)r->prompt_tokens},
        {made ? "cached_tokens" : NULL, NULL, (double)r->cached_tokens},
        {made ? "completion_tokens" : NULL, NULL, (double)r->answer_tokens},
        {made ? "queue_ms" : NULL, NULL, r->queued_s * 1e3},
        {made ? "prefill_ms" : NULL, NULL, r->prefill_s * 1e3},
        {made ? "decode_ms" : NULL, NULL, r->decode_s * 1e3},
        {"ms", NULL, (double)(clock_ns() - x->started_ns) * 1e-6},
    };
    log_fields(probe || !x->server->options.log_requests ? LOG_DEBUG : LOG_INFO, "request", fields, COUNT_OF(fields));
}
