#include "server/api/chat_calls.h"

#include <stdio.h>

#include "base/map.h"

static bool is_null(const Json *value) { return !value || value->type == JSON_NULL; }

/* A text that must be there. */
static bool read_member(const Json *object, const char *name, const char *param, Slice *text, ApiError *error) {
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.100s.%s", param, name);
    const Json *value = json_get(object, name);
    return is_null(value) ? api_missing(path, error) : api_string(value, path, text, error);
}

/* What a model wrote may be no JSON; then it stays a text. */
static bool read_arguments(const ApiRequest *r, ChatCall *call, ApiError *error) {
    Error why = {0};
    if (call->arguments.size == 0) call->arguments = SLICE("{}");
    call->object = json_parse(r->arena, call->arguments, &why);
    if (call->object && call->object->type != JSON_OBJECT) call->object = NULL;
    return call->object || why.code != ERROR_MEMORY || api_out_of_memory(error);
}

static bool read_call(const ApiRequest *r, const Json *value, const char *param, ChatCall *call, ApiError *error) {
    Slice type;
    if (!api_type(value, JSON_OBJECT, param, error) || !read_member(value, "id", param, &call->id, error) ||
        !read_member(value, "type", param, &type, error))
        return false;
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.100s.type", param);
    if (!slice_is(type, "function")) return api_unsupported(path, error);
    const Json *function = json_get(value, "function");
    snprintf(path, sizeof path, "%.100s.function", param);
    if (is_null(function)) return api_missing(path, error);
    return api_type(function, JSON_OBJECT, path, error) && read_member(function, "name", path, &call->name, error) &&
        read_member(function, "arguments", path, &call->arguments, error) && read_arguments(r, call, error);
}

static bool read_calls(const ApiRequest *r, const Json *list, const char *param, ChatMessage *out, ApiError *error) {
    if (!api_type(list, JSON_ARRAY, param, error)) return false;
    if (list->size == 0)
        return api_fail(error, 400, "empty_array", param,
            "Invalid '%s': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            param);
    ChatCall *calls = arena_alloc(r->arena, list->size, sizeof *calls);
    if (!calls) return api_out_of_memory(error);
    size_t count = 0;
    for (JSON_EACH(value, list)) {
        char path[API_PARAM_MAX];
        snprintf(path, sizeof path, "%s[%zu]", param, count);
        if (!read_call(r, value, path, &calls[count++], error)) return false;
    }
    out->calls = calls;
    out->call_count = count;
    return true;
}

bool calls_read(const ApiRequest *r, const Json *message, int index, ChatMessage *out, ApiError *error) {
    const Json *calls = json_get(message, "tool_calls"), *id = json_get(message, "tool_call_id");
    char path[64];
    snprintf(path, sizeof path, "messages[%d].tool_calls", index);
    if (!is_null(calls) && strcmp(out->role, "assistant") != 0)
        return api_fail(error, 400, "invalid_value", path,
            "Invalid parameter: '%s' is only allowed in messages with role 'assistant'.", path);
    if (!is_null(calls) && !read_calls(r, calls, path, out, error)) return false;
    snprintf(path, sizeof path, "messages[%d].tool_call_id", index);
    if (!strcmp(out->role, "tool") && is_null(id)) return api_missing(path, error);
    return is_null(id) || api_string(id, path, &out->call_id, error);
}

bool calls_name(ChatMessage *messages, size_t count, ApiError *error) {
    Map calls = {0}; /* by id */
    bool ok = true;
    for (size_t i = 0; i < count && ok; i++) {
        ChatMessage *message = &messages[i];
        uint64_t call;
        if (message->call_id.data && !message->name.data && map_get(&calls, message->call_id, &call))
            message->name = ((const ChatCall *)(uintptr_t)call)->name;
        for (size_t k = message->call_count; k-- > 0 && ok;) /* the first of equal ids stays */
            ok = map_put(&calls, message->calls[k].id, (uintptr_t)&message->calls[k]);
    }
    map_free(&calls);
    return ok || api_out_of_memory(error);
}
