#include "base/base64.h"

static int digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool base64_decode(Slice text, uint8_t *out, size_t *size) {
    size_t length = text.size;
    if (length % 4 == 0 && length > 0 && text.data[length - 1] == '=') length -= text.data[length - 2] == '=' ? 2 : 1;
    uint32_t bits = 0;
    *size = 0;
    if (length % 4 == 1) return false;
    for (size_t i = 0; i < length; i++) {
        const int value = digit(text.data[i]);
        if (value < 0) return false;
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 > 0) out[(*size)++] = (uint8_t)(bits >> (6 - 2 * (i % 4)));
    }
    return true;
}

void base64_encode(Slice bytes, Buffer *out) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < bytes.size; i += 3) {
        const size_t left = bytes.size - i;
        uint32_t bits = (uint32_t)(uint8_t)bytes.data[i] << 16;
        if (left > 1) bits |= (uint32_t)(uint8_t)bytes.data[i + 1] << 8;
        if (left > 2) bits |= (uint8_t)bytes.data[i + 2];
        const char text[4] = {digits[bits >> 18], digits[bits >> 12 & 63], left > 1 ? digits[bits >> 6 & 63] : '=',
            left > 2 ? digits[bits & 63] : '='};
        buffer_append(out, text, sizeof text);
    }
}
