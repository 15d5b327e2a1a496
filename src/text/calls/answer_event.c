#include <stdlib.h>

#include "text/calls/answer_parts.h"

void answer_events_clear(AnswerEvents *events) {
    buffer_clear(&events->text);
    events->count = 0;
}

void answer_events_free(AnswerEvents *events) {
    buffer_free(&events->text);
    free(events->list);
    *events = (AnswerEvents){0};
}

static bool grow(AnswerEvents *events) {
    if (events->count < events->capacity) return true;
    const int capacity = events->capacity ? events->capacity * 2 : 8;
    AnswerEvent *list = realloc(events->list, (size_t)capacity * sizeof *list);
    if (!list) return false;
    events->list = list;
    events->capacity = capacity;
    return true;
}

void answer_emit(AnswerEvents *out, AnswerEventKind kind, Slice text) {
    const bool joins = kind != ANSWER_CALL && kind != ANSWER_CALL_END;
    if (out->failed || (joins && text.size == 0)) return;
    const size_t begin = out->text.size;
    buffer_slice(&out->text, text);
    out->failed = out->text.failed;
    if (joins && out->count > 0 && out->list[out->count - 1].kind == kind) {
        out->list[out->count - 1].size += text.size;
        return;
    }
    if (out->failed || !grow(out)) {
        out->failed = true;
        return;
    }
    out->list[out->count++] = (AnswerEvent){kind, begin, text.size};
}

void answer_events_append(AnswerEvents *events, const AnswerEvents *more, int index) {
    answer_emit(events, more->list[index].kind, answer_event_text(more, index));
}
