/* text/calls/: formats of reasoning and tool calls.
 *
 * A model's chat template shows the format in which the model was trained to call tools. A format is a row of a table,
 * from which calls are parsed (answer.h) and their grammars are written (call_grammar.h). The folder knows these
 * formats and no client protocol. Sources: the chat templates of the models; the parsers of mlx-lm (tool_parsers/),
 * vLLM (tool_parsers/) and llama.cpp (common/chat.cpp). Thread: any; all is constant. */
#pragma once
#include "base/slice.h"

typedef enum CallSyntax {
    CALL_JSON,     /* {"name": "f", "arguments": {…}} */
    CALL_NAMED,    /* the name between two markers, then {…} */
    CALL_TAGGED,   /* the name, then each argument between markers, plain where it is a string */
    CALL_PYTHON,   /* f(a=1, b="x") */
    CALL_BRACES,   /* f{a:1,b:QUOTExQUOTE} */
    CALL_CHANNELS, /* harmony: messages with headers, of which some are calls and some are reasoning */
} CallSyntax;

/* What templates want of the ids of calls. */
typedef enum CallIds {
    CALL_ID_ANY,
    CALL_ID_NINE /* letters and digits */,
    CALL_ID_INDEXED /* functions.NAME:INDEX */
} CallIds;

/* An answer with calls: [open [list_open] head NAME neck ARGUMENTS foot {next head …} [list_close] close]. Without
 * `section` each call has open and close of its own. Reading, white space around markers is free. */
typedef struct CallFormat {
    const char *name;
    CallSyntax syntax;
    const char *signs[2];     /* texts that are all in the chat templates of this format; NULL: none */
    const char *open, *close; /* close NULL: calls end with the answer */
    const char *list_open, *list_close;
    bool section;                   /* several calls within */
    bool bare, forgetful;           /* an answer may begin with a call without `open`: as it should, or by mistake */
    const char *head, *neck, *foot; /* NULL: "" */
    const char *next;               /* between calls of a section, or between sections */
    const char *name_tail;          /* beginning of the text between the name and neck */
    const char *key_begin, *key_end, *value_begin, *value_end; /* TAGGED */
    bool typed;        /* a key is followed by string="true" or string="false" */
    const char *quote; /* BRACES */
    const char *plain; /* in front of an answer without calls */
    CallIds ids;
} CallFormat;

typedef struct ReasoningFormat {
    const char *open, *close;
} ReasoningFormat;

/* The format that the text of a chat template uses; NULL: none recognised. */
const CallFormat *call_format_of(Slice template_text);
const ReasoningFormat *reasoning_format_of(Slice template_text);
const CallFormat *call_format_named(const char *name); /* NULL: there is none */
const CallFormat *call_format_at(int index);           /* NULL: past the last */
/* State of reasoning at the end of a prompt. */
typedef enum PromptReasoning {
    PROMPT_REASONING_NONE,
    PROMPT_REASONING_OPEN,   /* the answer begins with reasoning */
    PROMPT_REASONING_CLOSED, /* reasoning has been, and is over */
} PromptReasoning;
PromptReasoning reasoning_at_end(const ReasoningFormat *format, Slice prompt); /* format NULL: NONE */
/* A text without the white space in front of it. */
Slice call_marker_begin(Slice text);
/* A marker without the white space around it. */
Slice call_marker(const char *text);
/* The text is part of a marker: it must be seen even when the token is a special one. */
bool call_format_uses(const CallFormat *calls, const ReasoningFormat *reasoning, Slice token);
