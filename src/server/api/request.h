/* A request of each API from its JSON body: every field is honoured, or refused by name; none is ignored silently. */
#pragma once
#include "chat/request.h"
#include "server/api/api.h"

enum {
    PROMPTS_MAX = 64,
    COMPLETION_TOKENS_DEFAULT = 16, /* of /v1/completions, as OpenAI documents it */
};

typedef struct DefaultNumber {
    bool given; /* false: the model's recommendation */
    float value;
} DefaultNumber;

/* Defaults of the server for fields that are absent. All zero: the model's recommendations. */
typedef struct RequestDefaults {
    DefaultNumber temperature, top_p, min_p, repetition_penalty;
    bool top_k_given;
    int top_k;
    int max_tokens; /* 0: the rest of the context */
    bool thinking;  /* models with such a setting reason */
} RequestDefaults;

/* Defaults of one model's requests, before those of the server. */
typedef struct ModelPreset {
    char model[256]; /* an id or alias */
    RequestDefaults defaults;
    bool thinking_given;
} ModelPreset;

/* For these readers the request holds defaults, request_init() at least; body is an object that outlives it. */
NODISCARD bool request_read_chat(ChatRequest *request, const Json *body, ApiError *error);
NODISCARD bool request_read_completion(ChatRequest *request, const Json *body, ApiError *error);
NODISCARD bool request_read_responses(ChatRequest *request, const Json *body, ApiError *error);
NODISCARD bool request_read_messages(ChatRequest *request, const Json *body, ApiError *error);
NODISCARD bool request_read_ollama_chat(ChatRequest *request, const Json *body, ApiError *error);
NODISCARD bool request_read_ollama_generate(ChatRequest *request, const Json *body, ApiError *error);
/* Fields of forms: all values are texts. */
NODISCARD bool request_read_transcription(ChatRequest *request, const Json *body, ApiError *error);
NODISCARD bool request_read_translation(ChatRequest *request, const Json *body, ApiError *error);

/* A request without fields. */
ChatRequest request_init(Arena *arena, int vocab);
/* Checks fields against each other and sets derived members, for a chat of any API whose messages have been read. */
NODISCARD bool request_settle_chat(ChatRequest *request, ApiError *error);
