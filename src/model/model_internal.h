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
    WeightStore *weights;                /* NULL: matrices lie in the mapped files */
    ExpertCache *bank;                   /* NULL: experts are weights like others */
    Buffer config_text, generation_text; /* the JSON nodes point into them */
    const Json *config;                  /* root of config.json */
    const Json *generation_config;       /* NULL: there is none */
    Spec spec;
    int32_t eos[EOS_MAX];
    int eos_count;
    uint64_t weight_bytes, streamed_bytes; /* of the files' tensors; those that the bank reads, */
    uint64_t device_bytes;                 /* and those of layers that are to be a device's */
    int experts_used, experts_made_for;    /* by a token, of the layer with most; 0: none were left out */
    ExpertOptions experts;
    int context;
};

/* Has a token use at most so many experts of a layer. */
NODISCARD bool model_cut_experts(Model *model, int used, Error *error);
/* Notes where the routed experts of the Spec lie, and takes their addresses away. */
NODISCARD bool model_stream(Model *model, const ModelOptions *options, Error *error);
/* Of the matrices of layers from `first` on; of all where it is below 0, as more were asked for than there are. */
uint64_t model_layer_bytes(const Model *model, int first);
NODISCARD Model *model_load(const char *directory, const ModelOptions *options, FamilyFind *find, Error *error);
