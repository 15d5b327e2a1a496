/* Walking JSON text without keeping it. */
#include "base/json_scan.h"

#include "base/utf8.h"

bool json_scan_fail(const JsonScan *scan, const char *what) {
    size_t line, column;
    json_position(scan->begin, scan->at, &line, &column);
    return fail(scan->error, ERROR_FORMAT, "line %zu, column %zu: %s", line, column, what);
}

/* Appends what the escape at scan->at, behind a backslash, stands for. */
static bool scan_escape(JsonScan *scan, Buffer *out) {
    if (scan->at == scan->end) return json_scan_fail(scan, "a string does not end");
    char c = *scan->at++;
    int value = json_escaped(c);
    if (value >= 0) {
        buffer_byte(out, (char)value);
        return true;
    }
    if (c != 'u') return json_scan_fail(scan, "an escape that JSON does not know");
    int32_t code = json_unicode_escape(&scan->at, scan->end);
    if (code == JSON_NO_DIGITS) return json_scan_fail(scan, "expected four hexadecimal digits behind \\u");
    if (code == JSON_LONE_SURROGATE) return json_scan_fail(scan, "a surrogate stands alone");
    char bytes[4];
    buffer_append(out, bytes, (size_t)utf8_encode((uint32_t)code, bytes));
    return true;
}

bool json_scan_escaped(JsonScan *scan, const char *start, Slice *string) {
    Buffer *out = &scan->unescaped;
    buffer_clear(out);
    for (;;) {
        buffer_append(out, start, (size_t)(scan->at - start));
        if (scan->at == scan->end || (uint8_t)*scan->at < 0x20) return json_scan_fail(scan, "a string does not end");
        if (*scan->at++ == '"') break;
        if (!scan_escape(scan, out)) return false;
        start = scan->at;
        scan->at = json_string_stop(start, scan->end, false);
    }
    if (out->failed) return fail(scan->error, ERROR_MEMORY, "no memory for a string");
    *string = buffer_view(out);
    return true;
}

/* at: behind the opening quote. Behind the closing one; end, when there is none. */
static const char *skip_string(const char *at, const char *end) {
    while ((at = json_string_stop(at, end, false)) < end) {
        if (*at == '"') return at + 1;
        at += *at == '\\' && end - at > 1 ? 2 : 1;
    }
    return end;
}

bool json_scan_skip(JsonScan *scan, Slice *value) {
    json_scan_space(scan);
    const char *start = scan->at, *at = start, *end = scan->end;
    size_t depth = 0;
    while (at < end) {
        char c = *at;
        bool closing = c == '}' || c == ']';
        if (depth == 0 && (closing || c == ',' || (uint8_t)c <= ' ')) break;
        at++;
        if (c == '"') {
            at = skip_string(at, end);
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (closing) {
            depth--;
        } else {
            continue;
        }
        if (depth == 0) break;
    }
    scan->at = at;
    *value = (Slice){start, (size_t)(at - start)};
    if (depth) return json_scan_fail(scan, "a value does not end");
    return value->size || json_scan_fail(scan, "expected a value");
}
