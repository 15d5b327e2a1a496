/* Errors of the APIs, and typed access to JSON values. Codes: OpenAI's OpenAPI document 2.3.0 (component Error). */
#pragma once
#include "base/arena.h"
#include "base/buffer.h"
#include "base/json.h"

enum { API_MESSAGE_MAX = 1024, API_PARAM_MAX = 128 };

typedef struct ApiError {
    int status;                /* 0: none */
    const char *type;          /* "invalid_request_error", … */
    const char *code;          /* NULL: null */
    char param[API_PARAM_MAX]; /* "": null */
    char message[API_MESSAGE_MAX];
} ApiError;

/* Sets the error and returns false. status 400 → invalid_request_error, 429 → rate_limit_error, 5xx → server_error. */
bool api_fail(ApiError *error, int status, const char *code, const char *param, const char *format, ...)
    PRINTF_LIKE(5, 6);
bool api_missing(const char *param, ApiError *error); /* a field that must be there */
bool api_out_of_memory(ApiError *error);
bool api_unsupported(const char *param, ApiError *error); /* a field, or its value, that is not supported */
/* The engine's error as 429, 503 or 500. */
bool api_engine_failed(ApiError *error, const Error *why);
/* {"error":{…}} */
void api_write_error(Buffer *out, const ApiError *error);

/* Typed values; param is the path in the request. The caller has treated null as absent. */
NODISCARD bool api_integer(
    const Json *value, const char *param, int64_t min, int64_t max, int64_t *out, ApiError *error);
NODISCARD bool api_number(const Json *value, const char *param, double min, double max, double *out, ApiError *error);
NODISCARD bool api_bool(const Json *value, const char *param, bool *out, ApiError *error);
NODISCARD bool api_string(const Json *value, const char *param, Slice *out, ApiError *error);
size_t api_characters(Slice text); /* number of characters of UTF-8 text */
NODISCARD bool api_type(const Json *value, JsonType type, const char *param, ApiError *error);
