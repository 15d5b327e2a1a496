#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/fits.h"
#include "library/library.h"
#include "library/local.h"

static const Command command = {"list", "",
    "The models that are here, of the hub's cache and of apus's own, and how this machine would run them.",
    "FIT: fits, tight (little room for the KV cache), streams (experts are read from the SSD) or too large. TOK/S: "
    "the\n"
    "speed to expect; on a terminal the machine is measured for it once, about a second (apus info MODEL --fit says "
    "more).\n"
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

static bool print_json(const LocalModel *model, const Expectation *fit) {
    Buffer line = {0};
    buffer_text(&line, "{\"id\":");
    json_write_string(&line, slice_of(model->name));
    buffer_text(&line, ",\"format\":");
    json_write_string(&line, slice_of(model->format));
    buffer_printf(&line, ",\"bytes\":%" PRIu64 ",\"last_used\":%" PRId64, model->bytes, model->used_s);
    fits_json(fit, &line);
    const bool ok = !line.failed;
    if (ok) printf("%s}\n", line.data);
    buffer_free(&line);
    return ok;
}

static void print_row(const LocalModel *model, int width, const Expectation *fit) {
    printf("%-*s  %8.0f MB", width, model->name, (double)model->bytes * 1e-6);
    fits_print(fit);
    print_ago(model->used_s);
    printf("  %s\n", model->format);
}

int command_list(int argc, char **argv) {
    bool json = false;
    const Option options[] = {
        {"--json", NULL, OPTION_FLAG, &json, 0, 0, NULL, "a JSON object for each model, on a line"},
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 0, 0, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    LocalModels local;
    Fits fits = {0};
    if (!local_list(&local, &error)) return report(&error);
    if (local.count) fits_open(&fits);
    int width = 24;
    for (size_t i = 0; i < local.count; i++)
        if ((int)strlen(local.models[i].name) > width) width = (int)strlen(local.models[i].name);
    if (local.count && !json) printf("%-*s  %11s" FITS_TITLE "  %-12s  FORMAT\n", width, "NAME", "SIZE", "LAST USE");
    bool ok = true;
    for (size_t i = 0; ok && i < local.count; i++) {
        const LocalModel *model = &local.models[i];
        Expectation expectation;
        const Expectation *fit = fits_find(&fits, model->name, false, model->bytes, &expectation) ? &expectation : NULL;
        if (json)
            ok = print_json(model, fit) || fail(&error, ERROR_MEMORY, "no memory for the list");
        else
            print_row(model, width, fit);
    }
    if (!local.count && !json) {
        Buffer cache = {0};
        if (library_path(&cache, &error))
            printf("no models in %s and in the hub's cache; apus pull ORG/NAME brings one\n", cache.data);
        buffer_free(&cache);
    }
    if (local.unfinished)
        fprintf(stderr, "unfinished, not listed: %zu downloads or conversions, %.0f MB (pull again, or apus rm NAME)\n",
            local.unfinished, (double)local.unfinished_bytes * 1e-6);
    local_free(&local);
    return ok ? 0 : report(&error);
}
