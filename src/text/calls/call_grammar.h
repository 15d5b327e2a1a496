/* Grammars of tool calls in a format's own syntax, with valid names and arguments only. */
#pragma once
#include "base/buffer.h"
#include "base/json.h"
#include "text/calls/call_format.h"

/* How much of a tool's schema the grammar keeps. */
typedef enum CallKeeps {
    CALL_KEEPS_ALL,
    CALL_KEEPS_PART,    /* all keywords that grammars support */
    CALL_KEEPS_NOTHING, /* any object will do */
} CallKeeps;

typedef struct CallTool {
    Slice name;
    const Json *parameters; /* a schema of an object; NULL: no arguments */
    CallKeeps keeps;
} CallTool;

typedef struct CallRules {
    const CallFormat *format;
    const CallTool *tools;
    int count;
    bool single;     /* at most one call */
    bool announced;  /* calls begin with `open`, also in formats that can do without */
    bool bare;       /* calls begin without `open`, for models that omit it */
    bool followed;   /* text after a section, another section included, is unconstrained */
    Slice otherwise; /* a JSON schema: alternative to calls; data NULL: none */
} CallRules;

/* Appends rules in Lark's spelling of one call or more. Of announced and bare at least one is set. */
void call_grammar_write(const CallRules *rules, Buffer *out);
/* How calls begin when they are demanded. */
static inline bool call_format_announces(const CallFormat *format) { return !format->bare; }
