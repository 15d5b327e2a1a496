#include "server/api/model_list.h"

#include <stdio.h>
#include <time.h>

#include "base/log.h"
#include "server/http/body.h"
#include "server/http/deadlines.h"
#include "server/http/http_request.h"
#include "server/api/members.h"
#include "server/http/response.h"

enum { NAME_SHOWN = 200 };

bool model_unknown(const Server *server, Slice name, ApiError *error) {
    Buffer names = {.limit = API_MESSAGE_MAX / 2};
    const int shown = name.size < NAME_SHOWN ? (int)name.size : NAME_SHOWN;
    for (int i = 0; i < MODELS_MAX; i++) {
        ModelStatus status;
        if (models_status(server->models, i, &status))
            buffer_printf(&names, "%s'%s'", names.size ? ", " : "", status.name);
    }
    if (names.data)
        api_fail(error, 404, "model_not_found", "model", "The model '%.*s' does not exist; this server has %s.", shown,
            name.data, names.data);
    else
        api_fail(error, 404, "model_not_found", "model",
            "The model '%.*s' does not exist; no model is served. POST /v1/jobs with "
            "{\"kind\":\"load\",\"model\":\"NAME\"} "
            "loads one of `apus list`.",
            shown, name.data);
    buffer_free(&names);
    return false;
}

/* Why a model could not be taken. */
static bool model_failed(const Exchange *x, Slice name, const Error *why, ApiError *error) {
    if (why->code == ERROR_NOT_FOUND && models_find(x->server->models, name) < 0)
        return model_unknown(x->server, name, error);
    if (why->code == ERROR_CANCELLED && deadlines_over(x, true, error)) return false;
    if (why->code == ERROR_BUSY) return api_fail(error, 409, "model_in_use", "model", "The model %s.", why->text);
    if (why->code == ERROR_DEVICE)
        return api_fail(error, 503, "device_failed", "model", "The device that computes the model '%.*s' has failed.",
            name.size < NAME_SHOWN ? (int)name.size : NAME_SHOWN, name.data);
    log_error("%.*s: %s", SLICE_SHOWN(name), why->text);
    return api_fail(error, 503, "model_load_failed", "model",
        "The model '%.*s' could not be loaded; the server's log says why.", SLICE_SHOWN(name));
}

ChatModel *model_take(Exchange *x, Slice name, ApiError *error) {
    Error why = {0};
    snprintf(x->record.model, sizeof x->record.model, "%.*s", SLICE_SHOWN(name));
    ChatModel *model = models_take(x->server->models, name, deadlines_next_ns(x), &why);
    if (!model)
        model_failed(x, name, &why, error);
    else
        x->model_index = models_find(x->server->models, name);
    return model;
}

void model_architecture(const ModelStatus *status, Buffer *out) {
    if (status->context == 0) return;
    buffer_printf(out, ",\"architecture\":{\"input_modalities\":[\"text\"%s%s],\"output_modalities\":[\"text\"]}",
        status->takes_images ? ",\"image\"" : "", status->takes_audio ? ",\"audio\"" : "");
}

static void write_model(const ModelStatus *status, Buffer *out) {
    static const char *const states[] = {"unloaded", "loading", "loaded", "unloading"};
    buffer_text(out, "{\"id\":");
    json_write_string(out, slice_of(status->name));
    buffer_printf(out,
        ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"apus\",\"context_length\":%d,\"status\":\"%s\"",
        (long long)status->created, status->context, states[status->state]);
    model_architecture(status, out);
    buffer_byte(out, '}');
}

/* An adapter as a model of its own, in the form of vLLM. */
static void write_adapter(const ModelStatus *status, Slice adapter, Buffer *out) {
    Buffer name = {0};
    buffer_printf(&name, "%s:%.*s", status->name, SLICE_SHOWN(adapter));
    buffer_text(out, "{\"id\":");
    json_write_string(out, buffer_view(&name));
    buffer_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"apus\",\"context_length\":%d",
        (long long)status->created, status->context);
    member_text("parent", slice_of(status->name), out);
    buffer_byte(out, '}');
    buffer_free(&name);
}

/* Clients of Anthropic's API send its version with each request. */
static bool asks_anthropic(const Exchange *x) { return http_request_header(x->request, "anthropic-version"); }

static void write_anthropic(const ModelStatus *status, Buffer *out) {
    char date[32];
    struct tm utc;
    const time_t seconds = (time_t)status->created;
    gmtime_r(&seconds, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    buffer_text(out, "{\"type\":\"model\",\"id\":");
    json_write_string(out, slice_of(status->name));
    member_text("display_name", slice_of(status->name), out);
    member_text("created_at", slice_of(date), out);
    buffer_printf(out, ",\"max_input_tokens\":%d}", status->context);
}

/* {"data", "has_more", "first_id", "last_id"} */
static bool answer_anthropic(Exchange *x) {
    Buffer body = {0};
    ModelStatus status, first, last;
    int count = 0;
    buffer_text(&body, "{\"data\":[");
    for (int i = 0; i < MODELS_MAX; i++) {
        if (!models_status(x->server->models, i, &status)) continue;
        if (count++) buffer_byte(&body, ',');
        if (count == 1) first = status;
        last = status;
        write_anthropic(&status, &body);
    }
    buffer_text(&body, "],\"has_more\":false,\"first_id\":");
    json_write_string(&body, count ? slice_of(first.name) : SLICE(""));
    member_text("last_id", count ? slice_of(last.name) : SLICE(""), &body);
    buffer_byte(&body, '}');
    return response_json(x, 200, &body);
}

static bool response_model(Exchange *x, Slice name) {
    ApiError error = {0};
    ModelStatus status;
    const int index = models_find(x->server->models, name);
    if (index < 0 || !models_status(x->server->models, index, &status)) {
        model_unknown(x->server, name, &error);
        return response_error(x, &error);
    }
    Buffer body = {0};
    (asks_anthropic(x) ? write_anthropic : write_model)(&status, &body);
    return response_json(x, 200, &body);
}

bool answer_models(Exchange *x, Slice rest) {
    if (asks_anthropic(x)) return answer_anthropic(x);
    Buffer body = {0};
    buffer_text(&body, "{\"object\":\"list\",\"data\":[");
    const char *separator = "";
    for (int i = 0; i < MODELS_MAX; i++) {
        ModelStatus status;
        if (!models_status(x->server->models, i, &status)) continue;
        buffer_text(&body, separator);
        write_model(&status, &body);
        separator = ",";
        Slice adapter;
        for (int j = 0; (adapter = models_adapter_name(x->server->models, status.name, j)).size > 0; j++) {
            buffer_text(&body, separator);
            write_adapter(&status, adapter, &body);
        }
    }
    buffer_text(&body, "]}");
    return response_json(x, 200, &body);
}

bool answer_model(Exchange *x, Slice name) { return response_model(x, name); }

static bool read_name(Exchange *x, Arena *arena, Slice *name, ApiError *error) {
    if (!body_model(x, arena, name, error)) return false;
    return models_find(x->server->models, *name) >= 0 || model_unknown(x->server, *name, error);
}

static bool load_model(const Exchange *x, Slice name, Error *why) {
    return models_load(x->server->models, name, deadlines_next_ns(x), why);
}

static bool unload_model(const Exchange *x, Slice name, Error *why) {
    return models_unload(x->server->models, name, why);
}

static bool change(Exchange *x, bool (*act)(const Exchange *x, Slice name, Error *why)) {
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST + x->body.size * BODY_MADE_PER_BYTE};
    ApiError error = {0};
    Error why = {0};
    Slice name = {0};
    bool ok = read_name(x, &arena, &name, &error);
    if (ok && !act(x, name, &why)) ok = model_failed(x, name, &why, &error);
    const bool result = ok ? response_model(x, name) : response_error(x, &error);
    arena_free(&arena);
    return result;
}

bool answer_load(Exchange *x, Slice rest) { return change(x, load_model); }
bool answer_unload(Exchange *x, Slice rest) { return change(x, unload_model); }
