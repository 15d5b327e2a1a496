/* The alphabet of byte-level vocabularies: each byte is spelled as one printable character. Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/slice.h"

extern const uint16_t byte_level_codes[256];
/* Appends the bytes of a spelling. out: room for spelled.size bytes. False: a character outside of the alphabet; out is
 * undefined. */
bool byte_level_read(Slice spelled, char *out, size_t *size);
/* Appends the spelling of bytes. */
void byte_level_write(Slice bytes, Buffer *out);
/* Appends the bytes of a spelling; one outside of the alphabet is copied. */
void byte_level_append(Slice spelled, Buffer *out);
