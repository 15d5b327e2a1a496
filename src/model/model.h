/* A loaded model: a Spec (spec.h) that its family filled, and the files that its weights lie in. Constant once it is
 * open: any number of runners (runner.h) can use it. Threads: any. */
#pragma once
#include <stdint.h>

#include "base/error.h"
#include "base/json.h"
#include "tensor/expert_provider.h"
#include "weights/expert_cache.h"

typedef struct Model Model;
struct Spec;

typedef enum WeightsMode {
    WEIGHTS_LAZY,   /* mapped; each page is read when it is used */
    WEIGHTS_MAPPED, /* mapped; the pages are touched ahead */
    WEIGHTS_READ,   /* read into huge pages */
} WeightsMode;

/* Streamed experts: routed experts stay in their files and are read when a token needs them (weights/expert_cache.h),
 * into memory that model_hold_experts() allocates; all other weights are read into memory. */
typedef struct ExpertOptions {
    bool stream;
    bool prefetch; /* experts of the next layer are read ahead where that proves to be faster */
    uint64_t
        memory_budget;  /* bytes of everything that this model makes the host hold; 0: nine tenths of what is free */
    uint64_t bytes_max; /* of the expert cache; 0: what the budget leaves */
    ExpertCacheOptions cache;
} ExpertOptions;

typedef struct ModelOptions {
    WeightsMode weights;
    void (*progress)(void *context, uint64_t done, uint64_t total); /* bytes, with WEIGHTS_READ; NULL: none */
    void *progress_context;
    int experts_used; /* largest number of experts per token and layer, with other answers; 0: the model's */
    ExpertOptions experts;
    /* The last so many layers, or all, will be a device's: their matrices stay in the mapped files, neither read nor
     * touched ahead, and so do their experts, which are not streamed. 0: none. */
    int device_layers;
    int context;        /* tokens a sequence may hold; 0: what the model was made for, at most MODEL_CONTEXT_DEFAULT */
    bool strict_config; /* a config field that the family neither uses nor lists as irrelevant is an error, not a
                           warning */
    void (*warn)(void *context, const char *line); /* warnings of the loader; NULL: dropped */
    void *warn_context;
} ModelOptions;

enum { MODEL_CONTEXT_DEFAULT = 32768, EOS_MAX = 16 };

/* Reads config.json and checks every tensor's name, shape and type against the family's Spec. An error names file,
 * field and value. Defined in family/, which knows the families. */
NODISCARD Model *model_open(const char *directory, const ModelOptions *options, Error *error);
void model_close(Model *model); /* NULL is fine */

/* Whether a token uses fewer experts than the model was made for; *used of *made_for, of the layer with most. */
bool model_experts_cut(const Model *model, int *used, int *made_for);
/* Takes memory for as many of the experts as fit these bytes, before the first step. Only with experts.stream.
 * ERROR_MEMORY when one layer's do not fit. */
NODISCARD bool model_hold_experts(const Model *model, uint64_t bytes, Error *error);
ExpertProvider *model_experts(const Model *model); /* NULL: they are not streamed */
/* given_up is asked by whoever waits for an expert, on the thread that runs the step: whether nobody wants the step any
 * more; then it fails with ERROR_CANCELLED. */
void model_watch_experts(const Model *model, bool (*given_up)(void *context), void *context);
uint64_t model_expert_bytes(const Model *model); /* of all that are */
uint64_t model_expert_floor(const Model *model); /* the fewest that model_hold_experts() takes */
uint64_t model_expert_working_set(
    const Model *model); /* of what one token uses in all layers: with less, few are found */

/* Layers from `first` on have been bound to a device: pages of the mapped files with their matrices may leave this
 * process's memory. They come again if they are read. */
void model_drop_host_pages(const Model *model, int first);
const struct Spec *model_spec(const Model *model);
int model_layers(const Model *model);
int model_vocab(const Model *model);   /* width of the logits */
int model_hidden(const Model *model);  /* of the residual stream */
int model_context(const Model *model); /* tokens a sequence may hold */
/* End-of-sequence ids of generation_config.json, else config.json (text_config too). Returns their number, ≤ EOS_MAX.
 */
int model_eos(const Model *model, int32_t out[EOS_MAX]);
uint64_t model_weight_bytes(const Model *model);
/* What one token costs: weight bytes read when it is generated; multiplications and additions in the layers' products,
 * which is what it costs in a prompt. */
void model_step_cost(const Model *model, uint64_t *bytes, uint64_t *operations);
/* generation_config.json: temperature, top_p, top_k …; NULL when absent. */
const Json *model_generation_config(const Model *model);
const char *model_largest_file(const Model *model); /* its path */
/* A file of the model that shrank while it was in use, by its path; NULL: none did. What was read from it since counts
 * as lost. Cheap, asked once per step. */
const char *model_damaged(const Model *model);
