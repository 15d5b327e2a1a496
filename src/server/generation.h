/* One API request on the engine: its prompts × choices, each with its own detokeniser and stop strings. Turns tokens
 * into events: what a client may see now. Streaming and whole answers are built from the same events. Thread: the
 * connection's. */
#pragma once
#include "engine/engine.h"
#include "server/params.h"
#include "text/stream/stream_text.h"
#include "text/tokenizer/tokenizer.h"

typedef struct Choice {
    Request *request;
    int request_choice; /* its number inside the request */
    int index;          /* as the client counts */
    char index_text[12];
    Detokenizer *detokenizer;
    StreamText stream;
    Buffer pending;   /* text that the client has not been given */
    TokenOut *tokens; /* tokens whose logprobs the client has not been given; only when asked for */
    int token_count, token_capacity;
    int64_t generated; /* tokens so far */
    Finish finish;     /* FINISH_NONE while it runs */
    bool finish_sent;
    int64_t text_offset; /* characters given so far (completions' logprobs) */
    bool echoed;         /* the prompt was given back (completions) */
} Choice;

typedef struct Generation {
    Engine *engine;
    const Tokenizer *tokenizer;
    int request_count;
    Request **requests;
    int64_t prompt_tokens;
    int choice_count;
    Choice *choices;
    bool logprobs;
    int ended;    /* choices with a finish */
    int next;     /* round robin over requests while waiting */
    Buffer piece; /* a token's text, while it is taken in */
} Generation;

/* Submits prompts (arrays of ids) as requests of `choices` each; on failure nothing stays behind. */
NODISCARD bool generation_open(Generation *g, Engine *engine, const Tokenizer *tokenizer, const ApiRequest *params,
    const Tokens *prompts, int prompt_count, ApiError *error);
/* Takes in what is new. False: a fault ended it (error says which). */
NODISCARD bool generation_take(Generation *g, ApiError *error);
/* The same after waiting up to timeout_ms for something new. */
NODISCARD bool generation_pump(Generation *g, int timeout_ms, ApiError *error);
bool generation_done(const Generation *g);
void generation_close(Generation *g); /* cancels what still runs; safe on a zeroed struct */
int64_t generation_completion_tokens(const Generation *g);
const char *finish_name(Finish finish); /* "stop", "length" */

/* Shapes shared by both endpoints. */
void write_usage(Buffer *out, const Generation *g);
/* {"content":[…],"refusal":null} of the choice's pending tokens, which are taken. */
void write_chat_logprobs(Buffer *out, Generation *g, Choice *choice);
/* A token's bytes as a JSON string (invalid UTF-8 becomes U+FFFD). */
void write_token_text(Buffer *out, const Tokenizer *tokenizer, int32_t id);
