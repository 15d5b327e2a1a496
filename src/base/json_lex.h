/* The lexer of JSON text: what the reader (json.c) and the scan (json_scan.c) share, inlined. Internal to base/json*.c.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Where `at` stands, both from 1; a column is a character. */
void json_position(const char *begin, const char *at, size_t *line, size_t *column);

static inline const char *json_skip_spaces(const char *at, const char *end) {
#ifdef __SSE2__
    while (end - at >= 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        __m128i line =
            _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('\n')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\r')));
        __m128i blank =
            _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\t')));
        unsigned other = (unsigned)_mm_movemask_epi8(_mm_or_si128(line, blank)) ^ 0xFFFF;
        if (other) return at + __builtin_ctz(other);
        at += 16;
    }
#endif
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) at++;
    return at;
}

static inline const char *json_skip_space(const char *at, const char *end) {
    return at < end && (uint8_t)*at > ' ' ? at : json_skip_spaces(at, end);
}

/* The first byte in at…end that is a quote, a backslash or a control code, or, when only ASCII is wanted, not ASCII; or
 * end. */
static inline const char *json_string_stop(const char *at, const char *end, bool ascii) {
#ifdef __SSE2__
    for (; end - at >= 16; at += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        __m128i low = ascii ? _mm_cmplt_epi8(bytes, _mm_set1_epi8(0x20)) /* signed: bytes from 0x80 on are below too */
                            : _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1F)), bytes);
        __m128i quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'));
        __m128i slash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
        unsigned stop = (unsigned)_mm_movemask_epi8(_mm_or_si128(low, _mm_or_si128(quote, slash)));
        if (stop) return at + __builtin_ctz(stop);
    }
#else
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    for (; end - at >= 8; at += 8) {
        uint64_t word; /* the subtractions set a high bit in the first byte that matches, perhaps in later ones too */
        memcpy(&word, at, 8);
        uint64_t quote = (word ^ ones * '"') - ones, slash = (word ^ ones * '\\') - ones, low = word - ones * 0x20;
        uint64_t stops = ascii ? word | quote | slash | low : (quote | slash | low) & ~word;
        if (stops & high) break;
    }
#endif
    while (at < end && *at != '"' && *at != '\\' && (uint8_t)*at >= 0x20 && (!ascii || (uint8_t)*at < 0x80)) at++;
    return at;
}

/* What the character behind a backslash stands for; −1: none that does so by itself, as 'u' does not. */
static inline int json_escaped(char c) {
    switch (c) {
    case '"':
    case '\\':
    case '/': return c;
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    default: return -1;
    }
}

/* Four hexadecimal digits, or −1. */
static inline int json_hex4(const char *at, const char *end) {
    if (end - at < 4) return -1;
    int value = 0;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9' ? c - '0'
            : c >= 'a' && c <= 'f'       ? c - 'a' + 10
            : c >= 'A' && c <= 'F'       ? c - 'A' + 10
                                         : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

enum { JSON_NO_DIGITS = -1, JSON_LONE_SURROGATE = -2 };

/* *at: behind "\u". The code point, and *at behind its digits, those of the second surrogate too; or what is wrong. */
static inline int32_t json_unicode_escape(const char **at, const char *end) {
    const char *digits = *at;
    int32_t code = json_hex4(digits, end);
    if (code < 0) return JSON_NO_DIGITS;
    *at += 4;
    if (code < 0xD800 || code >= 0xE000) return code;
    bool more = code < 0xDC00 && end - digits >= 6 && digits[4] == '\\' && digits[5] == 'u';
    int32_t second = more ? json_hex4(digits + 6, end) : -1;
    if (second < 0xDC00 || second >= 0xE000) return JSON_LONE_SURROGATE;
    *at += 6;
    return 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00);
}
