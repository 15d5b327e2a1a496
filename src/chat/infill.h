/* A prompt for what stands between two texts, spelled with the marks of models that were trained for it. */
#pragma once
#include "chat/chat_model.h"

/* Appends the ids. ERROR_UNSUPPORTED: the model's vocabulary has no such marks. */
NODISCARD bool infill_prompt(const ChatModel *model, Slice before, Slice after, Tokens *tokens, Error *error);
