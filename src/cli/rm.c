#include <stdio.h>

#include "cli/commands.h"
#include "library/local.h"

static const Command command = {"rm", "NAME…", "Removes models: names as `apus list` shows them.",
    "With a model go its conversion and, of the hub's cache, what an interrupted download left. ORG/NAME removes all "
    "that is\n"
    "here of it, ORG/NAME:FILE or ORG/NAME@REVISION a part.\n"};

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
        ok = local_remove(&local, name, &freed, &error);
        if (ok) printf("removed %s: %.0f MB\n", name, (double)freed * 1e-6);
    }
    local_free(&local);
    return ok ? 0 : report(&error);
}
