/* A completion request as the client sent it, every field checked: honoured, or refused by name; nothing is ignored in
 * silence. */
#pragma once
#include "engine/engine.h"
#include "server/api/api.h"
#include "server/api/cache_params.h"
#include "server/api/constraint_params.h"
#include "server/api/tool_params.h"
#include "text/stream/stream_text.h" /* STOP_STRINGS_MAX */

enum {
    MESSAGES_MAX = 20000,
    PROMPTS_MAX = 64,
    LOGIT_BIAS_MAX = 4096,
    STOP_COUNT_MAX = 4,             /* as OpenAI has it */
    COMPLETION_TOKENS_DEFAULT = 16, /* of /v1/completions, as OpenAI documents it */
};

/* How the answer is to look. */
typedef struct AnswerForm {
    bool stream, include_usage, logprobs;
    bool progress;   /* events of a stream tell how much of the prompt is read */
    bool obfuscated; /* events of a stream have padding, so that their sizes say little */
    bool echo;       /* the prompt comes first (completions) */
    bool only_echo;  /* and nothing else: max_tokens is 0 */
    int best;        /* so many answers to each prompt are shown, the likeliest; 0: all */
} AnswerForm;

typedef struct DefaultNumber {
    bool given; /* false: as the model recommends */
    float value;
} DefaultNumber;

/* What requests get that say nothing. All zero: as without it. */
typedef struct RequestDefaults {
    DefaultNumber temperature, top_p, min_p, repetition_penalty;
    bool top_k_given;
    int top_k;
    int max_tokens; /* 0: what the context holds */
    bool thinking;  /* of models that can be told */
} RequestDefaults;

typedef struct ApiRequest {
    Arena *arena; /* holds everything below that is not in the body itself */
    int vocab;    /* ids must be below it */
    Slice model;
    SamplingOptions sampling;
    int32_t *bias_ids; /* what sampling's arrays are */
    float *bias_values;
    int64_t max_tokens; /* −1: not given */
    int max_standing;   /* what it is otherwise; 0: what the context holds */
    bool cut;           /* to what the context holds, where it is more */
    int choices;
    AnswerForm form;
    const Json *stream_options;
    Slice stops[STOP_STRINGS_MAX];
    int stop_count;
    int top_logprobs;
    CacheRequest cache;
    ConstraintRequest constraint;
    /* chat; as they were sent, or NULL */
    const Json *messages;
    const Json *template_arguments; /* chat_template_kwargs */
    ToolRequest tools;
    Slice echo;     /* what the answer repeats of the request: JSON; data NULL: nothing */
    bool continues; /* continue_final_message */
    /* completions */
    const Json *prompt;
    Slice suffix;
    int best_of; /* 0: not given */
} ApiRequest;

/* request: sampling already holds the defaults; its seed is a fresh one. body must be an object. */
NODISCARD bool params_read_chat(ApiRequest *request, const Json *body, ApiError *error);
NODISCARD bool params_read_completion(ApiRequest *request, const Json *body, ApiError *error);
