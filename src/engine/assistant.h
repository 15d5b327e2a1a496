/* An assistant (model_is_assistant()) as a source of draft tokens. It reads the target's final hidden state of the
 * position before a text's last token, that token, and the keys and values of all positions before it, which lie in the
 * target's cache; it has no cache of its own. Further draft tokens come from its own states, at the same position. It
 * samples with the target's random numbers. Its results decide which tokens are drafted and nothing else. Thread: the
 * engine's. */
#pragma once
#include "engine/draft_model.h"

typedef struct Assistant Assistant;

/* target: the runner of the model that it was opened for; its cache: of all texts. Both outlive this one. Takes the
 * model, also on failure. The target's options are valid. */
NODISCARD Assistant *assistant_open(
    const EngineOptions *options, Model *model, const Runner *target, KvCache *cache, Error *error);
void assistant_close(Assistant *assistant); /* NULL is fine; all sequences are closed */
/* The target has computed rows of a text, of which the last one is at this position, and this is its final hidden
 * state, [hidden of the target], borrowed for the call. */
void assistant_read(Assistant *assistant, DraftSequence *sequence, int position, const float *state);
/* As draft_model_continue(). Texts whose last state is not known get no tokens. */
NODISCARD bool assistant_continue(Assistant *assistant, DraftText *texts, int count, Error *error);
/* `to`, which is closed, becomes a copy of `from`, or stays closed without memory. */
void assistant_fork(Assistant *assistant, const DraftSequence *from, DraftSequence *to);
void assistant_sequence_close(DraftSequence *sequence);
/* Duration of a draft token of all texts, as draft_pace_seconds(). */
double assistant_seconds(Assistant *assistant, double target_step_s);
