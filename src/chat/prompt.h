/* A prompt from messages: the model's chat template over them, as token ids. Only the template's own bytes can become
 * control tokens, never those of a message. Threads: any. */
#pragma once
#include "chat/chat_model.h"
#include "chat/message.h"
#include "chat/prompt_media.h"

typedef struct ChatPrompt {
    const ChatMessage *messages; /* [message_count] */
    size_t message_count;
    const Json *arguments; /* an object: further variables of the template; NULL: none */
    const Json *tools;     /* [{"type": "function", "function": {…}}, …]; NULL: none */
    bool continues;        /* the answer continues the last message, whose text must not be empty */
} ChatPrompt;

/* Appends the ids, to none. arena: for temporary data and media. *media: the images of the messages; on failure it is
 * closed, but its `refused` stays. Errors: ERROR_UNSUPPORTED when the model has no template, or one that does not show
 * the message that is to be continued; ERROR_LIMIT, ERROR_MEMORY; those of prompt_media.h. */
NODISCARD bool chat_prompt(
    const ChatModel *model, const ChatPrompt *prompt, Arena *arena, Tokens *tokens, PromptMedia *media, Error *error);
/* Appends the ids of a prompt that is no chat: control tokens that it spells are such, as its author has them in their
 * places. A token that begins texts is there once, whether the text spells it or not. */
NODISCARD bool raw_prompt(const ChatModel *model, Slice text, Tokens *tokens, Error *error);
/* Where a prompt ends: within reasoning that the template has opened, behind one that it has closed, or elsewhere. */
NODISCARD bool chat_prompt_reasoning(
    const ChatModel *model, const Tokens *prompt, PromptReasoning *reasoning, Error *error);
