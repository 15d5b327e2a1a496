/* POST /v1/chat/completions: shapes of chat.completion and chat.completion.chunk. */
#include "server/exchange.h"

static bool encode_prompt(Exchange *x, Slice variables_text, ApiError *error) {
    Error why = {0};
    Server *server = x->server;
    const Json *variables = json_parse(&x->arena, variables_text, &why);
    if (!variables) return api_fail(error, 400, NULL, "messages", "Invalid 'messages': %s.", why.text);
    Rendered rendered = {0};
    bool ok = template_render(server->template, variables, &rendered, &why);
    if (!ok) api_fail(error, 400, "invalid_value", "messages", "The chat template refused the messages: %s.", why.text);
    if (ok && !tokenizer_encode_spans(server->tokenizer, rendered.spans, rendered.span_count, x->prompts, &why))
        ok = api_fail(error, 400, "invalid_value", "messages", "%s.", why.text);
    if (ok && x->prompts->count == 0)
        ok = api_fail(error, 400, "invalid_value", "messages", "Invalid 'messages': they give an empty prompt.");
    rendered_free(&rendered);
    return ok;
}

static bool prepare_chat(Exchange *x, const Json *body, ApiError *error) {
    if (!params_read_chat(&x->params, body, error) || !completion_check_model(x, error)) return false;
    if (!x->server->template)
        return api_fail(error, 400, "unsupported_parameter", "messages",
            "The model '%s' has no chat template; use /v1/completions.", x->server->model_name);
    x->prompts = arena_alloc(&x->arena, 1, sizeof *x->prompts);
    if (!x->prompts) return api_fail(error, 503, "out_of_memory", NULL, "Out of memory.");
    x->prompt_count = 1;
    Buffer variables = {0};
    bool ok = params_write_variables(&x->params, buffer_view(&x->server->token_pairs), &variables, error);
    ok = ok && encode_prompt(x, buffer_view(&variables), error);
    buffer_free(&variables);
    return ok;
}

static void begin_event(Exchange *x, Buffer *out) { write_event_head(x, "chat.completion.chunk", out); }

/* Opens an event about one choice. */
static void begin_choice(Exchange *x, const Choice *choice, Buffer *out) {
    begin_event(x, out);
    buffer_text(out, ",\"choices\":[{\"index\":");
    buffer_text(out, choice->index_text);
}

static void end_event(Exchange *x, Buffer *out) {
    buffer_text(out, x->params.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void write_start(Exchange *x, Choice *choice, Buffer *out) {
    begin_choice(x, choice, out);
    buffer_text(out,
        ",\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},"
        "\"logprobs\":null,\"finish_reason\":null}]");
    end_event(x, out);
}

static void write_delta(Exchange *x, Choice *choice, Buffer *out) {
    begin_choice(x, choice, out);
    buffer_text(out, ",\"delta\":{\"content\":");
    json_write_string(out, buffer_view(&choice->pending));
    buffer_text(out, "},\"logprobs\":");
    if (x->params.logprobs)
        write_chat_logprobs(out, &x->generation, choice);
    else
        buffer_text(out, "null");
    buffer_text(out, ",\"finish_reason\":null}]");
    end_event(x, out);
    buffer_clear(&choice->pending);
}

static void write_finish(Exchange *x, Choice *choice, Buffer *out) {
    begin_choice(x, choice, out);
    buffer_printf(out, ",\"delta\":{},\"logprobs\":null,\"finish_reason\":\"%s\"}]", finish_name(choice->finish));
    end_event(x, out);
}

static void write_usage_event(Exchange *x, Buffer *out) {
    begin_event(x, out);
    buffer_text(out, ",\"choices\":[],\"usage\":");
    write_usage(out, &x->generation);
    buffer_text(out, "}\n\n");
}

static void write_whole(Exchange *x, Buffer *out) {
    Generation *g = &x->generation;
    write_head(x, "chat.completion", out);
    buffer_text(out, ",\"choices\":[");
    for (int i = 0; i < g->choice_count; i++) {
        Choice *choice = &g->choices[i];
        buffer_printf(
            out, "%s{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", i ? "," : "", choice->index);
        json_write_string(out, buffer_view(&choice->pending));
        buffer_text(out, ",\"refusal\":null},\"logprobs\":");
        if (x->params.logprobs)
            write_chat_logprobs(out, g, choice);
        else
            buffer_text(out, "null");
        buffer_printf(out, ",\"finish_reason\":\"%s\"}", finish_name(choice->finish));
    }
    buffer_text(out, "],\"usage\":");
    write_usage(out, g);
    buffer_byte(out, '}');
}

const Endpoint endpoint_chat = {
    .id_prefix = "chatcmpl-",
    .prepare = prepare_chat,
    .write_start = write_start,
    .write_delta = write_delta,
    .write_finish = write_finish,
    .write_usage = write_usage_event,
    .write_whole = write_whole,
};
