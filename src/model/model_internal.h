/* The inside of a Model, for the files of this folder and family/. */
#pragma once
#include "base/buffer.h"
#include "model/loader/loader.h"
#include "model/model.h"
#include "weights/expert_cache.h"
#include "weights/weights.h"

/* The family of a model_type, or NULL. */
typedef FamilyLoad *FamilyFind(Slice model_type);

struct Model {
    Arena arena;
    const char *directory;
    Checkpoint checkpoint;
    WeightStore *weights; /* matrices that were read into memory; NULL: they stay in the mapped files */
    ExpertCache *bank;    /* experts that are streamed; NULL: they are weights like others */
    /* the JSON nodes point here */
    Buffer config_text, generation_text, processor_text, preprocessor_text, video_text, packing_text;
    const Json *config;            /* root of config.json */
    const Json *generation_config; /* NULL: the file is absent */
    const Json *processor;         /* settings of image preprocessing, an object; NULL: there are none */
    const Json *video_processor;   /* the same of videos */
    const Json *extractor;         /* settings of audio preprocessing, an object; NULL: there are none */
    const Json *packing;           /* hf_quant_config.json; NULL: there is none */
    Spec spec;
    int32_t eos[EOS_MAX];
    int eos_count;
    uint64_t weight_bytes;   /* bytes of all tensors used */
    uint64_t streamed_bytes; /* bytes of experts that `bank` reads */
    uint64_t device_bytes;   /* bytes of layers that a device will have */
    int experts_used;        /* experts per token after model_cut_experts(), of the layer with most; 0: unchanged */
    int experts_made_for;    /* the same as trained; 0: unchanged */
    ExpertOptions experts;
    int context;
};

/* Limits the experts that a token uses in each layer. ERROR_USAGE if there are no experts or `used` is below 1. */
NODISCARD bool model_cut_experts(Model *model, int used, Error *error);
/* Opens the expert cache over the routed experts of the Spec and clears their addresses. */
NODISCARD bool model_stream(Model *model, const ModelOptions *options, Error *error);
/* Bytes of the matrices of layers from `first` on; below 0 counts as 0. */
uint64_t model_layer_bytes(const Model *model, int first);
NODISCARD Model *model_load(const char *directory, const ModelOptions *options, FamilyFind *find, Error *error);
