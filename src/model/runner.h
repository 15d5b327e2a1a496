/* A model made runnable: its weights bound to backends, the largest step planned. Several runners can use one model,
 * and several caches one runner. Threads: opened and closed anywhere; used by one thread at a time. */
#pragma once
#include "cache/kv_cache.h"
#include "model/model.h"

typedef struct Runner Runner;

enum { RUNNER_ROWS_MAX = 1 << 18, RUNNER_BACKENDS_MAX = 2 /* backends that have layers */ };

typedef struct RunnerOptions {
    BackendOptions backend; /* rows_max 0: RUNNER_ROWS_DEFAULT */
    int split;              /* layers from here on, and the output matrix, are another backend's; 0: none */
    BackendOptions upper;   /* which; its rows_max is not looked at */
    int layer_tile_rows; /* layers are walked over so many rows of a step after the other, ≤ LAYER_TILE_ROWS_MAX; 0:
                      over that many where experts are streamed, so that a step reads each but once, otherwise over all
                    */
    int outputs_max;     /* rows of a step whose logits may be wanted; 0: all */
    int hidden_rows_max; /* the same of states behind the final norm; 0: none */
} RunnerOptions;

/* Walks the decoder once on the plan backend, where every shape is checked and scratch is counted, and opens the real
 * backends. The model outlives the runner. */
NODISCARD Runner *runner_open(const Model *model, const RunnerOptions *options, Error *error);
void runner_close(Runner *runner); /* NULL is fine */

/* With ModelOptions.experts.stream: what its budget, or less where less is free, leaves for caches and experts.
 * ERROR_MEMORY, with the least that would do, when that is less than the experts of a layer and `least` bytes of a
 * cache. */
NODISCARD bool runner_budget_left(
    const Runner *runner, uint64_t least, uint64_t free_bytes, uint64_t *bytes, Error *error);

/* What it makes the host hold besides caches: *resident, the model's weights but for experts that stay in their files;
 * returned, what steps work in, threads and tables. */
uint64_t runner_besides_bytes(const Runner *runner, uint64_t *resident);

uint64_t runner_scratch_bytes(const Runner *runner); /* sum over all backends */
const Model *runner_model(const Runner *runner);
Backend *runner_backend(const Runner *runner); /* backend of the first layer */
Backend *runner_upper(const Runner *runner);   /* backend of the last layer: another one if layers are split */
const KvPlan *runner_kv_plan(const Runner *runner);
/* Bytes of the cache that one more token reads at a depth. */
uint64_t runner_kv_bytes(const Runner *runner, int depth);

/* Largest Step.decode_rows of steps without uniform_matmul; outputs that are decode rows come before others. 0:
 * Step.decode_rows has no effect. */
int runner_decode_rows_max(const Runner *runner);

/* Runs a step; step NULL: false, with the error of step_end(). *logits: f32 [output_count, vocab] in host memory,
 * writable, valid until the next step; NULL without outputs, and where the backend samples. False: the device failed,
 * or a file of the model shrank (the error names it); the contents of the step's sequences are undefined. */
NODISCARD bool runner_forward(Runner *runner, KvCache *cache, const Step *step, float **logits, Error *error);

/* The same in two halves, so that a step can be begun before the one before it has ended, which is what
 * runner_can_lookahead() is about: two at most, ended in the order of their beginning, and logits are read of a step
 * only that is ended before the next begins. What the step points at stays until then. */
typedef struct RunnerStep {
    Step step;
    float *out;                            /* backend memory */
    uint64_t tickets[RUNNER_BACKENDS_MAX]; /* ticket of each backend */
} RunnerStep;
void runner_begin(Runner *runner, KvCache *cache, const Step *step, RunnerStep *begun);
NODISCARD bool runner_end(Runner *runner, const RunnerStep *begun, float **logits, Error *error);

/* True if the backend samples (Step.sample_params): *logits is then NULL. */
bool runner_samples(const Runner *runner);
/* True if a step may begin before the previous one has ended, with tokens that the latter samples (Step.tokens). */
bool runner_can_lookahead(const Runner *runner);
/* Tokens that the step that ended last sampled, [count], borrowed until the next step but one begins; −1: not sampled.
 * NULL: none. */
const int32_t *runner_sampled(const Runner *runner);

/* Behind the final norm, the states of the rows that the last step named in its `states`: [hidden_row_count, hidden],
 * valid as long as its logits. */
const float *runner_hidden_rows(const Runner *runner);

/* The longest bidirectional span (SequenceChunk.spans) that a step may have: layers whose experts are streamed are
 * computed in tiles, and a span must fit one. INT_MAX: any. */
int runner_span_rows_max(const Runner *runner);

/* What sum_logits (backend.h) made of the last step's logits with its `scales`, [count, 2, blocks], valid as long as
 * they are; NULL: the backend does not compute sums, the host sampler does. */
const float *runner_sums(const Runner *runner);

/* The table of `apus info`. */
void runner_describe(const Runner *runner, Buffer *out);
