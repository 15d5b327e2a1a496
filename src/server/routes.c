#include "server/routes.h"

#include <stdio.h>
#include <string.h>

#include "server/api/completion.h"
#include "server/api/embeddings.h"
#include "server/api/history_api.h"
#include "server/admin/health.h"
#include "server/admin/hub_search.h"
#include "server/admin/local_models.h"
#include "server/admin/metrics.h"
#include "server/admin/model_fit.h"
#include "server/admin/props.h"
#include "server/admin/router.h"
#include "server/api/model_list.h"
#include "server/api/ollama_list.h"
#include "server/admin/jobs_api.h"
#include "server/http/response.h"
#include "server/lan/devices_api.h"
#include "server/http/http_request.h"
#include "server/api/rerank.h"
#include "server/api/resumable.h"
#include "server/api/token_list.h"
#include "server/web.h"

static bool answer(Exchange *x, Slice rest) { return completion_answer(x, x->route->endpoint); }
static bool count(Exchange *x, Slice rest) { return completion_count(x, x->route->endpoint); }

static bool render(Exchange *x, Slice rest) { return completion_render(x, x->route->endpoint); }

static bool answer_metrics(Exchange *x, Slice rest) {
    Buffer body = {0};
    metrics_write(x->server, &body);
    return response_text(x, "text/plain; version=0.0.4; charset=utf-8", &body);
}

static bool answer_preflight(Exchange *x, Slice rest) {
    const char *asked = http_request_header(x->request, "Access-Control-Request-Headers");
    const char *private = http_request_header(x->request, "Access-Control-Request-Private-Network");
    Buffer headers = {0};
    buffer_text(&headers, "");
    /* The key decides what a page may do, not the header: all that it asks for may be sent. */
    if (x->cors)
        buffer_printf(&headers,
            "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\nAccess-Control-Allow-Headers: %s\r\n"
            "Access-Control-Max-Age: 600\r\n%s",
            asked ? asked : "Authorization, Content-Type",
            private && !strcmp(private, "true") ? "Access-Control-Allow-Private-Network: true\r\n" : "");
    const bool ok = !headers.failed && response_file(x, 204, NULL, headers.data ? headers.data : "", SLICE(""));
    buffer_free(&headers);
    return ok;
}

static bool answer_root(Exchange *x, Slice rest) {
    Buffer body = {0};
    buffer_text(&body, "{\"name\":\"apus\",\"models\":[");
    const char *separator = "";
    for (int i = 0; i < MODELS_MAX; i++) {
        ModelStatus status;
        if (!models_status(x->server->models, i, &status)) continue;
        buffer_text(&body, separator);
        json_write_string(&body, slice_of(status.name));
        separator = ",";
    }
    buffer_text(&body,
        "],\"api\":[\"/v1/chat/completions\",\"/v1/completions\",\"/v1/responses\",\"/v1/messages\",\"/v1/"
        "embeddings\",\"/api/chat\",\"/"
        "v1/models\",\"/health\",\"/metrics\"]}");
    return response_json(x, 200, &body);
}

static const Route routes[] = {
    {.method = "GET", .path = "/", .answer = answer_root},
    {.method = "GET", .path = "/assets/", .answer = answer_asset, .public = true, .probe = true},
    {.method = "GET", .path = "/sw.js", .answer = answer_worker, .public = true, .probe = true},
    {.method = "GET", .path = "/health", .answer = answer_health, .public = true, .probe = true},
    {.method = "GET", .path = "/metrics", .answer = answer_metrics, .metrics = true, .probe = true},
    {.method = "GET", .path = "/v1/models", .answer = answer_models},
    {.method = "GET", .path = "/models", .answer = answer_router_models},
    {.method = "POST", .path = "/models", .answer = answer_router_download},
    {.method = "DELETE", .path = "/models", .answer = answer_router_remove},
    {.method = "POST", .path = "/models/load", .answer = answer_router_load},
    {.method = "POST", .path = "/models/unload", .answer = answer_router_unload},
    {.method = "GET", .path = "/models/sse", .answer = answer_router_events},
    {.method = "POST", .path = "/v1/models/load", .answer = answer_load},
    {.method = "POST", .path = "/v1/models/unload", .answer = answer_unload},
    {.method = "GET", .path = "/v1/models/local", .answer = answer_local},
    {.method = "DELETE", .path = "/v1/models/local/", .answer = answer_local_remove},
    {.method = "POST", .path = "/v1/models/fit", .answer = answer_fit},
    {.method = "POST", .path = "/v1/models/search", .answer = answer_hub_search},
    {.method = "POST", .path = "/v1/models/pull", .answer = answer_pull},
    {.method = "GET", .path = "/v1/models/", .answer = answer_model},
    {.method = "GET", .path = "/v1/streams/", .answer = answer_resumed},
    {.method = "DELETE", .path = "/v1/streams/", .answer = answer_stream_cancel},
    {.method = "DELETE", .path = "/v1/models/", .answer = answer_model_remove},
    {.method = "GET", .path = "/v1/devices", .answer = answer_devices},
    {.method = "POST", .path = "/v1/devices/pairing", .answer = answer_device_invite},
    {.method = "POST", .path = "/v1/devices/pair", .answer = answer_device_pair, .public = true},
    {.method = "DELETE", .path = "/v1/devices/", .answer = answer_device_revoke},
    {.method = "GET", .path = "/v1/history", .answer = answer_history},
    {.method = "GET", .path = "/v1/history/changes", .answer = answer_history_changes},
    {.method = "POST", .path = "/v1/history/changes", .answer = answer_history_push},
    {.method = "GET", .path = "/v1/jobs", .answer = answer_jobs},
    {.method = "POST", .path = "/v1/jobs", .answer = answer_job_start},
    {.method = "GET", .path = "/v1/jobs/events", .answer = answer_job_events},
    {.method = "GET", .path = "/v1/jobs/", .answer = answer_job},
    {.method = "POST", .path = "/v1/jobs/", .answer = answer_job_action},
    {.method = "POST", .path = "/v1/chat/completions", .answer = answer, .endpoint = &endpoint_chat, .completes = true},
    {.method = "POST", .path = "/v1/completions", .answer = answer, .endpoint = &endpoint_text, .completes = true},
    {.method = "POST", .path = "/v1/responses", .answer = answer, .endpoint = &endpoint_responses, .completes = true},
    {.method = "POST", .path = "/v1/messages", .answer = answer, .endpoint = &endpoint_messages, .completes = true},
    {.method = "POST",
        .path = "/v1/audio/transcriptions",
        .answer = answer,
        .endpoint = &endpoint_transcription,
        .completes = true,
        .form = true},
    {.method = "POST",
        .path = "/v1/audio/translations",
        .answer = answer,
        .endpoint = &endpoint_translation,
        .completes = true,
        .form = true},
    {.method = "POST", .path = "/v1/embeddings", .answer = answer_embeddings, .completes = true},
    {.method = "POST", .path = "/v1/rerank", .answer = answer_rerank, .completes = true},
    {.method = "POST",
        .path = "/api/chat",
        .answer = answer_ollama,
        .endpoint = &endpoint_ollama_chat,
        .completes = true},
    {.method = "POST",
        .path = "/api/generate",
        .answer = answer_ollama,
        .endpoint = &endpoint_ollama_generate,
        .completes = true},
    {.method = "POST",
        .path = "/api/embed",
        .answer = answer_embed,
        .endpoint = &endpoint_ollama_chat,
        .completes = true},
    {.method = "GET", .path = "/api/tags", .answer = answer_ollama_tags, .endpoint = &endpoint_ollama_chat},
    {.method = "GET", .path = "/api/ps", .answer = answer_ollama_ps, .endpoint = &endpoint_ollama_chat},
    {.method = "GET", .path = "/api/version", .answer = answer_ollama_version, .endpoint = &endpoint_ollama_chat},
    {.method = "POST", .path = "/api/show", .answer = answer_ollama_show, .endpoint = &endpoint_ollama_chat},
    {.method = "POST", .path = "/tokenize", .answer = answer_tokenize},
    {.method = "POST", .path = "/detokenize", .answer = answer_detokenize},
    {.method = "POST", .path = "/v1/responses/input_tokens", .answer = count, .endpoint = &endpoint_responses},
    {.method = "POST", .path = "/v1/chat/completions/input_tokens", .answer = count, .endpoint = &endpoint_chat},
    {.method = "POST", .path = "/apply-template", .answer = render, .endpoint = &endpoint_chat},
    {.method = "GET", .path = "/props", .answer = answer_props},
    {.method = "GET", .path = "/slots", .answer = answer_slots},
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

const Endpoint *route_endpoint(const char *path) {
    if (!path || strncmp(path, "/api/", 5) != 0) return NULL;
    return &endpoint_ollama_chat;
}

static bool is_path(const char *url) {
    for (size_t i = 0; i < COUNT_OF(routes); i++)
        if (path_matches(&routes[i], url)) return true;
    return false;
}

bool route_nearest(const char *url, char *out, size_t size) {
    static const char *const tops[] = {"", "/v1", "/v1/chat"};
    char plain[256];
    size_t length = 0;
    for (; *url && length + 1 < sizeof plain; url++)
        if (*url != '/' || length == 0 || plain[length - 1] != '/') plain[length++] = *url;
    while (length > 1 && plain[length - 1] == '/') length--;
    plain[length] = 0;
    const char *path = plain;
    while (!strncmp(path, "/v1/v1/", 7)) path += 3;
    for (size_t i = 0; i < COUNT_OF(tops); i++) {
        snprintf(out, size, "%s%s", tops[i], path);
        if (strlen(path) > 1 && is_path(out)) return true;
    }
    return !strncmp(path, "/v1/", 4) && (snprintf(out, size, "%s", path + 3), is_path(out));
}

const Route *route_preflight(void) {
    static const Route route = {
        .method = "OPTIONS", .path = "", .answer = answer_preflight, .public = true, .probe = true};
    return &route;
}
