/* Requests of the Responses API, rewritten as chat completions. Nothing is kept between requests. */
#include "server/api/responses_request.h"

#include <stdio.h>

#include "server/api/adapter.h"
#include "server/api/fields.h"

static const char *const text_types[] = {"input_text", "output_text", "text", "refusal", NULL};

/* ---- input ---- */

/* Messages are written one behind the other; calls of tools join the assistant's message before them. */
typedef struct Input {
    Buffer *out;
    int count;
    bool assistant; /* a message of the assistant is open, */
    bool content;   /* has content, */
    int calls;      /* and so many calls */
    const Json *reasoning;
} Input;

static void close_assistant(Input *in) {
    if (!in->assistant) return;
    if (in->calls) buffer_byte(in->out, ']');
    if (!in->content && !in->calls) buffer_text(in->out, ",\"content\":\"\"");
    buffer_byte(in->out, '}');
    in->assistant = in->content = false;
    in->calls = 0;
}

static void open_message(Input *in, const char *role) {
    close_assistant(in);
    buffer_printf(in->out, "%s{\"role\":\"%s\"", in->count++ ? "," : "", role);
}

/* The text of a reasoning item, which belongs to what follows it. */
static void write_reasoning(Input *in) {
    const Json *content = in->reasoning ? adapter_get(in->reasoning, "content") : NULL;
    in->reasoning = NULL;
    if (!content || content->type != JSON_ARRAY) return;
    Buffer text = {0};
    for (JSON_EACH(part, content)) {
        const Json *one = adapter_get(part, "text");
        if (one && one->type == JSON_STRING) buffer_slice(&text, json_slice(one));
    }
    if (text.size > 0) adapter_text("reasoning_content", buffer_view(&text), in->out);
    in->out->failed |= text.failed;
    buffer_free(&text);
}

static void open_assistant(Input *in) {
    open_message(in, "assistant");
    in->assistant = true;
    write_reasoning(in);
}

static bool read_message(Input *in, const Json *item, const char *param, ApiError *error) {
    static const char *const roles[] = {"user", "system", "developer"};
    const Json *content = adapter_get(item, "content");
    const char *role = NULL;
    for (size_t i = 0; i < COUNT_OF(roles); i++)
        if (adapter_is(item, "role", roles[i])) role = roles[i];
    const bool assistant = adapter_is(item, "role", "assistant");
    if (!role && !assistant)
        return api_fail(error, 400, "invalid_value", param,
            "Invalid value for '%s.role': expected 'user', 'assistant', 'system' or 'developer'.", param);
    if (!content) return api_missing(param, error);
    if (assistant)
        open_assistant(in);
    else
        open_message(in, role);
    buffer_text(in->out, ",\"content\":");
    if (!adapter_join(content, text_types, false, param, in->out, error)) return false;
    in->content = assistant;
    if (!assistant) buffer_byte(in->out, '}');
    return true;
}

static bool read_call(Input *in, const Json *item, const char *param, ApiError *error) {
    const Json *id = adapter_get(item, "call_id"), *name = adapter_get(item, "name"),
               *arguments = adapter_get(item, "arguments");
    if (!id || !name || !arguments) return api_missing(param, error);
    if (!in->assistant) open_assistant(in);
    buffer_text(in->out, in->calls++ ? ",{\"id\":" : ",\"tool_calls\":[{\"id\":");
    json_write(in->out, id);
    buffer_text(in->out, ",\"type\":\"function\",\"function\":{\"name\":");
    json_write(in->out, name);
    buffer_text(in->out, ",\"arguments\":");
    json_write(in->out, arguments);
    buffer_text(in->out, "}}");
    return true;
}

static bool read_output(Input *in, const Json *item, const char *param, ApiError *error) {
    const Json *id = adapter_get(item, "call_id"), *output = adapter_get(item, "output");
    if (!id || !output) return api_missing(param, error);
    open_message(in, "tool");
    adapter_copy(item, "call_id", "tool_call_id", in->out);
    buffer_text(in->out, ",\"content\":");
    if (!adapter_join(output, text_types, false, param, in->out, error)) return false;
    buffer_byte(in->out, '}');
    return true;
}

static bool read_item(Input *in, const Json *item, int index, ApiError *error) {
    char param[API_PARAM_MAX];
    snprintf(param, sizeof param, "input[%d]", index);
    if (!api_type(item, JSON_OBJECT, param, error)) return false;
    if (!adapter_get(item, "type") || adapter_is(item, "type", "message")) return read_message(in, item, param, error);
    if (adapter_is(item, "type", "function_call")) return read_call(in, item, param, error);
    if (adapter_is(item, "type", "function_call_output")) return read_output(in, item, param, error);
    if (!adapter_is(item, "type", "reasoning")) return api_unsupported(param, error);
    in->reasoning = item;
    return true;
}

static bool write_messages(const Json *body, Buffer *out, ApiError *error) {
    const Json *input = adapter_get(body, "input"), *instructions = adapter_get(body, "instructions");
    Input in = {.out = out};
    if (!input) return api_missing("input", error);
    buffer_text(out, ",\"messages\":[");
    if (instructions) {
        Slice text;
        if (!api_string(instructions, "instructions", &text, error)) return false;
        open_message(&in, "system");
        adapter_text("content", text, out);
        buffer_byte(out, '}');
    }
    if (input->type == JSON_STRING) {
        open_message(&in, "user");
        adapter_text("content", json_slice(input), out);
        buffer_byte(out, '}');
    } else {
        if (!api_type(input, JSON_ARRAY, "input", error)) return false;
        int index = 0;
        for (JSON_EACH(item, input))
            if (!read_item(&in, item, index++, error)) return false;
        close_assistant(&in);
    }
    buffer_byte(out, ']');
    return true;
}

/* ---- the rest ---- */

/* Tools that are no functions are left out, as agents send those of the service whatever the model. */
static bool write_tools(const Json *body, Buffer *out, ApiError *error) {
    const Json *tools = adapter_get(body, "tools");
    if (!tools) return true;
    if (!api_type(tools, JSON_ARRAY, "tools", error)) return false;
    int count = 0;
    buffer_text(out, ",\"tools\":[");
    for (JSON_EACH(tool, tools)) {
        if (!api_type(tool, JSON_OBJECT, "tools", error)) return false;
        const Json *type = adapter_get(tool, "type");
        if (!type) return api_missing("tools", error);
        if (!api_type(type, JSON_STRING, "tools", error)) return false;
        if (!adapter_is(tool, "type", "function")) continue;
        if (!adapter_get(tool, "name")) return api_missing("tools", error);
        if (count++) buffer_byte(out, ',');
        adapter_tool(tool, "parameters", out);
    }
    buffer_byte(out, ']');
    return true;
}

static void write_named(const Json *tool, Buffer *out) {
    buffer_text(out, "{\"type\":\"function\",\"function\":{\"name\":");
    json_write(out, adapter_get(tool, "name"));
    buffer_text(out, "}}");
}

static bool write_choice(const Json *body, Buffer *out, ApiError *error) {
    const Json *choice = adapter_get(body, "tool_choice");
    if (!choice) return true;
    if (choice->type == JSON_STRING) {
        adapter_copy(body, "tool_choice", "tool_choice", out);
        return true;
    }
    const Json *tools = adapter_get(choice, "tools"), *mode = adapter_get(choice, "mode");
    if (adapter_is(choice, "type", "function") && adapter_get(choice, "name")) {
        buffer_text(out, ",\"tool_choice\":");
        write_named(choice, out);
        return true;
    }
    if (!adapter_is(choice, "type", "allowed_tools") || !tools || tools->type != JSON_ARRAY || !mode)
        return api_unsupported("tool_choice", error);
    buffer_text(out, ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":");
    json_write(out, mode);
    buffer_text(out, ",\"tools\":[");
    int count = 0;
    for (JSON_EACH(tool, tools)) {
        if (!adapter_get(tool, "name")) continue;
        if (count++) buffer_byte(out, ',');
        write_named(tool, out);
    }
    buffer_text(out, "]}}");
    return true;
}

static bool write_format(const Json *body, Buffer *out, ApiError *error) {
    const Json *text = adapter_get(body, "text"), *format = text ? adapter_get(text, "format") : NULL;
    if (!format || adapter_is(format, "type", "text")) return true;
    if (adapter_is(format, "type", "json_object")) {
        buffer_text(out, ",\"response_format\":{\"type\":\"json_object\"}");
        return true;
    }
    if (!adapter_is(format, "type", "json_schema")) return api_unsupported("text.format", error);
    if (!adapter_get(format, "schema") || !adapter_get(format, "name")) return api_missing("text.format.schema", error);
    buffer_text(out, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":");
    json_write(out, adapter_get(format, "name"));
    adapter_copy(format, "schema", "schema", out);
    adapter_copy(format, "strict", "strict", out);
    buffer_text(out, "}}");
    return true;
}

enum { ECHO_BYTES_MAX = 4 << 20 }; /* it is held until the answer is out, when the body is gone */

/* The functions, with what a response must say of each. Other tools are not there for the model, so they are not
 * repeated. */
static void echo_tools(const Json *tools, Buffer *out) {
    int count = 0;
    buffer_text(out, ",\"tools\":[");
    for (JSON_EACH(tool, tools)) {
        if (!adapter_is(tool, "type", "function")) continue;
        if (count++) buffer_byte(out, ',');
        buffer_text(out, "{\"type\":\"function\"");
        adapter_copy(tool, "name", "name", out);
        adapter_copy(tool, "description", "description", out);
        static const char *const required[] = {"parameters", "strict"};
        for (size_t i = 0; i < COUNT_OF(required); i++) {
            if (adapter_get(tool, required[i]))
                adapter_copy(tool, required[i], required[i], out);
            else
                buffer_printf(out, ",\"%s\":null", required[i]);
        }
        buffer_byte(out, '}');
    }
    buffer_byte(out, ']');
}

/* What form the text was to have; members that are null are as absent ones. */
static void echo_text(const Json *text, Buffer *out) {
    static const char *const members[] = {"name", "description", "schema", "strict"};
    const Json *format = text ? adapter_get(text, "format") : NULL;
    buffer_text(out, ",\"text\":{\"format\":{\"type\":");
    if (format)
        json_write(out, adapter_get(format, "type"));
    else
        buffer_text(out, "\"text\"");
    for (size_t i = 0; format && i < COUNT_OF(members); i++) adapter_copy(format, members[i], members[i], out);
    buffer_byte(out, '}');
    if (text) adapter_copy(text, "verbosity", "verbosity", out);
    buffer_byte(out, '}');
}

/* Members of the response that repeat the request, each with a comma in front. */
static bool write_echo(ApiRequest *request, const Json *body, ApiError *error) {
    static const struct {
        const char *name, *otherwise;
    } members[] = {{"instructions", "null"}, {"max_output_tokens", "null"}, {"max_tool_calls", "null"},
        {"metadata", "{}"}, {"parallel_tool_calls", "true"}, {"prompt_cache_key", "null"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"}, {"safety_identifier", "null"}, {"temperature", "1"},
        {"tool_choice", "\"auto\""}, {"top_p", "1"}, {"user", NULL /* absent: it is never null */}};
    Buffer echo = {.limit = ECHO_BYTES_MAX};
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        if (adapter_get(body, members[i].name))
            adapter_copy(body, members[i].name, members[i].name, &echo);
        else if (members[i].otherwise)
            buffer_printf(&echo, ",\"%s\":%s", members[i].name, members[i].otherwise);
    }
    echo_text(adapter_get(body, "text"), &echo);
    const Json *tools = adapter_get(body, "tools");
    if (tools)
        echo_tools(tools, &echo);
    else
        buffer_text(&echo, ",\"tools\":[]");
    const bool limited = echo.limited;
    const char *copy = echo.failed ? NULL : arena_copy(request->arena, buffer_view(&echo));
    request->echo = (Slice){copy, echo.size};
    buffer_free(&echo);
    if (limited)
        return api_fail(error, 400, "invalid_value", NULL,
            "What the response repeats of the request (instructions, tools, text …) has more than %d bytes.",
            ECHO_BYTES_MAX);
    return copy || api_out_of_memory(error);
}

bool responses_read(ApiRequest *request, const Json *body, ApiError *error) {
    Buffer chat = {0};
    buffer_text(&chat, "{\"n\":1");
    if (!fields_check(DOOR_RESPONSES, body, &chat, error) || !write_messages(body, &chat, error) ||
        !write_tools(body, &chat, error) || !write_choice(body, &chat, error) || !write_format(body, &chat, error)) {
        buffer_free(&chat);
        return false;
    }
    buffer_byte(&chat, '}');
    if (!adapter_read(request, &chat, error)) return false;
    const Json *reasoning = adapter_get(body, "reasoning"),
               *effort = reasoning ? adapter_get(reasoning, "effort") : NULL;
    if (effort) tools_hint_effort(&request->tools, json_slice(effort));
    return write_echo(request, body, error);
}
