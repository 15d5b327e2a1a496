/* A draft model: a small model with the vocabulary of the target, which continues its answers token by token. It
 * samples with the target's random numbers, so that both agree more often. Its results decide which tokens are drafted
 * and nothing else. Thread: the engine's. */
#pragma once
#include "cache/kv_cache.h"
#include "engine/draft_rule.h"
#include "engine/engine.h"
#include "engine/sampler.h"

typedef struct DraftModel DraftModel;

/* What a draft model, or a multi-token prediction head, has read of an answer's text. */
typedef struct DraftSequence {
    KvSequence kv;                 /* the text from `base` on; without tables: nothing */
    int32_t fed[DRAFT_TOKENS_MAX]; /* [fed_count] draft tokens that a draft model has read behind that */
    int fed_count;
    int base; /* position of the first token that it has read; of a draft model 0; of an assistant that of states */
    float *states; /* [state_count, hidden] of a head: final hidden states of the positions behind kv; of an assistant:
                      that of the last position; owned */
    int state_count;
} DraftSequence;

/* A text to be continued. */
typedef struct DraftText {
    DraftSequence *sequence;
    void (*read)(const struct DraftText *text, int first, int count, int32_t *out); /* ids from a position on */
    const void *request, *choice;                                                   /* for read() */
    const KvSequence *cache;                                                        /* what the target has read */
    const SamplingOptions *sampling;
    const int32_t *positions; /* [POSITION_DIMS_MAX][prompt_count] for a head: RoPE positions of the prompt; NULL: the
                                 place and position_offset */
    int prompt_count, position_offset;
    int number; /* number of the choice, for its random numbers */
    int tokens; /* tokens of the text */
    int wanted; /* in: draft tokens that are wanted; out: those that there are */
    int32_t *out;
} DraftText;

/* Bytes for the KV cache of a draft model or a head: what the slots need, at most a share of the budget or of the free
 * memory. */
size_t draft_cache_bytes(const EngineOptions *options, const KvPlan *plan, int context);
/* Bytes that the draft model of options->speculation takes: weights, scratch and KV cache. Reads tables only. */
NODISCARD bool draft_model_bytes(const EngineOptions *options, const Model *target, uint64_t *bytes, Error *error);
/* Loads the model of options->speculation, which may be an assistant (assistant.h). */
NODISCARD Model *draft_model_load(const EngineOptions *options, const Model *target, Error *error);
/* Takes the loaded model, also on failure. The target's options are valid. */
NODISCARD DraftModel *draft_model_open(const EngineOptions *options, Model *model, const Model *target, Error *error);
void draft_model_close(DraftModel *model); /* NULL is fine; all sequences are closed */
/* Continues the texts, all in the same steps. Those whose text is not read yet are read on, as far as a step goes, and
 * get no tokens. False: the model cannot be used any more. */
NODISCARD bool draft_model_continue(DraftModel *model, DraftText *texts, int count, Error *error);
void draft_sequence_close(DraftModel *model, DraftSequence *sequence);
/* Duration of a draft token of all texts, as draft_pace_seconds(). */
double draft_model_seconds(DraftModel *model, double target_step_s);
