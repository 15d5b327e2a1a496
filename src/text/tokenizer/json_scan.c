/* Walking JSON text without keeping it. */
#include "text/tokenizer/json_scan.h"

#include <string.h>

#include "base/utf8.h"

bool scan_fail(const JsonScan *scan, const char *what) {
    size_t line = 1;
    for (const char *p = scan->begin; p < scan->at && p < scan->end; p++) line += *p == '\n';
    return fail(scan->error, ERROR_FORMAT, "line %zu, byte %zu: %s", line, (size_t)(scan->at - scan->begin), what);
}

static int hex4(const char *at, const char *end) {
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

/* Behind "\u". */
static bool read_unicode_escape(JsonScan *scan, Buffer *out) {
    int code = hex4(scan->at, scan->end);
    if (code < 0) return scan_fail(scan, "expected four hexadecimal digits behind \\u");
    scan->at += 4;
    uint32_t whole = (uint32_t)code;
    if (code >= 0xD800 && code < 0xE000) {
        bool more = code < 0xDC00 && scan->end - scan->at >= 6 && scan->at[0] == '\\' && scan->at[1] == 'u';
        int low = more ? hex4(scan->at + 2, scan->end) : -1;
        if (low < 0xDC00 || low > 0xDFFF) return scan_fail(scan, "a surrogate stands alone");
        whole = 0x10000u + ((uint32_t)(code - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
        scan->at += 6;
    }
    char bytes[4];
    buffer_append(out, bytes, (size_t)utf8_encode(whole, bytes));
    return true;
}

bool scan_escaped_string(JsonScan *scan, const char *start, Slice *string) {
    Buffer *out = &scan->unescaped;
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    buffer_clear(out);
    for (;;) {
        buffer_append(out, start, (size_t)(scan->at - start));
        if (scan->at >= scan->end || (uint8_t)*scan->at < 0x20) return scan_fail(scan, "a string does not end");
        char c = *scan->at++;
        if (c == '"') break;
        if (scan->at >= scan->end) return scan_fail(scan, "a string does not end");
        c = *scan->at++;
        const char *name = c ? strchr(names, c) : NULL;
        if (name) {
            buffer_byte(out, values[name - names]);
        } else if (c != 'u') {
            return scan_fail(scan, "an escape that JSON does not know");
        } else if (!read_unicode_escape(scan, out)) {
            return false;
        }
        start = scan->at;
        scan->at = scan_string_stop(start, scan->end);
    }
    if (out->failed) return fail(scan->error, ERROR_MEMORY, "no memory for a string");
    *string = buffer_view(out);
    return true;
}

bool scan_skip_value(JsonScan *scan, Slice *value) {
    scan_space(scan);
    const char *at = scan->at, *end = scan->end, *start = at;
    size_t depth = 0;
    for (; at < end; at++) {
        char c = *at;
        if (c == '"') {
            for (at = scan_string_stop(at + 1, end); at < end && *at != '"'; at = scan_string_stop(at, end)) {
                at += *at == '\\' ? 2 : 1;
                if (at >= end) break;
            }
            if (at >= end) break;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) break;
            depth--;
        } else if (depth == 0 && (c == ',' || c == ' ' || c == '\n' || c == '\r' || c == '\t')) {
            break;
        } else {
            continue;
        }
        if (depth == 0) {
            at++;
            break;
        }
    }
    scan->at = at < end ? at : end;
    *value = (Slice){start, (size_t)(scan->at - start)};
    if (depth) return scan_fail(scan, "a value does not end");
    if (!value->size) return scan_fail(scan, "expected a value");
    return true;
}
