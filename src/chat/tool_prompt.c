#include "chat/tool_prompt.h"

static const char introduction[] =
    "You can call functions. To call one, write nothing but this, with its name and its arguments:\n"
    "<tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"ARGUMENT\": VALUE}}\n</tool_call>\n"
    "What it returns is then told to you. The functions, with JSON schemas of their arguments:\n";

bool tool_prompt_known(const ChatModel *model) {
    const Slice text = model->template ? template_source(model->template) : (Slice){0};
    return text.size > 0 && memmem(text.data, text.size, "tools", strlen("tools"));
}

static bool keep(Buffer *text, Arena *arena, Slice *out, Error *error) {
    const char *copy = text->failed ? NULL : arena_copy(arena, buffer_view(text));
    *out = (Slice){copy, text->size};
    buffer_free(text);
    return copy || fail(error, arena->limited ? ERROR_LIMIT : ERROR_MEMORY, "no memory for the tools of a prompt");
}

/* In front of the first message, whatever its role: some templates know no system's. */
static bool introduce(const Json *tools, Slice content, Arena *arena, Slice *out, Error *error) {
    Buffer text = {0};
    buffer_text(&text, introduction);
    for (JSON_EACH(tool, tools)) {
        const Json *function = json_get(tool, "function");
        json_write(&text, function ? function : tool);
        buffer_byte(&text, '\n');
    }
    buffer_byte(&text, '\n');
    buffer_slice(&text, content);
    return keep(&text, arena, out, error);
}

/* The message's text and its calls as text. */
static bool spell_calls(const ChatMessage *message, Arena *arena, Slice *out, Error *error) {
    Buffer text = {0};
    Slice content;
    if (!message_text(message, arena, &content, error)) return false;
    buffer_slice(&text, content);
    for (size_t i = 0; i < message->part_count; i++) {
        const ChatCall *call = &message->parts[i].call;
        if (message->parts[i].kind != CONTENT_TOOL_CALL) continue;
        buffer_text(&text, text.size ? "\n<tool_call>\n{\"name\": " : "<tool_call>\n{\"name\": ");
        json_write_string(&text, call->name);
        buffer_text(&text, ", \"arguments\": ");
        buffer_slice(&text, call->arguments);
        buffer_text(&text, "}\n</tool_call>");
    }
    return keep(&text, arena, out, error);
}

static bool is_result(const ChatMessage *message) { return !strcmp(message->role, "tool"); }

/* Consecutive results become one text. *at: the first result, then the message after the last one. */
static bool spell_results(const ChatPrompt *prompt, size_t *at, Arena *arena, Slice *out, Error *error) {
    Buffer text = {0};
    for (; *at < prompt->message_count && is_result(&prompt->messages[*at]); ++*at) {
        Slice content;
        if (!message_text(&prompt->messages[*at], arena, &content, error)) {
            buffer_free(&text);
            return false;
        }
        buffer_text(&text, text.size ? "\n<tool_response>\n" : "<tool_response>\n");
        buffer_slice(&text, content);
        buffer_text(&text, "\n</tool_response>");
    }
    return keep(&text, arena, out, error);
}

/* Gives a message this text and its reasoning as its only parts. */
static bool set_text(ChatMessage *message, Slice text, Arena *arena, Error *error) {
    ContentPart *parts = arena_alloc(arena, 2, sizeof *parts);
    if (!parts) return fail(error, arena_failure(arena), "no memory for the messages of a prompt");
    Slice reasoning;
    if (!message_reasoning(message, arena, &reasoning, error)) return false;
    parts[0] = (ContentPart){.kind = CONTENT_TEXT, .text = text};
    parts[1] = (ContentPart){.kind = CONTENT_REASONING, .text = reasoning};
    message->parts = parts;
    message->part_count = reasoning.data ? 2 : 1;
    return true;
}

bool tool_prompt_spell(const ChatPrompt *prompt, Arena *arena, ChatPrompt *out, Error *error) {
    ChatMessage *messages = arena_alloc(arena, prompt->message_count + 1, sizeof *messages);
    if (!messages) return fail(error, arena_failure(arena), "no memory for the messages of a prompt");
    size_t count = 0;
    Slice text;
    for (size_t i = 0; i < prompt->message_count;) {
        const ChatMessage *message = &prompt->messages[i];
        ChatMessage *spelled = &messages[count++];
        if (is_result(message)) {
            *spelled = (ChatMessage){.role = "user"};
            if (!spell_results(prompt, &i, arena, &text, error) || !set_text(spelled, text, arena, error)) return false;
            continue;
        }
        *spelled = *message;
        i++;
        if (message_call_count(message) > 0 &&
            (!spell_calls(message, arena, &text, error) || !set_text(spelled, text, arena, error)))
            return false;
    }
    if (prompt->tools && count > 0) {
        if (!message_text(&messages[0], arena, &text, error) || !introduce(prompt->tools, text, arena, &text, error) ||
            !set_text(&messages[0], text, arena, error))
            return false;
    }
    *out = (ChatPrompt){
        .messages = messages, .message_count = count, .arguments = prompt->arguments, .continues = prompt->continues};
    return true;
}
