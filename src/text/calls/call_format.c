#include "text/calls/call_format.h"

#define BEGINS "<\xEF\xBD\x9Ctool\xE2\x96\x81"
#define ENDS "\xEF\xBD\x9C>"
#define DSML                                                                                                           \
    "\xEF\xBD\x9C"                                                                                                     \
    "DSML\xEF\xBD\x9C"

/* Formats with more specific markers come first. */
static const CallFormat formats[] = {
    {.name = "minimax",
        .syntax = CALL_TAGGED,
        .signs = {"<minimax:tool_call>"},
        .open = "<minimax:tool_call>\n",
        .close = "</minimax:tool_call>",
        .section = true,
        .head = "<invoke name=\"",
        .neck = "\">\n",
        .key_begin = "<parameter name=\"",
        .key_end = "\"",
        .value_begin = ">",
        .value_end = "</parameter>\n",
        .foot = "</invoke>\n"},
    {.name = "gemma4",
        .syntax = CALL_BRACES,
        .signs = {"<|tool_call>call:"},
        .open = "<|tool_call>",
        .close = "<tool_call|>",
        .head = "call:",
        .neck = "{",
        .foot = "}",
        .quote = "<|\"|>"},
    {.name = "function_gemma",
        .syntax = CALL_BRACES,
        .signs = {"<start_function_call>"},
        .open = "<start_function_call>",
        .close = "<end_function_call>",
        .head = "call:",
        .neck = "{",
        .foot = "}",
        .quote = "<escape>"},
    {.name = "longcat",
        .syntax = CALL_TAGGED,
        .signs = {"<longcat_tool_call>"},
        .open = "<longcat_tool_call>",
        .close = "</longcat_tool_call>",
        .neck = "\n",
        .next = "\n",
        .key_begin = "<longcat_arg_key>",
        .key_end = "</longcat_arg_key>\n",
        .value_begin = "<longcat_arg_value>",
        .value_end = "</longcat_arg_value>\n"},
    {.name = "dsml",
        .syntax = CALL_TAGGED,
        .signs = {DSML},
        .open = "<" DSML "function_calls>\n",
        .close = "</" DSML "function_calls>",
        .section = true,
        .head = "<" DSML "invoke name=\"",
        .neck = "\">\n",
        .key_begin = "<" DSML "parameter name=\"",
        .key_end = "\"",
        .value_begin = ">",
        .value_end = "</" DSML "parameter>\n",
        .typed = true,
        .foot = "</" DSML "invoke>\n"},
    {.name = "glm",
        .syntax = CALL_TAGGED,
        .signs = {"<arg_key>"},
        .open = "<tool_call>",
        .close = "</tool_call>",
        .neck = "\n",
        .next = "\n",
        .key_begin = "<arg_key>",
        .key_end = "</arg_key>\n",
        .value_begin = "<arg_value>",
        .value_end = "</arg_value>\n"},
    {.name = "seed",
        .syntax = CALL_TAGGED,
        .signs = {"seed:tool_call>"},
        .open = "<seed:tool_call>\n",
        .close = "\n</seed:tool_call>",
        .section = true,
        .head = "<function=",
        .neck = ">\n",
        .next = "\n",
        .key_begin = "<parameter=",
        .key_end = ">",
        .value_end = "</parameter>\n",
        .foot = "</function>"},
    {.name = "qwen3_coder",
        .syntax = CALL_TAGGED,
        .signs = {"<tool_call>", "<parameter="},
        .open = "<tool_call>\n",
        .close = "\n</tool_call>",
        .head = "<function=",
        .neck = ">\n",
        .next = "\n",
        .key_begin = "<parameter=",
        .key_end = ">\n",
        .value_end = "\n</parameter>\n",
        .foot = "</function>"},
    {.name = "kimi",
        .syntax = CALL_NAMED,
        .signs = {"<|tool_calls_section_begin|>"},
        .open = "<|tool_calls_section_begin|>",
        .close = "<|tool_calls_section_end|>",
        .section = true,
        .head = "<|tool_call_begin|>functions.",
        .name_tail = ":",
        .neck = "<|tool_call_argument_begin|>",
        .foot = "<|tool_call_end|>",
        .ids = CALL_ID_INDEXED},
    {.name = "deepseek_v3",
        .syntax = CALL_NAMED,
        .signs = {BEGINS "calls\xE2\x96\x81"
                         "begin" ENDS,
            "```json"},
        .open = BEGINS "calls\xE2\x96\x81"
                       "begin" ENDS,
        .close = BEGINS "calls\xE2\x96\x81"
                        "end" ENDS,
        .section = true,
        .head = BEGINS "call\xE2\x96\x81"
                       "begin" ENDS "function" BEGINS "sep" ENDS,
        .neck = "\n```json\n",
        .foot = "\n```" BEGINS "call\xE2\x96\x81"
                "end" ENDS,
        .next = "\n"},
    {.name = "deepseek_v31",
        .syntax = CALL_NAMED,
        .signs = {BEGINS "calls\xE2\x96\x81"
                         "begin" ENDS},
        .open = BEGINS "calls\xE2\x96\x81"
                       "begin" ENDS,
        .close = BEGINS "calls\xE2\x96\x81"
                        "end" ENDS,
        .section = true,
        .head = BEGINS "call\xE2\x96\x81"
                       "begin" ENDS,
        .neck = BEGINS "sep" ENDS,
        .foot = BEGINS "call\xE2\x96\x81"
                       "end" ENDS},
    {.name = "mistral_args",
        .syntax = CALL_NAMED,
        .signs = {"[TOOL_CALLS]", "[ARGS]"},
        .open = "[TOOL_CALLS]",
        .name_tail = "[CALL_ID]",
        .neck = "[ARGS]",
        .ids = CALL_ID_NINE},
    {.name = "mistral",
        .syntax = CALL_JSON,
        .signs = {"[TOOL_CALLS]"},
        .open = "[TOOL_CALLS]",
        .list_open = "[",
        .list_close = "]",
        .section = true,
        .head = "{\"name\": \"",
        .neck = "\", \"arguments\": ",
        .foot = "}",
        .next = ", ",
        .ids = CALL_ID_NINE},
    {.name = "harmony",
        .syntax = CALL_CHANNELS,
        .signs = {"<|channel|>"},
        .open = "<|channel|>commentary to=functions.",
        .neck = " <|constrain|>json<|message|>",
        .close = "<|call|>",
        .quote = "<|start|><|end|><|return|>"},
    {.name = "lfm2",
        .syntax = CALL_PYTHON,
        .signs = {"<|tool_call_start|>"},
        .open = "<|tool_call_start|>",
        .close = "<|tool_call_end|>",
        .list_open = "[",
        .list_close = "]",
        .section = true,
        .neck = "(",
        .foot = ")",
        .next = ", "},
    {.name = "olmo3",
        .syntax = CALL_PYTHON,
        .signs = {"<function_calls>"},
        .open = "<function_calls>",
        .close = "</function_calls>",
        .section = true,
        .neck = "(",
        .foot = ")",
        .next = "\n"},
    {.name = "granite",
        .syntax = CALL_JSON,
        .signs = {"<|tool_call|>"},
        .open = "<|tool_call|>",
        .list_open = "[",
        .list_close = "]",
        .section = true,
        .head = "{\"name\": \"",
        .neck = "\", \"arguments\": ",
        .foot = "}",
        .next = ", "},
    {.name = "command_r7b",
        .syntax = CALL_JSON,
        .signs = {"<|START_ACTION|>"},
        .open = "<|START_ACTION|>",
        .close = "<|END_ACTION|>",
        .list_open = "[\n    ",
        .list_close = "\n]",
        .section = true,
        .head = "{\"tool_call_id\": \"0\", \"tool_name\": \"",
        .neck = "\", \"parameters\": ",
        .foot = "}",
        .next = ",\n    ",
        .plain = "<|START_RESPONSE|>"},
    {.name = "nemotron",
        .syntax = CALL_JSON,
        .signs = {"<TOOLCALL>"},
        .open = "<TOOLCALL>",
        .close = "</TOOLCALL>",
        .list_open = "[",
        .list_close = "]",
        .section = true,
        .head = "{\"name\": \"",
        .neck = "\", \"arguments\": ",
        .foot = "}",
        .next = ", "},
    {.name = "functionary",
        .syntax = CALL_NAMED,
        .signs = {">>>all"},
        .open = ">>>",
        .neck = "\n",
        .plain = ">>>all\n"},
    {.name = "pythonic",
        .syntax = CALL_PYTHON,
        .signs = {"func_name1(params_name1="},
        .open = "<|python_start|>",
        .close = "<|python_end|>",
        .list_open = "[",
        .list_close = "]",
        .section = true,
        .bare = true,
        .neck = "(",
        .foot = ")",
        .next = ", "},
    {.name = "llama3",
        .syntax = CALL_JSON,
        .signs = {"{\"name\": function name, \"parameters\""},
        .open = "<|python_tag|>",
        .section = true,
        .bare = true,
        .head = "{\"name\": \"",
        .neck = "\", \"parameters\": ",
        .foot = "}",
        .next = "; "},
    {.name = "hermes",
        .syntax = CALL_JSON,
        .signs = {"<tool_call>"},
        .forgetful = true, /* small ones */
        .open = "<tool_call>\n",
        .close = "\n</tool_call>",
        .head = "{\"name\": \"",
        .neck = "\", \"arguments\": ",
        .foot = "}",
        .next = "\n"},
};

static const ReasoningFormat reasoning_formats[] = {
    {"<seed:think>", "</seed:think>"},
    {"<|START_THINKING|>", "<|END_THINKING|>"},
    {"<|channel>thought", "<channel|>"},
    {"[THINK]", "[/THINK]"},
    {"<think>", "</think>"},
    {"<thinking>", "</thinking>"},
};

static bool has(Slice text, const char *part) {
    return !part || (text.size > 0 && memmem(text.data, text.size, part, strlen(part)));
}

const CallFormat *call_format_of(Slice text) {
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if (has(text, formats[i].signs[0]) && has(text, formats[i].signs[1])) return &formats[i];
    return NULL;
}

const ReasoningFormat *reasoning_format_of(Slice text) {
    for (size_t i = 0; i < COUNT_OF(reasoning_formats); i++)
        if (has(text, reasoning_formats[i].open)) return &reasoning_formats[i];
    return NULL;
}

const CallFormat *call_format_at(int index) {
    return index >= 0 && (size_t)index < COUNT_OF(formats) ? &formats[index] : NULL;
}

const CallFormat *call_format_named(const char *name) {
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if (!strcmp(formats[i].name, name)) return &formats[i];
    return NULL;
}

static bool blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

Slice call_marker_begin(Slice text) {
    while (text.size > 0 && blank(text.data[0])) text.data++, text.size--;
    return text;
}

Slice call_marker(const char *text) {
    Slice marker = call_marker_begin(slice_of(text ? text : ""));
    while (marker.size > 0 && blank(marker.data[marker.size - 1])) marker.size--;
    return marker;
}

static bool ends_with(Slice text, Slice end) {
    return text.size >= end.size && !memcmp(text.data + text.size - end.size, end.data, end.size);
}

PromptReasoning reasoning_at_end(const ReasoningFormat *format, Slice prompt) {
    if (!format) return PROMPT_REASONING_NONE;
    while (prompt.size > 0 && blank(prompt.data[prompt.size - 1])) prompt.size--;
    if (ends_with(prompt, slice_of(format->open))) return PROMPT_REASONING_OPEN;
    return ends_with(prompt, slice_of(format->close)) ? PROMPT_REASONING_CLOSED : PROMPT_REASONING_NONE;
}

bool call_format_uses(const CallFormat *calls, const ReasoningFormat *reasoning, Slice token) {
    if (token.size == 0) return false;
    const char *texts[] = {calls ? calls->open : NULL, calls ? calls->close : NULL, calls ? calls->head : NULL,
        calls ? calls->neck : NULL, calls ? calls->foot : NULL, calls ? calls->name_tail : NULL,
        calls ? calls->key_begin : NULL, calls ? calls->key_end : NULL, calls ? calls->value_begin : NULL,
        calls ? calls->value_end : NULL, calls ? calls->quote : NULL, calls ? calls->plain : NULL,
        reasoning ? reasoning->open : NULL, reasoning ? reasoning->close : NULL};
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (texts[i] && memmem(texts[i], strlen(texts[i]), token.data, token.size)) return true;
    return false;
}
