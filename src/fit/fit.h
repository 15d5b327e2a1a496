/* fit/: measures the machine, keeps the measurements, and plans from them how a model runs on it.
 *
 * The plan is a pure function of machine, model and request (plan.c). measure.c fills in the machine and table.c the
 * model; calibration.c keeps measurements; explain.c describes a plan in words.
 *
 * The time of a token follows docs/design/fit-plan.md: matrix products read their weights at the speed that this
 * machine's kernels reached on weights of the same kind; experts that are not in memory are read at the disk's speed,
 * while the others are computed.
 * Threads: any. */
#pragma once
#include "base/buffer.h"
#include "base/memory.h"
#include "model/runner.h"
#include "weights/disk_probe.h"

enum { FIT_KINDS_MAX = 6, FIT_PROMPT = 512 /* tokens of a typical prompt */ };

/* The weights of one kind that the computation of a token reads. */
typedef struct FitKind {
    Weight like;       /* type and columns; no address */
    bool routed;       /* matrices of routed experts */
    double bytes;      /* bytes read per token */
    double run_bytes;  /* bytes read in one run of the thread pool, which gate and up share */
    double operations; /* multiplications and additions per prefill token; 0 for the output matrix */
    double share;      /* share of a step's rows that one matrix multiplies: top_k / experts; 1 where not routed */
} FitKind;

typedef struct FitModel {
    int layers, kind_count;
    FitKind kind[FIT_KINDS_MAX];
    uint64_t weight_bytes; /* all weights of the checkpoint */
    uint64_t dense_bytes;  /* weights besides routed experts, always in memory */
    /* Memory of images, with that of the encoder for one of media_tokens tokens; 0: it takes none, or that of a GPU. */
    uint64_t media_bytes;
    int media_tokens;
    uint64_t besides_bytes; /* scratch of steps, threads and tables */
    /* A draft model, or the scratch and KV cache of a multi-token prediction head: bytes on the host; on the GPU. */
    uint64_t draft_bytes, gpu_draft_bytes;
    int experts;                /* routed experts of all layers */
    int cycle, layer_cycle;     /* routed experts that a token uses: in all layers; in one layer, at most */
    uint64_t expert_bytes;      /* bytes of one expert in the expert cache */
    int parts;                  /* reads per expert */
    bool precise;               /* 16-bit activations, whatever the backend's options ask for */
    bool can_stream;            /* the backend computes experts in the memory that they are loaded into */
    int context;                /* tokens of a sequence */
    uint64_t kv_least, kv_full; /* bytes of the smallest KV cache; of one sequence of `context` tokens */
    uint64_t kv_quantised;      /* the same of one quantised sequence; 0: this model's cache cannot be quantised */
    double kv_token_bytes;      /* bytes of the KV cache that a token reads for each token before it */
    /* Bytes on the GPU: its largest layer; the output matrix; the embedding table, where the GPU has all layers and the
     * table is not the output matrix; scratch of the largest step. 0: there is no GPU. */
    uint64_t gpu_layer_bytes, gpu_head_bytes, gpu_embedding_bytes, gpu_work_bytes;
    uint64_t gpu_kv_quantised; /* replaces kv_quantised for its layers; layers that it cannot quantise stay in full
                                  precision everywhere */
    int gpus;                  /* above 1: layers are divided among so many GPUs, and the bytes above are their sums */
    uint64_t embedding_bytes;  /* embedding table, held by the host unless it has no layer */
} FitModel;

typedef struct FitMachine {
    int threads;
    uint64_t memory;               /* bytes that may be taken now, including those of this model; never kept */
    double read;                   /* bytes per second that all threads read from memory; 0: not measured */
    double rows[FIT_KINDS_MAX];    /* bytes of weights per second in the products of one row */
    double prompts[FIT_KINDS_MAX]; /* operations per second in the products of a prompt */
    DiskProbe disk;                /* block_bytes 0: not measured */
    double measured_decode, measured_prompt; /* tok/s of the last `apus bench --fit`; 0: it did not run */
    uint64_t gpu_memory;                     /* free bytes; 0: there is no GPU. Never kept */
    double
        gpu_rows; /* bytes of weights per second in the products of one row on the GPU; 0: not measured. Never kept */
} FitMachine;

typedef enum FitForm { FIT_FULL, FIT_QUANTISED, FIT_AUTO /* full precision where that fits */ } FitForm;

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
    int gpu_layers;    /* the GPU computes the last gpu_layers layers; FIT_GPU_AUTO: as many as fit */
} FitRequest;

typedef struct Fit {
    bool stream, quantised;
    /* About the layers on the host alone, except for kv_bytes and kv_wanted. */
    uint64_t budget, floor;           /* bytes; floor: the smallest budget that would do */
    uint64_t experts_bytes, kv_bytes; /* what the budget leaves for them beside dense_bytes and besides_bytes */
    uint64_t kv_wanted;               /* bytes that the slots need in the chosen format */
    int gpu_layers;                   /* layers on the GPU */
    uint64_t gpu_bytes, gpu_kv_bytes; /* their weights and their part of the KV cache */
    int gpu_fit;                      /* layers that would fit on the GPU */
    double gpu_s;                     /* seconds per token for the weights on the GPU */
    int held;                         /* experts in memory */
    double hit;                       /* expected share of the used experts that is in memory */
    /* Seconds per token: dense weights and KV cache; experts in memory; computing loaded experts; loading them; all. */
    double dense_s, hits_s, misses_s, disk_s, decode_s;
    double decode, prompt;    /* tok/s; 0: nothing was measured */
    double read_bytes;        /* bytes read from disk per token */
    double prompt_read_bytes; /* bytes read from disk for a prompt of FIT_PROMPT tokens */
    double prompt_compute_s, prompt_disk_s;
} Fit;

/* Appends the processor's name, as the system has it, and the size of the memory in MB. */
void fit_describe_machine(Buffer *out);

/* ERROR_MEMORY, with the floor, when the budget is too small. */
NODISCARD bool fit_plan(
    const FitMachine *machine, const FitModel *model, const FitRequest *request, Fit *out, Error *error);
/* gpu.c: the GPU's part of the plan: gpu_layers and their bytes. ERROR_MEMORY, with all numbers, if the requested
 * number of layers does not fit. */
NODISCARD bool fit_gpu(
    const FitMachine *machine, const FitModel *model, const FitRequest *request, Fit *fit, Error *error);
/* The model as the host sees it if gpu_layers layers are on the GPU. */
FitModel fit_host_part(const FitModel *model, int gpu_layers);

/* Bytes of `room` for the KV cache of a model with streamed experts, by default; cache and experts get at least their
 * minimum. */
uint64_t fit_cache_share(uint64_t room, uint64_t cache_least, uint64_t experts_least);
/* Expected share of the used experts that is in memory, if the cache holds `held` experts, for text on mixed topics. */
double fit_hit_rate(const FitModel *model, int held);

/* The table of `apus info --fit`: a line for each choice with its reason and its numbers. */
void fit_explain(
    const FitMachine *machine, const FitModel *model, const FitRequest *request, const Fit *fit, Buffer *out);
/* The same in one line, for the log. */
void fit_summary(const FitMachine *machine, const FitModel *model, const Fit *fit, Buffer *out);
/* Fills in all but the GPU's members. */
void fit_model(const Runner *runner, FitModel *out);
/* Fills in the GPU's members; the runner is one of the CPU. */
struct Plugin;
void fit_model_gpu(const Runner *runner, const struct Plugin *plugin, FitModel *out);
/* Measures gpu_rows on the device that the options name: some hundredths of a second, besides opening it. */
NODISCARD bool fit_measure_gpu(const FitModel *model, const BackendOptions *device, FitMachine *out, Error *error);
/* Measures memory and products with the threads of the backend's options, some tenths of a second, and for models with
 * experts the disk, half a second. path: a large file of the model. The disk stays unmeasured where the system does not
 * allow it. */
NODISCARD bool fit_measure(
    const FitModel *model, const BackendOptions *backend, const char *path, FitMachine *out, Error *error);

/* ---- usual.c: measurements with weights of usual kinds, for models that are not here ---- */

/* A model with the kinds of weights that most files have, as fit_measure() wants it. Its experts exist so that the disk
 * is measured, too. */
FitModel fit_usual_model(void);
/* Fills in what `measured`, a machine measured with weights like those of `usual`, would do with weights like those of
 * `model`: for each kind the figures of the kind that is most alike. End-to-end figures are left out. */
void fit_transfer(const FitModel *usual, const FitMachine *measured, const FitModel *model, FitMachine *out);

/* ---- calibration.c: measurements kept per machine and model (docs/formats.md) ---- */

/* All borrowed. */
typedef struct CalibrationKey {
    const char *directory;  /* the directory that calibrations are kept in */
    const char *checkpoint; /* the directory of the model */
    const char *backend;    /* backend_describe() */
} CalibrationKey;
/* False without a calibration for this machine, backend and model; *why is set if there is a file that does not fit. */
bool calibration_load(const CalibrationKey *key, const FitModel *model, FitMachine *out, Error *why);
NODISCARD bool calibration_save(
    const CalibrationKey *key, const FitModel *model, const FitMachine *machine, Error *error);
