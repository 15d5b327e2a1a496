/* Embeddings: each prompt becomes a vector of Euclidean length 1. Threads: any. */
#pragma once
#include "chat/chat_model.h"

typedef struct EmbeddingJob {
    const Tokens *prompts; /* [count]; each has at least one token and fewer than the context holds */
    int count;
    int dimensions;      /* leading elements of the model's vector that are kept */
    uint64_t cache_salt; /* as in RequestOptions */
    /* Called for each prompt and ten times per second; true cancels the job. waits: no prompt has been started. */
    bool (*given_up)(void *context, bool waits);
    void *context;
} EmbeddingJob;

/* Writes out: [count, dimensions]. A zero vector stays zero. The model must have a pooling (engine_pooling). Errors are
 * those of engine_submit; ERROR_CANCELLED after given_up; ERROR_DEVICE for results that are not finite. */
NODISCARD bool embedding_compute(const ChatModel *model, const EmbeddingJob *job, float *out, Error *error);
