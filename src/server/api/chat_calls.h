/* Calls of tools in earlier messages, and the messages that answer them. */
#pragma once
#include "chat/prompt.h"
#include "server/api/params.h"

/* Of a message whose role is read: its tool_calls, or tool_call_id. */
NODISCARD bool calls_read(const ApiRequest *request, const Json *message, int index, ChatMessage *out, ApiError *error);
/* Gives answers of tools the names of the functions that were called: by the last call before with that id. */
NODISCARD bool calls_name(ChatMessage *messages, size_t count, ApiError *error);
