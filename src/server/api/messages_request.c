/* Requests of Anthropic's Messages API. Reference: its documentation, version 2023-06-01. */
#include <stdio.h>

#include "server/api/fields.h"
#include "server/api/file_parts.h"
#include "server/api/media_parts.h"
#include "server/api/members.h"
#include "server/api/message_builder.h"
#include "server/api/messages_api.h"
#include "server/api/object_members.h"
#include "server/api/request.h"

const char thread_unsupported[] = "thread_unsupported_request";

/* Results of searches, as text with their title in front. */
static bool read_found(MessageBuilder *builder, const Json *block, const char *param, ApiError *error) {
    static const PartType plain[] = {{"text", CONTENT_TEXT, "text", NULL}, {0}};
    const Json *title = member_get(block, "title"), *inner = member_get(block, "content");
    char path[API_PARAM_MAX];
    if (title && title->type == JSON_STRING) messages_add_text(builder, json_slice(title));
    if (!inner) return part_refuse(param, SLICE("search_result"), error);
    snprintf(path, sizeof path, "%.90s.content", param);
    return messages_add_content(builder, inner, path, plain, error);
}

static const PartType text_types[] = {{"text", CONTENT_TEXT, "text", NULL},
    {"image", CONTENT_IMAGE, NULL, image_read_block}, {"document", CONTENT_FILE, NULL, file_read_document},
    {"search_result", CONTENT_FILE, NULL, read_found}, {0}};

static bool is_block(const Json *block, const char *type) { return member_is(block, "type", type); }
static bool is_document(const Json *block) { return is_block(block, "document") || is_block(block, "search_result"); }

/* ---- blocks ---- */

/* The result of a tool is a message of its own. param: the block's path. */
static bool read_result(MessageBuilder *builder, const Json *block, const char *param, ApiError *error) {
    const Json *content = member_get(block, "content");
    ChatMessage *message = messages_begin(builder, "tool");
    if (!member_read_text(block, "tool_use_id", param, &message->call_id, error)) return false;
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.100s.content", param);
    if (content) return messages_add_content(builder, content, path, text_types, error);
    messages_add_text(builder, SLICE(""));
    return true;
}

static bool read_call(MessageBuilder *builder, const Json *block, const char *param, ApiError *error) {
    char path[API_PARAM_MAX];
    Slice id, name;
    const Json *input = member_get(block, "input");
    snprintf(path, sizeof path, "%.100s.input", param);
    if (!member_read_text(block, "id", param, &id, error) || !member_read_text(block, "name", param, &name, error))
        return false;
    if (!input) return api_missing(path, error);
    messages_add_json_call(builder, id, name, input);
    return true;
}

/* Adds a block to the last message. Only the first thinking block is used; thinking of other roles and redacted
 * thinking are left out. */
static bool read_block(
    MessageBuilder *builder, const Json *block, bool assistant, bool *thought, const char *param, ApiError *error) {
    Slice text;
    if (is_block(block, "text")) {
        if (!part_read_text(block, param, text_types, &text, error)) return false;
        messages_add_text(builder, text);
    } else if (is_block(block, "image")) {
        return image_read_block(builder, block, param, error);
    } else if (assistant && is_block(block, "tool_use")) {
        return read_call(builder, block, param, error);
    } else if (assistant && is_block(block, "thinking") && !*thought) {
        *thought = true;
        if (!member_get(block, "thinking")) return true;
        if (!member_read_text(block, "thinking", param, &text, error)) return false;
        messages_add_reasoning(builder, text);
    } else if (is_document(block)) {
        return (is_block(block, "document") ? file_read_document : read_found)(builder, block, param, error);
    }
    return true;
}

/* The kinds of the blocks of a message; unknown types, and calls of other roles than the assistant, are refused. */
static bool check_blocks(
    const Json *content, bool assistant, const char *param, bool *texts, bool *tools, ApiError *error) {
    static const char *const others[] = {"tool_use", "tool_result", "thinking", "redacted_thinking"};
    int index = 0;
    for (JSON_EACH(block, content)) {
        char path[API_PARAM_MAX];
        Slice type, text;
        bool found = false;
        snprintf(path, sizeof path, "%.100s[%d]", param, index++);
        if (!api_type(block, JSON_OBJECT, path, error) || !member_read_text(block, "type", path, &type, error))
            return false;
        for (size_t i = 0; i < COUNT_OF(others) && !found; i++) found = slice_is(type, others[i]);
        if (!found && !slice_is(type, "image") && !is_document(block) &&
            !part_read_text(block, path, text_types, &text, error))
            return false;
        const bool call = slice_is(type, "tool_use");
        if (call && !assistant)
            return api_fail(error, 400, "invalid_value", path,
                "Invalid '%s': a 'tool_use' block is only allowed in messages of the role 'assistant'.", path);
        *texts |= !found;
        *tools |= call || slice_is(type, "tool_result");
    }
    return true;
}

static bool read_blocks(
    MessageBuilder *builder, const char *role, const Json *content, const char *param, ApiError *error) {
    char path[API_PARAM_MAX];
    bool texts = false, tools = false, thought = false;
    const bool assistant = !strcmp(role, "assistant");
    if (!check_blocks(content, assistant, param, &texts, &tools, error)) return false;
    int index = 0;
    for (JSON_EACH(block, content)) {
        snprintf(path, sizeof path, "%.100s[%d]", param, index++);
        if (is_block(block, "tool_result") && !read_result(builder, block, path, error)) return false;
    }
    if (!texts && tools && !assistant) return true;
    const ChatMessage *message = messages_begin(builder, role);
    if (!texts && !tools) messages_add_text(builder, SLICE(""));
    index = 0;
    for (JSON_EACH(block, content)) {
        snprintf(path, sizeof path, "%.100s[%d]", param, index++);
        if (!read_block(builder, block, assistant, &thought, path, error)) return false;
    }
    return builder->failed || texts || message_call_count(message) > 0 || !tools || api_missing(param, error);
}

/* ---- messages ---- */

static bool read_message(MessageBuilder *builder, const Json *message, int index, ApiError *error) {
    char param[API_PARAM_MAX];
    snprintf(param, sizeof param, "messages[%d]", index);
    if (!api_type(message, JSON_OBJECT, param, error)) return false;
    const char *role = member_is(message, "role", "user") ? "user"
        : member_is(message, "role", "assistant")         ? "assistant"
        : member_is(message, "role", "system")            ? "system"
                                                          : NULL;
    snprintf(param, sizeof param, "messages[%d].role", index);
    if (!role)
        return api_fail(
            error, 400, "invalid_value", param, "Invalid value for '%s': expected 'user' or 'assistant'.", param);
    snprintf(param, sizeof param, "messages[%d].content", index);
    const Json *content = member_get(message, "content");
    if (!content) return api_missing(param, error);
    if (content->type == JSON_ARRAY) return read_blocks(builder, role, content, param, error);
    if (content->type != JSON_STRING) return api_type(content, JSON_ARRAY, param, error);
    messages_begin(builder, role);
    messages_add_text(builder, json_slice(content));
    return true;
}

static bool read_messages(ChatRequest *request, const Json *body, ApiError *error) {
    const Json *messages = member_get(body, "messages"), *system = member_get(body, "system");
    MessageBuilder builder = {.arena = request->arena, .skip_leading_empty = true, .media_hosts = request->media_hosts};
    if (!messages) return api_missing("messages", error);
    if (system) {
        messages_begin(&builder, "system");
        if (!messages_add_content(&builder, system, "system", text_types, error)) return false;
    }
    int index = 0;
    for (JSON_EACH(message, messages))
        if (!read_message(&builder, message, index++, error)) return false;
    return messages_end(&builder, request, error);
}

bool request_read_messages(ChatRequest *request, const Json *body, ApiError *error) {
    request->input_field = "messages";
    request->cut = true;
    if (member_get(body, "thread"))
        return api_fail(
            error, 400, thread_unsupported, "thread", "'thread' is not supported: send the whole conversation.");
    if (!fields_read(request, API_MESSAGES, body, error) || !read_messages(request, body, error) ||
        !object_members_check(request, API_MESSAGES, body, error))
        return false;
    const ChatMessage *last = &request->chat.messages[request->chat.message_count - 1];
    request->chat.continues =
        !strcmp(last->role, "assistant") && message_text_bytes(last) > 0 && message_call_count(last) == 0;
    request->reasoning.off_unless_given = true;
    return request_settle_chat(request, error);
}
