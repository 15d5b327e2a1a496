/* backend/cuda/runtime/: the backend on the host side: opening it, memory, weights, steps and their graphs, sampling,
 * tensor parallelism; and what all kernels share.
 *
 * Weights out of a mapped file, by several threads: one alone, which meets the mapping's faults, is a fifth as fast as
 * the device takes them. Threads: one at a time copies. */
#pragma once
#include <stddef.h>

#include "base/error.h"

typedef struct Copier Copier;
NODISCARD Copier *copier_open(Error *error);
void copier_copy(Copier *copier, void *to, const void *from, size_t bytes);
void copier_close(Copier *copier); /* NULL is fine */
