/* A model made runnable: its weights bound to backends, the largest step planned. Several runners can use one model,
 * and several caches one runner. Threads: opened and closed anywhere; used by one thread at a time. */
#pragma once
#include "cache/kv_cache.h"
#include "model/model.h"

typedef struct Runner Runner;

enum { RUNNER_ROWS_MAX = 1 << 18, RUNNER_BACKENDS_MAX = 2 /* backends that have layers */ };

typedef struct RunnerOptions {
    BackendOptions backend; /* rows_max 0: RUNNER_ROWS_DEFAULT */
    int split;              /* layers from `split` on, and the output matrix, are on backend `upper`; 0: none */
    BackendOptions upper;   /* rows_max is ignored */
    /* Rows of a tile: a layer is computed tile by tile over the rows of a step, ≤ LAYER_TILE_ROWS_MAX. 0: the default,
     * LAYER_TILE_ROWS_MAX where experts are streamed, so that a step reads each expert once; otherwise all rows. */
    int layer_tile_rows;
    /* The runner of ModelOptions.target, for an assistant: its backend computes this one's steps, which begin when its
     * own have ended, and they read its cache. `backend` tells the rows alone. It outlives this one. NULL: none. */
    const Runner *target;
    bool mtp;            /* the model's multi-token prediction head (Spec.mtp) in its place, without split */
    int outputs_max;     /* most rows of a step with logits; 0: all */
    int hidden_rows_max; /* most rows of a step with final hidden states; 0: none */
    /* Most rows of one sequence in a step, which its windows hold besides what they read; 0: all rows. */
    int sequence_rows_max;
} RunnerOptions;

/* Walks the decoder once on the plan backend, where every shape is checked and scratch is counted, and opens the real
 * backends. The model outlives the runner. */
NODISCARD Runner *runner_open(const Model *model, const RunnerOptions *options, Error *error);
void runner_close(Runner *runner); /* NULL is fine */

/* With ModelOptions.experts.stream: *bytes of the memory budget, or of free_bytes if these are fewer, that are left for
 * KV cache and experts. ERROR_MEMORY, with the smallest budget that would do, if they cannot hold the experts of one
 * layer and `least` bytes of KV cache. */
NODISCARD bool runner_budget_left(
    const Runner *runner, uint64_t least, uint64_t free_bytes, uint64_t *bytes, Error *error);

/* Host memory besides caches. Returned: scratch, threads and tables. *resident: the model's weights, without experts
 * that stay in their files. */
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

/* The same in two halves, for lookahead (runner_can_lookahead()): a step begins before the one before it has ended. At
 * most two steps are begun, and they end in order. Logits exist only if no other step begins between the two halves.
 * Everything that the step points at must stay until runner_end(). */
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

/* Final normed hidden states of the last step's Step.hidden_rows: [hidden_row_count, hidden], of an assistant
 * [hidden_row_count, width of Spec.state_output], valid as long as its logits. NULL: the step had none, or the device
 * failed, which the next step reports. */
const float *runner_hidden_rows(Runner *runner);
/* The same in memory of the last layer's backend, of a step that was begun: it is written when the step ends, and the
 * next step may read it (EmbeddingRange.in_backend). */
const float *runner_hidden_rows_there(const Runner *runner, const RunnerStep *begun);

/* The longest bidirectional span (SequenceChunk.spans) that a step may have: layers whose experts are streamed are
 * computed in tiles, and a span must fit one. INT_MAX: any. */
int runner_span_rows_max(const Runner *runner);

/* Results of sum_logits (backend.h) for the last step's logits and scales: [output_count, 2, blocks], valid as long as
 * its logits. NULL: the backend does not compute sums; the host's sampler does. */
const float *runner_sums(const Runner *runner);

/* The table of `apus info`. */
void runner_describe(const Runner *runner, Buffer *out);
