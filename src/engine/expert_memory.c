#include "engine/expert_memory.h"

#include "base/log.h"

bool expert_room(const Runner *runner, const EngineOptions *options, uint64_t *bytes, Error *error) {
    *bytes = 0;
    if (!model_experts(runner_model(runner))) return true;
    const KvPlan *plan = runner_kv_plan(runner);
    const uint64_t least = options->kv_bytes ? options->kv_bytes : kv_bytes_for(plan, NULL, KV_PAGE_TOKENS);
    return runner_budget_left(runner, least, bytes, error);
}

bool expert_hold(const Model *model, uint64_t bytes, size_t *taken, Error *error) {
    if (!model_hold_experts(model, bytes, error)) return false;
    ExpertSource *source = model_experts(model);
    const SourceStats stats = source->stats(source);
    *taken = stats.bytes;
    log_info("experts: %d of %d fit into %.2f GB, the others are read by %s", stats.slots, stats.experts,
        (double)stats.bytes * 1e-9, stats.io);
    if (stats.bytes < model_expert_cycle(model))
        log_warn(
            "a token uses experts of %.2f GB, of which %.2f GB can be kept: most will be read again for each token",
            (double)model_expert_cycle(model) * 1e-9, (double)stats.bytes * 1e-9);
    return true;
}
