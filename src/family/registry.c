/* Finds the family of a config, and with it opens a model; lists those that GGUF files can hold. */
#include "family/family.h"
#include "model/model_internal.h"

#define FAMILY_ROW(model_type, family) {model_type, &family},
static const struct {
    const char *model_type;
    const Family *family;
} families[] = {FAMILIES(FAMILY_ROW)};

static FamilyLoad *family_find(Slice model_type) {
    for (size_t i = 0; i < COUNT_OF(families); i++) {
        if (slice_is(model_type, families[i].model_type)) return families[i].family->load;
    }
    return NULL;
}

const GgufModel *family_gguf(size_t index, const char **model_type) {
    for (size_t i = 0; i < COUNT_OF(families); i++) {
        if (!families[i].family->gguf || index-- > 0) continue;
        *model_type = families[i].model_type;
        return families[i].family->gguf;
    }
    return NULL;
}

Model *model_open(const char *directory, const ModelOptions *options, Error *error) {
    return model_load(directory, options, family_find, error);
}
