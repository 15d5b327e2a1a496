#include "server/api/media_parts.h"

#include <stdio.h>

#include "base/base64.h"
#include "media/audio.h"
#include "media/video.h"
#include "server/api/members.h"
#include "server/api/part_bytes.h"

static const PartBytes image_bytes = {"an image has", "images are", "image/png", IMAGE_BYTES_MAX};
static const PartBytes video_bytes = {"a video has", "videos are", "image/gif", VIDEO_BYTES_MAX};
static const PartBytes audio_bytes = {"audio has", "audio is", "audio/wav", AUDIO_BYTES_MAX};

static const PartBytes *bytes_of(ContentKind kind) {
    return kind == CONTENT_AUDIO ? &audio_bytes : kind == CONTENT_VIDEO ? &video_bytes : &image_bytes;
}

/* Appends the part that has these bytes. part: path of the content part; field: of the text. */
static bool add(
    MessageBuilder *b, ContentKind kind, ChatMedia *media, const char *part, const char *field, ApiError *error) {
    media->part = arena_copy(b->arena, slice_of(part));
    media->field = arena_copy(b->arena, slice_of(field));
    if (!media->part || !media->field) return api_out_of_memory(error);
    messages_add_media(b, kind, media);
    return true;
}

static bool add_base64(MessageBuilder *b, ContentKind kind, Slice text, ChatMedia *media, const char *part,
    const char *field, ApiError *error) {
    return part_from_base64(b, bytes_of(kind), text, field, &media->bytes, error) &&
        add(b, kind, media, part, field, error);
}

static bool add_url(MessageBuilder *b, ContentKind kind, Slice url, ChatMedia *media, const char *part,
    const char *field, ApiError *error) {
    return part_from_url(b, bytes_of(kind), url, field, &media->bytes, error) &&
        add(b, kind, media, part, field, error);
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
    return part_check_members(part, outer, COUNT_OF(outer), param, error) &&
        api_type(value, JSON_OBJECT, object, error) && part_check_members(value, inner, image ? 2 : 1, object, error) &&
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
    return part_check_members(part, known, COUNT_OF(known), param, error) &&
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
    if (!part_check_members(part, outer, COUNT_OF(outer), param, error) ||
        !api_type(audio, JSON_OBJECT, object, error) ||
        !part_check_members(audio, inner, COUNT_OF(inner), object, error) ||
        (hint && !api_string(hint, format, &name, error)) || !member_read_text(audio, "data", object, &data, error))
        return false;
    (void)part_data_url(data, &data);
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

/* JPEG images in base64, separated by commas, one behind the other. */
static bool join_stills(MessageBuilder *b, Slice list, const char *field, Slice *bytes, ApiError *error) {
    if (list.size / 4 > (size_t)video_bytes.bytes_max / 3)
        return part_from_base64(b, &video_bytes, list, field, bytes, error); /* tells the limit */
    char *out = arena_alloc(b->arena, base64_bytes_max(list.size) + 1, 1), *at = out;
    if (!out) return api_out_of_memory(error);
    while (list.data) {
        const char *comma = memchr(list.data, ',', list.size);
        const Slice one = {list.data, comma ? (size_t)(comma - list.data) : list.size};
        Slice still;
        if (!part_from_base64(b, &video_bytes, one, field, &still, error)) return false;
        memcpy(at, still.data, still.size);
        at += still.size;
        list = comma ? (Slice){comma + 1, list.size - one.size - 1} : (Slice){0};
    }
    *bytes = (Slice){out, (size_t)(at - out)};
    return true;
}

/* A data URL of the type video/jpeg may have a list of images. */
static bool add_video(
    MessageBuilder *b, Slice url, ChatMedia *media, const char *part, const char *field, ApiError *error) {
    Slice data;
    const bool list =
        slice_starts(url, SLICE("data:video/jpeg;")) && part_data_url(url, &data) && memchr(data.data, ',', data.size);
    if (!list) return add_url(b, CONTENT_VIDEO, url, media, part, field, error);
    return join_stills(b, data, field, &media->bytes, error) && add(b, CONTENT_VIDEO, media, part, field, error);
}

bool video_read_url(MessageBuilder *b, const Json *part, const char *param, ApiError *error) {
    static const char *const outer[] = {"type", "video_url"}, *const inner[] = {"url"};
    ChatMedia media = {.type = SLICE("video_url")};
    char object[API_PARAM_MAX], field[API_PARAM_MAX];
    Slice url;
    snprintf(object, sizeof object, "%.100s.video_url", param);
    snprintf(field, sizeof field, "%.110s.url", object);
    const Json *value = member_get(part, "video_url");
    if (!value) return api_missing(object, error);
    return part_check_members(part, outer, COUNT_OF(outer), param, error) &&
        api_type(value, JSON_OBJECT, object, error) &&
        part_check_members(value, inner, COUNT_OF(inner), object, error) &&
        member_read_text(value, "url", object, &url, error) && add_video(b, url, &media, param, field, error);
}

bool video_read_responses(MessageBuilder *b, const Json *part, const char *param, ApiError *error) {
    static const char *const known[] = {"type", "video_url"};
    ChatMedia media = {.type = SLICE("input_video")};
    char field[API_PARAM_MAX];
    Slice url;
    snprintf(field, sizeof field, "%.100s.video_url", param);
    return part_check_members(part, known, COUNT_OF(known), param, error) &&
        member_read_text(part, "video_url", param, &url, error) && add_video(b, url, &media, param, field, error);
}
