/* Opening and closing: what goes where, in the order in which one thing needs the other. */
#include "engine/engine_internal.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/log.h"
#include "base/math.h"
#include "engine/check.h"
#include "engine/expert_memory.h"
#include "engine/kv_choice.h"
#include "engine/placement.h"
#include "model/spec.h"

/* Bytes of memory that are neither taken nor reserved. */
static size_t free_memory(const Engine *engine) {
    return engine->resources ? resources_available(engine->resources) : memory_available();
}

static size_t default_pool(const Engine *engine, int slots, size_t most) {
    const Runner *runner = engine->runner;
    const size_t one = kv_bytes_for(runner_kv_plan(runner), &engine->kv_format, model_context(runner_model(runner)));
    const size_t snapshots = SNAPSHOTS_DEFAULT * kv_snapshot_bytes(runner_kv_plan(runner));
    size_t bytes;
    return size_mul(one, (size_t)slots, &bytes) && bytes < most && snapshots < most - bytes ? bytes + snapshots : most;
}

/* Bytes that are left for all else; the memory of a device is its own. */
static size_t free_beside_media(const Engine *engine) {
    const size_t all = free_memory(engine), media = engine->media_host_bytes;
    return all > media ? all - media : 0;
}

/* Settles how large images may be. */
static bool plan_media(Engine *engine, const EngineOptions *options, Error *error) {
    const uint64_t budget = options->model.experts.memory_budget, all = free_memory(engine);
    const bool device = backend_on_device(options->backend.device);
    const uint64_t most = device ? 0 : (budget && budget < all ? budget : all) / MEDIA_MEMORY_SHARE;
    MediaMemory *memory = &engine->media_memory;
    if (!media_memory(engine->model, model_context(engine->model), most, device, memory, error)) return false;
    if (!device) engine->media_host_bytes = (size_t)(memory->encoder_bytes + memory->cache_bytes);
    return true;
}

/* What computes the rows of images and audio; rows are memory of the first layer's backend. */
static bool open_media(Engine *engine, const RunnerOptions *runner, Error *error) {
    const VisionSpec *vision = model_spec(engine->model)->vision;
    if (!vision && !model_spec(engine->model)->audio) return true;
    const int layers = vision ? vision->deepstack_count : 0;
    if (runner->backend.tensor_parallel > 1 || (runner->split > 0 && runner->split < layers)) {
        log_warn("images and audio are not supported with these devices, the model reads text alone");
        return true;
    }
    BackendOptions own = runner->backend;
    own.wrap = NULL;
    engine->media = media_cache_open(engine->model, runner_backend(engine->runner), &own, &engine->media_memory, error);
    return engine->media;
}

/* A step has room for any text of an encoder, and its pooling may read any row. */
static void take_whole_texts(const Model *model, EngineOptions *options, RunnerOptions *runner) {
    const int context = min_int(model_context(model), RUNNER_ROWS_MAX / 2);
    runner->backend.rows_max += max_int(context - options->prefill_size, 0);
    options->prefill_size = max_int(context, options->prefill_size);
    if (model_classifies(model)) options->pooling = POOLING_FIRST;
    if (!options->pooling) options->pooling = POOLING_MEAN;
    runner->hidden_rows_max = runner->backend.rows_max;
    runner->sequence_rows_max = 0;
    options->speculation = (SpeculationOptions){0};
}

/* Threads for the model and what drafts for it: two sets would wait for each other's cores. */
static bool share_threads(Engine *engine, EngineOptions *options, Error *error) {
    if (options->resources || !(options->model.mtp || options->speculation.draft_directory)) return true;
    options->resources = engine->own_resources = resources_open(options->backend.threads, error);
    return engine->own_resources;
}

static bool open_parts(Engine *engine, const EngineOptions *asked, Error *error) {
    EngineOptions own = *asked, *options = &own;
    if ((options->fit && !options->fit(options, error)) || !check_engine_options(options, error) ||
        !share_threads(engine, options, error))
        return false;
    engine->notify = options->notify;
    engine->notify_context = options->notify_context;
    engine->failed = options->failed;
    engine->failed_context = options->failed_context;
    RunnerOptions runner = engine_runner_options(options);
    engine->resources = options->resources;
    own.model.device_layers = options->gpu_layers > 0 ? options->gpu_layers : 0;
    engine->model = model_open(options->directory, &options->model, error);
    if (!engine->model) return false;
    if (model_spec(engine->model)->encoder) take_whole_texts(engine->model, &own, &runner);
    engine->pooling = options->pooling;
    placement_runner(options, engine->model, &runner);
    engine->runner = runner_open(engine->model, &runner, error);
    if (!engine->runner) return false;
    placement_leave(options, engine->model);
    model_watch_experts(engine->model, engine_step_given_up, engine);
    engine->vocab = model_vocab(engine->model);
    engine->eos_count = model_eos(engine->model, engine->eos);
    uint64_t left = 0;
    if (!plan_media(engine, options, error) ||
        !expert_room(engine->runner, options, free_beside_media(engine), &left, error))
        return false;
    size_t most = options->kv_bytes;
    if (!asked->kv_bytes && !placement_kv_most(options, engine->runner, free_beside_media(engine), &most, error))
        return false;
    if (left && !options->kv_bytes) {
        const uint64_t share = expert_cache_share(engine->runner, left);
        most = share < most ? share : most;
    }
    if (!kv_choose(options, engine->runner, most, &engine->kv_format, error)) return false;
    own.kv_format = engine->kv_format;
    const size_t pool = options->kv_bytes ? most : default_pool(engine, options->slots, most);
    size_t experts = 0;
    const uint64_t held = expert_cache_held(engine->runner, pool);
    if (left && !expert_hold(engine->model, left - held, &experts, error)) return false;
    engine->kv = kv_open(runner_kv_plan(engine->runner), pool, error);
    engine->kv_host = placement_kv_host(options, engine->runner, pool);
    engine->account.promised = (size_t)((double)pool * engine->kv_host) + experts + engine->media_host_bytes;
    if (engine->resources) resources_enter(engine->resources, &engine->account);
    if (!engine->kv || !open_media(engine, &runner, error) ||
        !scheduler_open(&engine->scheduler, engine->runner, engine->kv, engine->media, options, error))
        return false;
    const VisionSpec *vision = engine->media ? model_spec(engine->model)->vision : NULL;
    if (vision && vision->bidirectional && sliced_step_possible(engine->runner) &&
        ((engine->sliced = sliced_step_open(engine->runner, error)) == NULL ||
            !scheduler_slice_spans(&engine->scheduler, error)))
        return false;
    if (engine->scheduler.context < model_context(engine->model))
        log_warn("the KV cache limits a sequence to %d of %d tokens", engine->scheduler.context,
            model_context(engine->model));
    if (!sampler_scratch_open(&engine->scratch, engine->vocab, error)) return false;
    const EndTokens ends = {engine->eos, engine->eos_count};
    engine->lookahead = mask_workers_open(options->slots, engine->vocab, ends, error);
    if (!engine->lookahead) return false;
    engine->working = malloc((size_t)engine->vocab * sizeof *engine->working);
    if (!engine->working) return fail(error, ERROR_MEMORY, "no memory for a row of logits");
    const int context = engine->scheduler.context;
    const size_t whole = kv_bytes_for(runner_kv_plan(engine->runner), &engine->kv_format, context);
    engine->kv_blocks = (uint64_t)((double)pool / (double)whole * context / KV_PAGE_TOKENS);
    engine->stall_ms = options->stall_ms ? options->stall_ms : STALL_MS;
    engine_publish_stats(engine);
    engine->thread_runs = thread_start(&engine->thread, engine_run, engine, "apus-engine", error);
    return engine->thread_runs;
}

Engine *engine_open(const EngineOptions *options, Error *error) {
    Engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        fail(error, ERROR_MEMORY, "no memory for an engine");
        return NULL;
    }
    mutex_init(&engine->mutex);
    condition_init(&engine->wake);
    condition_init(&engine->round_ended);
    if (open_parts(engine, options, error)) return engine;
    engine_close(engine);
    placement_explain(options, error);
    return NULL;
}

void engine_close(Engine *engine) {
    if (!engine) return;
    mutex_lock(&engine->mutex);
    engine->closing = true;
    condition_signal(&engine->wake);
    mutex_unlock(&engine->mutex);
    if (engine->thread_runs) thread_join(engine->thread);
    scheduler_close(&engine->scheduler);
    sliced_step_close(engine->sliced);
    mask_workers_close(engine->lookahead);
    sampler_scratch_close(&engine->scratch);
    free(engine->working);
    if (engine->resources) resources_leave(engine->resources, &engine->account);
    media_cache_close(engine->media);
    kv_close(engine->kv);
    runner_close(engine->runner);
    model_close(engine->model);
    resources_close(engine->own_resources);
    condition_destroy(&engine->wake);
    condition_destroy(&engine->round_ended);
    mutex_destroy(&engine->mutex);
    free(engine);
}
