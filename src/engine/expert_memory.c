#include "engine/expert_memory.h"

#include "base/log.h"
#include "base/math.h"
#include "engine/resources.h"
#include "engine/scheduler.h"
#include "fit/fit.h"

int engine_draft_rows(const EngineOptions *options) {
    const SpeculationOptions *s = &options->speculation;
    return s->lookup || s->draft_directory || s->script || options->model.mtp ? DRAFT_TOKENS_MAX : 0;
}

RunnerOptions engine_runner_options(const EngineOptions *options) {
    const int decode_rows = options->slots + engine_draft_rows(options);
    /* The same with and without drafts, and for any slots: the context that a KV cache has room for depends on it. */
    const int sequence_rows = max_int(options->prefill_size, 1 + DRAFT_TOKENS_MAX);
    RunnerOptions runner = {
        .backend = options->backend, .outputs_max = decode_rows + ECHO_ROWS, .sequence_rows_max = sequence_rows};
    runner.backend.rows_max = decode_rows + options->prefill_size;
    if (options->resources) runner.backend.pool = resources_pool(options->resources);
    if (options->pooling) /* only the last row is known beforehand */
        runner.hidden_rows_max = options->pooling == POOLING_LAST ? options->slots : runner.backend.rows_max;
    if (options->model.mtp) runner.hidden_rows_max = runner.backend.rows_max;
    if (options->speculation.draft_directory) /* it may be an assistant */
        runner.hidden_rows_max = max_int(runner.hidden_rows_max, decode_rows);
    return runner;
}

static uint64_t least_cache(const Runner *runner) { return kv_bytes_for(runner_kv_plan(runner), NULL, KV_PAGE_TOKENS); }

uint64_t expert_cache_held(const Runner *runner, uint64_t bytes) {
    const Backend *host = runner_backend(runner);
    const uint64_t held = host == runner_upper(runner) ? bytes : kv_taken_bytes(runner_kv_plan(runner), host, bytes);
    return held < bytes ? held : bytes;
}

bool expert_room(
    const Runner *runner, const EngineOptions *options, uint64_t free_bytes, uint64_t *bytes, Error *error) {
    *bytes = 0;
    if (!model_experts(runner_model(runner))) return true;
    const uint64_t least = options->kv_bytes ? options->kv_bytes : least_cache(runner);
    return runner_budget_left(runner, expert_cache_held(runner, least), free_bytes, bytes, error);
}

uint64_t expert_cache_share(const Runner *runner, uint64_t bytes) {
    return fit_cache_share(bytes, least_cache(runner), model_expert_floor(runner_model(runner)));
}

bool expert_hold(const Model *model, uint64_t bytes, size_t *taken, Error *error) {
    if (!model_hold_experts(model, bytes, error)) return false;
    ExpertProvider *source = model_experts(model);
    const ExpertProviderStats stats = source->stats(source);
    *taken = stats.bytes;
    log_info("experts: %d of %d fit into %.2f GB, the others are read by %s", stats.slots, stats.experts,
        (double)stats.bytes * 1e-9, stats.io);
    if (stats.bytes < model_expert_working_set(model))
        log_warn(
            "a token uses experts of %.2f GB, of which %.2f GB can be kept: many will be read again for each token",
            (double)model_expert_working_set(model) * 1e-9, (double)stats.bytes * 1e-9);
    return true;
}
