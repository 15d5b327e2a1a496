#include "library/expected.h"

#include <string.h>

#include "base/log.h"
#include "library/local.h"

enum { PROBED_BYTES_MIN = 64 << 20 };

const char *expected_name(ExpectedFit fit) {
    static const char *const names[] = {"fits", "tight", "streams", "too_large"};
    return names[fit];
}

/* The largest file of weights here, whose disk is measured. Empty: none is large enough. */
static void find_probed(Buffer *path) {
    LocalModels models;
    Error ignored;
    const LocalModel *largest = NULL;
    if (!local_list(&models, &ignored)) return;
    for (size_t i = 0; i < models.count; i++) {
        const LocalModel *model = &models.models[i];
        const size_t size = strlen(model->path);
        const bool file = size > 5 && !strcmp(model->path + size - 5, ".gguf");
        if (file && model->bytes >= PROBED_BYTES_MIN && (!largest || model->bytes > largest->bytes)) largest = model;
    }
    if (largest) buffer_text(path, largest->path);
    local_free(&models);
}

void expected_measure(const ModelPlanner *planner, const EngineOptions *options) {
    Buffer probed = {0};
    Error why = {0};
    if (planner->machine_known(options)) return;
    find_probed(&probed);
    if (!planner->machine_measure(options, probed.size ? probed.data : NULL, &why))
        log_warn("the machine was not measured: %s", why.text);
    buffer_free(&probed);
}

bool expected_of(const ModelPlanner *planner, const EngineOptions *options, const ModelOutline *outline,
    uint64_t held_bytes, Expectation *out, Error *error) {
    EngineOptions own = *options;
    own.directory = outline->directory.data;
    if (!outline->gguf_bytes) return planner->expect(&own, held_bytes, out, error);
    planner->expect_size(&own, outline->gguf_bytes, held_bytes, out);
    return true;
}
