#include "server/http/query.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool query_number(const Exchange *x, const char *name, int64_t absent, int64_t *out, ApiError *error) {
    const size_t length = strlen(name);
    *out = absent;
    for (const char *at = x->request->query; *at;) {
        const size_t size = strcspn(at, "&");
        if (size > length && !strncmp(at, name, length) && at[length] == '=') {
            const char *given = at + length + 1;
            char *end;
            errno = 0;
            *out = strtoll(given, &end, 10);
            if (end != at + size || end == given || errno || *out < 0)
                return api_fail(error, 400, "invalid_value", name, "Invalid '%s': want a number from 0 on.", name);
            return true;
        }
        at += size + (at[size] == '&');
    }
    return true;
}
