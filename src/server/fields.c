#include "server/fields.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "base/utf8.h"
#include "server/field_readers.h"

#define BOTH (DOOR_CHAT | DOOR_TEXT)
#define AT(member) ((int)offsetof(ApiRequest, member))
#define NOWHERE FIELD_NOWHERE
#define MANY INT32_MAX

static const Field table[] = {
    {"model", BOTH, FIELD_HONOURED, FIELD_TEXT, AT(model), 0, 0, NULL, NULL, "required",
        "the id of a served model, loaded if it is not; another is 404"},
    {"messages", DOOR_CHAT, FIELD_HONOURED, FIELD_ARRAY, AT(messages), 1, MESSAGES_MAX, NULL, NULL, "required",
        "roles system, developer, user, assistant, tool; content a string or text parts; `tool_calls`, `tool_call_id`, "
        "`reasoning_content`"},
    {"prompt", DOOR_TEXT, FIELD_HONOURED, FIELD_ANY, AT(prompt), 0, 0, NULL, "text, [text], [id] or [[id]]", "required",
        "at most 64 prompts"},
    {"max_completion_tokens", DOOR_CHAT, FIELD_HONOURED, FIELD_LONG, AT(max_tokens), 1, MANY, NULL, NULL,
        "what the context holds", "tokens of an answer"},
    {"max_tokens", DOOR_CHAT, FIELD_HONOURED, FIELD_LONG, AT(max_tokens), 1, MANY, NULL, NULL, "the same",
        "its older name; when both are given they agree"},
    {"max_tokens", DOOR_TEXT, FIELD_HONOURED, FIELD_LONG, AT(max_tokens), 0, MANY, NULL, NULL, "16",
        "tokens of an answer; 0 only with `echo`"},
    {"temperature", BOTH, FIELD_HONOURED, FIELD_NUMBER, AT(sampling.temperature), 0, 2, NULL, NULL,
        "generation_config.json, else 1", "0 is greedy"},
    {"top_p", BOTH, FIELD_HONOURED, FIELD_NUMBER, AT(sampling.top_p), 0, 1, NULL, NULL,
        "generation_config.json, else 1", "the likeliest tokens that hold this share"},
    {"frequency_penalty", BOTH, FIELD_HONOURED, FIELD_NUMBER, AT(sampling.frequency_penalty), -2, 2, NULL, NULL, "0",
        "over the answer"},
    {"presence_penalty", BOTH, FIELD_HONOURED, FIELD_NUMBER, AT(sampling.presence_penalty), -2, 2, NULL, NULL, "0",
        "over the answer"},
    {"logit_bias", BOTH, FIELD_HONOURED, FIELD_OBJECT, NOWHERE, 0, 0, read_logit_bias, "object: id → −100…100", "none",
        "at most 4096 ids"},
    {"seed", BOTH, FIELD_HONOURED, FIELD_ANY, NOWHERE, 0, 0, read_seed, "integer of 64 bits", "a fresh one",
        "same seed, same text, whatever else runs"},
    {"stop", BOTH, FIELD_HONOURED, FIELD_ANY, NOWHERE, 0, 0, read_stop, "string, or array of 1…4", "none",
        "the answer ends before the first of them"},
    {"n", BOTH, FIELD_HONOURED, FIELD_INTEGER, AT(choices), 1, CHOICES_MAX, NULL, NULL, "1",
        "answers that share one prefill"},
    {"best_of", DOOR_TEXT, FIELD_HONOURED, FIELD_INTEGER, AT(best_of), 1, CHOICES_MAX, NULL, NULL, "n",
        "so many answers, of which the `n` with the highest log-probability per token are given; not with `stream`"},
    {"stream", BOTH, FIELD_HONOURED, FIELD_BOOL, AT(form.stream), 0, 0, NULL, NULL, "false",
        "server-sent events, closed by `[DONE]`"},
    {"stream_options", BOTH, FIELD_HONOURED, FIELD_OBJECT, AT(stream_options), 0, 0, read_stream_options,
        "object: include_usage, include_obfuscation", "none", "only with `stream`; obfuscation only when asked for"},
    {"logprobs", DOOR_CHAT, FIELD_HONOURED, FIELD_BOOL, AT(form.logprobs), 0, 0, NULL, NULL, "false",
        "after bias and penalties, of what is allowed, before truncation"},
    {"logprobs", DOOR_TEXT, FIELD_HONOURED, FIELD_INTEGER, AT(top_logprobs), 0, 5, read_completion_logprobs, NULL,
        "none", "the same; so many alternatives"},
    {"top_logprobs", DOOR_CHAT, FIELD_HONOURED, FIELD_INTEGER, AT(top_logprobs), 0, LOGPROBS_TOP_MAX, NULL, NULL, "0",
        "alternatives; only with `logprobs`"},
    {"echo", DOOR_TEXT, FIELD_HONOURED, FIELD_BOOL, AT(form.echo), 0, 0, NULL, NULL, "false",
        "the prompt in front; with `logprobs` and `max_tokens: 0` it scores a prompt"},
    {"suffix", DOOR_TEXT, FIELD_HONOURED, FIELD_TEXT, AT(suffix), 0, 0, NULL, NULL, "none",
        "the text behind the answer, where the vocabulary has marks for it (`<|fim_prefix|>` and the like), else 400"},
    {"response_format", DOOR_CHAT, FIELD_HONOURED, FIELD_OBJECT, NOWHERE, 0, 0, read_format,
        "object: type text, json_object or json_schema", "text",
        "the answer is valid; a schema is kept whether it is strict or not ([grammar.md](grammar.md))"},
    {"tools", DOOR_CHAT, FIELD_HONOURED, FIELD_ARRAY, NOWHERE, 0, TOOLS_MAX, read_tools, NULL, "none", "see Tools"},
    {"tool_choice", DOOR_CHAT, FIELD_HONOURED, FIELD_ANY, NOWHERE, 0, 0, read_tool_choice,
        "none, auto, required or an object", "none without tools, else auto", "see Tools"},
    {"parallel_tool_calls", DOOR_CHAT, FIELD_HONOURED, FIELD_BOOL, NOWHERE, 0, 0, read_parallel_calls, NULL, "true",
        "see Tools"},
    {"functions", DOOR_CHAT, FIELD_NEUTRAL, FIELD_ARRAY, NOWHERE, 0, TOOLS_MAX, read_only_empty, NULL, "none",
        "only none; `tools` took its place"},
    {"function_call", DOOR_CHAT, FIELD_NEUTRAL, FIELD_ANY, NOWHERE, 0, 0, read_function_call, "none, auto or an object",
        "none", "only none and auto"},
    {"reasoning_effort", DOOR_CHAT, FIELD_HONOURED, FIELD_TEXT, NOWHERE, 0, 0, read_effort, NULL, "the model's",
        "see Reasoning"},
    {"prediction", DOOR_CHAT, FIELD_ACCEPTED, FIELD_OBJECT, NOWHERE, 0, 0, read_prediction,
        "object: type content, content", "none", "the answer is the same with it; it does not come sooner yet"},
    {"modalities", DOOR_CHAT, FIELD_NEUTRAL, FIELD_ARRAY, NOWHERE, 1, 2, read_modalities, NULL, "text", "only text"},
    {"service_tier", DOOR_CHAT, FIELD_NEUTRAL, FIELD_TEXT, NOWHERE, 0, 0, read_service_tier, NULL, "auto",
        "only auto and default"},
    {"verbosity", DOOR_CHAT, FIELD_NEUTRAL, FIELD_TEXT, NOWHERE, 0, 0, read_verbosity, NULL, "medium", "only medium"},
    {"store", DOOR_CHAT, FIELD_NEUTRAL, FIELD_BOOL, NOWHERE, 0, 0, read_only_empty, NULL, "false", "only false"},
    {"user", BOTH, FIELD_ACCEPTED, FIELD_TEXT, NOWHERE, 0, 0, NULL, NULL, "none", "nothing depends on it"},
    {"safety_identifier", DOOR_CHAT, FIELD_ACCEPTED, FIELD_TEXT, NOWHERE, 0, 64, NULL, NULL, "none",
        "nothing depends on it"},
    {"metadata", DOOR_CHAT, FIELD_ACCEPTED, FIELD_OBJECT, NOWHERE, 0, 0, read_metadata,
        "object: at most 16 keys ≤ 64 characters → strings ≤ 512", "none", "nothing depends on it"},
    {"prompt_cache_key", BOTH, FIELD_HONOURED, FIELD_TEXT, NOWHERE, 0, 0, read_cache_key, NULL, "none",
        "prompts are found again only by requests with the same one, and the same API key"},
    {"prompt_cache_retention", DOOR_CHAT, FIELD_REFUSED, FIELD_TEXT, NOWHERE, 0, 0, read_unsupported, NULL, "none",
        "refused"},
    {"prompt_cache_options", DOOR_CHAT, FIELD_REFUSED, FIELD_OBJECT, NOWHERE, 0, 0, read_unsupported, NULL, "none",
        "refused"},
    {"moderation", DOOR_CHAT, FIELD_REFUSED, FIELD_OBJECT, NOWHERE, 0, 0, read_unsupported, NULL, "none", "refused"},
    {"audio", DOOR_CHAT, FIELD_REFUSED, FIELD_OBJECT, NOWHERE, 0, 0, read_unsupported, NULL, "none", "refused"},
    {"web_search_options", DOOR_CHAT, FIELD_REFUSED, FIELD_OBJECT, NOWHERE, 0, 0, read_unsupported, NULL, "none",
        "refused"},

    {"top_k", BOTH, FIELD_EXTENSION, FIELD_INTEGER, AT(sampling.top_k), 0, MANY, NULL, NULL,
        "generation_config.json, else 0", "the likeliest tokens; 0: all"},
    {"min_p", BOTH, FIELD_EXTENSION, FIELD_NUMBER, AT(sampling.min_p), 0, 1, NULL, NULL,
        "generation_config.json, else 0", "tokens at least this likely beside the likeliest"},
    {"repetition_penalty", BOTH, FIELD_EXTENSION, FIELD_NUMBER, AT(sampling.repetition_penalty), 0, 2, read_repetition,
        "number, 0…2, not 0", "generation_config.json, else 1", "over prompt and answer"},
    {"ignore_eos", BOTH, FIELD_EXTENSION, FIELD_BOOL, AT(sampling.ignore_eos), 0, 0, NULL, NULL, "false",
        "end tokens do not end the answer"},
    {"min_tokens", BOTH, FIELD_EXTENSION, FIELD_INTEGER, AT(sampling.min_tokens), 0, MANY, NULL, NULL, "0",
        "of an answer, before an end token may come"},
    {"grammar", BOTH, FIELD_EXTENSION, FIELD_TEXT, NOWHERE, 0, 0, read_grammar, NULL, "none",
        "rules that the answer obeys, in GBNF or Lark ([grammar.md](grammar.md))"},
    {"json_schema", BOTH, FIELD_EXTENSION, FIELD_ANY, NOWHERE, 0, 0, read_schema, "object, boolean or text of one",
        "none", "a JSON schema that the answer fits"},
    {"structured_outputs", BOTH, FIELD_EXTENSION, FIELD_OBJECT, NOWHERE, 0, 0, read_structured,
        "object: json, regex, choice, grammar or json_object; disable_any_whitespace", "none", "as vLLM has it"},
    {"guided_json", BOTH, FIELD_EXTENSION, FIELD_ANY, NOWHERE, 0, 0, read_schema, "object, boolean or text of one",
        "none", "vLLM's older name of the same"},
    {"guided_regex", BOTH, FIELD_EXTENSION, FIELD_TEXT, NOWHERE, 0, 0, read_regex, NULL, "none",
        "a regular expression that the whole answer matches"},
    {"guided_choice", BOTH, FIELD_EXTENSION, FIELD_ARRAY, NOWHERE, 0, 0, read_choice, NULL, "none",
        "the answer is one of these strings"},
    {"guided_grammar", BOTH, FIELD_EXTENSION, FIELD_TEXT, NOWHERE, 0, 0, read_grammar, NULL, "none", "as `grammar`"},
    {"continue_final_message", DOOR_CHAT, FIELD_EXTENSION, FIELD_BOOL, AT(continues), 0, 0, NULL, NULL, "false",
        "the answer goes on where the last message, the assistant's, ends; it is the continuation alone"},
    {"return_progress", BOTH, FIELD_EXTENSION, FIELD_BOOL, AT(form.progress), 0, 0, NULL, NULL, "false",
        "events with `prompt_progress` (total, cache, processed, time_ms) while prompts are read; only with `stream`"},
    {"chat_template_kwargs", DOOR_CHAT, FIELD_EXTENSION, FIELD_OBJECT, AT(template_arguments), 0, 0, NULL, NULL, "none",
        "variables of the chat template (`enable_thinking`, …)"},
    {"enable_thinking", DOOR_CHAT, FIELD_EXTENSION, FIELD_BOOL, NOWHERE, 0, 0, read_thinking, NULL, "the model's",
        "see Reasoning"},
    {"kv_cache", BOTH, FIELD_EXTENSION, FIELD_TEXT, NOWHERE, 0, 0, read_cache_form,
        "`f16`, `q8`, `turbo3` … `turbo6`, `turbo`, `KEYS/VALUES`", "the server's",
        "the form of the answer's KV cache"},
    {"kv_bits", BOTH, FIELD_EXTENSION, FIELD_INTEGER, NOWHERE, 0, 0, read_cache_bits, "4 or 8", "none",
        "the same: `turbo` or `q8`"},
    {"kv_group_size", BOTH, FIELD_EXTENSION, FIELD_INTEGER, NOWHERE, 0, 0, read_cache_group, "32, 64 or 128", "none",
        "only with `kv_bits`"},
    {"cache_prompt", BOTH, FIELD_EXTENSION, FIELD_BOOL, NOWHERE, 0, 0, read_cache_prompt, NULL, "true",
        "false: the prompt is neither looked for in the prefix cache nor kept"},
    {"cache_salt", BOTH, FIELD_EXTENSION, FIELD_TEXT, NOWHERE, 0, 0, read_cache_salt, "string, not empty", "none",
        "as `prompt_cache_key`"},
};

const Field *fields_all(size_t *count) {
    *count = COUNT_OF(table);
    return table;
}

/* ---- reading ---- */

static bool read_long(const Json *value, const Field *f, int64_t *out, ApiError *error) {
    const bool open = f->min == 0 && f->max == 0; /* its reader knows */
    return api_integer(
        value, f->name, open ? INT64_MIN : (int64_t)f->min, open ? INT64_MAX : (int64_t)f->max, out, error);
}

static bool read_text(const Json *value, const Field *f, Slice *out, ApiError *error) {
    if (!api_string(value, f->name, out, error)) return false;
    const size_t count = api_characters(*out);
    return f->max == 0 || count <= (size_t)f->max ||
        api_fail(error, 400, "string_above_max_length", f->name,
            "Invalid '%s': string too long. Expected a string with maximum length %d, but got length %zu.", f->name,
            (int)f->max, count);
}

static bool read_list(const Json *value, const Field *f, ApiError *error) {
    if (!api_type(value, JSON_ARRAY, f->name, error)) return false;
    if (value->size < (uint32_t)f->min)
        return api_fail(error, 400, "empty_array", f->name,
            "Invalid '%s': empty array. Expected an array with minimum length %d, but got an empty array instead.",
            f->name, (int)f->min);
    return f->max == 0 || value->size <= (uint32_t)f->max ||
        api_fail(error, 400, "array_above_max_length", f->name,
            "Invalid '%s': array too long. Expected an array with maximum length %d, but got length %u.", f->name,
            (int)f->max, value->size);
}

/* Into the request, or nowhere. */
static bool read_value(ApiRequest *request, const Field *f, const Json *value, ApiError *error) {
    union {
        double number;
        int64_t integer;
        bool flag;
        Slice text;
    } v;
    char *to = f->at == FIELD_NOWHERE ? NULL : (char *)request + f->at;
    switch (f->type) {
    case FIELD_NUMBER:
        if (!api_number(value, f->name, f->min, f->max, &v.number, error)) return false;
        if (to) *(float *)(void *)to = (float)v.number;
        return true;
    case FIELD_INTEGER:
        if (!read_long(value, f, &v.integer, error)) return false;
        if (to) *(int *)(void *)to = (int)v.integer;
        return true;
    case FIELD_LONG:
        if (!read_long(value, f, &v.integer, error)) return false;
        if (to) *(int64_t *)(void *)to = v.integer;
        return true;
    case FIELD_BOOL:
        if (!api_bool(value, f->name, &v.flag, error)) return false;
        if (to) *(bool *)(void *)to = v.flag;
        return true;
    case FIELD_TEXT:
        if (!read_text(value, f, &v.text, error)) return false;
        if (to) *(Slice *)(void *)to = v.text;
        return true;
    case FIELD_ARRAY:
        if (!read_list(value, f, error)) return false;
        break;
    case FIELD_OBJECT:
        if (!api_type(value, JSON_OBJECT, f->name, error)) return false;
        break;
    case FIELD_ANY: break;
    }
    if (to) *(const Json **)(void *)to = value;
    return true;
}

static const Field *find_field(Door door, Slice name) {
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (table[i].doors & door && slice_is(name, table[i].name)) return &table[i];
    return NULL;
}

bool fields_read(ApiRequest *request, Door door, const Json *body, ApiError *error) {
    for (JSON_EACH_PAIR(key, value, body)) {
        const Field *field = find_field(door, json_slice(key));
        if (!field) {
            char name[API_PARAM_MAX];
            snprintf(name, sizeof name, "%.*s", key->size < 100 ? (int)key->size : 100, key->string);
            return api_fail(error, 400, "unknown_parameter", utf8_valid(slice_of(name)) ? name : NULL,
                "Unrecognized request argument supplied: %s", utf8_valid(slice_of(name)) ? name : "(a long name)");
        }
        if (value->type == JSON_NULL) continue;
        if (!read_value(request, field, value, error)) return false;
        if (field->read && !field->read(request, value, field->name, error)) return false;
    }
    return true;
}

/* ---- showing ---- */

static void write_range(const Field *f, const char *type, Buffer *out) {
    buffer_text(out, type);
    if (f->max == MANY)
        buffer_printf(out, " ≥ %g", f->min);
    else if (f->max > 0)
        buffer_printf(out, ", %s%g…%g", f->min < 0 ? "−" : "", fabs(f->min), f->max);
}

static void write_form(const Field *f, Buffer *out) {
    if (f->form) {
        buffer_text(out, f->form);
        return;
    }
    switch (f->type) {
    case FIELD_NUMBER: write_range(f, "number", out); break;
    case FIELD_INTEGER:
    case FIELD_LONG: write_range(f, "integer", out); break;
    case FIELD_BOOL: buffer_text(out, "boolean"); break;
    case FIELD_TEXT:
        buffer_text(out, "string");
        if (f->max > 0) buffer_printf(out, " ≤ %g characters", f->max);
        break;
    case FIELD_ARRAY: write_range(f, "array", out); break;
    case FIELD_OBJECT: buffer_text(out, "object"); break;
    case FIELD_ANY: buffer_text(out, "anything"); break;
    }
}

void fields_write(Buffer *out) {
    static const char *const statuses[] = {[FIELD_HONOURED] = "honoured",
        [FIELD_EXTENSION] = "extension",
        [FIELD_ACCEPTED] = "accepted",
        [FIELD_NEUTRAL] = "neutral",
        [FIELD_REFUSED] = "refused"};
    buffer_text(out, "| field | chat | completions | status | values | default | |\n|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const Field *f = &table[i];
        buffer_printf(out, "| `%s` | %s | %s | %s | ", f->name, f->doors & DOOR_CHAT ? "✓" : "",
            f->doors & DOOR_TEXT ? "✓" : "", statuses[f->status]);
        write_form(f, out);
        buffer_printf(out, " | %s | %s |\n", f->standing, f->what);
    }
}
