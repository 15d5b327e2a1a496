/* Answers as pieces of text: prompts × choices on the engine, each choice with its own detokenizer and stop strings.
 * What could be the beginning of a stop string, or is part of a character, is held back. Streams, whole answers, text
 * completions and the terminal all read this. Threads: one reader. */
#pragma once
#include "chat/chat_model.h"
#include "text/calls/answer.h"
#include "text/stream/stream_text.h"

enum { CALLS_MAX = 32 }; /* of tools, in one answer: it ends behind the last */

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
} GenerationOptions;

typedef struct Choice {
    Request *request;
    int request_choice; /* its number inside the request */
    int prompt;         /* whose answer it is */
    Detokenizer *detokenizer;
    StreamText stream;
    Buffer text; /* that the reader has not taken: buffer_clear takes it */
    AnswerParser parser;
    AnswerEvents events; /* instead of text; taken by answer_events_clear */
    TokenOut *tokens;    /* that the reader has not taken; only with logprobs. Taken by token_count = 0 */
    int token_count, token_capacity;
    int64_t generated; /* tokens so far, */
    int64_t reasoned;  /* and of these within reasoning */
    Finish finish;     /* FINISH_NONE while it runs; never FINISH_ERROR */
} Choice;

typedef struct Generation {
    const ChatModel *model;
    int request_count, choice_count;
    Request **requests;
    char *stops;     /* the bytes of all stop strings */
    Choice *choices; /* of the first prompt, then of the second, … */
    int64_t prompt_tokens;
    bool logprobs, parsed, cancelled;
    int ended;      /* choices with a finish */
    uint64_t round; /* of the engine, whose outcome was taken in */
    Buffer piece;   /* a token's text, while it is taken in */
} Generation;

/* Submits; on failure nothing stays behind. Errors are those of engine_submit. */
NODISCARD bool generation_open(Generation *g, const ChatModel *model, const GenerationOptions *options, Error *error);
/* Cancels what still runs; safe on a zeroed struct. */
void generation_close(Generation *g);

/* Takes in what is new. False: a fault ended all of it, as when memory ends (ERROR_MEMORY) or the model is being closed
 * (ERROR_CANCELLED). */
NODISCARD bool generation_take(Generation *g, Error *error);
/* The same after waiting up to timeout_ms for something new. */
NODISCARD bool generation_pump(Generation *g, int timeout_ms, Error *error);
/* Choices that run end with FINISH_CANCELLED in a moment. */
void generation_cancel(Generation *g);

static inline bool generation_done(const Generation *g) { return g->ended == g->choice_count; }
/* Whether the computation of any of it has begun. */
bool generation_admitted(const Generation *g);
int64_t generation_answer_tokens(const Generation *g);
int64_t generation_reasoning_tokens(const Generation *g);
int64_t generation_cached_tokens(const Generation *g); /* of the prompts */
