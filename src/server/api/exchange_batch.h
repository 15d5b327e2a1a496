/* A PromptBatch of an exchange: it ends when the client has gone, the server stops or a deadline has passed. */
#pragma once
#include "chat/prompt_batch.h"
#include "server/exchange.h"

typedef struct ExchangeBatch {
    PromptBatch batch;
    const Exchange *x;
    ApiError over; /* the deadline that has passed */
} ExchangeBatch;

/* prompts: [count], borrowed. The address of b must not change until the batch has ended. */
void exchange_batch_init(ExchangeBatch *b, const Exchange *x, const Tokens *prompts, int count);
/* The error of the answer, from that of the batch. Returns false. */
bool exchange_batch_failed(const ExchangeBatch *b, const Error *why, ApiError *error);
