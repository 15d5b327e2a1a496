#include "engine/cache_identity.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/digest.h"
#include "engine/placement.h"
#include "model/component.h"

/* A file of the same name with another size or time is another model. */
static bool add_files(const char *directory, Buffer *out, Error *error) {
    struct dirent **entries = NULL;
    const int count = scandir(directory, &entries, NULL, alphasort);
    if (count < 0) return fail(error, ERROR_IO, "%s: cannot list its files", directory);
    for (int i = 0; i < count; i++) {
        char path[4096];
        struct stat status;
        snprintf(path, sizeof path, "%s/%s", directory, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && !stat(path, &status) && S_ISREG(status.st_mode))
            buffer_printf(
                out, "%s %lld %lld\n", entries[i]->d_name, (long long)status.st_size, (long long)status.st_mtime);
        free(entries[i]);
    }
    free(entries);
    return true;
}

static void add_rope(void *context, const Rope **rope) {
    uint64_t *sum = context;
    *sum = checksum64_seeded(*sum, (*rope)->frequencies, (size_t)((*rope)->dims / 2) * sizeof(float));
}

/* Tells which of the two lists of frequencies of longrope the context chose. */
static uint64_t rope_checksum(const Spec *spec) {
    uint64_t sum = 0;
    const Visitor visitor = {.rope = add_rope, .context = &sum};
    for (int i = 0; i < spec->layer_count; i++) {
        Layer copy = spec->layers[i];
        layer_visit(&copy, &visitor);
    }
    return sum;
}

bool cache_identity(const EngineOptions *options, const Runner *runner, Buffer *out, Error *error) {
    const KvPlan *plan = runner_kv_plan(runner);
    const Backend *first = runner_backend(runner), *upper = runner_upper(runner);
    if (!add_files(options->directory, out, error)) return false;
    buffer_printf(out, "version %s\nbackend %s precise %d\n", APUS_VERSION, first->ops->name, options->backend.precise);
    if (upper != first) /* an upper layer's input depends on which backend computed the lower ones */
        buffer_printf(out, "upper %s layers %d\n", upper->ops->name,
            placement_layers(options, model_layers(runner_model(runner))));
    if (options->backend.tensor_parallel > 1) buffer_printf(out, "ranks %d\n", options->backend.tensor_parallel);
    if (options->model.experts_used) buffer_printf(out, "experts %d\n", options->model.experts_used);
    buffer_printf(out, "rope %016llx\n", (unsigned long long)rope_checksum(model_spec(runner_model(runner))));
    for (int i = 0; i < plan->entry_count; i++) {
        const KvLayout *l = &plan->entries[i].layout;
        buffer_printf(out, "entry %d %d %d %d %d\n", l->kv_heads, l->head_dim, l->value_dim, l->dtype, l->latent);
    }
    return !out->failed || fail(error, buffer_failure(out), "no memory for the identity of a cache");
}
