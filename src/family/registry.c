/* model_type of config.json → family. */
#include "family/family.h"
#include "model/model_internal.h"

static const struct {
    const char *model_type;
    FamilyLoad *load;
} families[] = {
    {"gemma3", gemma3_wrapper_load},
    {"gemma3_text", gemma3_load},
    {"llama", llama_load},
    {"mistral", llama_load},
    {"phi", phi_load},
    {"phi3", phi3_load},
    {"qwen2", qwen2_load},
    {"qwen3", qwen3_load},
    {"smollm3", smollm3_load},
};

static FamilyLoad *family_find(Slice model_type) {
    for (size_t i = 0; i < COUNT_OF(families); i++) {
        if (slice_is(model_type, families[i].model_type)) {
            return families[i].load;
        }
    }
    return NULL;
}

Model *model_open(const char *directory, const ModelOptions *options, Error *error) {
    return model_load(directory, options, family_find, error);
}
