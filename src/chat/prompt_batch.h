/* The prompts of one call that has a result per prompt (embeddings, rerank): up to 64 are submitted at once, and
 * results are taken in order. Threads: any. */
#pragma once
#include "chat/chat_model.h"

typedef struct PromptBatch {
    const Tokens *prompts; /* [count]; each has at least one token and fewer than the context holds */
    int count;
    const size_t *types; /* [count] from which token of each prompt on the token type is the second; NULL: nowhere */
    uint64_t cache_salt; /* as in RequestOptions */
    /* Called for each prompt and ten times per second; true cancels the batch. waits: no prompt has been started. */
    bool (*given_up)(void *context, bool waits);
    void *context;
} PromptBatch;

/* Takes the result of prompts[index] from a request that has ended. token: the sampled one; NULL: none. False with the
 * error ends the batch. */
typedef bool PromptResult(void *context, int index, Request *request, const TokenOut *token, Error *error);

/* options: those of every request; its prompt, cache_salt, max_tokens (1), choices (1) and kv_format (full precision)
 * are set here. Errors are those of engine_submit and of result(); ERROR_CANCELLED after given_up. */
NODISCARD bool prompt_batch_run(const ChatModel *model, const PromptBatch *batch, const RequestOptions *options,
    PromptResult *result, void *context, Error *error);
