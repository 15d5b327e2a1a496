/* Grammars of calls: whatever they let through is read back as calls of the tools, with arguments as asked for. */
#include <stdlib.h>

#include "test.h"
#include "text/calls/answer.h"
#include "text/calls/call_grammar.h"
#include "text/grammar/grammar.h"

static const char tools_json[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\","
    "\"maxLength\":6},\"n\":{\"type\":\"integer\",\"minimum\":-3,\"maximum\":12},\"e\":{\"type\":\"string\",\"enum\":["
    "\"a "
    "b\",\"</c>\"]},\"b\":{\"type\":\"boolean\"},\"d\":{\"$ref\":\"#/$defs/d\"},\"l\":{\"type\":\"array\",\"items\":"
    "{\"type\":\"null\"},\"maxItems\":2}},\"required\":[\"n\",\"e\"],\"additionalProperties\":false,\"$defs\":{\"d\":{"
    "\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"string\",\"maxLength\":3}},\"additionalProperties\":false}}}"
    "}},"
    "{\"function\":{\"name\":\"g-1\"}}]";

enum { TEXT_MAX = 4000, WALKS = 60, WALKS_SAMPLED = 12 };

/* A text of the grammar, chosen at random; false: it did not end. */
static bool walk(Grammar *grammar, uint64_t *seed, Buffer *text) {
    GrammarState state = grammar_start(grammar);
    Error error;
    while (text->size < TEXT_MAX) {
        if (grammar_may_end(grammar, state) && test_random(seed) % 3 == 0) return true;
        int tries = 0;
        bool moved = false;
        for (const int first = (int)(test_random(seed) % 256); tries < 256 && !moved; tries++) {
            const char byte = (char)((first + tries * 37) % 128);
            moved = (byte >= ' ' || byte == '\n') && grammar_accept_bytes(grammar, &state, (Slice){&byte, 1}, &error);
            if (moved) buffer_byte(text, byte);
        }
        if (moved) continue;
        for (int c = 0x80; c < 256 && !moved; c++) { /* of markers */
            const char byte = (char)c;
            moved = grammar_accept_bytes(grammar, &state, (Slice){&byte, 1}, &error);
            if (moved) buffer_byte(text, byte);
        }
        if (!moved) return grammar_may_end(grammar, state);
    }
    return false;
}

static void check_arguments(const char *format, Slice name, Slice text) {
    Arena arena = {0};
    Error error;
    const Json *value = json_parse(&arena, text, &error);
    TEST_MSG(value && value->type == JSON_OBJECT, "%s: arguments %.*s", format, SLICE_ARGS(text));
    if (value && slice_is(name, "g-1")) {
        TEST_MSG(value->size == 0, "%s: arguments of g-1: %.*s", format, SLICE_ARGS(text));
    } else if (value) {
        const Json *n = json_get(value, "n"), *e = json_get(value, "e"), *s = json_get(value, "s"),
                   *b = json_get(value, "b"), *d = json_get(value, "d"), *l = json_get(value, "l");
        const bool fits = n && n->type == JSON_INTEGER && n->integer >= -3 && n->integer <= 12 && e &&
            (slice_is(json_slice(e), "a b") || slice_is(json_slice(e), "</c>")) && (!s || s->type == JSON_STRING) &&
            (!b || b->type == JSON_BOOL) && (!d || d->type == JSON_OBJECT) && (!l || l->type == JSON_ARRAY);
        TEST_MSG(fits, "%s: arguments %.*s", format, SLICE_ARGS(text));
    }
    arena_free(&arena);
}

static void check_text(const CallRules *rules, const Json *tools, Slice text) {
    AnswerParser parser;
    AnswerEvents events = {0};
    answer_open(&parser, rules->format, NULL, false, tools);
    answer_push(&parser, text, &events);
    answer_finish(&parser, false, &events);
    int calls = 0;
    Slice name = {0};
    Buffer arguments = {0};
    for (int i = 0; i < events.count; i++) {
        const AnswerEvent *event = &events.list[i];
        TEST_MSG(event->kind != ANSWER_CONTENT, "%s: content in %.*s", rules->format->name, SLICE_ARGS(text));
        if (event->kind == ANSWER_CALL) {
            name = answer_event_text(&events, i);
            calls++;
            buffer_clear(&arguments);
        }
        if (event->kind == ANSWER_ARGUMENTS) buffer_slice(&arguments, answer_event_text(&events, i));
        if (event->kind == ANSWER_CALL_END) check_arguments(rules->format->name, name, buffer_view(&arguments));
    }
    TEST_MSG(calls >= 1 && (calls == 1 || !rules->single), "%s: %d calls in %.*s", rules->format->name, calls,
        SLICE_ARGS(text));
    buffer_free(&arguments);
    answer_events_free(&events);
    answer_close(&parser);
}

static void test_format(const CallFormat *format, const Json *tools, bool single) {
    CallTool list[2];
    int count = 0;
    for (JSON_EACH(tool, tools)) {
        const Json *function = json_get(tool, "function");
        list[count++] =
            (CallTool){.name = json_slice(json_get(function, "name")), .parameters = json_get(function, "parameters")};
    }
    const CallRules rules = {.format = format,
        .tools = list,
        .count = count,
        .single = single,
        .announced = call_format_announces(format),
        .bare = !call_format_announces(format)};
    Buffer source = {0};
    Error error = {0};
    call_grammar_write(&rules, &source);
    Grammar *grammar = grammar_compile(GRAMMAR_LARK, buffer_view(&source), GRAMMAR_SPACE_FLEXIBLE, NULL, &error);
    TEST_MSG(grammar != NULL, "%s: %s\n%s", format->name, error.text, source.data);
    uint64_t seed = 7;
    const int walks = test_sampled() ? WALKS_SAMPLED : WALKS;
    int ended = 0;
    for (int i = 0; grammar && i < walks; i++) {
        Buffer text = {0};
        if (walk(grammar, &seed, &text)) {
            ended++;
            check_text(&rules, tools, buffer_view(&text));
        }
        buffer_free(&text);
    }
    TEST_MSG(ended > walks / 2, "%s: %d texts came to an end", format->name, ended);
    grammar_free(grammar);
    buffer_free(&source);
}

/* A tool whose schema cannot be kept may be called with any arguments. */
static void test_loose(void) {
    static const struct {
        const char *format, *text;
        bool accepted;
    } texts[] = {{"hermes", "<tool_call>\n{\"name\": \"h\", \"arguments\": {\"x\": 5}}\n</tool_call>", true},
        {"qwen3_coder",
            "<tool_call>\n<function=h>\n<parameter=x>\nany text\n</parameter>\n<parameter=y_2>\n{\n</parameter>\n"
            "</function>\n</tool_call>",
            true},
        {"qwen3_coder", "<tool_call>\n<function=h>\n</function>\n</tool_call>", true},
        {"qwen3_coder", "<tool_call>\n<function=h>\nx\n</function>\n</tool_call>", false},
        {"glm", "<tool_call>h\n<arg_key>x</arg_key>\n<arg_value>any text</arg_value>\n</tool_call>", true},
        {"lfm2", "<|tool_call_start|>[h(x=\"a\", y={\"k\": [1]})]<|tool_call_end|>", true},
        {"lfm2", "<|tool_call_start|>[h(5)]<|tool_call_end|>", false},
        {"gemma4", "<|tool_call>call:h{x:\"a\",y:5}<tool_call|>", true}};
    const CallTool tool = {.name = SLICE("h"), .keeps = CALL_KEEPS_NOTHING};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        const CallRules rules = {
            .format = call_format_named(texts[i].format), .tools = &tool, .count = 1, .announced = true};
        Buffer source = {0};
        Error error = {0};
        call_grammar_write(&rules, &source);
        Grammar *grammar = grammar_compile(GRAMMAR_LARK, buffer_view(&source), GRAMMAR_SPACE_FLEXIBLE, NULL, &error);
        TEST_MSG(grammar != NULL, "%s: %s\n%s", texts[i].format, error.text, source.data);
        GrammarState state = grammar ? grammar_start(grammar) : 0;
        const bool accepted = grammar && grammar_accept_bytes(grammar, &state, slice_of(texts[i].text), &error) &&
            grammar_may_end(grammar, state);
        TEST_MSG(accepted == texts[i].accepted, "%s: %s", texts[i].format, texts[i].text);
        grammar_free(grammar);
        buffer_free(&source);
    }
    for (int i = 0; call_format_at(i); i++) {
        const CallRules rules = {.format = call_format_at(i), .tools = &tool, .count = 1, .announced = true};
        Buffer source = {0};
        Error error = {0};
        call_grammar_write(&rules, &source);
        Grammar *grammar = grammar_compile(GRAMMAR_LARK, buffer_view(&source), GRAMMAR_SPACE_FLEXIBLE, NULL, &error);
        TEST_MSG(grammar != NULL, "%s: %s\n%s", rules.format->name, error.text, source.data);
        grammar_free(grammar);
        buffer_free(&source);
    }
}

int main(void) {
    Arena arena = {0};
    Error error;
    const Json *tools = json_parse(&arena, slice_of(tools_json), &error);
    CHECK(tools);
    for (int i = 0; call_format_at(i); i++) {
        test_format(call_format_at(i), tools, true);
        test_format(call_format_at(i), tools, false);
    }
    test_loose();
    arena_free(&arena);
    return test_done();
}
