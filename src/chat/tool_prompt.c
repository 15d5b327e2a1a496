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

static bool spell_calls(const ChatMessage *message, Arena *arena, Slice *out, Error *error) {
    Buffer text = {0};
    buffer_slice(&text, message->content);
    for (size_t i = 0; i < message->call_count; i++) {
        const ChatCall *call = &message->calls[i];
        buffer_text(&text, text.size ? "\n<tool_call>\n{\"name\": " : "<tool_call>\n{\"name\": ");
        json_write_string(&text, call->name);
        buffer_text(&text, ", \"arguments\": ");
        buffer_slice(&text, call->arguments);
        buffer_text(&text, "}\n</tool_call>");
    }
    return keep(&text, arena, out, error);
}

static bool is_answer(const ChatMessage *message) { return !strcmp(message->role, "tool"); }

/* Answers of tools that follow each other are one message of the user; *at: the first, then behind the last. */
static bool spell_answers(const ChatPrompt *prompt, size_t *at, Arena *arena, Slice *out, Error *error) {
    Buffer text = {0};
    for (; *at < prompt->message_count && is_answer(&prompt->messages[*at]); ++*at) {
        buffer_text(&text, text.size ? "\n<tool_response>\n" : "<tool_response>\n");
        buffer_slice(&text, prompt->messages[*at].content);
        buffer_text(&text, "\n</tool_response>");
    }
    return keep(&text, arena, out, error);
}

bool tool_prompt_spell(const ChatPrompt *prompt, Arena *arena, ChatPrompt *out, Error *error) {
    ChatMessage *messages = arena_alloc(arena, prompt->message_count + 1, sizeof *messages);
    if (!messages) return fail(error, arena_failure(arena), "no memory for the messages of a prompt");
    size_t count = 0;
    for (size_t i = 0; i < prompt->message_count;) {
        const ChatMessage *message = &prompt->messages[i];
        ChatMessage *spelled = &messages[count++];
        if (is_answer(message)) {
            *spelled = (ChatMessage){.role = "user"};
            if (!spell_answers(prompt, &i, arena, &spelled->content, error)) return false;
            continue;
        }
        *spelled = *message;
        spelled->calls = NULL;
        spelled->call_count = 0;
        if (message->call_count > 0 && !spell_calls(message, arena, &spelled->content, error)) return false;
        i++;
    }
    if (prompt->tools && count > 0 &&
        !introduce(prompt->tools, messages[0].content, arena, &messages[0].content, error))
        return false;
    *out = (ChatPrompt){
        .messages = messages, .message_count = count, .arguments = prompt->arguments, .continues = prompt->continues};
    return true;
}
