/* What all doors need to show an answer that was taken apart. */
#pragma once
#include "server/exchange.h"

enum { CALL_ID_BYTES = ANSWER_NAME_MAX + 32 };

/* The same for the same call whenever it is asked for; as the model's template wants ids to be. */
void answer_call_id(const Exchange *x, int choice, int call, Slice name, char id[CALL_ID_BYTES]);
/* The joined texts of one kind, as a JSON string. */
void answer_write_text(const AnswerEvents *events, AnswerEventKind kind, Buffer *out);
bool answer_has(const AnswerEvents *events, AnswerEventKind kind);
/* A call: the event at which it begins, or −1: there are no more behind `from`. */
int answer_next_call(const AnswerEvents *events, int from);
/* The arguments of the call that begins at an event, as they came. */
void answer_arguments(const AnswerEvents *events, int call, Buffer *out);
/* It ended to have its calls answered. */
static inline bool answer_ends_in_calls(const Choice *choice) {
    return choice->finish == FINISH_STOP && choice->parser.calls_seen > 0;
}
