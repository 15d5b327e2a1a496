#include "server/api/api.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

bool api_fail(ApiError *error, int status, const char *code, const char *param, const char *format, ...) {
    error->status = status;
    error->type = status == 429 ? "rate_limit_error" : status >= 500 ? "server_error" : "invalid_request_error";
    error->code = code;
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return false;
}

bool api_missing(const char *param, ApiError *error) {
    return api_fail(error, 400, "missing_required_parameter", param, "Missing required parameter: '%s'.", param);
}

bool api_out_of_memory(ApiError *error) { return api_fail(error, 503, "out_of_memory", NULL, "Out of memory."); }

bool api_unsupported(const char *param, ApiError *error) {
    return api_fail(error, 400, "unsupported_parameter", param,
        "Unsupported parameter: '%s' is not supported by this server.", param);
}

bool api_engine_failed(ApiError *error, const Error *why) {
    switch (why->code) {
    case ERROR_BUSY: return api_fail(error, 429, "queue_full", NULL, "The server is busy: %s.", why->text);
    case ERROR_CANCELLED: return api_fail(error, 503, "shutting_down", NULL, "The server is shutting down.");
    case ERROR_MEMORY:
    case ERROR_LIMIT: return api_fail(error, 503, "out_of_memory", NULL, "%s.", why->text);
    default: return api_fail(error, 500, "engine_error", NULL, "%s.", why->text);
    }
}

void api_write_error(Buffer *out, const ApiError *error) {
    buffer_text(out, "{\"error\":{\"message\":");
    json_write_string(out, slice_of(error->message));
    buffer_printf(out, ",\"type\":\"%s\",\"param\":", error->type);
    if (error->param[0])
        json_write_string(out, slice_of(error->param));
    else
        buffer_text(out, "null");
    buffer_text(out, ",\"code\":");
    if (error->code)
        json_write_string(out, slice_of(error->code));
    else
        buffer_text(out, "null");
    buffer_text(out, "}}");
}

static bool wrong_type(const Json *value, const char *wanted, const char *param, ApiError *error) {
    return api_fail(error, 400, "invalid_type", param, "Invalid type for '%s': expected %s, but got %s instead.", param,
        wanted, json_type_name(value));
}

bool api_integer(const Json *value, const char *param, int64_t min, int64_t max, int64_t *out, ApiError *error) {
    int64_t integer = value->type == JSON_INTEGER ? value->integer : 0;
    bool below = false, above = false;                          /* the range of int64_t */
    if (value->type == JSON_REAL || value->type == JSON_LONG) { /* 5.0 and 1e2 are integers too */
        double real = json_number(value);
        if (real != floor(real)) return wrong_type(value, "an integer", param, error);
        below = real < -0x1p63 || (real == -0x1p63 && value->type == JSON_LONG);
        above = real >= 0x1p63;
        integer = below ? INT64_MIN : above ? INT64_MAX : (int64_t)real;
    } else if (value->type != JSON_INTEGER) {
        return wrong_type(value, "an integer", param, error);
    }
    if (below || above) /* the number itself does not fit into the message */
        return api_fail(error, 400, below ? "integer_below_min_value" : "integer_above_max_value", param,
            "Invalid '%s': integer %s value. Expected a value %s %lld, but got one of more than 64 bits instead.",
            param, below ? "below minimum" : "above maximum", below ? ">=" : "<=", (long long)(below ? min : max));
    if (integer < min)
        return api_fail(error, 400, "integer_below_min_value", param,
            "Invalid '%s': integer below minimum value. Expected a value >= %lld, but got %lld instead.", param,
            (long long)min, (long long)integer);
    if (integer > max)
        return api_fail(error, 400, "integer_above_max_value", param,
            "Invalid '%s': integer above maximum value. Expected a value <= %lld, but got %lld instead.", param,
            (long long)max, (long long)integer);
    *out = integer;
    return true;
}

bool api_number(const Json *value, const char *param, double min, double max, double *out, ApiError *error) {
    if (!json_is_number(value)) return wrong_type(value, "a number", param, error);
    const double number = json_number(value);
    if (!(number >= min))
        return api_fail(error, 400, "decimal_below_min_value", param,
            "Invalid '%s': decimal below minimum value. Expected a value >= %g, but got %g instead.", param, min,
            number);
    if (!(number <= max))
        return api_fail(error, 400, "decimal_above_max_value", param,
            "Invalid '%s': decimal above maximum value. Expected a value <= %g, but got %g instead.", param, max,
            number);
    *out = number;
    return true;
}

bool api_bool(const Json *value, const char *param, bool *out, ApiError *error) {
    if (value->type != JSON_BOOL) return wrong_type(value, "a boolean", param, error);
    *out = value->boolean;
    return true;
}

bool api_string(const Json *value, const char *param, Slice *out, ApiError *error) {
    if (value->type != JSON_STRING) return wrong_type(value, "a string", param, error);
    *out = json_slice(value);
    return true;
}

size_t api_characters(Slice text) {
    size_t count = 0;
    for (size_t i = 0; i < text.size; i++) count += ((unsigned char)text.data[i] & 0xC0) != 0x80;
    return count;
}

bool api_type(const Json *value, JsonType type, const char *param, ApiError *error) {
    if (value->type == type) return true;
    return wrong_type(value, type == JSON_ARRAY ? "an array" : "an object", param, error);
}
