/* Shared parts of the parser's files. Internal to text/calls. Each file calls only those above it:
 *   answer_event      events
 *   answer_match      markers, strings, values
 *   answer_head       beginnings of calls
 *   answer_json       arguments in JSON
 *   answer_loose      arguments in Python's syntax or with braces
 *   answer_tags       arguments between markers
 *   answer_channels   harmony
 *   answer            the parser */
#pragma once
#include "text/calls/answer.h"

typedef enum Verdict { VERDICT_NO, VERDICT_YES, VERDICT_MORE /* text decides that */ } Verdict;

void answer_emit(AnswerEvents *out, AnswerEventKind kind, Slice text);

static inline bool answer_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
static inline Slice answer_from(Slice text, size_t at) { return (Slice){text.data + at, text.size - at}; }
size_t answer_skip_blank(Slice text, size_t at);
size_t answer_trimmed(Slice text); /* its size without blanks at its end */
/* Whether the text begins with the marker, in the table's spelling. MORE: so far it does. */
Verdict answer_match(Slice text, const char *marker);
/* Index of the first occurrence of the marker; *found false: index of a prefix of it at the end of text. */
size_t answer_find(Slice text, const char *marker, bool *found);
/* Size of a JSON string that begins at its opening quote; size of any JSON value. 0: incomplete. */
size_t answer_string_size(Slice text);
size_t answer_value_size(Slice text);
/* A string's text as JSON, without its quotes, byte by byte. */
void answer_escape(Slice text, Buffer *out);

typedef struct CallHead {
    Slice name;
    size_t size;     /* up to the arguments */
    Slice arguments; /* that came before the name; then size is that of the whole call. data NULL: they follow */
} CallHead;

/* text: from a call's first byte. bare: no marker came before it. */
Verdict answer_head(const CallFormat *calls, Slice text, bool bare, CallHead *head);

/* Each continues a call's arguments; *used: bytes consumed. last: the answer has ended. True: the arguments are
 * complete.
 */
bool answer_json(AnswerValue *value, Slice text, bool last, AnswerEvents *out, size_t *used);
bool answer_json_rest(AnswerValue *value, Slice text, size_t *used); /* rest of the enclosing object */
bool answer_loose(AnswerValue *value, const CallFormat *calls, Slice text, bool last, AnswerEvents *out, size_t *used);
void answer_loose_begin(AnswerValue *value, const CallFormat *calls, AnswerEvents *out);
bool answer_tags(AnswerParser *p, Slice text, AnswerEvents *out, size_t *used);

/* Harmony format: the header state and the message state. True if input was consumed. */
bool answer_channels(AnswerParser *p, Slice text, AnswerEvents *out);
