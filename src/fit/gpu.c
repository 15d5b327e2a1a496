/* Which layers a GPU has. Layers are taken to be alike, as large as the largest of them. */
#include "fit/fit.h"

/* KV bytes of one layer: the requested size, or one sequence of the full context. */
static uint64_t cache_bytes(const FitModel *model, const FitRequest *request) {
    const bool quantised = request->form == FIT_QUANTISED && model->gpu_kv_quantised;
    const uint64_t sequence = quantised ? model->gpu_kv_quantised : model->kv_full;
    return (request->kv_bytes ? request->kv_bytes : sequence) / (uint64_t)model->layers;
}

static uint64_t weights(const FitModel *model, int layers) {
    return model->gpu_head_bytes + model->gpu_layer_bytes * (uint64_t)layers +
        (layers == model->layers ? model->gpu_embedding_bytes : 0);
}

static int most_layers(const FitModel *model, uint64_t room, uint64_t cache) {
    int layers = model->layers;
    while (layers > 0 && weights(model, layers) + cache * (uint64_t)layers + model->gpu_work_bytes > room) layers--;
    return layers;
}

/* Whether a row's products are slower there than here, as far as both are known. */
static bool is_slower(const FitMachine *machine, const FitModel *model) {
    double bytes = 0, here = 0;
    for (int k = 0; k < model->kind_count && machine->read > 0; k++) {
        bytes += model->kind[k].bytes;
        here += model->kind[k].bytes / machine->rows[k];
    }
    return machine->gpu_rows > 0 && here > 0 && bytes / machine->gpu_rows > here;
}

static bool too_many(const FitMachine *machine, const FitModel *model, const Fit *fit, uint64_t least, Error *error) {
    const double gb = 1e-9;
    const uint64_t needed = weights(model, fit->gpu_layers) + model->gpu_work_bytes + least;
    return fail(error, ERROR_MEMORY,
        "%d layers take %.3f GB of the GPU's memory, of which %.3f GB are free: %.3f GB each, %.3f GB for the output "
        "matrix%s, %.3f GB to work in, %.3f GB of the KV cache; --gpu-layers %d would fit, and --gpu-layers auto "
        "chooses by itself",
        fit->gpu_layers, (double)needed * gb, (double)machine->gpu_memory * gb, (double)model->gpu_layer_bytes * gb,
        (double)(weights(model, fit->gpu_layers) - model->gpu_layer_bytes * (uint64_t)fit->gpu_layers) * gb,
        fit->gpu_layers == model->layers && model->gpu_embedding_bytes ? " and the embedding" : "",
        (double)model->gpu_work_bytes * gb, (double)least * gb, fit->gpu_fit);
}

bool fit_gpu(const FitMachine *machine, const FitModel *model, const FitRequest *request, Fit *fit, Error *error) {
    const uint64_t all = machine->gpu_memory / 100 * FIT_GPU_PERCENT, layers = (uint64_t)model->layers;
    const uint64_t room = all - (model->gpu_draft_bytes < all ? model->gpu_draft_bytes : all);
    if (!machine->gpu_memory || !request->gpu_layers) return true;
    const uint64_t cache = cache_bytes(model, request), least = request->kv_bytes ? cache : model->kv_least / layers;
    fit->gpu_fit = most_layers(model, room, cache);
    fit->gpu_layers = request->gpu_layers < model->layers ? request->gpu_layers : model->layers;
    if (request->gpu_layers == FIT_GPU_AUTO) fit->gpu_layers = is_slower(machine, model) ? 0 : fit->gpu_fit;
    if (fit->gpu_layers > most_layers(model, room, least))
        return too_many(machine, model, fit, least * (uint64_t)fit->gpu_layers, error);
    if (!fit->gpu_layers) return true;
    fit->gpu_bytes = weights(model, fit->gpu_layers);
    const uint64_t there = (uint64_t)fit->gpu_layers, left = room - fit->gpu_bytes - model->gpu_work_bytes;
    const uint64_t wanted = request->kv_bytes ? cache * there : cache * there * (uint64_t)request->slots;
    fit->gpu_kv_bytes = wanted < left ? wanted : left;
    return true;
}

FitModel fit_host_part(const FitModel *model, int gpu_layers) {
    FitModel host = *model;
    if (gpu_layers == 0) return host;
    const int left = model->layers - gpu_layers;
    const double part = (double)left / model->layers;
    host.layers = left;
    host.dense_bytes = (uint64_t)((double)(model->dense_bytes - model->embedding_bytes) * part);
    if (left) host.dense_bytes += model->embedding_bytes;
    host.experts = model->experts / model->layers * left;
    host.cycle = model->cycle / model->layers * left;
    host.kv_least = (uint64_t)((double)model->kv_least * part);
    host.kv_full = (uint64_t)((double)model->kv_full * part);
    host.kv_quantised = (uint64_t)((double)model->gpu_kv_quantised * part);
    host.kv_token_bytes *= part;
    for (int k = 0; k < host.kind_count; k++) {
        host.kind[k].bytes *= part;
        host.kind[k].operations *= part;
    }
    return host;
}
