/* One sequence on a bare model, step by step: what the instruments (debug logits, bench) share. */
#pragma once
#include "model/runner.h"

typedef struct Walk {
    Model *model;
    Runner *runner;
    KvCache *cache;
    KvSequence sequence;
    int32_t *positions, *outputs; /* [RUNNER_ROWS_MAX] */
} Walk;

/* Room for `tokens` positions. */
NODISCARD bool walk_open(Walk *walk, const char *directory, const ModelOptions *options, const BackendOptions *backend,
    int tokens, Error *error);
void walk_close(Walk *walk);
/* One step of count tokens (≤ rows_max); logits of the last `outputs` rows at *logits [outputs, vocab], until the next.
 */
NODISCARD bool walk_step(Walk *walk, const int32_t *tokens, int count, int outputs, float **logits, Error *error);
NODISCARD bool walk_rewind(Walk *walk, int length); /* false: what it would need is gone, restart */
void walk_restart(Walk *walk);                      /* forgets everything */
