/* Parts of parsed answers (text, reasoning, tool calls) for the writers of all APIs. */
#pragma once
#include "server/exchange.h"

enum { CALL_ID_BYTES = ANSWER_NAME_MAX + 32 };

/* A call's id: deterministic for the exchange, choice and call; in the form that the model's template wants. */
void answer_call_id(const Exchange *x, int choice, int call, Slice name, char id[CALL_ID_BYTES]);
/* Appends the joined texts of one kind as a JSON string. */
void answer_write_text(const AnswerEvents *events, AnswerEventKind kind, Buffer *out);
bool answer_has(const AnswerEvents *events, AnswerEventKind kind);
/* The index of the first call event at or after `from`; −1: none. */
int answer_next_call(const AnswerEvents *events, int from);
/* Appends the arguments of the call that begins at event `call`, as generated. */
void answer_arguments(const AnswerEvents *events, int call, Buffer *out);
/* Whether the answer ended for its tool calls to be executed. */
static inline bool answer_ends_in_calls(const Choice *choice) {
    return choice->finish == FINISH_STOP && choice->parser.calls_seen > 0;
}
