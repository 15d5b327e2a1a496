#include "text/calls/answer_parts.h"

enum { NAME_TAIL_MAX = 64, KEY_MAX = 64 };

static bool in_name(char c) { return (unsigned char)c > ' ' && !strchr("<>[](){}\"'=,`|", c); }

/* A name at *at, which is moved past it. MORE: it may continue. */
static Verdict read_name(Slice text, const char *tail, size_t *at, Slice *name) {
    const size_t begin = *at;
    const char stop = tail ? tail[0] : 0;
    while (*at < text.size && in_name(text.data[*at]) && text.data[*at] != stop) ++*at;
    *name = (Slice){text.data + begin, *at - begin};
    if (name->size > ANSWER_NAME_MAX) return VERDICT_NO;
    if (*at == text.size) return VERDICT_MORE;
    return name->size > 0 ? VERDICT_YES : VERDICT_NO;
}

/* Moves *at past a required marker and white space before it. */
static Verdict read_marker(Slice text, const char *marker, size_t *at) {
    const size_t begin = answer_skip_blank(text, *at);
    const Verdict verdict = answer_match(answer_from(text, begin), marker);
    if (verdict == VERDICT_YES) *at = begin + call_marker(marker).size;
    return verdict;
}

/* Text allowed between a name and the marker after it: an index, an id. */
static Verdict read_tail(const CallFormat *f, Slice text, size_t *at) {
    if (!f->name_tail) return VERDICT_YES;
    const Verdict tail = answer_match(answer_from(text, *at), f->name_tail);
    if (tail != VERDICT_YES) return tail == VERDICT_NO ? VERDICT_YES : tail;
    bool found;
    const size_t size = answer_find(answer_from(text, *at), f->neck, &found);
    if (size > NAME_TAIL_MAX) return VERDICT_NO;
    *at += size;
    return found ? VERDICT_YES : VERDICT_MORE;
}

/* What must follow a name to be sure: the beginning of arguments, or the end of none. */
static Verdict looks_like_arguments(const CallFormat *f, Slice text, size_t at) {
    const Slice rest = answer_from(text, answer_skip_blank(text, at));
    if (f->syntax == CALL_NAMED) return rest.size == 0 ? VERDICT_MORE : rest.data[0] == '{' ? VERDICT_YES : VERDICT_NO;
    if (f->syntax == CALL_BRACES) return VERDICT_YES;
    if (f->syntax == CALL_TAGGED) {
        const char *markers[] = {f->key_begin, f->foot ? f->foot : f->close};
        Verdict all = VERDICT_NO;
        for (size_t i = 0; i < COUNT_OF(markers); i++) {
            const Verdict one = answer_match(rest, markers[i]);
            if (one == VERDICT_YES) return one;
            if (one == VERDICT_MORE) all = one;
        }
        return all;
    }
    if (rest.size == 0) return VERDICT_MORE;
    if (rest.data[0] == ')') return VERDICT_YES;
    size_t end = 0;
    Slice key;
    const Verdict verdict = read_name(rest, NULL, &end, &key);
    if (verdict != VERDICT_YES) return verdict;
    end = answer_skip_blank(rest, end);
    return end == rest.size ? VERDICT_MORE : rest.data[end] == '=' ? VERDICT_YES : VERDICT_NO;
}

static Verdict read_named(const CallFormat *f, Slice text, CallHead *head) {
    size_t at = 0;
    Verdict verdict = read_marker(text, f->head, &at);
    if (verdict == VERDICT_YES) verdict = read_name(text, f->name_tail, &at, &head->name);
    if (verdict != VERDICT_YES) head->name = (Slice){0}; /* it may go on */
    if (verdict == VERDICT_YES) verdict = read_tail(f, text, &at);
    if (verdict == VERDICT_YES) verdict = read_marker(text, f->neck, &at);
    if (verdict == VERDICT_YES) verdict = looks_like_arguments(f, text, at);
    head->size = at;
    return verdict;
}

/* ---- an object ---- */

static bool names_function(Slice key) { return slice_is(key, "\"name\"") || slice_is(key, "\"tool_name\""); }
static bool names_arguments(Slice key) { return slice_is(key, "\"arguments\"") || slice_is(key, "\"parameters\""); }

static Verdict take_name(Slice value, CallHead *head) {
    if (value.size < 3 || value.data[0] != '"' || memchr(value.data, '\\', value.size)) return VERDICT_NO;
    head->name = (Slice){value.data + 1, value.size - 2};
    return head->name.size <= ANSWER_NAME_MAX ? VERDICT_YES : VERDICT_NO;
}

/* One pair; *at is moved past it. YES: the arguments' place is known. MORE with *whole: another pair follows. */
static Verdict read_pair(Slice text, bool bare, size_t *at, bool *whole, CallHead *head) {
    *whole = false;
    if (text.data[*at] != '"') return VERDICT_NO;
    const size_t size = answer_string_size(answer_from(text, *at));
    if ((size ? size : text.size - *at) > KEY_MAX) return VERDICT_NO;
    if (size == 0) return VERDICT_MORE;
    const Slice key = {text.data + *at, size};
    if (bare && !head->name.data && !names_function(key)) return VERDICT_NO;
    *at = answer_skip_blank(text, *at + size);
    if (*at == text.size) return VERDICT_MORE;
    if (text.data[*at] != ':') return VERDICT_NO;
    *at = answer_skip_blank(text, *at + 1);
    if (*at == text.size) return VERDICT_MORE;
    if (names_arguments(key) && head->name.data) {
        head->size = *at;
        return VERDICT_YES;
    }
    if (names_function(key) && text.data[*at] != '"') return VERDICT_NO;
    const Slice value = {text.data + *at, answer_value_size(answer_from(text, *at))};
    if (value.size == 0) return VERDICT_MORE;
    if (names_function(key) && take_name(value, head) == VERDICT_NO) return VERDICT_NO;
    if (names_arguments(key)) head->arguments = value;
    *at += value.size;
    *whole = true;
    return VERDICT_MORE;
}

static Verdict read_object(Slice text, bool bare, CallHead *head) {
    if (text.size == 0) return VERDICT_MORE;
    if (text.data[0] != '{') return VERDICT_NO;
    for (size_t at = 1;;) {
        at = answer_skip_blank(text, at);
        if (at == text.size) return VERDICT_MORE;
        if (text.data[at] == '}') {
            head->size = at + 1;
            if (!head->arguments.data && bare) return VERDICT_NO;
            if (!head->arguments.data) head->arguments = SLICE("{}");
            return head->name.data ? VERDICT_YES : VERDICT_NO;
        }
        if (text.data[at] == ',' && at > 1) at = answer_skip_blank(text, at + 1);
        if (at == text.size) return VERDICT_MORE;
        bool whole;
        const Verdict verdict = read_pair(text, bare, &at, &whole, head);
        if (!whole) return verdict;
    }
}

Verdict answer_head(const CallFormat *calls, Slice text, bool bare, CallHead *head) {
    *head = (CallHead){0};
    return calls->syntax == CALL_JSON ? read_object(text, bare, head) : read_named(calls, text, head);
}
