/* Other doors to the one chat: their requests are rewritten as chat completions, which are then read as any other. */
#pragma once
#include "server/api/params.h"

/* Appends ,"as":value of a member that is there and not null. */
void adapter_copy(const Json *object, const char *name, const char *as, Buffer *out);
/* Appends ,"name":"text". */
void adapter_text(const char *name, Slice text, Buffer *out);
/* Appends a function, whose name is there, as a tool of a chat completion; schema: what its parameters are called. */
void adapter_tool(const Json *function, const char *schema, Buffer *out);
/* Joined by line ends, as a JSON string: a text, or the texts of parts whose types are in `types` (NULL ends them).
 * Other parts are refused, or with skip left out. */
NODISCARD bool adapter_join(
    const Json *content, const char *const *types, bool skip, const char *param, Buffer *out, ApiError *error);
/* Reads the chat completion that was written, and frees it. */
NODISCARD bool adapter_read(ApiRequest *request, Buffer *chat, ApiError *error);
/* The value of a member, or NULL when it is null or absent. */
const Json *adapter_get(const Json *object, const char *name);
bool adapter_is(const Json *object, const char *name, const char *text); /* it is this text */
