/* How the memory budget of a model whose experts are streamed is divided. */
#pragma once
#include "engine/engine.h"

/* The most draft tokens of a step, whatever the backend is; 0: no speculative decoding. */
int engine_draft_rows(const EngineOptions *options);
/* The engine's runner: rows, outputs and hidden rows of its largest step. */
RunnerOptions engine_runner_options(const EngineOptions *options);
/* What experts and KV cache may take together where so much is free; 0: experts are not streamed. */
NODISCARD bool expert_room(
    const Runner *runner, const EngineOptions *options, uint64_t free_bytes, uint64_t *bytes, Error *error);
/* What of a KV cache of so many bytes the host holds, beside the experts: its layers' part. */
uint64_t expert_cache_held(const Runner *runner, uint64_t bytes);
/* What of it the cache may take when it is not told: it and the experts have the least they need at least. */
uint64_t expert_cache_share(const Runner *runner, uint64_t bytes);
/* Takes memory for experts, of at most so many bytes; *taken: what it took. */
NODISCARD bool expert_hold(const Model *model, uint64_t bytes, size_t *taken, Error *error);
