/* API keys, stored as digests: a comparison takes the same time for every key, length and number of keys. Constant
 * after keys_read. Threads: any. */
#pragma once
#include <stdbool.h>

#include "base/sha256.h"
#include "base/error.h"
#include "base/slice.h"

enum { KEYS_MAX = 4096, KEY_BYTES_MAX = 512 };

typedef struct Keys {
    uint8_t (*digests)[SHA256_BYTES]; /* owned */
    int count;                        /* 0: no key is required */
} Keys;

/* One key per line; blank lines and lines that begin with # are skipped. A text without keys is an error. */
NODISCARD bool keys_read(Slice text, Keys *keys, Error *error);
bool keys_have(const Keys *keys, const char *given);
void keys_free(Keys *keys);
