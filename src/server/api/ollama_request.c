#include "server/api/ollama_request.h"

#include <stdio.h>

#include "server/api/adapter.h"
#include "server/api/fields.h"

/* ---- what both have ---- */

/* Options that are not the chat's under another name. */
static void write_options(const Json *body, Buffer *out) {
    const Json *options = adapter_get(body, "options");
    const Json *count = options ? adapter_get(options, "num_predict") : NULL;
    const Json *penalty = options ? adapter_get(options, "repeat_penalty") : NULL;
    const Json *window = options ? adapter_get(options, "repeat_last_n") : NULL;
    if (count && json_number(count) > 0) adapter_copy(options, "num_predict", "max_tokens", out);
    if (window && json_number(window) == 0)
        buffer_text(out, ",\"repetition_penalty\":1");
    else if (penalty)
        adapter_copy(options, "repeat_penalty", "repetition_penalty", out);
}

static bool write_format(const Json *body, Buffer *out, ApiError *error) {
    const Json *format = adapter_get(body, "format");
    if (!format || adapter_is(body, "format", "")) return true;
    if (adapter_is(body, "format", "json")) {
        buffer_text(out, ",\"response_format\":{\"type\":\"json_object\"}");
        return true;
    }
    if (!api_type(format, JSON_OBJECT, "format", error)) return false;
    buffer_text(out, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"format\",\"schema\":");
    json_write(out, format);
    buffer_text(out, "}}");
    return true;
}

/* Streams are what Ollama answers unless told otherwise. */
static bool write_common(Adapter adapter, const Json *body, Buffer *out, ApiError *error) {
    buffer_text(out, "{\"n\":1");
    if (!fields_check(adapter, body, out, error)) return false;
    if (!adapter_get(body, "stream")) buffer_text(out, ",\"stream\":true");
    write_options(body, out);
    return write_format(body, out, error);
}

static bool finish(ApiRequest *request, const Json *body, Buffer *chat, bool ok, ApiError *error) {
    if (!ok) {
        buffer_free(chat);
        return false;
    }
    buffer_byte(chat, '}');
    if (!adapter_read(request, chat, error)) return false;
    const Json *think = adapter_get(body, "think");
    if (think && think->type == JSON_BOOL) tools_hint_thinking(&request->tools, think->boolean);
    if (think && think->type == JSON_STRING) tools_hint_effort(&request->tools, json_slice(think));
    request->cut = true;
    return true;
}

/* ---- chat ---- */

/* Ollama's calls may have no ids: then they are numbered, and answers belong to them in order. */
typedef struct Ids {
    int called, answered;
} Ids;

static void write_id(const Json *object, const char *name, int number, Buffer *out) {
    const Json *id = adapter_get(object, name);
    if (id)
        json_write(out, id);
    else
        buffer_printf(out, "\"call%05d\"", number); /* nine letters and digits: some templates want that */
}

static bool write_calls(const Json *calls, const char *param, Ids *ids, Buffer *out, ApiError *error) {
    if (!api_type(calls, JSON_ARRAY, param, error)) return false;
    int count = 0;
    for (JSON_EACH(call, calls)) {
        const Json *function = adapter_get(call, "function"), *name = function ? adapter_get(function, "name") : NULL;
        if (!name) return api_missing(param, error);
        Buffer arguments = {0};
        const Json *given = adapter_get(function, "arguments");
        if (given) json_write(&arguments, given);
        buffer_text(out, count++ ? ",{\"id\":" : ",\"tool_calls\":[{\"id\":");
        write_id(call, "id", ids->called++, out);
        buffer_text(out, ",\"type\":\"function\",\"function\":{\"name\":");
        json_write(out, name);
        adapter_text("arguments", given ? buffer_view(&arguments) : SLICE("{}"), out);
        buffer_text(out, "}}");
        out->failed |= arguments.failed;
        buffer_free(&arguments);
    }
    if (count) buffer_byte(out, ']');
    return true;
}

static bool write_message(const Json *message, int index, Ids *ids, Buffer *out, ApiError *error) {
    char param[API_PARAM_MAX];
    snprintf(param, sizeof param, "messages[%d]", index);
    if (!api_type(message, JSON_OBJECT, param, error)) return false;
    const Json *images = adapter_get(message, "images"), *calls = adapter_get(message, "tool_calls");
    if (images && (images->type != JSON_ARRAY || images->size > 0)) return api_unsupported("messages.images", error);
    if (!adapter_get(message, "role")) return api_missing(param, error);
    buffer_text(out, index ? ",{\"role\":" : "{\"role\":");
    json_write(out, adapter_get(message, "role"));
    if (adapter_get(message, "content"))
        adapter_copy(message, "content", "content", out);
    else
        buffer_text(out, ",\"content\":\"\"");
    adapter_copy(message, "thinking", "reasoning_content", out);
    adapter_copy(message, "tool_name", "name", out);
    if (adapter_is(message, "role", "tool")) {
        buffer_text(out, ",\"tool_call_id\":");
        write_id(message, "tool_call_id", ids->answered++, out);
    }
    if (calls && (calls->type != JSON_ARRAY || calls->size > 0)) {
        if (!write_calls(calls, param, ids, out, error)) return false;
    }
    buffer_byte(out, '}');
    return true;
}

static bool write_messages(const Json *body, Buffer *out, ApiError *error) {
    const Json *messages = adapter_get(body, "messages");
    if (!messages) return api_missing("messages", error);
    if (!api_type(messages, JSON_ARRAY, "messages", error)) return false;
    Ids ids = {0};
    int index = 0;
    buffer_text(out, ",\"messages\":[");
    for (JSON_EACH(message, messages))
        if (!write_message(message, index++, &ids, out, error)) return false;
    buffer_byte(out, ']');
    adapter_copy(body, "tools", "tools", out);
    return true;
}

bool ollama_read_chat(ApiRequest *request, const Json *body, ApiError *error) {
    Buffer chat = {0};
    const bool ok = write_common(DOOR_OLLAMA_CHAT, body, &chat, error) && write_messages(body, &chat, error);
    return finish(request, body, &chat, ok, error);
}

/* ---- generate ---- */

static bool write_prompt(const Json *body, Buffer *out, ApiError *error) {
    const Json *prompt = adapter_get(body, "prompt"), *system = adapter_get(body, "system");
    Slice text;
    if (!prompt) return api_missing("prompt", error);
    buffer_text(out, ",\"messages\":[");
    if (system) {
        if (!api_string(system, "system", &text, error)) return false;
        buffer_text(out, "{\"role\":\"system\"");
        adapter_text("content", text, out);
        buffer_text(out, "},");
    }
    if (!api_string(prompt, "prompt", &text, error)) return false;
    buffer_text(out, "{\"role\":\"user\"");
    adapter_text("content", text, out);
    buffer_text(out, "}]");
    return true;
}

bool ollama_read_generate(ApiRequest *request, const Json *body, ApiError *error) {
    Buffer chat = {0};
    const bool ok = write_common(DOOR_GENERATE, body, &chat, error) && write_prompt(body, &chat, error);
    return finish(request, body, &chat, ok, error);
}
