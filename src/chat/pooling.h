/* How a checkpoint's states become one vector for a text, as sentence-transformers' files say it: modules.json, which
 * names a Pooling module, and that module's config.json. Threads: any. */
#pragma once
#include "engine/engine.h"

/* POOLING_NONE: no such files, so it was not made for it. False: files that cannot be read, or that ask for more than
 * the last token's state or the mean of all (ERROR_UNSUPPORTED). */
NODISCARD bool pooling_read(const char *directory, Pooling *pooling, Error *error);
