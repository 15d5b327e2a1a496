#include "engine/placement.h"

#include <limits.h>

#include "base/math.h"
#include "backend/plugin.h"
#include "fit/fit.h"

int placement_layers(const EngineOptions *options, int layers) {
    return options->gpu_layers > 0 && options->gpu_layers < layers ? options->gpu_layers : layers;
}

void placement_runner(const EngineOptions *options, const Model *model, RunnerOptions *out) {
    const int layers = model_layers(model), there = placement_layers(options, layers);
    if (there == layers) return;
    out->split = layers - there;
    out->upper = out->backend;
    out->backend.device = NULL;
    out->backend.wrap = NULL;
}

void placement_leave(const EngineOptions *options, const Model *model) {
    const int layers = model_layers(model);
    if (backend_on_device(options->backend.device))
        model_drop_host_pages(model, layers - placement_layers(options, layers));
}

/* A part of a budget, in thousandths: what a backend takes of it. Pages of any size fit the budget that is tried. */
static size_t thousandths(const KvPlan *plan, const Backend *backend) {
    const size_t large = (size_t)1 << 50;
    return kv_taken_bytes(plan, backend, large) / (large / 1000) + 1;
}

double placement_kv_host(const EngineOptions *options, const Runner *runner, size_t bytes) {
    const Backend *lower = runner_backend(runner);
    if (!backend_on_device(options->backend.device) || !bytes) return 1;
    if (lower == runner_upper(runner)) return 0;
    return (double)min_size(kv_taken_bytes(runner_kv_plan(runner), lower, bytes), bytes) / (double)bytes;
}

bool placement_kv_most(
    const EngineOptions *options, const Runner *runner, size_t host_free, size_t *most, Error *error) {
    const Backend *lower = runner_backend(runner), *upper = runner_upper(runner);
    const KvPlan *plan = runner_kv_plan(runner);
    const bool planned = *most > 0;
    if (!planned) *most = host_free / 2;
    if (!backend_on_device(options->backend.device)) return true;
    uint64_t free;
    const Plugin *plugin = plugin_memory(&options->backend, &free, error);
    if (!plugin) return false;
    const uint64_t slices = (uint64_t)(options->backend.tensor_parallel > 1 ? options->backend.tensor_parallel : 1);
    const uint64_t work = slices * plugin->work_bytes(upper->rows_max, 0);
    free = free / 100 * FIT_GPU_PERCENT;
    const size_t there = free > work ? (size_t)(free - work) / thousandths(plan, upper) * 1000 : 0;
    if (!planned) *most = lower == upper ? there : *most / thousandths(plan, lower) * 1000;
    *most = min_size(there, *most);
    return true;
}

void placement_explain(const EngineOptions *options, Error *error) {
    const bool memory = error && (error->code == ERROR_MEMORY || (error->code == ERROR_LIMIT && !options->kv_bytes));
    const bool whole = options->gpu_layers == GPU_LAYERS_ALL && backend_on_device(options->backend.device);
    if (!memory || !whole || !options->fit) return;
    EngineOptions own = *options;
    Error why = {0};
    own.gpu_layers = INT_MAX; /* as a number of layers: GPU_LAYERS_ALL is not planned */
    if (!options->fit(&own, &why)) {
        if (why.code == ERROR_MEMORY) *error = why;
        return;
    }
    uint64_t free_bytes;
    if (!plugin_memory(&options->backend, &free_bytes, &why)) return;
    why = *error;
    fail(error, why.code,
        "%s; %.3f GB of the GPU's memory are free without this model: --gpu-layers auto puts as many layers there as "
        "fit",
        why.text, (double)free_bytes * 1e-9);
}
