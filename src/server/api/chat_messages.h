/* A chat request's messages, every field checked: what the model is asked, as chat/prompt.h takes it. */
#pragma once
#include "chat/prompt.h"
#include "server/api/params.h"

/* All that prompt points to lies in the body or in request->arena. */
NODISCARD bool messages_read(const ApiRequest *request, ChatPrompt *prompt, ApiError *error);
