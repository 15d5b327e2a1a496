/* The KV format of requests that name none, and whether a model supports it. */
#pragma once
#include "engine/engine.h"

/* memory: bytes of the page pool. ERROR_USAGE if a listed layer does not exist. Logs that a model's cache cannot be
 * quantised. */
NODISCARD bool kv_choose(
    const EngineOptions *options, const Runner *runner, size_t memory, KvFormat *out, Error *error);
