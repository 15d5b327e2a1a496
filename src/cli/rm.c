#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/local.h"
#include "cli/models.h"
#include "hub/hub.h"

static const Command command = {"rm", "NAME…", "Removes models: names as `apus list` shows them.",
    "With a model go its conversion and, of the hub's cache, what an interrupted download left. ORG/NAME removes all "
    "that is\n"
    "here of it, ORG/NAME:FILE or ORG/NAME@REVISION a part.\n"};

/* The conversions of a hub name's files, which are found through the files: so before these. */
static bool remove_conversions(const LocalModels *local, const char *name, uint64_t *freed_bytes, Error *error) {
    const size_t size = strlen(name);
    for (size_t i = 0; i < local->count; i++) {
        const LocalModel *model = &local->models[i];
        const bool named = !strncmp(model->name, name, size) && strchr(":@", model->name[size]); /* or the very name */
        if (model->hub && named && model->conversion && !local_remove_directory(model->conversion, freed_bytes, error))
            return false;
    }
    return true;
}

static bool remove_hub(const LocalModels *local, const char *name, uint64_t *freed_bytes, Error *error) {
    HubSettings settings;
    HubName parsed;
    uint64_t freed = 0;
    if (!hub_name_parse(name, &parsed, error) || !hub_settings_read(&settings, error)) return false;
    const bool ok =
        remove_conversions(local, name, freed_bytes, error) && hub_remove(&settings, &parsed, &freed, error);
    hub_settings_free(&settings);
    *freed_bytes += freed;
    return ok;
}

static bool remove_file(const char *path, uint64_t *freed_bytes, Error *error) {
    struct stat info;
    if (lstat(path, &info)) return true;
    if (unlink(path)) return fail(error, ERROR_IO, "cannot remove %s: %s", path, strerror(errno));
    *freed_bytes += (uint64_t)info.st_blocks * 512;
    return true;
}

/* NAME.gguf with its conversion, or the directory NAME: of our own cache. */
static bool remove_own(const LocalModels *local, const char *name, uint64_t *freed_bytes, Error *error) {
    for (size_t i = 0; i < local->count; i++) {
        const LocalModel *model = &local->models[i];
        if (model->hub || strcmp(model->name, name) != 0) continue;
        if (file_is_directory(model->path)) return local_remove_directory(model->path, freed_bytes, error);
        return (!model->conversion || local_remove_directory(model->conversion, freed_bytes, error)) &&
            remove_file(model->path, freed_bytes, error);
    }
    Buffer path = {0}; /* what is unfinished is no row */
    bool ok = models_cache(&path, error);
    buffer_printf(&path, "/%s", name);
    if (ok && (path.failed || name[0] == '.' || !file_is_directory(path.data)))
        ok = fail(error, ERROR_NOT_FOUND, "%s: no such model here (apus list shows them)", name);
    ok = ok && local_remove_directory(path.data, freed_bytes, error);
    buffer_free(&path);
    return ok;
}

int command_rm(int argc, char **argv) {
    Arguments arguments;
    const OptionsResult result = options_parse(&command, NULL, argc, argv, 1, POSITIONAL_MAX, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    LocalModels local;
    if (!local_list(&local, &error)) return report(&error);
    bool ok = true;
    for (int i = 0; ok && i < arguments.count; i++) {
        const char *name = arguments.values[i];
        uint64_t freed = 0;
        ok = strchr(name, '/') ? remove_hub(&local, name, &freed, &error) : remove_own(&local, name, &freed, &error);
        if (ok) printf("removed %s: %.0f MB\n", name, (double)freed * 1e-6);
    }
    local_free(&local);
    return ok ? 0 : report(&error);
}
