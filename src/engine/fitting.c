#include "engine/fitting.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "backend/plugin.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/draft_model.h"
#include "engine/expert_memory.h"
#include "engine/mtp_head.h"
#include "engine/resources.h"
#include "model/decoder.h"

enum { PREFILL = 512, PREFILL_STREAMED = 8192 };

static FitRequest wishes_of(const EngineOptions *o) {
    return (FitRequest){.slots = o->slots,
        .budget = o->model.experts.memory_budget,
        .kv_bytes = o->kv_bytes,
        .form = o->kv_auto              ? FIT_AUTO
            : o->kv_format.k == KV_FULL ? FIT_FULL
                                        : FIT_QUANTISED,
        .stream = o->model.experts.stream,
        .prompt = FIT_PROMPT,
        .gpu_layers = !backend_on_device(o->backend.device) ? 0
            : o->gpu_layers == GPU_LAYERS_AUTO              ? FIT_GPU_AUTO
            : o->gpu_layers == GPU_LAYERS_ALL               ? INT_MAX
                                                            : o->gpu_layers};
}

/* ---- calibrations ---- */

static CalibrationKey key_of(const EngineOptions *o, const char *backend) {
    return (CalibrationKey){o->calibrations, o->directory, backend};
}

void engine_plan_keep(const EngineOptions *o, const EnginePlan *plan) {
    Error error = {0};
    const CalibrationKey key = key_of(o, plan->backend);
    if (o->calibrations && !calibration_save(&key, &plan->model, &plan->machine, &error)) log_warn("%s", error.text);
}

/* What was measured before; its end-to-end figures stay when the rest is measured anew. */
static bool recall(const EngineOptions *o, EnginePlan *plan) {
    Error why = {0};
    const CalibrationKey key = key_of(o, plan->backend);
    const bool known = o->calibrations && calibration_load(&key, &plan->model, &plan->machine, &why);
    if (why.code) log_warn("%s: it is not used", why.text);
    return known;
}

/* Options of the CPU backend that computes the layers not on the GPU. */
static BackendOptions host_options(const EngineOptions *o) {
    BackendOptions host = o->backend;
    host.device = NULL;
    host.tensor_parallel = 0;
    return host;
}

bool engine_typical_key(
    const EngineOptions *o, char backend[BACKEND_DESCRIPTION_MAX], CalibrationKey *out, Error *error) {
    BackendOptions host = host_options(o);
    host.wrap = NULL;
    host.rows_max = host.scratch_bytes = 1;
    if (o->resources) host.pool = resources_pool(o->resources);
    if (!o->calibrations) return fail(error, ERROR_NOT_FOUND, "no directory for calibrations");
    Backend *opened = backend_open(&host, error);
    if (!opened) return false;
    snprintf(backend, BACKEND_DESCRIPTION_MAX, "%s", backend_describe(opened));
    backend_close(opened);
    *out = (CalibrationKey){o->calibrations, "weights of usual kinds", backend};
    return true;
}

static void recall_typical(const EngineOptions *o, EnginePlan *plan) {
    Error why = {0};
    FitMachine machine;
    char backend[BACKEND_DESCRIPTION_MAX];
    CalibrationKey key;
    const FitModel usual = fit_usual_model();
    if (engine_typical_key(o, backend, &key, &why) && calibration_load(&key, &usual, &machine, &why))
        fit_transfer(&usual, &machine, &plan->model, &plan->machine);
}

static bool look_at_gpu(const EngineOptions *o, const Runner *runner, EnginePlan *plan, Error *error) {
    const Plugin *plugin = plugin_memory(&o->backend, &plan->machine.gpu_memory, error);
    if (!plugin) return false;
    if (!plan->machine.gpu_memory) plan->machine.gpu_memory = 1; /* a full one is one, too */
    fit_model_gpu(runner, plugin, &plan->model);
    if (o->backend.tensor_parallel < 2) return true;
    const uint64_t gpus = (uint64_t)o->backend.tensor_parallel; /* what they do not divide, each has */
    plan->model.gpus = (int)gpus;
    plan->model.gpu_head_bytes *= gpus;
    plan->model.gpu_embedding_bytes *= gpus;
    plan->model.gpu_work_bytes *= gpus;
    return true;
}

/* What guesses draft tokens takes; it runs where the model's first backend is asked for. */
static bool count_drafts(const EngineOptions *o, const Model *model, FitModel *out, Error *error) {
    EngineOptions host = *o;
    host.backend = host_options(o);
    if (!host.prefill_size) host.prefill_size = o->model.experts.stream ? PREFILL_STREAMED : PREFILL;
    uint64_t bytes = 0;
    if (o->speculation.draft_directory && !draft_model_bytes(&host, model, &bytes, error)) return false;
    if (o->model.mtp && !mtp_head_bytes(&host, model, &bytes, error)) return false;
    *(backend_on_device(o->backend.device) ? &out->gpu_draft_bytes : &out->draft_bytes) = bytes;
    return true;
}

/* Memory of images, where the encoder runs. */
static bool count_media(const EngineOptions *o, const Model *model, EnginePlan *plan, Error *error) {
    const bool device = plan->machine.gpu_memory > 0;
    const uint64_t all = plan->machine.memory, budget = plan->request.budget;
    const uint64_t most = device ? 0 : (budget && budget < all ? budget : all) / MEDIA_MEMORY_SHARE;
    MediaMemory memory;
    if (!media_memory(model, model_context(model), most, device, &memory, error)) return false;
    const uint64_t bytes = memory.encoder_bytes + memory.cache_bytes;
    *(device ? &plan->model.gpu_work_bytes : &plan->model.media_bytes) += bytes;
    plan->model.media_tokens = memory.tokens_max;
    return true;
}

static bool measure(const EngineOptions *o, const Runner *runner, PlanSource source, EnginePlan *plan, Error *error) {
    const FitMachine before = plan->machine;
    const BackendOptions host = host_options(o);
    if (!fit_measure(&plan->model, &host, model_largest_file(runner_model(runner)), &plan->machine, error))
        return false;
    plan->machine.measured_decode = before.measured_decode;
    plan->machine.measured_prompt = before.measured_prompt;
    plan->machine.gpu_memory = before.gpu_memory;
    engine_plan_keep(o, plan);
    if (source == PLAN_KNOWN || !before.gpu_memory) return true;
    if (!fit_measure_gpu(&plan->model, &o->backend, &plan->machine, error)) return false;
    if (plan->model.gpus > 1) plan->machine.gpu_rows *= plan->model.gpus; /* as one of them was measured */
    return true;
}

static bool make(const EngineOptions *o, const Runner *runner, PlanSource source, EnginePlan *plan, Error *error) {
    fit_model(runner, &plan->model);
    snprintf(plan->backend, sizeof plan->backend, "%s", backend_describe(runner_backend(runner)));
    const size_t memory = o->resources ? resources_available(o->resources) : memory_available();
    plan->recalled = recall(o, plan);
    if (!plan->recalled && source == PLAN_TYPICAL) recall_typical(o, plan);
    plan->machine.memory = memory;
    if (backend_on_device(o->backend.device) && !look_at_gpu(o, runner, plan, error)) return false;
    if (!count_media(o, runner_model(runner), plan, error) ||
        !count_drafts(o, runner_model(runner), &plan->model, error))
        return false;
    if (!fit_plan(&plan->machine, &plan->model, &plan->request, &plan->fit, error)) return false;
    const bool blind = plan->fit.stream && plan->machine.disk.block_bytes == 0;
    if (source == PLAN_TYPICAL || (source == PLAN_KNOWN && !blind)) return true;
    if (!measure(o, runner, source, plan, error)) return false;
    plan->machine.memory = memory;
    return fit_plan(&plan->machine, &plan->model, &plan->request, &plan->fit, error);
}

bool engine_plan(const EngineOptions *options, PlanSource source, EnginePlan *out, Error *error) {
    ModelOptions tables = options->model; /* mapped: no page of weights is touched */
    tables.experts.stream = false;
    tables.weights = WEIGHTS_LAZY;
    tables.warn = NULL;
    const bool streams = options->model.experts.stream;
    *out = (EnginePlan){.request = wishes_of(options)};
    EngineOptions own = *options;
    own.backend = host_options(options);
    if (!own.prefill_size) own.prefill_size = streams ? PREFILL_STREAMED : PREFILL;
    RunnerOptions chunks = engine_runner_options(&own);
    chunks.layer_tile_rows = streams ? LAYER_TILE_ROWS_MAX : 0;
    Model *model = model_open(options->directory, &tables, error);
    Runner *runner = model ? runner_open(model, &chunks, error) : NULL;
    const bool ok = runner && make(options, runner, source, out, error);
    runner_close(runner);
    model_close(model);
    if (!ok || !out->fit.stream || streams) return ok;
    EngineOptions streamed = *options; /* whose steps are larger */
    streamed.model.experts.stream = true;
    return engine_plan(&streamed, source == PLAN_TYPICAL ? source : PLAN_KNOWN, out, error);
}

/* ---- what comes of it ---- */

static void choose_layers(EngineOptions *o, const Fit *fit) {
    if (o->gpu_layers == GPU_LAYERS_AUTO && fit->gpu_layers == 0) {
        log_warn("--gpu-layers auto: the processor has all layers, as none fits the GPU%s",
            fit->gpu_fit ? " or is faster there" : "");
        o->backend.device = NULL;
    }
    o->gpu_layers = fit->gpu_layers;
}

static void choose(EngineOptions *o, const FitMachine *machine, const FitModel *model, const Fit *fit) {
    if (fit->stream && !o->model.experts.stream) log_info("experts are streamed, as the model does not fit");
    o->model.experts.stream = fit->stream;
    const size_t usual = machine->memory / 2 < fit->kv_wanted ? machine->memory / 2 : fit->kv_wanted;
    if (!o->kv_bytes && (fit->stream || fit->gpu_layers || fit->kv_bytes < usual)) o->kv_bytes = fit->kv_bytes;
    if (o->gpu_layers) choose_layers(o, fit);
    if (!fit->stream) return;
    o->model.experts.memory_budget = fit->budget - model->draft_bytes; /* it is opened behind the expert cache */
    o->model.experts.cache.buffered = machine->disk.block_bytes > 0 && !machine->disk.direct;
    o->model.experts.cache.depth = machine->disk.depth;
}

bool engine_fit(EngineOptions *options, Error *error) {
    EnginePlan plan;
    Error why = {0};
    Buffer text = {0};
    const bool limited = options->model.experts.memory_budget || options->model.experts.stream || options->gpu_layers;
    const bool whole = backend_on_device(options->backend.device) && options->gpu_layers == GPU_LAYERS_ALL;
    bool ok = whole || engine_plan(options, PLAN_KNOWN, &plan, &why);
    if (ok && !whole) {
        fit_summary(&plan.machine, &plan.model, &plan.fit, &text);
        /* A conversation with a model that is simply there needs no words about it. */
        log_line(options->slots > 1 || plan.fit.stream ? LOG_INFO : LOG_DEBUG, "%s", text.data ? text.data : "");
        choose(options, &plan.machine, &plan.model, &plan.fit);
    } else if (!ok && why.code == ERROR_MEMORY && !limited) {
        log_warn("%s", why.text);
        ok = true;
    }
    if (!ok && error) *error = why;
    if (!options->prefill_size) options->prefill_size = options->model.experts.stream ? PREFILL_STREAMED : PREFILL;
    buffer_free(&text);
    return ok;
}
