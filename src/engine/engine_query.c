/* What an engine has, and how it is. */
#include "engine/engine_internal.h"

#include "base/clock.h"

const Model *engine_model(const Engine *engine) { return engine->model; }

const KvFormat *engine_kv_format(const Engine *engine) { return &engine->kv_format; }

DType engine_kv_dtype(const Engine *engine) {
    const KvPlan *plan = runner_kv_plan(engine->runner);
    for (int i = 0; i < plan->entry_count; i++)
        if (!plan->group[plan->entries[i].group].recurrent) return plan->entries[i].layout.dtype;
    return DTYPE_F16;
}

bool engine_kv_biased(const Engine *engine) {
    const KvPlan *plan = runner_kv_plan(engine->runner);
    bool biased = false;
    for (int i = 0; i < plan->entry_count; i++) biased = biased || plan->entries[i].k_bias;
    return biased;
}

bool engine_has_assistant(const Engine *engine) { return engine->scheduler.speculation.assistant; }
bool engine_looks_up(const Engine *engine) { return engine->scheduler.speculation.options.lookup; }

Pooling engine_pooling(const Engine *engine) { return engine->pooling; }
const VisionSpec *engine_vision(const Engine *engine) {
    return engine->media ? media_cache_vision(engine->media) : NULL;
}
MediaMemory engine_media_memory(const Engine *engine) { return engine->media_memory; }
const AudioSpec *engine_audio(const Engine *engine) { return engine->media ? media_cache_audio(engine->media) : NULL; }

const char *engine_backend(const Engine *engine) { return runner_upper(engine->runner)->ops->name; }

EngineStats engine_stats(Engine *engine) {
    mutex_lock(&engine->mutex);
    EngineStats stats = engine->stats;
    stats.waiting = engine->scheduler.waiting.count;
    stats.full = scheduler_full(&engine->scheduler);
    mutex_unlock(&engine->mutex);
    const int64_t due = atomic_load(&engine->step_due_ns);
    stats.stalled = due && clock_ns() > due;
    return stats;
}

uint64_t engine_wait(Engine *engine, uint64_t seen, int timeout_ms) {
    const int64_t deadline_ns = clock_ns() + (int64_t)timeout_ms * 1000000;
    mutex_lock(&engine->mutex);
    while (engine->rounds == seen) {
        const int64_t left_ns = deadline_ns - clock_ns();
        if (left_ns <= 0) break;
        condition_wait_ms(&engine->round_ended, &engine->mutex, (left_ns + 999999) / 1000000);
    }
    const uint64_t rounds = engine->rounds;
    mutex_unlock(&engine->mutex);
    return rounds;
}
