#include "server/api/media_parts.h"

#include <stdio.h>

#include "base/base64.h"
#include "media/audio.h"
#include "hub/fetch.h"
#include "media/image.h"
#include "server/api/members.h"

/* Members besides these are an error. */
static bool check_members(
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

enum { FETCHES_MAX = 16 }; /* files that a request may name by their addresses */

/* part: path of the content part; field: of the text. */
static bool add_base64(MessageBuilder *b, ContentKind kind, Slice text, ChatMedia *media, const char *part,
    const char *field, ApiError *error) {
    const bool audio = kind == CONTENT_AUDIO;
    const int most = audio ? AUDIO_BYTES_MAX : IMAGE_BYTES_MAX;
    if (text.size / 4 > (size_t)most / 3)
        return api_fail(error, 400, "invalid_value", field, "Invalid '%s': %s at most %d bytes.", field,
            audio ? "audio has" : "an image has", most);
    uint8_t *bytes = arena_alloc(b->arena, base64_bytes_max(text.size) + 1, 1);
    const char *part_copy = arena_copy(b->arena, slice_of(part)), *field_copy = arena_copy(b->arena, slice_of(field));
    if (!bytes || !part_copy || !field_copy) return api_out_of_memory(error);
    media->bytes.data = (const char *)bytes;
    if (!base64_decode(text, bytes, &media->bytes.size))
        return api_fail(error, 400, "invalid_base64", field, "Invalid '%s': expected base64-encoded data.", field);
    media->part = part_copy;
    media->field = field_copy;
    messages_add_media(b, kind, media);
    return true;
}

/* data:[<type>][;<parameter>]*;base64,<data>; the type is not looked at, the bytes tell what they are. False: this is
 * no such URL. */
static bool data_of(Slice url, Slice *data) {
    static const char marker[] = ";base64,";
    enum { HEAD_MAX = 256 };
    const size_t head = url.size < HEAD_MAX ? url.size : HEAD_MAX;
    const char *comma = slice_starts(url, SLICE("data:")) ? memmem(url.data, head, marker, sizeof marker - 1) : NULL;
    if (!comma) return false;
    const char *begin = comma + sizeof marker - 1;
    *data = (Slice){begin, (size_t)(url.data + url.size - begin)};
    return true;
}

/* A file at an http or https address. */
static bool add_remote(MessageBuilder *b, ContentKind kind, Slice url, ChatMedia *media, const char *part,
    const char *field, ApiError *error) {
    const FetchRule rule = {.hosts = b->media_hosts};
    Buffer file = {0};
    Error why = {0};
    if (b->fetches++ == FETCHES_MAX)
        return api_fail(error, 400, "invalid_value", field,
            "Invalid '%s': a request may name at most %d files by their addresses.", field, FETCHES_MAX);
    const bool ok = fetch_file(&rule, url, kind == CONTENT_AUDIO ? AUDIO_BYTES_MAX : IMAGE_BYTES_MAX, &file, &why);
    const char *bytes = ok ? arena_copy(b->arena, buffer_view(&file)) : NULL;
    const char *part_copy = arena_copy(b->arena, slice_of(part)), *field_copy = arena_copy(b->arena, slice_of(field));
    media->bytes = (Slice){bytes, file.size};
    media->part = part_copy;
    media->field = field_copy;
    buffer_free(&file);
    if (!ok) return api_fail(error, 400, "invalid_value", field, "Invalid '%s': %s.", field, why.text);
    if (!bytes || !part_copy || !field_copy) return api_out_of_memory(error);
    messages_add_media(b, kind, media);
    return true;
}

static bool add_url(MessageBuilder *b, ContentKind kind, Slice url, ChatMedia *media, const char *part,
    const char *field, ApiError *error) {
    Slice data;
    if (data_of(url, &data)) return add_base64(b, kind, data, media, part, field, error);
    if (b->media_hosts && (slice_starts(url, SLICE("http://")) || slice_starts(url, SLICE("https://"))))
        return add_remote(b, kind, url, media, part, field, error);
    return api_fail(error, 400, "unsupported_parameter", field,
        "Unsupported value for '%s': %s accepted as data URLs (data:%s;base64,…) only.", field,
        kind == CONTENT_AUDIO ? "audio is" : "images are", kind == CONTENT_AUDIO ? "audio/wav" : "image/png");
}

static bool read_detail(const Json *object, const char *param, bool *low, ApiError *error) {
    const Json *value = member_get(object, "detail");
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.100s.detail", param);
    *low = value && member_is(object, "detail", "low");
    const bool known = !value || *low || member_is(object, "detail", "high") || member_is(object, "detail", "auto");
    return known ||
        api_fail(error, 400, "invalid_value", path, "Invalid value for '%s': expected 'low', 'high' or 'auto'.", path);
}

/* A part {"type": name, name: {"url": …}}; of an image also with "detail". */
static bool read_url_part(
    MessageBuilder *b, ContentKind kind, const char *name, const Json *part, const char *param, ApiError *error) {
    static const char *const inner[] = {"url", "detail"};
    const char *const outer[] = {"type", name};
    const bool image = kind == CONTENT_IMAGE;
    ChatMedia media = {.type = slice_of(name)};
    char object[API_PARAM_MAX], field[API_PARAM_MAX];
    Slice url;
    snprintf(object, sizeof object, "%.100s.%s", param, name);
    snprintf(field, sizeof field, "%.110s.url", object);
    const Json *value = member_get(part, name);
    if (!value) return api_missing(object, error);
    return check_members(part, outer, COUNT_OF(outer), param, error) && api_type(value, JSON_OBJECT, object, error) &&
        check_members(value, inner, image ? 2 : 1, object, error) &&
        (!image || read_detail(value, object, &media.low_detail, error)) &&
        member_read_text(value, "url", object, &url, error) && add_url(b, kind, url, &media, param, field, error);
}

bool image_read_chat(MessageBuilder *b, const Json *part, const char *param, ApiError *error) {
    return read_url_part(b, CONTENT_IMAGE, "image_url", part, param, error);
}

bool image_read_responses(MessageBuilder *b, const Json *part, const char *param, ApiError *error) {
    static const char *const known[] = {"type", "image_url", "detail"};
    ChatMedia media = {.type = SLICE("input_image")};
    char field[API_PARAM_MAX];
    Slice url;
    snprintf(field, sizeof field, "%.100s.file_id", param);
    if (member_get(part, "file_id")) return api_unsupported(field, error);
    snprintf(field, sizeof field, "%.100s.image_url", param);
    return check_members(part, known, COUNT_OF(known), param, error) &&
        read_detail(part, param, &media.low_detail, error) && member_read_text(part, "image_url", param, &url, error) &&
        add_url(b, CONTENT_IMAGE, url, &media, param, field, error);
}

bool image_read_block(MessageBuilder *b, const Json *block, const char *param, ApiError *error) {
    ChatMedia media = {.type = SLICE("image")};
    char object[API_PARAM_MAX], field[API_PARAM_MAX];
    Slice data;
    snprintf(object, sizeof object, "%.100s.source", param);
    const Json *source = member_get(block, "source");
    if (!source) return api_missing(object, error);
    if (!api_type(source, JSON_OBJECT, object, error)) return false;
    snprintf(field, sizeof field, "%.110s.url", object);
    if (b->media_hosts && member_is(source, "type", "url"))
        return member_read_text(source, "url", object, &data, error) &&
            add_url(b, CONTENT_IMAGE, data, &media, param, field, error);
    snprintf(field, sizeof field, "%.110s.type", object);
    if (!member_is(source, "type", "base64"))
        return api_fail(error, 400, "unsupported_parameter", field,
            "Unsupported value for '%s': images are accepted as 'base64' only.", field);
    snprintf(field, sizeof field, "%.110s.data", object);
    return member_read_text(source, "data", object, &data, error) &&
        add_base64(b, CONTENT_IMAGE, data, &media, param, field, error);
}

bool audio_read_input(MessageBuilder *b, const Json *part, const char *param, ApiError *error) {
    static const char *const outer[] = {"type", "input_audio"}, *const inner[] = {"data", "format"};
    ChatMedia media = {.type = SLICE("input_audio")};
    char object[API_PARAM_MAX], field[API_PARAM_MAX], format[API_PARAM_MAX];
    Slice data, name;
    snprintf(object, sizeof object, "%.100s.input_audio", param);
    snprintf(field, sizeof field, "%.110s.data", object);
    snprintf(format, sizeof format, "%.110s.format", object);
    const Json *audio = member_get(part, "input_audio"), *hint = member_get(audio, "format");
    if (!audio) return api_missing(object, error);
    if (!check_members(part, outer, COUNT_OF(outer), param, error) || !api_type(audio, JSON_OBJECT, object, error) ||
        !check_members(audio, inner, COUNT_OF(inner), object, error) ||
        (hint && !api_string(hint, format, &name, error)) || !member_read_text(audio, "data", object, &data, error))
        return false;
    (void)data_of(data, &data);
    return add_base64(b, CONTENT_AUDIO, data, &media, param, field, error);
}

bool audio_read_url(MessageBuilder *b, const Json *part, const char *param, ApiError *error) {
    return read_url_part(b, CONTENT_AUDIO, "audio_url", part, param, error);
}

bool image_read_list(MessageBuilder *b, const Json *list, const char *param, ApiError *error) {
    int index = 0;
    if (!api_type(list, JSON_ARRAY, param, error)) return false;
    for (JSON_EACH(item, list)) {
        ChatMedia media = {.type = SLICE("images")};
        char path[API_PARAM_MAX];
        Slice text;
        snprintf(path, sizeof path, "%.100s[%d]", param, index++);
        if (!api_string(item, path, &text, error) || !add_base64(b, CONTENT_IMAGE, text, &media, path, path, error))
            return false;
    }
    return true;
}
