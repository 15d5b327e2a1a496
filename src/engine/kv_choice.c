#include "engine/kv_choice.h"

#include "base/checked.h"
#include "base/log.h"

static bool fits_exactly(const EngineOptions *options, const KvPlan *plan, size_t memory) {
    size_t bytes;
    return size_mul(kv_bytes_for(plan, NULL, plan->context), (size_t)options->slots, &bytes) && bytes <= memory;
}

static bool can_code(const KvPlan *plan) {
    for (int g = 0; g < plan->group_count; g++)
        if (plan->group[g].quantised) return true;
    return false;
}

static bool check_listed(const KvFormat *format, int layers, Error *error) {
    for (int i = layers; format->raise == KV_RAISE_LISTED && i < KV_LAYERS_MAX; i++)
        if (format->raised[i / 64] >> i % 64 & 1)
            return fail(error, ERROR_USAGE, "--turbo-layers names layer %d, the model has 0 to %d", i, layers - 1);
    return true;
}

bool kv_choose(const EngineOptions *options, const Runner *runner, size_t memory, KvFormat *out, Error *error) {
    const KvPlan *plan = runner_kv_plan(runner);
    *out = options->kv_format;
    if (out->k == KV_FULL) return true;
    if (!check_listed(out, model_layers(runner_model(runner)), error)) return false;
    const bool fits = options->kv_auto && fits_exactly(options, plan, memory);
    if (!fits && !can_code(plan))
        log_warn("the KV cache of no layer of this model can be quantised: it stays in full precision");
    else if (options->kv_auto)
        log_info("KV cache: %s", fits ? "full precision, which fits" : "quantised, as full precision would not fit");
    if (!fits) return true;
    out->k = out->v = KV_FULL; /* the lengths stay, for requests that ask for codes */
    out->raise = KV_RAISE_NONE;
    return true;
}
