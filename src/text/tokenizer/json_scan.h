/* The few steps through JSON text that reading a vocabulary needs; strict, but one does not learn what was skipped.
 * Internal to tokenizer_read.c and json_scan.c. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef struct JsonScan {
    const char *begin, *at, *end;
    Buffer unescaped; /* the string read last, when it has escapes */
    Error *error;
} JsonScan;

/* An error with the line and byte of scan->at. False. */
bool scan_fail(const JsonScan *scan, const char *what);
/* The string whose first stop is at scan->at, a backslash or an error; start: its first byte. */
bool scan_escaped_string(JsonScan *scan, const char *start, Slice *string);
/* Past one value, without judging it: what is kept goes through json_parse. */
bool scan_skip_value(JsonScan *scan, Slice *value);

static inline void scan_space(JsonScan *scan) {
    const char *at = scan->at, *end = scan->end;
    if (at < end && (uint8_t)*at > ' ') return;
#ifdef __SSE2__
    while (end - at >= 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        __m128i line =
            _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('\n')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\r')));
        __m128i blank =
            _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\t')));
        unsigned other = (unsigned)_mm_movemask_epi8(_mm_or_si128(line, blank)) ^ 0xFFFF;
        if (other) {
            scan->at = at + __builtin_ctz(other);
            return;
        }
        at += 16;
    }
#endif
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) at++;
    scan->at = at;
}

static inline bool scan_accept(JsonScan *scan, char c) {
    scan_space(scan);
    if (scan->at >= scan->end || *scan->at != c) return false;
    scan->at++;
    return true;
}

/* The first quote, backslash or control code. */
static inline const char *scan_string_stop(const char *at, const char *end) {
#ifdef __SSE2__
    for (; end - at >= 16; at += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1F)), bytes);
        __m128i quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), slash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
        unsigned stop = (unsigned)_mm_movemask_epi8(_mm_or_si128(control, _mm_or_si128(quote, slash)));
        if (stop) return at + __builtin_ctz(stop);
    }
#endif
    while (at < end && *at != '"' && *at != '\\' && (uint8_t)*at >= 0x20) at++;
    return at;
}

/* A string; its bytes are not yet checked to be UTF-8. Valid until the next string. */
static inline bool scan_string(JsonScan *scan, Slice *string) {
    if (!scan_accept(scan, '"')) return scan_fail(scan, "expected a string");
    const char *start = scan->at, *stop = scan_string_stop(start, scan->end);
    scan->at = stop;
    if (stop < scan->end && *stop == '"') {
        *string = (Slice){start, (size_t)(stop - start)};
        scan->at = stop + 1;
        return true;
    }
    return scan_escaped_string(scan, start, string);
}
