/* Requests of Ollama's API. Reference: Ollama's docs/api.md. */
#include <stdio.h>

#include "server/api/chat_messages.h"
#include "server/api/field_readers.h"
#include "server/api/fields.h"
#include "server/api/media_parts.h"
#include "server/api/members.h"
#include "server/api/object_members.h"
#include "server/api/request.h"

/* ---- both ---- */

/* The penalty applies to the whole text, or with a window of 0 to nothing. */
static bool read_penalty(ChatRequest *request, const Json *body, ApiError *error) {
    const Json *options = member_get(body, "options");
    const Json *penalty = member_get(options, "repeat_penalty"), *window = member_get(options, "repeat_last_n");
    float *value = &request->generation.request.sampling.repetition_penalty;
    if (window && json_number(window) == 0) {
        *value = 1;
        return true;
    }
    if (penalty) {
        *value = (float)json_number(penalty);
        if (!read_repetition(request, penalty, "options.repeat_penalty", error)) return false;
    }
    return !window || json_number(window) == -1 || *value == 1 ||
        api_fail(error, 400, "unsupported_parameter", "options.repeat_last_n",
            "Unsupported value: 'options.repeat_last_n' %.0f: 'repeat_penalty' counts the whole text here; send -1.",
            json_number(window));
}

/* Streams unless told otherwise. */
static bool read_fields(ChatRequest *request, Api api, const Json *body, ApiError *error) {
    request->cut = true;
    request->stop_max = STOP_STRINGS_MAX;
    request->response.stream = true;
    return fields_read(request, api, body, error) && read_penalty(request, body, error);
}

/* ---- chat ---- */

/* Calls may have no ids: then they are numbered, and results belong to them in order. */
typedef struct Ids {
    int called, answered;
} Ids;

static bool read_id(MessageBuilder *builder, const Json *object, const char *name, const char *param, int number,
    Slice *id, ApiError *error) {
    if (member_get(object, name)) return member_read_text(object, name, param, id, error);
    const char *text =
        arena_printf(builder->arena, "call%05d", number); /* nine letters and digits: some templates want that */
    *id = slice_of(text ? text : "");
    return text || api_out_of_memory(error);
}

static bool read_calls(MessageBuilder *builder, const Json *calls, const char *param, Ids *ids, ApiError *error) {
    int index = 0;
    if (!api_type(calls, JSON_ARRAY, param, error)) return false;
    for (JSON_EACH(call, calls)) {
        char path[API_PARAM_MAX], inside[API_PARAM_MAX];
        Slice id, name;
        snprintf(path, sizeof path, "%.90s[%d]", param, index++);
        snprintf(inside, sizeof inside, "%.100s.function", path);
        const Json *function = member_get(call, "function");
        if (!member_read_text(function, "name", inside, &name, error) ||
            !read_id(builder, call, "id", path, ids->called++, &id, error))
            return false;
        messages_add_json_call(builder, id, name, member_get(function, "arguments"));
    }
    return true;
}

static bool read_message(MessageBuilder *builder, const Json *message, int index, Ids *ids, ApiError *error) {
    char param[API_PARAM_MAX], path[API_PARAM_MAX];
    const char *role;
    Slice text;
    snprintf(param, sizeof param, "messages[%d]", index);
    if (!api_type(message, JSON_OBJECT, param, error)) return false;
    const Json *images = member_get(message, "images"), *calls = member_get(message, "tool_calls"),
               *content = member_get(message, "content");
    if (!chat_read_role(message, param, &role, error)) return false;
    ChatMessage *out = messages_begin(builder, role);
    if (member_get(message, "tool_name") && !member_read_text(message, "tool_name", param, &out->name, error))
        return false;
    if (!strcmp(role, "tool") &&
        !read_id(builder, message, "tool_call_id", param, ids->answered++, &out->call_id, error))
        return false;
    snprintf(path, sizeof path, "messages[%d].images", index);
    if (images && !image_read_list(builder, images, path, error)) return false;
    snprintf(path, sizeof path, "messages[%d].content", index);
    if (!content)
        messages_add_text(builder, SLICE(""));
    else if (!chat_read_content(builder, content, path, error))
        return false;
    if (member_get(message, "thinking")) {
        if (!member_read_text(message, "thinking", param, &text, error)) return false;
        messages_add_reasoning(builder, text);
    }
    if (!calls || (calls->type == JSON_ARRAY && calls->size == 0)) return true;
    snprintf(path, sizeof path, "messages[%d].tool_calls", index);
    return chat_check_caller(role, path, error) && read_calls(builder, calls, path, ids, error);
}

bool request_read_ollama_chat(ChatRequest *request, const Json *body, ApiError *error) {
    request->input_field = "messages";
    if (!read_fields(request, API_OLLAMA_CHAT, body, error)) return false;
    const Json *messages = member_get(body, "messages");
    if (!messages) return api_missing("messages", error);
    MessageBuilder builder = {.arena = request->arena};
    Ids ids = {0};
    int index = 0;
    for (JSON_EACH(message, messages))
        if (!read_message(&builder, message, index++, &ids, error)) return false;
    return messages_end(&builder, request, error) && request_settle_chat(request, error) &&
        object_members_check(request, API_OLLAMA_CHAT, body, error);
}

/* ---- generate ---- */

bool request_read_ollama_generate(ChatRequest *request, const Json *body, ApiError *error) {
    request->input_field = "prompt";
    static const Json nothing = {.type = JSON_STRING, .string = ""};
    if (!read_fields(request, API_OLLAMA_GENERATE, body, error)) return false;
    const Json *prompt = member_get(body, "prompt"), *system = member_get(body, "system"),
               *images = member_get(body, "images");
    if (!prompt && request->suffix.size == 0) return api_missing("prompt", error);
    if (!prompt) prompt = &nothing;
    if (images && images->size > 0 && (request->raw || request->suffix.size > 0))
        return api_unsupported("images", error);
    MessageBuilder builder = {.arena = request->arena};
    if (system && !request->raw) {
        messages_begin(&builder, "system");
        messages_add_text(&builder, json_slice(system));
    }
    messages_begin(&builder, "user");
    if (images && !image_read_list(&builder, images, "images", error)) return false;
    messages_add_text(&builder, json_slice(prompt));
    return messages_end(&builder, request, error) && request_settle_chat(request, error);
}
