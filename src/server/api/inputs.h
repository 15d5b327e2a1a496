/* What a request gives as texts or as token ids, one or several: string | [string] | [id] | [[id]]. */
#pragma once
#include "chat/chat_model.h"
#include "server/api/api.h"

/* name: the field, of which errors speak. most: so many at most. */
NODISCARD bool inputs_count(const Json *value, const char *name, uint32_t most, uint32_t *count, ApiError *error);
/* take() gets each, a list of ids or what should be a text, and where it stands. After inputs_count(). */
typedef bool InputTake(void *context, const Json *input, const char *param, ApiError *error);
NODISCARD bool inputs_each(const Json *value, const char *name, InputTake *take, void *context, ApiError *error);

NODISCARD bool input_ids(const Json *list, const char *param, int vocab, Tokens *tokens, ApiError *error);
/* Why a text did not become tokens, or they no text. False. */
bool input_refuse(const Error *why, const char *param, ApiError *error);
