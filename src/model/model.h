/* A loaded model: its Spec (spec.h) and the files with its weights. Constant after model_open(), except for the memory
 * of streamed experts; any number of runners (runner.h) can use it. Threads: any. */
#pragma once
#include <stdint.h>

#include "base/error.h"
#include "base/json.h"
#include "model/adapter.h"
#include "tensor/expert_provider.h"
#include "weights/expert_cache.h"

typedef struct Model Model;
struct Spec;
struct LoadRecord;

typedef enum WeightsMode {
    WEIGHTS_LAZY,   /* mapped; each page is read when it is used */
    WEIGHTS_MAPPED, /* mapped; the pages are touched ahead */
    WEIGHTS_READ,   /* read into huge pages */
} WeightsMode;

/* Streamed experts: routed experts stay in their files and are read when a token needs them (weights/expert_cache.h),
 * into memory that model_hold_experts() allocates; all other weights are read into memory. */
typedef struct ExpertOptions {
    bool stream;
    bool prefetch;          /* experts of the next layer are read ahead where that proves to be faster */
    uint64_t memory_budget; /* bytes of host memory for all that this model needs; 0: nine tenths of the free memory */
    uint64_t bytes_max;     /* size of the expert cache; 0: the rest of the budget */
    ExpertCacheOptions cache;
} ExpertOptions;

typedef struct ModelOptions {
    WeightsMode weights;
    void (*progress)(void *context, uint64_t done, uint64_t total); /* bytes, with WEIGHTS_READ; NULL: none */
    void *progress_context;
    int experts_used; /* limit of experts per token and layer, which changes answers; 0: as trained */
    ExpertOptions experts;
    int device_layers;   /* the last so many layers will be a device's: they stay in the mapped files, experts too */
    bool mtp;            /* loads the multi-token prediction head, too; a file without one is an error */
    const Model *target; /* the model that this one drafts for, which outlives it: an assistant reads it; NULL: none */
    const AdapterSource *adapters; /* [adapter_count] LoRA adapters; borrowed for model_open() */
    int adapter_count;
    int context;        /* tokens per sequence; 0: as trained, at most MODEL_CONTEXT_DEFAULT */
    bool strict_config; /* unused config fields are an error instead of a warning */
    void (*warn)(void *context, const char *line); /* warnings of the loader; NULL: dropped */
    void *warn_context;
    struct LoadRecord
        *record; /* gets what the model reads, which then cannot run (model/loader/record.h); NULL: none */
} ModelOptions;

enum { MODEL_CONTEXT_DEFAULT = 32768, EOS_MAX = 16 };

/* Reads config.json and checks every tensor's name, shape and type against the family's Spec. An error names file,
 * field and value. Defined in family/, which knows the families. */
NODISCARD Model *model_open(const char *directory, const ModelOptions *options, Error *error);
void model_close(Model *model); /* NULL is fine */

/* Whether tokens use fewer experts than the model was trained for: *used of *made_for, of the layer with most. */
bool model_experts_cut(const Model *model, int *used, int *made_for);
/* Takes memory for as many experts as fit these bytes. Before the first step, only with experts.stream. ERROR_MEMORY if
 * the experts of one layer do not fit. */
NODISCARD bool model_hold_experts(const Model *model, uint64_t bytes, Error *error);
ExpertProvider *model_experts(const Model *model); /* NULL: they are not streamed */
/* While the step's thread waits for an expert, it calls given_up(); true cancels the step with ERROR_CANCELLED. */
void model_watch_experts(const Model *model, bool (*given_up)(void *context), void *context);
uint64_t model_expert_bytes(const Model *model); /* bytes of all streamed experts */
uint64_t model_expert_floor(const Model *model); /* least for model_hold_experts() */
/* Bytes of the experts that one token uses in all layers; a smaller cache has few hits. */
uint64_t model_expert_working_set(const Model *model);

/* Expert weights that independent rows of a step read, relative to those of one row: [rows ≤ rows_max], from 1 on.
 * False: the model has no experts. */
bool model_expert_fanout(const Model *model, int rows_max, float *fanout);

/* Drops pages of the mapped files that hold matrices of layers from `first` on, which are bound to a device. They are
 * read again on access. */
void model_drop_host_pages(const Model *model, int first);
const struct Spec *model_spec(const Model *model);
/* The LoRA adapter of that name, from 1 on (SequenceChunk.adapter); 0: there is none. */
int model_adapter(const Model *model, Slice name);
int model_adapter_count(const Model *model);
/* Whether the model judges texts (Classifier of spec.h); the logit for the state of a text's first token,
 * [model_hidden].
 */
bool model_encodes(const Model *model); /* it has states of whole texts, and no answers (Spec.encoder) */
bool model_classifies(const Model *model);
float model_classify(const Model *model, const float *state);
int model_layers(const Model *model);
int model_vocab(const Model *model);   /* width of the logits */
int model_hidden(const Model *model);  /* width of the residual */
int model_context(const Model *model); /* tokens a sequence may hold */
/* End-of-sequence ids of generation_config.json, else config.json (text_config too). Returns their number, ≤ EOS_MAX.
 */
int model_eos(const Model *model, int32_t out[EOS_MAX]);
uint64_t model_weight_bytes(const Model *model);
/* The cost of one token: weight bytes that a decode step reads; operations of the layers' products with weights. */
void model_step_cost(const Model *model, uint64_t *bytes, uint64_t *operations);
/* Weight bytes that a draft token of the multi-token prediction head reads; 0: there is none. */
uint64_t model_mtp_bytes(const Model *model);
/* Whether it is an assistant: a draft model that reads the embedding, the states and the KV cache of
 * ModelOptions.target.
 */
bool model_is_assistant(const Model *model);
/* generation_config.json: temperature, top_p, top_k …; NULL when absent. */
const Json *model_generation_config(const Model *model);
const char *model_largest_file(const Model *model); /* its path */
/* Path of a file that shrank while it was in use, which makes results since then invalid; NULL: none. Cheap, called
 * once per step. */
const char *model_damaged(const Model *model);
