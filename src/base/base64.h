/* Base64 with the standard alphabet (RFC 4648). */
#pragma once
#include <stdint.h>

#include "base/buffer.h"

/* Largest number of bytes of an encoded text. */
static inline size_t base64_bytes_max(size_t characters) { return (characters + 3) / 4 * 3; }
/* Decodes all of the text; padding may be absent. out: base64_bytes_max() bytes. False: another character, or a length
 * that no text has. */
NODISCARD bool base64_decode(Slice text, uint8_t *out, size_t *size);
/* Appends the text of the bytes, with padding. */
void base64_encode(Slice bytes, Buffer *out);
