/* Readers of fields whose meaning is more than a type and a range. Each is a FieldReader (fields.h): value has the type
 * and range of the field's row. */
#pragma once
#include "chat/request.h"
#include "server/api/api.h"

enum { STOP_COUNT_MAX = 4 /* of "stop", as OpenAI has it */, LOGIT_BIAS_MAX = 4096 };

#define FIELD_READER(name) bool name(ChatRequest *r, const Json *value, const char *field, ApiError *error)
/* One of `words`: the first `neutral` ones change nothing, the others are refused as not supported. */
bool read_word(
    const Json *value, const char *field, const char *const *words, size_t count, size_t neutral, ApiError *error);
FIELD_READER(read_template_arguments);
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

/* Readers of fields of forms, whose values are texts. */
FIELD_READER(read_form_temperature);
FIELD_READER(read_form_stream);
FIELD_READER(read_transcript_format);
FIELD_READER(read_only_auto);

/* Readers of fields of other APIs. */
FIELD_READER(note_stream_options);
FIELD_READER(read_stop_sequences);
FIELD_READER(read_predict);
FIELD_READER(read_text_format);
FIELD_READER(read_output_format);
FIELD_READER(read_ollama_format);
FIELD_READER(read_responses_tools);
FIELD_READER(read_messages_tools);
FIELD_READER(read_responses_choice);
FIELD_READER(read_messages_choice);
FIELD_READER(advise_effort);
FIELD_READER(advise_thinking);
FIELD_READER(advise_think);
