/* The inside of the decoder: decoder.c walks layers, decoder_stream.c walks layers whose experts are streamed,
 * decoder_output.c computes logits; decoder_call.c serves both walks. */
#pragma once
#include "model/decoder.h"

/* A step on one backend. Its memory is scratch, taken at the step's start; everything is borrowed. */
typedef struct Stage {
    const Bound *bound;
    const StreamSchedule *schedule;
    const KvLayer *entries; /* [cache_entries] */
    Backend *backend;
    int number;            /* number of the backend */
    bool walk;             /* operations must be called; false: the backend repeats an earlier walk */
    int rows;              /* rows of the step */
    int tile_rows;         /* rows that a layer computes at once */
    float *residual;       /* [rows, hidden]; the second backend's is Bound.arrival */
    float *work;           /* [tile_rows, Bound.width] used by one component after another; by recurrent ones as [rows,
                              Bound.recurrent_width] */
    float *normed;         /* [Bound.group_norms, rows, hidden] inputs of parallel components; at the end, rows with
                              outputs */
    float *layer_inputs;   /* [rows, layers · width] LayerInputs, behind the residual; NULL: there are none */
    float *streams;        /* [streams, rows, hidden] of AltUp, or [rows, streams, hidden] of hyper-connections, behind
                              layer_inputs; NULL: the residual is one stream */
    float *prefetch_work;  /* [Bound.width]; NULL: no prefetch */
    int32_t *chosen;       /* [rows, Bound.chosen_width] of indexers; NULL: there are none */
    float *mix_logits;     /* [rows, hyper_logits()] of hyper-connections; NULL: there are none */
    float *kept;           /* [rows, hidden] the residual before a component of the layer (Component.reads); NULL: no
                              component reads it */
    const int32_t *tokens; /* [rows] Step.tokens */
    const Step *adapted;   /* the step, if some of its rows have an adapter; NULL: none has */
} Stage;

/* Consecutive rows of the step. */
typedef struct Rows {
    int first, rows;
    int decode_rows; /* decode_rows_for_matmul() of these rows */
    int micro_batch;
} Rows;

/* The decode rows of a step's products with weights. */
static inline int decode_rows_for_matmul(const Step *step) { return step->uniform_matmul ? 0 : step->decode_rows; }

/* Whether component c shares a normalised input with a neighbour. */
static inline bool is_grouped(const Layer *layer, int c) {
    return layer->components[c].parallel || (c + 1 < layer->component_count && layer->components[c + 1].parallel);
}

/* ---- decoder_call.c ---- */

/* The call of component c of layer i. If c begins a group of parallel components, normalises the inputs of the group.
 */
ComponentCall decoder_call(const Stage *stage, int i, int c, const Rows *rows);

/* ---- decoder_streams.c ---- */

/* AltUp, hyper-connections: makes the streams of the embedded rows; makes the residual of the streams. */
void streams_expand(const Stage *stage, const Step *step);
void streams_merge(const Stage *stage, const Step *step);

/* ---- decoder_stream.c ---- */

/* Walks all layers as two micro-batches; false: the schedule does not say so, nothing was done. */
bool stream_two_batches(const Stage *stage, const Step *step);
/* One layer, tile by tile. */
void stream_layer(const Stage *stage, int i, const Step *step);

/* ---- decoder_output.c ---- */

/* Logits, sums or samples, and hidden rows; what decoder_forward() returns. */
float *decoder_outputs(const Stage *stage, const Step *step);
