#include "engine/expectation.h"

#include "base/math.h"
#include "base/memory.h"
#include "engine/resources.h"

/* A GGUF file's conversion, work areas and the cache of a chat beside the weights, in percent of them. */
enum { SIZE_PERCENT = 120 };

static uint64_t memory_of(const EngineOptions *o) {
    return o->resources ? resources_available(o->resources) : memory_available();
}

static bool is_roomy(uint64_t needed, uint64_t memory) { return needed <= memory / 100 * EXPECTED_PERCENT; }

static ExpectedFit fit_of(const EnginePlan *plan, uint64_t memory, Fit *fit) {
    FitMachine machine = plan->machine;
    Error why;
    machine.memory = memory;
    if (!fit_plan(&machine, &plan->model, &plan->request, fit, &why)) return EXPECTED_TOO_LARGE;
    if (fit->stream) return EXPECTED_STREAMED;
    if (fit->gpu_layers) return fit->gpu_layers == plan->model.layers ? EXPECTED_FITS : EXPECTED_TIGHT;
    const FitModel *model = &plan->model;
    const uint64_t sequence = fit->quantised ? model->kv_quantised : model->kv_full;
    const uint64_t experts = model->expert_bytes * (uint64_t)model->experts;
    return is_roomy(model->dense_bytes + model->besides_bytes + model->media_bytes + experts + sequence, memory)
        ? EXPECTED_FITS
        : EXPECTED_TIGHT;
}

bool engine_expect(const EngineOptions *options, uint64_t held_bytes, Expectation *out, Error *error) {
    EnginePlan plan;
    Fit now, alone;
    EngineOptions own = *options;
    if (backend_on_device(own.backend.device) && own.gpu_layers == GPU_LAYERS_ALL) own.gpu_layers = GPU_LAYERS_AUTO;
    *out = (Expectation){0};
    if (!engine_plan(&own, PLAN_TYPICAL, &plan, error) && error->code != ERROR_MEMORY) return false;
    const FitModel *model = &plan.model;
    if (model->layers == 0) return false; /* the plan did not come so far */
    const uint64_t experts = model->expert_bytes * (uint64_t)model->experts;
    out->memory_bytes = plan.machine.memory;
    out->alone_bytes = plan.machine.memory + held_bytes;
    out->now = fit_of(&plan, out->memory_bytes, &now);
    out->fit = fit_of(&plan, out->alone_bytes, &alone);
    out->weight_bytes = model->weight_bytes;
    out->needed_bytes = model->dense_bytes + model->besides_bytes + model->media_bytes + experts + model->kv_full;
    out->floor_bytes = now.floor;
    out->kv_bytes = out->now == EXPECTED_TOO_LARGE ? 0 : now.kv_bytes;
    out->experts = model->experts;
    out->held = now.held;
    out->context = model->context;
    out->decode = out->fit == EXPECTED_TOO_LARGE ? 0 : alone.decode;
    out->prompt = out->fit == EXPECTED_TOO_LARGE ? 0 : alone.prompt;
    out->measured = plan.recalled;
    return true;
}

/* ---- the machine ---- */

static bool recall(const EngineOptions *options, FitMachine *machine) {
    char backend[BACKEND_DESCRIPTION_MAX];
    CalibrationKey key;
    const FitModel usual = fit_usual_model();
    Error ignored = {0};
    return engine_typical_key(options, backend, &key, &ignored) && calibration_load(&key, &usual, machine, &ignored);
}

bool engine_machine_known(const EngineOptions *options) {
    FitMachine machine;
    return recall(options, &machine);
}

bool engine_machine_measure(const EngineOptions *options, const char *path, Error *error) {
    char backend[BACKEND_DESCRIPTION_MAX];
    CalibrationKey key;
    const FitModel usual = fit_usual_model();
    FitModel wanted = usual;
    FitMachine machine;
    BackendOptions own = options->backend;
    own.device = NULL;
    own.tensor_parallel = 0;
    if (options->resources) own.pool = resources_pool(options->resources);
    if (!path) wanted.experts = 0;
    return engine_typical_key(options, backend, &key, error) && fit_measure(&wanted, &own, path, &machine, error) &&
        calibration_save(&key, &usual, &machine, error);
}

void engine_expect_size(const EngineOptions *options, uint64_t weight_bytes, uint64_t held_bytes, Expectation *out) {
    FitMachine machine;
    const uint64_t needed = weight_bytes / 100 * SIZE_PERCENT, memory = memory_of(options);
    *out = (Expectation){.weight_bytes = weight_bytes,
        .needed_bytes = needed,
        .floor_bytes = weight_bytes,
        .memory_bytes = memory,
        .alone_bytes = memory + held_bytes};
    const uint64_t memories[] = {out->memory_bytes, out->alone_bytes};
    ExpectedFit *fits[] = {&out->now, &out->fit};
    for (size_t i = 0; i < COUNT_OF(memories); i++)
        *fits[i] = is_roomy(needed, memories[i]) ? EXPECTED_FITS
            : needed <= memories[i] / 10 * 9     ? EXPECTED_TIGHT
                                                 : EXPECTED_TOO_LARGE;
    if (out->fit != EXPECTED_TOO_LARGE && recall(options, &machine))
        out->decode = machine.rows[0] / (double)weight_bytes;
}

const ModelPlanner engine_planner = {engine_expect, engine_expect_size, engine_machine_known, engine_machine_measure};
