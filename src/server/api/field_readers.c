#include "server/api/field_readers.h"

#include <float.h>
#include <stdio.h>

#include "base/utf8.h"
#include "server/api/cache_params.h"
#include "server/api/members.h"
#include "server/api/reasoning.h"
#include "server/api/response_format.h"
#include "server/api/tools.h"

FIELD_READER(read_unsupported) { return api_unsupported(field, error); }

FIELD_READER(read_only_empty) {
    const bool empty = value->type == JSON_BOOL ? !value->boolean : value->type >= JSON_STRING && value->size == 0;
    return empty || api_unsupported(field, error);
}

/* ---- sampling ---- */

FIELD_READER(read_repetition) {
    if (r->generation.request.sampling.repetition_penalty >= FLT_MIN) return true; /* a smaller one is no divisor */
    return api_fail(error, 400, "invalid_value", field, "Invalid '%s': it must be greater than 0.", field);
}

FIELD_READER(read_seed) {
    int64_t seed;
    if (!api_integer(value, field, INT64_MIN, INT64_MAX, &seed, error)) return false;
    r->generation.request.sampling.seed = (uint64_t)seed;
    return true;
}

FIELD_READER(read_completion_logprobs) {
    r->response.logprobs = true;
    return true;
}

static bool read_stop_string(ChatRequest *r, const Json *value, const char *param, ApiError *error) {
    Slice stop;
    if (!api_string(value, param, &stop, error)) return false;
    if (stop.size == 0)
        return api_fail(error, 400, "invalid_value", param, "Invalid '%s': a stop sequence cannot be empty.", param);
    if (stop.size > STOP_STRING_BYTES_MAX)
        return api_fail(error, 400, "string_above_max_length", param,
            "Invalid '%s': a stop sequence has at most %d bytes, got %zu.", param, STOP_STRING_BYTES_MAX, stop.size);
    r->stops[r->generation.stop_count++] = stop;
    return true;
}

static bool read_stops(ChatRequest *r, const Json *list, const char *field, int most, ApiError *error) {
    if (list->size > (uint32_t)most)
        return api_fail(error, 400, "array_above_max_length", field,
            "Invalid '%s': expected an array of at most %d strings, but got %u.", field, most, list->size);
    for (JSON_EACH(item, list)) {
        char param[API_PARAM_MAX];
        snprintf(param, sizeof param, "%.100s[%d]", field, r->generation.stop_count);
        if (!read_stop_string(r, item, param, error)) return false;
    }
    return true;
}

FIELD_READER(read_stop) {
    r->generation.stop_count = 0;
    if (value->type == JSON_STRING) return read_stop_string(r, value, field, error);
    if (value->type != JSON_ARRAY)
        return api_fail(error, 400, "invalid_type", field,
            "Invalid type for '%s': expected a string or an array of strings, but got %s instead.", field,
            json_type_name(value));
    if (value->size == 0)
        return api_fail(error, 400, "empty_array", field, "Invalid '%s': expected an array of 1 to %d strings.", field,
            r->stop_max);
    return read_stops(r, value, field, r->stop_max, error);
}

FIELD_READER(read_stop_sequences) { return read_stops(r, value, field, STOP_STRINGS_MAX, error); }

static bool read_bias(const Json *key, const Json *bias, int vocab, int32_t *id, float *out, ApiError *error) {
    char param[API_PARAM_MAX];
    double number;
    snprintf(param, sizeof param, "logit_bias.%.*s", key->size < 32 ? (int)key->size : 32, key->string);
    int64_t parsed = key->size == 0 || key->size > 9 ? -1 : 0;
    for (uint32_t i = 0; i < key->size && parsed >= 0; i++)
        parsed = key->string[i] >= '0' && key->string[i] <= '9' ? parsed * 10 + key->string[i] - '0' : -1;
    if (parsed < 0 || parsed >= vocab)
        return api_fail(error, 400, "invalid_value", param,
            "Invalid key in 'logit_bias': expected a token id from 0 to %d.", vocab - 1);
    if (!api_number(bias, param, -100, 100, &number, error)) return false;
    *id = (int32_t)parsed;
    *out = (float)number;
    return true;
}

FIELD_READER(read_logit_bias) {
    if (value->size > LOGIT_BIAS_MAX)
        return api_fail(error, 400, "object_above_max_properties", field,
            "Invalid 'logit_bias': at most %d entries, got %u.", LOGIT_BIAS_MAX, value->size);
    int32_t *ids = arena_alloc(r->arena, value->size, sizeof *ids);
    float *values = arena_alloc(r->arena, value->size, sizeof *values);
    if (!ids || !values) return api_out_of_memory(error);
    int count = 0;
    for (JSON_EACH_PAIR(key, bias, value)) {
        if (!read_bias(key, bias, r->vocab, &ids[count], &values[count], error)) return false;
        count++;
    }
    SamplingOptions *sampling = &r->generation.request.sampling;
    sampling->bias_ids = ids;
    sampling->bias_values = values;
    sampling->bias_count = count;
    return true;
}

/* −2, −1 and 0: no limit. */
FIELD_READER(read_predict) {
    int64_t count;
    if (!api_integer(value, field, -2, INT32_MAX, &count, error)) return false;
    if (count > 0) r->generation.request.max_tokens = (int)count;
    return true;
}

/* ---- the response ---- */

FIELD_READER(note_stream_options) {
    r->response.options_given = true;
    return true;
}

FIELD_READER(read_stream_options) {
    r->response.options_given = true;
    for (JSON_EACH_PAIR(key, option, value)) {
        bool *target = slice_is(json_slice(key), "include_usage") ? &r->response.include_usage
            : slice_is(json_slice(key), "include_obfuscation")    ? &r->response.obfuscated
                                                                  : NULL;
        char param[API_PARAM_MAX];
        snprintf(param, sizeof param, "stream_options.%.*s", key->size < 64 ? (int)key->size : 64, key->string);
        if (!target) return api_fail(error, 400, "unknown_parameter", param, "Unknown parameter: '%s'.", param);
        if (option->type != JSON_NULL && !api_bool(option, param, target, error)) return false;
    }
    return true;
}

FIELD_READER(read_modalities) {
    for (JSON_EACH(item, value)) {
        Slice modality;
        if (!api_string(item, field, &modality, error)) return false;
        if (slice_is(modality, "audio")) return api_unsupported(field, error);
        if (!slice_is(modality, "text"))
            return api_fail(error, 400, "invalid_value", field, "Invalid value for '%s': expected 'text'.", field);
    }
    return true;
}

static bool is_one_of(Slice text, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (slice_is(text, names[i])) return true;
    return false;
}

bool read_word(
    const Json *value, const char *field, const char *const *words, size_t count, size_t neutral, ApiError *error) {
    const Slice word = json_slice(value);
    if (is_one_of(word, words, neutral)) return true;
    if (is_one_of(word, words, count))
        return api_fail(error, 400, "unsupported_parameter", field,
            "Unsupported value: '%s' does not support '%.*s' with this server.", field, SLICE_SHOWN(word));
    return api_fail(error, 400, "invalid_value", field, "Invalid value for '%s': '%.*s' is none of its values.", field,
        word.size < 64 && utf8_valid(word) ? (int)word.size : 0, word.data);
}

FIELD_READER(read_service_tier) {
    static const char *const tiers[] = {"auto", "default", "flex", "scale", "priority", "fast"};
    return read_word(value, field, tiers, COUNT_OF(tiers), 2, error);
}

FIELD_READER(read_verbosity) {
    static const char *const words[] = {"medium", "low", "high"};
    return read_word(value, field, words, COUNT_OF(words), 1, error);
}

/* ---- hints ---- */

FIELD_READER(read_metadata) {
    enum { PAIRS_MAX = 16, KEY_MAX = 64, VALUE_MAX = 512 };
    if (value->size > PAIRS_MAX)
        return api_fail(error, 400, "object_above_max_properties", field,
            "Invalid 'metadata': at most %d entries, got %u.", PAIRS_MAX, value->size);
    for (JSON_EACH_PAIR(key, item, value)) {
        char param[API_PARAM_MAX];
        Slice text;
        snprintf(param, sizeof param, "metadata.%.*s", key->size < 64 ? (int)key->size : 64, key->string);
        if (!utf8_valid(slice_of(param))) snprintf(param, sizeof param, "metadata"); /* cut inside a character */
        if (api_characters(json_slice(key)) > KEY_MAX)
            return api_fail(error, 400, "string_above_max_length", field,
                "Invalid 'metadata': a key has at most %d characters.", KEY_MAX);
        if (!api_string(item, param, &text, error)) return false;
        if (api_characters(text) > VALUE_MAX)
            return api_fail(error, 400, "string_above_max_length", param,
                "Invalid '%s': a value has at most %d characters.", param, VALUE_MAX);
    }
    return true;
}

static bool add_prediction_part(const Json *part, Buffer *out, ApiError *error) {
    Slice text;
    const char *const param = "prediction.content";
    if (!api_type(part, JSON_OBJECT, param, error)) return false;
    const Json *type = json_get(part, "type"), *content = json_get(part, "text");
    if (!type || type->type != JSON_STRING || !slice_is(json_slice(type), "text") || !content)
        return api_fail(error, 400, "invalid_value", param, "Invalid '%s': expected parts of type 'text'.", param);
    if (!api_string(content, param, &text, error)) return false;
    buffer_slice(out, text);
    return true;
}

static bool join_prediction(ChatRequest *r, const Json *parts, ApiError *error) {
    Buffer text = {0};
    bool ok = true;
    for (JSON_EACH(part, parts)) ok = ok && add_prediction_part(part, &text, error);
    const char *copy = ok && !text.failed ? arena_copy(r->arena, buffer_view(&text)) : NULL;
    if (ok && !copy) ok = api_out_of_memory(error);
    if (ok) r->prediction = (Slice){copy, text.size};
    buffer_free(&text);
    return ok;
}

/* A text that the answer may repeat in part: the answer comes sooner where it does, and is the same. */
FIELD_READER(read_prediction) {
    const Json *type = json_get(value, "type"), *content = json_get(value, "content");
    if (!type || type->type != JSON_STRING || !slice_is(json_slice(type), "content"))
        return api_fail(error, 400, type ? "invalid_value" : "missing_required_parameter", "prediction.type",
            "'prediction.type' must be 'content'.");
    if (!content)
        return api_fail(error, 400, "missing_required_parameter", "prediction.content",
            "Missing required parameter: 'prediction.content'.");
    if (content->type == JSON_STRING) return api_string(content, "prediction.content", &r->prediction, error);
    return api_type(content, JSON_ARRAY, "prediction.content", error) && join_prediction(r, content, error);
}

FIELD_READER(read_cache_retention) {
    static const char *const words[] = {"in_memory", "in-memory", "24h"};
    return read_word(value, field, words, COUNT_OF(words), 2, error);
}

FIELD_READER(read_function_call) { /* deprecated, as is `functions`, which is refused */
    Slice call;
    if (value->type != JSON_STRING) return api_unsupported(field, error);
    return api_string(value, field, &call, error) &&
        (slice_is(call, "none") || slice_is(call, "auto") || api_unsupported(field, error));
}

/* ---- the template's own variables ---- */

FIELD_READER(read_template_arguments) {
    static const char *const reserved[] = {"messages", "tools", "documents", "add_generation_prompt", "bos_token",
        "eos_token", "pad_token", "unk_token", "now", "continue_final_message"};
    for (JSON_EACH_PAIR(key, argument, value)) {
        const Slice name = json_slice(key);
        for (size_t i = 0; i < COUNT_OF(reserved); i++)
            if (slice_is(name, reserved[i]))
                return api_fail(
                    error, 400, "invalid_value", field, "Invalid '%s': '%s' cannot be set here.", field, reserved[i]);
        if (name.size > 6 && !memcmp(name.data + name.size - 6, "_token", 6)) /* would count as template text */
            return api_fail(error, 400, "invalid_value", field,
                "Invalid '%s': names ending in '_token' cannot be set here.", field);
    }
    return true;
}

/* ---- tools, reasoning, formats, cache: read by other files ---- */

FIELD_READER(read_format) { return format_read_response(&r->format, r->arena, value, field, error); }
FIELD_READER(read_text_format) { return format_read_text(&r->format, r->arena, value, field, error); }
FIELD_READER(read_output_format) { return format_read_output(&r->format, r->arena, value, field, error); }
FIELD_READER(read_ollama_format) { return format_read_ollama(&r->format, r->arena, value, field, error); }
FIELD_READER(read_structured) { return format_read_structured(&r->format, r->arena, value, field, error); }
FIELD_READER(read_schema) { return format_read_schema(&r->format, r->arena, value, field, error); }
FIELD_READER(read_regex) { return format_read_regex(&r->format, r->arena, value, field, error); }
FIELD_READER(read_choice) { return format_read_choice(&r->format, r->arena, value, field, error); }
FIELD_READER(read_grammar) { return format_read_grammar(&r->format, r->arena, value, field, error); }

FIELD_READER(read_tools) { return tools_read_list(&r->tools, r->arena, value, field, &tool_form_chat, error); }
FIELD_READER(read_responses_tools) {
    return tools_read_list(&r->tools, r->arena, value, field, &tool_form_responses, error);
}
FIELD_READER(read_messages_tools) {
    return tools_read_list(&r->tools, r->arena, value, field, &tool_form_messages, error);
}
FIELD_READER(read_tool_choice) { return tools_read_choice(&r->tools, r->arena, value, field, error); }
FIELD_READER(read_responses_choice) { return tools_read_responses_choice(&r->tools, r->arena, value, field, error); }
FIELD_READER(read_messages_choice) { return tools_read_messages_choice(&r->tools, value, field, error); }
FIELD_READER(read_parallel_calls) {
    bool parallel;
    if (!api_bool(value, field, &parallel, error)) return false;
    r->tools.single = !parallel;
    return true;
}

FIELD_READER(read_effort) { return reasoning_read_effort(&r->reasoning, value, field, error); }
FIELD_READER(read_budget) { return reasoning_read_budget(&r->reasoning, value, field, error); }
FIELD_READER(read_reasoning) { return reasoning_read_object(&r->reasoning, value, error); }
FIELD_READER(read_thinking) { return reasoning_read_thinking(&r->reasoning, value, field, error); }
FIELD_READER(advise_effort) {
    r->reasoning.advisory = true;
    return reasoning_read_effort(&r->reasoning, value, field, error);
}
FIELD_READER(advise_thinking) {
    reasoning_advise_thinking(&r->reasoning, !member_is(value, "type", "disabled"));
    return true;
}
FIELD_READER(advise_think) { /* Ollama's: a boolean or an effort */
    static const char *const words[] = {"low", "medium", "high"};
    Slice word;
    if (value->type == JSON_BOOL) {
        reasoning_advise_thinking(&r->reasoning, value->boolean);
        return true;
    }
    if (!api_string(value, field, &word, error) ||
        !read_word(value, field, words, COUNT_OF(words), COUNT_OF(words), error))
        return false;
    reasoning_advise_effort(&r->reasoning, word);
    return true;
}

FIELD_READER(read_cache_form) { return cache_read_form(&r->cache, value, field, error); }
FIELD_READER(read_cache_bits) { return cache_read_bits(&r->cache, value, field, error); }
FIELD_READER(read_cache_group) { return cache_read_group(&r->cache, value, field, error); }
FIELD_READER(read_cache_salt) { return cache_read_salt(&r->cache, value, field, error); }
FIELD_READER(read_cache_key) { return cache_read_key(&r->cache, value, field, error); }
FIELD_READER(read_cache_prompt) {
    bool on;
    if (!api_bool(value, field, &on, error)) return false;
    r->generation.request.cache_off = !on;
    return true;
}
