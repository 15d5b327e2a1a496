/* chat/: from messages to an answer, for server, terminal and tests: a model with its tokenizer and template
 * (chat_model.h), a request as plain data (request.h), a prompt from messages (prompt.h), an answer as text
 * (generation.h). No HTTP, no JSON of an API, no terminal.
 *
 * A model with everything that a conversation needs: engine, tokenizer, template, defaults. Constant while it is open,
 * except the members under the mutex. Threads: any number. */
#pragma once
#include <stdint.h>

#include "base/arena.h"
#include "base/json.h"
#include "base/thread.h"
#include "chat/media_files.h"
#include "engine/engine.h"
#include "text/calls/call_format.h"
#include "text/grammar/grammar.h"
#include "text/jinja/template.h"
#include "text/tokenizer/tokenizer.h"

typedef struct ChatModel {
    char *name;      /* id in requests */
    int64_t created; /* time of opening, in seconds since 1970 */
    Engine *engine;
    Tokenizer *tokenizer;
    Template *template;               /* NULL: the model has no chat template */
    bool text_parts;                  /* the template shows texts only as parts of a list (SmolVLM, Idefics 3) */
    const CallFormat *calls;          /* the template's call format; NULL: none */
    const ReasoningFormat *reasoning; /* the template's reasoning format; NULL: none */
    MediaFiles *media_files;          /* NULL: the model takes neither images nor audio */
    const Json *special_tokens;       /* an object for the template: bos_token, eos_token … */
    SamplingOptions sampling;         /* defaults: the model's (generation_config.json), else OpenAI's */
    char fingerprint[24];             /* hash of program, model and instruction set, which determine results */
    Arena arena;                      /* owns special_tokens */
    Mutex mutex;                      /* guards the following members */
    Vocabulary *vocabulary;           /* NULL: not made yet */
    Vocabulary *call_vocabulary;      /* with call markers as text; NULL: not made yet, or no token is a marker */
    Tokens call_openers;              /* tokens that may begin a call after its marker */
    bool calls_ready;
    Tokens reasoning_closers; /* see chat_model_reasoning_closers */
    bool closers_ready;
} ChatModel;

/* options->directory holds the model, its tokenizer and its template; with options->pooling NONE, the pooling is read
 * from it, too (pooling.h). */
NODISCARD ChatModel *chat_model_open(const char *name, const EngineOptions *options, Error *error);
void chat_model_close(ChatModel *model); /* cancels requests; all generations must be closed. NULL is fine */

/* The vocabulary for grammars, made by the first call in about 0.1 s. Thread: any. */
NODISCARD const Vocabulary *chat_model_vocabulary(ChatModel *model, Error *error);
/* The vocabulary for grammars of calls, where markers that are special tokens have their text. Makes call_openers, too.
 */
NODISCARD const Vocabulary *chat_model_call_vocabulary(ChatModel *model, Error *error);
/* The tokens in which text may follow the end of reasoning's end marker, or of a part of it; the model's. NULL: no
 * memory. Requires model->reasoning. */
NODISCARD const Tokens *chat_model_reasoning_closers(ChatModel *model, Error *error);
/* The template's call format, else Hermes'. */
const CallFormat *chat_model_calls(const ChatModel *model);
/* What a model is, for lists of models. */
typedef struct ModelFacts {
    const char *family;         /* model_type; "": not known */
    uint64_t parameters, bytes; /* in matrices */
    char weights[8];            /* "Q4", "F16", "BF16" …: of most parameters; "": not known */
    int layers, width;
} ModelFacts;
ModelFacts chat_model_facts(const ChatModel *model);
int chat_model_vocab(const ChatModel *model);
int chat_model_context(const ChatModel *model); /* tokens of prompt and answer together */
