/* Messages of Chat Completions; Ollama's have the same roles and content. */
#pragma once
#include "server/api/message_builder.h"

/* The template's role for a member "role"; param: the message's path. */
NODISCARD bool chat_read_role(const Json *message, const char *param, const char **role, ApiError *error);
/* Appends content, a string or a non-empty array of parts, to the last message. */
NODISCARD bool chat_read_content(MessageBuilder *builder, const Json *content, const char *param, ApiError *error);
/* False: calls in a message of another role than the assistant's. param: the calls' path. */
bool chat_check_caller(const char *role, const char *param, ApiError *error);

/* Reads an array of messages into the request. */
NODISCARD bool chat_read_messages(ChatRequest *request, const Json *messages, ApiError *error);
