/* How well documents answer a query, by a language model that was trained to say yes or no to such pairs
 * (Qwen3-Reranker), or by an encoder with a classifier (BGE's cross-encoders). Threads: any. */
#pragma once
#include "chat/prompt_batch.h"

/* Appends the prompt of a pair. instruction: what makes a document relevant; size 0: the model card's own. *types: as
 * in PromptBatch. ERROR_UNSUPPORTED: the vocabulary has not the tokens of such prompts, the tokenizer has no template
 * for pairs, or an encoder gets an instruction. Source: the model card of Qwen3-Reranker. */
NODISCARD bool rerank_prompt(const ChatModel *model, Slice instruction, Slice query, Slice document, Tokens *tokens,
    size_t *types, Error *error);
/* Writes scores: [count], the probability of "yes" where the answer is "yes" or "no", or the sigmoid of the
 * classifier's logit. batch: prompts of rerank_prompt(). Errors are those of prompt_batch_run; ERROR_DEVICE for results
 * that are not finite. */
NODISCARD bool rerank_compute(const ChatModel *model, const PromptBatch *batch, float *scores, Error *error);
