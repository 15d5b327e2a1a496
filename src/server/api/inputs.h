/* Inputs as texts or token ids, one or several: string | [string] | [id] | [[id]]. */
#pragma once
#include "chat/chat_model.h"
#include "server/api/api.h"

/* name: the field, for errors. most: largest number of inputs. */
NODISCARD bool inputs_count(const Json *value, const char *name, uint32_t most, uint32_t *count, ApiError *error);
/* Calls take() for each input, a list of ids or a value that should be a text, with its path. After inputs_count(). */
typedef bool InputTake(void *context, const Json *input, const char *param, ApiError *error);
NODISCARD bool inputs_each(const Json *value, const char *name, InputTake *take, void *context, ApiError *error);

NODISCARD bool input_ids(const Json *list, const char *param, int vocab, Tokens *tokens, ApiError *error);
/* The error of a text that cannot be tokenized, or of ids that cannot be decoded. Returns false. */
bool input_refuse(const Error *why, const char *param, ApiError *error);
