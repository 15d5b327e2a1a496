#include "server/api/part_bytes.h"

#include <stdio.h>

#include "base/base64.h"
#include "hub/fetch.h"

enum { FETCHES_MAX = 16 }; /* files that a request may name by their addresses */

bool part_check_members(
    const Json *object, const char *const *known, size_t count, const char *param, ApiError *error) {
    for (JSON_EACH_PAIR(key, value, object)) {
        bool found = value->type == JSON_NULL;
        for (size_t i = 0; i < count && !found; i++) found = slice_is(json_slice(key), known[i]);
        if (found) continue;
        char path[API_PARAM_MAX];
        snprintf(path, sizeof path, "%.90s.%.*s", param, key->size < 32 ? (int)key->size : 32, key->string);
        return api_fail(error, 400, "unknown_parameter", path, "Unknown parameter: '%s'.", path);
    }
    return true;
}

bool part_data_url(Slice url, Slice *data) {
    static const char marker[] = ";base64,";
    enum { HEAD_MAX = 256 };
    const size_t head = url.size < HEAD_MAX ? url.size : HEAD_MAX;
    const char *comma = slice_starts(url, SLICE("data:")) ? memmem(url.data, head, marker, sizeof marker - 1) : NULL;
    if (!comma) return false;
    const char *begin = comma + sizeof marker - 1;
    *data = (Slice){begin, (size_t)(url.data + url.size - begin)};
    return true;
}

bool part_from_base64(
    MessageBuilder *b, const PartBytes *kind, Slice text, const char *field, Slice *bytes, ApiError *error) {
    if (text.size / 4 > (size_t)kind->bytes_max / 3)
        return api_fail(error, 400, "invalid_value", field, "Invalid '%s': %s at most %d bytes.", field, kind->has,
            kind->bytes_max);
    uint8_t *out = arena_alloc(b->arena, base64_bytes_max(text.size) + 1, 1);
    if (!out) return api_out_of_memory(error);
    bytes->data = (const char *)out;
    return base64_decode(text, out, &bytes->size) ||
        api_fail(error, 400, "invalid_base64", field, "Invalid '%s': expected base64-encoded data.", field);
}

/* A file at an http or https address. */
static bool from_remote(
    MessageBuilder *b, const PartBytes *kind, Slice url, const char *field, Slice *bytes, ApiError *error) {
    const FetchRule rule = {.hosts = b->media_hosts};
    Buffer file = {0};
    Error why = {0};
    if (b->fetches++ == FETCHES_MAX)
        return api_fail(error, 400, "invalid_value", field,
            "Invalid '%s': a request may name at most %d files by their addresses.", field, FETCHES_MAX);
    const bool ok = fetch_file(&rule, url, (size_t)kind->bytes_max, &file, &why);
    *bytes = (Slice){ok ? arena_copy(b->arena, buffer_view(&file)) : NULL, file.size};
    buffer_free(&file);
    if (!ok) return api_fail(error, 400, "invalid_value", field, "Invalid '%s': %s.", field, why.text);
    return bytes->data || api_out_of_memory(error);
}

bool part_from_url(
    MessageBuilder *b, const PartBytes *kind, Slice url, const char *field, Slice *bytes, ApiError *error) {
    Slice data;
    if (part_data_url(url, &data)) return part_from_base64(b, kind, data, field, bytes, error);
    if (b->media_hosts && (slice_starts(url, SLICE("http://")) || slice_starts(url, SLICE("https://"))))
        return from_remote(b, kind, url, field, bytes, error);
    return api_fail(error, 400, "unsupported_parameter", field,
        "Unsupported value for '%s': %s accepted as data URLs (data:%s;base64,…) only.", field, kind->are,
        kind->example);
}
