/* Rowwise operations of few families, in plain C for the reference and the vector backends: a row's result is the same
 * on both. The pool shares the rows. */
#pragma once
#include "backend/backend.h"
#include "backend/cpu/pool.h"

void streams_mix(Pool *pool, const StreamMix *op);
void streams_match_rms(Pool *pool, const MatchRms *op);
void streams_sparsify(Pool *pool, const Sparsify *op);
void streams_gate_heads(Pool *pool, const HeadGate *op);
