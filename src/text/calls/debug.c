/* The debug instrument for calls. */
#include "text/calls/debug.h"

#include <stdio.h>

#include "text/calls/answer.h"
#include "text/calls/call_grammar.h"
#include "text/grammar/grammar.h"

enum { TOOLS_MAX = 64, TEXT_LONG = 300, TEXT_MAX = 3000 };

typedef struct Walk {
    Grammar *grammar;
    const CallRules *rules;
    const Json *tools;
    uint64_t random;
    Buffer text;
} Walk;

static uint64_t next_random(Walk *w) { /* splitmix64 */
    uint64_t z = (w->random += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* ---- a text of the grammar ---- */

static bool try_text(Walk *w, GrammarState *state, Slice text) {
    Error why;
    GrammarState next = *state;
    if (text.size == 0 || !grammar_accept_bytes(w->grammar, &next, text, &why)) return false;
    *state = next;
    buffer_slice(&w->text, text);
    return true;
}

/* Texts at which readers of calls could stumble. */
static bool try_hint(Walk *w, GrammarState *state) {
    const CallFormat *f = w->rules->format;
    const Slice hints[] = {call_marker(f->value_end), call_marker(f->key_end), call_marker(f->key_begin),
        call_marker(f->close), call_marker(f->foot), call_marker(f->quote), SLICE("\""), SLICE("{\""), SLICE("["),
        SLICE("null"), SLICE("None"), SLICE("True"), SLICE("5.0"), SLICE("-1e3"), SLICE("\n"), SLICE("\\u00e9"),
        SLICE("\xC3\xA9"), SLICE("\xF0\x9F\x98\x80"), SLICE("\\"), SLICE("'"), SLICE(" "), SLICE("</think>"),
        SLICE("\xE2\x80\xA8"), SLICE("007"), SLICE("[[[[[[[[[[")};
    return try_text(w, state, hints[next_random(w) % COUNT_OF(hints)]);
}

/* Bytes with which values end, tried first in a long text. */
static bool try_end(Walk *w, GrammarState *state) {
    static const char ends[] = "\"]}<)\n1a";
    for (const char *c = ends; *c; c++)
        if (try_text(w, state, (Slice){c, 1})) return true;
    return false;
}

static bool try_byte(Walk *w, GrammarState *state) {
    const uint8_t first = (uint8_t)next_random(w);
    for (int i = 0; i < 256; i++) {
        const char byte = (char)(uint8_t)(first + i * 37);
        if (try_text(w, state, (Slice){&byte, 1})) return true;
    }
    return false;
}

/* False: the text has no end. */
static bool walk(Walk *w) {
    GrammarState state = grammar_start(w->grammar);
    Error why;
    buffer_clear(&w->text);
    while (w->text.size < TEXT_MAX && !w->text.failed) {
        if (grammar_may_end(w->grammar, state) && next_random(w) % 3 == 0) return true;
        const size_t had = w->text.size;
        if (!grammar_forced(w->grammar, state, &w->text, &why)) return false;
        const Slice forced = {w->text.data + had, w->text.size - had};
        if (forced.size > 0) {
            if (!grammar_accept_bytes(w->grammar, &state, forced, &why)) return false;
            continue;
        }
        const bool ends = w->text.size > TEXT_LONG || next_random(w) % 8 == 0;
        if (ends ? try_end(w, &state) : next_random(w) % 3 == 0 && try_hint(w, &state)) continue;
        if (!try_byte(w, &state)) return grammar_may_end(w->grammar, state);
    }
    return false;
}

/* ---- how it is read ---- */

/* parts: the text comes in parts of chance. */
static void read_text(Walk *w, Slice text, bool parts, bool cut, AnswerEvents *events) {
    AnswerParser parser;
    answer_open(&parser, w->rules->format, NULL, false, w->tools);
    parser.only_calls = cut; /* the calls are demanded */
    for (size_t at = 0; at < text.size;) {
        size_t size = parts ? 1 + next_random(w) % 9 : text.size;
        if (size > text.size - at) size = text.size - at;
        answer_push(&parser, (Slice){text.data + at, size}, events);
        at += size;
    }
    answer_finish(&parser, cut, events);
    answer_close(&parser);
}

static void write_events(const AnswerEvents *events, Buffer *out) {
    Buffer content = {0}, arguments = {0};
    int calls = 0;
    buffer_text(out, "\"calls\":[");
    for (int i = 0; i < events->count; i++) {
        const AnswerEventKind kind = events->list[i].kind;
        const Slice text = answer_event_text(events, i);
        if (kind == ANSWER_CONTENT) buffer_slice(&content, text);
        if (kind == ANSWER_ARGUMENTS) buffer_slice(&arguments, text);
        if (kind == ANSWER_CALL) {
            buffer_text(out, calls++ ? ",[" : "[");
            json_write_string(out, text);
            buffer_clear(&arguments);
        }
        if (kind != ANSWER_CALL_END) continue;
        buffer_byte(out, ',');
        json_write_string(out, buffer_view(&arguments));
        buffer_byte(out, ']');
    }
    buffer_text(out, "],\"content\":");
    json_write_string(out, buffer_view(&content));
    out->failed |= content.failed || arguments.failed || events->failed;
    buffer_free(&content);
    buffer_free(&arguments);
}

static void write_answer(Walk *w, bool ended, Buffer *out) {
    AnswerEvents whole = {0}, parts = {0}, cut = {0};
    Buffer one = {0}, other = {0};
    const Slice text = buffer_view(&w->text);
    read_text(w, text, false, false, &whole);
    read_text(w, text, true, false, &parts);
    read_text(w, (Slice){text.data, text.size ? next_random(w) % text.size : 0}, false, true, &cut);
    write_events(&whole, &one);
    write_events(&parts, &other);
    buffer_text(out, "{\"text\":");
    json_write_string(out, text);
    buffer_printf(out, ",\"ended\":%s,\"split\":%s,", ended ? "true" : "false",
        slice_equal(buffer_view(&one), buffer_view(&other)) ? "false" : "true");
    buffer_slice(out, buffer_view(&one));
    buffer_text(out, ",\"cut\":{");
    write_events(&cut, out);
    buffer_text(out, "}}");
    out->failed |= one.failed || other.failed;
    buffer_free(&one);
    buffer_free(&other);
    answer_events_free(&whole);
    answer_events_free(&parts);
    answer_events_free(&cut);
}

/* ---- a line ---- */

static bool read_tools(const Json *list, CallTool tools[TOOLS_MAX], int *count, Error *error) {
    if (!list || list->type != JSON_ARRAY || list->size == 0 || list->size > TOOLS_MAX)
        return fail(error, ERROR_USAGE, "there must be \"tools\", at most %d", TOOLS_MAX);
    for (JSON_EACH(tool, list)) {
        const Json *function = json_get(tool, "function"), *name = json_get(function, "name");
        if (!name || name->type != JSON_STRING) return fail(error, ERROR_USAGE, "a tool has no name");
        tools[(*count)++] = (CallTool){.name = json_slice(name), .parameters = json_get(function, "parameters")};
    }
    return true;
}

static int64_t integer_of(const Json *request, const char *name, int64_t otherwise) {
    const Json *value = json_get(request, name);
    return value && value->type == JSON_INTEGER ? value->integer : otherwise;
}

static bool answer(const Json *request, Buffer *out, Error *error) {
    CallTool tools[TOOLS_MAX];
    const Json *format = json_get(request, "format"), *single = json_get(request, "single");
    CallRules rules = {.tools = tools, .single = single && single->type == JSON_BOOL && single->boolean};
    char name[64] = "";
    if (format && format->type == JSON_STRING) snprintf(name, sizeof name, "%.*s", SLICE_SHOWN(json_slice(format)));
    rules.format = call_format_named(name);
    if (!rules.format) return fail(error, ERROR_USAGE, "there is no format \"%s\"", name);
    if (!read_tools(json_get(request, "tools"), tools, &rules.count, error)) return false;
    rules.announced = call_format_announces(rules.format);
    rules.bare = rules.format->bare;
    Buffer source = {0};
    Error why = {0};
    call_grammar_write(&rules, &source);
    Grammar *grammar = grammar_compile(GRAMMAR_LARK, buffer_view(&source), GRAMMAR_SPACE_FLEXIBLE, NULL, &why);
    buffer_free(&source);
    if (!grammar) {
        buffer_text(out, "{\"unsupported\":");
        json_write_string(out, slice_of(why.text));
        buffer_byte(out, '}');
        return true;
    }
    Walk w = {.grammar = grammar,
        .rules = &rules,
        .tools = json_get(request, "tools"),
        .random = (uint64_t)integer_of(request, "seed", 0)};
    const int64_t count = integer_of(request, "count", 1);
    buffer_text(out, "{\"answers\":[");
    for (int64_t i = 0; i < count && !out->failed; i++) {
        if (i > 0) buffer_byte(out, ',');
        write_answer(&w, walk(&w), out);
    }
    buffer_text(out, "]}");
    buffer_free(&w.text);
    grammar_free(grammar);
    return true;
}

bool text_debug_calls(Slice json_line, Buffer *out, Error *error) {
    Arena arena = {0};
    const Json *request = json_parse(&arena, json_line, error);
    bool ok = request && answer(request, out, error);
    if (ok && out->failed) ok = fail(error, buffer_failure(out), "no room for the answer");
    arena_free(&arena);
    return ok;
}
