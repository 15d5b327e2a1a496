/* Distribution of layers over GPU and CPU, and the memory that it leaves for the KV cache. */
#pragma once
#include "engine/engine.h"

/* Number of a model's layers that are on the backend of the options. */
int placement_layers(const EngineOptions *options, int layers);
/* Sets split and backends of *out, which has the options' backend for all layers. */
void placement_runner(const EngineOptions *options, const Model *model, RunnerOptions *out);
/* After the runner was opened: drops the host's pages of weights that are on the GPU. */
void placement_leave(const EngineOptions *options, const Model *model);
/* *most: on entry, the KV cache's bytes that a plan has chosen, 0: none has, and half of host_free is the default; on
 * return, at most as many as let the GPU's part fit beside its scratch. For engines without EngineOptions.kv_bytes. */
NODISCARD bool placement_kv_most(
    const EngineOptions *options, const Runner *runner, size_t host_free, size_t *most, Error *error);
/* The share of a KV cache's bytes that is host memory. */
double placement_kv_host(const EngineOptions *options, const Runner *runner, size_t bytes);
/* After engine_open() has failed and its device memory has been released: where the whole model was to be on a device
 * that has no room for it, the error becomes the plan's, which says what the model needs, what is free and how many
 * layers would fit. Where only the KV cache found no room, the error keeps its text, and what is free is added. Other
 * errors stay. */
void placement_explain(const EngineOptions *options, Error *error);
