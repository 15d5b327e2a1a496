#include "server/api/reasoning.h"

static bool knows(const ChatModel *model, const char *variable) {
    const Slice text = model->template ? template_source(model->template) : (Slice){0};
    return text.size > 0 && memmem(text.data, text.size, variable, strlen(variable));
}

static void add_pair(Buffer *pairs, const char *name, Slice json) {
    buffer_printf(pairs, "%s\"%s\":", pairs->size > 1 ? "," : "", name);
    buffer_slice(pairs, json);
}

/* The arguments with the pairs behind them; those that are in both are the request's own. */
static bool merge(const ApiRequest *request, ChatPrompt *prompt, Buffer *pairs, ApiError *error) {
    if (prompt->arguments)
        for (JSON_EACH_PAIR(key, value, prompt->arguments)) {
            if (pairs->size > 1) buffer_byte(pairs, ',');
            json_write(pairs, key);
            buffer_byte(pairs, ':');
            json_write(pairs, value);
        }
    buffer_byte(pairs, '}');
    Error why = {0};
    const char *text = pairs->failed ? NULL : arena_copy(request->arena, buffer_view(pairs));
    if (!text) return api_out_of_memory(error);
    prompt->arguments = json_parse(request->arena, (Slice){text, pairs->size}, &why);
    if (prompt->arguments) return true;
    if (why.code == ERROR_MEMORY) return api_out_of_memory(error);
    return api_fail(error, 400, "invalid_value", "chat_template_kwargs",
        "'enable_thinking' and 'reasoning_effort' are set both in 'chat_template_kwargs' and outside of it.");
}

bool reasoning_settle(const ApiRequest *request, const ChatModel *model, ChatPrompt *prompt, ApiError *error) {
    const ToolRequest *r = &request->tools;
    const bool switches = knows(model, "enable_thinking"), grades = knows(model, "reasoning_effort");
    const bool off = r->effort.data && slice_is(r->effort, "none");
    if (r->effort.data && !switches && !grades && !off && !r->prefetch)
        return api_unsupported("reasoning_effort", error);
    if (r->thinking_given && r->thinking && !switches && !r->prefetch) return api_unsupported("enable_thinking", error);
    Buffer pairs = {0};
    buffer_byte(&pairs, '{');
    if (r->effort.data && grades && !off) {
        buffer_text(&pairs, "\"reasoning_effort\":");
        json_write_string(&pairs, r->effort);
    }
    if (switches && (r->thinking_given || r->effort.data))
        add_pair(&pairs, "enable_thinking", (r->thinking_given ? r->thinking : !off) ? SLICE("true") : SLICE("false"));
    const bool ok = (pairs.size == 1 && !pairs.failed) || merge(request, prompt, &pairs, error);
    buffer_free(&pairs);
    return ok;
}
