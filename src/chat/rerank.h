/* How well documents answer a query, by a language model that was trained to say yes or no to such pairs
 * (Qwen3-Reranker). Threads: any. */
#pragma once
#include "chat/chat_model.h"

typedef struct RerankJob {
    const Tokens *prompts; /* [count] from rerank_prompt(), each with fewer tokens than the context holds */
    int count;
    uint64_t cache_salt; /* as in RequestOptions */
    /* Called for each prompt and ten times per second; true cancels the job. waits: no prompt has been started. */
    bool (*given_up)(void *context, bool waits);
    void *context;
} RerankJob;

/* Appends the prompt of a pair. instruction: what makes a document relevant; size 0: the model card's own.
 * ERROR_UNSUPPORTED: the vocabulary has not the tokens of such prompts. Source: the model card of Qwen3-Reranker. */
NODISCARD bool rerank_prompt(
    const ChatModel *model, Slice instruction, Slice query, Slice document, Tokens *tokens, Error *error);
/* Writes scores: [count], the probability of "yes" where the answer is "yes" or "no". Errors are those of
 * engine_submit; ERROR_CANCELLED after given_up; ERROR_DEVICE for results that are not finite. */
NODISCARD bool rerank_compute(ChatModel *model, const RerankJob *job, float *scores, Error *error);
