#include "server/routes.h"

#include <math.h>
#include <string.h>

#include "server/completion.h"
#include "server/embeddings.h"
#include "server/metrics.h"
#include "server/model_list.h"
#include "server/ollama_list.h"
#include "server/pull.h"
#include "server/reply.h"
#include "server/token_list.h"

static bool answer(Exchange *x, Slice rest) { return completion_answer(x, x->route->endpoint); }
static bool count(Exchange *x, Slice rest) { return completion_count(x, x->route->endpoint); }

/* Perfect overlap of reading and computing would take the longer of the two: what is reached of that. */
static double percent_of_limit(const EngineStats *stats) {
    const double computing = stats->step_s - stats->experts.stall_s, reading = stats->experts.read_s;
    const double least = computing > reading ? computing : reading;
    return stats->step_s > 0 ? fmin(100, 100 * least / stats->step_s) : 0;
}

static void write_expert_health(const EngineStats *stats, Buffer *out) {
    const SourceStats *e = &stats->experts;
    const double wanted = (double)e->hits + (double)e->misses;
    buffer_printf(out,
        ":{\"experts\":%d,\"slots\":%d,\"io\":\"%s\",\"hits\":%llu,\"misses\":%llu,\"hit_rate\":%.4f,"
        "\"read_bytes\":%llu,\"read_gb_per_s\":%.3f,\"stall_s\":%.3f,\"step_s\":%.3f,\"percent_of_limit\":%.1f}",
        e->experts, e->slots, e->io, (unsigned long long)e->hits, (unsigned long long)e->misses,
        wanted > 0 ? (double)e->hits / wanted : 0, (unsigned long long)e->read_bytes,
        e->read_s > 0 ? (double)e->read_bytes * 1e-9 / e->read_s : 0, e->stall_s, stats->step_s,
        percent_of_limit(stats));
}

/* Of all models together, and of each whose experts are streamed. */
static bool answer_health(Exchange *x, Slice rest) {
    const bool stopping = __atomic_load_n(&x->server->stopping, __ATOMIC_RELAXED) > 0;
    EngineStats all = {0};
    Buffer experts = {0};
    bool damaged = false;
    for (int i = 0; i < models_count(x->server->models); i++) {
        models_mend(x->server->models, i); /* a damaged server may be asked for nothing else */
        const ModelStatus status = models_status(x->server->models, i);
        const EngineStats stats = status.stats;
        damaged |= status.damaged;
        all.running += stats.running;
        all.waiting += stats.waiting;
        all.kv_bytes += stats.kv_bytes;
        all.kv_bytes_total += stats.kv_bytes_total;
        if (stats.experts.experts == 0) continue;
        buffer_text(&experts, experts.size ? "," : ",\"experts\":{");
        json_write_string(&experts, slice_of(models_name(x->server->models, i)));
        write_expert_health(&stats, &experts);
    }
    if (experts.size) buffer_byte(&experts, '}');
    Buffer body = {0};
    buffer_printf(&body, "{\"status\":\"%s\",\"running\":%d,\"waiting\":%d,\"kv_bytes\":%zu,\"kv_bytes_total\":%zu",
        stopping      ? "stopping"
            : damaged ? "damaged"
                      : "ok",
        all.running, all.waiting, all.kv_bytes, all.kv_bytes_total);
    buffer_slice(&body, buffer_view(&experts));
    buffer_byte(&body, '}');
    body.failed |= experts.failed;
    buffer_free(&experts);
    return reply_json(x, stopping || damaged ? 503 : 200, &body);
}

static bool answer_metrics(Exchange *x, Slice rest) {
    Buffer body = {0};
    metrics_write(x->server->metrics, x->server->models, &body);
    return reply_text(x, "text/plain; version=0.0.4; charset=utf-8", &body);
}

static bool answer_root(Exchange *x, Slice rest) {
    Buffer body = {0};
    buffer_text(&body, "{\"name\":\"apus\",\"models\":[");
    for (int i = 0; i < models_count(x->server->models); i++) {
        if (i) buffer_byte(&body, ',');
        json_write_string(&body, slice_of(models_name(x->server->models, i)));
    }
    buffer_text(&body,
        "],\"api\":[\"/v1/chat/completions\",\"/v1/completions\",\"/v1/responses\",\"/v1/messages\",\"/v1/"
        "embeddings\",\"/api/chat\",\"/"
        "v1/models\",\"/health\",\"/metrics\"]}");
    return reply_json(x, 200, &body);
}

static const Route routes[] = {
    {.method = "GET", .path = "/", .answer = answer_root},
    {.method = "GET", .path = "/health", .answer = answer_health, .public = true},
    {.method = "GET", .path = "/metrics", .answer = answer_metrics},
    {.method = "GET", .path = "/v1/models", .answer = answer_models},
    {.method = "POST", .path = "/v1/models/load", .answer = answer_load},
    {.method = "POST", .path = "/v1/models/unload", .answer = answer_unload},
    {.method = "GET", .path = "/v1/models/local", .answer = answer_local},
    {.method = "POST", .path = "/v1/models/pull", .answer = answer_pull},
    {.method = "GET", .path = "/v1/models/", .answer = answer_model},
    {.method = "POST", .path = "/v1/chat/completions", .answer = answer, .endpoint = &endpoint_chat, .completes = true},
    {.method = "POST", .path = "/v1/completions", .answer = answer, .endpoint = &endpoint_text, .completes = true},
    {.method = "POST", .path = "/v1/responses", .answer = answer, .endpoint = &endpoint_responses, .completes = true},
    {.method = "POST", .path = "/v1/messages", .answer = answer, .endpoint = &endpoint_messages, .completes = true},
    {.method = "POST", .path = "/v1/embeddings", .answer = answer_embeddings, .completes = true},
    {.method = "POST", .path = "/api/chat", .answer = answer, .endpoint = &endpoint_ollama_chat, .completes = true},
    {.method = "POST",
        .path = "/api/generate",
        .answer = answer,
        .endpoint = &endpoint_ollama_generate,
        .completes = true},
    {.method = "POST",
        .path = "/api/embed",
        .answer = answer_embed,
        .endpoint = &endpoint_ollama_chat,
        .completes = true},
    {.method = "GET", .path = "/api/tags", .answer = answer_ollama_tags},
    {.method = "GET", .path = "/api/ps", .answer = answer_ollama_ps},
    {.method = "GET", .path = "/api/version", .answer = answer_ollama_version},
    {.method = "POST", .path = "/api/show", .answer = answer_ollama_show},
    {.method = "POST", .path = "/tokenize", .answer = answer_tokenize},
    {.method = "POST", .path = "/detokenize", .answer = answer_detokenize},
    {.method = "POST", .path = "/v1/messages/count_tokens", .answer = count, .endpoint = &endpoint_messages},
};

static bool path_matches(const Route *route, const char *url) {
    const size_t length = strlen(route->path);
    if (length > 1 && route->path[length - 1] == '/') return !strncmp(url, route->path, length) && url[length];
    return !strcmp(url, route->path);
}

const Route *route_find(const char *url, const char *method, const char **allowed) {
    *allowed = NULL;
    for (size_t i = 0; i < COUNT_OF(routes); i++) {
        const Route *route = &routes[i];
        if (!path_matches(route, url)) continue;
        *allowed = route->method;
        if (!strcmp(method, route->method) || (!strcmp(method, "HEAD") && !strcmp(route->method, "GET"))) return route;
    }
    return NULL;
}
