/* chat/: from messages to an answer, for every way to ask: server, terminal, tests. A model with its text side
 * (chat_model.h), a prompt from messages (prompt.h), an answer as pieces of text (generation.h). Here live no HTTP, no
 * JSON of a protocol and no terminal.
 *
 * A model as those who talk to it see it: engine, tokenizer, template and what a request that says nothing gets.
 * Constant while it is open, but for what chat_model_vocabulary() makes. Threads: any number use one. */
#pragma once
#include <stdint.h>

#include "base/arena.h"
#include "base/json.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "text/calls/call_format.h"
#include "text/grammar/grammar.h"
#include "text/jinja/template.h"
#include "text/tokenizer/tokenizer.h"

typedef struct ChatModel {
    char *name;      /* by which requests ask for it */
    int64_t created; /* when it was opened, in seconds since 1970 */
    Engine *engine;
    Tokenizer *tokenizer;
    Template *template;               /* NULL: the model has none, so messages cannot become a prompt */
    const CallFormat *calls;          /* how the template has tools called; NULL: it shows no way */
    const ReasoningFormat *reasoning; /* NULL: it shows none */
    const Json *special_tokens;       /* an object: bos_token, eos_token …, for the template */
    SamplingOptions sampling;         /* what the model recommends (generation_config.json), else OpenAI's defaults */
    char fingerprint[24];             /* of what decides the numbers: program, model, instruction set */
    Arena arena;                      /* of special_tokens */
    Mutex mutex;                      /* of what follows */
    Vocabulary *vocabulary;           /* NULL: nobody has asked for it */
    Vocabulary *call_vocabulary;      /* with the markers of calls spelled; NULL too where there are no such tokens */
    Tokens call_openers;              /* tokens that may begin a call behind its marker */
    bool calls_ready;
} ChatModel;

/* options->directory holds the model, its tokenizer and its template, and with pooling NONE says how its states become
 * embeddings (pooling.h), if they do. */
NODISCARD ChatModel *chat_model_open(const char *name, const EngineOptions *options, Error *error);
void chat_model_close(ChatModel *model); /* ends what runs; no generation may be left. NULL is fine */

/* Its tokens as grammars see them; the first call takes 0.1 s. Any thread. */
NODISCARD const Vocabulary *chat_model_vocabulary(ChatModel *model, Error *error);
/* The same for grammars of calls. Special tokens that are markers stand for their spelling. Makes call_openers, too. */
NODISCARD const Vocabulary *chat_model_call_vocabulary(ChatModel *model, Error *error);
/* How it calls tools: as its template shows, else as Hermes does. */
const CallFormat *chat_model_calls(const ChatModel *model);
int chat_model_vocab(const ChatModel *model);
int chat_model_context(const ChatModel *model); /* tokens that prompt and answer may have together */
