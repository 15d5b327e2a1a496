/* Which form requests' pages get that ask for none, and whether a model can have it. */
#pragma once
#include "engine/engine.h"

/* memory: bytes that the pages may take. ERROR_USAGE when a listed layer does not exist; what the model cannot code is
 * logged. */
NODISCARD bool kv_choose(
    const EngineOptions *options, const Runner *runner, size_t memory, KvFormat *out, Error *error);
