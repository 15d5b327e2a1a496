/* The pooling of an embedding model, from sentence-transformers' files: modules.json names a Pooling module, whose
 * config.json says how hidden states become one vector. Threads: any. */
#pragma once
#include "engine/engine.h"

/* POOLING_NONE: there are no such files. False: unreadable files, or a pooling other than first token, last token
 * and mean (ERROR_UNSUPPORTED). */
NODISCARD bool pooling_read(const char *directory, Pooling *pooling, Error *error);
