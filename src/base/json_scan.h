/* Walking JSON text (RFC 8259) without keeping it: for the few members of a large file that are nearly all of it, read
 * straight into tables of their own; all else goes through json_parse. Strict in what it reads; what is skipped is not
 * judged. Errors name line and column. Functions that return bool: false is an error, but for those that say otherwise.
 * Threads: one scan, one thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"
#include "base/json_lex.h"
#include "base/slice.h"

typedef struct JsonScan {
    const char *begin, *at, *end;
    Buffer unescaped; /* the string read last, when it has escapes; the user frees it */
    Error *error;
} JsonScan;

/* An error at scan->at. False. */
bool json_scan_fail(const JsonScan *scan, const char *what);
/* Past one value. */
bool json_scan_skip(JsonScan *scan, Slice *value);

/* The rest is inlined: there are millions of tokens of a few nanoseconds each. */
static inline void json_scan_space(JsonScan *scan) { scan->at = json_skip_space(scan->at, scan->end); }

/* Past white space and c, when c comes next; else false. */
static inline bool json_scan_accept(JsonScan *scan, char c) {
    json_scan_space(scan);
    if (scan->at >= scan->end || *scan->at != c) return false;
    scan->at++;
    return true;
}

/* The string that begins at start, whose first stop, at scan->at, is not its end. */
bool json_scan_escaped(JsonScan *scan, const char *start, Slice *string);
/* A string, valid until the next one. Its bytes are not yet checked to be UTF-8. */
static inline bool json_scan_string(JsonScan *scan, Slice *string) {
    if (!json_scan_accept(scan, '"')) return json_scan_fail(scan, "expected a string");
    const char *start = scan->at;
    scan->at = json_string_stop(start, scan->end, false);
    if (scan->at == scan->end || *scan->at != '"') return json_scan_escaped(scan, start, string);
    *string = (Slice){start, (size_t)(scan->at++ - start)};
    return true;
}

/* Behind a value in an array or object: past the comma, or past the closing bracket, and then *done. */
static inline bool json_scan_next(JsonScan *scan, char closing, bool *done) {
    *done = json_scan_accept(scan, closing);
    if (*done || json_scan_accept(scan, ',')) return true;
    return json_scan_fail(scan, closing == '}' ? "expected , or }" : "expected , or ]");
}

/* Past a whole number from 0 on, of at most 19 digits, when one comes next; else false. */
enum { JSON_COUNT_DIGITS_MAX = 19 }; /* they always fit 64 bits */
static inline bool json_scan_count(JsonScan *scan, uint64_t *count) {
    json_scan_space(scan);
    const char *start = scan->at, *at = start, *end = scan->end;
    *count = 0;
    while (at < end && *at >= '0' && *at <= '9' && at - start < JSON_COUNT_DIGITS_MAX) {
        *count = *count * 10 + (uint64_t)(*at++ - '0');
    }
    scan->at = at;
    bool ends = at == end || *at == ',' || *at == '}' || *at == ']' || json_skip_space(at, end) != at;
    return at > start && ends && (*start != '0' || at - start == 1);
}
