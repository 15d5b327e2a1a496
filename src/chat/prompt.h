/* A prompt from messages: the model's chat template over them, as token ids. Only the template's own bytes can become
 * control tokens, never those of a message. Threads: any. */
#pragma once
#include "chat/chat_model.h"

/* A call that an earlier answer made. */
typedef struct ChatCall {
    Slice id, name;
    Slice arguments;    /* as text */
    const Json *object; /* the same; NULL: they are no JSON object */
} ChatCall;

typedef struct ChatMessage {
    const char *role;    /* as templates name it: "system", "user", "assistant", "tool" */
    Slice content, name; /* UTF-8; data NULL: none */
    Slice reasoning, call_id;
    const ChatCall *calls;
    size_t call_count;
} ChatMessage;

typedef struct ChatPrompt {
    const ChatMessage *messages;
    size_t message_count;
    const Json *arguments; /* an object: further variables for the template; NULL: none */
    const Json *tools;     /* [{"type": "function", "function": {…}}, …]; NULL: none */
    bool continues;        /* the answer goes on where the last message's content ends, which must not be empty */
} ChatPrompt;

/* Appends the ids. The arena holds what is needed on the way. ERROR_UNSUPPORTED: the model has no template, or
 * one that does not show the message that is to go on. */
NODISCARD bool chat_prompt(
    const ChatModel *model, const ChatPrompt *prompt, Arena *arena, Tokens *tokens, Error *error);
/* Whether a prompt ends within reasoning that the template has opened. */
NODISCARD bool chat_prompt_reasons(const ChatModel *model, const Tokens *prompt, bool *reasons, Error *error);
