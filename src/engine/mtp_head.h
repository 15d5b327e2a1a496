/* The multi-token prediction head of a model (Spec.mtp) as a source of draft tokens. Row i of a text gives it the
 * model's final hidden state of position i and token i + 1, from which it predicts token i + 2; further draft tokens
 * come from its own hidden states. It samples with the target's random numbers. Its KV cache is its own: it reads each
 * text beside the model, but for the positions that the model has from the prefix cache or from disk, without which its
 * draft tokens are accepted less often. Its results decide which tokens are drafted and nothing else. Thread: the
 * engine's. */
#pragma once
#include "engine/draft_model.h"

typedef struct MtpHead MtpHead;

/* Bytes that the head takes beside its weights, which are the model's: scratch and KV cache. */
NODISCARD bool mtp_head_bytes(const EngineOptions *options, const Model *target, uint64_t *bytes, Error *error);
/* Opens the head of a model that was loaded with it. The target's options are valid. */
NODISCARD MtpHead *mtp_head_open(const EngineOptions *options, const Model *target, Error *error);
void mtp_head_close(MtpHead *head); /* NULL is fine; all sequences are closed */
/* The target has computed rows of a text, which begin at a position, and these are their final hidden states, [rows,
 * hidden], borrowed for the call. text: as below, without `wanted` and `out`. False: the head cannot be used any more.
 */
NODISCARD bool mtp_head_read(
    MtpHead *head, const DraftText *text, int position, int rows, const float *states, Error *error);
/* As draft_model_continue(). Texts whose states the head does not have up to their end get no tokens. */
NODISCARD bool mtp_head_continue(MtpHead *head, DraftText *texts, int count, Error *error);
/* `to`, which is closed, becomes a copy of `from`, or stays closed without memory. */
void mtp_head_fork(MtpHead *head, const DraftSequence *from, DraftSequence *to);
void mtp_sequence_close(MtpHead *head, DraftSequence *sequence);
/* Duration of a draft token of all texts, as draft_pace_seconds(). */
double mtp_head_seconds(MtpHead *head, double target_step_s);
