/* Arguments that stand one by one between markers. Which are strings the format says, or the tool's schema. */
#include "base/arena.h"
#include "text/calls/answer_parts.h"

enum { KEY_MAX = 256 };

/* ---- types ---- */

static const Json *schema_of(const AnswerParser *p, Slice key) {
    if (!p->tools) return NULL;
    for (JSON_EACH(tool, p->tools)) {
        const Json *function = json_get(tool, "function"), *name = json_get(function, "name");
        if (!name || name->type != JSON_STRING || !slice_is(json_slice(name), p->name)) continue;
        const Json *properties = json_get(json_get(function, "parameters"), "properties");
        if (!properties || properties->type != JSON_OBJECT) return NULL;
        for (JSON_EACH_PAIR(property, schema, properties))
            if (slice_equal(json_slice(property), key)) return schema;
    }
    return NULL;
}

/* A schema's types as a set of JsonType bits; 0: it says none. */
static unsigned types_of(const Json *schema) {
    static const struct {
        const char *name;
        unsigned types;
    } all[] = {{"string", 1u << JSON_STRING}, {"null", 1u << JSON_NULL}, {"boolean", 1u << JSON_BOOL},
        {"integer", 1u << JSON_INTEGER | 1u << JSON_LONG},
        {"number", 1u << JSON_INTEGER | 1u << JSON_LONG | 1u << JSON_REAL}, {"array", 1u << JSON_ARRAY},
        {"object", 1u << JSON_OBJECT}};
    const Json *type = json_get(schema, "type");
    unsigned types = 0;
    for (size_t i = 0; type && i < COUNT_OF(all); i++) {
        if (type->type == JSON_STRING && slice_is(json_slice(type), all[i].name)) types |= all[i].types;
        if (type->type != JSON_ARRAY) continue;
        for (JSON_EACH(one, type))
            if (one->type == JSON_STRING && slice_is(json_slice(one), all[i].name)) types |= all[i].types;
    }
    return types;
}

static void write_string(Slice text, Buffer *out) {
    buffer_byte(out, '"');
    answer_escape(text, out);
    buffer_byte(out, '"');
}

static void write_value(unsigned types, Slice text, Buffer *out) {
    Arena arena = {0};
    Error why;
    const bool only_string = types == 1u << JSON_STRING;
    const Json *value = only_string ? NULL : json_parse(&arena, text, &why);
    if (value && (!types || (types & 1u << value->type)))
        buffer_slice(out, text);
    else if (!only_string && (types & 1u << JSON_BOOL) && (slice_is(text, "True") || slice_is(text, "False")))
        buffer_text(out, slice_is(text, "True") ? "true" : "false");
    else if (!only_string && (types & 1u << JSON_NULL) && slice_is(text, "None"))
        buffer_text(out, "null");
    else
        write_string(text, out);
    arena_free(&arena);
}

/* ---- one argument ---- */

typedef struct Argument {
    Slice key, attributes, value;
    bool cut;
    size_t size;
} Argument;

static Slice without_line_ends(Slice text, bool cut) {
    if (text.size > 0 && text.data[0] == '\n') text = answer_from(text, 1);
    if (!cut && text.size > 0 && text.data[text.size - 1] == '\n') text.size--;
    return text;
}

static Verdict read_argument(const CallFormat *f, Slice text, bool last, Argument *argument) {
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
    const size_t size = answer_find(value, f->value_end, &found);
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
    unsigned types = types_of(schema_of(p, argument->key));
    if (p->calls->typed)
        types = memmem(argument->attributes.data, argument->attributes.size, "\"true\"", 6) ? 1u << JSON_STRING : 0;
    if (argument->cut) {
        if (types == 1u << JSON_STRING) buffer_byte(&text, '"');
        answer_escape(argument->value, &text);
    } else {
        write_value(types, argument->value, &text);
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
        const Verdict end = read_end(p->calls, rest, &size), next = read_argument(p->calls, rest, p->last, &argument);
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
