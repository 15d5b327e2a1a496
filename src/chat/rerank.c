#include "chat/rerank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the prompt ---- */

static bool find_answers(const ChatModel *model, int32_t *yes, int32_t *no, Error *error) {
    const Tokenizer *t = model->tokenizer;
    int32_t mark;
    return (tokenizer_id(t, SLICE("<|im_start|>"), &mark) && tokenizer_id(t, SLICE("<|im_end|>"), &mark) &&
               tokenizer_id(t, SLICE("yes"), yes) && tokenizer_id(t, SLICE("no"), no)) ||
        fail(error, ERROR_UNSUPPORTED,
            "the model '%s' has no prompt for pairs of a query and a document, as Qwen3-Reranker has", model->name);
}

bool rerank_prompt(const ChatModel *model, Slice instruction, Slice query, Slice document, Tokens *tokens,
    size_t *types, Error *error) {
    int32_t yes, no;
    *types = SIZE_MAX;
    if (model_classifies(engine_model(model->engine))) {
        if (instruction.size) return fail(error, ERROR_UNSUPPORTED, "the model '%s' takes no instruction", model->name);
        return tokenizer_encode_pair(model->tokenizer, query, document, tokens, types, error);
    }
    if (!find_answers(model, &yes, &no, error)) return false;
    const Span spans[] = {
        {SLICE(
             "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
             "Instruct "
             "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: "),
            true},
        {instruction.size ? instruction
                          : SLICE("Given a web search query, retrieve relevant passages that answer the query"),
            false},
        {SLICE("\n<Query>: "), true}, {query, false}, {SLICE("\n<Document>: "), true}, {document, false},
        {SLICE("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"), true}};
    return tokenizer_encode_spans(model->tokenizer, spans, COUNT_OF(spans), tokens, error);
}

/* ---- yes or no ---- */

typedef struct Answers {
    Constraint base;
    int32_t yes, no;
} Answers;

static bool give_mask(Constraint *constraint, ConstraintState state, uint64_t *mask, bool *any, Error *error) {
    const Answers *answers = (const Answers *)(const void *)constraint;
    *any = false;
    memset(mask, 0, constraint->mask_words * sizeof *mask);
    mask[answers->yes / 64] |= UINT64_C(1) << answers->yes % 64;
    mask[answers->no / 64] |= UINT64_C(1) << answers->no % 64;
    return true;
}

static bool accept_token(Constraint *constraint, ConstraintState *state, int32_t token, Error *error) { return true; }
static void free_answers(Constraint *constraint) { free(constraint); }

static Answers *answers_new(const ChatModel *model, Error *error) {
    static const ConstraintOps ops = {.mask = give_mask, .accept = accept_token, .free = free_answers};
    int32_t yes, no;
    if (!find_answers(model, &yes, &no, error)) return NULL;
    Answers *answers = calloc(1, sizeof *answers);
    if (!answers) {
        fail(error, ERROR_MEMORY, "no memory for a constraint");
        return NULL;
    }
    constraint_init(&answers->base, &ops, 0, ((size_t)chat_model_vocab(model) + 63) / 64);
    answers->yes = yes;
    answers->no = no;
    return answers;
}

/* ---- scores ---- */

typedef struct Scores {
    int32_t yes;
    float *out; /* [count] */
} Scores;

static bool take_score(void *context, int index, Request *request, const TokenOut *token, Error *error) {
    const Scores *scores = context;
    const float chosen = token ? expf(token->logprob) : NAN;
    scores->out[index] = token && token->id == scores->yes ? chosen : 1 - chosen;
    return isfinite(chosen) || fail(error, ERROR_DEVICE, "the model's computation gave no numbers");
}

typedef struct Logits {
    const Model *model;
    float *out; /* [count] */
} Logits;

static bool take_logit(void *context, int index, Request *request, const TokenOut *token, Error *error) {
    const Logits *logits = context;
    const float logit = model_classify(logits->model, request_embedding(request));
    logits->out[index] = 1 / (1 + expf(-logit));
    return isfinite(logit) || fail(error, ERROR_DEVICE, "the model's computation gave no numbers");
}

bool rerank_compute(const ChatModel *model, const PromptBatch *batch, float *scores, Error *error) {
    if (model_classifies(engine_model(model->engine))) {
        const RequestOptions embeds = {
            .embeds = true, .sampling = {.top_p = 1, .repetition_penalty = 1, .logprobs = -1}};
        Logits logits = {engine_model(model->engine), scores};
        return prompt_batch_run(model, batch, &embeds, take_logit, &logits, error);
    }
    Answers *answers = answers_new(model, error);
    if (!answers) return false;
    const RequestOptions options = {
        .constraint = &answers->base, .sampling = {.top_p = 1, .repetition_penalty = 1, .logprobs = 2}};
    Scores context = {answers->yes, scores};
    const bool ok = prompt_batch_run(model, batch, &options, take_score, &context, error);
    constraint_release(&answers->base);
    return ok;
}
