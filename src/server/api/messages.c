/* POST /v1/messages: Anthropic's Messages API. Reference: its documentation, version 2023-06-01. */
#include <stdio.h>

#include "server/api/answer_writer.h"
#include "server/api/adapter.h"
#include "server/api/endpoint.h"
#include "server/api/field_readers.h"
#include "server/api/fields.h"
#include "server/routes.h"

static const char *const text_types[] = {"text", NULL};

/* ---- the request ---- */

static bool is_block(const Json *block, const char *type) { return adapter_is(block, "type", type); }

static void write_message_head(const char *role, Buffer *out) {
    if (out->size > 0 && out->data[out->size - 1] != '[') buffer_byte(out, ','); /* of size 0 when memory has ended */
    buffer_printf(out, "{\"role\":\"%s\"", role);
}

/* What a tool said: a message of its own. */
static bool write_result(const Json *block, const char *param, Buffer *out, ApiError *error) {
    const Json *content = adapter_get(block, "content");
    write_message_head("tool", out);
    adapter_copy(block, "tool_use_id", "tool_call_id", out);
    buffer_text(out, ",\"content\":");
    if (!content)
        buffer_text(out, "\"\"");
    else if (!adapter_join(content, text_types, false, param, out, error))
        return false;
    buffer_byte(out, '}');
    return true;
}

static bool write_calls(const Json *content, const char *param, Buffer *out, ApiError *error) {
    int calls = 0;
    for (JSON_EACH(block, content)) {
        if (!is_block(block, "tool_use")) continue;
        const Json *name = adapter_get(block, "name"), *id = adapter_get(block, "id"),
                   *input = adapter_get(block, "input");
        if (!name || !id || !input) return api_missing(param, error);
        Buffer arguments = {0};
        json_write(&arguments, input);
        buffer_text(out, calls++ ? ",{\"id\":" : ",\"tool_calls\":[{\"id\":");
        json_write(out, id);
        buffer_text(out, ",\"type\":\"function\",\"function\":{\"name\":");
        json_write(out, name);
        buffer_text(out, ",\"arguments\":");
        json_write_string(out, buffer_view(&arguments));
        buffer_text(out, "}}");
        out->failed |= arguments.failed;
        buffer_free(&arguments);
    }
    if (calls) buffer_byte(out, ']');
    return true;
}

static bool check_blocks(const Json *content, const char *param, bool *texts, bool *others, ApiError *error) {
    static const char *const known[] = {"text", "tool_use", "tool_result", "thinking", "redacted_thinking"};
    for (JSON_EACH(block, content)) {
        bool found = false;
        for (size_t i = 0; i < COUNT_OF(known) && !found; i++) found = is_block(block, known[i]);
        if (!found) return api_unsupported(param, error);
        *texts |= is_block(block, "text");
        *others |= is_block(block, "tool_result") || is_block(block, "tool_use");
    }
    return true;
}

static bool write_blocks(const char *role, const Json *content, const char *param, Buffer *out, ApiError *error) {
    bool texts = false, others = false;
    if (!check_blocks(content, param, &texts, &others, error)) return false;
    for (JSON_EACH(block, content))
        if (is_block(block, "tool_result") && !write_result(block, param, out, error)) return false;
    const bool assistant = !strcmp(role, "assistant");
    if (!texts && others && !assistant) return true;
    write_message_head(role, out);
    if (texts || !others) {
        buffer_text(out, ",\"content\":");
        if (!adapter_join(content, text_types, true, param, out, error)) return false;
    }
    for (JSON_EACH(block, content))
        if (assistant && is_block(block, "thinking")) {
            adapter_copy(block, "thinking", "reasoning_content", out);
            break;
        }
    if (assistant && !write_calls(content, param, out, error)) return false;
    buffer_byte(out, '}');
    return true;
}

static bool write_message(const Json *message, int index, Buffer *out, ApiError *error) {
    char param[API_PARAM_MAX];
    snprintf(param, sizeof param, "messages[%d]", index);
    if (!api_type(message, JSON_OBJECT, param, error)) return false;
    const char *role = adapter_is(message, "role", "user") ? "user"
        : adapter_is(message, "role", "assistant")         ? "assistant"
        : adapter_is(message, "role", "system")            ? "system"
                                                           : NULL;
    snprintf(param, sizeof param, "messages[%d].role", index);
    if (!role)
        return api_fail(
            error, 400, "invalid_value", param, "Invalid value for '%s': expected 'user' or 'assistant'.", param);
    snprintf(param, sizeof param, "messages[%d].content", index);
    const Json *content = adapter_get(message, "content");
    if (!content) return api_missing(param, error);
    if (content->type != JSON_STRING && !api_type(content, JSON_ARRAY, param, error)) return false;
    if (content->type == JSON_ARRAY) return write_blocks(role, content, param, out, error);
    write_message_head(role, out);
    adapter_text("content", json_slice(content), out);
    buffer_byte(out, '}');
    return true;
}

static bool write_messages(const Json *body, Buffer *out, ApiError *error) {
    const Json *messages = adapter_get(body, "messages"), *system = adapter_get(body, "system");
    if (!messages) return api_missing("messages", error);
    if (!api_type(messages, JSON_ARRAY, "messages", error)) return false;
    if (messages->size == 0)
        return api_fail(error, 400, "empty_array", "messages", "messages: at least one message is required");
    buffer_text(out, ",\"messages\":[");
    if (system) {
        write_message_head("system", out);
        buffer_text(out, ",\"content\":");
        if (!adapter_join(system, text_types, false, "system", out, error)) return false;
        buffer_byte(out, '}');
    }
    int index = 0;
    for (JSON_EACH(message, messages))
        if (!write_message(message, index++, out, error)) return false;
    buffer_byte(out, ']');
    return true;
}

static bool write_tools(const Json *body, Buffer *out, ApiError *error) {
    const Json *tools = adapter_get(body, "tools");
    if (!tools) return true;
    if (!api_type(tools, JSON_ARRAY, "tools", error)) return false;
    buffer_text(out, ",\"tools\":[");
    int index = 0;
    for (JSON_EACH(tool, tools)) {
        char param[API_PARAM_MAX];
        snprintf(param, sizeof param, "tools[%d]", index);
        if (!api_type(tool, JSON_OBJECT, param, error)) return false;
        if (adapter_get(tool, "type") && !is_block(tool, "custom")) return api_unsupported(param, error);
        snprintf(param, sizeof param, "tools[%d].name", index);
        if (!adapter_get(tool, "name")) return api_missing(param, error);
        if (index++) buffer_byte(out, ',');
        adapter_tool(tool, "input_schema", out);
    }
    buffer_byte(out, ']');
    return true;
}

static bool write_choice(const Json *body, Buffer *out, ApiError *error) {
    const Json *choice = adapter_get(body, "tool_choice");
    if (!choice) return true;
    if (!api_type(choice, JSON_OBJECT, "tool_choice", error)) return false;
    const Json *single = adapter_get(choice, "disable_parallel_tool_use"), *name = adapter_get(choice, "name");
    if (single && single->type == JSON_BOOL && single->boolean) buffer_text(out, ",\"parallel_tool_calls\":false");
    if (is_block(choice, "auto") || is_block(choice, "none")) {
        adapter_copy(choice, "type", "tool_choice", out);
    } else if (is_block(choice, "any")) {
        buffer_text(out, ",\"tool_choice\":\"required\"");
    } else if (is_block(choice, "tool") && name) {
        buffer_text(out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
        json_write(out, name);
        buffer_text(out, "}}");
    } else {
        return api_fail(error, 400, "invalid_value", "tool_choice", "Invalid value for 'tool_choice'.");
    }
    return true;
}

/* Conversations that a server holds are not kept; with this code Anthropic's clients send the whole one instead. */
static const char thread_unsupported[] = "thread_unsupported_request";

/* {"type": "json_schema", "schema"} */
static bool write_format(const Json *body, Buffer *out, ApiError *error) {
    const Json *config = adapter_get(body, "output_config"), *format = config ? adapter_get(config, "format") : NULL;
    const char *param = format ? "output_config.format" : "output_format";
    if (!format) format = adapter_get(body, "output_format");
    if (!format) return true;
    const Json *schema = adapter_get(format, "schema");
    if (!is_block(format, "json_schema")) return api_unsupported(param, error);
    if (!schema) return api_missing(param, error);
    buffer_text(out, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"output\",\"schema\":");
    json_write(out, schema);
    buffer_text(out, "}}");
    return true;
}

static bool read_params(ApiRequest *request, const Json *body, ApiError *error) {
    Buffer chat = {0};
    if (adapter_get(body, "thread"))
        return api_fail(
            error, 400, thread_unsupported, "thread", "'thread' is not supported: send the whole conversation.");
    buffer_text(&chat, "{\"n\":1");
    if (!fields_check(DOOR_MESSAGES, body, &chat, error) || !write_messages(body, &chat, error) ||
        !write_tools(body, &chat, error) || !write_choice(body, &chat, error) || !write_format(body, &chat, error)) {
        buffer_free(&chat);
        return false;
    }
    buffer_byte(&chat, '}');
    if (!adapter_read(request, &chat, error)) return false;
    const Json *stops = adapter_get(body, "stop_sequences"), *config = adapter_get(body, "output_config");
    const Json *effort = config ? adapter_get(config, "effort") : NULL, *thinking = adapter_get(body, "thinking");
    if (stops && !read_stops(request, stops, "stop_sequences", STOP_STRINGS_MAX, error)) return false;
    if (effort) tools_hint_effort(&request->tools, json_slice(effort));
    if (thinking) tools_hint_thinking(&request->tools, !is_block(thinking, "disabled"));
    request->cut = true;
    return true;
}

static bool make_prompts(Exchange *x, const ApiRequest *request, ApiError *error) {
    if (request->max_tokens < 0 && x->route->completes) return api_missing("max_tokens", error);
    if (!chat_make_prompts(x, request, error)) return false;
    const int context = chat_model_context(x->model);
    return x->prompts->count < (size_t)context || !x->route->completes ||
        api_fail(error, 400, "context_length_exceeded", "messages", "prompt is too long: %zu tokens > %d maximum",
            x->prompts->count, context - 1); /* agents know it by these words, and shorten */
}

/* ---- the answer ---- */

static void write_stop(const Choice *choice, Buffer *out) {
    const bool stopped = choice->finish == FINISH_STOP && choice->stream.matched >= 0;
    buffer_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":",
        choice->finish == FINISH_LENGTH    ? "max_tokens"
            : answer_ends_in_calls(choice) ? "tool_use"
            : stopped                      ? "stop_sequence"
                                           : "end_turn");
    if (stopped)
        json_write_string(out, choice->stream.stops[choice->stream.matched]);
    else
        buffer_text(out, "null");
}

static void write_usage(const Generation *g, Buffer *out) {
    const int64_t cached = generation_cached_tokens(g);
    buffer_printf(out,
        "{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%lld,"
        "\"output_tokens\":%lld}",
        (long long)(g->prompt_tokens - cached), (long long)cached, (long long)generation_answer_tokens(g));
}

static void write_head(Exchange *x, Buffer *out) {
    buffer_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", x->id);
    json_write_string(out, slice_of(x->model->name));
}

/* A block as it begins; whole: with all that it holds. */
static void begin_block(Exchange *x, const AnswerEvents *events, int at, bool whole, Buffer *out) {
    const AnswerEventKind kind = events->list[at].kind;
    const Slice text = whole ? answer_event_text(events, at) : SLICE("");
    char id[CALL_ID_BYTES];
    if (kind == ANSWER_CALL) {
        answer_call_id(x, 0, x->block.calls++, answer_event_text(events, at), id);
        buffer_text(out, "{\"type\":\"tool_use\",\"id\":");
        json_write_string(out, slice_of(id));
        adapter_text("name", answer_event_text(events, at), out);
        buffer_text(out, ",\"input\":");
        return;
    }
    buffer_printf(out, "{\"type\":\"%s\"", kind == ANSWER_REASONING ? "thinking" : "text");
    adapter_text(kind == ANSWER_REASONING ? "thinking" : "text", text, out);
    buffer_text(out, kind == ANSWER_REASONING ? ",\"signature\":\"\"}" : "}");
}

/* What a call that was cut had so far is no object: then its block says so. */
static void write_input(const AnswerEvents *events, int call, Buffer *out) {
    Buffer arguments = {0};
    Arena arena = {0};
    Error why;
    answer_arguments(events, call, &arguments);
    const Json *input = json_parse(&arena, buffer_view(&arguments), &why);
    if (input && input->type == JSON_OBJECT) {
        json_write(out, input);
    } else {
        buffer_text(out, "{\"incomplete\":");
        json_write_string(out, buffer_view(&arguments));
        buffer_byte(out, '}');
    }
    out->failed |= arguments.failed;
    buffer_free(&arguments);
    arena_free(&arena);
}

static void write_whole(Exchange *x, Buffer *out) {
    const Choice *choice = &x->generation.choices[0];
    const AnswerEvents *events = &choice->events;
    bool first = true;
    write_head(x, out);
    buffer_text(out, ",\"content\":[");
    for (int i = 0; i < events->count; i++) {
        const AnswerEventKind kind = events->list[i].kind;
        if (kind == ANSWER_ARGUMENTS || kind == ANSWER_CALL_END) continue;
        if (!first) buffer_byte(out, ',');
        first = false;
        begin_block(x, events, i, true, out);
        if (kind != ANSWER_CALL) continue;
        write_input(events, i, out);
        buffer_byte(out, '}');
    }
    buffer_text(out, "],");
    write_stop(choice, out);
    buffer_text(out, ",\"usage\":");
    write_usage(&x->generation, out);
    buffer_byte(out, '}');
}

/* ---- the stream ---- */

static void begin_event(const char *type, Buffer *out) {
    buffer_printf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void end_event(Buffer *out) { buffer_text(out, "}\n\n"); }

static void write_start(Exchange *x, int index, Buffer *out) {
    begin_event("message_start", out);
    buffer_text(out, ",\"message\":");
    write_head(x, out);
    buffer_text(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    write_usage(&x->generation, out);
    buffer_byte(out, '}');
    end_event(out);
}

static void close_block(Exchange *x, Buffer *out) {
    if (!x->block.open) return;
    begin_event("content_block_stop", out);
    buffer_printf(out, ",\"index\":%d", x->block.index++);
    end_event(out);
    x->block.open = false;
}

static void open_block(Exchange *x, const AnswerEvents *events, int at, Buffer *out) {
    close_block(x, out);
    begin_event("content_block_start", out);
    buffer_printf(out, ",\"index\":%d,\"content_block\":", x->block.index);
    begin_block(x, events, at, false, out);
    if (events->list[at].kind == ANSWER_CALL) buffer_text(out, "{}}");
    end_event(out);
    x->block.open = true;
    x->block.kind = events->list[at].kind;
}

static void write_delta(Exchange *x, int index, Buffer *out) {
    static const char *const deltas[][2] = {[ANSWER_CONTENT] = {"text_delta", "text"},
        [ANSWER_REASONING] = {"thinking_delta", "thinking"},
        [ANSWER_ARGUMENTS] = {"input_json_delta", "partial_json"}};
    Choice *choice = &x->generation.choices[index];
    const AnswerEvents *events = &choice->events;
    for (int i = 0; i < events->count; i++) {
        const AnswerEventKind kind = events->list[i].kind;
        if (kind == ANSWER_CALL_END) {
            close_block(x, out);
            continue;
        }
        const bool goes_on = x->block.open && (kind == ANSWER_ARGUMENTS || x->block.kind == kind);
        if (kind == ANSWER_CALL || !goes_on) open_block(x, events, i, out);
        if (kind == ANSWER_CALL) continue;
        begin_event("content_block_delta", out);
        buffer_printf(out, ",\"index\":%d,\"delta\":{\"type\":\"%s\"", x->block.index, deltas[kind][0]);
        adapter_text(deltas[kind][1], answer_event_text(events, i), out);
        buffer_byte(out, '}');
        end_event(out);
    }
    answer_events_clear(&choice->events);
    choice->token_count = 0;
}

static void write_finish(Exchange *x, int index, Buffer *out) {
    close_block(x, out);
    begin_event("message_delta", out);
    buffer_text(out, ",\"delta\":{");
    write_stop(&x->generation.choices[index], out);
    buffer_text(out, "},\"usage\":");
    write_usage(&x->generation, out);
    end_event(out);
}

static const char *error_type(const ApiError *error) {
    switch (error->status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return error->status >= 500 ? "api_error" : "invalid_request_error";
    }
}

static void write_error(const Exchange *x, const ApiError *error, Buffer *out) {
    buffer_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\"", error_type(error));
    adapter_text("message", slice_of(error->message), out);
    if (error->code == thread_unsupported)
        buffer_printf(out, ",\"details\":{\"error_code\":\"%s\",\"unsupported\":[\"thread\"]}", thread_unsupported);
    buffer_byte(out, '}');
    adapter_text("request_id", slice_of(x->request_id), out);
    buffer_byte(out, '}');
}

static void write_failure(Exchange *x, const ApiError *error, Buffer *out) {
    buffer_text(out, "event: error\ndata: ");
    write_error(x, error, out);
    buffer_text(out, "\n\n");
}

const Endpoint endpoint_messages = {
    .id_prefix = "msg_",
    .done = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    .heartbeat = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    .write_error = write_error,
    .write_failure = write_failure,
    .read_params = read_params,
    .make_prompts = make_prompts,
    .write_start = write_start,
    .write_delta = write_delta,
    .write_finish = write_finish,
    .write_whole = write_whole,
};
