#include "cli/lists.h"

#include <stdint.h>
#include <string.h>

bool list_take_origins(const char *urls, Buffer *origins, Error *error) {
    for (const char *at = urls; *at;) {
        const size_t size = strcspn(at, ","),
                     scheme = !strncmp(at, "https://", 8) ? 8
            : !strncmp(at, "http://", 7)                  ? 7
                                                          : 0;
        const size_t host = strspn(at + scheme, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:[]");
        if (!scheme || !host || (scheme + host < size && at[scheme + host] != '/'))
            return fail(error, ERROR_USAGE, "--mcp %.*s: want http://HOST:PORT or https://HOST", (int)size, at);
        if (origins->size) buffer_byte(origins, ' ');
        buffer_append(origins, at, scheme + host);
        at += size + (at[size] == ',');
    }
    buffer_byte(origins, 0);
    return !origins->failed || fail(error, ERROR_MEMORY, "no memory for the addresses of MCP servers");
}

/* The end of the host that a text begins with: a name, or an IPv6 address in brackets. The text's beginning: there is
 * none. */
static const char *host_end(const char *at, const char *end) {
    static const char name[] = "abcdefghijklmnopqrstuvwxyz0123456789-._";
    const char *last = at;
    if (at < end && *at == '[') {
        while (++last < end && strchr("0123456789abcdef:.", *last)) continue;
        return last < end && *last == ']' && last - at > 2 ? last + 1 : at;
    }
    while (last < end && strchr(name, *last)) last++;
    return last;
}

/* scheme://host:port as browsers write it, in lower case; schemes of their own may have no host. */
static bool is_origin(Slice text) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789+-.";
    const char *at = text.data, *end = at + text.size, *host = memmem(at, text.size, "://", 3);
    if (!host || host == at) return false;
    const bool web =
        slice_is((Slice){at, (size_t)(host - at)}, "http") || slice_is((Slice){at, (size_t)(host - at)}, "https");
    for (; at < host; at++)
        if (!strchr(letters, *at)) return false;
    at = host_end(host + 3, end);
    if (at == host + 3) return at == end && !web;
    if (at == end) return true;
    if (*at++ != ':') return false;
    long port = 0;
    for (; at < end && *at >= '0' && *at <= '9' && port <= UINT16_MAX; at++) port = 10 * port + (*at - '0');
    return at == end && port >= 1 && port <= UINT16_MAX;
}

static bool is_host(Slice text) {
    return text.size > 0 && host_end(text.data, text.data + text.size) == text.data + text.size;
}

bool list_take(const char *option, const char *given, bool origins, Buffer *list, Error *error) {
    for (const char *at = given; *at;) {
        const Slice one = {at, strcspn(at, ",")};
        const bool right = slice_is(one, "*") || (origins ? slice_is(one, "null") || is_origin(one) : is_host(one));
        if (!right)
            return fail(error, ERROR_USAGE, "%s %.*s: want %s", option, SLICE_SHOWN(one),
                origins
                    ? "an origin without a path, in lower case, such as http://localhost:3000 or app://obsidian.md, "
                      "or *"
                    : "a name without a port, in lower case, such as host.docker.internal, or *");
        if (list->size) buffer_byte(list, ' ');
        buffer_append(list, at, one.size);
        at += one.size + (at[one.size] == ',');
    }
    buffer_byte(list, 0);
    return !list->failed || fail(error, ERROR_MEMORY, "no memory for the value of %s", option);
}

bool list_take_aliases(char *text, ModelAlias *aliases, int *count, Error *error) {
    *count = 0;
    for (char *at = text; *at;) {
        const size_t size = strcspn(at, ",");
        char *next = at + size + (at[size] == ',');
        at[size] = 0;
        char *equals = strchr(at, '=');
        if (equals) *equals = 0;
        if (!*at || *count == ALIASES_MAX)
            return fail(error, ERROR_USAGE, "--alias: want NAME=MODEL, at most %d of them", ALIASES_MAX);
        aliases[(*count)++] = (ModelAlias){at, equals ? equals + 1 : ""};
        at = next;
    }
    return true;
}
