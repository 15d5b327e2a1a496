#include "server/http/query.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The value of a name, as it came; data NULL: it is absent. */
static Slice find(const char *query, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = query; *at;) {
        const size_t size = strcspn(at, "&");
        if (size > length && !strncmp(at, name, length) && at[length] == '=')
            return (Slice){at + length + 1, size - length - 1};
        at += size + (at[size] == '&');
    }
    return (Slice){0};
}

bool query_number(const Exchange *x, const char *name, int64_t absent, int64_t *out, ApiError *error) {
    const Slice given = find(x->request->query, name);
    char *end;
    *out = absent;
    if (!given.data) return true;
    errno = 0;
    *out = strtoll(given.data, &end, 10);
    if (given.size && end == given.data + given.size && !errno && *out >= 0) return true;
    return api_fail(error, 400, "invalid_value", name, "Invalid '%s': want a number from 0 on.", name);
}

static int digit(char c) {
    const char *digits = "0123456789abcdef", *at = memchr(digits, c | ('A' <= c && c <= 'F' ? 0x20 : 0), 16);
    return at ? (int)(at - digits) : -1;
}

bool query_text(const Exchange *x, const char *name, char *out, size_t size, ApiError *error) {
    const Slice given = find(x->request->query, name);
    size_t n = 0;
    bool ok = given.size > 0;
    for (size_t i = 0; ok && i < given.size; i++, n++) {
        int c = (unsigned char)given.data[i];
        if (c == '+') c = ' ';
        if (c == '%') {
            const int high = i + 2 < given.size ? digit(given.data[i + 1]) : -1;
            const int low = high >= 0 ? digit(given.data[i + 2]) : -1;
            c = low >= 0 ? high << 4 | low : 0;
            i += 2;
        }
        ok = c > 0 && n + 1 < size;
        if (ok) out[n] = (char)c;
    }
    if (ok) out[n] = '\0';
    return ok || api_fail(error, 400, "invalid_value", name, "Invalid '%s' in the address.", name);
}
