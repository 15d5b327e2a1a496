/* Which layers of a model a GPU has and which the processor, and what memory that leaves for the KV cache. */
#pragma once
#include "engine/engine.h"

/* How many of so many the backend of the options has. */
int placement_layers(const EngineOptions *options, int layers);
/* The backends of a runner of this model, whose only one is the options' before. */
void placement_runner(const EngineOptions *options, const Model *model, RunnerOptions *out);
/* Once it is open: the host forgets what the GPU has. */
void placement_leave(const EngineOptions *options, const Model *model);
/* Bytes of the KV cache if no option sets them: *most, which a plan has chosen (0: none has, and it is half of what is
 * free on the host), as far as a GPU has room for what its layers take of that, beside what steps take. */
NODISCARD bool placement_kv_most(
    const EngineOptions *options, const Runner *runner, size_t host_free, size_t *most, Error *error);
/* The share of a KV cache's bytes that is host memory. */
double placement_kv_host(const EngineOptions *options, const Runner *runner, size_t bytes);
/* After engine_open() has failed and its device memory has been released: where the whole model was to be on a device
 * that has no room for it, the error becomes the plan's, which says what the model needs, what is free and how many
 * layers would fit. Where only the KV cache found no room, the error keeps its text, and what is free is added. Other
 * errors stay. */
void placement_explain(const EngineOptions *options, Error *error);
