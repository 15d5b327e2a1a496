/* server/api/: the APIs. An adapter per API reads requests (*_request.c) and writes responses and events.
 *
 * An endpoint that generates: what differs between the APIs. */
#pragma once
#include "server/exchange.h"

typedef struct Endpoint {
    const char *id_prefix;
    const char *event_object; /* the "object" of a stream's events */
    const char *media;        /* of streams; NULL: server-sent events */
    const char *done;         /* what ends a stream */
    const char *heartbeat;    /* while there is nothing to say; NULL: nothing */
    void (*write_error)(const Exchange *x, const ApiError *error, Buffer *out); /* a body; NULL: OpenAI's */
    void (*write_failure)(Exchange *x, const ApiError *error, Buffer *out);     /* an event; NULL: OpenAI's */
    bool (*read)(ChatRequest *request, const Json *body, ApiError *error);
    bool (*make_prompts)(Exchange *x, const ChatRequest *request, ApiError *error);
    /* Events of a stream. The opening one of a choice; may be NULL. */
    void (*write_start)(Exchange *x, int choice, Buffer *out);
    void (*write_delta)(Exchange *x, int choice, Buffer *out); /* takes the choice's text and tokens */
    void (*write_finish)(Exchange *x, int choice, Buffer *out);
    void (*write_usage)(Exchange *x, Buffer *out); /* the last events, when asked for */
    /* The whole answer. */
    void (*write_whole)(Exchange *x, Buffer *out);
} Endpoint;

/* Before a text of so many bytes is made tokens: false when that could only show that the context is too short. */
NODISCARD bool completion_fits(const ChatModel *model, size_t bytes, const char *field, ApiError *error);
/* Whether the model has every token of the prompt: a tokenizer may have more than it. */
NODISCARD bool completion_knows(const ChatModel *model, const Tokens *prompt, const char *field, ApiError *error);
/* The prompt of a request that is a chat. */
bool chat_make_prompts(Exchange *x, const ChatRequest *request, ApiError *error);

extern const Endpoint endpoint_chat, endpoint_text, endpoint_messages, endpoint_responses, endpoint_ollama_chat,
    endpoint_ollama_generate;
