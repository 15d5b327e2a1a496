/* Embeddings: prompts as vectors of length 1, several at once on the engine. Threads: any. */
#pragma once
#include "chat/chat_model.h"

typedef struct EmbeddingJob {
    const Tokens *prompts; /* each of at least one token, and fewer than the context holds */
    int count;
    int dimensions;      /* of each vector: so many of the model's first ones */
    uint64_t cache_salt; /* as of RequestOptions */
    /* Asked for each, and ten times a second: nobody wants them. waits: none has begun. */
    bool (*given_up)(void *context, bool waits);
    void *context;
} EmbeddingJob;

/* Into out, [count, dimensions]. A vector of nothing but zeros stays one. The model must pool (ChatModel.pooling).
 * Errors are those of engine_submit; ERROR_CANCELLED when it was given up; ERROR_DEVICE when what was computed is no
 * numbers. */
NODISCARD bool embedding_compute(const ChatModel *model, const EmbeddingJob *job, float *out, Error *error);
