#include "server/http/keys.h"

#include <stdlib.h>
#include <string.h>

static void digest(Slice key, uint8_t out[SHA256_BYTES]) {
    Sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, key.data, key.size);
    sha256_end(&sha, out);
}

/* The next line without blanks around it; false: there is none. */
static bool next_line(Slice *rest, Slice *line) {
    if (!rest->size) return false;
    const char *end = memchr(rest->data, '\n', rest->size);
    size_t size = end ? (size_t)(end - rest->data) : rest->size;
    *line = (Slice){rest->data, size};
    size += end != NULL;
    *rest = (Slice){rest->data + size, rest->size - size};
    while (line->size && strchr(" \t\r", line->data[line->size - 1])) line->size--;
    while (line->size && strchr(" \t", line->data[0])) *line = (Slice){line->data + 1, line->size - 1};
    return true;
}

bool keys_read(Slice text, Keys *keys, Error *error) {
    *keys = (Keys){.digests = calloc(KEYS_MAX, SHA256_BYTES)};
    if (!keys->digests) return fail(error, ERROR_MEMORY, "no memory for API keys");
    Slice line;
    for (int number = 1; next_line(&text, &line); number++) {
        if (!line.size || line.data[0] == '#') continue;
        if (keys->count == KEYS_MAX) return fail(error, ERROR_LIMIT, "more than %d API keys", KEYS_MAX);
        if (line.size > KEY_BYTES_MAX)
            return fail(error, ERROR_LIMIT, "line %d: an API key of more than %d bytes", number, KEY_BYTES_MAX);
        for (size_t i = 0; i < line.size; i++)
            if (line.data[i] <= ' ' || line.data[i] > '~')
                return fail(error, ERROR_FORMAT,
                    "line %d: an API key must be printable ASCII without blanks, as clients send it in a header",
                    number);
        digest(line, keys->digests[keys->count++]);
    }
    return keys->count > 0 || fail(error, ERROR_USAGE, "no API key is given: it would be empty");
}

bool keys_have(const Keys *keys, const char *given) {
    uint8_t wanted[SHA256_BYTES];
    digest(slice_of(given), wanted);
    int found = 0;
    for (int i = 0; i < keys->count; i++) {
        int difference = 0;
        for (int j = 0; j < SHA256_BYTES; j++) difference |= keys->digests[i][j] ^ wanted[j];
        found |= difference == 0;
    }
    return found;
}

void keys_free(Keys *keys) {
    free(keys->digests);
    *keys = (Keys){0};
}
