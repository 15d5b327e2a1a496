/* Embeddings: each prompt becomes a vector of Euclidean length 1. Threads: any. */
#pragma once
#include "chat/prompt_batch.h"

/* Writes out: [count, dimensions], the leading `dimensions` elements of the model's vectors. A zero vector stays zero.
 * The model must have a pooling (engine_pooling). Errors are those of prompt_batch_run; ERROR_DEVICE for results that
 * are not finite. */
NODISCARD bool embedding_compute(
    const ChatModel *model, const PromptBatch *batch, int dimensions, float *out, Error *error);
