/* A prompt from messages: the model's chat template over them, as token ids. Only the template's own bytes can become
 * control tokens, never those of a message. Threads: any. */
#pragma once
#include "chat/chat_model.h"

typedef struct ChatMessage {
    const char *role;    /* as templates name it: "system", "user", "assistant" */
    Slice content, name; /* UTF-8; name.data NULL: none */
} ChatMessage;

typedef struct ChatPrompt {
    const ChatMessage *messages;
    size_t message_count;
    const Json *arguments; /* an object: further variables for the template; NULL: none */
} ChatPrompt;

/* Appends the ids. The arena holds what is needed on the way. ERROR_UNSUPPORTED: the model has no template. */
NODISCARD bool chat_prompt(
    const ChatModel *model, const ChatPrompt *prompt, Arena *arena, Tokens *tokens, Error *error);
