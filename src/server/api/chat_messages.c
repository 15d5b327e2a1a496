#include "server/api/chat_messages.h"

#include "server/api/chat_calls.h"

#include <stdio.h>

static bool is_null(const Json *value) { return !value || value->type == JSON_NULL; }

/* ---- content ---- */

static bool read_part(const Json *part, const char *param, Slice *text, ApiError *error) {
    if (!api_type(part, JSON_OBJECT, param, error)) return false;
    char path[API_PARAM_MAX + 8];
    snprintf(path, sizeof path, "%s.type", param);
    const Json *type = json_get(part, "type");
    Slice name;
    if (!type) return api_missing(path, error);
    if (!api_string(type, path, &name, error)) return false;
    if (!slice_is(name, "text") && !slice_is(name, "refusal")) {
        static const char *const media[] = {"image_url", "input_audio", "file"};
        for (size_t i = 0; i < COUNT_OF(media); i++)
            if (slice_is(name, media[i]))
                return api_fail(error, 400, "unsupported_parameter", param,
                    "Unsupported parameter: '%s': content of type '%s' is not supported by this model.", param,
                    media[i]);
        return api_fail(error, 400, "invalid_value", path, "Invalid value for '%s': '%.*s'.", path,
            name.size < 64 ? (int)name.size : 64, name.data);
    }
    const char *field = slice_is(name, "text") ? "text" : "refusal";
    snprintf(path, sizeof path, "%s.%s", param, field);
    const Json *content = json_get(part, field);
    if (!content) return api_missing(path, error);
    return api_string(content, path, text, error);
}

/* Text parts become one string, joined by line ends: what templates of text models expect. */
static bool join_parts(const ApiRequest *r, const Json *parts, const char *param, Slice *out, ApiError *error) {
    Slice *texts = arena_alloc(r->arena, parts->size, sizeof *texts);
    if (!texts) return api_out_of_memory(error);
    size_t size = parts->size - 1, count = 0;
    for (JSON_EACH(part, parts)) {
        char path[API_PARAM_MAX];
        snprintf(path, sizeof path, "%s[%zu]", param, count);
        if (!read_part(part, path, &texts[count], error)) return false;
        size += texts[count++].size;
    }
    char *joined = arena_alloc(r->arena, size, 1), *at = joined;
    if (!joined) return api_out_of_memory(error);
    for (size_t i = 0; i < count; i++) {
        if (i > 0) *at++ = '\n';
        if (texts[i].size > 0) memcpy(at, texts[i].data, texts[i].size);
        at += texts[i].size;
    }
    *out = (Slice){joined, size};
    return true;
}

static bool read_content(const ApiRequest *r, const Json *content, const char *param, Slice *out, ApiError *error) {
    if (content->type == JSON_STRING) return api_string(content, param, out, error);
    if (content->type != JSON_ARRAY)
        return api_fail(error, 400, "invalid_type", param,
            "Invalid type for '%s': expected a string or an array of content parts, but got %s instead.", param,
            json_type_name(content));
    if (content->size == 0)
        return api_fail(
            error, 400, "empty_array", param, "Invalid '%s': empty array. Expected at least one part.", param);
    return join_parts(r, content, param, out, error);
}

/* ---- a message ---- */

static const char *template_role(Slice role) {
    static const struct {
        const char *api, *template;
    } roles[] = {{"system", "system"}, {"developer", "system"}, {"user", "user"}, {"assistant", "assistant"},
        {"tool", "tool"}, {"function", "function"}};
    for (size_t i = 0; i < COUNT_OF(roles); i++)
        if (slice_is(role, roles[i].api)) return roles[i].template;
    return NULL;
}

static bool check_fields(const Json *message, int index, ApiError *error) {
    static const char *const known[] = {
        "role", "content", "name", "refusal", "tool_call_id", "tool_calls", "reasoning_content", "reasoning"};
    static const char *const later[] = {"function_call", "audio"};
    for (JSON_EACH_PAIR(key, value, message)) {
        bool found = false;
        for (size_t i = 0; i < COUNT_OF(known) && !found; i++) found = slice_is(json_slice(key), known[i]);
        if (found || value->type == JSON_NULL) continue;
        char path[64];
        snprintf(path, sizeof path, "messages[%d].%.*s", index, key->size < 32 ? (int)key->size : 32, key->string);
        for (size_t i = 0; i < COUNT_OF(later); i++)
            if (slice_is(json_slice(key), later[i])) return api_unsupported(path, error);
        return api_fail(error, 400, "unknown_parameter", path, "Unknown parameter: '%s'.", path);
    }
    return true;
}

static bool read_role(const Json *message, int index, const char **out, ApiError *error) {
    char path[64];
    snprintf(path, sizeof path, "messages[%d].role", index);
    const Json *role = json_get(message, "role");
    Slice name;
    if (!role) return api_missing(path, error);
    if (!api_string(role, path, &name, error)) return false;
    *out = template_role(name);
    if (!*out)
        return api_fail(error, 400, "invalid_value", path,
            "Invalid value for '%s': expected one of 'system', 'developer', 'user', 'assistant', 'tool' and "
            "'function'.",
            path);
    return strcmp(*out, "function") != 0 || api_unsupported(path, error); /* deprecated */
}

/* An optional member. */
static bool read_text(const Json *message, int index, const char *name, Slice *text, ApiError *error) {
    char path[64];
    snprintf(path, sizeof path, "messages[%d].%s", index, name);
    const Json *value = json_get(message, name);
    return is_null(value) || api_string(value, path, text, error);
}

static bool read_message(const ApiRequest *r, const Json *message, int index, ChatMessage *out, ApiError *error) {
    char path[64];
    snprintf(path, sizeof path, "messages[%d]", index);
    if (!api_type(message, JSON_OBJECT, path, error) || !check_fields(message, index, error) ||
        !read_role(message, index, &out->role, error))
        return false;
    if (!calls_read(r, message, index, out, error)) return false;
    const Json *content = json_get(message, "content"), *refusal = json_get(message, "refusal");
    if (is_null(content) && !is_null(refusal)) content = refusal;
    snprintf(path, sizeof path, "messages[%d].content", index);
    const bool optional = out->call_count > 0 && is_null(content);
    if (!content && !optional) return api_missing(path, error);
    if (!optional && content->type == JSON_NULL)
        return api_fail(
            error, 400, "invalid_type", path, "Invalid type for '%s': expected a string, but got null instead.", path);
    return (optional || read_content(r, content, path, &out->content, error)) &&
        read_text(message, index, "name", &out->name, error) &&
        read_text(message, index, "reasoning_content", &out->reasoning, error) &&
        (out->reasoning.data || read_text(message, index, "reasoning", &out->reasoning, error));
}

/* ---- the template's own variables ---- */

static bool check_arguments(const Json *arguments, ApiError *error) {
    static const char *const reserved[] = {"messages", "tools", "documents", "add_generation_prompt", "bos_token",
        "eos_token", "pad_token", "unk_token", "now", "continue_final_message"};
    for (JSON_EACH_PAIR(key, value, arguments)) {
        const Slice name = json_slice(key);
        for (size_t i = 0; i < COUNT_OF(reserved); i++)
            if (slice_is(name, reserved[i]))
                return api_fail(error, 400, "invalid_value", "chat_template_kwargs",
                    "Invalid 'chat_template_kwargs': '%s' cannot be set here.", reserved[i]);
        if (name.size > 6 && !memcmp(name.data + name.size - 6, "_token", 6)) /* would count as template text */
            return api_fail(error, 400, "invalid_value", "chat_template_kwargs",
                "Invalid 'chat_template_kwargs': names ending in '_token' cannot be set here.");
    }
    return true;
}

bool messages_read(const ApiRequest *r, ChatPrompt *prompt, ApiError *error) {
    ChatMessage *messages = arena_alloc(r->arena, r->messages->size, sizeof *messages);
    if (!messages) return api_out_of_memory(error);
    int count = 0;
    for (JSON_EACH(message, r->messages)) {
        if (!read_message(r, message, count, &messages[count], error)) return false;
        count++;
    }
    if (!calls_name(messages, (size_t)count, error)) return false;
    *prompt = (ChatPrompt){.messages = messages, .message_count = (size_t)count, .arguments = r->template_arguments};
    if (r->tools.mode != TOOLS_NONE) prompt->tools = r->tools.list;
    prompt->continues = r->continues;
    const ChatMessage *last = &messages[count - 1];
    if (r->continues && (strcmp(last->role, "assistant") != 0 || last->content.size == 0 || last->call_count > 0))
        return api_fail(error, 400, "invalid_value", "continue_final_message",
            "'continue_final_message' needs a last message of the assistant whose content is a text.");
    return !r->template_arguments || check_arguments(r->template_arguments, error);
}
