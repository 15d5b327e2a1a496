/* The keys that clients may send, kept as digests: what is compared takes as long whether a key is nearly right or not,
 * for every length and number of keys. Constant after keys_read, so any thread may ask. */
#pragma once
#include <stdbool.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/slice.h"

enum { KEYS_MAX = 4096, KEY_BYTES_MAX = 512 };

typedef struct Keys {
    uint8_t (*digests)[SHA256_BYTES]; /* owned */
    int count;                        /* 0: none is asked for */
} Keys;

/* One per line; blank lines and those that begin with # are none. Text without any key is an error. */
NODISCARD bool keys_read(Slice text, Keys *keys, Error *error);
bool keys_have(const Keys *keys, const char *given);
void keys_free(Keys *keys);
