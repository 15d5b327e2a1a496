#include "server/api/chat_messages.h"

#include <stdio.h>

#include "server/api/fields.h"
#include "server/api/file_parts.h"
#include "server/api/media_parts.h"
#include "server/api/members.h"

/* ---- content ---- */

/* Reasoning that Mistral's and Anthropic's models wrote into the content: a text, or a list of text parts. */
static bool read_thinking(MessageBuilder *builder, const Json *part, const char *param, ApiError *error) {
    static const PartType text_types[] = {{"text", CONTENT_TEXT, "text", NULL}, {0}};
    const Json *value = member_get(part, "thinking");
    char path[API_PARAM_MAX];
    Slice text;
    int index = 0;
    if (!builder->failed && !chat_check_caller(builder->list[builder->count - 1].role, param, error)) return false;
    snprintf(path, sizeof path, "%.100s.thinking", param);
    if (!value || value->type == JSON_STRING) {
        if (!member_read_text(part, "thinking", param, &text, error)) return false;
        messages_add_reasoning(builder, text);
        return true;
    }
    if (!api_type(value, JSON_ARRAY, path, error)) return false;
    for (JSON_EACH(item, value)) {
        snprintf(path, sizeof path, "%.100s.thinking[%d]", param, index++);
        if (!part_read_text(item, path, text_types, &text, error)) return false;
        messages_add_reasoning(builder, text);
    }
    return true;
}

static const PartType types[] = {{"text", CONTENT_TEXT, "text", NULL}, {"refusal", CONTENT_TEXT, "refusal", NULL},
    {"thinking", CONTENT_REASONING, NULL, read_thinking}, {"image_url", CONTENT_IMAGE, NULL, image_read_chat},
    {"input_audio", CONTENT_AUDIO, NULL, audio_read_input}, {"audio_url", CONTENT_AUDIO, NULL, audio_read_url},
    {"video_url", CONTENT_VIDEO, NULL, video_read_url}, {"file", CONTENT_FILE, NULL, file_read_chat}, {0}};

/* Types that Chat Completions does not have are invalid values. */
static bool check_types(const Json *parts, const char *param, ApiError *error) {
    int index = 0;
    for (JSON_EACH(part, parts)) {
        char path[API_PARAM_MAX];
        snprintf(path, sizeof path, "%.100s[%d].type", param, index++);
        const Json *type = json_get(part, "type");
        bool known = !type || type->type != JSON_STRING; /* another error */
        for (const PartType *t = types; t->name && !known; t++) known = slice_is(json_slice(type), t->name);
        if (!known)
            return api_fail(error, 400, "invalid_value", path, "Invalid value for '%s': '%.*s'.", path,
                type->size < 64 ? (int)type->size : 64, type->string);
    }
    return true;
}

bool chat_read_content(MessageBuilder *builder, const Json *content, const char *param, ApiError *error) {
    if (content->type == JSON_STRING) return messages_add_content(builder, content, param, types, error);
    if (content->type != JSON_ARRAY)
        return api_fail(error, 400, "invalid_type", param,
            "Invalid type for '%s': expected a string or an array of content parts, but got %s instead.", param,
            json_type_name(content));
    if (content->size == 0)
        return api_fail(
            error, 400, "empty_array", param, "Invalid '%s': empty array. Expected at least one part.", param);
    return check_types(content, param, error) && messages_add_content(builder, content, param, types, error);
}

/* ---- calls ---- */

/* An optional member. */
static bool read_text(const Json *object, const char *name, const char *param, Slice *text, ApiError *error) {
    return !member_get(object, name) || member_read_text(object, name, param, text, error);
}

static bool read_call(MessageBuilder *builder, const Json *value, const char *param, ApiError *error) {
    Slice type = SLICE("function"); /* Mistral's servers leave it out */
    ChatCall call = {0};
    if (!api_type(value, JSON_OBJECT, param, error) || !member_read_text(value, "id", param, &call.id, error) ||
        !read_text(value, "type", param, &type, error))
        return false;
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.100s.type", param);
    if (!slice_is(type, "function")) return api_unsupported(path, error);
    const Json *function = member_get(value, "function");
    snprintf(path, sizeof path, "%.100s.function", param);
    if (!function) return api_missing(path, error);
    if (!api_type(function, JSON_OBJECT, path, error) || !member_read_text(function, "name", path, &call.name, error) ||
        !member_read_text(function, "arguments", path, &call.arguments, error))
        return false;
    return messages_add_text_call(builder, &call, error);
}

bool chat_check_caller(const char *role, const char *param, ApiError *error) {
    return !strcmp(role, "assistant") ||
        api_fail(error, 400, "invalid_value", param,
            "Invalid parameter: '%s' is only allowed in messages with role 'assistant'.", param);
}

static bool read_calls(
    MessageBuilder *builder, const Json *list, const char *role, const char *param, ApiError *error) {
    if (!chat_check_caller(role, param, error) || !api_type(list, JSON_ARRAY, param, error)) return false;
    int index = 0;
    for (JSON_EACH(value, list)) { /* an empty list is that of other servers' answers without calls */
        char path[API_PARAM_MAX];
        snprintf(path, sizeof path, "%.100s[%d]", param, index++);
        if (!read_call(builder, value, path, error)) return false;
    }
    return true;
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

bool chat_read_role(const Json *message, const char *param, const char **out, ApiError *error) {
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.100s.role", param);
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

/* What other servers write into their answers, and clients send back, does not go into the prompt: members of the
 * assistant's messages that are in no list are ignored, and named in the response. */
static bool check_fields(ChatRequest *request, const Json *message, const char *param, ApiError *error) {
    static const char *const known[] = {
        "role", "content", "name", "refusal", "tool_call_id", "tool_calls", "reasoning_content", "reasoning"};
    static const char *const others[] = {
        "annotations", "reasoning_details", "provider_specific_fields", "thinking_blocks", "citations", "prefix"};
    static const char *const later[] = {"function_call", "audio"};
    const bool own = member_is(message, "role", "assistant");
    for (JSON_EACH_PAIR(key, value, message)) {
        bool found = false;
        for (size_t i = 0; i < COUNT_OF(known) && !found; i++) found = slice_is(json_slice(key), known[i]);
        for (size_t i = 0; i < COUNT_OF(others) && !found; i++) found = own && slice_is(json_slice(key), others[i]);
        if (found || value->type == JSON_NULL) continue;
        char path[64];
        snprintf(path, sizeof path, "%.30s.%.*s", param, key->size < 32 ? (int)key->size : 32, key->string);
        for (size_t i = 0; i < COUNT_OF(later); i++)
            if (slice_is(json_slice(key), later[i])) return api_unsupported(path, error);
        if (!own) return api_fail(error, 400, "unknown_parameter", path, "Unknown parameter: '%s'.", path);
        fields_note_ignored(request, path);
    }
    return true;
}

static bool read_message(
    MessageBuilder *builder, ChatRequest *request, const Json *message, const char *param, ApiError *error) {
    char path[API_PARAM_MAX];
    const char *role;
    Slice reasoning = {0};
    if (!api_type(message, JSON_OBJECT, param, error) || !check_fields(request, message, param, error) ||
        !chat_read_role(message, param, &role, error))
        return false;
    ChatMessage *out = messages_begin(builder, role);
    const Json *calls = member_get(message, "tool_calls"), *refusal = member_get(message, "refusal");
    snprintf(path, sizeof path, "%.100s.tool_calls", param);
    if (calls && !read_calls(builder, calls, role, path, error)) return false;
    snprintf(path, sizeof path, "%.100s.tool_call_id", param);
    if (!strcmp(role, "tool") && !member_get(message, "tool_call_id")) return api_missing(path, error);
    if (!read_text(message, "tool_call_id", param, &out->call_id, error)) return false;
    const Json *content = json_get(message, "content");
    if (!member_get(message, "content") && refusal) content = refusal;
    snprintf(path, sizeof path, "%.100s.content", param);
    /* Some clients write no content beside calls as an empty list. */
    const bool calling = calls && calls->size > 0;
    const bool absent =
        !content || content->type == JSON_NULL || (calling && content->type == JSON_ARRAY && content->size == 0);
    const Json *reasoned = member_get(message, "reasoning_content");
    if (!reasoned) reasoned = member_get(message, "reasoning");
    const bool bare = !calling && !(reasoned && !strcmp(role, "assistant"));
    if (!content && bare) return api_missing(path, error);
    if (absent && bare)
        return api_fail(
            error, 400, "invalid_type", path, "Invalid type for '%s': expected a string, but got null instead.", path);
    if ((!absent && !chat_read_content(builder, content, path, error)) ||
        !read_text(message, "name", param, &out->name, error) ||
        !read_text(message, "reasoning_content", param, &reasoning, error) ||
        (!reasoning.data && !read_text(message, "reasoning", param, &reasoning, error)))
        return false;
    if (absent && !calling) messages_add_text(builder, SLICE(""));
    if (reasoning.data) messages_add_reasoning(builder, reasoning);
    return true;
}

bool chat_read_messages(ChatRequest *r, const Json *messages, ApiError *error) {
    MessageBuilder builder = {.arena = r->arena, .media_hosts = r->media_hosts};
    int index = 0;
    const Json *prefix = NULL;
    for (JSON_EACH(message, messages)) {
        char param[API_PARAM_MAX];
        snprintf(param, sizeof param, "messages[%d]", index++);
        if (!read_message(&builder, r, message, param, error)) return false;
        prefix = member_get(message, "prefix");
    }
    if (!messages_end(&builder, r, error)) return false;
    /* Mistral's and DeepSeek's way to continue the last message. */
    const ChatMessage *last = &r->chat.messages[r->chat.message_count - 1];
    if (prefix && prefix->type == JSON_BOOL && prefix->boolean && message_text_bytes(last) > 0 &&
        message_call_count(last) == 0)
        r->chat.continues = true;
    return true;
}
