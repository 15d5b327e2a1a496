/* A copier reads weights from a mapped file with several threads: one thread, which takes the mapping's page faults,
 * reaches a fifth of the device's rate. Threads: one copy at a time. */
#pragma once
#include <stddef.h>

#include "base/error.h"

typedef struct Copier Copier;
NODISCARD Copier *copier_open(Error *error);
void copier_copy(Copier *copier, void *to, const void *from, size_t bytes);
void copier_close(Copier *copier); /* NULL is fine */
