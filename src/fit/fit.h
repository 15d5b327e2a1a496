/* fit/: what suits this machine: its speeds, measured and kept, and from them the plan of a run.
 *
 * The plan is a pure function: machine × model × wishes → plan (plan.c). Who fills in the machine and the model:
 * measure.c and table.c; calibration.c keeps what was measured; explain.c says a plan in words.
 *
 * How long a token takes follows docs/design/fit-plan.md: products go through their weights at the speed that
 * this machine's own kernels showed on such weights; experts that are not there come at the disk's; those that are
 * there are computed meanwhile.
 * Threads: any. */
#pragma once
#include "base/buffer.h"
#include "base/memory.h"
#include "model/runner.h"
#include "weights/disk_probe.h"

enum { FIT_KINDS_MAX = 6, FIT_PROMPT = 512 /* tokens of a usual prompt */ };

/* Weights of one kind that a token goes through. */
typedef struct FitKind {
    Weight like;       /* form and columns; no address */
    bool routed;       /* routed experts' matrices */
    double bytes;      /* that a token goes through */
    double run_bytes;  /* that one run of the threads goes through, as for gate and up */
    double operations; /* multiplications and additions per prefill token; 0 for the output matrix */
    double share;      /* share of a step's rows that one matrix multiplies: top_k / experts; 1 where not routed */
} FitKind;

typedef struct FitModel {
    int layers, kind_count;
    FitKind kind[FIT_KINDS_MAX];
    uint64_t weight_bytes;           /* all weights of the checkpoint */
    uint64_t dense_bytes;            /* held in any case: weights besides routed experts, */
    uint64_t besides_bytes;          /* what steps work in, threads, tables */
    int experts, cycle, layer_cycle; /* routed ones of all layers; that a token uses in all, at most in one */
    uint64_t expert_bytes;           /* one expert, as the expert cache holds it */
    int parts;                       /* reads of an expert */
    bool precise;                    /* 16-bit activations, whatever the backend is asked for */
    bool can_stream;                 /* the backend computes experts where they come to lie */
    int context;                     /* tokens of a sequence; */
    uint64_t kv_least, kv_full;      /* bytes of the smallest cache, of one sequence of the context, */
    uint64_t kv_quantised; /* KV bytes of one token when quantised; 0: this model's cache cannot be quantised */
    double kv_token_bytes; /* that a token reads of the cache for each token before it */
    /* What a GPU would hold: of its largest layer, of the output matrix, of the embedding where it has all layers and
     * that is another one, and besides of the largest step. 0: there is none. */
    uint64_t gpu_layer_bytes, gpu_head_bytes, gpu_embedding_bytes, gpu_work_bytes;
    uint64_t gpu_kv_quantised; /* replaces kv_quantised for its layers; layers that it cannot quantise stay in full
                                  precision everywhere */
    int gpus;                  /* more than 1: all of it is that of so many together, which divide layers */
    uint64_t embedding_bytes;  /* embedding table, held by the host unless it has no layer */
} FitModel;

typedef struct FitMachine {
    int threads;
    uint64_t memory;                         /* that may be taken now, the model's own included; never kept */
    double read;                             /* bytes a second of memory, by all threads; 0: nothing was measured */
    double rows[FIT_KINDS_MAX];              /* bytes a second that one row's products go through */
    double prompts[FIT_KINDS_MAX];           /* operations a second of a prompt's products */
    DiskProbe disk;                          /* block_bytes 0: not measured */
    double measured_decode, measured_prompt; /* tok/s that `apus bench --fit` saw last; 0: it did not run */
    uint64_t gpu_memory;                     /* that is free; 0: there is no GPU. Never kept, nor is */
    double gpu_rows; /* bytes a second that one row's products go through there; 0: not measured */
} FitMachine;

typedef enum FitForm { FIT_FULL, FIT_QUANTISED, FIT_AUTO /* exact where that fits */ } FitForm;

enum { FIT_GPU_AUTO = -1 };
/* Share of a GPU's free memory that a plan may take: other programs use the GPU at the same time. */
enum { FIT_GPU_PERCENT = 95 };

typedef struct FitRequest {
    int slots;
    uint64_t budget;   /* bytes of host memory for everything that the model needs; 0: nine tenths of the memory */
    uint64_t kv_bytes; /* 0: what the slots need */
    FitForm form;
    bool stream;       /* experts stay in their files also where they would fit */
    int depth, prompt; /* tokens before the one whose time is predicted; tokens of a prompt */
    int gpu_layers;    /* the last so many are the GPU's; FIT_GPU_AUTO: as many as fit */
} FitRequest;

typedef struct Fit {
    bool stream, quantised;
    uint64_t budget, floor;           /* the least that would do */
    uint64_t experts_bytes, kv_bytes; /* what the budget leaves for them, beside dense and besides of the model */
    uint64_t kv_wanted;               /* what the slots need in the chosen form */
    int gpu_layers;                   /* the GPU's, with so many bytes of weights and of the cache; the above, */
    uint64_t gpu_bytes, gpu_kv_bytes; /* but for kv_wanted and kv_bytes, is about the others */
    int gpu_fit;                      /* how many would fit */
    double gpu_s;                     /* seconds per token for the weights on the GPU */
    int held;                         /* experts */
    double hit;                       /* expected part of the experts wanted that is there */
    /* Seconds of a token: weights of all tokens and cache, experts that are there, that are read, reading them. */
    double dense_s, hits_s, misses_s, disk_s, decode_s;
    double decode, prompt;    /* tok/s; 0: nothing was measured */
    double read_bytes;        /* from the disk for a token, */
    double prompt_read_bytes; /* for a prompt of FIT_PROMPT */
    double prompt_compute_s, prompt_disk_s;
} Fit;

/* ERROR_MEMORY, with the floor, when the budget is too small. */
NODISCARD bool fit_plan(
    const FitMachine *machine, const FitModel *model, const FitRequest *request, Fit *out, Error *error);
/* gpu.c: the GPU's part of the plan: gpu_layers and what they take. ERROR_MEMORY, with all numbers, where as many as
 * were asked for do not fit. And a model as the host sees it when so many layers are elsewhere. */
NODISCARD bool fit_gpu(
    const FitMachine *machine, const FitModel *model, const FitRequest *request, Fit *fit, Error *error);
FitModel fit_host_part(const FitModel *model, int gpu_layers);

/* Default share of the memory budget that the KV cache of a model with streamed experts gets; each of the two gets at
 * least its minimum. */
uint64_t fit_cache_share(uint64_t room, uint64_t cache_least, uint64_t experts_least);
/* Part of the experts wanted that a cache of so many of them holds, of a text on mixed topics. */
double fit_hit_rate(const FitModel *model, int held);

/* Each choice with its reason and numbers, a line each: the table of `apus info --fit`. */
void fit_explain(
    const FitMachine *machine, const FitModel *model, const FitRequest *request, const Fit *fit, Buffer *out);
/* The same in a line, for a log. */
void fit_summary(const FitMachine *machine, const FitModel *model, const Fit *fit, Buffer *out);
/* What a runner's model needs. */
void fit_model(const Runner *runner, FitModel *out);
/* And what a GPU would hold of it: the runner is the processor's. */
struct Plugin;
void fit_model_gpu(const Runner *runner, const struct Plugin *plugin, FitModel *out);
/* gpu_rows: some hundredths of a second on the device that the options name, besides opening it. */
NODISCARD bool fit_measure_gpu(const FitModel *model, const BackendOptions *device, FitMachine *out, Error *error);
/* Some tenths of a second with as many threads as the backend is to have, and half a second of reading where there are
 * experts: path, a large file of the model. The disk stays unmeasured where a figure of it is not to be had. */
NODISCARD bool fit_measure(
    const FitModel *model, const BackendOptions *backend, const char *path, FitMachine *out, Error *error);

/* ---- calibration.c: what was measured, kept per machine and model (docs/formats.md) ---- */

/* directory: of all calibrations; name: of the checkpoint's directory. */
typedef struct CalibrationKey {
    const char *directory, *checkpoint;
    const char *backend; /* backend_describe */
} CalibrationKey;
/* False when there is none that fits machine, backend and model; `why` then says so where there is a file. */
bool calibration_load(const CalibrationKey *key, const FitModel *model, FitMachine *out, Error *why);
NODISCARD bool calibration_save(
    const CalibrationKey *key, const FitModel *model, const FitMachine *machine, Error *error);
