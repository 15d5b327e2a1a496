#include "cli/served.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/part_name.h"
#include "cli/progress.h"
#include "library/named.h"

void served_free(Served *served) {
    for (int i = 0; i < MODELS_MAX; i++) {
        buffer_free(&served->directories[i]);
        buffer_free(&served->names[i]);
    }
}

bool served_add(Served *served, const char *model, const char *name, Error *error) {
    const int i = served->count++;
    Buffer *directory = &served->directories[i], *own = &served->names[i];
    if (name) buffer_text(own, name);
    if (!named_resolve(model, progress_on_terminal(), directory, name ? NULL : own, error)) return false;
    if (own->failed) return fail(error, ERROR_MEMORY, "no memory for the name of a model");
    served->sources[i] = (ModelSource){.name = own->data, .directory = directory->data};
    return true;
}

static int compare_names(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

bool served_add_directory(Served *served, const char *path, Error *error) {
    struct dirent **entries = NULL;
    const int count = scandir(path, &entries, NULL, compare_names);
    if (count < 0) return fail(error, ERROR_USAGE, "--models-dir %s: %s", path, strerror(errno));
    bool ok = true;
    for (int i = 0; i < count; i++) {
        Buffer file = {0}, config = {0};
        buffer_printf(&file, "%s/%s", path, entries[i]->d_name);
        buffer_printf(&config, "%s/config.json", file.data ? file.data : "");
        const size_t size = strlen(entries[i]->d_name);
        const bool gguf = size > 5 && !strcmp(entries[i]->d_name + size - 5, ".gguf");
        PartName part;
        const bool later_part = part_name_parse(entries[i]->d_name, &part) && part.part > 1;
        const bool model = !file.failed && !config.failed && entries[i]->d_name[0] != '.' && !later_part &&
            (file_exists(config.data) || (gguf && file_exists(file.data)));
        if (ok && model && served->count == MODELS_MAX)
            ok = fail(error, ERROR_USAGE, "--models-dir %s: more than %d models", path, MODELS_MAX);
        if (ok && model) {
            ok = served_add(served, file.data, NULL, error);
            served->sources[served->count - 1].on_demand = true;
        }
        buffer_free(&file);
        buffer_free(&config);
        free(entries[i]);
    }
    free(entries);
    return ok;
}
