/* How much a model reasons: fields of requests, and the variables of the chat template that they become. */
#pragma once
#include "chat/request.h"
#include "server/api/api.h"

NODISCARD bool reasoning_read_effort(
    ReasoningOptions *reasoning, const Json *value, const char *field, ApiError *error);
NODISCARD bool reasoning_read_thinking(
    ReasoningOptions *reasoning, const Json *value, const char *field, ApiError *error);
/* −1: no limit. Several fields of a chat may say it and must agree. */
NODISCARD bool reasoning_read_budget(
    ReasoningOptions *reasoning, const Json *value, const char *field, ApiError *error);
/* {"max_tokens", "effort", "enabled", "exclude"} of OpenRouter, in the field "reasoning". */
NODISCARD bool reasoning_read_object(ReasoningOptions *reasoning, const Json *value, ApiError *error);
/* Settings that agents send whatever the model is. */
void reasoning_advise_thinking(ReasoningOptions *reasoning, bool thinking);
void reasoning_advise_effort(ReasoningOptions *reasoning, Slice effort);

/* Adds the template's variables to prompt->arguments. A setting that the template does not have is refused. */
NODISCARD bool reasoning_settle(
    const ChatRequest *request, const ChatModel *model, ChatPrompt *prompt, ApiError *error);
