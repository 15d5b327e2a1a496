/* The one decoder: walks the rows of a Spec over the backends that its weights are bound to. */
#pragma once
#include "model/bound.h"

enum {
    LAYER_TILE_ROWS_MAX = 512,   /* most Bound.layer_tile_rows */
    MICRO_BATCH_CHUNKS_MAX = 64, /* most runs of a step whose halves are walked in turns */
};

/* The step's tokens through all layers, what they leave into the cache, and the logits of rows output[0…count): their
 * address in memory of the last layer's backend, [count, vocab]; decoder_hidden_rows_at() floats behind it the states
 * of rows step->states, [hidden_row_count, hidden]. NULL when neither is wanted. step->draws: of backends that draw.
 * cache: [layer_count]. The caller has checked the step and waits for *tickets, [backend_count]. */
float *decoder_forward(
    const Bound *bound, const KvLayer *cache, const Step *step, int count, const int32_t *output, uint64_t *tickets);
int64_t decoder_hidden_rows_at(const Spec *spec, int count);
/* Floats of all that, and of what sum_logits or draw left, which begins there. */
int64_t decoder_results(const Spec *spec, const Step *step, int count, bool summed);
int64_t decoder_sums_at(const Spec *spec, const Step *step, int count);
