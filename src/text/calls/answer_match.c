#include "text/calls/answer_parts.h"

size_t answer_skip_blank(Slice text, size_t at) {
    while (at < text.size && answer_blank(text.data[at])) at++;
    return at;
}

size_t answer_trimmed(Slice text) {
    while (text.size > 0 && answer_blank(text.data[text.size - 1])) text.size--;
    return text.size;
}

Verdict answer_match(Slice text, const char *spelling) {
    const Slice marker = call_marker(spelling);
    if (slice_starts(text, marker)) return VERDICT_YES;
    return slice_starts(marker, text) ? VERDICT_MORE : VERDICT_NO;
}

size_t answer_find(Slice text, const char *spelling, bool *found) {
    const Slice marker = call_marker(spelling);
    const char *at = text.size ? memmem(text.data, text.size, marker.data, marker.size) : NULL;
    *found = at != NULL;
    if (at) return (size_t)(at - text.data);
    size_t begin = text.size >= marker.size ? text.size - marker.size + 1 : 0;
    while (begin < text.size && memcmp(text.data + begin, marker.data, text.size - begin) != 0) begin++;
    return begin;
}

size_t answer_string_size(Slice text) {
    for (size_t i = 1; i < text.size; i++) {
        if (text.data[i] == '\\')
            i++;
        else if (text.data[i] == '"')
            return i + 1;
    }
    return 0;
}

size_t answer_value_size(Slice text) {
    int depth = 0;
    for (size_t i = 0; i < text.size; i++) {
        const char c = text.data[i];
        if (c == '"') {
            const size_t size = answer_string_size(answer_from(text, i));
            if (size == 0) return 0;
            i += size - 1;
            if (depth == 0) return i + 1;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (depth == 0 && (c == ',' || c == '}' || c == ']' || answer_blank(c))) {
            return i; /* end of a number or a word */
        } else if ((c == '}' || c == ']') && --depth == 0) {
            return i + 1;
        }
    }
    return 0;
}

void answer_escape(Slice text, Buffer *out) {
    for (size_t i = 0; i < text.size; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        if (c == '"' || c == '\\')
            buffer_printf(out, "\\%c", c);
        else if (c == '\n')
            buffer_text(out, "\\n");
        else if (c < ' ')
            buffer_printf(out, "\\u%04x", c);
        else
            buffer_byte(out, (char)c);
    }
}
