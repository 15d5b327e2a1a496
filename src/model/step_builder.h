/* Builds steps (Step in backend.h) from rows of sequences; all steps are made here. Between step_begin() and step_end()
 * sequences are added in the order of their rows: those with decode rows first.
 *
 * Invariant: the bits of a row's results depend on that row and its sequence alone, not on the number of rows that its
 * own sequence or other sequences have in the step. So k decode rows of one sequence compute what k steps of one row
 * compute (tests/family/test_batch.c). Nothing here allocates but step_builder_open(). Threads: one at a time. */
#pragma once
#include "cache/kv_cache.h"

/* The largest step. */
typedef struct StepCapacity {
    int rows, sequences, outputs, hidden_rows;
    int embeddings; /* ranges of given embeddings */
} StepCapacity;

typedef struct StepBuilder {
    StepCapacity capacity;
    Step step; /* complete after step_end(); its counts are valid from step_begin() on */
    int32_t *tokens, *positions, *outputs, *hidden_rows;
    float *scales;
    SampleParams *sample_params;
    SequenceChunk *chunks;
    EmbeddingRange *embeddings;
    bool has_dims;    /* some row's positions differ between the dimensions */
    bool has_scales;  /* each output so far has a scale */
    bool has_samples; /* each output so far has sampling parameters */
    bool failed;      /* a sequence was refused: error says which */
    Error error;
} StepBuilder;

/* Consecutive rows of one sequence. tokens, positions, outputs, scales and sample_params are borrowed for the call;
 * tables, quant, spans and the values of embeddings until the step has been waited for. */
typedef struct StepSequence {
    int rows;    /* ≥ 1 */
    bool decode; /* decode rows; otherwise prefill rows */

    const KvSequence
        *kv;       /* kv_reserve() was called for the rows; NULL: position, tables and quant say where they are */
    int lookahead; /* rows of a step that has not ended, which precede these and are not in kv->length yet */
    int position;  /* without kv: place in the cache of the first row */
    const int32_t *const *tables;
    const KvQuantView *quant; /* NULL: full precision */
    int adapter;              /* as in SequenceChunk */

    const int32_t *tokens; /* [rows] ids or token_from_output(); rows with given embeddings are not read. NULL: all
                              rows have given embeddings */
    int embedding_count;
    const EmbeddingRange *embeddings; /* row counts from the sequence's first row */
    bool states; /* the embeddings are hidden states of all rows (StateInput), beside their tokens */

    const int32_t *positions; /* [POSITION_DIMS_MAX][rows] RoPE positions; NULL: the place in the cache plus
                                 position_offset, on every dimension */
    int position_offset;
    int span_count;
    const BidirectionalSpan *spans; /* as in SequenceChunk */

    int output_count;
    const int32_t *outputs;            /* ascending, counted from the sequence's first row; NULL: the last ones */
    const float *scales;               /* [output_count] as Step.scales; NULL: none */
    const SampleParams *sample_params; /* [output_count] as Step.sample_params; NULL: the host samples */
    int hidden_row_count;              /* the last rows whose final hidden states are computed */
} StepSequence;

NODISCARD bool step_builder_open(StepBuilder *builder, const StepCapacity *capacity, Error *error);
void step_builder_close(StepBuilder *builder); /* safe on a zeroed one */

/* uniform_matmul: as Step. */
void step_begin(StepBuilder *builder, bool uniform_matmul);
/* A sequence that has no room or does not hold together adds nothing; step_end() reports the first one. */
void step_add_sequence(StepBuilder *builder, const StepSequence *sequence);
/* The step, valid until step_begin(). It has one position dimension where all positions are equal on all dimensions.
 * Tokens are sampled by the backend (sample_params) if all outputs have sampling parameters; otherwise it has scales if
 * all outputs have. NULL: a sequence was refused, ERROR_LIMIT for one without room, ERROR_USAGE for one that does not
 * hold together. */
const Step *step_end(StepBuilder *builder, Error *error);
