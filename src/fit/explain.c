/* A plan in words. */
#include <string.h>

#include "fit/fit.h"

static const double GB = 1e-9, MS = 1e3;

static void line(Buffer *out, const char *what) { buffer_printf(out, "%-12s ", what); }

static void explain_memory(
    const FitMachine *machine, const FitModel *model, const FitRequest *request, const Fit *fit, Buffer *out) {
    line(out, "memory");
    buffer_printf(out, "%.3f GB can be taken; the budget is %.3f GB%s, %.3f GB would just do\n",
        (double)machine->memory * GB, (double)fit->budget * GB,
        !request->budget                        ? ", nine tenths of it"
            : request->budget > machine->memory ? ", as no more is there"
                                                : "",
        (double)fit->floor * GB + MEMORY_HALF_DIGIT);
    line(out, "weights");
    buffer_printf(out, "%.3f GB%s in memory, and %.3f GB to work in\n", (double)model->dense_bytes * GB,
        model->experts ? " besides the experts" : "", (double)model->besides_bytes * GB);
    if (model->media_tokens > 0) {
        line(out, "images");
        buffer_printf(out, "%.3f GB%s for those of up to %d tokens, and for their rows\n",
            (double)model->media_bytes * GB, model->media_bytes ? "" : " (the GPU's)", model->media_tokens);
    }
    if (model->draft_bytes + model->gpu_draft_bytes > 0) {
        line(out, "draft tokens");
        buffer_printf(out, "%.3f GB%s for what guesses them\n",
            (double)(model->draft_bytes + model->gpu_draft_bytes) * GB, model->gpu_draft_bytes ? " of the GPU" : "");
    }
    if (!model->experts) return;
    line(out, "experts");
    const double all = (double)model->expert_bytes * model->experts * GB;
    if (!fit->stream) {
        buffer_printf(out, "all %d in memory: %.3f GB, which fit\n", model->experts, all);
        return;
    }
    buffer_printf(out, "streamed: %d of %d are kept, %.3f of %.3f GB, %s; ", fit->held, model->experts,
        (double)fit->experts_bytes * GB, all, fit->held == model->experts ? "as was asked" : "as not all fit");
    if (fit->held < model->cycle)
        buffer_printf(out, "a token uses %d, so most are read again for each\n", model->cycle);
    else
        buffer_printf(out, "some %.0f %% of those wanted will be there\n", 100 * fit->hit);
}

static void explain_cache(const FitModel *model, const FitRequest *request, const Fit *fit, Buffer *out) {
    const uint64_t quantised = fit->gpu_layers ? model->gpu_kv_quantised : model->kv_quantised;
    line(out, "KV cache");
    buffer_printf(out, "%s, %.3f GB", fit->quantised ? "turbo" : "f16", (double)fit->kv_bytes * GB);
    if (fit->kv_bytes >= fit->kv_wanted)
        buffer_printf(out, ": all of %d × %d tokens\n", request->slots, model->context);
    else
        buffer_printf(out, " of the %.3f GB that %d × %d tokens would take%s\n", (double)fit->kv_wanted * GB,
            request->slots, model->context, quantised && !fit->quantised ? "; --kv-cache turbo takes less" : "");
}

static void explain_gpu(
    const FitMachine *machine, const FitModel *model, const FitRequest *request, const Fit *fit, Buffer *out) {
    line(out, "GPU layers");
    buffer_printf(out, "%d of %d", fit->gpu_layers, model->layers);
    if (!machine->gpu_memory) {
        buffer_printf(out, ": %s\n", request->gpu_layers ? "there is no GPU" : "--device names no GPU");
        return;
    }
    if (fit->gpu_layers)
        buffer_printf(out, ", %s%s: %.3f GB of weights, %.3f GB of the KV cache, %.3f GB to work in, of %.3f GB free",
            fit->gpu_layers == model->layers ? "all" : "the last ones and the output matrix",
            model->gpus > 1 ? ", divided among GPUs that have together" : "", (double)fit->gpu_bytes * GB,
            (double)fit->gpu_kv_bytes * GB, (double)model->gpu_work_bytes * GB, (double)machine->gpu_memory * GB);
    if (request->gpu_layers != FIT_GPU_AUTO)
        buffer_printf(out, "; %d would fit with the cache of a sequence\n", fit->gpu_fit);
    else if (fit->gpu_layers == fit->gpu_fit)
        buffer_printf(out, "; %s fit with the cache of a sequence\n", fit->gpu_layers ? "so many" : "none");
    else
        buffer_printf(out, "; %d would fit, but it is slower than the processor\n", fit->gpu_fit);
    if (machine->gpu_rows <= 0) return;
    line(out, "");
    buffer_printf(out, "a row goes through weights there at %.1f GB/s: %.2f ms of a token\n", machine->gpu_rows * GB,
        fit->gpu_s * MS);
}

static void explain_kind(const FitMachine *machine, const FitModel *model, int k, Buffer *out) {
    const FitKind *kind = &model->kind[k];
    const Weight *like = &kind->like;
    line(out, k ? "" : "products");
    if (like->quant == QUANT_NONE)
        buffer_printf(out, "%s", dtype_name(like->dtype));
    else
        buffer_printf(out, "%s %d bits", quant_name(like->quant), like->bits);
    buffer_printf(out, "%s: a row goes through weights at %.1f GB/s, %d rows at %.0f GOP/s; a token through %.3f GB\n",
        kind->routed ? " of experts" : "", machine->rows[k] * GB, (int)(kind->share * FIT_PROMPT),
        machine->prompts[k] * GB, kind->bytes * GB);
}

static void explain_disk(const DiskProbe *disk, Buffer *out) {
    line(out, "disk");
    buffer_printf(out,
        "%s, up to %d reads under way: ", disk->direct ? "around the page cache" : "through the page cache",
        disk->depth);
    for (int i = 0; i < DISK_DEPTHS; i++) buffer_printf(out, "%s%.2f", i ? ", " : "", disk->rate[i] * GB);
    buffer_printf(out, " GB/s with 1, 4, 8, 16, 32 reads of %.2f MB\n", (double)disk->block_bytes * 1e-6);
    line(out, "");
    buffer_printf(out, "through the page cache %.2f GB/s with 8; whole experts in one piece, %.2f MB, %.2f GB/s\n",
        disk->buffered * GB, (double)disk->large_bytes * 1e-6, disk->large * GB);
}

static void explain_speed(
    const FitMachine *machine, const FitModel *model, const FitRequest *request, const Fit *fit, Buffer *out) {
    line(out, "decoding");
    buffer_printf(out, "%.1f tok/s expected behind %d tokens, for one: %.1f ms = %.1f ms for what every token reads",
        fit->decode, request->depth, fit->decode_s * MS, fit->dense_s * MS);
    if (model->experts) buffer_printf(out, " + %.1f ms for experts that are there", fit->hits_s * MS);
    if (fit->stream && fit->disk_s > 0)
        buffer_printf(out, ", while %.3f GB are read in %.1f ms, + %.1f ms for these", fit->read_bytes * GB,
            fit->disk_s * MS, fit->misses_s * MS);
    buffer_printf(out, "; %s\n", fit->disk_s > fit->decode_s / 2 ? "the disk decides" : "memory and cores decide");
    line(out, "prompts");
    buffer_printf(out, "%.0f tok/s expected of %d tokens: %.0f ms of products", fit->prompt, request->prompt,
        fit->prompt_compute_s * MS);
    if (fit->prompt_disk_s > 0)
        buffer_printf(out, " beside %.0f ms of reading %.2f GB of experts once", fit->prompt_disk_s * MS,
            fit->prompt_read_bytes * GB);
    buffer_byte(out, '\n');
    if (machine->measured_decode > 0) {
        line(out, "measured");
        buffer_printf(out, "%.1f tok/s decoding, %.0f tok/s of prompts by the last apus bench --fit\n",
            machine->measured_decode, machine->measured_prompt);
    }
}

void fit_explain(
    const FitMachine *machine, const FitModel *model, const FitRequest *request, const Fit *fit, Buffer *out) {
    const FitModel host = fit_host_part(model, fit->gpu_layers);
    explain_memory(machine, &host, request, fit, out);
    explain_cache(model, request, fit, out);
    explain_gpu(machine, model, request, fit, out);
    if (machine->read <= 0) return;
    line(out, "threads");
    buffer_printf(
        out, "%d, one per core; together they read memory at %.1f GB/s\n", machine->threads, machine->read * GB);
    for (int k = 0; k < model->kind_count; k++) explain_kind(machine, model, k, out);
    if (machine->disk.block_bytes > 0) explain_disk(&machine->disk, out);
    if (fit->decode > 0) explain_speed(machine, model, request, fit, out);
}

void fit_summary(const FitMachine *machine, const FitModel *whole, const Fit *fit, Buffer *out) {
    const FitModel host = fit_host_part(whole, fit->gpu_layers), *model = &host;
    const uint64_t cache = fit->kv_bytes - fit->gpu_kv_bytes;
    buffer_printf(out, "plan: %.2f GB of %.2f GB: weights %.2f",
        (double)(model->dense_bytes + model->besides_bytes + model->media_bytes + fit->experts_bytes + cache) * GB,
        (double)machine->memory * GB, (double)model->dense_bytes * GB);
    if (fit->gpu_layers)
        buffer_printf(out, ", %d of %d layers on the GPU with %.2f and %.2f of the cache", fit->gpu_layers,
            whole->layers, (double)fit->gpu_bytes * GB, (double)fit->gpu_kv_bytes * GB);
    if (model->experts)
        buffer_printf(out, ", experts %.2f (%d of %d%s)", (double)fit->experts_bytes * GB, fit->held, model->experts,
            fit->stream ? ", streamed" : "");
    buffer_printf(out, ", KV cache %.2f of %.2f", (double)fit->kv_bytes * GB, (double)fit->kv_wanted * GB);
    if (fit->decode > 0) buffer_printf(out, "; expected: %.1f tok/s, prompts %.0f tok/s", fit->decode, fit->prompt);
}
