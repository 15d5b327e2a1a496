/* What differs between chat completions and completions: reading the request, and the shapes of its answers. */
#pragma once
#include "server/exchange.h"

typedef struct Endpoint {
    const char *id_prefix;
    const char *event_object; /* the "object" of a stream's events */
    bool (*read_params)(ApiRequest *request, const Json *body, ApiError *error);
    bool (*make_prompts)(Exchange *x, const ApiRequest *request, ApiError *error);
    /* Events of a stream. The opening one of a choice; may be NULL. */
    void (*write_start)(Exchange *x, int choice, Buffer *out);
    void (*write_delta)(Exchange *x, int choice, Buffer *out); /* takes the choice's text and tokens */
    void (*write_finish)(Exchange *x, int choice, Buffer *out);
    void (*write_usage)(Exchange *x, Buffer *out); /* the last event, when asked for */
    /* The whole answer. */
    void (*write_whole)(Exchange *x, Buffer *out);
} Endpoint;

extern const Endpoint endpoint_chat, endpoint_text;
