/* The one decoder: walks the rows of a Spec over a backend. */
#pragma once
#include "model/spec.h"

/* Floats per row that the largest part of this layer works in. */
int64_t layer_width(const Layer *layer);

/* The step's tokens through all layers, their keys and values into the caches, and the logits of rows output[0…count)
 * to logits[count, vocab]. The caller has checked the step; faults surface in the backend's sync. */
void decoder_forward(Spec *spec, Backend *backend, const Step *step, int count, const int32_t *output, float *logits);
