/* Fill-in-the-middle prompts, with the special tokens of models that were trained for them. */
#pragma once
#include "chat/chat_model.h"

/* Appends the ids. ERROR_UNSUPPORTED: the vocabulary has no such tokens. */
NODISCARD bool infill_prompt(const ChatModel *model, Slice before, Slice after, Tokens *tokens, Error *error);
