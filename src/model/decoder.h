/* The one decoder: walks the layers of a Spec over the backends that its weights are bound to. */
#pragma once
#include "model/bound.h"
#include "model/decoder_stream.h"

/* Puts the step's rows through all layers, updates the cache, and computes logits of the step's outputs. Returns their
 * address in memory of the last layer's backend, [output_count, vocab]; decoder_hidden_rows_at() floats behind it are
 * the final-norm rows of step->hidden_rows, [hidden_row_count, decoder_state_width()]. NULL if the step has neither.
 * entries: [cache_entries]. The caller has checked the step, and waits for *tickets, [backend_count]. */
float *decoder_forward(
    const Bound *bound, const StreamSchedule *schedule, const KvLayer *entries, const Step *step, uint64_t *tickets);

/* Width of a row's final hidden state as a step gives it. */
int64_t decoder_state_width(const Spec *spec);
/* Layout of the results, in floats from their address: where hidden rows begin; where the sums of sum_logits() or
 * sample() begin; the total. */
int64_t decoder_hidden_rows_at(const Spec *spec, int count);
int64_t decoder_sums_at(const Spec *spec, const Step *step, int count);
int64_t decoder_results(const Spec *spec, const Step *step, int count, bool summed);
