/* POST /v1/chat/completions: shapes of chat.completion and chat.completion.chunk. */
#include <stdio.h>

#include "chat/tool_prompt.h"
#include "server/api/answer_writer.h"
#include "server/api/endpoint.h"
#include "server/api/message_builder.h"
#include "server/api/reasoning.h"
#include "server/api/request.h"
#include "server/api/openai_writer.h"

static bool refuse_messages(const Error *why, const char *field, ApiError *error) {
    if (why->code == ERROR_MEMORY) return api_out_of_memory(error);
    return api_fail(error, 400, "invalid_value", field, "%s.", why->text);
}

/* The reason for which there is no prompt: one of its images, clips of audio or videos, or something else. */
static bool refuse_prompt(Exchange *x, const Error *why, const char *field, ApiError *error) {
    const ChatMedia *media = x->media.refused;
    if (!media || why->code == ERROR_MEMORY) return refuse_messages(why, field, error);
    const ContentKind kind = x->media.refused_kind;
    const char *name = kind == CONTENT_AUDIO ? "audio" : kind == CONTENT_VIDEO ? "video" : "image";
    if (!prompt_media_takes(x->model, kind)) return part_refuse(media->part, media->type, error);
    char code[32];
    snprintf(code, sizeof code, "invalid_%s", name);
    const bool limit = why->code == ERROR_LIMIT && strstr(why->text, "context");
    return api_fail(error, 400, limit ? "context_length_exceeded" : code, media->field, "Invalid %s in '%s': %s.", name,
        media->field, why->text);
}

static bool messages_fit(const Exchange *x, const ChatRequest *request, ApiError *error) {
    size_t bytes = 0; /* all are within one body */
    for (size_t i = 0; i < request->chat.message_count; i++) bytes += message_text_bytes(&request->chat.messages[i]);
    return completion_fits(x->model, bytes, request->input_field, error);
}

bool chat_make_prompts(Exchange *x, const ChatRequest *request, ApiError *error) {
    const char *field = request->input_field;
    if (!x->model->template)
        return api_fail(error, 400, "unsupported_model", field,
            "The model '%s' has no chat template; use /v1/completions.", x->model->name);
    x->prompts = arena_alloc(&x->arena, 1, sizeof *x->prompts);
    if (!x->prompts) return api_out_of_memory(error);
    x->prompt_count = 1;
    ChatPrompt prompt = request->chat;
    Error why = {0};
    if (!messages_fit(x, request, error) || !reasoning_settle(request, x->model, &prompt, error)) return false;
    if (!tool_prompt_known(x->model) && !tool_prompt_spell(&prompt, request->arena, &prompt, &why))
        return refuse_messages(&why, field, error);
    if (!chat_prompt(x->model, &prompt, request->arena, x->prompts, &x->media, &why))
        return refuse_prompt(x, &why, field, error);
    return x->prompts->count > 0 ||
        api_fail(error, 400, "invalid_value", field, "Invalid '%s': they give an empty prompt.", field);
}

static void begin_event(Exchange *x, Buffer *out) { writer_event_head(x, "chat.completion.chunk", out); }

/* Opens an event about one choice. */
static void begin_choice(Exchange *x, int choice, Buffer *out) {
    begin_event(x, out);
    buffer_text(out, ",\"choices\":[{\"index\":");
    json_write_integer(out, choice);
}

static void end_event(Exchange *x, Buffer *out) {
    buffer_text(out, x->response_options.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void write_start(Exchange *x, int choice, Buffer *out) {
    begin_choice(x, choice, out);
    buffer_text(out,
        ",\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},"
        "\"logprobs\":null,\"finish_reason\":null}]");
    end_event(x, out);
}

static void write_logprobs(Exchange *x, Choice *choice, Buffer *out) {
    if (x->response_options.logprobs)
        writer_chat_logprobs(x, choice, out);
    else
        buffer_text(out, "null");
}

/* What an event adds to the message. */
static void write_event_delta(Exchange *x, int index, int at, Buffer *out) {
    const AnswerEvents *events = &x->generation.choices[index].events;
    const Slice text = answer_event_text(events, at);
    const AnswerEventKind kind = events->list[at].kind;
    int *calls = &x->given[index].calls;
    char id[CALL_ID_BYTES];
    switch (kind) {
    case ANSWER_CALL:
        answer_call_id(x, index, *calls, text, id);
        buffer_printf(out, "\"tool_calls\":[{\"index\":%d,\"id\":", (*calls)++);
        json_write_string(out, slice_of(id));
        buffer_text(out, ",\"type\":\"function\",\"function\":{\"name\":");
        json_write_string(out, text);
        buffer_text(out, ",\"arguments\":\"\"}}]");
        return;
    case ANSWER_ARGUMENTS:
        buffer_printf(out, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", *calls - 1);
        json_write_string(out, text);
        buffer_text(out, "}}]");
        return;
    default:
        buffer_text(out, kind == ANSWER_REASONING ? "\"reasoning_content\":" : "\"content\":");
        json_write_string(out, text);
    }
}

/* at < 0: nothing but log-probabilities. */
static void write_chunk(Exchange *x, int index, int at, Buffer *out) {
    Choice *choice = &x->generation.choices[index];
    const size_t start = out->size;
    begin_choice(x, index, out);
    buffer_text(out, ",\"delta\":{");
    if (at >= 0)
        write_event_delta(x, index, at, out);
    else
        buffer_text(out, "\"content\":\"\"");
    buffer_text(out, "},\"logprobs\":");
    if (choice->token_count > 0 || at < 0)
        write_logprobs(x, choice, out);
    else
        buffer_text(out, "null");
    buffer_text(out, ",\"finish_reason\":null}]");
    writer_obfuscation(x, start, out);
    end_event(x, out);
}

static void write_delta(Exchange *x, int index, Buffer *out) {
    Choice *choice = &x->generation.choices[index];
    for (int i = 0; i < choice->events.count; i++)
        if (choice->events.list[i].kind != ANSWER_CALL_END) write_chunk(x, index, i, out);
    if (choice->token_count > 0) write_chunk(x, index, -1, out);
    answer_events_clear(&choice->events);
}

static const char *finish_name(const Choice *choice) {
    return answer_ends_in_calls(choice) ? "tool_calls" : writer_finish(choice->finish);
}

static void write_finish(Exchange *x, int index, Buffer *out) {
    begin_choice(x, index, out);
    buffer_printf(
        out, ",\"delta\":{},\"logprobs\":null,\"finish_reason\":\"%s\"}]", finish_name(&x->generation.choices[index]));
    end_event(x, out);
}

static void write_usage_event(Exchange *x, Buffer *out) {
    begin_event(x, out);
    buffer_text(out, ",\"choices\":[],\"usage\":");
    writer_usage(x, out);
    writer_timings(x, out);
    buffer_text(out, "}\n\n");
}

static void write_calls(Exchange *x, int index, Buffer *out) {
    const AnswerEvents *events = &x->generation.choices[index].events;
    int call = 0;
    for (int at = answer_next_call(events, 0); at >= 0; at = answer_next_call(events, at + 1), call++) {
        Buffer arguments = {0};
        char id[CALL_ID_BYTES];
        answer_call_id(x, index, call, answer_event_text(events, at), id);
        answer_arguments(events, at, &arguments);
        buffer_text(out, call ? ",{\"id\":" : ",\"tool_calls\":[{\"id\":");
        json_write_string(out, slice_of(id));
        buffer_text(out, ",\"type\":\"function\",\"function\":{\"name\":");
        json_write_string(out, answer_event_text(events, at));
        buffer_text(out, ",\"arguments\":");
        json_write_string(out, buffer_view(&arguments));
        buffer_text(out, "}}");
        out->failed |= arguments.failed;
        buffer_free(&arguments);
    }
    if (call) buffer_byte(out, ']');
}

static void write_message(Exchange *x, int index, Buffer *out) {
    const AnswerEvents *events = &x->generation.choices[index].events;
    buffer_text(out, "{\"role\":\"assistant\",\"content\":");
    if (answer_has(events, ANSWER_CONTENT) || !answer_has(events, ANSWER_CALL))
        answer_write_text(events, ANSWER_CONTENT, out);
    else
        buffer_text(out, "null");
    buffer_text(out, ",\"refusal\":null");
    if (answer_has(events, ANSWER_REASONING)) {
        buffer_text(out, ",\"reasoning_content\":");
        answer_write_text(events, ANSWER_REASONING, out);
    }
    write_calls(x, index, out);
    buffer_byte(out, '}');
}

static void write_whole(Exchange *x, Buffer *out) {
    Generation *g = &x->generation;
    writer_head(x, "chat.completion", out);
    buffer_text(out, ",\"choices\":[");
    for (int i = 0; i < g->choice_count; i++) {
        Choice *choice = &g->choices[i];
        buffer_printf(out, "%s{\"index\":%d,\"message\":", i ? "," : "", i);
        write_message(x, i, out);
        buffer_text(out, ",\"logprobs\":");
        write_logprobs(x, choice, out);
        buffer_printf(out, ",\"finish_reason\":\"%s\"}", finish_name(choice));
    }
    buffer_text(out, "],\"usage\":");
    writer_usage(x, out);
    writer_timings(x, out);
    buffer_byte(out, '}');
}

const Endpoint endpoint_chat = {
    .id_prefix = "chatcmpl-",
    .event_object = "chat.completion.chunk",
    .done = "data: [DONE]\n\n",
    .heartbeat = ": waiting\n\n", /* a comment: keeps proxies and clients from giving up */
    .read = request_read_chat,
    .make_prompts = chat_make_prompts,
    .write_start = write_start,
    .write_delta = write_delta,
    .write_finish = write_finish,
    .write_usage = write_usage_event,
    .write_whole = write_whole,
};
