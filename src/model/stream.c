/* Streamed experts: from the Spec to the expert cache that reads them; limits of experts per token; the memory budget.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "model/component.h"
#include "model/model_internal.h"
#include "model/runner_internal.h"

/* Besides weights, caches and scratch: prepared rows of products, threads, tables, texts. */
static const uint64_t OTHER_BYTES = (uint64_t)160 << 20;

static void forget(Weight *weights, int count) {
    for (int e = 0; e < count; e++) weights[e].data = weights[e].scales = weights[e].biases = NULL;
}

bool model_cut_experts(Model *model, int top_k, Error *error) {
    Spec *spec = &model->spec;
    int most = 0;
    for (int i = 0; i < spec->layer_count; i++) {
        MoeComponent *moe = layer_moe(&spec->layers[i]);
        if (!moe) continue;
        most = moe->top_k > most ? moe->top_k : most;
        moe->top_k = top_k < moe->top_k ? top_k : moe->top_k;
    }
    if (!most || top_k < 1)
        return fail(error, ERROR_USAGE, "%d experts a token cannot be: the model has layers with %d", top_k, most);
    if (top_k < most) {
        model->experts_used = top_k;
        model->experts_made_for = most;
    }
    return true;
}

bool model_experts_cut(const Model *model, int *top_k, int *made_for) {
    *top_k = model->experts_used;
    *made_for = model->experts_made_for;
    return model->experts_used > 0;
}

bool model_stream(Model *model, const ModelOptions *asked, Error *error) {
    Spec *spec = &model->spec;
    ExpertCacheLayer *layers = calloc((size_t)spec->layer_count, sizeof *layers);
    if (!layers) return fail(error, ERROR_MEMORY, "no memory for a table of experts");
    const int end = spec->layer_count - asked->device_layers;
    int count = 0;
    for (int i = 0; i < end; i++) {
        const MoeComponent *moe = layer_moe(&spec->layers[i]);
        if (!moe) continue;
        layers[count++] =
            (ExpertCacheLayer){.count = moe->experts, .top_k = moe->top_k, .matrices = {moe->gate, moe->up, moe->down}};
    }
    if (count > 0)
        model->bank = expert_cache_open(&model->checkpoint, layers, count, &asked->experts.cache, error);
    else
        fail(error, ERROR_USAGE, "a model of family %s has no experts to stream%s", spec->family,
            asked->device_layers ? " in the layers that the processor has" : "");
    free(layers);
    model->experts = asked->experts;
    count = 0;
    for (int i = 0; model->bank && i < end; i++) {
        MoeComponent *moe = layer_moe(&spec->layers[i]);
        if (!moe) continue;
        for (int e = 0; e < moe->experts; e++)
            model->streamed_bytes += (moe->gate == moe->up ? 0 : weight_bytes(&moe->gate[e])) +
                weight_bytes(&moe->up[e]) + weight_bytes(&moe->down[e]);
        forget(moe->gate, moe->experts);
        forget(moe->up, moe->experts);
        forget(moe->down, moe->experts);
        moe->source = expert_cache_source(model->bank);
        moe->source_layer = count++;
    }
    return model->bank != NULL;
}

bool model_hold_experts(const Model *model, uint64_t bytes, Error *error) {
    CHECK(model->bank);
    const uint64_t most = model->experts.bytes_max;
    return expert_cache_allocate(model->bank, most && most < bytes ? most : bytes, error);
}

uint64_t runner_besides_bytes(const Runner *runner, uint64_t *resident) {
    const Model *model = runner->model;
    *resident = model->weight_bytes - model->streamed_bytes - model->device_bytes + model->arena.used;
    return runner->scratch_bytes[0] + OTHER_BYTES;
}

bool runner_budget_left(const Runner *runner, uint64_t least, uint64_t free_bytes, uint64_t *bytes, Error *error) {
    const Model *model = runner->model;
    uint64_t resident;
    const uint64_t fixed = runner_besides_bytes(runner, &resident) + resident, most = free_bytes + resident;
    const uint64_t needed = fixed + least + expert_cache_floor_bytes(model->bank);
    uint64_t budget = model->experts.memory_budget ? model->experts.memory_budget : most / 10 * 9;
    if (budget > most) {
        log_warn("%.2f GB of memory are there, not %.2f", (double)most * 1e-9, (double)budget * 1e-9);
        budget = most;
    }
    if (budget < needed)
        return fail(error, ERROR_MEMORY,
            "a memory budget of %.3f GB is too small: %.3f GB would just do, with %.3f GB of weights besides the "
            "experts, "
            "%.3f GB of the KV cache and %.3f GB of experts",
            (double)budget * 1e-9, (double)needed * 1e-9 + MEMORY_HALF_DIGIT, (double)resident * 1e-9,
            (double)least * 1e-9, (double)expert_cache_floor_bytes(model->bank) * 1e-9);
    *bytes = budget - fixed;
    return true;
}

void model_watch_experts(const Model *model, bool (*given_up)(void *context), void *context) {
    if (model->bank) expert_cache_watch(model->bank, given_up, context);
}

ExpertProvider *model_experts(const Model *model) { return model->bank ? expert_cache_source(model->bank) : NULL; }
uint64_t model_expert_bytes(const Model *model) { return expert_cache_bytes(model->bank); }
uint64_t model_expert_floor(const Model *model) { return expert_cache_floor_bytes(model->bank); }
uint64_t model_expert_working_set(const Model *model) { return expert_cache_working_set_bytes(model->bank); }
