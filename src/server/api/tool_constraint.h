/* The constraint that a request puts on its answer: calls of tools, the response format, a budget of reasoning. */
#pragma once
#include "chat/chat_model.h"
#include "chat/request.h"
#include "server/api/api.h"

/* *constraint: owned by the caller; NULL when any text is an answer. prompt: whether it ends within reasoning, after
 * which the constraint begins to hold. */
NODISCARD bool tool_constraint(
    const ChatRequest *request, ChatModel *model, const Tokens *prompt, Constraint **constraint, ApiError *error);
