/* The plan itself: arithmetic only. */
#include <math.h>
#include <stdio.h>

#include "base/math.h"
#include "fit/fit.h"

/* ROWS_PART: speed of one-row products within a step, relative to the same products alone; products of experts
 * (ROWS_PART_ROUTED) are small and many. LAYER_S: seconds per layer for attention over a short text, norms and
 * barriers. Measured with 2 threads (AVX-512) on models of 0.3 to 7 billion parameters (`apus bench --trace`). */
static const double ROWS_PART = 0.94, ROWS_PART_ROUTED = 0.85, LAYER_S = 30e-6;
/* Time of a prompt besides its products with weights, relative to these: attention, norms, activations. Experts gather
 * their rows, and their numbers of rows differ. Measured likewise. */
static const double BESIDES = 0.10, BESIDES_ROUTED = 0.30;
/* A prompt's reads and computations overlap, except for a layer's first reads, after its router, and for its last
 * experts, when no read is left: the share of the shorter of both that is not hidden. Measured likewise. */
static const double APART = 0.5;
enum { EXPERT_MATRICES = 3 };
enum { KV_PART = 4 }; /* the KV cache gets at most 1/KV_PART of the room that it shares with experts */

/* ---- memory ---- */

/* Hit rates of LRU caches of whole experts, over recorded routes of texts on mixed topics. A cache smaller than the
 * working set of one token would find nothing with LRU and keeps the most used experts (LFU) instead: its hit rate is
 * at least the share that it holds. */
double fit_hit_rate(const FitModel *model, int held) {
    static const double curve[][2] = {
        {0, 0}, {.05, .35}, {.10, .48}, {.15, .58}, {.20, .66}, {.25, .73}, {.35, .84}, {.50, .92}, {1, 1}};
    if (held >= model->experts) return 1;
    const double part = (double)held / model->experts;
    if (held < model->cycle) return part;
    int i = 1;
    while (curve[i][0] < part) i++;
    const double *from = curve[i - 1], *to = curve[i];
    return from[1] + (to[1] - from[1]) * (part - from[0]) / (to[0] - from[0]);
}

static uint64_t experts_bytes(const FitModel *model) { return model->expert_bytes * (uint64_t)model->experts; }

uint64_t fit_cache_share(uint64_t room, uint64_t cache_least, uint64_t experts_least) {
    return max_u64(min_u64(room / KV_PART, room - experts_least), cache_least);
}

static bool wants_codes(const FitRequest *request, uint64_t exact, uint64_t quantised, uint64_t cache) {
    const bool fits = exact * (uint64_t)request->slots <= cache;
    return quantised > 0 && (request->form == FIT_QUANTISED || (request->form == FIT_AUTO && !fits));
}

/* Chooses the cache's format and its bytes of the room. */
static void share_cache(const FitModel *model, const FitRequest *request, uint64_t room, Fit *fit) {
    const uint64_t slots = (uint64_t)request->slots, floor = (uint64_t)model->layer_cycle * model->expert_bytes;
    uint64_t cache = room;
    if (fit->stream) cache = fit_cache_share(room, model->kv_least, floor);
    if (request->kv_bytes) cache = min_u64(request->kv_bytes, room);
    fit->quantised = wants_codes(request, model->kv_full, model->kv_quantised, cache);
    fit->kv_wanted = (fit->quantised ? model->kv_quantised : model->kv_full) * slots;
    fit->kv_bytes = request->kv_bytes ? cache : min_u64(fit->kv_wanted, cache);
}

static bool too_small(const FitModel *model, const Fit *fit, uint64_t cache, uint64_t experts, Error *error) {
    const double gb = 1e-9;
    char draft[64] = "";
    if (model->draft_bytes)
        snprintf(draft, sizeof draft, ", %.3f GB for draft tokens", (double)model->draft_bytes * gb);
    return fail(error, ERROR_MEMORY,
        "%.3f GB of memory are too little: %.3f GB would just do, with %.3f GB of weights%s, %.3f GB to work in, "
        "%.3f GB of the KV cache%s%s",
        (double)fit->budget * gb, (double)fit->floor * gb + MEMORY_HALF_DIGIT, (double)model->dense_bytes * gb,
        model->experts ? " besides the experts" : "", (double)model->besides_bytes * gb, (double)cache * gb,
        experts ? " and the experts of a layer" : "", draft);
}

static bool share_memory(
    const FitMachine *machine, const FitModel *model, const FitRequest *request, Fit *fit, Error *error) {
    const uint64_t cache = request->kv_bytes ? request->kv_bytes : model->kv_least,
                   fixed = model->dense_bytes + model->besides_bytes + model->draft_bytes + model->media_bytes;
    const uint64_t sequence = request->kv_bytes             ? request->kv_bytes
        : request->form == FIT_FULL || !model->kv_quantised ? model->kv_full
                                                            : model->kv_quantised;
    fit->budget = request->budget ? min_u64(request->budget, machine->memory) : machine->memory / 10 * 9;
    const bool whole = fixed + experts_bytes(model) + sequence <= fit->budget;
    const bool streams = model->experts > 0 && model->can_stream;
    fit->stream = streams && (request->stream || !whole);
    const uint64_t experts = fit->stream ? (uint64_t)model->layer_cycle * model->expert_bytes : experts_bytes(model);
    fit->floor = fixed + cache + experts;
    if (fit->floor > fit->budget) return too_small(model, fit, cache, experts, error);
    const uint64_t room = fit->budget - fixed - (fit->stream ? 0 : experts_bytes(model));
    share_cache(model, request, room, fit);
    fit->experts_bytes = fit->stream ? min_u64(room - fit->kv_bytes, experts_bytes(model)) : experts_bytes(model);
    fit->held = model->experts ? (int)(fit->experts_bytes / model->expert_bytes) : 0;
    fit->hit = fit->stream ? fit_hit_rate(model, fit->held) : 1;
    return true;
}

/* ---- time ---- */

static void time_token(const FitMachine *machine, const FitModel *model, const FitRequest *request, Fit *fit) {
    double routed_s = 0;
    fit->dense_s = model->layers * LAYER_S + model->kv_token_bytes * request->depth / machine->read;
    for (int k = 0; k < model->kind_count; k++) {
        const FitKind *kind = &model->kind[k];
        const double seconds = kind->bytes / machine->rows[k];
        if (kind->routed)
            routed_s += seconds / ROWS_PART_ROUTED;
        else
            fit->dense_s += seconds / ROWS_PART;
    }
    const double wanted = model->cycle, missed = (1 - fit->hit) * wanted;
    fit->hits_s = fit->hit * routed_s;
    fit->misses_s = routed_s - fit->hits_s;
    fit->read_bytes = missed * (double)model->expert_bytes;
    if (fit->stream && missed > 0) {
        /* Reads of a layer begin together, of those layers that miss at all at least one expert's, and end one after
         * the other: the last matrix comes alone. */
        const double layers = wanted / model->layer_cycle, missing = layers * (1 - pow(fit->hit, model->layer_cycle));
        const double reads = fmax(missed / layers, 1) * model->parts;
        fit->disk_s = fit->read_bytes / disk_rate(&machine->disk, reads) +
            missing * (double)model->expert_bytes / EXPERT_MATRICES / disk_rate(&machine->disk, 1);
    }
    fit->decode_s = fit->dense_s + fmax(fit->disk_s, fit->hits_s) + fit->misses_s;
    fit->decode = 1 / fit->decode_s;
}

static void time_prompt(const FitMachine *machine, const FitModel *model, const FitRequest *request, Fit *fit) {
    for (int k = 0; k < model->kind_count; k++) {
        const FitKind *kind = &model->kind[k];
        const double besides = kind->routed ? BESIDES_ROUTED : BESIDES;
        fit->prompt_compute_s += (1 + besides) * request->prompt * kind->operations / machine->prompts[k];
    }
    if (fit->stream && fit->held < model->experts) { /* what is left of the prompt before is of its last layers */
        fit->prompt_read_bytes = (double)experts_bytes(model);
        fit->prompt_disk_s = fit->prompt_read_bytes / disk_rate(&machine->disk, machine->disk.depth);
    }
    const double longer = fmax(fit->prompt_compute_s, fit->prompt_disk_s);
    const double shorter = fit->prompt_compute_s + fit->prompt_disk_s - longer;
    fit->prompt = request->prompt / (longer + APART * shorter);
}

/* ---- layers on a GPU ---- */

/* Both parts of the cache hold the same tokens: that which holds fewer decides. */
static void share_gpu_cache(const FitModel *model, const FitRequest *request, Fit *fit) {
    const uint64_t layers = (uint64_t)model->layers, there = (uint64_t)fit->gpu_layers, here = layers - there;
    uint64_t each = fit->gpu_kv_bytes / there;
    if (here) each = min_u64(each, fit->kv_bytes / here);
    const uint64_t both = (each + 1) * layers; /* rounded up */
    fit->quantised = wants_codes(request, model->kv_full, model->gpu_kv_quantised, both);
    fit->kv_wanted = (fit->quantised ? model->gpu_kv_quantised : model->kv_full) * (uint64_t)request->slots;
    fit->kv_bytes = min_u64(both, request->kv_bytes ? request->kv_bytes : fit->kv_wanted);
    fit->gpu_kv_bytes = each * there;
}

static double token_bytes(const FitModel *model) {
    double bytes = 0;
    for (int k = 0; k < model->kind_count; k++) bytes += model->kind[k].bytes;
    return bytes;
}

static void time_gpu(const FitMachine *machine, const FitModel *model, const FitModel *host, Fit *fit) {
    fit->gpu_s = (token_bytes(model) - token_bytes(host)) / machine->gpu_rows;
    fit->decode_s += fit->gpu_s;
    fit->decode = 1 / fit->decode_s;
}

bool fit_plan(const FitMachine *machine, const FitModel *model, const FitRequest *request, Fit *out, Error *error) {
    *out = (Fit){0};
    if (!fit_gpu(machine, model, request, out, error)) return false;
    const FitModel host = fit_host_part(model, out->gpu_layers);
    FitRequest left = *request;
    if (out->gpu_layers) left.kv_bytes = request->kv_bytes / (uint64_t)model->layers * (uint64_t)host.layers;
    if (!share_memory(machine, &host, &left, out, error)) return false;
    if (out->gpu_layers) share_gpu_cache(model, request, out);
    const bool disk = machine->disk.block_bytes > 0 || !out->stream, gpu = machine->gpu_rows > 0 || !out->gpu_layers;
    if (machine->read > 0 && disk && gpu) {
        time_token(machine, &host, &left, out);
        if (out->gpu_layers) time_gpu(machine, model, &host, out);
        if (!out->gpu_layers) time_prompt(machine, model, request, out);
    }
    return true;
}
