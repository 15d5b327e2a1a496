/* From config.json and a checkpoint to a Spec: fields, names and shapes of tensors, rotary frequencies, end-of-text
 * ids. This header is for opening a model; loader.h is for family files. Threads: one at a time. */
#pragma once
#include "base/json.h"
#include "model/loader/loader.h"
#include "model/loader/record.h"
#include "tensor/safetensors.h"
#include "weights/weights.h"

typedef struct LoadSource {
    Arena *arena;                /* owns what the Spec points to, unless it lies in the files */
    const Json *config;          /* config.json: an object whose model_type is a string */
    const Json *generation;      /* generation_config.json; NULL: there is none */
    const Json *processor;       /* settings of image preprocessing, an object; NULL: there are none */
    const Json *video_processor; /* the same of videos */
    const Json *extractor;       /* settings of audio preprocessing, an object; NULL: there are none */
    const Json *packing;         /* hf_quant_config.json, an object; NULL: there is none */
    Checkpoint *checkpoint;
    WeightStore *weights;                          /* reads matrices into memory; NULL: they stay in the mapped files */
    bool experts_stay;                             /* routed experts stay in the mapped files */
    int device_layers;                             /* the last so many layers stay in the mapped files */
    bool mtp;                                      /* the multi-token prediction head is loaded, too */
    const Spec *target;                            /* the model that this one drafts for; NULL: none */
    int context;                                   /* tokens of a sequence (ModelOptions.context) */
    bool strict_config;                            /* unused fields are an error instead of a warning */
    void (*warn)(void *context, const char *line); /* NULL: warnings are dropped */
    void *warn_context;
    LoadRecord *record; /* gets what is read; NULL: the model is to be run */
} LoadSource;

typedef struct LoadTarget {
    Spec *spec;
    /* Ids that end a text: of generation_config.json, else of config.json, else of its text_config. Another type, or
     * more than eos_max, is an error. An id beyond the vocabulary, which the model can never write, is left out with a
     * warning. */
    int32_t *eos;
    int eos_max, eos_count;
    uint64_t weight_bytes; /* bytes of the tensors used */
} LoadTarget;

/* Errors name file, field or tensor, and value. */
NODISCARD bool spec_load(const LoadSource *source, FamilyLoad *family, LoadTarget *target, Error *error);
