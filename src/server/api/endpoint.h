/* server/api/: the APIs. An adapter per API reads requests (*_request.c) and writes responses and events.
 *
 * An endpoint that generates text: the functions that differ between the APIs. Writers append to `out`; memory that
 * ends is noted there. */
#pragma once
#include "server/exchange.h"

typedef struct Endpoint {
    const char *id_prefix;
    const char *event_object; /* "object" of stream events; NULL: they have none */
    const char *media;        /* media type of streams; NULL: server-sent events */
    const char *done;         /* bytes that end a stream */
    const char *heartbeat;    /* bytes that keep an idle stream open; NULL: none */
    void (*write_error)(const Exchange *x, const ApiError *error, Buffer *out); /* response body; NULL: OpenAI's */
    void (*write_failure)(Exchange *x, const ApiError *error, Buffer *out);     /* stream event; NULL: OpenAI's */
    bool (*read)(ChatRequest *request, const Json *body, ApiError *error);
    bool (*make_prompts)(Exchange *x, const ChatRequest *request, ApiError *error);
    /* Events of a stream. */
    void (*write_start)(Exchange *x, int choice, Buffer *out); /* before the first delta; may be NULL */
    void (*write_delta)(Exchange *x, int choice, Buffer *out); /* takes the choice's new text and tokens */
    void (*write_finish)(Exchange *x, int choice, Buffer *out);
    void (*write_usage)(Exchange *x, Buffer *out); /* with include_usage; NULL: never */
    /* The body of a response that is not streamed. */
    void (*write_whole)(Exchange *x, Buffer *out);
} Endpoint;

/* Checks before tokenization that a text of `bytes` bytes can fit into the context. field: named in the error. */
NODISCARD bool completion_fits(const ChatModel *model, size_t bytes, const char *field, ApiError *error);
/* Checks that the prompt's ids are in the model's vocabulary; a tokenizer may have more tokens than the model. */
NODISCARD bool completion_knows(const ChatModel *model, const Tokens *prompt, const char *field, ApiError *error);
/* Endpoint.make_prompts of chats: the prompt of the request's messages. */
bool chat_make_prompts(Exchange *x, const ChatRequest *request, ApiError *error);

extern const Endpoint endpoint_chat, endpoint_text, endpoint_messages, endpoint_responses, endpoint_ollama_chat,
    endpoint_ollama_generate, endpoint_transcription, endpoint_translation;
