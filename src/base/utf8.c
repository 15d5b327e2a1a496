/* UTF-8 as the Unicode standard defines it (chapter 3, table 3-7): no overlong forms, no surrogates, at most U+10FFFF.
 */
#include "base/utf8.h"

#include "base/error.h"

/* The range of the second byte is what table 3-7 restricts; every later byte is 80…BF. Length 0: not a lead byte. */
typedef struct Lead {
    int length;
    uint8_t low, high;
} Lead;

static inline Lead lead_of(uint8_t byte) {
    if (byte < 0xC2) return (Lead){0, 0, 0};
    if (byte < 0xE0) return (Lead){2, 0x80, 0xBF};
    if (byte < 0xF0) return (Lead){3, byte == 0xE0 ? 0xA0 : 0x80, byte == 0xED ? 0x9F : 0xBF};
    if (byte < 0xF5) return (Lead){4, byte == 0xF0 ? 0x90 : 0x80, byte == 0xF4 ? 0x8F : 0xBF};
    return (Lead){0, 0, 0};
}

int utf8_decode(const char *data, size_t size, uint32_t *code) {
    const uint8_t *bytes = (const uint8_t *)data;
    if (bytes[0] < 0x80) {
        *code = bytes[0];
        return 1;
    }
    *code = UTF8_REPLACEMENT;
    Lead lead = lead_of(bytes[0]);
    if (lead.length == 0 || size < 2 || bytes[1] < lead.low || bytes[1] > lead.high) return -1;
    uint32_t value = (uint32_t)bytes[0] & (0x7Fu >> lead.length);
    value = value << 6 | (bytes[1] & 0x3F);
    for (int i = 2; i < lead.length; i++) {
        if ((size_t)i >= size || (bytes[i] & 0xC0) != 0x80) return -i;
        value = value << 6 | (bytes[i] & 0x3F);
    }
    *code = value;
    return lead.length;
}

int utf8_encode(uint32_t code, char out[4]) {
    bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    if (surrogate || code > 0x10FFFF) code = UTF8_REPLACEMENT;
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

/* Whether a character of three bytes stands in the low ones of four, and its second byte has the usual range. */
static inline bool is_plain_three(uint32_t four) {
    return (four & 0xC0C0F0) == 0x8080E0 && (four & 0xFF) != 0xE0 && (four & 0xFF) != 0xED;
}

bool utf8_valid(Slice text) {
    size_t i = 0;
    while (i < text.size) {
        uint64_t word;
        if (text.size - i >= sizeof word) {
            memcpy(&word, text.data + i, sizeof word);
            if (!(word & 0x8080808080808080u)) {
                i = utf8_skip_ascii(text, i + sizeof word);
                continue;
            }
            if (is_plain_three((uint32_t)word)) {
                i += 3;
                continue;
            }
        }
        uint32_t code;
        int length = utf8_decode(text.data + i, text.size - i, &code);
        if (length < 0) return false;
        i += (size_t)length;
    }
    return true;
}

size_t utf8_incomplete_tail(Slice text) {
    for (size_t back = 1; back <= 3 && back <= text.size; back++) {
        const uint8_t *bytes = (const uint8_t *)text.data + text.size - back;
        if ((bytes[0] & 0xC0) == 0x80) continue;
        Lead lead = lead_of(bytes[0]);
        if ((size_t)lead.length <= back) return 0;
        if (back > 1 && (bytes[1] < lead.low || bytes[1] > lead.high)) return 0;
        return back;
    }
    return 0;
}
