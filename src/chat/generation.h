/* Answers as text: prompts × choices on the engine, each choice with its own detokenizer and stop strings. A possible
 * beginning of a stop string and an incomplete character are held back. Threads: one reader. */
#pragma once
#include "chat/chat_model.h"
#include "text/calls/answer.h"
#include "text/stream/stream_text.h"

enum { CALLS_MAX = 32 }; /* tool calls per answer; it ends after the last one */

typedef struct GenerationOptions {
    /* One per prompt, with its prompt and prompt_count set by generation_open. With sampling.logprobs ≥ 0, tokens are
     * kept for the reader. */
    RequestOptions request;
    const Tokens *prompts; /* copied; each has at least one token */
    int prompt_count;
    const Slice *stops;      /* copied */
    int stop_count;          /* ≤ STOP_STRINGS_MAX */
    bool parsed;             /* answers become events (reasoning, content, tool calls) instead of text */
    const CallFormat *calls; /* as in answer_open() */
    const Json *tools;       /* as in answer_open(); borrowed until generation_close */
    bool only_calls;         /* calls are demanded: there is no content */
    bool formatted;          /* an answer without calls has a format */
} GenerationOptions;

typedef struct Choice {
    Request *request;
    int request_choice; /* index in the request */
    int prompt;         /* index of the prompt */
    Detokenizer *detokenizer;
    StreamText stream;
    Buffer text; /* not taken by the reader yet; buffer_clear takes it */
    AnswerParser parser;
    AnswerEvents events; /* with `parsed`, instead of text; answer_events_clear takes them */
    TokenOut *tokens;    /* with logprobs: not taken by the reader yet; token_count = 0 takes them */
    int token_count, token_capacity;
    int64_t generated; /* tokens so far */
    int64_t reasoned;  /* tokens within reasoning so far */
    Finish finish;     /* FINISH_NONE while it runs; never FINISH_ERROR */
} Choice;

typedef struct Generation {
    const ChatModel *model;
    int request_count, choice_count;
    Request **requests;
    char *stops;     /* bytes of all stop strings */
    Choice *choices; /* [choice_count], ordered by prompt */
    int64_t prompt_tokens;
    bool logprobs, parsed, cancelled;
    int ended;      /* choices with a finish */
    uint64_t round; /* last round of the engine that was read */
    Buffer piece;   /* text of the token being read */
} Generation;

/* Submits the requests; on failure none is left. Errors are those of engine_submit. */
NODISCARD bool generation_open(Generation *g, const ChatModel *model, const GenerationOptions *options, Error *error);
/* Cancels running requests and frees everything; safe on a zeroed struct. */
void generation_close(Generation *g);

/* Reads new tokens. False: the whole generation failed, such as ERROR_MEMORY or ERROR_CANCELLED when the model is being
 * closed. */
NODISCARD bool generation_take(Generation *g, Error *error);
/* The same, after waiting up to timeout_ms for new tokens. */
NODISCARD bool generation_pump(Generation *g, int timeout_ms, Error *error);
/* Running choices end with FINISH_CANCELLED soon. */
void generation_cancel(Generation *g);

static inline bool generation_done(const Generation *g) { return g->ended == g->choice_count; }
/* Whether any of its requests has left the queue. */
bool generation_admitted(const Generation *g);
int64_t generation_answer_tokens(const Generation *g);
int64_t generation_reasoning_tokens(const Generation *g);
DraftStats generation_drafts(const Generation *g, DraftSource source);
int64_t generation_cached_tokens(const Generation *g); /* prompt tokens from the prefix cache */
