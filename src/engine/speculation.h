/* Speculative decoding: draft tokens for running answers, from the request's own text, a draft model or the model's
 * multi-token prediction head. The target
 * verifies them as further rows of one step; each row is sampled with the random number that its position has, and
 * the first token that differs ends the run, so answers do not depend on drafts. Thread: the engine's. */
#pragma once
#include "engine/assistant.h"
#include "engine/mtp_head.h"
#include "engine/request.h"
#include "engine/step_costs.h"

typedef struct Speculation {
    SpeculationOptions options;
    int rows_max;  /* draft tokens of a step; 0: off */
    bool streamed; /* experts are: only long matches are worth their reading */
    int vocab, hidden;
    /* At most one of the three is there. */
    DraftModel *model;
    Assistant *assistant;
    MtpHead *mtp;
    bool broken;     /* it has failed */
    int pause_steps; /* steps without drafts that remain */
    int eos_count;
    int32_t eos[EOS_MAX];
    StepCosts costs;
    DraftStats stats[DRAFT_SOURCES];
} Speculation;

/* An answer with one token to compute, which may be followed by draft tokens. */
typedef struct DraftTarget {
    Request *request;
    AnswerChoice *choice;
    int most; /* draft tokens */
} DraftTarget;

/* rows_max: the most draft tokens of a step that the runner can compute. cache: of all sequences. */
NODISCARD bool speculation_open(Speculation *speculation, const Runner *runner, KvCache *cache,
    const EngineOptions *options, int rows_max, Error *error);
/* The number of a sequence's last rows in a step whose final hidden states speculation_read() wants. drafts: the draft
 * tokens among its rows. */
int speculation_state_rows(const Speculation *speculation, int rows, int drafts);
/* A step has computed rows of a prompt (choice NULL) or of an answer with its prompt, at least one, which begin at a
 * position; states: [rows, hidden] their final hidden states. */
void speculation_read(
    Speculation *speculation, Request *request, AnswerChoice *choice, int position, int rows, const float *states);
/* The choice begins behind its prompt; last: no other choice will. */
void speculation_begin(Speculation *speculation, Request *request, AnswerChoice *choice, bool last);
/* The choice, or the prompt (choice NULL), has ended or gives its memory up. */
void speculation_end(Speculation *speculation, Request *request, AnswerChoice *choice);
void speculation_close(Speculation *speculation); /* safe on a zeroed one */
/* Sets the draft of each target; count 0: none. streams, rows: sequences and rows of the step without drafts; prompts:
 * the step has rows of prompts; room: draft tokens at most. */
void speculation_plan(
    Speculation *speculation, const DraftTarget *targets, int count, int streams, int rows, bool prompts, int room);
/* Whether a draft model, an assistant or a head drafts: it runs between the steps. */
bool speculation_has_model(const Speculation *speculation);
/* True if the next step would have draft tokens, as far as the sampled tokens are known. */
bool speculation_wanted(Speculation *speculation, const DraftTarget *targets, int count);
/* A step with draft tokens had no device memory: the steps that follow have none for a while. */
void speculation_pause(Speculation *speculation);
/* Records that a step accepted `accepted` of a choice's `drafts` draft tokens. */
void speculation_note(Speculation *speculation, Request *request, AnswerChoice *choice, int drafts, int accepted);
