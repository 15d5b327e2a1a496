#include "server/api/file_parts.h"

#include <stdio.h>

#include "base/utf8.h"
#include "server/api/members.h"
#include "server/api/part_bytes.h"

static const PartBytes file_bytes = {"a file has", "files are", "text/plain", FILE_BYTES_MAX};

/* Kinds of files that clients send, by their first bytes, with what helps instead. */
static const struct {
    const char *begin, *name, *advice;
} kinds[] = {
    {"%PDF-", "a PDF", "send its text (pdftotext FILE -) or its pages as images"},
    {"PK\x03\x04", "a ZIP archive or an Office document", "send its text"},
    {"\xD0\xCF\x11\xE0", "an Office document", "send its text"},
    {"{\\rtf", "an RTF document", "send its text"},
    {"\x89PNG", "a PNG image", "send it as an image"},
    {"\xFF\xD8\xFF", "a JPEG image", "send it as an image"},
    {"GIF8", "a GIF image", "send it as an image"},
    {"RIFF", "a WebP image or a WAV file", "send it as an image or as audio"},
    {"\xFF\xFE", "text in UTF-16", "send it in UTF-8"},
    {"\xFE\xFF", "text in UTF-16", "send it in UTF-8"},
};

static bool refuse(const char *field, const char *what, const char *advice, ApiError *error) {
    return api_fail(error, 400, "unsupported_file", field,
        "Unsupported file in '%s': %s. Text files in UTF-8 are read; %s.", field, what, advice);
}

/* The file as a text, without a byte order mark. */
static bool check_text(Slice *bytes, const char *field, ApiError *error) {
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (slice_starts(*bytes, slice_of(kinds[i].begin))) return refuse(field, kinds[i].name, kinds[i].advice, error);
    if (!utf8_valid(*bytes) || memchr(bytes->data, 0, bytes->size))
        return refuse(field, "neither text in UTF-8 nor a format that is known", "send its text", error);
    if (slice_starts(*bytes, SLICE("\xEF\xBB\xBF"))) *bytes = (Slice){bytes->data + 3, bytes->size - 3};
    return true;
}

/* Appends one text: name, context and content, each on lines of its own; name and context may be empty. */
static bool add_text(MessageBuilder *b, Slice name, Slice context, Slice content, ApiError *error) {
    const Slice parts[] = {name, context, content};
    char *out = arena_alloc(b->arena, name.size + context.size + content.size + 2, 1), *at = out;
    if (!out) return api_out_of_memory(error);
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (parts[i].size == 0) continue;
        memcpy(at, parts[i].data, parts[i].size);
        at += parts[i].size;
        if (i + 1 < COUNT_OF(parts)) *at++ = '\n';
    }
    messages_add_text(b, (Slice){out, (size_t)(at - out)});
    return true;
}

static bool read_optional(const Json *object, const char *name, const char *param, Slice *text, ApiError *error) {
    *text = SLICE("");
    return !member_get(object, name) || member_read_text(object, name, param, text, error);
}

/* An object with the file's name and its bytes as a data URL or as base64, or with `address`, its URL; NULL: there is
 * no such member. param: the object's path. */
static bool read_file(MessageBuilder *b, const Json *object, const char *address, const char *param, ApiError *error) {
    char field[API_PARAM_MAX];
    Slice name, data, bytes = {0};
    snprintf(field, sizeof field, "%.100s.file_id", param);
    if (member_get(object, "file_id"))
        return api_fail(error, 400, "unsupported_parameter", field,
            "Unsupported parameter: '%s': files are not stored; send 'file_data'.", field);
    const bool remote = address && member_get(object, address) && !member_get(object, "file_data");
    const char *member = remote ? address : "file_data";
    snprintf(field, sizeof field, "%.100s.%s", param, member);
    if (!read_optional(object, "filename", param, &name, error) ||
        !member_read_text(object, member, param, &data, error))
        return false;
    enum { SCHEME_MAX = 8 };
    const bool base64 = !memchr(data.data, ':', data.size < SCHEME_MAX ? data.size : SCHEME_MAX);
    const bool read = base64 ? part_from_base64(b, &file_bytes, data, field, &bytes, error)
                             : part_from_url(b, &file_bytes, data, field, &bytes, error);
    return read && check_text(&bytes, field, error) && add_text(b, name, SLICE(""), bytes, error);
}

bool file_read_chat(MessageBuilder *b, const Json *part, const char *param, ApiError *error) {
    static const char *const outer[] = {"type", "file"}, *const inner[] = {"file_data", "filename", "file_id"};
    const Json *file = member_get(part, "file");
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.100s.file", param);
    if (!file) return api_missing(path, error);
    return part_check_members(part, outer, COUNT_OF(outer), param, error) && api_type(file, JSON_OBJECT, path, error) &&
        part_check_members(file, inner, COUNT_OF(inner), path, error) && read_file(b, file, NULL, path, error);
}

bool file_read_responses(MessageBuilder *b, const Json *part, const char *param, ApiError *error) {
    static const char *const known[] = {"type", "file_data", "file_url", "filename", "file_id", "detail"};
    return part_check_members(part, known, COUNT_OF(known), param, error) &&
        read_file(b, part, "file_url", param, error);
}

/* A source {"type": "base64" or "url", "data" or "url"}. param: the source's path. */
static bool read_source(MessageBuilder *b, const Json *source, const char *param, Slice *bytes, ApiError *error) {
    char field[API_PARAM_MAX];
    Slice text;
    const bool remote = b->media_hosts && member_is(source, "type", "url");
    const char *member = remote ? "url" : "data";
    snprintf(field, sizeof field, "%.110s.type", param);
    if (!remote && !member_is(source, "type", "base64"))
        return api_fail(error, 400, "unsupported_parameter", field,
            "Unsupported value for '%s': documents are accepted as 'text', 'content' and 'base64' only.", field);
    snprintf(field, sizeof field, "%.110s.%s", param, member);
    return member_read_text(source, member, param, &text, error) &&
        (remote ? part_from_url(b, &file_bytes, text, field, bytes, error)
                : part_from_base64(b, &file_bytes, text, field, bytes, error)) &&
        check_text(bytes, field, error);
}

bool file_read_document(MessageBuilder *b, const Json *block, const char *param, ApiError *error) {
    static const PartType plain[] = {{"text", CONTENT_TEXT, "text", NULL}, {0}};
    const Json *source = member_get(block, "source"), *inner = member_get(source, "content");
    char path[API_PARAM_MAX];
    Slice title, context, text = {0};
    snprintf(path, sizeof path, "%.90s.source", param);
    if (!source) return api_missing(path, error);
    if (!api_type(source, JSON_OBJECT, path, error) || !read_optional(block, "title", param, &title, error) ||
        !read_optional(block, "context", param, &context, error))
        return false;
    if (member_is(source, "type", "content") && inner) {
        if (title.size > 0) messages_add_text(b, title);
        if (context.size > 0) messages_add_text(b, context);
        snprintf(path, sizeof path, "%.90s.source.content", param);
        return messages_add_content(b, inner, path, plain, error);
    }
    const bool read = member_is(source, "type", "text") ? member_read_text(source, "data", path, &text, error)
                                                        : read_source(b, source, path, &text, error);
    return read && add_text(b, title, context, text, error);
}
