/* Field tables of the two request objects. A field of OpenAI's schema that is not built yet is refused with
 * unsupported_parameter unless its value asks for what happens anyway; a field nobody knows is refused as OpenAI does.
 */
#include "server/params.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"

typedef bool (*FieldReader)(ApiRequest *request, const Json *value, const char *name, ApiError *error);
typedef struct Field {
    const char *name;
    FieldReader read;
} Field;

static bool read_float(const Json *value, const char *name, double min, double max, float *out, ApiError *error) {
    double number;
    if (!api_number(value, name, min, max, &number, error)) return false;
    *out = (float)number;
    return true;
}

static bool read_int(const Json *value, const char *name, int64_t min, int64_t max, int *out, ApiError *error) {
    int64_t integer;
    if (!api_integer(value, name, min, max, &integer, error)) return false;
    *out = (int)integer;
    return true;
}

#define READER(name) static bool name(ApiRequest *r, const Json *value, const char *field, ApiError *error)

READER(read_model) { return api_string(value, field, &r->model, error); }
READER(read_temperature) { return read_float(value, field, 0, 2, &r->sampling.temperature, error); }
READER(read_top_p) { return read_float(value, field, 0, 1, &r->sampling.top_p, error); }
READER(read_min_p) { return read_float(value, field, 0, 1, &r->sampling.min_p, error); }
READER(read_top_k) { return read_int(value, field, 0, INT32_MAX, &r->sampling.top_k, error); }
READER(read_frequency) { return read_float(value, field, -2, 2, &r->sampling.frequency_penalty, error); }
READER(read_presence) { return read_float(value, field, -2, 2, &r->sampling.presence_penalty, error); }
READER(read_choices) { return read_int(value, field, 1, CHOICES_MAX, &r->choices, error); }
READER(read_stream) { return api_bool(value, field, &r->form.stream, error); }
READER(read_echo) { return api_bool(value, field, &r->form.echo, error); }
READER(read_ignore_eos) { return api_bool(value, field, &r->sampling.ignore_eos, error); }
READER(read_max_tokens) { return api_integer(value, field, 1, INT32_MAX, &r->max_tokens, error); }
READER(read_max_tokens_or_zero) { return api_integer(value, field, 0, INT32_MAX, &r->max_tokens, error); }
READER(read_best_of) { return api_integer(value, field, 1, CHOICES_MAX, &r->best_of, error); }

READER(read_repetition) {
    if (!read_float(value, field, 0, 2, &r->sampling.repetition_penalty, error)) return false;
    if (r->sampling.repetition_penalty > 0) return true;
    return api_fail(error, 400, "invalid_value", field, "Invalid '%s': it must be greater than 0.", field);
}

READER(read_seed) {
    int64_t seed;
    if (!api_integer(value, field, INT64_MIN, INT64_MAX, &seed, error)) return false;
    r->sampling.seed = (uint64_t)seed;
    return true;
}

static bool read_stop_string(ApiRequest *r, const Json *value, const char *param, ApiError *error) {
    Slice stop;
    if (!api_string(value, param, &stop, error)) return false;
    if (stop.size == 0)
        return api_fail(error, 400, "invalid_value", param, "Invalid '%s': a stop sequence cannot be empty.", param);
    if (stop.size > STOP_STRING_BYTES_MAX)
        return api_fail(error, 400, "string_above_max_length", param,
            "Invalid '%s': a stop sequence has at most %d bytes, got %zu.", param, STOP_STRING_BYTES_MAX, stop.size);
    r->stops[r->stop_count++] = stop;
    return true;
}

READER(read_stop) {
    r->stop_count = 0;
    if (value->type == JSON_STRING) return read_stop_string(r, value, field, error);
    if (value->type != JSON_ARRAY)
        return api_fail(error, 400, "invalid_type", field,
            "Invalid type for 'stop': expected a string or an array of strings, but got %s instead.",
            json_type_name(value));
    if (value->size > STOP_COUNT_MAX)
        return api_fail(error, 400, "array_above_max_length", field,
            "Invalid 'stop': array too long. Expected an array with maximum length %d, but got length %u.",
            STOP_COUNT_MAX, value->size);
    int index = 0;
    for (JSON_EACH(item, value)) {
        char param[API_PARAM_MAX];
        snprintf(param, sizeof param, "stop[%d]", index++);
        if (!read_stop_string(r, item, param, error)) return false;
    }
    return true;
}

READER(read_logit_bias) {
    if (!api_type(value, JSON_OBJECT, field, error)) return false;
    if (value->size > LOGIT_BIAS_MAX)
        return api_fail(error, 400, "object_above_max_properties", field,
            "Invalid 'logit_bias': at most %d entries, got %u.", LOGIT_BIAS_MAX, value->size);
    int32_t *ids = arena_alloc(r->arena, value->size, sizeof *ids);
    float *values = arena_alloc(r->arena, value->size, sizeof *values);
    if (!ids || !values) return api_fail(error, 503, "out_of_memory", NULL, "Out of memory.");
    int count = 0;
    for (JSON_EACH_PAIR(key, bias, value)) {
        char param[API_PARAM_MAX];
        snprintf(param, sizeof param, "logit_bias.%.*s", key->size < 32 ? (int)key->size : 32, key->string);
        int64_t id = key->size == 0 || key->size > 9 ? -1 : 0;
        for (uint32_t i = 0; i < key->size && id >= 0; i++)
            id = key->string[i] >= '0' && key->string[i] <= '9' ? id * 10 + key->string[i] - '0' : -1;
        if (id < 0 || id >= r->vocab)
            return api_fail(error, 400, "invalid_value", param,
                "Invalid key in 'logit_bias': expected a token id from 0 to %d.", r->vocab - 1);
        ids[count] = (int32_t)id;
        if (!read_float(bias, param, -100, 100, &values[count++], error)) return false;
    }
    r->sampling.bias_ids = ids;
    r->sampling.bias_values = values;
    r->sampling.bias_count = count;
    return true;
}

READER(read_chat_logprobs) { return api_bool(value, field, &r->form.logprobs, error); }
READER(read_top_logprobs) { return read_int(value, field, 0, LOGPROBS_TOP_MAX, &r->top_logprobs, error); }

READER(read_completion_logprobs) {
    r->form.logprobs = true;
    return read_int(value, field, 0, 5, &r->top_logprobs, error);
}

READER(read_stream_options) {
    if (!api_type(value, JSON_OBJECT, field, error)) return false;
    for (JSON_EACH_PAIR(key, option, value)) {
        bool unused;
        bool *target = slice_is(json_slice(key), "include_usage") ? &r->form.include_usage
            : slice_is(json_slice(key), "include_obfuscation")    ? &unused
                                                                  : NULL;
        char param[API_PARAM_MAX];
        snprintf(param, sizeof param, "stream_options.%.*s", key->size < 64 ? (int)key->size : 64, key->string);
        if (!target) return api_fail(error, 400, "unknown_parameter", param, "Unknown parameter: '%s'.", param);
        if (option->type != JSON_NULL && !api_bool(option, param, target, error)) return false;
    }
    return true;
}

READER(read_unsupported) { return api_unsupported(field, error); }

/* Lists and switches that are off: an empty array, an empty object, false, "". */
READER(read_only_empty) {
    const bool empty = value->type == JSON_BOOL ? !value->boolean : value->type >= JSON_STRING && value->size == 0;
    return empty || api_unsupported(field, error);
}

READER(read_response_format) {
    if (!api_type(value, JSON_OBJECT, field, error)) return false;
    const Json *type = json_get(value, "type");
    Slice name;
    if (!type)
        return api_fail(error, 400, "missing_required_parameter", "response_format.type",
            "Missing required parameter: 'response_format.type'.");
    if (!api_string(type, "response_format.type", &name, error)) return false;
    if (slice_is(name, "text")) return true;
    if (slice_is(name, "json_object") || slice_is(name, "json_schema")) return api_unsupported(field, error);
    return api_fail(error, 400, "invalid_value", "response_format.type",
        "Invalid value for 'response_format.type': supported values are 'text', 'json_object' and 'json_schema'.");
}

READER(read_cache_form) { return cache_read_form(&r->cache, value, field, error); }
READER(read_cache_bits) { return cache_read_bits(&r->cache, value, field, error); }
READER(read_cache_group) { return cache_read_group(&r->cache, value, field, error); }
READER(read_cache_salt) { return cache_read_salt(&r->cache, value, field, error); }
READER(read_cache_key) { return cache_read_key(&r->cache, value, field, error); }
READER(read_cache_prompt) { return cache_read_prompt(&r->cache, value, field, error); }

READER(read_modalities) {
    if (!api_type(value, JSON_ARRAY, field, error)) return false;
    for (JSON_EACH(item, value)) {
        Slice modality;
        if (!api_string(item, field, &modality, error)) return false;
        if (!slice_is(modality, "text")) return api_unsupported(field, error);
    }
    return true;
}

READER(read_service_tier) {
    Slice tier;
    if (!api_string(value, field, &tier, error)) return false;
    return slice_is(tier, "auto") || slice_is(tier, "default") || api_unsupported(field, error);
}

READER(read_verbosity) {
    Slice verbosity;
    if (!api_string(value, field, &verbosity, error)) return false;
    return slice_is(verbosity, "medium") || api_unsupported(field, error);
}

READER(read_text_hint) { /* identifies a user: nothing here depends on it */
    Slice text;
    return api_string(value, field, &text, error);
}

READER(read_metadata) {
    enum { METADATA_MAX = 16 };
    if (!api_type(value, JSON_OBJECT, field, error)) return false;
    if (value->size <= METADATA_MAX) return true;
    return api_fail(error, 400, "object_above_max_properties", field, "Invalid 'metadata': at most %d entries, got %u.",
        METADATA_MAX, value->size);
}

READER(read_messages) {
    if (!api_type(value, JSON_ARRAY, field, error)) return false;
    if (value->size == 0)
        return api_fail(error, 400, "empty_array", field,
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array "
            "instead.");
    if (value->size > MESSAGES_MAX)
        return api_fail(error, 400, "array_above_max_length", field, "Invalid 'messages': at most %d messages, got %u.",
            MESSAGES_MAX, value->size);
    r->messages = value;
    return true;
}

READER(read_template_arguments) {
    if (!api_type(value, JSON_OBJECT, field, error)) return false;
    r->template_arguments = value;
    return true;
}

READER(read_tools) { return tools_read_list(&r->tools, value, field, error); }
READER(read_tool_choice) { return tools_read_choice(&r->tools, value, field, error); }
READER(read_parallel_calls) { return tools_read_parallel(&r->tools, value, field, error); }
READER(read_effort) { return tools_read_effort(&r->tools, value, field, error); }
READER(read_thinking) { return tools_read_thinking(&r->tools, value, field, error); }

READER(read_function_call) { /* deprecated, as is `functions`, which is refused */
    Slice call;
    if (value->type != JSON_STRING) return api_unsupported(field, error);
    return api_string(value, field, &call, error) &&
        (slice_is(call, "none") || slice_is(call, "auto") || api_unsupported(field, error));
}

READER(read_prompt) {
    r->prompt = value;
    return true;
}

READER(read_suffix) { return read_only_empty(r, value, field, error); }

static const Field chat_fields[] = {
    {"model", read_model},
    {"messages", read_messages},
    {"max_tokens", read_max_tokens},
    {"max_completion_tokens", read_max_tokens},
    {"temperature", read_temperature},
    {"top_p", read_top_p},
    {"n", read_choices},
    {"seed", read_seed},
    {"stop", read_stop},
    {"stream", read_stream},
    {"stream_options", read_stream_options},
    {"frequency_penalty", read_frequency},
    {"presence_penalty", read_presence},
    {"logit_bias", read_logit_bias},
    {"logprobs", read_chat_logprobs},
    {"top_logprobs", read_top_logprobs},
    {"response_format", read_response_format},
    {"modalities", read_modalities},
    {"service_tier", read_service_tier},
    {"verbosity", read_verbosity},
    {"user", read_text_hint},
    {"safety_identifier", read_text_hint},
    {"prompt_cache_key", read_cache_key},
    {"prompt_cache_retention", read_unsupported},
    {"metadata", read_metadata},
    {"store", read_only_empty},
    {"tools", read_tools},
    {"functions", read_only_empty},
    {"tool_choice", read_tool_choice},
    {"function_call", read_function_call},
    {"parallel_tool_calls", read_parallel_calls},
    {"reasoning_effort", read_effort},
    {"audio", read_unsupported},
    {"prediction", read_unsupported},
    {"web_search_options", read_unsupported},
    /* extensions that clients of local servers use */
    {"top_k", read_top_k},
    {"min_p", read_min_p},
    {"repetition_penalty", read_repetition},
    {"ignore_eos", read_ignore_eos},
    {"kv_cache", read_cache_form},
    {"kv_bits", read_cache_bits},
    {"kv_group_size", read_cache_group},
    {"cache_salt", read_cache_salt},
    {"cache_prompt", read_cache_prompt},
    {"chat_template_kwargs", read_template_arguments},
    {"enable_thinking", read_thinking},
};

static const Field completion_fields[] = {
    {"model", read_model},
    {"prompt", read_prompt},
    {"max_tokens", read_max_tokens_or_zero},
    {"temperature", read_temperature},
    {"top_p", read_top_p},
    {"n", read_choices},
    {"best_of", read_best_of},
    {"echo", read_echo},
    {"suffix", read_suffix},
    {"seed", read_seed},
    {"stop", read_stop},
    {"stream", read_stream},
    {"stream_options", read_stream_options},
    {"frequency_penalty", read_frequency},
    {"presence_penalty", read_presence},
    {"logit_bias", read_logit_bias},
    {"logprobs", read_completion_logprobs},
    {"user", read_text_hint},
    {"top_k", read_top_k},
    {"min_p", read_min_p},
    {"repetition_penalty", read_repetition},
    {"kv_cache", read_cache_form},
    {"kv_bits", read_cache_bits},
    {"kv_group_size", read_cache_group},
    {"cache_salt", read_cache_salt},
    {"cache_prompt", read_cache_prompt},
    {"prompt_cache_key", read_cache_key},
    {"ignore_eos", read_ignore_eos},
};

static bool read_fields(ApiRequest *request, const Json *body, const Field *fields, size_t count, ApiError *error) {
    for (JSON_EACH_PAIR(key, value, body)) {
        size_t i = 0;
        while (i < count && !slice_is(json_slice(key), fields[i].name)) i++;
        if (i == count) {
            char name[API_PARAM_MAX];
            snprintf(name, sizeof name, "%.*s", key->size < 100 ? (int)key->size : 100, key->string);
            return api_fail(error, 400, "unknown_parameter", utf8_valid(slice_of(name)) ? name : NULL,
                "Unrecognized request argument supplied: %s", utf8_valid(slice_of(name)) ? name : "(a long name)");
        }
        if (value->type != JSON_NULL && !fields[i].read(request, value, fields[i].name, error)) return false;
    }
    if (!request->model.data)
        return api_fail(error, 400, "missing_required_parameter", "model", "Missing required parameter: 'model'.");
    const Json *stream_options = json_get(body, "stream_options");
    if (stream_options && stream_options->type != JSON_NULL && !request->form.stream)
        return api_fail(error, 400, "invalid_value", "stream_options",
            "The 'stream_options' parameter is only allowed when 'stream' is true.");
    return cache_settle(&request->cache, error);
}

/* Both spellings given: they must agree. */
static bool check_max_tokens(const Json *body, ApiError *error) {
    const Json *old = json_get(body, "max_tokens"), *new = json_get(body, "max_completion_tokens");
    if (!json_is_number(old) || !json_is_number(new) || json_number(old) == json_number(new)) return true;
    return api_fail(error, 400, "invalid_value", "max_tokens",
        "'max_tokens' and 'max_completion_tokens' are both set and differ: send only 'max_completion_tokens'.");
}

bool params_read_chat(ApiRequest *request, const Json *body, ApiError *error) {
    if (!read_fields(request, body, chat_fields, COUNT_OF(chat_fields), error) || !check_max_tokens(body, error))
        return false;
    if (!request->messages)
        return api_fail(
            error, 400, "missing_required_parameter", "messages", "Missing required parameter: 'messages'.");
    if (request->top_logprobs > 0 && !request->form.logprobs)
        return api_fail(error, 400, "invalid_value", "top_logprobs",
            "The 'top_logprobs' parameter is only allowed when 'logprobs' is true.");
    request->sampling.logprobs = request->form.logprobs ? request->top_logprobs : -1;
    return tools_settle(&request->tools, error);
}

bool params_read_completion(ApiRequest *request, const Json *body, ApiError *error) {
    if (!read_fields(request, body, completion_fields, COUNT_OF(completion_fields), error)) return false;
    if (!request->prompt)
        return api_fail(error, 400, "missing_required_parameter", "prompt", "Missing required parameter: 'prompt'.");
    if (request->best_of > 1 && request->best_of != request->choices) return api_unsupported("best_of", error);
    if (request->max_tokens == 0 && !request->form.echo)
        return api_fail(error, 400, "integer_below_min_value", "max_tokens",
            "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1 (0 only with 'echo'), but got 0 "
            "instead.");
    request->form.only_echo = request->max_tokens == 0;
    if (request->max_tokens < 0) request->max_tokens = COMPLETION_TOKENS_DEFAULT;
    request->sampling.logprobs = request->form.logprobs ? request->top_logprobs : -1;
    return true;
}
