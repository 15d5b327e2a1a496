/* Prefill of a step without outputs in slices (slice_walk.h): the runner may compute other steps between two of them.
 * For spans whose rows see each other, which no step may divide. Its results, keys and values, have the bits of one
 * step. Threads: those of the runner. */
#pragma once
#include "model/runner.h"
#include "model/slice_walk.h"

typedef struct SlicedStep SlicedStep;

/* Whether the runner can: layers of attention and of components that compute each row alone, on one backend with
 * set_rows. */
bool sliced_step_possible(const Runner *runner);
/* The runner outlives it. */
NODISCARD SlicedStep *sliced_step_open(Runner *runner, Error *error);
void sliced_step_close(SlicedStep *sliced); /* NULL is fine */

/* Begins a step of prefill rows, whatever was begun before; pages are reserved. It is borrowed until it is done, its
 * embeddings for the call. */
NODISCARD bool sliced_step_begin(SlicedStep *sliced, KvCache *cache, const Step *step, Error *error);
SliceKind sliced_step_next(const SlicedStep *sliced); /* kind of the next slice */
/* Computes a slice of at most *rows rows; *rows becomes their number. */
NODISCARD bool sliced_step_continue(SlicedStep *sliced, int *rows, bool *done, Error *error);
