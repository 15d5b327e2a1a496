#include "server/routes.h"

#include <string.h>

#include "server/completion.h"
#include "server/reply.h"

static enum MHD_Result answer_chat(Exchange *x, Slice rest) { return completion_answer(x, &endpoint_chat); }
static enum MHD_Result answer_text(Exchange *x, Slice rest) { return completion_answer(x, &endpoint_text); }

static enum MHD_Result answer_health(Exchange *x, Slice rest) {
    const EngineStats stats = engine_stats(x->server->model->engine);
    const bool stopping = __atomic_load_n(&x->server->stopping, __ATOMIC_RELAXED) > 0;
    Buffer body = {0};
    buffer_printf(&body, "{\"status\":\"%s\",\"running\":%d,\"waiting\":%d,\"kv_bytes\":%zu,\"kv_bytes_total\":%zu}",
        stopping ? "stopping" : "ok", stats.running, stats.waiting, stats.kv_bytes, stats.kv_bytes_total);
    return reply_json(x, stopping ? 503 : 200, &body);
}

static void write_model(Exchange *x, Buffer *out) {
    buffer_text(out, "{\"id\":");
    json_write_string(out, slice_of(x->server->model->name));
    buffer_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"apus\",\"context_length\":%d}",
        (long long)x->server->model->created, chat_model_context(x->server->model));
}

static enum MHD_Result answer_models(Exchange *x, Slice rest) {
    Buffer body = {0};
    buffer_text(&body, "{\"object\":\"list\",\"data\":[");
    write_model(x, &body);
    buffer_text(&body, "]}");
    return reply_json(x, 200, &body);
}

static enum MHD_Result answer_model(Exchange *x, Slice rest) {
    if (!slice_is(rest, x->server->model->name)) {
        ApiError error = {0};
        api_fail(&error, 404, "model_not_found", "model", "The model '%.*s' does not exist; this server has '%s'.",
            rest.size < 200 ? (int)rest.size : 200, rest.data, x->server->model->name);
        return reply_error(x, &error);
    }
    Buffer body = {0};
    write_model(x, &body);
    return reply_json(x, 200, &body);
}

static enum MHD_Result answer_root(Exchange *x, Slice rest) {
    Buffer body = {0};
    buffer_text(&body, "{\"name\":\"apus\",\"model\":");
    json_write_string(&body, slice_of(x->server->model->name));
    buffer_text(&body, ",\"api\":[\"/v1/chat/completions\",\"/v1/completions\",\"/v1/models\",\"/health\"]}");
    return reply_json(x, 200, &body);
}

static const Route routes[] = {
    {.method = "GET", .path = "/", .answer = answer_root},
    {.method = "GET", .path = "/health", .answer = answer_health, .public = true},
    {.method = "GET", .path = "/v1/models", .answer = answer_models},
    {.method = "GET", .path = "/v1/models/", .answer = answer_model},
    {.method = "POST", .path = "/v1/chat/completions", .answer = answer_chat, .completes = true},
    {.method = "POST", .path = "/v1/completions", .answer = answer_text, .completes = true},
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
