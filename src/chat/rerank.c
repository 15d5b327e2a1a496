#include "chat/rerank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    AT_ONCE = 64, /* prompts submitted at once: enough to fill a step, and other requests get their turn */
    LOOK_MS = 100,
};

/* ---- the prompt ---- */

static bool find_answers(const ChatModel *model, int32_t *yes, int32_t *no, Error *error) {
    const Tokenizer *t = model->tokenizer;
    int32_t mark;
    return (tokenizer_id(t, SLICE("<|im_start|>"), &mark) && tokenizer_id(t, SLICE("<|im_end|>"), &mark) &&
               tokenizer_id(t, SLICE("yes"), yes) && tokenizer_id(t, SLICE("no"), no)) ||
        fail(error, ERROR_UNSUPPORTED,
            "the model '%s' has no prompt for pairs of a query and a document, as Qwen3-Reranker has", model->name);
}

bool rerank_prompt(
    const ChatModel *model, Slice instruction, Slice query, Slice document, Tokens *tokens, Error *error) {
    int32_t yes, no;
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

/* ---- the job ---- */

static Request *submit(const ChatModel *model, const RerankJob *job, int index, Answers *answers, Error *error) {
    static const KvFormat exact = {0};
    const Tokens *prompt = &job->prompts[index];
    const RequestOptions options = {
        .prompt = prompt->ids,
        .prompt_count = (int)prompt->count,
        .max_tokens = 1,
        .choices = 1,
        .kv_format = &exact,
        .cache_salt = job->cache_salt,
        .constraint = &answers->base,
        .sampling = {.top_p = 1, .repetition_penalty = 1, .logprobs = 2},
    };
    return engine_submit(model->engine, &options, error);
}

/* waits: no other of the job has begun. */
static bool take(
    const RerankJob *job, Request *request, const Answers *answers, bool waits, float *score, Error *error) {
    Finish finish = FINISH_NONE;
    TokenOut token = {.logprob = NAN};
    bool answered = false;
    while (finish == FINISH_NONE) {
        TokenOut next;
        waits = waits && !request_stats(request).admitted;
        if (job->given_up(job->context, waits)) return fail(error, ERROR_CANCELLED, "the request was cancelled");
        if (request_read(request, 0, &next, 1, LOOK_MS, &finish) < 1) continue;
        token = next;
        answered = true;
    }
    if (finish == FINISH_ERROR) {
        request_error(request, error);
        return false;
    }
    if (finish == FINISH_CANCELLED || !answered) return fail(error, ERROR_CANCELLED, "the model is being closed");
    const float chosen = expf(token.logprob);
    *score = token.id == answers->yes ? chosen : 1 - chosen;
    return isfinite(*score) || fail(error, ERROR_DEVICE, "the model's computation gave no numbers");
}

bool rerank_compute(ChatModel *model, const RerankJob *job, float *scores, Error *error) {
    Request *waiting[AT_ONCE];
    int begun = 0, taken = 0;
    Answers *answers = answers_new(model, error);
    bool ok = answers;
    while (ok && taken < job->count) {
        Error why = {0};
        Request *next = begun < job->count && begun - taken < AT_ONCE ? submit(model, job, begun, answers, &why) : NULL;
        if (next) {
            waiting[begun++ % AT_ONCE] = next;
        } else if (begun == taken || (why.code != ERROR_NONE && why.code != ERROR_BUSY)) {
            if (error) *error = why;
            ok = false;
        } else { /* no room for more: the oldest one first */
            Request *oldest = waiting[taken % AT_ONCE];
            ok = take(job, oldest, answers, taken == 0, &scores[taken], error);
            taken++;
            request_free(oldest);
        }
    }
    for (; taken < begun; taken++) request_free(waiting[taken % AT_ONCE]);
    if (answers) constraint_release(&answers->base);
    return ok;
}
