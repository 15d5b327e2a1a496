/* Sequences on a bare model, step by step: what the instruments (debug logits, bench) share. */
#pragma once
#include "model/runner.h"
#include "model/step_builder.h"

enum { WALK_FORMATS_MAX = 64 };

typedef struct Walk {
    Model *model;
    Runner *runner;
    KvCache *cache;
    int format_count, chosen;
    struct {
        KvFormat format;
        KvSequence now, mark; /* mark: what walk_return() returns to */
    } sequence[WALK_FORMATS_MAX];
    StepBuilder steps[2]; /* builders of the step in flight and of the one begun before it has ended */
    uint32_t random;      /* state of the generator of samples' uniform numbers */
} Walk;

/* A sequence for each format (count 0: one, exact) with room for `tokens` positions; the first is chosen. The backend
 * has the last gpu_layers layers, the processor the others; 0: it has all. */
NODISCARD bool walk_open(Walk *walk, const char *directory, const ModelOptions *options, const BackendOptions *backend,
    int gpu_layers, const KvFormat *formats, int count, int tokens, Error *error);
void walk_close(Walk *walk);
void walk_choose(Walk *walk, int sequence); /* what all below works on */
int walk_length(const Walk *walk);
/* Bytes of the pages that a sequence holds; *quantised: true if some of them are quantised. */
size_t walk_kv_bytes(const Walk *walk, int sequence, bool *quantised);
int walk_rows(const Walk *walk, int wanted); /* tokens that the next step can take, of so many */
/* One step of count ≤ walk_rows() tokens; logits of the last `outputs` rows at *logits [outputs, vocab], until the
 * next. */
NODISCARD bool walk_step(Walk *walk, const int32_t *tokens, int count, int outputs, float **logits, Error *error);
/* One step of one decode row, whose arithmetic may differ from that of prefill rows; its logits. */
NODISCARD bool walk_step_on(Walk *walk, int32_t token, float **logits, Error *error);
/* The same for the first `count` sequences, a token for each; logits of all. */
NODISCARD bool walk_step_together(Walk *walk, const int32_t *tokens, int count, float **logits, Error *error);
/* Runs `steps` steps of `count` sequences from `first` on. tokens: [count] first tokens. Later tokens are sampled by
 * the backend at a temperature, and each step begins before the previous one has ended, as in the engine. ended:
 * [steps] clock_seconds() of each end. Only if runner_can_lookahead(). */
NODISCARD bool walk_sample(
    Walk *walk, int first, int count, const int32_t *tokens, int steps, float temperature, double *ended, Error *error);
NODISCARD bool walk_mark(Walk *walk, Error *error); /* this place can be returned to */
/* To the marked place, if that is at this length; otherwise the mark is gone, with the pages it kept. */
NODISCARD bool walk_return(Walk *walk, int length, bool *there, Error *error);
NODISCARD bool walk_restart(Walk *walk, Error *error); /* forgets everything, the mark too */
