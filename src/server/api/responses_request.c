/* Requests of the Responses API. Nothing is stored between requests. */
#include <stdio.h>

#include "server/api/fields.h"
#include "server/api/file_parts.h"
#include "server/api/media_parts.h"
#include "server/api/members.h"
#include "server/api/message_builder.h"
#include "server/api/object_members.h"
#include "server/api/request.h"

static const PartType text_types[] = {{"input_text", CONTENT_TEXT, "text", NULL},
    {"output_text", CONTENT_TEXT, "text", NULL}, {"text", CONTENT_TEXT, "text", NULL},
    {"refusal", CONTENT_TEXT, "refusal", NULL}, {"input_image", CONTENT_IMAGE, NULL, image_read_responses},
    {"input_video", CONTENT_VIDEO, NULL, video_read_responses}, {"input_audio", CONTENT_AUDIO, NULL, audio_read_input},
    {"input_file", CONTENT_FILE, NULL, file_read_responses}, {0}};

/* ---- input ---- */

/* Items become messages; calls of tools join the assistant's message before them. */
typedef struct Input {
    MessageBuilder messages;
    bool assistant;        /* the last message is the assistant's */
    const Json *reasoning; /* an item that belongs to the assistant's next message; NULL: none */
} Input;

static void begin_message(Input *in, const char *role) {
    messages_begin(&in->messages, role);
    in->assistant = !strcmp(role, "assistant");
    const Json *content = in->assistant ? member_get(in->reasoning, "content") : NULL;
    if (in->assistant) in->reasoning = NULL;
    if (!content || content->type != JSON_ARRAY) return;
    for (JSON_EACH(part, content)) {
        const Json *text = member_get(part, "text");
        if (text && text->type == JSON_STRING && text->size > 0)
            messages_add_reasoning(&in->messages, json_slice(text));
    }
}

static bool read_message(Input *in, const Json *item, const char *param, ApiError *error) {
    static const struct {
        const char *api, *template;
    } roles[] = {{"user", "user"}, {"system", "system"}, {"developer", "system"}, {"assistant", "assistant"}};
    const Json *content = member_get(item, "content");
    const char *role = NULL;
    char path[API_PARAM_MAX];
    for (size_t i = 0; i < COUNT_OF(roles); i++)
        if (member_is(item, "role", roles[i].api)) role = roles[i].template;
    snprintf(path, sizeof path, "%.100s.role", param);
    if (!role)
        return api_fail(error, 400, "invalid_value", path,
            "Invalid value for '%s': expected 'user', 'assistant', 'system' or 'developer'.", path);
    snprintf(path, sizeof path, "%.100s.content", param);
    if (!content) return api_missing(path, error);
    begin_message(in, role);
    return messages_add_content(&in->messages, content, path, text_types, error);
}

static bool read_call(Input *in, const Json *item, const char *param, ApiError *error) {
    ChatCall call = {0};
    if (!member_read_text(item, "call_id", param, &call.id, error) ||
        !member_read_text(item, "name", param, &call.name, error) ||
        !member_read_text(item, "arguments", param, &call.arguments, error))
        return false;
    if (!in->assistant) begin_message(in, "assistant");
    return messages_add_text_call(&in->messages, &call, error);
}

static bool read_output(Input *in, const Json *item, const char *param, ApiError *error) {
    const Json *output = member_get(item, "output");
    char path[API_PARAM_MAX];
    Slice id;
    snprintf(path, sizeof path, "%.100s.output", param);
    if (!member_read_text(item, "call_id", param, &id, error)) return false;
    if (!output) return api_missing(path, error);
    in->assistant = false;
    messages_begin(&in->messages, "tool")->call_id = id;
    return messages_add_content(&in->messages, output, path, text_types, error);
}

static bool read_item(Input *in, const Json *item, int index, ApiError *error) {
    char param[API_PARAM_MAX];
    Slice type = SLICE("message");
    snprintf(param, sizeof param, "input[%d]", index);
    if (!api_type(item, JSON_OBJECT, param, error)) return false;
    if (member_get(item, "type") && !member_read_text(item, "type", param, &type, error)) return false;
    if (slice_is(type, "message")) return read_message(in, item, param, error);
    if (slice_is(type, "function_call")) return read_call(in, item, param, error);
    if (slice_is(type, "function_call_output")) return read_output(in, item, param, error);
    if (!slice_is(type, "reasoning"))
        return api_fail(error, 400, "unsupported_parameter", param,
            "Unsupported parameter: '%s': an item of type '%.*s' is not supported by this server.", param,
            SLICE_SHOWN(type));
    in->reasoning = item;
    return true;
}

static bool read_input(ChatRequest *request, const Json *body, ApiError *error) {
    const Json *input = member_get(body, "input"), *instructions = member_get(body, "instructions");
    Input in = {.messages = {.arena = request->arena, .skip_leading_empty = true, .media_hosts = request->media_hosts}};
    if (!input) return api_missing("input", error);
    if (instructions) {
        begin_message(&in, "system");
        messages_add_text(&in.messages, json_slice(instructions));
    }
    if (input->type == JSON_STRING) {
        begin_message(&in, "user");
        messages_add_text(&in.messages, json_slice(input));
        return messages_end(&in.messages, request, error);
    }
    if (!api_type(input, JSON_ARRAY, "input", error)) return false;
    int index = 0;
    for (JSON_EACH(item, input))
        if (!read_item(&in, item, index++, error)) return false;
    return messages_end(&in.messages, request, error);
}

/* ---- what the response repeats ---- */

enum { ECHO_BYTES_MAX = 4 << 20 }; /* held until the response has been sent */

/* The functions, with the members that a response must have. Other tools are left out of the request, so they are not
 * repeated. */
static void echo_tools(const Json *tools, Buffer *out) {
    int count = 0;
    buffer_text(out, ",\"tools\":[");
    for (JSON_EACH(tool, tools)) {
        if (!member_is(tool, "type", "function")) continue;
        if (count++) buffer_byte(out, ',');
        buffer_text(out, "{\"type\":\"function\"");
        member_copy(tool, "name", "name", out);
        member_copy(tool, "description", "description", out);
        static const char *const required[] = {"parameters", "strict"};
        for (size_t i = 0; i < COUNT_OF(required); i++) {
            if (member_get(tool, required[i]))
                member_copy(tool, required[i], required[i], out);
            else
                buffer_printf(out, ",\"%s\":null", required[i]);
        }
        buffer_byte(out, '}');
    }
    buffer_byte(out, ']');
}

/* The format of the text; null members are absent. */
static void echo_text(const Json *text, Buffer *out) {
    static const char *const members[] = {"name", "description", "schema", "strict"};
    const Json *format = text ? member_get(text, "format") : NULL;
    buffer_text(out, ",\"text\":{\"format\":{\"type\":");
    if (format)
        json_write(out, member_get(format, "type"));
    else
        buffer_text(out, "\"text\"");
    for (size_t i = 0; format && i < COUNT_OF(members); i++) member_copy(format, members[i], members[i], out);
    buffer_byte(out, '}');
    if (text) member_copy(text, "verbosity", "verbosity", out);
    buffer_byte(out, '}');
}

/* Members of the response that repeat the request, each with a comma in front. */
static bool write_echo(ChatRequest *request, const Json *body, ApiError *error) {
    static const struct {
        const char *name, *otherwise;
    } members[] = {{"instructions", "null"}, {"max_output_tokens", "null"}, {"max_tool_calls", "null"},
        {"metadata", "{}"}, {"parallel_tool_calls", "true"}, {"prompt_cache_key", "null"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"}, {"safety_identifier", "null"}, {"temperature", "1"},
        {"tool_choice", "\"auto\""}, {"top_p", "1"}, {"user", NULL /* absent: it is never null */}};
    Buffer echo = {.limit = ECHO_BYTES_MAX};
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        if (member_get(body, members[i].name))
            member_copy(body, members[i].name, members[i].name, &echo);
        else if (members[i].otherwise)
            buffer_printf(&echo, ",\"%s\":%s", members[i].name, members[i].otherwise);
    }
    echo_text(member_get(body, "text"), &echo);
    const Json *tools = member_get(body, "tools");
    if (tools)
        echo_tools(tools, &echo);
    else
        buffer_text(&echo, ",\"tools\":[]");
    const bool limited = echo.limited;
    const char *copy = echo.failed ? NULL : arena_copy(request->arena, buffer_view(&echo));
    request->response.repeated = (Slice){copy, echo.size};
    buffer_free(&echo);
    if (limited)
        return api_fail(error, 400, "invalid_value", NULL,
            "What the response repeats of the request (instructions, tools, text …) has more than %d bytes.",
            ECHO_BYTES_MAX);
    return copy || api_out_of_memory(error);
}

bool request_read_responses(ChatRequest *request, const Json *body, ApiError *error) {
    request->input_field = "input";
    return fields_read(request, API_RESPONSES, body, error) && read_input(request, body, error) &&
        object_members_check(request, API_RESPONSES, body, error) && request_settle_chat(request, error) &&
        write_echo(request, body, error);
}
