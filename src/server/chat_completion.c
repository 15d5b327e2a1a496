/* POST /v1/chat/completions: shapes of chat.completion and chat.completion.chunk. */
#include "server/endpoint.h"
#include "server/messages.h"
#include "server/shape.h"

static bool refuse_messages(const Error *why, ApiError *error) {
    if (why->code == ERROR_MEMORY) return api_out_of_memory(error);
    return api_fail(error, 400, "invalid_value", "messages", "%s.", why->text);
}

static bool make_prompts(Exchange *x, const ApiRequest *request, ApiError *error) {
    if (!x->model->template)
        return api_fail(error, 400, "unsupported_parameter", "messages",
            "The model '%s' has no chat template; use /v1/completions.", x->model->name);
    x->prompts = arena_alloc(&x->arena, 1, sizeof *x->prompts);
    if (!x->prompts) return api_out_of_memory(error);
    x->prompt_count = 1;
    ChatPrompt prompt;
    Error why = {0};
    if (!messages_read(request, &prompt, error)) return false;
    if (!chat_prompt(x->model, &prompt, request->arena, x->prompts, &why)) return refuse_messages(&why, error);
    return x->prompts->count > 0 ||
        api_fail(error, 400, "invalid_value", "messages", "Invalid 'messages': they give an empty prompt.");
}

static void begin_event(Exchange *x, Buffer *out) { shape_event_head(x, "chat.completion.chunk", out); }

/* Opens an event about one choice. */
static void begin_choice(Exchange *x, int choice, Buffer *out) {
    begin_event(x, out);
    buffer_text(out, ",\"choices\":[{\"index\":");
    json_write_integer(out, choice);
}

static void end_event(Exchange *x, Buffer *out) {
    buffer_text(out, x->form.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void write_start(Exchange *x, int choice, Buffer *out) {
    begin_choice(x, choice, out);
    buffer_text(out,
        ",\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},"
        "\"logprobs\":null,\"finish_reason\":null}]");
    end_event(x, out);
}

static void write_logprobs(Exchange *x, Choice *choice, Buffer *out) {
    if (x->form.logprobs)
        shape_chat_logprobs(x, choice, out);
    else
        buffer_text(out, "null");
}

static void write_delta(Exchange *x, int index, Buffer *out) {
    Choice *choice = &x->generation.choices[index];
    begin_choice(x, index, out);
    buffer_text(out, ",\"delta\":{\"content\":");
    json_write_string(out, buffer_view(&choice->text));
    buffer_text(out, "},\"logprobs\":");
    write_logprobs(x, choice, out);
    buffer_text(out, ",\"finish_reason\":null}]");
    end_event(x, out);
    buffer_clear(&choice->text);
}

static void write_finish(Exchange *x, int index, Buffer *out) {
    begin_choice(x, index, out);
    buffer_printf(out, ",\"delta\":{},\"logprobs\":null,\"finish_reason\":\"%s\"}]",
        shape_finish(x->generation.choices[index].finish));
    end_event(x, out);
}

static void write_usage_event(Exchange *x, Buffer *out) {
    begin_event(x, out);
    buffer_text(out, ",\"choices\":[],\"usage\":");
    shape_usage(&x->generation, out);
    shape_timings(x, out);
    buffer_text(out, "}\n\n");
}

static void write_whole(Exchange *x, Buffer *out) {
    Generation *g = &x->generation;
    shape_head(x, "chat.completion", out);
    buffer_text(out, ",\"choices\":[");
    for (int i = 0; i < g->choice_count; i++) {
        Choice *choice = &g->choices[i];
        buffer_printf(out, "%s{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", i ? "," : "", i);
        json_write_string(out, buffer_view(&choice->text));
        buffer_text(out, ",\"refusal\":null},\"logprobs\":");
        write_logprobs(x, choice, out);
        buffer_printf(out, ",\"finish_reason\":\"%s\"}", shape_finish(choice->finish));
    }
    buffer_text(out, "],\"usage\":");
    shape_usage(g, out);
    shape_timings(x, out);
    buffer_byte(out, '}');
}

const Endpoint endpoint_chat = {
    .id_prefix = "chatcmpl-",
    .read_params = params_read_chat,
    .make_prompts = make_prompts,
    .write_start = write_start,
    .write_delta = write_delta,
    .write_finish = write_finish,
    .write_usage = write_usage_event,
    .write_whole = write_whole,
};
