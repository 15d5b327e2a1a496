/* A request of any API as plain data. Each API adapter fills it from its own JSON; nothing here knows how that JSON
 * looks, but every part that is checked later keeps the name of the field that it came from, for errors. All that it
 * points to lies in its arena or in the request's body, except static names. */
#pragma once
#include "chat/constraint.h"
#include "chat/generation.h"
#include "chat/prompt.h"

typedef enum ToolMode {
    TOOLS_AUTO,     /* the model decides */
    TOOLS_NONE,     /* no call is made */
    TOOLS_REQUIRED, /* at least one call, and nothing else */
} ToolMode;

typedef struct ChatTool {
    Slice name;
    const Json *parameters; /* JSON schema of an object; NULL: none was sent */
    bool strict;            /* a schema that cannot be enforced is an error */
    bool callable;          /* tool_choice permits it */
    const char *field;      /* JSON path of `parameters`: "tools[0].function.parameters" */
} ChatTool;

typedef struct ToolOptions {
    ChatTool *list; /* [count]; count 0: no tools */
    size_t count;
    const Json *definitions; /* as templates read them: [{"type": "function", "function": {…}}, …]; NULL: no tools */
    ToolMode mode;
    bool single;               /* at most one call */
    bool choice_given;         /* tool_choice was sent */
    Slice name;                /* the function that must be called; data NULL: any */
    const char *name_field;    /* JSON path of `name` */
    const Slice *allowed;      /* [allowed_count] names of the functions that may be called; NULL: all */
    size_t allowed_count;      /* ≥ 1 with allowed */
    const char *allowed_field; /* JSON path of `allowed` */
} ToolOptions;

typedef struct ReasoningOptions {
    Slice effort;             /* data NULL: not given */
    const char *effort_field; /* JSON path of `effort` */
    bool thinking;
    bool thinking_given;
    const char *thinking_field; /* JSON path of `thinking` */
    bool off_unless_given;      /* without `thinking`, the API's answers have no reasoning */
    bool advisory;              /* effort and thinking are no error for models without such a setting */
    int64_t budget;             /* largest number of reasoning tokens; −1: no limit */
    const char *budget_field;   /* JSON path of `budget`; NULL: not given */
} ReasoningOptions;

/* The format that the answer's text must have. */
typedef struct ResponseFormat {
    const char *field; /* that demands it; NULL: no format is demanded */
    GrammarKind kind;
    GrammarSpace space;
    Slice source; /* text of the grammar */
} ResponseFormat;

typedef struct CacheOptions {
    const KvFormat *server_format; /* default; NULL: the model is not served */
    DType server_dtype;            /* type of full-precision pages */
    KvFormat format;
    bool format_given;
    int bits, group; /* kv_bits, kv_group_size; 0: not given */
    Slice salt, key; /* prefixes are shared only between requests with the same ones */
} CacheOptions;

/* Delivery and contents of the response. */
typedef struct ResponseOptions {
    bool stream;
    bool options_given; /* stream_options was sent */
    bool include_usage; /* a stream ends with an event about usage */
    bool progress;      /* a stream has events about the progress of the prefill */
    bool obfuscated;    /* events have padding that hides the size of their text */
    bool logprobs;
    int top_logprobs;    /* alternatives per token */
    bool plain;          /* transcriptions: the body is the text alone */
    bool hide_reasoning; /* reasoning that was not asked for, of a model that cannot do without, is left out */
    bool echo;           /* completions: the prompt precedes the answer */
    bool only_echo;      /* completions: nothing follows it, max_tokens is 0 */
    int best;            /* completions: this many answers per prompt are shown, the most probable ones; 0: all */
    Slice repeated;      /* JSON members of the request that the response repeats; data NULL: none */
} ResponseOptions;

typedef struct ChatRequest {
    Arena *arena;
    int vocab; /* ids must be below it */
    Slice model;
    const char *input_field; /* JSON path of the messages or prompts: "messages", "input", "prompt" */
    ChatPrompt chat;         /* message_count 0: a text completion */
    const Json *prompt;      /* text completions: text, [text], [id] or [[id]]; else NULL */
    Slice suffix;            /* text behind the answer; size 0: none */
    bool raw;                /* Ollama: the text of the only message is the whole prompt */
    bool keep_alive_given;
    int64_t keep_alive_ms;   /* for models_keep() */
    const char *media_hosts; /* from which images and audio may be fetched, separated by spaces; NULL: none */
    ToolOptions tools;
    ReasoningOptions reasoning;
    ResponseFormat format;
    CacheOptions cache;
    ResponseOptions response;
    /* Sampling, choices, stop strings, limits. request.max_tokens −1: not given; 0: the prompt is only echoed. Prompts,
     * cache format, salt and constraint are set on submission. */
    GenerationOptions generation;
    Slice stops[STOP_STRINGS_MAX]; /* storage of generation.stops */
    Slice prediction;              /* text that the answer may repeat in part: draft tokens; size 0: none */
    int best_of;                   /* 0: not given */
    int stop_max;                  /* stop strings that may be given */
    char *ignored;                 /* [ignored_size] receives the paths of what is ignored; NULL: they are not noted */
    size_t ignored_size;
    bool lenient;           /* fields that are not supported are ignored, not refused */
    int default_max_tokens; /* where max_tokens is not given; 0: the rest of the context */
    bool cut;               /* max_tokens is reduced to the rest of the context instead of being an error */
} ChatRequest;
