/* POST /api/chat and /api/generate: Ollama's API, for programs that speak nothing else. Streams are lines of JSON.
 * Reference: Ollama's docs/api.md. */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/json_check.h"
#include "server/api/answer_writer.h"
#include "server/api/completion.h"
#include "server/api/fields.h"
#include "server/api/inputs.h"
#include "server/api/members.h"
#include "server/api/model_list.h"
#include "server/api/ollama_list.h"
#include "server/http/body.h"
#include "server/http/response.h"
#include "server/routes.h"
#include "chat/infill.h"
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
    answer_arguments(&x->kept, at, &arguments);
    answer_call_id(x, 0, call, name, id);
    buffer_text(out, "{\"id\":");
    json_write_string(out, slice_of(id));
    buffer_text(out, ",\"function\":{\"name\":");
    json_write_string(out, name);
    buffer_text(out, ",\"arguments\":");
    if (json_is_object(buffer_view(&arguments))) {
        json_write_compact(out, buffer_view(&arguments));
    } else { /* it was cut */
        buffer_text(out, "{\"incomplete\":");
        json_write_string(out, buffer_view(&arguments));
        buffer_byte(out, '}');
    }
    buffer_text(out, "}}");
    out->failed |= arguments.failed;
    buffer_free(&arguments);
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

/* A prompt as it stands, or with a text behind the answer; else that of a chat. */
static bool make_prompts(Exchange *x, const ChatRequest *request, ApiError *error) {
    const Slice suffix = request->suffix;
    if (!request->raw && suffix.size == 0) return chat_make_prompts(x, request, error);
    const ChatMessage *last = &request->chat.messages[request->chat.message_count - 1];
    Slice text;
    Error why = {0};
    if (!message_text(last, request->arena, &text, &why)) return api_out_of_memory(error);
    if (!completion_fits(x->model, text.size + suffix.size, "prompt", error)) return false;
    x->prompts = arena_alloc(&x->arena, 1, sizeof *x->prompts);
    if (!x->prompts) return api_out_of_memory(error);
    x->prompt_count = 1;
    const bool ok = suffix.size > 0 ? infill_prompt(x->model, text, suffix, x->prompts, &why)
                                    : raw_prompt(x->model, text, x->prompts, &why);
    if (!ok && why.code == ERROR_UNSUPPORTED)
        return api_fail(
            error, 400, "unsupported_parameter", "suffix", "Unsupported parameter: 'suffix': %s.", why.text);
    if (!ok) return input_refuse(&why, "prompt", error);
    return x->prompts->count > 0 ||
        api_fail(error, 400, "invalid_value", "prompt", "Invalid 'prompt': the prompt is empty.");
}

#define OLLAMA_ENDPOINT(reader)                                                                                        \
    {                                                                                                                  \
        .id_prefix = "ollama-", .media = "application/x-ndjson", .done = "", .write_error = write_error,               \
        .write_failure = write_failure, .read = reader, .make_prompts = make_prompts, .write_delta = write_delta,      \
        .write_finish = write_finish, .write_whole = write_whole                                                       \
    }

const Endpoint endpoint_ollama_chat = OLLAMA_ENDPOINT(request_read_ollama_chat);
const Endpoint endpoint_ollama_generate = OLLAMA_ENDPOINT(request_read_ollama_generate);

/* ---- requests that only load or unload ---- */

/* A request without a message or prompt loads the model, or with keep_alive 0 unloads it, unless it is pinned. */
static bool only_loads(const Exchange *x, const Json *body) {
    const Json *messages = member_get(body, "messages"), *prompt = member_get(body, "prompt");
    if (x->route->endpoint == &endpoint_ollama_chat)
        return !messages || (messages->type == JSON_ARRAY && messages->size == 0);
    const Json *suffix = member_get(body, "suffix");
    return (!prompt || (prompt->type == JSON_STRING && prompt->size == 0)) && !suffix;
}

static bool load(Exchange *x, const Json *body, Arena *arena, Buffer *out, ApiError *error) {
    const bool chat = x->route->endpoint == &endpoint_ollama_chat;
    ChatRequest request = request_init(arena, INT32_MAX);
    if (!fields_read(&request, chat ? API_OLLAMA_CHAT : API_OLLAMA_GENERATE, body, error)) return false;
    if (!request.model.data) return api_missing("model", error);
    x->model = model_take(x, request.model, error);
    if (!x->model) return false;
    const bool unloads = request.keep_alive_given && models_keep(x->server->models, x->model, request.keep_alive_ms) &&
        request.keep_alive_ms == 0;
    write_head(x, out);
    buffer_text(out, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":\"\"}" : ",\"response\":\"\"");
    buffer_printf(out, ",\"done\":true,\"done_reason\":\"%s\"}", unloads ? "unload" : "load");
    models_release(x->server->models, x->model);
    x->model = NULL;
    return true;
}

bool answer_ollama(Exchange *x, Slice rest) {
    ApiError error = {0};
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST + x->body.size * BODY_MADE_PER_BYTE};
    const Json *body = body_object(x, &arena, &error);
    const bool loads = body && only_loads(x, body);
    Buffer out = {0};
    const bool ok = loads && load(x, body, &arena, &out, &error);
    arena_free(&arena);
    if (body && !loads) return completion_answer(x, x->route->endpoint);
    if (ok) return response_json(x, 200, &out);
    buffer_free(&out);
    return response_error(x, &error);
}
