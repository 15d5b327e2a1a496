#include "base/arena.h"
#include "text/calls/answer_parts.h"

static bool outside_strings(char c) {
    return answer_blank(c) || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
        strchr("{}[],:+-.", c);
}

/* Up to where the value ends, or breaks off; *over: it does. */
static size_t scan(AnswerValue *v, Slice text, bool *over) {
    size_t i = 0;
    for (*over = false; i < text.size && !*over; i++) {
        const char c = text.data[i];
        if (v->in_string) {
            if (v->escaped)
                v->escaped = false;
            else if (c == '\\')
                v->escaped = true;
            else if (c == '"')
                v->in_string = false;
            continue;
        }
        if (c == '"') {
            v->in_string = true;
        } else if (c == '{' || c == '[') {
            v->depth++;
        } else if (c == '}' || c == ']') {
            *over = --v->depth <= 0;
        } else if (!c || !outside_strings(c)) { /* no JSON: whatever it is, it is not of the arguments */
            *over = true;
            return i;
        }
    }
    return i;
}

/* An object that was written as a string: as it was meant. */
static void emit_decoded(Slice text, AnswerEvents *out) {
    Arena arena = {0};
    Error why;
    const Json *value = json_parse(&arena, text, &why);
    if (value && value->type == JSON_STRING)
        answer_emit(out, ANSWER_ARGUMENTS, json_slice(value));
    else
        answer_emit(out, ANSWER_ARGUMENTS, text);
    arena_free(&arena);
}

bool answer_json(AnswerValue *v, Slice text, bool last, AnswerEvents *out, size_t *used) {
    *used = v->begun ? 0 : answer_skip_blank(text, 0);
    if (*used == text.size) return false;
    const Slice rest = answer_from(text, *used);
    const char first = rest.data[0];
    if (!v->begun && first != '{' && first != '[') { /* a string, null, … */
        size_t size = answer_value_size(rest);
        if (size == 0 && !last) return false;
        if (size == 0) size = rest.size;
        const Slice value = {rest.data, size};
        *used += size;
        if (first == '"')
            emit_decoded(value, out);
        else
            answer_emit(out, ANSWER_ARGUMENTS, slice_is(value, "null") ? SLICE("{}") : value);
        return true;
    }
    v->begun = true;
    bool over;
    const size_t size = scan(v, rest, &over);
    answer_emit(out, ANSWER_ARGUMENTS, (Slice){rest.data, size});
    *used += size;
    return over;
}

bool answer_json_rest(AnswerValue *v, Slice text, size_t *used) {
    bool over;
    *used = scan(v, text, &over);
    return over;
}
