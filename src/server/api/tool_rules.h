/* What a request demands of its answer as to tools, as a constraint. */
#pragma once
#include "chat/chat_model.h"
#include "server/api/params.h"

/* NULL when it demands nothing: then every text is an answer. prompt: whether it ends within reasoning, behind which
 * the constraint holds. Handles response_format as well. The reference is the caller's. */
NODISCARD bool tool_rules_constrain(
    const ApiRequest *request, ChatModel *model, const Tokens *prompt, Constraint **constraint, ApiError *error);
