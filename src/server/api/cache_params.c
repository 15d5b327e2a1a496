#include "server/api/cache_params.h"

#include <stdio.h>
#include <string.h>

#include "base/sha256.h"

enum { FORM_BYTES_MAX = 24 };

/* ---- the form ---- */

/* Lengths are the server's, and so is the format of full-precision pages. */
static bool parse_form(CacheOptions *cache, const char *text, Error *error) {
    if (!kv_format_parse(text, &cache->format, error)) return false;
    if (!cache->server_format) return true; /* the model is not served: the request is refused soon */
    if (cache->format.k == KV_FULL) {
        cache->format = *cache->server_format;
        cache->format.k = cache->format.v = KV_FULL;
        cache->format.raise = KV_RAISE_NONE;
        memset(cache->format.raised, 0, sizeof cache->format.raised);
    } else if (cache->server_format->hot > 0) {
        cache->format.after = cache->server_format->after;
        cache->format.hot = cache->server_format->hot;
        cache->format.sink = cache->server_format->sink;
    }
    return true;
}

static bool refuse_form(const char *field, const char *text, const char *why, ApiError *error) {
    return api_fail(error, 400, "invalid_value", field, "Invalid '%s': \"%s\" %s.", field, text, why);
}

bool cache_read_form(CacheOptions *cache, const Json *value, const char *field, ApiError *error) {
    Slice form;
    char text[FORM_BYTES_MAX];
    Error why;
    if (!api_string(value, field, &form, error)) return false;
    snprintf(text, sizeof text, "%.*s", form.size < sizeof text ? (int)form.size : (int)sizeof text - 1, form.data);
    if (strlen(text) != form.size) text[0] = 0; /* too long, or with a NUL: no form */
    cache->format_given = true;
    if (!strcmp(text, "auto")) return refuse_form(field, text, "is for the server's --kv-cache to say", error);
    const bool bf16 = !strcmp(text, "bf16"), f16 = !strcmp(text, "f16");
    if ((bf16 && cache->server_dtype != DTYPE_BF16) || (f16 && cache->server_dtype == DTYPE_BF16))
        return refuse_form(field, text,
            bf16 ? "is for the server's --kv-cache to say, which keeps f16"
                 : "is for the server's --kv-cache to say, which keeps bf16",
            error);
    return parse_form(cache, bf16 ? "f16" : text, &why) ||
        api_fail(error, 400, "invalid_value", field, "Invalid '%s': %s.", field, why.text);
}

bool cache_read_bits(CacheOptions *cache, const Json *value, const char *field, ApiError *error) {
    int64_t bits;
    if (!api_integer(value, field, 1, 16, &bits, error)) return false;
    cache->bits = (int)bits;
    if (bits == 4 || bits == 8) return true;
    return api_fail(error, 400, "invalid_value", field,
        "Invalid '%s': 4 and 8 are supported, got %lld; 'kv_cache' has further forms.", field, (long long)bits);
}

bool cache_read_group(CacheOptions *cache, const Json *value, const char *field, ApiError *error) {
    int64_t group;
    if (!api_integer(value, field, 1, 1 << 20, &group, error)) return false;
    cache->group = (int)group;
    if (group == 32 || group == 64 || group == 128) return true;
    return api_fail(error, 400, "invalid_value", field, "Invalid '%s': 32, 64 and 128 are supported, got %lld.", field,
        (long long)group);
}

/* Forms of at least the quality that affine codes of so many bits have in groups of 32, their best. */
bool cache_settle(CacheOptions *cache, ApiError *error) {
    Error why;
    if (cache->group && !cache->bits)
        return api_fail(error, 400, "invalid_value", "kv_group_size",
            "The 'kv_group_size' parameter is only allowed with 'kv_bits'.");
    if (!cache->bits) return true;
    if (cache->format_given)
        return api_fail(
            error, 400, "invalid_value", "kv_bits", "'kv_bits' and 'kv_cache' are both set: send only one.");
    cache->format_given = true;
    return parse_form(cache, cache->bits == 8 ? "q8" : "turbo", &why) ||
        api_fail(error, 500, "engine_error", NULL, "%s.", why.text);
}

/* ---- sharing ---- */

bool cache_read_salt(CacheOptions *cache, const Json *value, const char *field, ApiError *error) {
    if (!api_string(value, field, &cache->salt, error)) return false;
    return cache->salt.size > 0 ||
        api_fail(error, 400, "invalid_value", field, "Invalid '%s': it cannot be empty.", field);
}

bool cache_read_key(CacheOptions *cache, const Json *value, const char *field, ApiError *error) {
    return api_string(value, field, &cache->key, error);
}

/* With its length in front, so that no two lists of texts are one list of bytes. */
static void add_text(Sha256 *sha, Slice text) {
    const uint64_t size = text.size;
    sha256_add(sha, &size, sizeof size);
    sha256_add(sha, text.data, text.size);
}

uint64_t cache_salt(const CacheOptions *cache, const char *api_key) {
    uint8_t digest[SHA256_BYTES];
    Sha256 sha;
    sha256_begin(&sha);
    add_text(&sha, slice_of(api_key ? api_key : ""));
    add_text(&sha, cache->salt);
    add_text(&sha, cache->key);
    sha256_end(&sha, digest);
    uint64_t space;
    memcpy(&space, digest, sizeof space);
    return space;
}
