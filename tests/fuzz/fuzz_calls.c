/* An answer in a format of tool calls: the first byte is the format, the second says how the rest is cut. Whole and cut
 * give the same events; without a format, all of it is content; whatever is a call has a name. */
#include <stdint.h>
#include <stdlib.h>

#include "text/calls/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools_json[] =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"n\":{\"type\":[\"integer\",\"null\"]}}}}}]";

static void take_apart(const CallFormat *calls, const Json *tools, Slice text, size_t step, AnswerEvents *events) {
    static const ReasoningFormat think = {"<think>", "</think>"};
    AnswerParser parser;
    answer_open(&parser, calls, &think, false, tools);
    for (size_t at = 0; at < text.size; at += step)
        answer_push(&parser, (Slice){text.data + at, step < text.size - at ? step : text.size - at}, events);
    answer_finish(&parser, false, events);
    answer_close(&parser);
}

static void check_order(const AnswerEvents *events) {
    bool open = false;
    for (int i = 0; i < events->count; i++) {
        const AnswerEvent *event = &events->list[i];
        CHECK(event->kind == ANSWER_ARGUMENTS || event->kind == ANSWER_CALL_END ? open : !open);
        if (event->kind == ANSWER_CALL) CHECK(event->size > 0 && event->size <= ANSWER_NAME_MAX);
        open = event->kind == ANSWER_CALL || (open && event->kind != ANSWER_CALL_END);
    }
    CHECK(!open);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    int formats = 0;
    while (call_format_at(formats)) formats++;
    Arena arena = {0};
    Error error;
    const Json *tools = json_parse(&arena, (Slice){tools_json, sizeof tools_json - 1}, &error);
    const CallFormat *calls = call_format_at(data[0] % (formats + 1));
    const Slice text = {(const char *)data + 2, size - 2};
    AnswerEvents whole = {0}, cut = {0};
    take_apart(calls, tools, text, size, &whole);
    take_apart(calls, tools, text, 1 + data[1] % 32, &cut);
    CHECK(!whole.failed && !cut.failed);
    check_order(&whole);
    CHECK(whole.count == cut.count && slice_equal(buffer_view(&whole.text), buffer_view(&cut.text)));
    for (int i = 0; i < whole.count; i++)
        CHECK(whole.list[i].kind == cut.list[i].kind && whole.list[i].size == cut.list[i].size);
    answer_events_free(&whole);
    answer_events_free(&cut);
    arena_free(&arena);
    return 0;
}
