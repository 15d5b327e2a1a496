#include "server/http/form.h"

#include <string.h>
#include <strings.h>

#include "base/json_nodes.h"
#include "base/utf8.h"

static bool refuse(ApiError *error, const char *why) {
    return api_fail(error, 400, NULL, NULL, "We could not parse the form of your request: %s.", why);
}

/* The first place of `what`; NULL: there is none. */
static const char *find(Slice text, const char *what) {
    return text.size ? memmem(text.data, text.size, what, strlen(what)) : NULL;
}

static Slice behind(Slice text, const char *at) { return (Slice){at, (size_t)(text.data + text.size - at)}; }

/* The value of a parameter, NAME=value or NAME="value"; data NULL: there is none. */
static Slice parameter(Slice head, const char *name) {
    const size_t length = strlen(name);
    for (size_t at = 0; at + length + 1 < head.size; at++) {
        const char before = at > 0 ? head.data[at - 1] : ' ';
        if ((before != ' ' && before != ';') || strncasecmp(head.data + at, name, length) != 0 ||
            head.data[at + length] != '=')
            continue;
        Slice value = {head.data + at + length + 1, head.size - at - length - 1};
        const bool quoted = value.size > 0 && value.data[0] == '"';
        if (quoted) value = (Slice){value.data + 1, value.size - 1};
        const char *end = quoted ? memchr(value.data, '"', value.size) : NULL;
        size_t size = end ? (size_t)(end - value.data) : 0;
        while (!quoted && size < value.size && !strchr("; \t\r\n", value.data[size])) size++;
        if (quoted && !end) return (Slice){0};
        return (Slice){value.data, size};
    }
    return (Slice){0};
}

/* The line of a part's head that names it. */
static Slice disposition(Slice head) {
    static const char field[] = "Content-Disposition:";
    while (head.size > 0) {
        const char *end = find(head, "\r\n");
        const Slice line = {head.data, end ? (size_t)(end - head.data) : head.size};
        if (line.size >= sizeof field - 1 && !strncasecmp(line.data, field, sizeof field - 1)) return line;
        head = end ? behind(head, end + 2) : (Slice){0};
    }
    return (Slice){0};
}

static bool is_there(const Json *list, const Json *end, Slice name) {
    for (const Json *at = list + 1; at < end; at += 2)
        if (slice_equal(json_slice(at), name)) return true;
    return false;
}

/* Reads the part at the beginning of *rest; *rest: what is behind its boundary. */
static bool read_part(
    Slice *rest, const char *boundary, const char *file, const Json *list, Json **at, ApiError *error) {
    const char *head_end =
        find((Slice){rest->data, rest->size < FORM_HEAD_MAX ? rest->size : FORM_HEAD_MAX}, "\r\n\r\n");
    if (!head_end) return refuse(error, "the header lines of a part do not end");
    const Slice head = {rest->data, (size_t)(head_end - rest->data)}, value = behind(*rest, head_end + 4);
    const char *end = find(value, boundary);
    const Slice name = parameter(disposition(head), "name");
    if (!end) return refuse(error, "the last boundary is missing");
    if (!name.data || name.size == 0) return refuse(error, "a part has no name");
    if (is_there(list, *at, name))
        return api_fail(error, 400, "invalid_value", NULL, "The field '%.*s' is there twice.", SLICE_SHOWN(name));
    const Slice bytes = {value.data, (size_t)(end - value.data)};
    if (!utf8_valid(name) || (!slice_is(name, file) && !utf8_valid(bytes)))
        return refuse(error, "a part is not valid UTF-8");
    *at = json_put_pair(*at, name, bytes);
    *rest = behind(value, end + strlen(boundary));
    return true;
}

const Json *form_object(Slice type, Slice body, const char *file, Arena *arena, ApiError *error) {
    enum { BOUNDARY_MAX = 70 }; /* RFC 2046 */
    char boundary[BOUNDARY_MAX + 5] = "\r\n--";
    const Slice named = parameter(type, "boundary");
    if (!named.data || named.size == 0 || named.size > BOUNDARY_MAX) {
        refuse(error, "its Content-Type has no boundary of 1 to 70 characters");
        return NULL;
    }
    memcpy(boundary + 4, named.data, named.size);
    boundary[4 + named.size] = 0;
    Json *list = arena_alloc(arena, 1 + 2 * (size_t)FORM_PARTS_MAX, sizeof *list), *at = list + 1;
    if (!list) {
        api_out_of_memory(error);
        return NULL;
    }
    if (!slice_starts(body, slice_of(boundary + 2))) {
        refuse(error, "it does not begin with the boundary");
        return NULL;
    }
    Slice rest = behind(body, body.data + 2 + named.size);
    uint32_t count = 0;
    for (; slice_starts(rest, SLICE("\r\n")); count++) {
        if (count == FORM_PARTS_MAX) {
            refuse(error, "it has too many parts");
            return NULL;
        }
        rest = behind(rest, rest.data + 2);
        if (!read_part(&rest, boundary, file, list, &at, error)) return NULL;
    }
    if (!slice_starts(rest, SLICE("--"))) {
        refuse(error, "the last boundary is missing");
        return NULL;
    }
    json_close(list, JSON_OBJECT, count, at);
    return list;
}
