/* Finds the family of a config, and with it opens a model. */
#include "family/family.h"
#include "model/model_internal.h"

#define FAMILY_ROW(model_type, load) {model_type, load},
static const struct {
    const char *model_type;
    FamilyLoad *load;
} families[] = {FAMILIES(FAMILY_ROW)};

static FamilyLoad *family_find(Slice model_type) {
    for (size_t i = 0; i < COUNT_OF(families); i++) {
        if (slice_is(model_type, families[i].model_type)) return families[i].load;
    }
    return NULL;
}

Model *model_open(const char *directory, const ModelOptions *options, Error *error) {
    return model_load(directory, options, family_find, error);
}
