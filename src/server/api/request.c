/* Rules about several fields of a request; rules about one are in the field tables. */
#include "server/api/request.h"

#include "server/api/cache_params.h"
#include "server/api/chat_messages.h"
#include "server/api/field_readers.h"
#include "server/api/fields.h"
#include "server/api/members.h"
#include "server/api/object_members.h"
#include "server/api/tools.h"

ChatRequest request_init(Arena *arena, int vocab) {
    return (ChatRequest){.arena = arena,
        .vocab = vocab,
        .stop_max = STOP_COUNT_MAX,
        .reasoning.budget = -1,
        .generation.request = {.max_tokens = -1,
            .choices = 1,
            .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1}}};
}

static bool only_with(const char *field, const char *other, ApiError *error) {
    return api_fail(
        error, 400, "invalid_value", field, "The '%s' parameter is only allowed when '%s' is true.", field, other);
}

static bool settle(ChatRequest *request, ApiError *error) {
    const ResponseOptions *response = &request->response;
    RequestOptions *options = &request->generation.request;
    if (!request->model.data) return api_missing("model", error);
    if (response->options_given && !response->stream) return only_with("stream_options", "stream", error);
    if (response->progress && !response->stream) return only_with("return_progress", "stream", error);
    if (options->max_tokens >= 0 && options->sampling.min_tokens > options->max_tokens)
        return api_fail(error, 400, "invalid_value", "min_tokens", "'min_tokens' must not be more than 'max_tokens'.");
    options->sampling.logprobs = response->logprobs ? response->top_logprobs : -1;
    return cache_settle(&request->cache, error);
}

/* Both spellings given: they must agree. */
static bool check_max_tokens(const Json *body, ApiError *error) {
    const Json *old = json_get(body, "max_tokens"), *new = json_get(body, "max_completion_tokens");
    if (!json_is_number(old) || !json_is_number(new) || json_number(old) == json_number(new)) return true;
    return api_fail(error, 400, "invalid_value", "max_tokens",
        "'max_tokens' and 'max_completion_tokens' are both set and differ: send only 'max_completion_tokens'.");
}

static void settle_max_tokens(ChatRequest *request) {
    if (request->generation.request.max_tokens >= 0 || request->default_max_tokens == 0) return;
    request->generation.request.max_tokens = request->default_max_tokens;
    request->cut = true;
}

/* The answer can only continue a text of the assistant. */
static bool check_continued(const ChatRequest *request, ApiError *error) {
    const ChatMessage *last = &request->chat.messages[request->chat.message_count - 1];
    return !request->chat.continues ||
        (!strcmp(last->role, "assistant") && message_text_bytes(last) > 0 && message_call_count(last) == 0) ||
        api_fail(error, 400, "invalid_value", "continue_final_message",
            "'continue_final_message' needs a last message of the assistant whose content is a text.");
}

bool request_settle_chat(ChatRequest *request, ApiError *error) {
    if (!settle(request, error) || !tools_settle(&request->tools, error) || !check_continued(request, error))
        return false;
    if (request->tools.mode != TOOLS_NONE) request->chat.tools = request->tools.definitions;
    settle_max_tokens(request);
    return true;
}

bool request_read_chat(ChatRequest *request, const Json *body, ApiError *error) {
    request->input_field = "messages";
    if (!fields_read(request, API_CHAT, body, error)) return false;
    const Json *messages = member_get(body, "messages");
    if (!request->model.data) return api_missing("model", error);
    if (!check_max_tokens(body, error)) return false;
    if (!messages) return api_missing("messages", error);
    if (request->response.top_logprobs > 0 && !request->response.logprobs)
        return only_with("top_logprobs", "logprobs", error);
    return chat_read_messages(request, messages, error) && request_settle_chat(request, error) &&
        object_members_check(request, API_CHAT, body, error);
}

/* best_of: more answers are computed than shown. */
static bool settle_best_of(ChatRequest *request, ApiError *error) {
    if (request->best_of == 0 || request->best_of == request->generation.request.choices) return true;
    if (request->best_of > request->generation.request.choices) {
        if (request->response.stream)
            return api_fail(error, 400, "invalid_value", "best_of",
                "'best_of' greater than 'n' is not allowed when 'stream' is true: the best is known at the end.");
        request->response.best = request->generation.request.choices;
        request->generation.request.choices = request->best_of;
        if (request->generation.request.sampling.logprobs < 0)
            request->generation.request.sampling.logprobs = 0; /* by which they are compared */
        return true;
    }
    return api_fail(error, 400, "invalid_value", "best_of", "'best_of' must not be less than 'n': %d of %d.",
        request->generation.request.choices, request->best_of);
}

bool request_read_completion(ChatRequest *request, const Json *body, ApiError *error) {
    request->input_field = "prompt";
    request->stop_max = STOP_STRINGS_MAX;
    if (!fields_read(request, API_COMPLETIONS, body, error) || !settle(request, error)) return false;
    if (!request->prompt) return api_missing("prompt", error);
    if (!settle_best_of(request, error)) return false;
    if (request->suffix.size > 0 && request->response.echo)
        return api_fail(error, 400, "invalid_value", "suffix", "'suffix' and 'echo' exclude each other.");
    if (request->generation.request.max_tokens == 0 && !request->response.echo)
        return api_fail(error, 400, "integer_below_min_value", "max_tokens",
            "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1 (0 only with 'echo'), but got 0 "
            "instead.");
    request->response.only_echo = request->generation.request.max_tokens == 0;
    settle_max_tokens(request);
    if (request->generation.request.max_tokens < 0) request->generation.request.max_tokens = COMPLETION_TOKENS_DEFAULT;
    return true;
}
