/* The byte alphabet. */
#include "text/tokenizer/byte_level.h"

#include "base/utf8.h"

/* Printable Latin-1 maps to itself; the other 68 bytes map, in order, to U+0100 and above. */
#define SELF(b) (((b) >= 33 && (b) <= 126) || ((b) >= 161 && (b) <= 172) || (b) >= 174)
#define CODE(b) (SELF(b) ? (b) : (b) <= 32 ? 256 + (b) : (b) <= 160 ? 256 + 33 + (b)-127 : 256 + 67)
#define CODES4(b) CODE(b), CODE(b + 1), CODE(b + 2), CODE(b + 3)
#define CODES16(b) CODES4(b), CODES4(b + 4), CODES4(b + 8), CODES4(b + 12)
#define CODES64(b) CODES16(b), CODES16(b + 16), CODES16(b + 32), CODES16(b + 48)
const uint16_t byte_level_codes[256] = {CODES64(0), CODES64(64), CODES64(128), CODES64(192)};

enum { ALPHABET_END = 256 + 68 };

/* The byte of a code below ALPHABET_END, or −1. */
static inline int byte_of_code(uint32_t code) {
    if (code < 256) return SELF(code) ? (int)code : -1;
    uint32_t rest = code - 256;
    return rest <= 32 ? (int)rest : rest < 67 ? (int)(rest - 33 + 127) : 173;
}

bool byte_level_read(Slice spelled, char *out, size_t *size) {
    const uint8_t *at = (const uint8_t *)spelled.data, *end = at + spelled.size;
    char *start = out;
    while (at < end) {
        if (*at < 0x80) {
            if (*at < 33 || *at > 126) return false;
            *out++ = (char)*at++;
            continue;
        }
        if (*at < 0xC2 || *at > 0xC5 || end - at < 2 || (at[1] & 0xC0) != 0x80) return false;
        uint32_t code = (at[0] & 0x1Fu) << 6 | (at[1] & 0x3Fu);
        int byte = code < ALPHABET_END ? byte_of_code(code) : -1;
        if (byte < 0) return false;
        *out++ = (char)byte;
        at += 2;
    }
    *size = (size_t)(out - start);
    return true;
}

void byte_level_write(Slice bytes, Buffer *out) {
    for (size_t i = 0; i < bytes.size; i++) {
        char code[4];
        buffer_append(out, code, (size_t)utf8_encode(byte_level_codes[(uint8_t)bytes.data[i]], code));
    }
}

void byte_level_append(Slice spelled, Buffer *out) {
    size_t size;
    if (!buffer_reserve(out, spelled.size)) return;
    if (!byte_level_read(spelled, out->data + out->size, &size)) {
        buffer_slice(out, spelled);
        return;
    }
    out->size += size;
    out->data[out->size] = '\0';
}
