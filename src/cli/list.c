#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/commands.h"
#include "library/local.h"
#include "library/library.h"

static const Command command = {"list", "", "The models that are here: of the hub's cache and of apus's own.",
    "Conversions of GGUF files are counted with their files. `apus rm NAME` removes a row. serve, run, chat and info "
    "take\n"
    "a name, the model's id in the API, or the beginning of one that no other has.\n"};

/* "now", "5 min ago", "3 h ago", "12 days ago" */
static void print_ago(int64_t used_s) {
    const int64_t s = (int64_t)time(NULL) - used_s;
    if (used_s == 0)
        printf("  %-12s", "-");
    else if (s < 60)
        printf("  %-12s", "now");
    else
        printf("  %3" PRId64 " %-8s",
            s < 3600            ? s / 60
                : s < 2 * 86400 ? s / 3600
                                : s / 86400,
            s < 3600            ? "min ago"
                : s < 2 * 86400 ? "h ago"
                                : "days ago");
}

int command_list(int argc, char **argv) {
    Arguments arguments;
    const OptionsResult result = options_parse(&command, NULL, argc, argv, 0, 0, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    LocalModels local;
    if (!local_list(&local, &error)) return report(&error);
    int width = 24;
    for (size_t i = 0; i < local.count; i++)
        if ((int)strlen(local.models[i].name) > width) width = (int)strlen(local.models[i].name);
    if (local.count) printf("%-*s  %11s  %-12s  FORMAT\n", width, "NAME", "SIZE", "LAST USE");
    for (size_t i = 0; i < local.count; i++) {
        const LocalModel *model = &local.models[i];
        printf("%-*s  %8.0f MB", width, model->name, (double)model->bytes * 1e-6);
        print_ago(model->used_s);
        printf("  %s\n", model->format);
    }
    if (!local.count) {
        Buffer cache = {0};
        if (library_path(&cache, &error))
            printf("no models in %s and in the hub's cache; apus pull ORG/NAME brings one\n", cache.data);
        buffer_free(&cache);
    }
    if (local.unfinished)
        fprintf(stderr, "unfinished, not listed: %zu downloads or conversions, %.0f MB (pull again, or apus rm NAME)\n",
            local.unfinished, (double)local.unfinished_bytes * 1e-6);
    local_free(&local);
    return 0;
}
