/* Answers taken apart, in each format: what comes out, however it is cut. */
#include <stdlib.h>

#include "base/error.h"
#include "test.h"
#include "text/calls/answer.h"

#define BAR "\xEF\xBD\x9C"
#define LOW "\xE2\x96\x81"
#define DEEP(what) "<" BAR "tool" LOW what BAR ">"
#define DSML BAR "DSML" BAR

/* C content, R reasoning, F a call begins, A arguments, E a call ends. */
typedef struct Case {
    const char *format, *text, *events;
} Case;

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"b\":{\"type\":[\"boolean\",\"null\"]},\"any\":{}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

static const Case cases[] = {
    {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"<\", \"b\": [1, {}]}}\n</tool_call>",
        "F(f)A({\"a\": \"}\\\"<\", \"b\": [1, {}]})E()"},
    {"hermes",
        "I look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", "
        "\"arguments\": {\"x\":1}, \"id\": \"q}\"}\n</tool_call>\nDone. ",
        "C(I look.)F(f)A({})E()F(g)A({\"x\":1})E()C(Done. )"},
    {"hermes", "The <tool_call> tag <tool_call>{\"nam\": 1} <tool_c",
        "C(The <tool_call> tag <tool_call>{\"nam\": 1} <tool_c)"},
    {"hermes", "<tool_call>\n{\"arguments\": {\"a\": 1}, \"name\": \"f\"}\n</tool_call>", "F(f)A({\"a\": 1})E()"},
    {"hermes", "<tool_call>{\"name\":\"f\"}</tool_call>", "F(f)A({})E()"},
    {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>", "F(f)A({\"a\":1})E()"},
    {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":null}</tool_call>", "F(f)A({})E()"},
    {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1</tool_call> x", "F(f)A({\"a\":1)E()C(x)"},
    {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"xy", "F(f)A({\"a\":\"xy)E()"},
    {"hermes", "<tool_call>\n{\"name\": \"f", "C(<tool_call>\n{\"name\": \"f)"},
    {"hermes", "<tool_call></tool_call>", "C(<tool_call></tool_call>)"},
    {"hermes", "<think>\nuse <tool_call> maybe\n</think>\n\n  Hello\n", "R(use <tool_call> maybe)C(Hello\n)"},
    {"hermes", "<think>\n\n</think>\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "F(f)A({})E()"},
    {"hermes", "<think>never closed </thi", "R(never closed </thi)"},
    {"hermes", " plain < text \n", "C( plain < text \n)"},
    {"hermes", "{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "F(f)A({\"a\": 1})E()"},
    {"hermes", "{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\nOk",
        "F(f)A({})E()F(f)A({\"a\": 1})E()C(Ok)"},
    {"hermes", "{\"name\": \"nobody\", \"arguments\": {}}", "C({\"name\": \"nobody\", \"arguments\": {}})"},
    {"hermes", "", ""},
    {"hermes", " \n", "C( \n)"},
    {"hermes", "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>",
        "C(<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>)"},
    {"qwen3_coder",
        "Go:\n<tool_call>\n<function=f>\n<parameter=s>\n5 \"<b>\"\nx\n</parameter>\n<parameter=n>\n5\n</parameter>\n"
        "<parameter=b>\nTrue\n</parameter>\n<parameter=any>\n{\"k\": []}\n</parameter>\n</function>\n</tool_call>",
        "C(Go:)F(f)A({\"s\": \"5 \\\"<b>\\\"\\nx\", \"n\": 5, \"b\": true, \"any\": {\"k\": []}})E()"},
    {"qwen3_coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>", "F(f)A({})E()"},
    {"qwen3_coder", /* what json_parse refuses is a value all the same */
        "<tool_call>\n<function=f>\n<parameter=any>\n{\"k\": 1, \"k\": 1e999}\n</parameter>\n</function>\n</tool_call>",
        "F(f)A({\"any\": {\"k\": 1, \"k\": 1e999}})E()"},
    {"qwen3_coder", /* a marker in a string of JSON, where strings are permitted as well */
        "<tool_call>\n<function=f>\n<parameter=any>\n{\"k\": \"</parameter>\"}\n</parameter>\n<parameter=n>\n1\n"
        "</parameter>\n</function>\n</tool_call>",
        "F(f)A({\"any\": {\"k\": \"</parameter>\"}, \"n\": 1})E()"},
    {"qwen3_coder", /* a text that begins like JSON */
        "<tool_call>\n<function=f>\n<parameter=any>\n{\"k\n</parameter>\n<parameter=n>\n1\n</parameter>\n</function>\n"
        "</tool_call>",
        "F(f)A({\"any\": \"{\\\"k\", \"n\": 1})E()"},
    {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=any>\n\"a</parameter>\n</function>\n</tool_call>",
        "F(f)A({\"any\": \"\\\"a\"})E()"},
    {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=s>\nhal", "F(f)A({\"s\": \"hal)E()"},
    {"qwen3_coder", "<tool_call>\n<function=f>\nnonsense", "C(<tool_call>\n<function=f>\nnonsense)"},
    {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=n>\nfive\n</parameter>\nnonsense",
        "F(f)A({\"n\": \"five\"})E()C(nonsense)"},
    {"seed", "<seed:tool_call>\n<function=f>\n<parameter=s>x</parameter>\n</function>\n</seed:tool_call>",
        "F(f)A({\"s\": \"x\"})E()"},
    {"llama3", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "F(f)A({\"a\": 1})E()"},
    {"llama3", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\", \"parameters\": {}}",
        "F(f)A({\"a\": 1})E()F(g)A({})E()"},
    {"llama3", "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "F(f)A({})E()"},
    {"llama3", "<|python_tag|>print(1)", "C(<|python_tag|>print(1))"},
    {"llama3", "{\"name\": \"Bob\", \"age\": 5}", "C({\"name\": \"Bob\", \"age\": 5})"},
    {"llama3", "See {\"name\": \"f\", \"parameters\": {}}", "C(See {\"name\": \"f\", \"parameters\": {}})"},
    {"pythonic", "[f(a=1, b=\"x\", c='it\\'s \\x41', d=[1, {'k': None}], e=(True,)), g()]",
        "F(f)A({\"a\":1,\"b\":\"x\",\"c\":\"it's \\u0041\",\"d\":[1,{\"k\":null}],\"e\":[true]})E()F(g)A({})E()"},
    {"pythonic", "[link](url)", "C([link](url))"},
    {"pythonic", "[f(1)]", "C([f(1)])"},
    {"pythonic", "[f(a=\"x", "F(f)A({\"a\":\"x)E()"},
    {"pythonic", "[f(a=1)] and more", "F(f)A({\"a\":1})E()C(and more)"},
    {"pythonic", "[f(a=b=, \"x\", 2, {}, z=\\)]", "F(f)A({\"a\":\"b\",\"x\":null,\"\":2,\"\":{},\"z\":\"\\\\\"})E()"},
    {"lfm2", "Sure <|tool_call_start|>[f(s=\"a, b)\")]<|tool_call_end|> ok", "C(Sure)F(f)A({\"s\":\"a, b)\"})E()C(ok)"},
    {"olmo3", "<function_calls>f(a=1)\ng(b=-2.5e3)</function_calls>", "F(f)A({\"a\":1})E()F(g)A({\"b\":-2.5e3})E()"},
    {"mistral", "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
        "F(f)A({\"a\": 1})E()F(g)A({})E()"},
    {"mistral_args", "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]abc123def[ARGS]{}",
        "F(f)A({\"a\": 1})E()F(g)A({})E()"},
    {"function_gemma", "<start_function_call>call:f{s:<escape>a,\"b\"}<escape>,n:1}<end_function_call>",
        "F(f)A({\"s\":\"a,\\\"b\\\"}\",\"n\":1})E()"},
    {"gemma4",
        "<|tool_call>call:f{s:<|\"|>x<|\"|>,n:1,o:{k:<|\"|>v<|\"|>,l:[true,null]}}<tool_call|><|tool_call>call:g{}<"
        "tool_call|>",
        "F(f)A({\"s\":\"x\",\"n\":1,\"o\":{\"k\":\"v\",\"l\":[true,null]}})E()F(g)A({})E()"},
    {"glm", "<tool_call>f\n<arg_key>any</arg_key>\n<arg_value>[\"</arg_value>\"]</arg_value>\n</tool_call>",
        "F(f)A({\"any\": [\"</arg_value>\"]})E()"},
    {"glm",
        "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>007</arg_value>\n<arg_key>n</arg_key><arg_value>7</arg_value></"
        "tool_call>\n"
        "<tool_call>g</tool_call>",
        "F(f)A({\"s\": \"007\", \"n\": 7})E()F(g)A({})E()"},
    {"longcat",
        "<longcat_tool_call>f\n<longcat_arg_key>n</longcat_arg_key>\n<longcat_arg_value>1</longcat_arg_value>\n</"
        "longcat_tool_call>",
        "F(f)A({\"n\": 1})E()"},
    {"deepseek_v3",
        DEEP("calls" LOW "begin")
            DEEP("call" LOW "begin") "function" DEEP("sep") "f\n```json\n{\"a\": \"`\"}\n```" DEEP(
                "call" LOW
                "end") "\n" DEEP("call" LOW "begin") "function" DEEP("sep") "g\n```json\n{}\n```" DEEP("call" LOW "end")
                DEEP("calls" LOW "end"),
        "F(f)A({\"a\": \"`\"})E()F(g)A({})E()"},
    {"deepseek_v31",
        "Hm." DEEP("calls" LOW "begin") DEEP("call" LOW "begin") "f" DEEP("sep") "{\"a\": 1}" DEEP("call" LOW "end")
            DEEP("calls" LOW "end"),
        "C(Hm.)F(f)A({\"a\": 1})E()"},
    {"dsml",
        "<" DSML "function_calls>\n<" DSML "invoke name=\"f\">\n<" DSML "parameter name=\"s\" string=\"true\">5</" DSML
        "parameter>\n<" DSML "parameter name=\"z\" string=\"false\">[5]</" DSML "parameter>\n</" DSML "invoke>\n</" DSML
        "function_calls>",
        "F(f)A({\"s\": \"5\", \"z\": [5]})E()"},
    {"minimax",
        "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">a</parameter>\n</invoke>\n<invoke "
        "name=\"g\">\n</invoke>\n"
        "</minimax:tool_call> bye",
        "F(f)A({\"s\": \"a\"})E()F(g)A({})E()C(bye)"},
    {"kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": "
        "1}<|tool_call_end|>"
        "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "F(f)A({\"a\": 1})E()F(g)A({})E()"},
    {"harmony",
        "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        "<|constrain|>json<|message|>{\"a\": 1}<|call|>",
        "R(I think.)F(f)A({\"a\": 1})E()"},
    {"harmony",
        "<|channel|>analysis<|message|>Hm <|end|><|start|>assistant<|channel|>final<|message|>Hello <b>\nyou<|return|>",
        "R(Hm)C(Hello <b>\nyou)"},
    {"harmony", " to=functions.f<|channel|>commentary<|message|>{\"a\"", "F(f)A({\"a\")E()"},
    {"harmony", "No header at all", "C(No header at all)"},
    {"granite", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]", "F(f)A({})E()"},
    {"command_r7b", "<|START_RESPONSE|>Hello", "C(Hello)"},
    {"command_r7b",
        "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"a\": "
        "1}}\n]<|END_ACTION|>",
        "F(f)A({\"a\": 1})E()"},
    {"nemotron", "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}]</TOOLCALL>", "F(f)A({})E()"},
    {"functionary", ">>>all\nHello", "C(Hello)"},
    {"functionary", ">>>f\n{\"a\": 1}>>>g\n{}", "F(f)A({\"a\": 1})E()F(g)A({})E()"},
};

static void spell(const AnswerEvents *events, Buffer *out) {
    for (int i = 0; i < events->count; i++) {
        const Slice text = answer_event_text(events, i);
        buffer_printf(out, "%c(%.*s)", "CRFAE"[events->list[i].kind], SLICE_ARGS(text));
    }
}

/* The events of a text that is cut where `cut` says: of size bits, seldom or often. */
static void take_apart(const Case *c, size_t size, const Json *tools, size_t cut, uint64_t seed, Buffer *out) {
    static const ReasoningFormat think = {"<think>", "</think>"};
    AnswerParser parser;
    AnswerEvents events = {0};
    answer_open(&parser, call_format_named(c->format), &think, false, tools);
    for (size_t at = 0; at < size;) {
        size_t next = seed ? at + 1 + test_random(&seed) % 9 : at < cut ? cut : at + (cut ? size : 1);
        if (next > size) next = size;
        answer_push(&parser, (Slice){c->text + at, next - at}, &events);
        at = next;
    }
    answer_finish(&parser, false, &events);
    CHECK(!events.failed);
    spell(&events, out);
    answer_events_free(&events);
    answer_close(&parser);
}

static void test_case(const Case *c, const Json *tools) {
    const size_t size = strlen(c->text);
    Buffer whole = {0}, cut = {0};
    take_apart(c, size, tools, size, 0, &whole);
    const Slice got = buffer_view(&whole);
    TEST_MSG(slice_is(got, c->events) || (!got.size && !c->events[0]), "%s: %s\n  gives %.*s\n  not   %s", c->format,
        c->text, SLICE_ARGS(got), c->events);
    int differ = 0;
    for (size_t at = 0; at < size + 8; at++) { /* at 0: byte by byte; the last ones at random */
        buffer_clear(&cut);
        take_apart(c, size, tools, at, at > size ? at : 0, &cut);
        differ += !slice_equal(buffer_view(&cut), got);
    }
    TEST_MSG(differ == 0, "%s: %s\n  differs in %d ways to cut it", c->format, c->text, differ);
    for (size_t end = 0; end < size; end++) { /* answers that end early */
        buffer_clear(&whole);
        buffer_clear(&cut);
        take_apart(c, end, tools, end, 0, &whole);
        take_apart(c, end, tools, 0, 0, &cut);
        differ += !slice_equal(buffer_view(&cut), buffer_view(&whole));
    }
    TEST_MSG(differ == 0, "%s: %s\n  differs in %d beginnings", c->format, c->text, differ);
    buffer_free(&whole);
    buffer_free(&cut);
}

static void test_formats(void) {
    static const struct {
        const char *template, *format;
    } signs[] = {{"{% if tools %}<tool_call>\n{\"name\": ...}{% endif %}", "hermes"},
        {"<tool_call>\n<function=x>\n<parameter=y>", "qwen3_coder"}, {"<tool_call>x<arg_key>", "glm"},
        {"[TOOL_CALLS] [", "mistral"}, {"[TOOL_CALLS]x[ARGS]", "mistral_args"},
        {"<|start|>assistant<|channel|>final", "harmony"}, {"<minimax:tool_call>", "minimax"}, {"plain", NULL}};
    for (size_t i = 0; i < COUNT_OF(signs); i++) {
        const CallFormat *format = call_format_of(slice_of(signs[i].template));
        TEST_MSG(format == (signs[i].format ? call_format_named(signs[i].format) : NULL), "%s", signs[i].template);
    }
    const ReasoningFormat *think = reasoning_format_of(SLICE("a <think> b"));
    TEST(think && !strcmp(think->close, "</think>") && !reasoning_format_of(SLICE("none")));
    TEST(reasoning_at_end(think, SLICE("assistant\n<think>\n")) == PROMPT_REASONING_OPEN &&
        reasoning_at_end(think, SLICE("<think></think>\n")) == PROMPT_REASONING_CLOSED &&
        reasoning_at_end(think, SLICE("<think> a")) == PROMPT_REASONING_NONE);
    TEST(call_format_uses(call_format_named("mistral"), NULL, SLICE("[TOOL_CALLS]")));
    TEST(!call_format_uses(call_format_named("mistral"), think, SLICE("</s>")) &&
        call_format_uses(NULL, think, SLICE("</think>")));
    for (int i = 0; call_format_at(i); i++) {
        bool seen = false;
        for (size_t k = 0; k < COUNT_OF(cases); k++) seen |= !strcmp(cases[k].format, call_format_at(i)->name);
        TEST_MSG(seen, "%s has a case", call_format_at(i)->name);
    }
}

/* The prompt has opened the reasoning, or a request has no tools. */
static void test_modes(void) {
    static const ReasoningFormat think = {"<think>", "</think>"};
    static const struct {
        const ReasoningFormat *reasoning;
        bool reasons;
        const char *text, *events;
    } modes[] = {{&think, true, "\nhm\n</think>\n\nyes", "R(hm)C(yes)"}, {&think, true, "hm", "R(hm)"},
        {NULL, false, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
            "C(<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>)"}};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        AnswerParser parser;
        AnswerEvents events = {0};
        Buffer out = {0};
        answer_open(&parser, NULL, modes[i].reasoning, modes[i].reasons, NULL);
        for (const char *c = modes[i].text; *c; c++) answer_push(&parser, (Slice){c, 1}, &events);
        answer_finish(&parser, false, &events);
        spell(&events, &out);
        TEST_MSG(slice_is(buffer_view(&out), modes[i].events), "%s", out.data);
        buffer_free(&out);
        answer_events_free(&events);
        answer_close(&parser);
    }
}

/* Answers that a limit cuts within a call: the name where it is whole; a marker that has begun is no content behind a
 * call, nor where only calls are. */
static void test_cut(void) {
    static const struct {
        const char *format, *text;
        bool only_calls;
        const char *events;
    } cuts[] = {{"hermes", "<tool_call>\n{\"name\": \"f\", \"arg", false, "F(f)E()"},
        {"hermes", "<tool_call>\n{\"name\": \"f", false, ""}, {"hermes", "<tool_ca", false, "C(<tool_ca)"},
        {"hermes", "<tool_ca", true, ""},
        {"hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_", false, "F(f)A({})E()"},
        {"qwen3_coder", "<tool_call>\n<function=f", false, ""},
        {"qwen3_coder", "<tool_call>\n<function=f>\n", false, "F(f)E()"}};
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        AnswerParser parser;
        AnswerEvents events = {0};
        Buffer out = {0};
        answer_open(&parser, call_format_named(cuts[i].format), NULL, false, NULL);
        parser.only_calls = cuts[i].only_calls;
        answer_push(&parser, slice_of(cuts[i].text), &events);
        answer_finish(&parser, true, &events);
        spell(&events, &out);
        const bool same = out.size ? slice_is(buffer_view(&out), cuts[i].events) : !cuts[i].events[0];
        TEST_MSG(same, "%s: %s\n  gives %.*s\n  not   %s", cuts[i].format, cuts[i].text, SLICE_ARGS(buffer_view(&out)),
            cuts[i].events);
        buffer_free(&out);
        answer_events_free(&events);
        answer_close(&parser);
    }
}

/* What a model writes may hold any byte: arguments are JSON all the same. */
static void test_nul(void) {
    const Slice texts[] = {
        SLICE("[f(a='\\\0')]"), SLICE("[f(a=1e\0005)]"), SLICE("[f(a='\\x4\0')]"), SLICE("[f(a=\0)]")};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        AnswerParser parser;
        AnswerEvents events = {0};
        Buffer arguments = {0};
        Arena arena = {0};
        Error why = {0};
        answer_open(&parser, call_format_named("pythonic"), NULL, false, NULL);
        answer_push(&parser, texts[i], &events);
        answer_finish(&parser, false, &events);
        for (int k = 0; k < events.count; k++)
            if (events.list[k].kind == ANSWER_ARGUMENTS) buffer_slice(&arguments, answer_event_text(&events, k));
        TEST_MSG(json_parse(&arena, buffer_view(&arguments), &why) != NULL, "%zu: %s", i, why.text);
        arena_free(&arena);
        buffer_free(&arguments);
        answer_events_free(&events);
        answer_close(&parser);
    }
}

int main(void) {
    Arena arena = {0};
    Error error;
    const Json *tools = json_parse(&arena, slice_of(tools_json), &error);
    CHECK(tools);
    for (size_t i = 0; i < COUNT_OF(cases); i++) test_case(&cases[i], tools);
    test_formats();
    test_modes();
    test_cut();
    test_nul();
    arena_free(&arena);
    return test_done();
}
