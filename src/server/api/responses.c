/* POST /v1/responses: OpenAI's Responses API, without anything kept between requests. Reference: OpenAI's OpenAPI
 * document 2.3.0 (Response, ResponseStreamEvent). */
#include <stdio.h>

#include "server/api/answer_writer.h"
#include "server/api/members.h"
#include "server/api/endpoint.h"
#include "server/api/request.h"
#include "server/api/openai_writer.h"

/* ---- items ---- */

/* An item of the output as it is at its beginning, or whole: at is the event in x->kept with which it begins. */
static void write_item_id(const Exchange *x, AnswerEventKind kind, int index, Buffer *out) {
    const char *prefix = kind == ANSWER_CALL ? "fc_" : kind == ANSWER_REASONING ? "rs_" : "msg_";
    buffer_printf(out, "\"%s%s_%d\"", prefix, x->id + strlen("resp_"), index);
}

static void write_call_item(const Exchange *x, int at, int call, bool whole, Buffer *out) {
    char id[CALL_ID_BYTES];
    Buffer arguments = {0};
    const Slice name = answer_event_text(&x->kept, at);
    if (whole) answer_arguments(&x->kept, at, &arguments);
    answer_call_id(x, 0, call, name, id);
    buffer_text(out, ",\"type\":\"function_call\"");
    member_text("call_id", slice_of(id), out);
    member_text("name", name, out);
    member_text("arguments", buffer_view(&arguments), out);
    out->failed |= arguments.failed;
    buffer_free(&arguments);
}

static void write_part(AnswerEventKind kind, Slice text, Buffer *out) {
    buffer_printf(out, "{\"type\":\"%s\"", kind == ANSWER_REASONING ? "reasoning_text" : "output_text");
    member_text("text", text, out);
    buffer_text(out, kind == ANSWER_REASONING ? "}" : ",\"annotations\":[],\"logprobs\":[]}");
}

static void write_item(const Exchange *x, int at, int index, int call, bool whole, bool cut, Buffer *out) {
    const AnswerEventKind kind = x->kept.list[at].kind;
    buffer_text(out, "{\"id\":");
    write_item_id(x, kind, index, out);
    buffer_printf(out, ",\"status\":\"%s\"", !whole ? "in_progress" : cut ? "incomplete" : "completed");
    if (kind == ANSWER_CALL) {
        write_call_item(x, at, call, whole, out);
    } else {
        buffer_text(out,
            kind == ANSWER_REASONING ? ",\"type\":\"reasoning\",\"summary\":[],\"content\":["
                                     : ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
        if (whole) write_part(kind, answer_event_text(&x->kept, at), out);
        buffer_byte(out, ']');
    }
    buffer_byte(out, '}');
}

/* ---- the response ---- */

static void write_usage(const Generation *g, Buffer *out) {
    const int64_t generated = generation_answer_tokens(g);
    buffer_printf(out,
        ",\"usage\":{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld,\"cache_write_tokens\":0},"
        "\"output_tokens\":%lld,"
        "\"output_tokens_details\":{\"reasoning_tokens\":%lld},\"total_tokens\":%lld}",
        (long long)g->prompt_tokens, (long long)generation_cached_tokens(g), (long long)generated,
        (long long)generation_reasoning_tokens(g), (long long)(g->prompt_tokens + generated));
}

static bool was_cut(const Exchange *x) { return x->generation.choices[0].finish == FINISH_LENGTH; }

static void write_output(const Exchange *x, Buffer *out) {
    int index = 0, call = 0;
    for (int i = 0; i < x->kept.count; i++) {
        const AnswerEventKind kind = x->kept.list[i].kind;
        if (kind == ANSWER_ARGUMENTS || kind == ANSWER_CALL_END) continue;
        bool last = true;
        for (int k = i + 1; k < x->kept.count && last; k++)
            last = x->kept.list[k].kind == ANSWER_ARGUMENTS || x->kept.list[k].kind == ANSWER_CALL_END;
        if (index) buffer_byte(out, ',');
        write_item(x, i, index++, call, true, last && was_cut(x), out);
        call += kind == ANSWER_CALL;
    }
}

static void write_response(const Exchange *x, bool whole, Buffer *out) {
    const char *status = !whole ? "in_progress" : was_cut(x) ? "incomplete" : "completed";
    buffer_printf(out,
        "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"background\":false,"
        "\"error\":null,\"incomplete_details\":%s,\"previous_response_id\":null,\"store\":false,"
        "\"service_tier\":\"default\",\"truncation\":\"disabled\",\"top_logprobs\":0",
        x->id, (long long)x->created, status, whole && was_cut(x) ? "{\"reason\":\"max_output_tokens\"}" : "null");
    member_text("model", slice_of(x->model->name), out);
    buffer_slice(out, x->response_options.repeated);
    buffer_text(out, ",\"output\":[");
    if (whole) write_output(x, out);
    buffer_byte(out, ']');
    if (whole) write_usage(&x->generation, out);
    buffer_byte(out, '}');
}

static void keep(Exchange *x, Choice *choice) {
    for (int i = 0; i < choice->events.count; i++) answer_events_append(&x->kept, &choice->events, i);
    answer_events_clear(&choice->events);
    choice->token_count = 0;
}

static void write_whole(Exchange *x, Buffer *out) {
    keep(x, &x->generation.choices[0]);
    write_response(x, true, out);
    out->failed |= x->kept.failed;
}

/* ---- the stream ---- */

static void begin_event(Exchange *x, const char *type, Buffer *out) {
    buffer_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d", type, type, x->block.sequence++);
}

static void end_event(Buffer *out) { buffer_text(out, "}\n\n"); }

static void write_response_event(Exchange *x, const char *type, bool whole, Buffer *out) {
    begin_event(x, type, out);
    buffer_text(out, ",\"response\":");
    write_response(x, whole, out);
    end_event(out);
}

static void write_start(Exchange *x, int index, Buffer *out) {
    write_response_event(x, "response.created", false, out);
    write_response_event(x, "response.in_progress", false, out);
}

static void write_place(const Exchange *x, bool part, Buffer *out) {
    buffer_text(out, ",\"item_id\":");
    write_item_id(x, x->block.kind, x->block.index, out);
    buffer_printf(out, ",\"output_index\":%d", x->block.index);
    if (part) buffer_text(out, ",\"content_index\":0");
}

static void write_item_event(Exchange *x, const char *type, bool whole, bool last, Buffer *out) {
    const bool cut = last && was_cut(x);
    begin_event(x, type, out);
    buffer_printf(out, ",\"output_index\":%d,\"item\":", x->block.index);
    write_item(x, x->block.kept, x->block.index, x->block.calls, whole, cut, out);
    end_event(out);
}

static void write_part_event(Exchange *x, const char *type, Slice text, Buffer *out) {
    begin_event(x, type, out);
    write_place(x, true, out);
    buffer_text(out, ",\"part\":");
    write_part(x->block.kind, text, out);
    end_event(out);
}

/* last: no block follows, so this one is incomplete if the answer was cut. */
static void close_block(Exchange *x, bool last, Buffer *out) {
    if (!x->block.open) return;
    const AnswerEventKind kind = x->block.kind;
    if (kind == ANSWER_CALL) {
        Buffer arguments = {0};
        answer_arguments(&x->kept, x->block.kept, &arguments);
        begin_event(x, "response.function_call_arguments.done", out);
        write_place(x, false, out);
        member_text("name", answer_event_text(&x->kept, x->block.kept), out);
        member_text("arguments", buffer_view(&arguments), out);
        end_event(out);
        out->failed |= arguments.failed;
        buffer_free(&arguments);
    } else {
        const Slice text = answer_event_text(&x->kept, x->block.kept);
        begin_event(x, kind == ANSWER_REASONING ? "response.reasoning_text.done" : "response.output_text.done", out);
        write_place(x, true, out);
        member_text("text", text, out);
        if (kind == ANSWER_CONTENT) buffer_text(out, ",\"logprobs\":[]");
        end_event(out);
        write_part_event(x, "response.content_part.done", text, out);
    }
    write_item_event(x, "response.output_item.done", true, last, out);
    x->block.open = false;
    x->block.index++;
    x->block.calls += kind == ANSWER_CALL;
}

/* The last event of x->kept begins one. */
static void open_block(Exchange *x, AnswerEventKind kind, Buffer *out) {
    x->block.open = true;
    x->block.kind = kind;
    x->block.kept = x->kept.count - 1;
    write_item_event(x, "response.output_item.added", false, false, out);
    if (kind != ANSWER_CALL) write_part_event(x, "response.content_part.added", SLICE(""), out);
}

static void write_delta(Exchange *x, int index, Buffer *out) {
    static const char *const deltas[] = {[ANSWER_CONTENT] = "response.output_text.delta",
        [ANSWER_REASONING] = "response.reasoning_text.delta",
        [ANSWER_ARGUMENTS] = "response.function_call_arguments.delta"};
    Choice *choice = &x->generation.choices[index];
    const AnswerEvents *events = &choice->events;
    for (int i = 0; i < events->count && !x->kept.failed; i++) {
        const AnswerEventKind kind = events->list[i].kind;
        const bool goes_on = x->block.open && (kind == ANSWER_ARGUMENTS || x->block.kind == kind);
        if (kind == ANSWER_CALL || (!goes_on && kind != ANSWER_CALL_END)) close_block(x, false, out);
        answer_events_append(&x->kept, events, i);
        if (kind == ANSWER_CALL_END) close_block(x, i + 1 == events->count, out);
        if (x->kept.failed || kind == ANSWER_CALL_END) continue;
        if (!x->block.open) open_block(x, kind, out);
        if (kind == ANSWER_CALL) continue;
        const size_t start = out->size;
        begin_event(x, deltas[kind], out);
        write_place(x, kind != ANSWER_ARGUMENTS, out);
        member_text("delta", answer_event_text(events, i), out);
        if (kind == ANSWER_CONTENT) buffer_text(out, ",\"logprobs\":[]");
        writer_obfuscation(x, start, out);
        end_event(out);
    }
    out->failed |= x->kept.failed;
    answer_events_clear(&choice->events);
    choice->token_count = 0;
}

static void write_finish(Exchange *x, int index, Buffer *out) {
    close_block(x, true, out);
    write_response_event(x, was_cut(x) ? "response.incomplete" : "response.completed", true, out);
}

static void write_failure(Exchange *x, const ApiError *error, Buffer *out) {
    begin_event(x, "error", out);
    member_text("code", slice_of(error->code ? error->code : error->type), out);
    member_text("message", slice_of(error->message), out);
    buffer_text(out, ",\"param\":null");
    end_event(out);
}

const Endpoint endpoint_responses = {
    .id_prefix = "resp_",
    .done = "",
    .heartbeat = "event: keepalive\ndata: {\"type\":\"keepalive\"}\n\n",
    .write_failure = write_failure,
    .read = request_read_responses,
    .make_prompts = chat_make_prompts,
    .write_start = write_start,
    .write_delta = write_delta,
    .write_finish = write_finish,
    .write_whole = write_whole,
};
