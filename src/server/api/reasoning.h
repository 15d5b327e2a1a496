/* How much a model is to think: what a request says of it becomes variables of the chat template. */
#pragma once
#include "chat/prompt.h"
#include "server/api/params.h"

/* Adds them to the prompt's arguments. What the template does not know is refused. */
NODISCARD bool reasoning_settle(const ApiRequest *request, const ChatModel *model, ChatPrompt *prompt, ApiError *error);
