#include "server/api/inputs.h"

#include <stdio.h>

static bool has_many(const Json *value) {
    return value->type == JSON_ARRAY && value->size > 0 && json_first(value)->type != JSON_INTEGER;
}

bool inputs_count(const Json *value, const char *name, uint32_t most, uint32_t *count, ApiError *error) {
    if (value->type == JSON_ARRAY && value->size == 0)
        return api_fail(error, 400, "empty_array", name, "Invalid '%s': empty array.", name);
    *count = has_many(value) ? value->size : 1;
    return *count <= most ||
        api_fail(error, 400, "array_above_max_length", name, "Invalid '%s': at most %u %ss, got %u.", name, most, name,
            *count);
}

bool inputs_each(const Json *value, const char *name, InputTake *take, void *context, ApiError *error) {
    if (!has_many(value)) return take(context, value, name, error);
    int index = 0;
    for (JSON_EACH(item, value)) {
        char param[API_PARAM_MAX];
        snprintf(param, sizeof param, "%.64s[%d]", name, index++);
        if (item->type != json_first(value)->type)
            return api_fail(error, 400, "invalid_type", param,
                "Invalid type for '%s': the %ss of one request must all be of one kind.", param, name);
        if (!take(context, item, param, error)) return false;
    }
    return true;
}

bool input_ids(const Json *list, const char *param, int vocab, Tokens *tokens, ApiError *error) {
    int index = 0;
    for (JSON_EACH(item, list)) {
        char path[API_PARAM_MAX];
        int64_t id;
        snprintf(path, sizeof path, "%.64s[%d]", param, index++);
        if (!api_integer(item, path, 0, vocab - 1, &id, error)) return false;
        if (!tokens_push(tokens, (int32_t)id)) return api_out_of_memory(error);
    }
    return true;
}

bool input_refuse(const Error *why, const char *param, ApiError *error) {
    if (why->code == ERROR_MEMORY) return api_out_of_memory(error);
    return api_fail(error, 400, "invalid_value", param, "%s.", why->text);
}
