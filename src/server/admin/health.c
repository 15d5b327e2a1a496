#include "server/admin/health.h"

#include <math.h>
#include <string.h>

#include "base/process.h"
#include "server/admin/metrics.h"
#include "server/http/response.h"

/* The share of a perfect overlap of reading and computing, which would take the longer of the two. */
static double percent_of_limit(const EngineStats *stats) {
    const double computing = stats->step_s - stats->experts.stall_s, reading = stats->experts.read_s;
    const double least = computing > reading ? computing : reading;
    return stats->step_s > 0 ? fmin(100, 100 * least / stats->step_s) : 0;
}

static void write_expert_health(const EngineStats *stats, Buffer *out) {
    const ExpertProviderStats *e = &stats->experts;
    const double wanted = (double)e->hits + (double)e->misses;
    buffer_printf(out,
        ":{\"experts\":%d,\"slots\":%d,\"io\":\"%s\",\"hits\":%llu,\"misses\":%llu,\"hit_rate\":%.4f,"
        "\"read_bytes\":%llu,\"read_gb_per_s\":%.3f,\"stall_s\":%.3f,\"step_s\":%.3f,\"percent_of_limit\":%.1f}",
        e->experts, e->slots, e->io, (unsigned long long)e->hits, (unsigned long long)e->misses,
        wanted > 0 ? (double)e->hits / wanted : 0, (unsigned long long)e->read_bytes,
        e->read_s > 0 ? (double)e->read_bytes * 1e-9 / e->read_s : 0, e->stall_s, stats->step_s,
        percent_of_limit(stats));
}

typedef struct Health {
    EngineStats all; /* sums over all models */
    bool damaged, stalled;
    bool vision, audio;     /* a model takes images, takes audio */
    Buffer models, experts; /* experts: models whose experts are streamed */
} Health;

static void look_at_models(Models *models, Health *h) {
    for (int i = 0; i < MODELS_MAX; i++) {
        ModelStatus status;
        models_mend(models, i); /* a damaged server may be asked for nothing else */
        if (!models_status(models, i, &status)) continue;
        const EngineStats *stats = &status.stats;
        h->damaged |= status.damaged;
        h->stalled |= stats->stalled;
        h->vision |= status.takes_images;
        h->audio |= status.takes_audio;
        h->all.running += stats->running;
        h->all.waiting += stats->waiting;
        h->all.kv_bytes += stats->kv_bytes;
        h->all.kv_bytes_total += stats->kv_bytes_total;
        h->all.prefix_bytes += stats->prefix_bytes;
        buffer_text(&h->models, h->models.size ? "," : "");
        json_write_string(&h->models, slice_of(status.name));
        if (stats->experts.experts == 0) continue;
        buffer_text(&h->experts, h->experts.size ? "," : ",\"experts\":{");
        json_write_string(&h->experts, slice_of(status.name));
        write_expert_health(stats, &h->experts);
    }
    if (h->experts.size) buffer_byte(&h->experts, '}');
}

/* As SwiftLM's server tells them, megabytes included. */
static void write_capabilities(const Server *server, const Health *h, Buffer *out) {
    const ProcessUse use = process_use();
    const MetricsTotals totals = metrics_totals(server->metrics);
    const double megabyte = 1 << 20;
    buffer_text(out, ",\"model\":");
    ModelStatus first;
    if (models_first(server->models, &first))
        json_write_string(out, slice_of(first.name));
    else
        buffer_text(out, "null");
    buffer_text(out, ",\"models\":[");
    buffer_slice(out, buffer_view(&h->models));
    buffer_printf(out,
        "],\"vision\":%s,\"audio\":%s,\"history\":%s,\"lan\":%s,\"memory\":{\"active_mb\":%.0f,\"peak_mb\":%.0f,"
        "\"cache_mb\":%."
        "0f,"
        "\"total_system_mb\":%.0f},\"stats\":{\"requests_total\":%llu,\"requests_active\":%d,\"tokens_generated\":%llu,"
        "\"avg_tokens_per_sec\":%.2f}",
        h->vision ? "true" : "false", h->audio ? "true" : "false", server->history ? "true" : "false",
        server->devices ? "true" : "false", (double)use.resident_bytes / megabyte, (double)use.peak_bytes / megabyte,
        (double)h->all.prefix_bytes / megabyte, (double)process_memory() / megabyte,
        (unsigned long long)totals.requests, __atomic_load_n(&server->answering, __ATOMIC_RELAXED),
        (unsigned long long)totals.tokens, totals.decode_s > 0 ? (double)totals.tokens / totals.decode_s : 0);
    buffer_slice(out, buffer_view(&h->experts));
}

static void write_reason(Server *server, Buffer *out) {
    char reason[REASON_MAX];
    mutex_lock(&server->lock);
    memcpy(reason, server->reason, sizeof reason);
    mutex_unlock(&server->lock);
    if (!reason[0]) return;
    buffer_text(out, ",\"reason\":");
    json_write_string(out, slice_of(reason));
}

bool answer_health(Exchange *x, Slice rest) {
    Server *server = x->server;
    const bool stopping = __atomic_load_n(&server->stopping, __ATOMIC_RELAXED) > 0;
    const bool loaded = __atomic_load_n(&server->loaded, __ATOMIC_ACQUIRE);
    Health h = {0};
    if (loaded) look_at_models(server->models, &h);
    const bool draining = __atomic_load_n(&server->draining, __ATOMIC_RELAXED);
    const char *status = draining || (!loaded && server->restarted && !stopping) ? "restarting"
        : stopping                                                               ? "draining"
        : !loaded                                                                ? "loading"
        : h.damaged                                                              ? "damaged"
        : h.stalled                                                              ? "stalled"
                                                                                 : NULL;
    Buffer body = {0};
    buffer_printf(&body, "{\"status\":\"%s\",\"running\":%d,\"waiting\":%d,\"kv_bytes\":%zu,\"kv_bytes_total\":%zu",
        status ? status : "ok", h.all.running, h.all.waiting, h.all.kv_bytes, h.all.kv_bytes_total);
    if (status) write_reason(server, &body);
    if (loaded && x->trusted) write_capabilities(server, &h, &body);
    buffer_byte(&body, '}');
    body.failed |= h.models.failed || h.experts.failed;
    buffer_free(&h.models);
    buffer_free(&h.experts);
    return response_json(x, status ? 503 : 200, &body);
}
