/* Incremental parser of answers: reasoning, content, tool calls. Its events depend on the bytes alone, not on how they
 * are split. A call that does not begin as its format demands is content, unchanged; once its name is known it is a
 * call, and its arguments are emitted as JSON, as far as the model wrote JSON. White space around reasoning and calls
 * is dropped. Thread: one at a time. */
#pragma once
#include "base/buffer.h"
#include "base/json.h"
#include "text/calls/call_format.h"

enum { ANSWER_NAME_MAX = 256 };

typedef enum AnswerEventKind {
    ANSWER_CONTENT,
    ANSWER_REASONING,
    ANSWER_CALL,      /* begins: the text is its name */
    ANSWER_ARGUMENTS, /* arguments of the current call */
    ANSWER_CALL_END,
} AnswerEventKind;

typedef struct AnswerEvent {
    AnswerEventKind kind;
    size_t begin, size; /* range within the events' text */
} AnswerEvent;

/* Texts of one kind that follow each other are one event. */
typedef struct AnswerEvents {
    Buffer text;
    AnswerEvent *list;
    int count, capacity;
    bool failed; /* memory */
} AnswerEvents;

void answer_events_clear(AnswerEvents *events);
void answer_events_append(AnswerEvents *events, const AnswerEvents *more, int index); /* event `index` of more */
void answer_events_free(AnswerEvents *events);
static inline Slice answer_event_text(const AnswerEvents *events, int i) {
    return (Slice){events->text.data + events->list[i].begin, events->list[i].size};
}

typedef enum AnswerState {
    ANSWER_AT_START,
    ANSWER_IN_REASONING,
    ANSWER_IN_CONTENT,
    ANSWER_AMONG_CALLS, /* after `open`, or after a call */
    ANSWER_IN_ARGUMENTS,
    ANSWER_BEHIND_ARGUMENTS, /* further members of the call's object */
    ANSWER_IN_HEADER,        /* harmony */
    ANSWER_IN_MESSAGE,
} AnswerState;

/* Progress within a value: JSON, or text that becomes JSON. */
typedef struct AnswerValue {
    bool begun, in_string, escaped;
    int depth;
    int item; /* loose values: the last item written, LooseItem */
    bool comma;
    char quote;     /* 0: the format's */
    Buffer closers; /* brackets that a loose value still needs, the next one last */
    Buffer word;
    int keys; /* number of tagged arguments */
} AnswerValue;

typedef struct AnswerParser {
    const CallFormat *calls; /* NULL: calls are content */
    const ReasoningFormat *reasoning;
    const Json *tools; /* [{"function": {"name", "parameters"}}, …], for formats that do not show types; may be NULL */
    AnswerState state;
    Buffer held;
    size_t at;       /* position in `held`: the text before it is processed */
    size_t looked;   /* beyond `at`: read, but not decided */
    size_t opened;   /* size of `open` with the white space in front of it */
    size_t retry;    /* size of what is held at which a long head is read again */
    bool fresh;      /* no content yet */
    bool trim;       /* white space that comes next is dropped */
    bool last;       /* the answer has ended */
    bool cut;        /* with `last`: the answer was cut by a limit, so that the beginning of a call is no text */
    bool only_calls; /* calls are demanded: text outside of calls and reasoning is dropped */
    bool formatted;  /* an answer that does not begin with a call has a format, and no calls: it may contain markers */
    int calls_seen;
    bool unannounced;        /* the call that began last; more such may follow */
    AnswerEventKind message; /* harmony: kind of the message */
    char name[ANSWER_NAME_MAX + 1];
    AnswerValue value;
} AnswerParser;

/* calls and reasoning: nullable. reasons: the prompt ends within open reasoning. tools: borrowed, outlives the parser.
 */
void answer_open(
    AnswerParser *parser, const CallFormat *calls, const ReasoningFormat *reasoning, bool reasons, const Json *tools);
void answer_close(AnswerParser *parser); /* safe on a zeroed one */
/* Appends the decided events. Out of memory is the events' failure. */
void answer_push(AnswerParser *parser, Slice text, AnswerEvents *out);
/* Whether the following text is, as far as is known, reasoning. */
static inline bool answer_reasons(const AnswerParser *p) {
    return p->state == ANSWER_IN_REASONING || (p->state == ANSWER_IN_MESSAGE && p->message == ANSWER_REASONING);
}
/* Appends the rest; a call that was cut ends here. cut: a limit has ended the answer. */
void answer_finish(AnswerParser *parser, bool cut, AnswerEvents *out);
