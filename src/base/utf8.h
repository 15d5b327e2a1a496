/* UTF-8: decoding, checking, encoding. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/slice.h"

enum { UTF8_REPLACEMENT = 0xFFFD };

/* Decodes one code point at data (size > 0 bytes left). Returns its length 1…4, or minus the length of the maximal
 * invalid part (as Unicode recommends for replacement); *code is then UTF8_REPLACEMENT. */
int utf8_decode(const char *data, size_t size, uint32_t *code);
int utf8_encode(uint32_t code, char out[4]); /* bytes written */
bool utf8_valid(Slice text);
/* Past 32 bytes of ASCII, and another 32, as often as all of them are there. */
static inline size_t utf8_skip_ascii(Slice text, size_t at) {
    enum { STRIDE = 32 };
    uint64_t words[STRIDE / 8];
    for (; text.size - at >= STRIDE; at += STRIDE) {
        memcpy(words, text.data + at, STRIDE);
        if ((words[0] | words[1] | words[2] | words[3]) & 0x8080808080808080u) break;
    }
    return at;
}
/* Bytes at the end of text that begin a code point which more bytes could complete: 0…3. */
size_t utf8_incomplete_tail(Slice text);
