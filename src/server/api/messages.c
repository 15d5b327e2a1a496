/* POST /v1/messages: responses of Anthropic's Messages API. Reference: its documentation, version 2023-06-01. */
#include "base/json_check.h"
#include "server/api/answer_writer.h"
#include "server/api/members.h"
#include "server/api/messages_api.h"
#include "server/api/request.h"
#include "server/api/endpoint.h"
#include "server/routes.h"

static bool make_prompts(Exchange *x, const ChatRequest *request, ApiError *error) {
    if (request->generation.request.max_tokens < 0 && x->route->completes) return api_missing("max_tokens", error);
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
        member_text("name", answer_event_text(events, at), out);
        buffer_text(out, ",\"input\":");
        return;
    }
    buffer_printf(out, "{\"type\":\"%s\"", kind == ANSWER_REASONING ? "thinking" : "text");
    member_text(kind == ANSWER_REASONING ? "thinking" : "text", text, out);
    buffer_text(out, kind == ANSWER_REASONING ? ",\"signature\":\"\"}" : "}");
}

/* What a call that was cut had so far is no object: then its block says so. */
static void write_input(const AnswerEvents *events, int call, Buffer *out) {
    Buffer arguments = {0};
    answer_arguments(events, call, &arguments);
    if (json_is_object(buffer_view(&arguments))) {
        json_write_compact(out, buffer_view(&arguments));
    } else {
        buffer_text(out, "{\"incomplete\":");
        json_write_string(out, buffer_view(&arguments));
        buffer_byte(out, '}');
    }
    out->failed |= arguments.failed;
    buffer_free(&arguments);
}

static bool is_hidden(const Exchange *x, AnswerEventKind kind) {
    return kind == ANSWER_REASONING && x->response_options.hide_reasoning;
}

static void write_whole(Exchange *x, Buffer *out) {
    const Choice *choice = &x->generation.choices[0];
    const AnswerEvents *events = &choice->events;
    bool first = true;
    write_head(x, out);
    buffer_text(out, ",\"content\":[");
    for (int i = 0; i < events->count; i++) {
        const AnswerEventKind kind = events->list[i].kind;
        if (kind == ANSWER_ARGUMENTS || kind == ANSWER_CALL_END || is_hidden(x, kind)) continue;
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
        if (is_hidden(x, kind)) continue;
        const bool goes_on = x->block.open && (kind == ANSWER_ARGUMENTS || x->block.kind == kind);
        if (kind == ANSWER_CALL || !goes_on) open_block(x, events, i, out);
        if (kind == ANSWER_CALL) continue;
        begin_event("content_block_delta", out);
        buffer_printf(out, ",\"index\":%d,\"delta\":{\"type\":\"%s\"", x->block.index, deltas[kind][0]);
        member_text(deltas[kind][1], answer_event_text(events, i), out);
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
    member_text("message", slice_of(error->message), out);
    if (error->code == thread_unsupported)
        buffer_printf(out, ",\"details\":{\"error_code\":\"%s\",\"unsupported\":[\"thread\"]}", thread_unsupported);
    buffer_byte(out, '}');
    member_text("request_id", slice_of(x->request_id), out);
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
    .read = request_read_messages,
    .make_prompts = make_prompts,
    .write_start = write_start,
    .write_delta = write_delta,
    .write_finish = write_finish,
    .write_whole = write_whole,
};
