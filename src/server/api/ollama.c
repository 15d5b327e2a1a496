/* POST /api/chat and /api/generate: Ollama's API, for programs that speak nothing else. Streams are lines of JSON.
 * Reference: Ollama's docs/api.md. */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "server/api/answer_writer.h"
#include "server/api/members.h"
#include "server/api/endpoint.h"
#include "server/api/request.h"

static void write_head(const Exchange *x, Buffer *out) {
    char date[32];
    struct tm utc;
    const time_t seconds = time(NULL);
    gmtime_r(&seconds, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    buffer_text(out, "{\"model\":");
    json_write_string(out, slice_of(x->model->name));
    member_text("created_at", slice_of(date), out);
}

static int64_t nanoseconds(double seconds) { return (int64_t)(seconds * 1e9); }

static void write_end(const Exchange *x, Buffer *out) {
    const Generation *g = &x->generation;
    const RequestStats stats = request_stats(g->requests[0]);
    buffer_printf(out,
        ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%lld,\"load_duration\":0,\"prompt_eval_count\":%lld,"
        "\"prompt_eval_duration\":%lld,\"eval_count\":%lld,\"eval_duration\":%lld}",
        g->choices[0].finish == FINISH_LENGTH ? "length" : "stop", (long long)(clock_ns() - x->started_ns),
        (long long)g->prompt_tokens, (long long)nanoseconds(stats.prefill_s), (long long)generation_answer_tokens(g),
        (long long)nanoseconds(stats.decode_s));
}

/* ---- messages ---- */

/* A call in `kept`, with its arguments as an object. */
static void write_call(const Exchange *x, int at, int call, Buffer *out) {
    char id[CALL_ID_BYTES];
    const Slice name = answer_event_text(&x->kept, at);
    Buffer arguments = {0};
    Arena arena = {0};
    Error why;
    answer_arguments(&x->kept, at, &arguments);
    const Json *object = json_parse(&arena, buffer_view(&arguments), &why);
    answer_call_id(x, 0, call, name, id);
    buffer_text(out, "{\"id\":");
    json_write_string(out, slice_of(id));
    buffer_text(out, ",\"function\":{\"name\":");
    json_write_string(out, name);
    buffer_text(out, ",\"arguments\":");
    if (object && object->type == JSON_OBJECT) {
        json_write(out, object);
    } else { /* it was cut */
        buffer_text(out, "{\"incomplete\":");
        json_write_string(out, buffer_view(&arguments));
        buffer_byte(out, '}');
    }
    buffer_text(out, "}}");
    out->failed |= arguments.failed;
    buffer_free(&arguments);
    arena_free(&arena);
}

static void write_calls(Exchange *x, Buffer *out) {
    int count = 0;
    for (int at = answer_next_call(&x->kept, 0); at >= 0; at = answer_next_call(&x->kept, at + 1)) {
        buffer_text(out, count++ ? "," : ",\"tool_calls\":[");
        write_call(x, at, x->block.calls++, out);
    }
    if (count) buffer_byte(out, ']');
}

/* All of `kept`: as the message of a chat, or the response of a prompt. */
static void write_said(Exchange *x, Buffer *out) {
    const bool chat = x->endpoint == &endpoint_ollama_chat;
    write_head(x, out);
    buffer_text(out, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    answer_write_text(&x->kept, ANSWER_CONTENT, out);
    if (answer_has(&x->kept, ANSWER_REASONING)) {
        buffer_text(out, ",\"thinking\":");
        answer_write_text(&x->kept, ANSWER_REASONING, out);
    }
    if (!chat) return;
    write_calls(x, out);
    buffer_byte(out, '}');
}

static void write_whole(Exchange *x, Buffer *out) {
    const AnswerEvents *events = &x->generation.choices[0].events;
    for (int i = 0; i < events->count; i++) answer_events_append(&x->kept, events, i);
    write_said(x, out);
    write_end(x, out);
    out->failed |= x->kept.failed;
}

/* Calls come whole. */
static void write_delta(Exchange *x, int index, Buffer *out) {
    Choice *choice = &x->generation.choices[index];
    for (int i = 0; i < choice->events.count; i++) {
        const AnswerEventKind kind = choice->events.list[i].kind;
        answer_events_append(&x->kept, &choice->events, i);
        if (kind == ANSWER_CALL || kind == ANSWER_ARGUMENTS) continue;
        write_said(x, out);
        buffer_text(out, ",\"done\":false}\n");
        answer_events_clear(&x->kept);
    }
    out->failed |= x->kept.failed;
    answer_events_clear(&choice->events);
    choice->token_count = 0;
}

static void write_finish(Exchange *x, int index, Buffer *out) {
    answer_events_clear(&x->kept);
    write_said(x, out);
    write_end(x, out);
    buffer_byte(out, '\n');
}

static void write_error(const Exchange *x, const ApiError *error, Buffer *out) {
    buffer_text(out, "{\"error\":");
    json_write_string(out, slice_of(error->message));
    buffer_byte(out, '}');
}

static void write_failure(Exchange *x, const ApiError *error, Buffer *out) {
    write_error(x, error, out);
    buffer_byte(out, '\n');
}

#define OLLAMA_ENDPOINT(reader)                                                                                        \
    {                                                                                                                  \
        .id_prefix = "ollama-", .media = "application/x-ndjson", .done = "", .write_error = write_error,               \
        .write_failure = write_failure, .read = reader, .make_prompts = chat_make_prompts, .write_delta = write_delta, \
        .write_finish = write_finish, .write_whole = write_whole                                                       \
    }

const Endpoint endpoint_ollama_chat = OLLAMA_ENDPOINT(request_read_ollama_chat);
const Endpoint endpoint_ollama_generate = OLLAMA_ENDPOINT(request_read_ollama_generate);
