/* Everything that determines the bytes of cached pages besides their text, as a line of text for the disk tier. */
#pragma once
#include "base/buffer.h"
#include "engine/engine.h"

/* Appends names, sizes and times of the model's files, the version, instruction sets, layouts of cache entries, and all
 * options that change results. Equal texts: pages are interchangeable. ERROR_IO: the model's directory cannot be
 * listed. */
NODISCARD bool cache_identity(const EngineOptions *options, const Runner *runner, Buffer *out, Error *error);
