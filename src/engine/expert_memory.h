/* Division of the memory budget of a model with streamed experts. */
#pragma once
#include "engine/engine.h"

/* The most draft tokens of a step, whatever the backend is; 0: no speculative decoding. */
int engine_draft_rows(const EngineOptions *options);
/* The engine's runner: rows, outputs and hidden rows of its largest step. */
RunnerOptions engine_runner_options(const EngineOptions *options);
/* *bytes: room for experts and KV cache together, if free_bytes are free; 0: experts are not streamed. */
NODISCARD bool expert_room(
    const Runner *runner, const EngineOptions *options, uint64_t free_bytes, uint64_t *bytes, Error *error);
/* Bytes of a KV cache of `bytes` that are host memory: the part of the layers on the CPU. */
uint64_t expert_cache_held(const Runner *runner, uint64_t bytes);
/* Bytes of the room for the KV cache, if no option sets them; cache and experts get at least their minimum. */
uint64_t expert_cache_share(const Runner *runner, uint64_t bytes);
/* Allocates at most `bytes` for experts; *taken: the bytes allocated. */
NODISCARD bool expert_hold(const Model *model, uint64_t bytes, size_t *taken, Error *error);
