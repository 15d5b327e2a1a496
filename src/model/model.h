/* A loaded model: a Spec (spec.h) filled by its family, weights bound to it, and the one decoder that walks it.
 * Threads: open and close anywhere; forward and the cache belong to the engine thread. */
#pragma once
#include "backend/backend.h"
#include "base/buffer.h"
#include "base/json.h"

typedef struct Model Model;
struct Spec;

typedef struct ModelOptions {
    BackendOptions backend;
    /* "mmap": matrices stay in the mapped file, its pages are touched ahead. "ram": they are read into huge pages.
     * NULL: mapped, each page comes when it is used. */
    const char *weights;
    void (*progress)(void *context, uint64_t done, uint64_t total); /* bytes of "ram"; NULL: none */
    void *progress_context;
    int context;        /* tokens a sequence may hold; 0: what the model was made for, at most MODEL_CONTEXT_DEFAULT */
    bool strict_config; /* a config field that the family neither uses nor lists as irrelevant is an error, not a
                           warning */
    void (*warn)(void *context, const char *line); /* warnings of the loader; NULL: dropped */
    void *warn_context;
} ModelOptions;

enum { MODEL_CONTEXT_DEFAULT = 32768, MODEL_ROWS_MAX = 4096, EOS_MAX = 16 };

/* Reads config.json, checks every tensor's name, shape and type against the family's Spec, walks the decoder once on
 * the plan backend, opens the real backend. An error names file, field and value. */
/* Defined in family/, which knows the families. */
NODISCARD Model *model_open(const char *directory, const ModelOptions *options, Error *error);
void model_close(Model *model); /* NULL is fine */

const struct Spec *model_spec(const Model *model);
Backend *model_backend(const Model *model);
int model_vocab(const Model *model);   /* width of the logits */
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
/* The table of `apus info`. */
void model_describe(const Model *model, Buffer *out);

/* Runs the step: appends its tokens to the caches and writes f32 logits of the rows named in output (indices into the
 * step's rows) to logits[count, vocab], in host memory. False: device or file fault; the sequences of the step are
 * lost. */
NODISCARD bool model_forward(
    Model *model, const Step *step, int count, const int32_t *output, float *logits, Error *error);
