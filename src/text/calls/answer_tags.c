/* Arguments between markers. The format, or the tool's schema, decides which of them are strings. */
#include "base/arena.h"
#include "base/json_check.h"
#include "text/calls/answer_parts.h"
#include "text/grammar/schema_type.h"

enum { KEY_MAX = 512 }; /* bytes of the 128 characters that a grammar permits */

/* ---- types ---- */

/* The types that an argument may have, at most (SchemaType). */
static uint32_t types_of(const AnswerParser *p, Slice key) {
    if (!p->tools) return TYPE_ALL;
    for (JSON_EACH(tool, p->tools)) {
        const Json *function = json_get(tool, "function"), *name = json_get(function, "name");
        if (!name || name->type != JSON_STRING || !slice_is(json_slice(name), p->name)) continue;
        return schema_member_types(json_get(function, "parameters"), key);
    }
    return TYPE_ALL;
}

static void write_string(Slice text, Buffer *out) {
    buffer_byte(out, '"');
    answer_escape(text, out);
    buffer_byte(out, '"');
}

static bool has_type(JsonType type, uint32_t types) {
    static const uint32_t of[] = {[JSON_NULL] = TYPE_NULL,
        [JSON_BOOL] = TYPE_BOOL,
        [JSON_INTEGER] = TYPE_INTEGER,
        [JSON_LONG] = TYPE_INTEGER,
        [JSON_REAL] = TYPE_FRACTION,
        [JSON_STRING] = TYPE_STRING,
        [JSON_ARRAY] = TYPE_ARRAY,
        [JSON_OBJECT] = TYPE_OBJECT};
    return types & of[type];
}

/* A fraction that is whole, where only whole numbers are permitted: 5.0. */
static bool write_whole(JsonType type, Slice text, uint32_t types, Buffer *out) {
    if (type != JSON_REAL || !(types & TYPE_INTEGER)) return false;
    Arena arena = {0};
    Error why;
    const Json *value = json_parse(&arena, text, &why);
    const double number = value ? json_number(value) : 0.5;
    arena_free(&arena);
    if (number != (double)(int64_t)(number > -1e15 && number < 1e15 ? number : 0)) return false;
    buffer_printf(out, "%lld", (long long)number);
    return true;
}

/* A text is a string where the types have strings, unless it is a value of another of the types; see
 * text/grammar/argument_form.h. */
static void write_value(uint32_t types, Slice text, Buffer *out) {
    size_t size;
    JsonType type;
    const bool only_string = types == TYPE_STRING;
    const JsonVerdict verdict = only_string ? JSON_IS_NOT : json_check(text, &size, &type);
    const bool value = verdict == JSON_IS_WHOLE && answer_skip_blank(text, size) == text.size;
    out->failed |= verdict == JSON_NO_MEMORY;
    if (value && has_type(type, types))
        buffer_slice(out, text);
    else if (value && write_whole(type, text, types, out))
        ;
    else if (!only_string && (types & TYPE_BOOL) && (slice_is(text, "True") || slice_is(text, "False")))
        buffer_text(out, slice_is(text, "True") ? "true" : "false");
    else if (!only_string && (types & TYPE_NULL) && slice_is(text, "None"))
        buffer_text(out, "null");
    else
        write_string(text, out);
}

/* ---- one argument ---- */

typedef struct Argument {
    Slice key, attributes, value;
    uint32_t types; /* SchemaType */
    bool cut;
    size_t size;
} Argument;

static Slice without_line_ends(Slice text, bool cut) {
    if (text.size > 0 && text.data[0] == '\n') text = answer_from(text, 1);
    if (!cut && text.size > 0 && text.data[text.size - 1] == '\n') text.size--;
    return text;
}

static bool is_typed_string(const Argument *argument) {
    return memmem(argument->attributes.data, argument->attributes.size, "\"true\"", 6);
}

/* Whether a value that begins so may be JSON in which a string contains the end marker. */
static bool may_hide_marker(Slice value, uint32_t types) {
    if (value.size == 0 || types == TYPE_STRING) return false;
    const char first = value.data[0];
    return types & (first == '{' ? TYPE_OBJECT : first == '[' ? TYPE_ARRAY : first == '"' ? TYPE_STRING : 0);
}

/* Index of the marker after a value. JSON of a permitted type ends by its own syntax, because a string in it may
 * contain the marker. Other texts end at the first marker: behind it comes a line feed, which no string of JSON
 * contains, so that a text is not taken for JSON that goes on behind the marker. */
static size_t find_value_end(const CallFormat *f, Slice value, uint32_t types, bool last, bool *found) {
    const size_t begin = answer_skip_blank(value, 0), first = answer_find(value, f->value_end, found);
    size_t size;
    JsonType type;
    if (!may_hide_marker(answer_from(value, begin), types)) return first;
    const JsonVerdict verdict = json_check(answer_from(value, begin), &size, &type);
    if (verdict == JSON_IS_WHOLE && begin + size > first && has_type(type, types))
        return begin + size + answer_find(answer_from(value, begin + size), f->value_end, found);
    if (verdict != JSON_IS_CUT || (last && (types & TYPE_STRING))) return first;
    *found = false;
    return value.size;
}

static uint32_t argument_types(const AnswerParser *p, const Argument *argument) {
    if (!p->calls->typed) return types_of(p, argument->key);
    return is_typed_string(argument) ? TYPE_STRING : TYPE_ALL & ~TYPE_STRING;
}

static Verdict read_argument(const AnswerParser *p, Slice text, Argument *argument) {
    const CallFormat *f = p->calls;
    const bool last = p->last;
    *argument = (Argument){0};
    const Verdict begins = answer_match(text, f->key_begin);
    if (begins != VERDICT_YES) return begins;
    bool found;
    size_t at = call_marker(f->key_begin).size;
    const Slice behind = answer_from(text, at);
    const size_t key = answer_find(behind, f->key_end, &found);
    if (key > KEY_MAX) return VERDICT_NO;
    if (!found) return VERDICT_MORE;
    argument->key = (Slice){behind.data, answer_trimmed((Slice){behind.data, key})};
    at += key + call_marker(f->key_end).size;
    if (f->value_begin) {
        const Slice attributes = answer_from(text, at);
        const size_t size = answer_find(attributes, f->value_begin, &found);
        if (size > KEY_MAX) return VERDICT_NO;
        if (!found) return VERDICT_MORE;
        argument->attributes = (Slice){attributes.data, size};
        at += size + call_marker(f->value_begin).size;
    }
    const Slice value = answer_from(text, at);
    argument->types = argument_types(p, argument);
    const size_t size = find_value_end(f, value, argument->types, last, &found);
    if (!found && !last) return VERDICT_MORE;
    argument->cut = !found;
    argument->value = without_line_ends((Slice){value.data, size}, argument->cut);
    argument->size = found ? at + size + call_marker(f->value_end).size : text.size;
    return VERDICT_YES;
}

static void write_argument(AnswerParser *p, const Argument *argument, AnswerEvents *out) {
    Buffer text = {0};
    buffer_text(&text, p->value.keys++ ? ", " : "{");
    write_string(argument->key, &text);
    buffer_text(&text, ": ");
    if (argument->cut) {
        if (argument->types == TYPE_STRING) buffer_byte(&text, '"');
        answer_escape(argument->value, &text);
    } else {
        write_value(argument->types, argument->value, &text);
    }
    answer_emit(out, ANSWER_ARGUMENTS, buffer_view(&text));
    out->failed |= text.failed;
    buffer_free(&text);
}

/* ---- all of them ---- */

static Verdict read_end(const CallFormat *f, Slice rest, size_t *size) {
    const char *marker = f->foot ? f->foot : f->close; /* the latter is not ours */
    *size = f->foot ? call_marker(f->foot).size : 0;
    return answer_match(rest, marker);
}

bool answer_tags(AnswerParser *p, Slice text, AnswerEvents *out, size_t *used) {
    *used = 0;
    if (text.size < p->retry && !p->last) return false;
    for (;;) {
        const Slice rest = answer_from(text, answer_skip_blank(text, *used));
        size_t size = 0;
        Argument argument;
        const Verdict end = read_end(p->calls, rest, &size), next = read_argument(p, rest, &argument);
        if (next == VERDICT_YES && end != VERDICT_YES) {
            write_argument(p, &argument, out);
            *used = text.size - rest.size + argument.size;
            continue;
        }
        if (end != VERDICT_YES && !p->last && (end == VERDICT_MORE || next == VERDICT_MORE)) {
            p->retry = rest.size > ANSWER_NAME_MAX ? rest.size + rest.size / 8 : 0;
            return false;
        }
        if (end == VERDICT_YES || rest.size > 0) /* else the end is missing because the answer ends */
            answer_emit(out, ANSWER_ARGUMENTS, p->value.keys ? SLICE("}") : SLICE("{}"));
        if (end == VERDICT_YES) *used = text.size - rest.size + size;
        p->retry = 0;
        return true;
    }
}
