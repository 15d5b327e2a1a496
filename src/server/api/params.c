/* What fields say together; each by itself is in fields.h. */
#include "server/api/params.h"

#include "server/api/fields.h"

static bool only_with(const char *field, const char *other, ApiError *error) {
    return api_fail(
        error, 400, "invalid_value", field, "The '%s' parameter is only allowed when '%s' is true.", field, other);
}

static bool read_fields(ApiRequest *request, Adapter adapter, const Json *body, ApiError *error) {
    if (!fields_read(request, adapter, body, error)) return false;
    if (!request->model.data) return api_missing("model", error);
    if (request->stream_options && !request->form.stream) return only_with("stream_options", "stream", error);
    if (request->form.progress && !request->form.stream) return only_with("return_progress", "stream", error);
    if (request->max_tokens >= 0 && request->sampling.min_tokens > request->max_tokens)
        return api_fail(error, 400, "invalid_value", "min_tokens", "'min_tokens' must not be more than 'max_tokens'.");
    request->sampling.logprobs = request->form.logprobs ? request->top_logprobs : -1;
    return cache_settle(&request->cache, error);
}

/* Both spellings given: they must agree. */
static bool check_max_tokens(const Json *body, ApiError *error) {
    const Json *old = json_get(body, "max_tokens"), *new = json_get(body, "max_completion_tokens");
    if (!json_is_number(old) || !json_is_number(new) || json_number(old) == json_number(new)) return true;
    return api_fail(error, 400, "invalid_value", "max_tokens",
        "'max_tokens' and 'max_completion_tokens' are both set and differ: send only 'max_completion_tokens'.");
}

static void settle_max_tokens(ApiRequest *request) {
    if (request->max_tokens >= 0 || request->max_standing == 0) return;
    request->max_tokens = request->max_standing;
    request->cut = true;
}

bool params_read_chat(ApiRequest *request, const Json *body, ApiError *error) {
    if (!read_fields(request, DOOR_CHAT, body, error) || !check_max_tokens(body, error)) return false;
    if (!request->messages) return api_missing("messages", error);
    if (request->top_logprobs > 0 && !request->form.logprobs) return only_with("top_logprobs", "logprobs", error);
    settle_max_tokens(request);
    return tools_settle(&request->tools, error);
}

/* More answers than are shown. */
static bool settle_best_of(ApiRequest *request, ApiError *error) {
    if (request->best_of == 0 || request->best_of == request->choices) return true;
    if (request->best_of > request->choices) {
        if (request->form.stream)
            return api_fail(error, 400, "invalid_value", "best_of",
                "'best_of' greater than 'n' is not allowed when 'stream' is true: the best is known at the end.");
        request->form.best = request->choices;
        request->choices = request->best_of;
        if (request->sampling.logprobs < 0) request->sampling.logprobs = 0; /* by which they are compared */
        return true;
    }
    return api_fail(error, 400, "invalid_value", "best_of", "'best_of' must not be less than 'n': %d of %d.",
        request->choices, request->best_of);
}

bool params_read_completion(ApiRequest *request, const Json *body, ApiError *error) {
    if (!read_fields(request, DOOR_TEXT, body, error)) return false;
    if (!request->prompt) return api_missing("prompt", error);
    if (!settle_best_of(request, error)) return false;
    if (request->suffix.size > 0 && request->form.echo)
        return api_fail(error, 400, "invalid_value", "suffix", "'suffix' and 'echo' exclude each other.");
    if (request->max_tokens == 0 && !request->form.echo)
        return api_fail(error, 400, "integer_below_min_value", "max_tokens",
            "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1 (0 only with 'echo'), but got 0 "
            "instead.");
    request->form.only_echo = request->max_tokens == 0;
    settle_max_tokens(request);
    if (request->max_tokens < 0) request->max_tokens = COMPLETION_TOKENS_DEFAULT;
    return true;
}
