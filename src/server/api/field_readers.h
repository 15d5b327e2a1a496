/* What fields of a request mean, where that is more than a type and a range. Each is a FieldReader (fields.h). */
#pragma once
#include "server/api/params.h"

#define FIELD_READER(name) bool name(ApiRequest *r, const Json *value, const char *field, ApiError *error)
/* A word of a list: the first `neutral` of them are what happens anyway, the others are not built. */
bool read_word(
    const Json *value, const char *field, const char *const *words, size_t count, size_t neutral, ApiError *error);
/* Stop strings, none of them empty. */
bool read_stops(ApiRequest *r, const Json *list, const char *field, int most, ApiError *error);
FIELD_READER(read_repetition);
FIELD_READER(read_seed);
FIELD_READER(read_stop);
FIELD_READER(read_logit_bias);
FIELD_READER(read_completion_logprobs);
FIELD_READER(read_stream_options);
FIELD_READER(read_metadata);
FIELD_READER(read_modalities);
FIELD_READER(read_prediction);
FIELD_READER(read_service_tier);
FIELD_READER(read_verbosity);
FIELD_READER(read_tools);
FIELD_READER(read_tool_choice);
FIELD_READER(read_parallel_calls);
FIELD_READER(read_effort);
FIELD_READER(read_thinking);
FIELD_READER(read_function_call);
FIELD_READER(read_unsupported);
FIELD_READER(read_only_empty); /* an empty array, object or string, or false */
FIELD_READER(read_format);
FIELD_READER(read_structured);
FIELD_READER(read_schema);
FIELD_READER(read_regex);
FIELD_READER(read_choice);
FIELD_READER(read_grammar);
FIELD_READER(read_cache_form);
FIELD_READER(read_cache_bits);
FIELD_READER(read_cache_group);
FIELD_READER(read_cache_salt);
FIELD_READER(read_cache_key);
FIELD_READER(read_cache_prompt);
FIELD_READER(read_cache_retention);
FIELD_READER(read_budget);
FIELD_READER(read_reasoning);
